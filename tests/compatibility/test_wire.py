"""Each side's messages, byte for byte: workers, trainers and Servers of other versions understand nothing else."""

from __future__ import annotations

import pytest

from tests.compatibility import conversations
from tests.compatibility.conversations import CONVERSATIONS, Event, Talk
from tmrl_core.networking.protocol.messages import SUPPORTED_VERSIONS


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Event]]:
    return conversations.recorded()


@pytest.fixture(autouse=True)
def _version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status names the version of the package, which changes."""
    monkeypatch.setattr("tmrl_core.networking.relay.status.__version__", "0.0.0")


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_all_sides_together_send_the_recorded_bytes(name: str, recorded: dict[str, list[Event]]) -> None:
    talk = Talk(recorded[name])
    CONVERSATIONS[name](talk)
    talk.finish()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_clients_understand_a_recorded_server(name: str, recorded: dict[str, list[Event]]) -> None:
    talk = Talk(recorded[name], server=False)
    CONVERSATIONS[name](talk)
    talk.finish()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_server_understands_recorded_clients(name: str, recorded: dict[str, list[Event]]) -> None:
    conversations.play_server(recorded[name])


@pytest.mark.parametrize("name", ["samples_and_policies", "links_that_break", "hand_over"])
def test_a_server_of_several_versions_speaks_the_first_as_before(name: str, recorded: dict[str, list[Event]]) -> None:
    conversations.play_server(recorded[name], SUPPORTED_VERSIONS)


def test_a_byte_that_differs_is_noticed(recorded: dict[str, list[Event]]) -> None:
    changed = [list(event) for event in recorded["hand_over"]]
    changed[-1][1] = changed[-1][1][:-1] + "0"
    with pytest.raises(AssertionError, match="in the recording"):
        CONVERSATIONS["hand_over"](Talk(changed))
