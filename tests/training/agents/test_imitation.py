"""The term that keeps a policy near demonstrations and interventions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.errors import ConfigError
from tmrl_core.training import CrossQAgent, FlashSACAgent, SacAgent
from tmrl_core.training.agents.losses import imitation_loss
from tmrl_core.training.agents.recurrent_sac_settings import RecurrentSacSettings
from tmrl_core.training.batches import SHOWN

OBSERVATION, ACTION = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-2, 2, (1,), np.float32)
SMALL: dict[Any, dict[str, Any]] = {
    SacAgent: {"hidden_sizes": (16,)},
    CrossQAgent: {"hidden_sizes": (16,), "critic_sizes": (16,)},
    FlashSACAgent: {"width": 8, "critic_width": 8, "blocks": 1, "bins": 5},
}


def test_the_loss_is_the_mean_over_shown_rows_in_units_of_the_bounds() -> None:
    found, action = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[2.0], [1.0], [0.0]])
    width = torch.tensor([4.0])
    assert imitation_loss(found, action, width, torch.tensor([1.0, 1.0, 0.0])) == pytest.approx(0.5)
    assert imitation_loss(found, action, width, torch.zeros(3)) == 0.0
    with pytest.raises(ValueError, match="shown_B must be"):
        imitation_loss(found, action, width, torch.zeros(3, 1))


@pytest.mark.parametrize("agent_cls", SMALL)
def test_the_policy_approaches_the_actions_that_were_shown(agent_cls: Any) -> None:
    torch.manual_seed(0)
    rates = {"lr_actor": 1e-2, "alpha": 1e-4, "learn_entropy_coef": False, "policy_delay": 1}
    if agent_cls is SacAgent:
        del rates["policy_delay"]
    agent = agent_cls(OBSERVATION, ACTION, device="cpu", imitation_coef=50.0, **rates, **SMALL[agent_cls])
    shown_B = torch.tensor([1.0] * 8 + [0.0] * 8)
    action = torch.where(shown_B[:, None] > 0, 1.5, -1.5)
    for _ in range(60):
        obs = torch.rand(16, 2) * 2 - 1
        batch = (obs, action, torch.zeros(16), obs, torch.ones(16), torch.zeros(16), {SHOWN: shown_B})
        metrics = agent.train(batch)
    assert float(metrics["loss_imitation"]) < 5.0
    actor = agent.get_actor()
    acted = [float(actor.act_(np.asarray(one, np.float32), test=True)[0]) for one in obs.tolist()]
    assert np.mean(acted) > 0.9


def test_recurrent_agents_have_no_such_term() -> None:
    with pytest.raises(
        ConfigError, match=r"agent\.kwargs\.imitation_coef: found 1\.0, allowed for recurrent agents: 0"
    ):
        RecurrentSacSettings(imitation_coef=1.0)
