"""get_sessions: an actor and an environment, recorded or live, unrolled together.

torch is imported when it is needed. Shape suffixes: B batch, T ticks.
"""

# Theory of operation
#
# For: the numbers of a loss. An actor goes through sessions, recorded or live, and all that a loss may need comes back
# as tensors [B, T, ...] with gradients to the actor's weights. The file knows no class of an actor or a learner:
# environments are below actors. An actor is whatever has `initial_state`, `step` and `unroll`.
#
# Two ways lead to the same result, which a test compares:
#
# - tick by tick (`_step`): for environments that react, and for replays of an actor without `unroll_states`. Actions
#   come from the recording if it has any, else from the actor.
# - at once (`_read`, `_unroll`): the observations of a recording are known beforehand, so an actor without memory gets
#   [B, T, ...] in one call, and a recurrent one too if it can return its states. For 64 ticks that is one call instead
#   of 64.
#
# Which tick a number belongs to: states, observations and actions are those before the action of the tick, rewards
# those for it, and `is_alive` says whether the session was alive before it. So `is_alive` masks all of them alike.
# Actor states are those *before* each tick, as in samples: the state of a slice's first tick is the memory to replay
# the slice with.
#
# `Stepper` hides the two kinds of environments. `FunctionalStepper` has a `BaseEnvironment`: tensors in and out,
# gradients flow, and a session that has ended is held where it is, since a function has no reset. `VectorStepper` has
# Gymnasium's vector environment: arrays, no gradients, no state to give (the tick stands for it). Its sub-environments
# reset themselves in one of three ways, and the observation after an end is in another place in each:
#
# - next step: the observation of the end is returned as usual, and the next step is the reset, which is not looked at;
# - same step: the returned observation is the next episode's, and the last one is in `infos["final_obs"]`;
# - disabled: somebody resets those that have ended, so this does, or the environment would refuse the next step.
#
# In all three, a session that has ended shows its last observation, the reward 0 and 0 for alive from then on. Episodes
# that follow in a sub-environment are not looked at: results have one session a row.
#
# What fails: results of a shape that would broadcast ([B, 1] rewards make a [B, B] table without an error), memories
# that do not fit the actor, and a length or batch size that cannot be are errors at once.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from tmrl_core.envs.replay.functional_environment import BaseEnvironment
from tmrl_core.envs.replay.recorded import ReplayEnvironment, as_numpy, as_tensor
from tmrl_core.errors import MissingExtraError
from tmrl_core.samples.columns import map_leaves

if TYPE_CHECKING:
    from torch import Tensor

    State = Mapping[str, np.ndarray | Tensor]
    Critic = Callable[[Any, Any], Tensor]


class SessionActor(Protocol):
    """Methods of an actor that `get_sessions` calls. Recurrent actors have them, and those of this package.

    Observations are one array if the environment declares one, else a tuple in declared order (for an environment of
    Gymnasium's, nested as its space). Actions likewise. Any class with these methods will do.
    """

    def initial_state(self, batch: int) -> State:
        """Return the recurrent state at the beginning: [batch, ...] arrays by name, empty without recurrence."""

    def step(self, obs_B: Any, state_B: State, deterministic: bool = False) -> tuple[Any, State]:
        """Return actions [B, ...] and the state after this tick. Called for live environments only."""

    def unroll(self, obs_BT: Any, state_B: State) -> tuple[Mapping[str, Tensor], State]:
        """Return the outputs [B, T, ...] of the policy by name, and the state after the last tick.

        The outputs `q` are taken for Q-values, `value` for values. Of an actor without `log_prob`, the outputs `logits`
        are taken for those of a categorical distribution over integers from 0, and `mu` and `log_std` for those of a
        Gaussian.
        """


@runtime_checkable
class HasLogProb(Protocol):
    """An actor that computes log-probabilities of actions itself."""

    def log_prob(self, outputs_BT: Mapping[str, Tensor], action_BT: Any) -> Tensor | None:
        """Return the log-probabilities [B, T] of actions under the outputs of `unroll`; None: there is no density."""


@runtime_checkable
class UnrollsStates(Protocol):
    """A recurrent actor that computes the states of all ticks of a sequence at once."""

    def unroll_states(self, obs_BT: Any, state_B: State) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return the outputs [B, T, ...] of `unroll`, and the states [B, T, ...] before each tick."""


@runtime_checkable
class Recording(Protocol):
    """A pool of recorded sessions."""

    def replay(self) -> ReplayEnvironment:
        """Return an environment that replays all of them."""


class Sessions(NamedTuple):
    """Sessions that `get_sessions` unrolled. Lists are in the order that the environment declares."""

    environment_states: list[Tensor]
    """[B, T, ...] each, before the action of the tick; of a replay and of Gymnasium's environments, the tick."""
    observations: list[Tensor]
    """[B, T, ...] each."""
    actions: list[Tensor]
    """[B, T, ...] each, chosen on the observation of the same tick."""
    rewards: Tensor
    """[B, T], for the action of the same tick."""
    is_alive: Tensor
    """[B, T] uint8, 1 through the terminal tick and 0 after."""
    actor_states: dict[str, Tensor]
    """[B, T, ...] by name, before the tick; empty without recurrence."""
    values: Tensor | None
    """[B, T] values or [B, T, actions] Q-values; None: the actor has neither, and no critic was given."""
    log_probs: Tensor | None
    """[B, T] log-probabilities of the actions; None: the actor has no density."""


def get_sessions(
    environment: BaseEnvironment | VectorEnv[Any, Any, Any] | Recording,
    actor: SessionActor,
    length: int,
    optimize_experience_replay: bool = False,
    *,
    critic: Critic | None = None,
    batch_size: int | None = None,
    deterministic: bool = False,
    seed: int | None = None,
) -> Sessions:
    """Unroll an actor and an environment together.

    In a replay, observations, actions and rewards are the recorded ones. States, values and log-probabilities are those
    of the actor as it is now, with gradients to its weights. It begins with the memories that precede the sessions, if
    there are any, else with `initial_state`. A replay without recorded actions uses those of the actor.

    Past the end of a session, all environments give its last observation, the reward 0, and 0 for alive. If a session
    is truncated and its final observation is known, that is the last one, so that the value at the first tick past the
    end is the one to bootstrap from. A replay repeats the last recorded action there.

    Gradients flow through the actor, and through environments that are written in torch. They do not flow through
    integer tensors, environments of Gymnasium, and actions that `step` of the actor returns without gradients.

    Arrays become tensors on torch's default device, so `with torch.device("cuda")` runs an actor on a GPU.

    Args:
        environment: a replay, a pool of recorded sessions, all of which are replayed, a live `BaseEnvironment`, or a
            vector environment of Gymnasium, which is reset.
        actor: see `SessionActor`.
        length: number of ticks, more or less than were recorded.
        optimize_experience_replay: True: read recorded sequences at once instead of tick by tick, and pass them to the
            actor in one call if it is not recurrent or has `unroll_states`. The results are equal. Recommended for
            replays.
        critic: computes values [B, T, ...] of observations and actions [B, T, ...]; None: `q` or `value` of the actor's
            outputs.
        batch_size: number of sessions of a live `BaseEnvironment`, 1 by default. Other environments fix it.
        deterministic: True: the actor's actions are without exploration.
        seed: of the reset of Gymnasium's environments.

    Raises:
        ValueError: length is below 1, the batch size is not that of the environment, the preceding memories do not fit
            the actor's state, results of the environment do not fit its declaration, or `optimize_experience_replay` is
            set for something that is no replay.
        MissingExtraError: torch is not installed.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as exc:
        raise MissingExtraError("torch", "trainer", "get_sessions") from exc
    if length < 1:
        raise ValueError(f"length is {length}; allowed: integers of at least 1.")
    if isinstance(environment, Recording):
        environment = environment.replay()
    stepper: Stepper = (
        FunctionalStepper(environment, batch_size)
        if isinstance(environment, BaseEnvironment)
        else VectorStepper(environment, batch_size, seed)
    )
    if optimize_experience_replay and stepper.replay is None:
        raise ValueError(
            f"optimize_experience_replay is set for {type(environment).__name__}, which is no replay. Pass recorded "
            "sessions (SessionBatchEnvironment, SessionPoolEnvironment), or leave it False."
        )
    first_B = _first_state(actor, stepper)
    # Without recorded actions the actor's are needed, and those of a recurrent actor only come tick by tick.
    if optimize_experience_replay and stepper.replay is not None and stepper.replay.actions:
        ticks = _read(stepper.replay, length)
        outputs_BT, actor_states = _unroll(actor, stepper.pack(ticks.observations), first_B, length)
    else:
        ticks, outputs_BT, actor_states = _step(stepper, actor, first_B, length, deterministic)
    actions: Any = ticks.actions[0] if len(ticks.actions) == 1 else tuple(ticks.actions)
    values = outputs_BT.get("q", outputs_BT.get("value"))
    if critic is not None:
        values = critic(stepper.pack(ticks.observations), actions)
    return Sessions(*ticks, actor_states, values, _log_prob(actor, outputs_BT, actions))


class Ticks(NamedTuple):
    """The environment's part of `Sessions`."""

    environment_states: list[Tensor]
    observations: list[Tensor]
    actions: list[Tensor]
    rewards: Tensor
    is_alive: Tensor


class FunctionalStepper:
    """A `BaseEnvironment`, live or a replay."""

    def __init__(self, environment: BaseEnvironment, batch_size: int | None) -> None:
        self._environment = environment
        self.replay = environment if isinstance(environment, ReplayEnvironment) else None
        self.batch = _batch(batch_size, 1 if self.replay is None else self.replay.num_envs, self.replay is None)
        self.states, self.observations = environment.checked_initial_results(self.batch)
        self.is_alive = self._alive()

    def step(self, actions: list[Tensor]) -> Tensor:
        """Go one tick on; sessions of a live environment that have ended stay as they are."""
        import torch

        states, observations = self._environment.checked_action_results(self.states, actions)
        rewards = self._one_each("get_rewards", self._environment.get_rewards(self.states, actions, states))
        if self.replay is None:
            # `where` instead of an index: gradients flow through it, and the environment is still called once for all.
            alive = self.is_alive.bool()
            rewards = torch.where(alive, rewards, 0)
            states, observations = (
                [
                    torch.where(alive.reshape(-1, *[1] * (new.ndim - 1)), new, old)
                    for new, old in zip(*each, strict=True)
                ]
                for each in ((states, self.states), (observations, self.observations))
            )
        self.states, self.observations = states, observations
        # A product: a state that looks alive again after an end does not begin another session.
        self.is_alive = self.is_alive * self._alive()
        return rewards

    def _alive(self) -> Tensor:
        return self._one_each("get_is_alive", self._environment.get_is_alive(self.states)).byte()

    def _one_each(self, name: str, values: Tensor) -> Tensor:
        """Refuse tensors that are not [B]: [B, 1] would broadcast silently."""
        if tuple(values.shape) != (self.batch,):
            raise ValueError(
                f"{name} of {type(self._environment).__name__} returned the shape {tuple(values.shape)}; expected "
                f"{(self.batch,)}: one value for each session."
            )
        return values

    def pack(self, observations: list[Tensor]) -> Any:
        """Return the only observation, or a tuple."""
        return observations[0] if len(observations) == 1 else tuple(observations)


class VectorStepper:
    """A vector environment of Gymnasium. Its states are unknown; the tick stands for them."""

    replay: ReplayEnvironment | None = None

    def __init__(self, environment: VectorEnv[Any, Any, Any], batch_size: int | None, seed: int | None) -> None:
        import torch

        self._environment = environment
        self._mode = environment.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.batch = _batch(batch_size, environment.num_envs, False)
        self._tree, _ = environment.reset(seed=seed)
        self.states = [torch.zeros(self.batch, dtype=torch.int32)]
        self.observations = _leaves(self._tree)
        self.is_alive = torch.ones(self.batch, dtype=torch.uint8)
        self._done_B = np.zeros(self.batch, bool)

    def step(self, actions: list[Tensor]) -> Tensor:
        """Go one tick on. Episodes that follow the first one in a sub-environment are not looked at."""
        import torch

        if self._mode is AutoresetMode.DISABLED and self._done_B.any():
            self._environment.reset(options={"reset_mask": self._done_B})
        tree, rewards, terminated_B, truncated_B, infos = self._environment.step(self._actions(actions))
        self._done_B = np.logical_or(terminated_B, truncated_B)
        alive_B = as_numpy(self.is_alive) == 1
        observations = _leaves(tree)
        if self._mode is AutoresetMode.SAME_STEP:
            for session in np.flatnonzero(alive_B & self._done_B):
                for leaf, final in zip(observations, _leaves(infos["final_obs"][session]), strict=True):
                    leaf[session] = final
        for new, old in zip(observations, self.observations, strict=True):
            new[~alive_B] = old[~alive_B]
        self.observations = observations
        self.is_alive = torch.as_tensor((alive_B & ~self._done_B).astype(np.uint8))
        self.states = [self.states[0] + 1]
        return torch.as_tensor(np.where(alive_B, rewards, 0).astype(np.float32))

    def pack(self, observations: list[Tensor]) -> Any:
        """Return the observations nested as the observation space."""
        leaves = iter(observations)
        return map_leaves(lambda _: next(leaves), self._tree)

    def _actions(self, actions: list[Tensor]) -> Any:
        found = [as_numpy(each) for each in actions]
        space = self._environment.action_space
        return found[0].astype(space.dtype).reshape(space.shape) if len(found) == 1 else tuple(found)


Stepper: TypeAlias = FunctionalStepper | VectorStepper
"""An environment at one tick of all sessions."""


def _batch(asked: int | None, found: int, free: bool) -> int:
    if asked is None or asked == found or (free and asked >= 1):
        return found if asked is None else asked
    raise ValueError(f"batch_size is {asked}; {'allowed: at least 1' if free else f'this environment has {found}'}.")


def _leaves(tree: Any) -> list[Tensor]:
    """Return the arrays of an observation as tensors of their own, in order."""
    import torch

    # Copies: an environment may fill the same arrays with each step.
    leaves: list[Tensor] = []
    map_leaves(lambda leaf: leaves.append(torch.tensor(np.asarray(leaf))), tree)
    return leaves


def _first_state(actor: SessionActor, stepper: Stepper) -> State:
    """Return the memories that precede the sessions as a state of the actor, or its initial state."""
    state_B = actor.initial_state(stepper.batch)
    memories = None if stepper.replay is None else stepper.replay.preceding_agent_memories
    if memories is None or not state_B:
        return state_B
    # A pool stores memories as flat vectors, so sizes are compared, and the state's own shapes are restored.
    if [int(np.prod(each.shape[1:])) for each in memories] != [int(np.prod(v.shape[1:])) for v in state_B.values()]:
        found = [tuple(each.shape) for each in memories]
        allowed = {name: tuple(value.shape) for name, value in state_B.items()}
        raise ValueError(
            f"preceding_agent_memories have the shapes {found}; the state of this actor has {allowed}. Pass the "
            "sessions without memories to begin with its initial state."
        )
    given = map(as_tensor, memories)
    return {name: next(given).reshape(value.shape) for name, value in state_B.items()}


def _read(replay: ReplayEnvironment, length: int) -> Ticks:
    """Return all ticks of a replay at once."""
    tick_BT = np.tile(np.arange(length, dtype=np.int32), (replay.num_envs, 1))
    observations = [as_tensor(each) for each in replay.observations_at(tick_BT)]
    device = observations[0].device
    return Ticks(
        [as_tensor(tick_BT).to(device)],
        observations,
        [as_tensor(replay.at(each, tick_BT)) for each in replay.actions],
        as_tensor(replay.rewards_at(tick_BT)),
        as_tensor(replay.alive_at(tick_BT).astype(np.uint8)).to(device),
    )


def _unroll(
    actor: SessionActor, obs_BT: Any, state_B: State, length: int
) -> tuple[Mapping[str, Tensor], dict[str, Tensor]]:
    """Return the actor's outputs of whole sequences, and its states before each tick."""
    if not state_B:
        return actor.unroll(obs_BT, state_B)[0], {}
    if isinstance(actor, UnrollsStates):
        outputs_BT, states_BT = actor.unroll_states(obs_BT, state_B)
        return outputs_BT, dict(states_BT)
    # A recurrent actor that only gives its last state: one call a tick, to have the states before each.
    outputs, states = [], []
    for tick in range(length):
        states.append(state_B)
        outputs_B1, state_B = actor.unroll(_tick_of(obs_BT, tick), state_B)
        outputs.append(outputs_B1)
    return _concatenated(outputs), _stacked(states, state_B)


def _tick_of(obs_BT: Any, tick: int) -> Any:
    return map_leaves(lambda each_BT: each_BT[:, tick : tick + 1], obs_BT)


def _step(
    stepper: Stepper, actor: SessionActor, state_B: State, length: int, deterministic: bool
) -> tuple[Ticks, Mapping[str, Tensor], dict[str, Tensor]]:
    """Go through the sessions tick by tick."""
    import torch

    first_B = state_B
    ticks: list[Ticks] = []
    outputs, states = [], []
    for _ in range(length):
        states.append(state_B)
        before = stepper.states, stepper.observations, stepper.is_alive
        if stepper.replay is not None and stepper.replay.actions:
            actions = stepper.replay.get_recorded_actions(stepper.states)
            obs_B1 = stepper.pack([each[:, None] for each in stepper.observations])
            outputs_B1, state_B = actor.unroll(obs_B1, state_B)
            outputs.append(outputs_B1)
        else:
            action_B, state_B = actor.step(stepper.pack(stepper.observations), state_B, deterministic)
            actions = [
                torch.as_tensor(each) for each in (action_B if isinstance(action_B, list | tuple) else [action_B])
            ]
        rewards = stepper.step(actions)
        ticks.append(Ticks(before[0], before[1], actions, rewards, before[2]))
    states_T, obs_T, actions_T, rewards_T, alive_T = zip(*ticks, strict=True)
    lists = [[torch.stack(each, dim=1) for each in zip(*part, strict=True)] for part in (states_T, obs_T, actions_T)]
    found = Ticks(lists[0], lists[1], lists[2], torch.stack(rewards_T, dim=1), torch.stack(alive_T, dim=1))
    outputs_BT = _concatenated(outputs) if outputs else actor.unroll(stepper.pack(found.observations), first_B)[0]
    return found, outputs_BT, _stacked(states, state_B)


def _concatenated(outputs: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    import torch

    return {name: torch.cat([each[name] for each in outputs], dim=1) for name in outputs[0]}


def _stacked(states: list[State], last: State) -> dict[str, Tensor]:
    """Return states [B, ...] as [B, T, ...] tensors of the dtype and on the device of the last one."""
    import torch

    return {
        name: torch.stack([torch.as_tensor(each[name]).to(torch.as_tensor(value)) for each in states], dim=1)
        for name, value in last.items()
    }


def _log_prob(actor: SessionActor, outputs_BT: Mapping[str, Tensor], action_BT: Any) -> Tensor | None:
    import torch

    if isinstance(actor, HasLogProb):
        return actor.log_prob(outputs_BT, action_BT)
    if "logits" in outputs_BT:
        log_probs = torch.log_softmax(outputs_BT["logits"], dim=-1)
        return log_probs.gather(-1, action_BT.long()[..., None]).squeeze(-1)
    if "mu" in outputs_BT and "log_std" in outputs_BT:
        log_std_BTA = outputs_BT["log_std"]
        z_BTA = (action_BT.reshape(log_std_BTA.shape) - outputs_BT["mu"]) * torch.exp(-log_std_BTA)
        density_BTA: Tensor = -0.5 * z_BTA.square() - log_std_BTA - 0.5 * math.log(2.0 * math.pi)
        return density_BTA.flatten(2).sum(dim=-1)
    return None
