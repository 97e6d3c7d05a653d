"""One action of an agent at the gateway's start, so that a policy that cannot act fails there and not in a session."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium

from tmrl_core.envs.json_spaces import action_writer
from tmrl_core.errors import ConfigError, TmrlError


def try_action(
    name: str,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    act: Callable[[Any], Any],
) -> None:
    """Choose one action, for a random observation, and write it as JSON.

    Args:
        name: of the agent.
        observation_space, action_space: of its clients.
        act: returns the action for an observation.

    Raises:
        ConfigError: the agent cannot act.
    """
    observations = copy.deepcopy(observation_space)
    observations.seed(0)
    try:
        action_writer(action_space)(act(observations.sample()))
    except ConfigError as exc:
        raise ConfigError(f"gateway.agents.{name}: {exc}") from exc
    except TmrlError:
        # Another observation may allow an action, and later weights may be finite.
        return
    except Exception as exc:
        raise ConfigError(
            f"gateway.agents.{name}: its policy cannot act: observations are of {observation_space}, actions of "
            f"{action_space}, and its first action failed with {type(exc).__name__}: {exc}. Choose a policy for these "
            "spaces, or correct its act"
        ) from exc
