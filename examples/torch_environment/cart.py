"""An environment written in torch, and a policy that learns by the gradient of the rewards through it.

A cart is pushed towards the origin. All sessions of a batch advance in one call, and a few dozen gradient steps are
enough. Then sessions of this policy are recorded, and another policy learns from them to act like the first one:

    python examples/torch_environment/cart.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tmrl_core.actor import DeterministicMLPActor
from tmrl_core.envs import BaseEnvironment, SessionPoolEnvironment, get_sessions

OBSERVATION = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTION = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Cart(BaseEnvironment):
    """A cart on a line. Its state and its observation are position and speed; the action is a push."""

    def __init__(self) -> None:
        super().__init__(state_shapes=(2,), observation_shapes=(2,), action_shapes=(1,), action_dtypes="float32")

    def get_initial_results(self, batch_size: int) -> tuple[list[Tensor], list[Tensor]]:
        position = torch.linspace(-1.0, 1.0, batch_size)
        state = torch.stack([position, torch.zeros_like(position)], dim=1)
        return [state], [state]

    def get_action_results(
        self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any
    ) -> tuple[list[Tensor], list[Tensor]]:
        position, speed = last_states[0].unbind(dim=1)
        speed = 0.9 * speed + 0.2 * actions[0][:, 0]
        state = torch.stack([position + 0.2 * speed, speed], dim=1)
        return [state], [state]

    def get_rewards(self, last_states: list[Tensor], actions: list[Tensor], new_states: list[Tensor]) -> Tensor:
        return -new_states[0][:, 0].square() - 0.01 * actions[0][:, 0].square()


def new_policy() -> DeterministicMLPActor:
    return DeterministicMLPActor(OBSERVATION, ACTION, hidden_sizes=(32,), noise=0.0, random=0.0)


def learn(policy: DeterministicMLPActor, updates: int = 60, ticks: int = 40) -> list[float]:
    """Raise the return by its gradient through the environment; return the mean return before each update."""
    optimizer = torch.optim.Adam(policy.parameters(), 0.01)
    returns = []
    for _ in range(updates):
        mean_return = get_sessions(Cart(), policy, ticks, batch_size=16).rewards.sum(dim=1).mean()
        optimizer.zero_grad()
        torch.autograd.backward(-mean_return)
        optimizer.step()
        returns.append(mean_return.item())
    return returns


def record(policy: DeterministicMLPActor, ticks: int = 40) -> SessionPoolEnvironment:
    """Return sessions of a policy."""
    with torch.no_grad():
        found = get_sessions(Cart(), policy, ticks, batch_size=32, deterministic=True)
    pool = SessionPoolEnvironment(OBSERVATION, ACTION, agent_memories=0)
    pool.load_sessions(found.observations, found.actions, found.rewards, found.is_alive)
    return pool


def imitate(policy: DeterministicMLPActor, pool: SessionPoolEnvironment, updates: int = 200) -> list[float]:
    """Learn the recorded actions from sampled sessions; return the loss before each update."""
    optimizer = torch.optim.Adam(policy.parameters(), 0.01)
    losses = []
    for _ in range(updates):
        batch = pool.sample_session_batch(8)
        outputs, _ = policy.unroll(batch.observations[0], policy.initial_state(batch.num_envs))
        loss = (outputs["action"] - batch.actions[0]).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    expert, apprentice = new_policy(), new_policy()
    returns = learn(expert)
    print(f"return through the environment: {returns[0]:.2f} -> {returns[-1]:.2f}")
    losses = imitate(apprentice, record(expert))
    print(f"squared distance to the recorded actions: {losses[0]:.4f} -> {losses[-1]:.4f}")
    final = get_sessions(Cart(), apprentice, 40, batch_size=16, deterministic=True).rewards.sum(dim=1).mean().item()
    print(f"return of the policy that imitates: {final:.2f}")
