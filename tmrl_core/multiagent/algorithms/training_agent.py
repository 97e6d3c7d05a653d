"""Training agents of this project as algorithms of agents."""

# Theory of operation
#
# A training agent is divided in two classes with the same arguments: `TrainingAgentAlgorithm` learns and imports torch,
# `ActingPolicy` acts with the NumPy backend of its policy, and workers import that one only. The first derives from the
# second, so both act alike. Rejected: one class that makes the training agent when it first learns, since a checkpoint
# could meet it before.
#
# Three kinds of training, by the agent:
#
# - from single transitions in a pool: DQN, SAC, TD3, ... Their batch is a sample of the pool.
# - from rounds (`trains_on_rounds`): PPO, whose batch is the whole pool in its order, since it computes returns itself.
#   Discounts other than gamma show returns over several steps, and are refused.
# - from sequences (`_on_sequences`): recurrent agents with a replay memory. The rows of their pool are padded sequences
#   that `rows_of` cuts from whole runs, so sampling by weights, priorities and checkpoints of a pool work for them too.
#   Workers send single steps; the trainer cuts.
#
# Recurrent states. Agents may share a policy, so an `Agent` keeps the state between two decisions and lends it: it sets
# `carried` before an action and reads it after. The states are extras of the decisions, hence columns that travel and
# are stored as others are. Rejected: states by agent within the policy (each algorithm would need the agents' ids).
#
# Priorities. Agents leave TD errors only if their batch has weights; without any these are 1, which changes no update.
#
# Acting follows training lazily (`_follow`): the acting half loads the agent's weights when the first action after an
# update is asked for, since a trainer with remote workers never acts.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from tmrl_core.actor.module import STATE_COLUMN, RecurrentActor
from tmrl_core.config.references import check_kwargs, resolve
from tmrl_core.errors import ConfigError, SampleRefusedError, WeightsError
from tmrl_core.multiagent.algorithms.acting_policy import ActingPolicy
from tmrl_core.multiagent.algorithms.batches import KEYS, require, tensors_of
from tmrl_core.multiagent.algorithms.runs import IN_SEQUENCES, check_steps, ends_of, places_of, sequences_of
from tmrl_core.multiagent.trajectory import IMPORTANCE, Columns
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.agents.recurrent_dqn import RecurrentDQNAgent
from tmrl_core.training.agents.recurrent_sac import RecurrentSacAgent
from tmrl_core.training.batches import ENDS, FIRST_TICK, PLACES, TICKS
from tmrl_core.training.checkpointable import attributes_of
from tmrl_core.training.contracts import as_agent
from tmrl_core.training.memories.sample_schema import check_space
from tmrl_core.training.memories.trees import is_tensor
from tmrl_core.training.updates.skipped_updates import SKIPPED

if TYPE_CHECKING:
    from tmrl_core.multiagent.settings import AgentParameters

TRANSITION = ("state", "action", "reward", "next_state", "discount", "terminated", "truncated")
"""Columns that every training agent needs."""


class TrainingAgentAlgorithm(ActingPolicy):
    """A `TrainingAgent` as the algorithm of agents: all of `tmrl_core.training`, and those of users.

    The same seed and weights give the same actions as in an `ActingPolicy`. An agent that collects in lockstep only, as
    PPO does, learns from whole rounds (`trains_on_rounds`). Another one with a recurrent policy learns from sequences
    of `AgentParameters.sequence_length` ticks, which are the rows of its pool. Both compute their own returns from
    single steps, so experiences have k = 1 and their gamma.

    The arguments are those of `ActingPolicy`.

    Raises:
        ConfigError: as for `ActingPolicy`, or the agent refuses an argument.
        WeightsError: the acting policy is another one than the agent's; the message says what differs.

    Attributes:
        agent: the training agent.
        updates: number of calls of `train_on_batch` so far.
    """

    type_id = "training_agent_algorithm"
    type_version = 1
    transient: ClassVar[frozenset[str]] = frozenset({"_agent", "_acts_at", "_on_sequences"})

    def _prepare(self, agent: str | Callable[..., Any], device: Any, kwargs: Mapping[str, Any]) -> None:
        make = resolve(agent, "agent") if isinstance(agent, str) else agent
        check_kwargs(make, kwargs, "kwargs")
        policy = self.runner.actor
        self.agent = make(policy.observation_space, policy.action_space, device=device, **kwargs)
        self._agent = as_agent(self.agent)
        self.trains_on_rounds = self._agent.collection == {"lockstep"}
        self._on_sequences = isinstance(policy, RecurrentActor) and not self.trains_on_rounds
        self.updates = 0
        self._acts_at = -1
        self._follow()

    def choose_action_with_extras(self, state: Any, epsilon: float) -> tuple[Any, Mapping[str, Any]]:
        """Return the action of the latest policy and its extras."""
        self._follow()
        return super().choose_action_with_extras(state, epsilon)

    def get_model(self) -> Blob:
        """Return the weights of the policy."""
        return Blob(*self.agent.get_actor().to_blob())

    def load_model(self, model: Blob) -> None:
        """Load weights into the policy; value functions stay as they are.

        Raises:
            WeightsError: they are of another policy, or the agent cannot take over a policy that was loaded as a new
                object; nothing has changed.
        """
        actor = self.agent.get_actor()
        loaded = actor.from_blob(model.format, model.data, self._agent.device)
        if loaded is not actor:
            self._replace(actor, loaded)
        super().load_model(model)

    def _replace(self, actor: Any, loaded: Any) -> None:
        """Let the agent have the weights of another object than its policy."""
        if isinstance(actor, nn.Module) and isinstance(loaded, nn.Module):
            actor.load_state_dict(loaded.state_dict())  # optimizers keep their parameters
            return
        names = [name for name, value in attributes_of(self.agent).items() if value is actor]
        if not names:
            raise WeightsError(
                f"{type(actor).__name__} loads weights into a new object, and {type(self.agent).__name__} has no "
                "attribute that holds its policy. Let `load` or `from_bytes` change the policy itself, and return it"
            )
        for name in names:
            setattr(self.agent, name, loaded)

    def _follow(self) -> None:
        """Act with the latest policy."""
        if self._acts_at != self.updates:
            super().load_model(self.get_model())
            self._acts_at = self.updates

    # --- experiences --------------------------------------------------------------------------------------------------

    def check_parameters(self, params: AgentParameters) -> None:
        """Refuse parameters of rounds or sequences that the agent or its policy does not support."""
        super().check_parameters(params)
        policy, agent = self.runner.actor, self.agent
        if not self._on_sequences or not isinstance(policy, RecurrentActor):
            return
        if params.stride % policy.state_interval:
            raise ConfigError(
                f"sequence_stride is {params.stride}, allowed: multiples of state_interval = {policy.state_interval}, "
                f"at most sequence_length = {params.sequence_length}. Sequences begin where the policy's state is "
                "stored. Change the stride or the state_interval"
            )
        if not isinstance(agent, RecurrentDQNAgent | RecurrentSacAgent):
            return
        burn_in = agent.settings.burn_in
        if burn_in >= params.sequence_length:
            raise ConfigError(
                f"burn_in is {burn_in}, allowed: less than sequence_length = {params.sequence_length}. Lower the first "
                "or raise the second"
            )

    def check_experiences(self, experiences: Columns) -> None:
        """Refuse experiences that lack a column, or whose values do not fit spaces or policy.

        For a recurrent policy, the last one has to end the episode: in a round, those of another worker follow it.
        """
        self._check_columns(experiences)
        if self.recurrent and not (experiences["terminated"][-1] or experiences["truncated"][-1]):
            raise SampleRefusedError(
                "the last experience of the episode is neither terminated nor truncated, so that those of the next "
                "episode would continue it. Set one of the two, as KStepExperienceShaper does"
            )

    def _check_columns(self, experiences: Columns) -> None:
        policy = self.runner.actor
        extras = policy.reset_extras() if self.trains_on_rounds or self._on_sequences else {}
        require(experiences, *TRANSITION, *extras)
        for key in ("reward", "discount", "terminated", "truncated"):
            if np.asarray(experiences[key]).ndim != 1:
                raise SampleRefusedError(f"{key!r} is not one number a row")
        self._check_discounts(experiences)
        for key in ("state", "next_state"):
            check_space(policy.observation_space, experiences[key], repr(key))
        check_space(policy.action_space, experiences["action"], "'action'")
        for key, value in extras.items():
            found = np.asarray(experiences[key]).shape[1:]
            if found != np.shape(value):
                raise SampleRefusedError(f"{key!r} has the shape {[*found]}, this policy's is {[*np.shape(value)]}")
        if self.recurrent:
            check_steps(experiences)

    def _check_discounts(self, columns: Mapping[str, Any]) -> None:
        agent = self.agent
        computes = isinstance(agent, PPOAgent) or (self._on_sequences and isinstance(agent, OffPolicyAgent))
        if computes and not np.allclose(columns["discount"], agent.settings.gamma):
            raise SampleRefusedError(
                f"{type(agent).__name__} computes its own returns, from single steps with its gamma = "
                f"{agent.settings.gamma:g}; the batch has discounts from {np.min(columns['discount']):g} to "
                f"{np.max(columns['discount']):g}. Make the experiences with k = 1 and this gamma"
            )

    def rows_of(self, experiences: Columns, params: AgentParameters, most: int) -> Columns:
        """Return the sequences of a recurrent policy that learns from them, otherwise the experiences.

        Raises:
            SampleRefusedError: a column is missing, or the rows are not single steps.
        """
        if not self._on_sequences:
            return experiences
        self._check_columns(experiences)
        return sequences_of(experiences, params.sequence_length, params.stride, most)

    # --- training -----------------------------------------------------------------------------------------------------

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        """Make one update, or one of a round. `priorities` are the TD errors of agents with a replay memory.

        Raises:
            SampleRefusedError: a column is missing, or a round does not hold single steps.
        """
        require(batch, *(IN_SEQUENCES if self._on_sequences else TRANSITION))
        columns: dict[str, Any] = dict(batch)
        if self.trains_on_rounds:
            columns = self._round(columns)
        else:
            columns = {key: columns[key] for key in columns if key in KEYS or self._of_sequence(key)}
            # With weights, an agent leaves its TD errors.
            columns["weights"] = columns.pop(IMPORTANCE, np.ones(len(columns["reward"]), np.float32))
        t = tensors_of(columns, torch.device(self._agent.device or "cpu"))
        extras = {key: value for key, value in t.items() if key not in KEYS or key == "discount"}
        rows = (t["state"], t["action"], t["reward"], t["next_state"], t["terminated"], t["truncated"])
        found = self.agent.train((*rows, extras) if self._agent.wants_extras else rows)
        self.updates += 1
        metrics = {name: value.item() if is_tensor(value) else value for name, value in found.items()}
        if self._agent.td_error_B is not None and not metrics.get(SKIPPED):
            metrics["priorities"] = self._agent.td_error_B.cpu().numpy()
        return metrics

    def _of_sequence(self, key: str) -> bool:
        return self._on_sequences and (key in (TICKS, FIRST_TICK) or key.startswith(STATE_COLUMN))

    def _round(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of a round with the ends of its runs, and with the places of recurrent policies."""
        self._check_discounts(columns)
        if ENDS not in columns:
            columns[ENDS] = ends_of(columns)
        if self.recurrent:
            columns[PLACES] = places_of(np.asarray(columns[ENDS], bool))
        return columns
