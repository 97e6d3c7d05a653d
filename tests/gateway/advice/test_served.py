"""A gateway process with an agent of the mode `advice`, its clients over HTTP, a kill and a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Start, starting
from tests.gateway.test_serve import Client, announced
from tmrl_core.gateway.advice.saves import read_save

SETTINGS = """
run: {name: small}
actor: {cls: "tmrl_core.actor:QValueMLPActor"}
agent: {cls: "tmrl_core.training:DQNAgent", kwargs: {hidden_sizes: [8]}}
gateway:
  port: 0
  agents:
    game: {mode: advice, env_id: CartPole-v1, start_training: 20, batch_size: 8, save_every_steps: 50}
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, SETTINGS) as call:
        yield call


def test_sessions_go_on_from_the_saves_after_a_kill(start: Start, tmp_path: Path) -> None:
    made = start("--credentials", "key", "game")
    key = next(line.strip() for line in made.communicate(timeout=60)[0].splitlines() if line.startswith("    "))
    saves = tmp_path / "runs" / "small" / "gateway" / "game" / "saves"
    gateway = start("--gateway", "--announce")
    client = Client(announced(gateway), key)
    while len(list(saves.glob("*.zip"))) < 3:
        client.episode()
    client.close()
    gateway.kill()
    gateway.wait(20)
    newest = read_save(max(saves.glob("*.zip")))
    assert newest.steps >= 150

    # No update, so that the weights can be compared.
    gateway = start("--gateway", "--announce", "--set", "gateway.agents.game.start_training=100000")
    port = announced(gateway)
    client = Client(port, key)
    client.episode()
    client.post("/shepherd/env/", {"obs": None, "session_key": client.session})
    resumed = read_save(max(saves.glob("*.zip")))
    assert resumed.session_id != newest.session_id
    assert resumed.steps == newest.steps + len(client.transitions)
    assert resumed.arrays.keys() == newest.arrays.keys()
    for name, array in newest.arrays.items():
        found = resumed.arrays[name]
        if name.startswith("memory"):  # followed by the transitions of the new session
            assert len(found) == len(array) + len(client.transitions)
            found = found[: len(array)]
        assert (found == array).all(), name

    second = Client(port, key)  # of the same key: it starts from the level reached
    second.episode()
    gateway.terminate()
    assert gateway.wait(60) == 0
    last = read_save(max(saves.glob("*.zip")))
    assert last.steps == resumed.steps + len(second.transitions)
    client.close()
    second.close()
