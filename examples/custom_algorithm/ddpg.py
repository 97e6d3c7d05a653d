"""Deep deterministic policy gradient, as a custom agent for tmrl_core."""

from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tmrl_core.config.algorithms import BOX
from tmrl_core.training import OffPolicyAgent
from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.losses import critic_loss, deterministic_policy_loss, td_error, td_target
from tmrl_core.training.agents.networks import DeterministicActorCritic
from tmrl_core.training.agents.optimizers import frozen, make_optimizer, minimise
from tmrl_core.training.agents.settings import AT_LEAST_0, OffPolicySettings
from tmrl_core.training.agents.target_networks import make_target
from tmrl_core.training.batches import Transitions


class DdpgSettings(
    OffPolicySettings, agent="ddpg:DDPGAgent", action_spaces=BOX, actors=frozenset({"DeterministicMLPActor"})
):
    """Keyword arguments of the agent, beside those of every off-policy agent."""

    lr_actor: Annotated[float, "learning rate of the policy"] = 1e-3
    lr_critic: Annotated[float, "learning rate of the critic"] = 1e-3
    exploration_noise: Annotated[float, AT_LEAST_0, "standard deviation of noise on actions in [-1, 1]"] = 0.1


@takes(DdpgSettings, partial(DeterministicActorCritic, n=1))
class DDPGAgent(OffPolicyAgent):
    """A deterministic policy that ascends the gradient of its critic.

    Source: Lillicrap et al., arXiv:1509.02971, algorithm 1.
    """

    settings: DdpgSettings

    def prepare(self) -> None:
        s = self.settings
        self.updates = 0
        self.target = make_target(self.model)
        self.optimizer_actor = make_optimizer("adam", list(self.model.actor.parameters()), s.lr_actor)
        self.optimizer_critic = make_optimizer("adam", list(self.model.critics.parameters()), s.lr_critic)

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.target, self.model)]

    def get_actor(self) -> Any:
        actor = self.model.actor
        actor.set_exploration({"noise": self.settings.exploration_noise, "random": 0.0 if self.updates else 1.0})
        return actor

    def update_kind(self) -> str:
        return "each alike"

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        t = transitions
        self.updates += 1
        with torch.no_grad():
            next_q_B = self.target.critics(t.next_obs, self.target.actor(t.next_obs))[0]
            target_B = td_target(t.reward_B, t.terminated_B, next_q_B, t.discount)
        q_KB = self.model.critics(t.obs, t.action)
        loss_critic = critic_loss(q_KB, target_B, t.weight_B)
        minimise(self.optimizer_critic, loss_critic)
        if t.weight_B is not None:
            self.td_error_B = td_error(q_KB, target_B)
        with frozen(self.model.critics.parameters()):
            loss_actor = deterministic_policy_loss(self.model.critics(t.obs, self.model.actor(t.obs))[0])
            minimise(self.optimizer_actor, loss_actor)
        self._update_targets()
        return {"loss_critic": loss_critic.detach(), "loss_actor": loss_actor.detach()}
