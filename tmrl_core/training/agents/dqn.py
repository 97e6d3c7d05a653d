"""Deep Q-networks: double, dueling, with any number of steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.losses import chosen_value, double_value, huber_loss, td_error, td_target
from tmrl_core.training.agents.networks import QNetwork
from tmrl_core.training.agents.off_policy import OffPolicyAgent, make_target, model_arguments
from tmrl_core.training.agents.optimizers import make_optimizer, minimise
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Policy, Settings, Space


class DQNAgent(OffPolicyAgent):
    """Deep Q-network: learn the value of each action and act greedily, with epsilon-greedy exploration.

    The memory sets the number of steps of a target: each batch holds its discount, gamma^n.

    Args:
        observation_space: of the environment.
        action_space: Discrete.
        device: device of the networks; None: cuda if available.
        model_cls: makes the network, see `QNetwork`.
        gamma: discount per step.
        polyak: coefficient of the Polyak update of the target network; 0: copy the online network.
        target_interval: updates between two updates of the target network.
        lr: learning rate.
        double: double DQN: the target network evaluates the online network's best action instead of its own best one.
        dueling: passed to `model_cls`; None: its default.
        epsilon_initial: share of random actions before the first update.
        epsilon_final: share of random actions at the end.
        epsilon_updates: updates of the linear decay between the two.
        max_grad_norm: gradient-norm clipping threshold; None: no clipping.
        optimizer: adam, adamw or sgd.
        betas: Adam's; None: torch's default.
        l2: weight decay; None: the optimizer's default.
        hidden_sizes: width of each hidden layer, passed to `model_cls`; None: its default.
        activation: of the hidden layers, passed to `model_cls`; None: its default.
        model_kwargs: further keyword arguments of `model_cls`.
        compile: true, false or auto, see `OffPolicyAgent.compute_with`.
        precision: float32 or bfloat16, see there.

    Raises:
        ConfigError: the optimizer's name is unknown, a share or interval is out of range, or a space is unsupported.

    Source: Mnih et al., Nature 518 (2015); van Hasselt et al., arXiv:1509.06461; Wang et al., arXiv:1511.06581.
    """

    type_id = "dqn"
    type_version = 1

    action_spaces: ClassVar[frozenset[str]] = frozenset({"discrete"})

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: torch.device | str | None = None,
        model_cls: Callable[..., Any] = QNetwork,
        gamma: float = 0.99,
        polyak: float = 0.0,
        target_interval: int = 500,
        lr: float = 5e-4,
        double: bool = True,
        dueling: bool | None = None,
        epsilon_initial: float = 1.0,
        epsilon_final: float = 0.05,
        epsilon_updates: int = 10_000,
        max_grad_norm: float | None = 10.0,
        optimizer: str = "adam",
        betas: Sequence[float] | None = None,
        l2: float | None = None,
        *,
        hidden_sizes: Sequence[int] | None = None,
        activation: object = None,
        model_kwargs: Settings | None = None,
        compile: bool | str = "auto",
        precision: str = "float32",
    ) -> None:
        for name, share in (("epsilon_initial", epsilon_initial), ("epsilon_final", epsilon_final)):
            if not 0.0 <= share <= 1.0:
                raise ConfigError(f"DQN needs 0 <= {name} <= 1, got {share}")
        for name, count in (("epsilon_updates", epsilon_updates), ("target_interval", target_interval)):
            if count < 1:
                raise ConfigError(f"DQN needs {name} >= 1, got {count}")
        arguments = model_arguments(model_kwargs, hidden_sizes=hidden_sizes, activation=activation, dueling=dueling)
        super().__init__(observation_space, action_space, device, model_cls, arguments, gamma, polyak)
        self.compute_with(compile, precision)
        self.target_interval = target_interval
        self.double = double
        self.epsilon_initial = epsilon_initial
        self.epsilon_final = epsilon_final
        self.epsilon_updates = epsilon_updates
        self.max_grad_norm = max_grad_norm
        self.updates = 0
        self.target_network = make_target(self.model.actor)
        self.optimizer = make_optimizer(optimizer, self.model.actor.parameters(), lr, betas, l2)

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the target network with the online network."""
        return [(self.target_network, self.model.actor)]

    @property
    def epsilon(self) -> float:
        """Share of random actions after the updates done so far."""
        progress = min(1.0, self.updates / self.epsilon_updates)
        return self.epsilon_initial + progress * (self.epsilon_final - self.epsilon_initial)

    def get_actor(self) -> Policy:
        """Return the network that is trained, with the current epsilon for exploration."""
        self.model.actor.set_exploration({"epsilon": self.epsilon})
        return self.model.actor

    def update_kind(self) -> Hashable:
        """Tell whether the next update moves the target network too."""
        return (self.updates + 1) % self.target_interval == 0

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the network, and the target network every `target_interval` updates."""
        t = transitions
        self.updates += 1
        online = self.model.actor
        with torch.no_grad():
            next_q_BN = self.target_network(t.next_obs)
            next_value_B = double_value(online(t.next_obs), next_q_BN) if self.double else next_q_BN.amax(dim=-1)
            target_B = td_target(t.reward_B, t.terminated_B, next_value_B, t.discount)
        q_B = chosen_value(online(t.obs), online.index(t.action))
        loss = huber_loss(q_B, target_B, t.weight_B)
        metrics = minimise(self.optimizer, loss, self.max_grad_norm)
        if t.weight_B is not None:
            self.td_error_B = td_error(q_B, target_B)
        if self.updates % self.target_interval == 0:
            self._update_targets()
        return {"loss_critic": loss.detach(), "q_mean": q_B.detach().mean(), **metrics}
