"""Configuration of one rank: its share of what the whole run has, and what cannot be shared."""

from __future__ import annotations

from typing import Any

import pytest

from tmrl_core.config import Config, from_values
from tmrl_core.errors import ConfigError
from tmrl_core.ranks.place import Place
from tmrl_core.ranks.shares import share_of

PPO: dict[str, Any] = {
    "actor": {"cls": "tmrl_core.actor:GaussianMLPActor"},
    "agent": {"cls": "tmrl_core.training:PPOAgent"},
    "worker": {"collection": "lockstep"},
    "trainer": {"loop": "tmrl_core.training:TrainingLockstep", "lockstep": {"steps_per_round": 2048, "min_workers": 3}},
}


def made(values: dict[str, Any], servers: int = 2) -> Config:
    endpoints = [f"relay{number}:{56000 + number}" for number in range(servers)]
    return from_values({"server": {"endpoints": endpoints}} | values, "a test")


def place(rank: int, size: int = 2) -> Place:
    return Place(rank, size, "127.0.0.1", 29500)


def test_rows_are_divided_and_folders_and_servers_are_a_ranks_own() -> None:
    whole = made({"memory": {"batch_size": 256, "capacity": 10000}, "run": {"seed": 5}})
    first, second = (share_of(whole, place(rank)) for rank in (0, 1))
    assert (first.memory.batch_size, first.memory.capacity) == (128, 5000)
    assert (first.server.host, first.server.port) == ("relay0", 56000)
    assert (second.server.host, second.server.port) == ("relay1", 56001)
    assert first.memory_path == whole.memory_path / "rank-0"
    assert whole.checkpoint_path is not None
    assert second.checkpoint_path == whole.checkpoint_path / "rank-1"
    # Rank 0 has the seed of the run, and no two ranks have the same random numbers.
    assert first.run.seed == 5 != second.run.seed
    assert first.trainer.threads == second.trainer.threads == 1
    assert first.run.name == second.run.name
    assert not second.metrics.console


def test_a_round_is_divided() -> None:
    found = share_of(made(PPO), place(1))
    assert found.trainer.lockstep.steps_per_round == 1024
    assert found.trainer.lockstep.min_workers == 2
    assert found.agent.kwargs["minibatch_size"] == 32


def test_checkpoints_may_be_disabled() -> None:
    assert share_of(made({"checkpoint": {"enabled": False}}), place(0)).checkpoint_path is None


@pytest.mark.parametrize(
    ("values", "servers", "message"),
    [
        ({}, 3, "server.endpoints: found 3 Servers and 2 ranks, allowed: one Server for each rank"),
        ({"server": {}}, 0, "server.endpoints: found 0 Servers and 2 ranks"),
        ({"memory": {"batch_size": 255}}, 2, "memory.batch_size: found 255, allowed: a multiple of 2"),
        ({"memory": {"sampling": "prioritized"}}, 2, "memory.sampling: prioritized"),
        (
            {"agent": {"cls": "tmrl_core.training:REDQSACAgent"}},
            2,
            "agent.cls: tmrl_core.training:REDQSACAgent does not",
        ),
        ({"agent": {"kwargs": {"compile": True}}}, 2, "agent.kwargs.compile: true"),
        (
            PPO | {"agent": PPO["agent"] | {"kwargs": {"minibatch_size": 65}}},
            2,
            "agent.kwargs.minibatch_size: found 65",
        ),
        (
            PPO | {"trainer": PPO["trainer"] | {"lockstep": {"steps_per_round": 2049}}},
            2,
            "trainer.lockstep.steps_per_round: found 2049, allowed: a multiple of 2",
        ),
        (
            PPO | {"trainer": PPO["trainer"] | {"lockstep": {"steps_per_round": None, "episodes_per_round": 4}}},
            2,
            "trainer.lockstep.episodes_per_round: ranks would have rounds of different lengths",
        ),
        ({"memory": {"recorded": "somewhere"}}, 2, "trainer.offline, memory.recorded"),
    ],
)
def test_what_cannot_be_shared_is_refused(values: dict[str, Any], servers: int, message: str) -> None:
    with pytest.raises(ConfigError) as found:
        share_of(made(values, servers), place(0))
    assert message in str(found.value)
