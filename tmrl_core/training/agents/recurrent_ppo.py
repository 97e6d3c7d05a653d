"""Proximal policy optimization with a recurrent policy.

Shape suffixes: T rows of a round, S sequences, L ticks of the longest sequence, D elements of a flattened observation,
H features, B rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from tmrl_core.actor.module import STATE_COLUMN
from tmrl_core.actor.policies.spaces import choice_counts
from tmrl_core.actor.policies.torch.categorical import CategoricalRNNActor
from tmrl_core.actor.policies.torch.gaussian import GaussianRNNActor
from tmrl_core.actor.policies.torch.mlp import hidden_layers, orthogonal, orthogonal_linear
from tmrl_core.actor.policies.torch.on_policy import OnPolicyHead
from tmrl_core.actor.policies.torch.recurrent import unroll_layer
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.ppo import OnPolicyModel, PPOAgent, RoundRows
from tmrl_core.training.agents.recurrent_ppo_settings import RecurrentPpoSettings
from tmrl_core.training.batches import ENDS, PLACES

RecurrentOnPolicyActor = CategoricalRNNActor | GaussianRNNActor


class RecurrentActorCritic(OnPolicyModel):
    """A recurrent policy, and a value function of the features that its recurrent layer puts out.

    A value function with a recurrent layer of its own would need its states, and workers know those of the policy only.

    Args:
        actor: the policy.
        settings: of the agent.
    """

    actor: RecurrentOnPolicyActor

    def __init__(self, actor: RecurrentOnPolicyActor, settings: RecurrentPpoSettings) -> None:
        super().__init__()
        self.actor = actor
        layers, width = hidden_layers(actor.cell_size, settings.hidden_sizes, settings.activation, orthogonal_linear)
        self.critic = nn.Sequential(*layers, orthogonal(nn.Linear(width, 1), 1.0))

    def rows(self, flat_TD: Tensor, flat_ED: Tensor, known_T: Tensor, extras: Mapping[str, Tensor]) -> RoundSequences:
        """Return the rows of a round as sequences."""
        return RoundSequences(self, flat_TD, flat_ED, known_T, extras)


class RoundSequences(RoundRows):
    """The rows of a round as padded sequences, each with the state before its first tick.

    A sequence begins where a run does and at each tick that is a multiple of `state_interval`. Its last tick is
    followed by the observation after it, which values need, then by zeros. Only rows of the round come out.

    Args:
        model, flat_TD, flat_ED, known_T: as for `RoundRows`.
        extras: of the batch: `ends`, `places` and the states.

    Raises:
        ConfigError: there is no recurrent state among the extras.
    """

    model: RecurrentActorCritic

    def __init__(
        self,
        model: RecurrentActorCritic,
        flat_TD: Tensor,
        flat_ED: Tensor,
        known_T: Tensor,
        extras: Mapping[str, Tensor],
    ) -> None:
        self._networks, self._known_T = model, known_T
        actor = model.actor
        names = {name: STATE_COLUMN + name for name in actor.initial_state(0)}
        missing = [column for column in (*names.values(), PLACES) if column not in extras]
        if missing:
            raise ConfigError(
                f"actor.cls: the samples come without {', '.join(missing)}. Use tmrl_core.actor: CategoricalRNNActor "
                f"(Discrete actions) or GaussianRNNActor, with actor.kwargs.cell: {actor.cell}, for workers too."
            )
        ends = extras[ENDS].cpu().numpy().astype(bool)
        tick = extras[PLACES][:, 2].cpu().numpy() - 1
        begins = np.concatenate([[True], ends[:-1]]) | (tick % actor.state_interval == 0)
        starts = np.flatnonzero(begins)
        self._lengths = np.diff(starts, append=len(ends))
        device = flat_TD.device
        start_S, length_S = torch.from_numpy(starts).to(device), torch.from_numpy(self._lengths).to(device)
        place_L = torch.arange(int(self._lengths.max()) + 1, device=device)
        self._row_SL = start_S[:, None] + place_L
        self._alive_SL = place_L < length_S[:, None]
        self.flat_SLD = flat_TD.new_zeros((*self._row_SL.shape, flat_TD.shape[-1]))
        self.flat_SLD[self._alive_SL] = flat_TD
        # The observations after runs; those after other sequences begin the next one.
        self._at_end = torch.from_numpy(np.flatnonzero(ends[starts + self._lengths - 1])).to(device)
        self._after = (self._at_end, length_S[self._at_end])
        self.flat_SLD[self._after] = flat_ED
        self._state_S = {name: extras[column][start_S] for name, column in names.items()}

    @property
    def padding_SL(self) -> Tensor:
        """True where a tick is neither a row of the round nor the observation after a run."""
        padding_SL = ~self._alive_SL
        padding_SL[self._after] = False
        return padding_SL

    def values(self) -> tuple[Tensor, Tensor]:
        """Return [T] values of all rows and [E] values of the observations that follow the runs."""
        value_SL = self._networks.critic(self._features(slice(None))).squeeze(-1)
        return value_SL[self._alive_SL], value_SL[self._after]

    def minibatches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the sequences of each minibatch of one pass in random order: about `size` rows each."""
        order = torch.randperm(len(self._lengths), generator=generator).numpy()
        before = np.cumsum(self._lengths[order]) - self._lengths[order]
        for sequences in np.split(order, np.flatnonzero(np.diff(before // size)) + 1):
            yield torch.from_numpy(sequences).to(self.flat_SLD.device)

    def rows_of(self, minibatch: Tensor) -> Tensor:
        """Return the rows [B] of sequences."""
        return self._row_SL[minibatch][self._alive_SL[minibatch]]

    def evaluate(self, minibatch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, with gradients, [B] log-densities, entropies and values of the rows of sequences."""
        alive_SL = self._alive_SL[minibatch]
        features_BH = self._features(minibatch)[alive_SL]
        actor = self._networks.actor
        outputs = actor.outputs_of(features_BH)
        if actor.masked:
            outputs = actor.limited(outputs, self.flat_SLD[minibatch][alive_SL])
        log_prob_B, entropy_B = actor.density(outputs, self._known_T[self.rows_of(minibatch)])
        return log_prob_B, entropy_B, self._networks.critic(features_BH).squeeze(-1)

    def _features(self, sequence_S: Tensor | slice) -> Tensor:
        """Return [S, L, H] outputs of the recurrent layer."""
        actor = self._networks.actor
        state_S = {name: states[sequence_S] for name, states in self._state_S.items()}
        return unroll_layer(actor.rnn, actor.encode(self.flat_SLD[sequence_S]), state_S)[0]


@takes(RecurrentPpoSettings)
class RecurrentPPOAgent(PPOAgent):
    """`PPOAgent` with a recurrent policy.

    A minibatch holds whole sequences, each trained from the recurrent state that its first action was chosen with. The
    value function reads the features of the policy's recurrent layer, which both losses train.

    Args:
        observation_space: flattened by `tmrl_core.actor.policies.flattening`.
        action_space: Discrete, MultiDiscrete, MultiBinary, or a Box of floats.
        device: device of the networks; None: cpu.
        actor_cls: makes the policy; None: `GaussianRNNActor` for a Box, else `CategoricalRNNActor`.

    Raises:
        ConfigError: a space is unsupported, or a parameter is out of range.

    Source: Schulman et al., arXiv:1707.06347; recurrent: Ni et al., arXiv:2110.05038.
    """

    type_id = "recurrent_ppo"
    type_version = 1
    settings: RecurrentPpoSettings

    def _make_model(self, actor_cls: Callable[..., OnPolicyHead] | None) -> RecurrentActorCritic:
        of_choices = choice_counts(self.action_space)
        make: Callable[..., OnPolicyHead] = actor_cls or (CategoricalRNNActor if of_choices else GaussianRNNActor)
        actor = make(self.observation_space, self.action_space, **self.settings.model_arguments())
        if not isinstance(actor, CategoricalRNNActor | GaussianRNNActor):
            raise ConfigError(
                f"agent.kwargs.actor_cls: found a {type(actor).__name__}, allowed: CategoricalRNNActor and "
                "GaussianRNNActor of tmrl_core.actor, and classes that derive from them"
            )
        return RecurrentActorCritic(actor, self.settings)
