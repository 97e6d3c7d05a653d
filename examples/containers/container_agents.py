"""Ports that learn: shapers, manager and algorithm of the container scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from containers import Call, Config, PortState, Snapshots, config_of
from torch import nn

from tmrl_core.multiagent import (
    DQN,
    ActionShaper,
    AgentManager,
    KStepExperienceShaper,
    StateShaper,
    Trajectory,
)

SHARES = tuple(share / 5 for share in range(-5, 6))
"""Model actions: shares of the containers that can be loaded (negative) or put ashore (positive)."""
AHEAD = 2
"""Number of a ship's next ports in a state."""


def state_size(config: Config) -> int:
    """Return the number of features of a state."""
    return 5 + len(config.ports) + 4 * (1 + AHEAD)


class CallStateShaper(StateShaper):
    """Makes the state of a call: time, ship, the port, and the next ports of the ship as of the latest snapshot.

    An action mask excludes loading where nothing can be loaded, and putting ashore where the ship has no empty ones.

    Args:
        config: the scenario.
    """

    def __init__(self, config: Config) -> None:
        self._unit = max(1.0, 10 * config.orders / len(config.ports))  # so that the features are around 1
        self._ticks = config.ticks
        self._one_hot = {port.name: [float(port is other) for other in config.ports] for port in config.ports}
        self._routes = {ship.name: ship.route for ship in config.ships}

    def _shape(self, decision_event: Call, snapshot_list: Snapshots) -> dict[str, np.ndarray]:
        event, ports, route = decision_event, snapshot_list.ports, self._routes[decision_event.ship]
        features = [event.empty, event.dischargeable, event.free, *_figures(ports[event.agent])]
        at = route.index(event.agent)
        for step in range(1, AHEAD + 1):
            features += _figures(ports[route[(at + step) % len(route)]])
        scaled = [value / self._unit for value in features]
        state = [event.tick / self._ticks, len(route) / len(ports), *self._one_hot[event.agent], *scaled]
        loadable, dischargeable = event.loadable > 0, event.dischargeable > 0
        mask = [loadable if share < 0 else dischargeable if share > 0 else True for share in SHARES]
        return {"state": np.array(state, np.float32), "action_mask": np.array(mask, np.int8)}


def _figures(states: Sequence[PortState]) -> list[float]:
    """Return a port's empty containers, those that return, its orders of ten ticks, and its present shortage."""
    latest, recent = states[-1], states[-10:]
    return [latest.empty, latest.returning, 10 * sum(state.orders for state in recent) / len(recent), latest.shortage]


class ShareActionShaper(ActionShaper):
    """Makes a number of containers from a share of the valid range."""

    def _shape(self, model_action: Any, decision_event: Call, snapshot_list: Snapshots) -> int:
        share = SHARES[int(model_action)]
        return round(share * (decision_event.loadable if share < 0 else decision_event.dischargeable))


class ShortageExperienceShaper(KStepExperienceShaper):
    """Rewards a decision with minus the shortage of the ticks that follow it, summed over all ports.

    The reward is delayed: containers that a ship takes along are missing, or at hand, ticks later and elsewhere.

    Args:
        ticks: number of these ticks.
        unit: orders that make a reward of -1.
        gamma: discount factor of one decision of a port.
        k: number of rewards in a return.
    """

    def __init__(self, *, ticks: int = 4, unit: float = 100.0, gamma: float = 0.9, k: int = 3) -> None:
        super().__init__(gamma=gamma, k=k)
        self._ticks, self._unit = ticks, unit

    def _rewards(self, trajectory: Trajectory, snapshot_list: Snapshots) -> Sequence[float]:
        lost = [sum(state.shortage for state in tick) for tick in zip(*snapshot_list.ports.values(), strict=True)]
        ticks = (decision.event.tick + 1 for decision in trajectory)
        return [-sum(lost[tick : tick + self._ticks]) / self._unit for tick in ticks]


class PortManager(AgentManager):
    """The ports' manager.

    Args:
        scenario: configuration of the environment, as `ContainerInventory` takes it.
        experience: keyword arguments of `ShortageExperienceShaper`.
        arguments: of `AgentManager`.
    """

    def __init__(
        self,
        *arguments: Any,
        scenario: Config | Mapping[str, Any] | None = None,
        experience: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__(
            *arguments,
            state_shaper=CallStateShaper(config_of(scenario)),
            action_shaper=ShareActionShaper(),
            experience_shaper=ShortageExperienceShaper(**(experience or {})),
            **keywords,
        )

    def score(self, performance: Any) -> float:
        """Return the percentage of the orders that found a container."""
        return 100.0 * float(performance["fulfilment"])


def dqn(
    scenario: Config | Mapping[str, Any] | None = None, *, width: int = 64, lr: float = 1e-3, target_interval: int = 100
) -> DQN:
    """Make the algorithm of a policy.

    Args:
        scenario: configuration of the environment.
        width: of both hidden layers.
        lr: learning rate.
        target_interval: updates from one copy of the target network to the next.
    """
    network = nn.Sequential(
        nn.Linear(state_size(config_of(scenario)), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, len(SHARES)),
    )
    optimizer = (torch.optim.Adam, {"lr": lr})
    return DQN({"q": network}, optimizer, {"q": nn.SmoothL1Loss}, {"target_interval": target_interval})
