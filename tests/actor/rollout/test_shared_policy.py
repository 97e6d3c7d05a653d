"""A policy that many runners share: one copy of its weights, a state and an episode for each runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actor.rollout.test_runner import ACT, OBS, SEEN, Counting, Plain
from tmrl_core.actor import NumpyGaussianRNNActor
from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.actor.rollout.shared_policy import SharedPolicy
from tmrl_core.errors import ConfigError, WeightsError
from tmrl_core.networking.protocol.messages import Blob


class Weighted(ActorModule):
    """Acts with its weight plus its noise; both come from the trainer."""

    weight = 0.0
    noise = 0.0

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.array([self.weight + (0.0 if test else self.noise)], np.float32)

    def set_exploration(self, parameters: Any) -> None:
        self.noise = parameters.get("noise", self.noise)

    def load(self, path: str | Path, device: Any) -> ActorModule:
        try:
            self.weight = float(Path(path).read_bytes())
        except ValueError as exc:
            raise WeightsError("no number") from exc
        return self


class Session:
    """Keeps its part of the acting state, and lends it to the policy for each action."""

    def __init__(self, policy: SharedPolicy) -> None:
        self.policy = policy
        self.reset()

    def reset(self) -> None:
        self.policy.reset()
        self.carried = self.policy.carried

    def act(self) -> Any:
        return self.decide(SEEN)[0]

    def decide(self, obs: Any, test: bool = False) -> Any:
        self.policy.carried = self.carried
        found = self.policy.decide(obs, test, True)
        self.carried = self.policy.carried
        return found


def weights(data: bytes) -> dict[str, Blob]:
    return {"any name": Blob("file", data)}


def test_sessions_share_the_actor_but_not_the_state() -> None:
    policy = SharedPolicy(Counting, OBS, ACT)
    first, second = Session(policy), Session(policy)
    assert [first.act().tolist() for _ in range(3)] == [[1], [2], [3]]
    assert second.act().tolist() == [1]


def test_sessions_explore_differently() -> None:
    policy = SharedPolicy(type("Noisy", (Counting,), {"noise": 1.0}), OBS, ACT)
    assert Session(policy).act() != Session(policy).act()


def test_loaded_weights_act_only_once_they_are_adopted() -> None:
    policy = SharedPolicy(Weighted, OBS, ACT)
    session = Session(policy)
    policy.load_policies(weights(b"0.5"), {})
    assert session.act().tolist() == [0]
    policy.adopt((1, 1))
    assert session.act().tolist() == [0.5]
    assert policy.version == (1, 1)


def test_a_version_brings_one_policy_and_its_exploration() -> None:
    policy = SharedPolicy(Weighted, OBS, ACT)
    policy.load_policies(weights(b"0.5"), {"noise": 0.25})
    policy.adopt((1, 1))
    assert Session(policy).act().tolist() == [0.75]
    assert policy.file_content(weights(b"0.5"), {}) == b"0.5"
    with pytest.raises(WeightsError, match=r"the policies \['a', 'b'\]; this worker uses one policy"):
        policy.load_policies({"a": Blob("file", b"1"), "b": Blob("file", b"1")}, {})


def test_an_episode_continues_with_new_weights() -> None:
    policy = SharedPolicy(type("Loading", (Counting,), {"from_bytes": lambda self, data, device: self}), OBS, ACT)
    session = Session(policy)
    session.act()
    policy.load_policies(weights(b""), {})
    policy.adopt((1, 1))
    assert session.act().tolist() == [2]


def test_weights_that_do_not_fit_change_nothing() -> None:
    policy = SharedPolicy(Weighted, OBS, ACT)
    policy.load_policies(weights(b"0.5"), {"noise": 0.25})
    policy.adopt((1, 1))
    with pytest.raises(WeightsError):
        policy.load_policies(weights(b"half"), {"noise": 4.0})
    assert Session(policy).act().tolist() == [0.75]
    policy.load_policies(weights(b"1"), {})
    policy.adopt((1, 2))
    assert Session(policy).act().tolist() == [1.25]


def test_exploration_belongs_to_the_adopted_weights_and_lasts() -> None:
    policy = SharedPolicy(Weighted, OBS, ACT)
    policy.load_policies(weights(b"1"), {"noise": 0.25})
    assert Session(policy).act().tolist() == [0]
    policy.adopt((1, 1))
    assert Session(policy).act().tolist() == [1.25]
    policy.load_policies(weights(b"2"), {})
    policy.adopt((1, 2))
    assert Session(policy).act().tolist() == [2.25], "of the version before, as nothing else was said"


def test_a_stored_policy_acts_immediately(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"3")
    policy = SharedPolicy(Weighted, OBS, ACT)
    policy.load_file(tmp_path / "kept")
    assert Session(policy).act().tolist() == [3]
    assert not policy.explores, "its exploration is not known"
    policy.load_policies(weights(b"4"), {})
    policy.adopt((1, 1))
    assert policy.explores


def test_an_actor_with_an_internal_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="Plain overrides begin_episode"):
        SharedPolicy(Plain, OBS, ACT)


def test_sessions_of_a_recurrent_policy_do_not_mix_and_new_weights_keep_their_states() -> None:
    def make(**given: Any) -> Any:
        return NumpyGaussianRNNActor(**given, cell_size=4, state_interval=2, seed=1)

    rng = np.random.default_rng(0)
    seen = rng.standard_normal((2, 6, 2)).astype(np.float32)
    versions = [NumpyGaussianRNNActor(OBS, ACT, cell_size=4).to_blob() for _ in range(2)]
    alone = []
    for observations in seen:
        runner = PolicyRunner(make, OBS, ACT)
        runner.reset()
        for tick, obs in enumerate(observations):
            if tick in (0, 3):
                runner.load(*versions[tick // 3])
            alone.append(runner.decide(obs, True, True))
    policy = SharedPolicy(make, OBS, ACT)
    sessions = [Session(policy), Session(policy)]
    together: list[Any] = [None] * 12
    for tick in range(6):
        if tick in (0, 3):
            policy.load_policies({"policy": Blob(*versions[tick // 3])}, {})
            policy.adopt((1, tick + 1))
        for number, session in enumerate(sessions):
            together[6 * number + tick] = session.decide(seen[number, tick], True)
    for (action, extras), (expected, more) in zip(together, alone, strict=True):
        np.testing.assert_array_equal(action, expected)
        np.testing.assert_equal(extras, more)
