from __future__ import annotations

import numpy as np
from gymnasium import spaces

from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.loops.lockstep import TrainingLockstep

SPACES = (spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2))


def test_each_stream_gets_one_unique_seed() -> None:
    def made(seed: int | None) -> TrainingLockstep:
        return TrainingLockstep(SPACES, training_agent_cls=PPOAgent, steps_per_round=8, seed=seed, device="cpu")

    training = made(3)
    streams = [bytes([number]) * 16 for number in range(6)]
    first = [training._seed_of(stream, index) for index, stream in enumerate(streams[:3])]
    assert [training._seed_of(stream, index) for index, stream in enumerate(streams[:3])] == [None] * 3
    training.rounds_done = 1  # who joins later gets no seed that the first ones had
    later = [training._seed_of(stream, index) for index, stream in enumerate(streams[3:])]
    assert len({*first, *later}) == 6
    assert None not in first + later
    assert made(3)._seed_of(streams[5], 0) == first[0]
    assert made(4)._seed_of(streams[5], 0) != first[0]
    assert made(None)._seed_of(streams[0], 0) is None
