from __future__ import annotations

import math
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from tmrl_core import actor as policies
from tmrl_core.envs.replay import BaseEnvironment, SessionBatchEnvironment, Sessions, get_sessions
from tmrl_core.errors import MissingExtraError

B, T, N = 3, 6, 4
RNG = np.random.default_rng(0)
OBSERVATIONS = RNG.standard_normal((B, T, 5)).astype(np.float32)
ACTIONS = RNG.integers(0, N, (B, T)).astype(np.int32)
REWARDS = RNG.standard_normal((B, T)).astype(np.float32)
ALIVE = (np.arange(T) < np.array([[6], [2], [4]])).astype(np.uint8)
MEMORIES = RNG.standard_normal((B, 7)).astype(np.float32)
FINAL = RNG.standard_normal((B, 5)).astype(np.float32)


class Recurrent(nn.Module):
    """An actor of a user: GRU, categorical policy, value. The state has two axes and is loaded as a flat vector."""

    def __init__(self, inputs: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.logits, self.value = nn.GRUCell(inputs, 7), nn.Linear(7, N), nn.Linear(7, 1)
        self.unrolls = 0

    def initial_state(self, batch: int) -> dict[str, Any]:
        return {"memory": np.zeros((batch, 7, 1), np.float32)}

    def step(self, obs_B: Tensor, state_B: Any, deterministic: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        outputs, state = self.unroll(obs_B[:, None], state_B)
        if deterministic:
            return outputs["logits"][:, 0].argmax(dim=-1), state
        return torch.multinomial(outputs["logits"][:, 0].softmax(dim=-1), 1).squeeze(-1), state

    def unroll(self, obs_BT: Tensor, state_B: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        self.unrolls += 1
        hidden = torch.as_tensor(state_B["memory"]).squeeze(-1)
        states = []
        for tick in range(obs_BT.shape[1]):
            hidden = self.cell(obs_BT[:, tick].float(), hidden)
            states.append(hidden)
        seen = torch.stack(states, dim=1)
        return {"logits": self.logits(seen), "value": self.value(seen).squeeze(-1)}, {"memory": hidden[..., None]}


class Memoryless(nn.Module):
    """An actor of a user without recurrence: Gaussian policy on one or two observations."""

    def __init__(self, inputs: int = 5) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.mu = nn.Linear(inputs, 2)
        self.unrolls = 0

    def initial_state(self, batch: int) -> dict[str, Any]:
        return {}

    def step(self, obs_B: Any, state_B: Any, deterministic: bool = False) -> tuple[Tensor, dict[str, Any]]:
        return self.mu(obs_B) + (0.0 if deterministic else torch.randn(len(obs_B), 2)), {}

    def unroll(self, obs_BT: Any, state_B: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.unrolls += 1
        mu = self.mu(obs_BT)
        return {"mu": mu, "log_std": torch.zeros_like(mu)}, {}


def recorded(**changes: Any) -> SessionBatchEnvironment:
    given = {"actions": ACTIONS, "rewards": REWARDS, **changes}
    return SessionBatchEnvironment(given.pop("observations", OBSERVATIONS), (5,), **given)


def same(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(found.detach().numpy(), expected))


def flat(sessions: Sessions) -> list[Tensor]:
    lists = [*sessions.environment_states, *sessions.observations, *sessions.actions, *sessions.actor_states.values()]
    return [*lists, *(each for each in sessions if isinstance(each, Tensor))]


# --- recorded sessions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimize", [False, True])
def test_a_replay_gives_the_recorded_sequences(optimize: bool) -> None:
    found = get_sessions(recorded(), Recurrent(), T, optimize)
    assert same(found.environment_states[0], np.tile(np.arange(T), (B, 1)))
    assert found.environment_states[0].dtype == torch.int32
    assert same(found.observations[0], OBSERVATIONS)
    assert same(found.actions[0], ACTIONS)
    assert found.actions[0].dtype == torch.int32
    assert same(found.rewards, REWARDS)
    assert same(found.is_alive, np.ones((B, T)))
    assert found.actor_states["memory"].shape == (B, T, 7, 1)
    assert found.values is not None
    assert found.values.shape == (B, T)
    assert found.log_probs is not None
    assert found.log_probs.shape == (B, T)
    assert [len(each) for each in found[:3]] == [1, 1, 1]


@pytest.mark.parametrize("optimize", [False, True])
def test_states_values_and_log_probabilities_are_those_of_the_actor_now(optimize: bool) -> None:
    actor = Recurrent()
    found = get_sessions(recorded(), actor, T, optimize)
    hidden = torch.zeros(B, 7)
    for tick in range(T):
        assert torch.allclose(found.actor_states["memory"][:, tick, :, 0], hidden)
        hidden = actor.cell(torch.as_tensor(OBSERVATIONS[:, tick]), hidden)
        log_probs = torch.log_softmax(actor.logits(hidden), dim=-1)
        assert found.values is not None
        assert found.log_probs is not None
        assert torch.allclose(found.values[:, tick], actor.value(hidden)[:, 0])
        assert torch.allclose(found.log_probs[:, tick], log_probs[torch.arange(B), ACTIONS[:, tick]])


@pytest.mark.parametrize("actor", [Recurrent, Memoryless])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_alive": ALIVE},
        {"is_alive": ALIVE, "final_observations": FINAL, "terminated": np.zeros(B)},
        {"preceding_agent_memories": MEMORIES},
        {"rewards": None},
        {"observations": torch.as_tensor(OBSERVATIONS)},
    ],
)
def test_reading_at_once_gives_equal_results_and_gradients(actor: Any, changes: dict[str, Any]) -> None:
    if actor is Memoryless:
        changes = {
            **changes,
            "actions": RNG.standard_normal((B, T, 2)).astype(np.float32),
            "single_action_shapes": (2,),
        }
    for length in (1, 4, T, T + 3):
        results = []
        for optimize in (False, True):
            model = actor()
            found = get_sessions(recorded(**changes), model, length, optimize)
            assert found.log_probs is not None
            torch.autograd.backward((found.log_probs * found.is_alive).sum())
            results.append([*flat(found), *(each.grad for each in model.parameters() if each.grad is not None)])
        assert len(results[0]) == len(results[1]), length
        for one, other in zip(*results, strict=True):
            assert one.dtype == other.dtype, length
            assert torch.allclose(one, other, atol=1e-6), length
        assert any(each.abs().sum() > 0 for each in results[0][-2:]), length


def test_reading_at_once_calls_a_memoryless_actor_once() -> None:
    actor = Memoryless()
    env = recorded(actions=np.zeros((B, T, 2), np.float32), single_action_shapes=(2,))
    get_sessions(env, actor, T, True)
    assert actor.unrolls == 1
    get_sessions(env, actor, T)
    assert actor.unrolls == 1 + T


def test_an_actor_that_unrolls_its_states_is_called_once() -> None:
    class Whole(Recurrent):
        def unroll_states(self, obs_BT: Tensor, state_B: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            outputs, _ = self.unroll(obs_BT, state_B)
            return outputs, {"memory": torch.zeros(*obs_BT.shape[:2], 7, 1)}

    actor = Whole()
    found = get_sessions(recorded(), actor, T, True)
    assert actor.unrolls == 1
    assert not found.actor_states["memory"].any()


@pytest.mark.parametrize("optimize", [False, True])
def test_past_the_end(optimize: bool) -> None:
    found = get_sessions(recorded(is_alive=ALIVE), Recurrent(), T + 2, optimize)
    last = ALIVE.astype(int).sum(axis=1, keepdims=True) - 1
    ticks = np.minimum(np.arange(T + 2)[None], last)
    sessions = np.arange(B)[:, None]
    alive = np.arange(T + 2) <= last
    assert same(found.environment_states[0], np.tile(np.arange(T + 2), (B, 1)))
    assert same(found.observations[0], OBSERVATIONS[sessions, ticks])
    assert same(found.actions[0], ACTIONS[sessions, ticks])
    assert same(found.rewards, np.where(alive, REWARDS[sessions, ticks], 0))
    assert same(found.is_alive, alive)


@pytest.mark.parametrize("optimize", [False, True])
def test_the_first_tick_past_the_end_is_the_one_to_bootstrap_from(optimize: bool) -> None:
    actor = Recurrent()
    env = recorded(is_alive=ALIVE, final_observations=FINAL, terminated=np.zeros(B, bool))
    found = get_sessions(env, actor, T + 1, optimize)
    for session, length in enumerate(ALIVE.sum(axis=1)):
        assert same(found.observations[0][session, length], FINAL[session])
        whole = np.concatenate([OBSERVATIONS[session, :length], FINAL[session : session + 1]])
        outputs, _ = actor.unroll(torch.as_tensor(whole)[None], actor.initial_state(1))
        assert found.values is not None
        assert torch.allclose(found.values[session, length], outputs["value"][0, -1], atol=1e-6)


@pytest.mark.parametrize("optimize", [False, True])
def test_it_begins_with_the_memories_that_precede_the_sessions(optimize: bool) -> None:
    actor = Recurrent()
    whole = get_sessions(recorded(), actor, T, optimize)
    for cut in (1, 3):
        memory = whole.actor_states["memory"][:, cut].detach().flatten(1)
        part = get_sessions(
            recorded(
                observations=OBSERVATIONS[:, cut:],
                actions=ACTIONS[:, cut:],
                rewards=REWARDS[:, cut:],
                preceding_agent_memories=memory,
            ),
            actor,
            T - cut,
            optimize,
        )
        for one, other in zip(flat(part)[1:], flat(whole)[1:], strict=True):
            assert torch.allclose(one.float(), other[:, cut:].float(), atol=1e-6)
        without = get_sessions(recorded(observations=OBSERVATIONS[:, cut:], actions=None, rewards=None), actor, T - cut)
        assert without.values is not None
        assert part.values is not None
        assert not torch.allclose(without.values, part.values, atol=1e-3)


def test_a_memoryless_actor_has_no_use_for_memories() -> None:
    env = recorded(actions=np.zeros((B, T, 2)), single_action_shapes=(2,), preceding_agent_memories=MEMORIES)
    assert get_sessions(env, Memoryless(), T).actor_states == {}


@pytest.mark.parametrize("memories", [MEMORIES[:, :5], [MEMORIES, MEMORIES]])
def test_memories_that_are_not_the_actors_are_refused(memories: Any) -> None:
    with pytest.raises(ValueError, match=r"preceding_agent_memories have the shapes \[.*; the state of this actor has"):
        get_sessions(recorded(preceding_agent_memories=memories), Recurrent(), T)


def test_without_recorded_actions_those_of_the_actor_are_used() -> None:
    actor = Recurrent()
    results = []
    for optimize in (False, True):
        torch.manual_seed(3)
        results.append(get_sessions(recorded(actions=None), actor, T, optimize))
    for found in results:
        assert same(found.observations[0], OBSERVATIONS)
        assert found.actions[0].shape == (B, T)
    assert torch.equal(results[0].actions[0], results[1].actions[0])
    greedy = get_sessions(recorded(actions=None), actor, T, deterministic=True)
    outputs, _ = actor.unroll(torch.as_tensor(OBSERVATIONS), actor.initial_state(B))
    assert torch.equal(greedy.actions[0], outputs["logits"].argmax(dim=-1))


def test_without_recorded_actions_those_of_the_actor_may_have_any_shape() -> None:
    found = get_sessions(recorded(actions=None), Memoryless(), T)
    assert found.actions[0].shape == (B, T, 2)
    assert same(found.observations[0], OBSERVATIONS)


@pytest.mark.parametrize("optimize", [False, True])
def test_several_observations_and_actions(optimize: bool) -> None:
    class Two(Memoryless):
        def unroll(self, obs_BT: Any, state_B: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
            vector, picture = obs_BT
            return super().unroll(vector + picture.flatten(2).float(), state_B)

        def log_prob(self, outputs_BT: Any, action_BT: Any) -> Any:
            button, stick = action_BT
            return outputs_BT["mu"][..., 0] * button + stick.sum(dim=-1)

    pictures = RNG.integers(0, 9, (B, T, 1, 5), np.uint8)
    sticks = RNG.standard_normal((B, T, 2)).astype(np.float32)
    env = SessionBatchEnvironment([OBSERVATIONS, pictures], [(5,), (1, 5)], [ACTIONS, sticks], [(), (2,)])
    actor = Two()
    found = get_sessions(env, actor, T, optimize)
    assert same(found.observations[1], pictures)
    assert same(found.actions[1], sticks)
    mu = actor.mu(torch.as_tensor(OBSERVATIONS + pictures[:, :, 0]))
    expected = mu[..., 0] * torch.as_tensor(ACTIONS) + torch.as_tensor(sticks).sum(dim=-1)
    assert found.log_probs is not None
    assert torch.allclose(found.log_probs, expected, atol=1e-5)
    assert found.values is None


def test_q_values_and_values_of_a_critic() -> None:
    class Q(Recurrent):
        def unroll(self, obs_BT: Tensor, state_B: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            outputs, state = super().unroll(obs_BT, state_B)
            return {"q": outputs["logits"]}, state

    found = get_sessions(recorded(), Q(), T)
    assert found.values is not None
    assert found.values.shape == (B, T, N)
    assert found.log_probs is None
    found = get_sessions(recorded(), Q(), T, critic=lambda obs, action: obs.sum(dim=-1) * action)
    assert found.values is not None
    assert np.allclose(found.values.numpy(), OBSERVATIONS.sum(axis=-1) * ACTIONS, atol=1e-5)


def test_the_density_of_a_gaussian() -> None:
    actions = RNG.standard_normal((B, T, 2)).astype(np.float32)
    actor = Memoryless()
    found = get_sessions(recorded(actions=actions, single_action_shapes=(2,)), actor, T)
    distance = torch.as_tensor(actions) - actor.mu(torch.as_tensor(OBSERVATIONS))
    assert found.log_probs is not None
    assert torch.allclose(found.log_probs, -0.5 * distance.square().sum(dim=-1) - math.log(2 * math.pi), atol=1e-5)


# --- actors of this package -------------------------------------------------------------------------------------------

STICK = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
BUTTONS = spaces.Discrete(N, start=1)
SMALL: dict[str, Any] = {"hidden_sizes": (8,)}
ACTORS: list[tuple[Any, Any, dict[str, Any]]] = [
    (policies.SquashedGaussianMLPActor, STICK, SMALL),
    (policies.DeterministicMLPActor, STICK, SMALL),
    (policies.QValueMLPActor, BUTTONS, SMALL),
    (policies.CategoricalMLPActor, BUTTONS, SMALL),
    (policies.GaussianMLPActor, STICK, SMALL),
    *(
        (cls, space, {**SMALL, "cell": cell, "cell_size": 6})
        for cell in ("gru", "lstm")
        for cls, space in (
            (policies.SquashedGaussianRNNActor, STICK),
            (policies.QValueRNNActor, BUTTONS),
            (policies.CategoricalRNNActor, BUTTONS),
            (policies.GaussianRNNActor, STICK),
        )
    ),
]


def recorded_actions(space: Any) -> Any:
    if space is BUTTONS:
        return ACTIONS + 1
    return RNG.uniform(space.low, space.high, (B, T, 2)).astype(np.float32)


@pytest.mark.parametrize(("cls", "space", "kwargs"), ACTORS)
def test_actors_of_this_package_replay_sessions(cls: Any, space: Any, kwargs: Any) -> None:
    torch.manual_seed(0)
    actor = cls(spaces.Box(-9, 9, (5,)), space, **kwargs)
    changes: dict[str, Any] = {"actions": recorded_actions(space), "is_alive": ALIVE}
    if space is STICK:
        changes["single_action_shapes"] = (2,)
    if actor.initial_state(1):
        names = actor.initial_state(1)
        changes["preceding_agent_memories"] = [RNG.standard_normal((B, 6)).astype(np.float32) for _ in names]
    results = []
    for optimize in (False, True):
        found = get_sessions(recorded(**changes), actor, T + 1, optimize)
        assert set(found.actor_states) == set(actor.initial_state(1))
        loss = sum((each.sum() for each in (found.values, found.log_probs) if each is not None), torch.zeros(()))
        loss = torch.nan_to_num(loss, neginf=0.0)
        grads = torch.autograd.grad(loss, list(actor.parameters()), allow_unused=True) if loss.requires_grad else ()
        results.append([*flat(found), *(each for each in grads if each is not None)])
    assert len(results[0]) == len(results[1])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    if "preceding_agent_memories" in changes:
        for name, memory in zip(actor.initial_state(1), changes["preceding_agent_memories"], strict=True):
            assert same(found.actor_states[name][:, 0], memory)
    if cls not in (policies.DeterministicMLPActor, policies.QValueMLPActor):
        assert found.log_probs is not None or found.values is not None


@pytest.mark.parametrize(("cls", "space", "kwargs"), ACTORS)
def test_actors_of_this_package_act_in_live_environments(cls: Any, space: Any, kwargs: Any) -> None:
    class Noise(BaseEnvironment):
        def __init__(self) -> None:
            super().__init__((5,), (5,), space.shape, action_dtypes="float32" if space is STICK else "int32")

        def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
            state = torch.sin(last_states[0] * 3.0 + 1.0) + actions[0].reshape(len(actions[0]), -1).sum(dim=1)[:, None]
            return [state], [state]

    torch.manual_seed(0)
    actor = cls(spaces.Box(-9, 9, (5,)), space, **kwargs)
    actor.set_exploration({"random": 0.5, "epsilon": 0.5, "noise": 0.3})
    found = get_sessions(Noise(), actor, T, batch_size=B)
    assert all(
        space.contains(action.astype(space.dtype))
        for action in found.actions[0].detach().numpy().reshape(B * T, *space.shape)
    )
    assert found.actions[0].shape == (B, T, *space.shape)
    assert len(torch.unique(found.actions[0].detach().flatten())) > 1
    greedy = get_sessions(Noise(), actor, T, deterministic=True)
    again = get_sessions(Noise(), actor, T, deterministic=True)
    assert torch.equal(greedy.actions[0], again.actions[0])
    for name, states in found.actor_states.items():
        assert states.shape == (B, T, 6), name
        assert states.requires_grad


def test_log_probabilities_are_those_of_the_policy() -> None:
    torch.manual_seed(0)
    space = spaces.Box(-9, 9, (5,))
    obs = torch.as_tensor(OBSERVATIONS)
    squashed = policies.SquashedGaussianMLPActor(space, STICK)
    action, expected = squashed(obs.flatten(0, 1))
    found = squashed.log_prob(squashed.unroll(obs, {})[0], action.reshape(B, T, 2))
    assert torch.allclose(found.flatten(), expected, atol=1e-3)

    q = policies.QValueMLPActor(space, BUTTONS, epsilon=0.2)
    outputs, _ = q.unroll(obs, {})
    of_each = torch.stack([q.log_prob(outputs, torch.full((B, T), action)).exp() for action in range(1, N + 1)])
    assert torch.allclose(of_each.sum(dim=0), torch.ones(B, T))
    assert torch.allclose(of_each.amax(dim=0), torch.full((B, T), 0.8 + 0.2 / N))

    categorical = policies.CategoricalMLPActor(space, BUTTONS)
    flat_obs = obs.flatten(0, 1)
    index = torch.arange(B * T) % N
    expected, _ = categorical.log_prob_and_entropy(flat_obs, index)
    found = categorical.log_prob(categorical.unroll(obs, {})[0], (index + 1).reshape(B, T))
    assert torch.allclose(found.flatten(), expected, atol=1e-6)

    gaussian = policies.GaussianMLPActor(space, STICK)
    drawn = torch.randn(B * T, 2)
    expected, _ = gaussian.log_prob_and_entropy(flat_obs, drawn)
    found = gaussian.log_prob(gaussian.unroll(obs, {})[0], drawn.reshape(B, T, 2))
    assert torch.allclose(found.flatten(), expected, atol=1e-6)


def test_gradients_of_continuous_actions_reach_the_policy_through_the_environment() -> None:
    for cls in (policies.SquashedGaussianMLPActor, policies.GaussianMLPActor, policies.DeterministicMLPActor):
        torch.manual_seed(0)
        actor = cls(spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (2,)))
        actor.set_exploration({"random": 0.0})
        torch.autograd.backward(get_sessions(Target(), actor, 3, batch_size=2).rewards.sum())
        assert all(each.grad is not None for each in actor.net.parameters())


# --- live environments written in torch -------------------------------------------------------------------------------


class Target(BaseEnvironment):
    """A point that actions move. Reward: minus its squared distance. Ends beyond 5."""

    def __init__(self) -> None:
        super().__init__([(2,), ()], (2,), (2,), ["float32", "int32"], action_dtypes="float32")

    def get_initial_results(self, batch_size: int) -> Any:
        point = torch.arange(2.0 * batch_size).reshape(batch_size, 2)
        return [point, torch.zeros(batch_size, dtype=torch.int32)], [point]

    def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
        point = last_states[0] + actions[0]
        return [point, last_states[1] + 1], [point]

    def get_rewards(self, last_states: list[Tensor], actions: list[Tensor], new_states: list[Tensor]) -> Tensor:
        return -new_states[0].square().sum(dim=1)

    def get_is_alive(self, states: list[Tensor]) -> Tensor:
        return states[0].abs().amax(dim=1) <= 5.0


class Constant(Memoryless):
    """Moves by a learned step."""

    def __init__(self) -> None:
        super().__init__(2)
        self.move = nn.Parameter(torch.ones(2))

    def step(self, obs_B: Any, state_B: Any, deterministic: bool = False) -> tuple[Tensor, dict[str, Any]]:
        return self.move.expand(len(obs_B), 2), {}


def test_a_live_environment_is_unrolled() -> None:
    found = get_sessions(Target(), Constant(), 4, batch_size=3)
    # Sessions begin at (0, 1), (2, 3) and (4, 5), and move by (1, 1).
    assert found.is_alive.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]
    assert found.is_alive.dtype == torch.uint8
    assert found.observations[0][0].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert found.observations[0][1].tolist() == [[2, 3], [3, 4], [4, 5], [5, 6]]
    assert found.observations[0][2].tolist() == [[4, 5], [5, 6], [5, 6], [5, 6]]
    assert torch.equal(found.environment_states[0], found.observations[0])
    assert found.environment_states[1].tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 1, 1]]
    assert found.rewards.tolist() == [[-5, -13, -25, -41], [-25, -41, -61, 0], [-61, 0, 0, 0]]
    assert found.actions[0].shape == (3, 4, 2)
    assert found.log_probs is not None
    assert found.log_probs.shape == (3, 4)
    assert get_sessions(Target(), Constant(), 2).rewards.shape == (1, 2)


def test_the_identity_environment_stays_where_it_is() -> None:
    class Identity(BaseEnvironment):
        def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
            return last_states, last_states

    found = get_sessions(Identity((5,), (5,), (), "int64"), Recurrent(), 3, batch_size=2)
    assert torch.equal(found.environment_states[0], torch.zeros(2, 3, 5, dtype=torch.int64))
    assert torch.equal(found.observations[0], torch.zeros(2, 3, 5))
    assert found.rewards.tolist() == [[0.0] * 3] * 2
    assert found.is_alive.tolist() == [[1] * 3] * 2


def test_gradients_flow_through_a_live_environment() -> None:
    actor = Constant()
    torch.autograd.backward(get_sessions(Target(), actor, 3).rewards.sum())
    # Points after t moves of m: (t m, 1 + t m); the sum of their squares has the gradient 2 t^2 m, 2 t (1 + t m).
    assert actor.move.grad is not None
    assert actor.move.grad.tolist() == [-2.0 * (1 + 4 + 9), -2.0 * (1 * 2 + 2 * 3 + 3 * 4)]


def test_a_recurrent_actor_on_a_live_environment_keeps_its_states() -> None:
    class Picks(BaseEnvironment):
        def __init__(self) -> None:
            super().__init__((5,), (5,), ())

        def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
            state = last_states[0] + actions[0][:, None]
            return [state], [state]

    actor = Recurrent()
    torch.manual_seed(5)
    live = get_sessions(Picks(), actor, T, batch_size=B)
    again = get_sessions(
        SessionBatchEnvironment(live.observations, (5,), live.actions), actor, T, optimize_experience_replay=True
    )
    assert live.values is not None
    assert again.values is not None
    assert live.log_probs is not None
    assert again.log_probs is not None
    assert torch.allclose(live.actor_states["memory"], again.actor_states["memory"], atol=1e-6)
    assert torch.allclose(live.values, again.values, atol=1e-6)
    assert torch.allclose(live.log_probs, again.log_probs, atol=1e-6)
    assert len(set(live.actions[0].flatten().tolist())) > 1


# --- live environments of Gymnasium -----------------------------------------------------------------------------------


class Walk(gymnasium.Env[Any, Any]):
    """Position 0 to 3, where the episode ends with the reward 1; observed with the start, in a Dict."""

    observation_space = spaces.Dict({"at": spaces.Box(0, 9, (1,), np.float32), "start": spaces.Discrete(9)})
    action_space = spaces.Discrete(N)

    def __init__(self, start: int = 0) -> None:
        self.start, self.episodes = start, 0

    def observation(self) -> Any:
        return {"at": np.array([self.at], np.float32), "start": self.start + 5 * (self.episodes > 1)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.at, self.episodes = self.start, self.episodes + 1
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.at += 1
        return self.observation(), float(self.at == 3), self.at == 3, False, {}


class Walker(Recurrent):
    """Acts on the nested observations."""

    def unroll(self, obs_BT: Any, state_B: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return super().unroll(torch.cat([obs_BT["at"], obs_BT["start"][..., None]], dim=-1), state_B)

    def step(self, obs_B: Any, state_B: Any, deterministic: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        outputs, state = self.unroll({key: value[:, None] for key, value in obs_B.items()}, state_B)
        return outputs["logits"][:, 0].argmax(dim=-1), state


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_environment_is_unrolled_in_each_mode(mode: AutoresetMode) -> None:
    env = SyncVectorEnv([Walk, lambda: Walk(2), lambda: Walk(1)], autoreset_mode=mode)
    found = get_sessions(env, Walker(2), 5, seed=0)
    at, start = found.observations
    assert at[..., 0].tolist() == [[0, 1, 2, 3, 3], [2, 3, 3, 3, 3], [1, 2, 3, 3, 3]]
    assert start.tolist() == [[0] * 5, [2] * 5, [1] * 5]
    assert found.is_alive.tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert found.rewards.tolist() == [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]
    assert found.rewards.dtype == torch.float32
    assert found.environment_states[0].tolist() == [list(range(5))] * 3
    assert found.actor_states["memory"].shape == (3, 5, 7, 1)
    assert found.values is not None
    assert found.values.requires_grad
    env.close()


class Swing(Memoryless):
    def __init__(self) -> None:
        super().__init__(3)
        self.mu = nn.Linear(3, 1)

    def step(self, obs_B: Any, state_B: Any, deterministic: bool = False) -> tuple[Tensor, dict[str, Any]]:
        return self.mu(obs_B), {}


def test_continuous_actions_of_a_vector_environment() -> None:
    env = gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync")
    one = get_sessions(env, Swing(), 4, seed=3)
    assert one.actions[0].shape == (2, 4, 1)
    other = get_sessions(env, Swing(), 4, seed=3)
    assert torch.equal(one.observations[0], other.observations[0])
    env.close()


# --- errors of environments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "result", "message"),
    [
        (
            "get_rewards",
            torch.zeros(3, 1),
            r"get_rewards of Broken returned the shape \(3, 1\); expected \(3,\): one value",
        ),
        ("get_is_alive", torch.ones(()), r"get_is_alive of Broken returned the shape \(\); expected \(3,\)"),
        (
            "get_initial_results",
            ([torch.zeros(3, 2)], [torch.zeros(3, 2)]),
            "found 1 tensors as states; the environment",
        ),
    ],
)
def test_results_that_would_broadcast_are_refused(method: str, result: Any, message: str) -> None:
    broken = type("Broken", (Target,), {method: lambda *_: result})()
    with pytest.raises(ValueError, match=message):
        get_sessions(broken, Constant(), 2, batch_size=3)


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    env, actor = recorded(), Recurrent()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"get_sessions needs the package 'torch'.*tmrl_core\[trainer\]"):
        get_sessions(env, actor, T)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, -1])
def test_a_session_has_a_tick(length: int) -> None:
    with pytest.raises(ValueError, match=f"length is {length}; allowed: integers of at least 1"):
        get_sessions(recorded(), Recurrent(), length)


def test_only_replays_are_read_at_once() -> None:
    with pytest.raises(ValueError, match="optimize_experience_replay is set for Target, which is no replay"):
        get_sessions(Target(), Constant(), 2, optimize_experience_replay=True)


def test_wrong_batch_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size is 2; this environment has 3"):
        get_sessions(recorded(), Recurrent(), T, batch_size=2)
    with pytest.raises(ValueError, match="batch_size is 0; allowed: at least 1"):
        get_sessions(Target(), Constant(), 2, batch_size=0)
    assert len(get_sessions(recorded(), Recurrent(), T, batch_size=B).rewards) == B
