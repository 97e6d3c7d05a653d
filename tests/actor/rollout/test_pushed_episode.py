"""A gateway in small: clients push the steps of environments elsewhere; no environment loop, no `env.step` here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.actor.rollout.step_checks import StepCheck
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.errors import EnvironmentFailedError
from tmrl_core.samples import Buffer

OBS = spaces.Box(-9, 9, (2,), np.float32)
ACT = spaces.Box(-9, 9, (1,), np.float32)


class Halving(ActorModule):
    """Acts with half of the first number; its weight is added."""

    weight = 0.0

    def act(self, obs: Any, test: bool = False) -> Any:
        return obs[:1] / 2 + np.float32(self.weight)

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        return self.act(obs, test), {"logp": -1.0}

    def reset_extras(self) -> dict[str, Any]:
        return {"logp": 0.0}

    def from_bytes(self, data: bytes, device: Any) -> ActorModule:
        self.weight = float(data)
        return self


class Gateway:
    """Answers a client's messages, as an HTTP server would: an observation in, an action out."""

    def __init__(self, link: Any, limit: float, numbers: Iterator[int] | None = None) -> None:
        self.recorder = StepRecorder(Buffer(None), name="client", max_samples_per_episode=limit, numbers=numbers)
        self.runner = PolicyRunner(Halving, OBS, ACT)
        self.uplink = Uplink(link, self.recorder, self.runner)
        self.check = StepCheck(OBS, strict=True)

    def begin(self, obs: Any) -> dict[str, Any]:
        self.runner.reset()
        self.recorder.begin(self.check.observation(obs), {}, extras=self.runner.reset_extras())
        return self.answer(obs)

    def step(self, obs: Any, reward: float, terminated: bool) -> dict[str, Any]:
        obs, reward = self.check.step(obs, reward)
        truncated = self.recorder.step(self.action, obs, reward, terminated, False, {}, self.extras)
        if terminated or truncated:
            self.uplink.send()
            self.uplink.update_policy()
            return {"over": "terminated" if terminated else "truncated"}
        return self.answer(obs)

    def answer(self, obs: Any) -> dict[str, Any]:
        self.action, self.extras = self.runner.decide(obs, False, True)
        return {"action": self.action.tolist()}


def obs(number: float) -> Any:
    return np.array([number, 0], np.float32)


def test_an_episode_is_recorded_without_an_environment_loop(link: Any) -> None:
    gateway = Gateway(link, limit=3)
    assert gateway.begin(obs(1)) == {"action": [0.5]}
    assert gateway.step(obs(2), 1.0, False) == {"action": [1.0]}
    link.publish(4.0)
    assert gateway.step(obs(3), 2.0, True) == {"over": "terminated"}
    assert gateway.begin(obs(1)) == {"action": [4.5]}, "the next episode is of the policy that arrived"
    for step in (1, 2):
        assert "action" in gateway.step(obs(step), 1.0, False)
    assert gateway.step(obs(3), 1.0, False) == {"over": "truncated"}

    assert [chunk.episode.tolist() for chunk in link.chunks] == [[0] * 3, [1] * 4]
    assert [chunk.step.tolist() for chunk in link.chunks] == [[0, 1, 2], [0, 1, 2, 3]]
    assert [segment.version for chunk in link.chunks for segment in chunk.segments] == [(0, 0), (1, 1)]
    first = [link.chunks[0].sample(row) for row in range(3)]
    assert [None if sample[0] is None else sample[0].tolist() for sample in first] == [None, [0.5], [1.0]]
    assert [sample[1].tolist()[0] for sample in first] == [1, 2, 3]
    assert [sample[2:5] for sample in first] == [(0.0, False, False), (1.0, False, False), (2.0, True, False)]
    assert np.asarray(link.chunks[0].extras["logp"]).tolist() == [0.0, -1.0, -1.0]
    assert [(record.length, record.episode_return, record.end, record.worker) for record in link.records] == [
        (2, 3.0, "terminated", "client"),
        (3, 3.0, "truncated", "client"),
    ]


def test_a_disconnected_client_leaves_an_aborted_episode(link: Any) -> None:
    gateway = Gateway(link, limit=100)
    gateway.begin(obs(1))
    gateway.step(obs(2), 1.0, False)
    gateway.recorder.end()
    assert gateway.uplink.close() == (2, 0, 0)
    assert [(record.length, record.end) for record in link.records] == [(1, "aborted")]


def test_observations_of_a_client_are_checked_before_recording(link: Any) -> None:
    gateway = Gateway(link, limit=100)
    gateway.begin(obs(1))
    for bad in (np.zeros(3, np.float32), obs(np.nan), [1.0, 2.0]):
        with pytest.raises(EnvironmentFailedError, match="observation"):
            gateway.step(bad, 1.0, False)
    with pytest.raises(EnvironmentFailedError, match="reward"):
        gateway.step(obs(2), float("inf"), False)
    assert len(gateway.recorder.buffer) == 1
    assert gateway.step(obs(2), 1.0, False) == {"action": [1.0]}


def test_two_clients_have_recorders_of_their_own_and_share_the_ids_of_episodes(link: Any) -> None:
    numbers = itertools.count()
    gateways = [Gateway(link, limit=2, numbers=numbers) for _ in range(2)]
    for gateway in gateways:
        gateway.begin(obs(1))
    for gateway, number in zip(gateways * 2, (2, 4, 6, 8), strict=True):
        gateway.step(obs(number), float(number), False)
    assert [[sample[2] for sample in (chunk.sample(row) for row in range(chunk.rows))] for chunk in link.chunks] == [
        [0.0, 2.0, 6.0],
        [0.0, 4.0, 8.0],
    ]
    assert [segment.episode for chunk in link.chunks for segment in chunk.segments] == [0, 1]
