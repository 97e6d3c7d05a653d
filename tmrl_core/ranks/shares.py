"""Configuration of one rank: its Server, its share of each batch, its folders."""

# Theory of operation
#
# Every number of the configuration is the whole run's, so that a file means the same run with one rank and with four.
# What counts rows is divided: a batch of 256 is 4 batches of 64, whose mean gradient is the gradient of the 256. A
# number of rows that cannot be divided is refused, because a silent rounding would be another run. Limits in bytes are
# of one process and stay.
#
# Each rank has folders of its own below those of the run: `checkpoint/rank-2`, `memory/rank-2`. Rank 0 alone writes
# the records, the configuration and the file of weights.
#
# The number of threads is fixed, and the same on all ranks: where it is measured, two ranks could add numbers in
# different orders, and their weights would drift apart.

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from tmrl_core.config import Config, with_changes
from tmrl_core.config.algorithms import algorithm_of
from tmrl_core.config.endpoints import Endpoint, at_endpoint, endpoints_of
from tmrl_core.config.room_sections import kind_of_run
from tmrl_core.errors import ConfigError
from tmrl_core.ranks.place import Place
from tmrl_core.roles.rollout_worker import mixed_seed

TRAINED = (
    "SacAgent", "TQCAgent", "TD3Agent", "DDPGAgent", "DQNAgent", "DiscreteSacAgent", "CrossQAgent", "FlashSACAgent",
    "PPOAgent",
)  # fmt: skip
"""Agents whose updates are the mean of the ranks' updates. Others draw random numbers that all ranks would have to
share, or their episodes belong to one memory."""


def share_of(config: Config, place: Place) -> Config:
    """Return the configuration of a rank.

    Raises:
        ConfigError: the run cannot be shared among so many ranks; the message names each reason.
    """
    servers = endpoints_of(config)
    problems = [*_problems(config, place, servers)]
    if problems:
        raise ConfigError("\n".join(problems))
    size, lockstep = place.size, config.trainer.lockstep
    changes = [
        f"memory.batch_size={config.memory.batch_size // size}",
        f"memory.capacity={config.memory.capacity // size}",
        f"trainer.lockstep.min_workers={-(-lockstep.min_workers // size)}",
        f"trainer.threads={config.trainer.threads or int(os.environ.get('OMP_NUM_THREADS', '1'))}",
    ]
    if config.worker.collection == "lockstep":
        changes.append(f"trainer.lockstep.steps_per_round={(lockstep.steps_per_round or 0) // size}")
        changes.append(f"agent.kwargs.minibatch_size={_minibatch(config) // size}")
    if place.rank and config.run.seed is not None:
        changes.append(f"run.seed={mixed_seed(config.run.seed, f'rank {place.rank}')}")
    if place.rank:
        changes += ["metrics.tensorboard=false", "metrics.console=false"]
    own = with_changes(config, changes)
    memory = msgspec.structs.replace(own.memory, folder=str(config.memory_path / f"rank-{place.rank}"))
    checkpoint = own.checkpoint
    if config.checkpoint_path is not None:
        checkpoint = msgspec.structs.replace(checkpoint, path=str(config.checkpoint_path / f"rank-{place.rank}"))
    own = msgspec.structs.replace(own, memory=memory, checkpoint=checkpoint).started_in(config.start_folder)
    return at_endpoint(own, servers[place.rank])


def _problems(config: Config, place: Place, servers: list[Endpoint]) -> Iterator[str]:
    size = place.size
    if len(servers) != size or not config.server.endpoints:
        listed = len(config.server.endpoints)
        yield (
            f"server.endpoints: found {listed} Server{'' if listed == 1 else 's'} and {size} ranks, allowed: one "
            f"Server for each rank. List {size} as `host:port`, and start each with `python -m tmrl_core --server "
            "-c FILE --set server.port=PORT` (docs/rooms.md), or start as many ranks as there are Servers"
        )
    if kind_of_run(config) is not None:
        yield f"multiagent: runs of this kind train in one process; start the trainer without {size} ranks"
    if config.trainer.offline is not None or config.memory.recorded is not None:
        yield (
            "trainer.offline, memory.recorded: each rank would train on all recorded sessions; leave them out, or "
            "train in one process"
        )
    if config.memory.sampling == "prioritized":
        yield (
            "memory.sampling: prioritized compares the transitions of one memory, and each rank has its own; use "
            "uniform"
        )
    algorithm = algorithm_of(config.agent.cls)
    if algorithm is None or algorithm.name not in TRAINED:
        yield (
            f"agent.cls: {config.agent.cls} does not train in several ranks; allowed: {', '.join(TRAINED)} of "
            "tmrl_core.training"
        )
    elif config.agent.kwargs.get("compile") is True:
        yield "agent.kwargs.compile: true, and the updates of ranks are not compiled; use auto or false"
    rows = [("memory.batch_size", config.memory.batch_size)]
    if config.worker.collection == "lockstep":
        rows = [("trainer.lockstep.steps_per_round", config.trainer.lockstep.steps_per_round or 0)]
        if config.trainer.lockstep.episodes_per_round is not None:
            yield (
                "trainer.lockstep.episodes_per_round: ranks would have rounds of different lengths; set it to null and "
                "steps_per_round to a number of steps"
            )
        if algorithm is not None and algorithm.name == "PPOAgent":
            rows.append(("agent.kwargs.minibatch_size", _minibatch(config)))
    for key, number in rows:
        if number % size:
            yield f"{key}: found {number}, allowed: a multiple of {size}, the number of ranks"


def _minibatch(config: Config) -> int:
    from tmrl_core.training.agents.ppo_settings import PpoSettings

    return int(config.agent.kwargs.get("minibatch_size", PpoSettings().minibatch_size))
