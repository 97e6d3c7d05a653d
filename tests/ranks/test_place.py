"""Place of a process among the ranks, from its environment variables."""

from __future__ import annotations

import pytest

from tmrl_core.errors import ConfigError
from tmrl_core.ranks.place import Place, place_of

OF_TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchrun_gives_a_place() -> None:
    assert place_of(OF_TORCHRUN) == Place(1, 4, "node0", 29500, 2)


def test_without_a_launcher_rank_0_opens_the_store() -> None:
    plain = {name: value for name, value in OF_TORCHRUN.items() if not name.startswith("TORCHELASTIC")}
    assert place_of(plain | {"RANK": "0"}) == Place(0, 4, "node0", 29500, serves=True)
    assert place_of(plain) == Place(1, 4, "node0", 29500)


@pytest.mark.parametrize("variables", [{}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_one_process_has_no_place(variables: dict[str, str]) -> None:
    assert place_of(variables) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": None}, "RANK: found None, allowed: a whole number"),
        ({"RANK": "4"}, "RANK: found 4, allowed: 0 to 3"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE: found 'four'"),
        ({"MASTER_PORT": ""}, "MASTER_PORT: found ''"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set, and WORLD_SIZE is 4; start the ranks with torchrun"),
    ],
)
def test_what_is_missing_or_wrong_is_named(changes: dict[str, str | None], message: str) -> None:
    variables = {name: value for name, value in (OF_TORCHRUN | changes).items() if value is not None}
    with pytest.raises(ConfigError) as found:
        place_of(variables)
    assert message in str(found.value)
