from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor import (
    NumpyGaussianMLPActor,
    NumpyGaussianRNNActor,
    NumpySquashedGaussianMLPActor,
    TorchActorModule,
)
from tmrl_core.actor.module import ActorModule, BatchActor, State
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.runner import PolicyRunner, exploration_seed
from tmrl_core.errors import ConfigError, PolicyFailedError, WeightsError
from tmrl_core.samples import Buffer

OBS = spaces.Box(-9, 9, (2,), np.float32)
ACT = spaces.Box(-9, 9, (1,), np.float32)
SEEN = np.array([1.0, 2.0], np.float32)


class Counting(BatchActor):
    """Acts with the number of steps since the episode's begin, plus noise; its state holds the number."""

    noise = 0.0

    def initial_state(self, batch: int) -> State:
        return {"steps": np.zeros((batch, 1), np.float32)}

    def act_batch(self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool) -> Any:
        assert obs_B.shape == (1, 2)
        steps = state_B["steps"] + 1
        noise = 0.0 if deterministic else self.noise * rng.standard_normal(steps.shape)
        return (steps + noise).astype(np.float32), {"steps": steps}, {"before": state_B["steps"], "logp": np.zeros(1)}

    def reset_extras(self) -> dict[str, Any]:
        return {"before": np.zeros(1, np.float32), "logp": np.float64(0)}


class Plain(ActorModule):
    """Counts the episodes; acts with its observation's first number."""

    begun = 0

    def begin_episode(self) -> None:
        self.begun += 1

    def act(self, obs: Any, test: bool = False) -> Any:
        return obs[:1]

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(b"weights")

    def load(self, path: str | Path, device: Any) -> ActorModule:
        if Path(path).read_bytes() != b"weights":
            raise WeightsError("no weights")
        return Plain(None, None)


def runner(actor: Any, action_space: Any = ACT, **kwargs: Any) -> PolicyRunner:
    return PolicyRunner(actor, OBS, action_space, **kwargs)


def test_the_state_continues_within_an_episode_and_is_reset_with_the_next() -> None:
    policy = runner(Counting)
    assert policy.act(SEEN).tolist() == [1], "a script may act before any episode"
    for _ in range(2):
        policy.reset()
        acted = [policy.decide(SEEN, False, True) for _ in range(3)]
        assert [action.tolist() for action, _ in acted] == [[1], [2], [3]]
        assert [extras["before"].tolist() for _, extras in acted if extras] == [[0], [1], [2]]
    assert policy.act(SEEN).tolist() == [4]
    assert policy.keeps_extras
    assert policy.reset_extras() == {"before": np.zeros(1), "logp": 0}


def test_numbers_of_a_batch_of_one_lose_its_dimension_only() -> None:
    class Nested(BatchActor):
        def act_batch(self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool) -> Any:
            assert obs_B["image"].shape == (1, 4, 4)
            assert obs_B["pose"][1].shape == (1,)
            return {"arm": np.zeros((1, 3)), "grip": (np.ones(1, np.int64),)}, state_B, {"q": np.zeros((1, 5))}

    policy = runner(Nested, spaces.Dict({"arm": ACT, "grip": spaces.Tuple([spaces.Discrete(2)])}))
    action, extras = policy.decide({"image": np.zeros((4, 4)), "pose": (SEEN, 3)}, False, True)
    assert action["arm"].shape == (3,)
    assert action["grip"] == (1,)
    assert extras is not None
    assert extras["q"].shape == (5,)


def test_a_torch_actor_may_carry_a_state_too() -> None:
    class Cell(BatchActor, TorchActorModule):
        def __init__(self, observation_space: Any, action_space: Any) -> None:
            super().__init__(observation_space, action_space)
            self.cell = torch.nn.GRUCell(2, 1)

        def initial_state(self, batch: int) -> State:
            return {"h": np.zeros((batch, 1), np.float32)}

        @torch.no_grad()
        def act_batch(self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool) -> Any:
            h = self.cell(torch.from_numpy(obs_B), torch.from_numpy(state_B["h"])).numpy()
            return h, {"h": h}, {}

    policy = runner(Cell)
    policy.reset()
    first, second = policy.act(SEEN), policy.act(SEEN)
    assert first.tolist() != second.tolist()
    other = runner(Cell)
    other.load(*policy.actor.to_blob())
    other.reset()
    assert other.act(SEEN).tolist() == first.tolist()


def test_exploration_is_seeded_and_off_in_tests() -> None:
    class Noisy(Counting):
        noise = 1.0

    def actions(seed: int, test: bool = False) -> list[float]:
        policy = runner(Noisy, seed=seed)
        policy.reset()
        return [float(policy.act(SEEN, test)[0]) for _ in range(4)]

    assert actions(3) == actions(3)
    assert actions(3) != actions(4)
    assert actions(3, test=True) == actions(4, test=True) == [1, 2, 3, 4]
    assert exploration_seed(3) != 3


def test_begin_episode_is_called_for_actors_without_batches() -> None:
    policy = runner(Plain)
    assert isinstance(policy.actor, Plain)
    policy.reset()
    policy.reset()
    assert policy.actor.begun == 2
    assert policy.decide(SEEN, False, True) == (np.ones(1), None)
    assert policy.reset_extras() is None
    assert not policy.keeps_extras


@pytest.mark.parametrize("actor", [Plain, Counting])
def test_an_override_acts_after_the_policy_and_keeps_the_recurrent_state_current(actor: Any) -> None:
    policy = runner(actor)
    policy.reset()
    chosen: list[tuple[Any, Any, Any]] = []

    def person(obs: Any, action: Any, extras: dict[str, Any]) -> Any:
        chosen.append((obs, float(action[0]), extras))
        return np.full(1, 7, np.float32), {**extras, "mine": 1.0}

    policy.override = person
    action, extras = policy.decide(SEEN, False, True)
    assert action.tolist() == [7]
    assert extras is not None
    assert extras["mine"] == 1.0
    assert chosen[0][0] is SEEN
    policy.override = None
    assert policy.decide(SEEN, False, True)[0].tolist() == ([1] if actor is Plain else [2])


@pytest.mark.parametrize("way", ["policy", "override"])
def test_an_action_that_is_not_finite_is_refused(way: str) -> None:
    policy = runner(Plain)
    bad = np.array([np.nan, 0], np.float32)
    if way == "override":
        policy.override = lambda obs, action, extras: (bad[:1], extras)
    with pytest.raises(PolicyFailedError, match=r"not finite, so it is not executed: \[nan\]"):
        policy.decide(bad if way == "policy" else SEEN, False, True)


def test_integers_are_finite_and_wide_actions_are_checked() -> None:
    def acts(action: Any) -> Any:
        class Fixed(ActorModule):
            def act(self, obs: Any, test: bool = False) -> Any:
                return action

        return Fixed

    assert runner(acts(np.int64(3)), spaces.Discrete(4)).decide(SEEN, True, False) == (3, None)
    wide = np.zeros(40, np.float32)
    policy = runner(acts(wide), spaces.Box(-1, 1, (40,), np.float32))
    policy.decide(SEEN, True, False)
    wide[39] = np.inf
    with pytest.raises(PolicyFailedError):
        policy.decide(SEEN, True, False)


def test_weights_are_loaded_into_the_actor_or_another_one(tmp_path: Path) -> None:
    policy = runner(Plain)
    first = policy.actor
    with pytest.raises(WeightsError, match="no weights"):
        policy.load("file", b"garbage")
    assert policy.actor is first
    policy.load("file", b"weights")
    assert policy.actor is not first
    (tmp_path / "kept").write_bytes(b"weights")
    second = policy.actor
    policy.load_file(tmp_path / "kept")
    assert policy.actor is not second


def test_the_error_of_a_batch_actor_names_the_method_to_call() -> None:
    with pytest.raises(NotImplementedError, match=r"call act_batch, or let .*PolicyRunner hold the state"):
        Counting(OBS, ACT).act(SEEN)


@pytest.mark.parametrize(("make", "words"), [("policy", "found 'policy' of type str"), (dict, "made a dict; wanted")])
def test_an_actor_is_required(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"actor_module_cls:? {words}"):
        runner(make)


def test_states_are_stored_at_intervals_and_with_new_weights_and_are_zeros_otherwise() -> None:
    policy = runner(lambda **given: NumpyGaussianRNNActor(**given, cell="lstm", cell_size=4, state_interval=3), seed=1)
    for _ in range(2):
        policy.reset()
        for tick in range(8):
            if tick == 4:
                policy.load(*policy.actor.to_blob())
            before, _, _ = policy.carried
            _, extras = policy.decide(SEEN, False, True)
            assert extras is not None
            for name in ("h", "c"):
                stored = before[name][0] if tick in (0, 3, 4, 6) else np.zeros(4)
                np.testing.assert_array_equal(extras[f"state.{name}"], stored)
                assert tick == 0 or before[name].any()
    assert policy.reset_extras() is not None
    assert {"state.h", "state.c", "logp", "drawn"} == set(policy.reset_extras() or ())


def test_states_are_those_of_the_policy_where_an_expert_acts() -> None:
    policy = runner(lambda **given: NumpyGaussianRNNActor(**given, cell_size=4, state_interval=1))
    expert = np.ones(1, np.float32)
    policy.override = lambda obs, action, extras: (expert, {"logp": np.float32(0)})
    policy.reset()
    for _ in range(3):
        before, _, _ = policy.carried
        action, extras = policy.decide(SEEN, True, True)
        assert action is expert
        assert extras is not None
        assert extras.keys() == {"logp", "state.h"}
        np.testing.assert_array_equal(extras["state.h"], before["h"][0])


def test_an_earlier_step_can_be_returned_to() -> None:
    policy = runner(lambda **given: NumpyGaussianRNNActor(**given, cell_size=4, state_interval=2))
    policy.reset()
    policy.decide(SEEN, True, True)
    before = policy.carried
    (first, extras), (_, other) = (policy.decide(SEEN, True, True) for _ in range(2))
    policy.carried = before
    again, repeated = policy.decide(SEEN, True, True)
    np.testing.assert_array_equal(again, first)
    assert extras is not None
    assert other is not None
    assert repeated is not None
    assert not repeated["state.h"].any()
    assert not extras["state.h"].any()
    assert other["state.h"].any()


class Fails(Plain):
    """Raises an error in one of its actions."""

    acted = 0
    at = 1
    error: Exception = TypeError("reshape() takes one argument")

    def act(self, obs: Any, test: bool = False) -> Any:
        self.acted += 1
        if self.acted == self.at:
            raise self.error
        return super().act(obs, test)


@pytest.mark.parametrize("extras", [False, True])
def test_a_policy_whose_first_action_fails_cannot_act_in_its_space(extras: bool) -> None:
    with pytest.raises(ConfigError, match=r"^actor.cls: Fails cannot act in the action space Box.*TypeError: reshape"):
        runner(Fails).decide(SEEN, False, extras)


def test_later_failures_of_a_policy_and_those_of_the_machine_are_its_own() -> None:
    policy = runner(Fails)
    policy.actor.at = 2  # type: ignore[attr-defined]
    assert policy.plain_act(extras=False) is None, "the first action is checked"
    policy.decide(SEEN, False, False)
    assert policy.plain_act(extras=False) is not None
    with pytest.raises(TypeError, match="reshape"):
        policy.decide(SEEN, False, False)
    policy = runner(Fails)
    policy.actor.error = ConnectionError("the server of the policy is away")  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        policy.decide(SEEN, False, False)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_rows_of_a_batch_act_as_they_would_alone(cell: str) -> None:
    def make(**given: Any) -> Any:
        return NumpyGaussianRNNActor(**given, cell=cell, cell_size=8, state_interval=2, seed=1)

    together, alone = runner(make, rows=3), [runner(make) for _ in range(3)]
    weights = NumpyGaussianRNNActor(OBS, ACT, cell=cell, cell_size=8).to_blob()
    seen = np.random.default_rng(0).standard_normal((7, 3, 2)).astype(np.float32)
    for row, one in enumerate(alone):
        together.reset(row)
        one.reset()
    for tick, observations in enumerate(seen):
        if tick == 3:  # the episode of one row ends
            together.reset(1)
            alone[1].reset()
        if tick == 5:
            for policy in (together, *alone):
                policy.load(*weights)
        action_B, extras_B = together.decide_rows(observations, True, True)
        for row, (one, obs) in enumerate(zip(alone, observations, strict=True)):
            expected, more = one.decide(obs, True, True)
            assert more is not None
            assert extras_B.keys() == more.keys()
            np.testing.assert_allclose(action_B[row], expected, rtol=0, atol=1e-6)
            for name, value in more.items():
                np.testing.assert_allclose(extras_B[name][row], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cls", [NumpyGaussianMLPActor, NumpySquashedGaussianMLPActor])
def test_policies_without_a_state_get_several_rows_as_one_batch(cls: Any) -> None:
    seen = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    together, alone = (
        runner(lambda **given: cls(**given, seed=1), rows=3),
        runner(lambda **given: cls(**given, seed=1)),
    )
    together.actor.act_with_extras = together.actor.act_ = None  # type: ignore[assignment]  # one row at a time
    action_B, extras_B = together.decide_rows(seen, True, True)
    for row, obs in enumerate(seen):
        expected, more = alone.decide(obs, True, True)
        np.testing.assert_allclose(action_B[row], expected, rtol=0, atol=1e-6)
        for name, value in (more or {}).items():
            np.testing.assert_allclose(extras_B[name][row], value, rtol=0, atol=1e-6)


def test_a_policy_without_batches_acts_for_several_rows_too() -> None:
    class Stateless(Plain):
        begin_episode = ActorModule.begin_episode

    action_B, extras_B = runner(Stateless, rows=2).decide_rows(np.stack([SEEN, 2 * SEEN]), False, True)
    assert (action_B.tolist(), extras_B) == ([[1], [2]], {})


def test_one_policy_acts_in_three_environments(counting_env: Any) -> None:
    """Each row has a recorder of its own; an episode that ends resets its row alone."""

    class Ticks(Counting):
        def act_batch(self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool) -> Any:
            assert obs_B.shape == (3, 3)
            steps = state_B["steps"] + 1
            return steps.astype(np.float32), {"steps": steps}, {"before": state_B["steps"]}

        def reset_extras(self) -> dict[str, Any]:
            return {"before": np.zeros(1, np.float32)}

    envs = [counting_env(length=length) for length in (2, 3, 5)]
    policy = PolicyRunner(Ticks, counting_env.observation_space, counting_env.action_space, rows=3)
    recorders = [StepRecorder(Buffer(None)) for _ in envs]

    def begin(row: int) -> Any:
        obs, info = envs[row].reset()
        policy.reset(row)
        recorders[row].begin(obs, info, extras=policy.reset_extras())
        return obs

    observations = [begin(row) for row in range(3)]
    for _ in range(10):
        action_B, extras_B = policy.decide_rows(np.stack(observations), False, True)
        for row, action in enumerate(action_B):
            extras = {name: value_B[row] for name, value_B in extras_B.items()}
            obs, reward, terminated, truncated, info = envs[row].step(action)
            over = recorders[row].step(action, obs, reward, terminated, truncated, info, extras)
            observations[row] = begin(row) if over else obs
    for env, recorder in zip(envs, recorders, strict=True):
        assert [record.length for record in recorder.buffer.episodes] == [env.length] * (10 // env.length)
        samples = recorder.buffer.memory
        assert [sample[1][2] for sample in samples if sample[0] is not None][: env.length] == [
            *range(1, env.length + 1)
        ]
        assert env.actions == [1 + step % env.length for step in range(10)]
