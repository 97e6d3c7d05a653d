"""One policy for many sessions: all of them share one copy of the weights."""

# Theory of operation
#
# All sessions of an agent share one actor. The sender thread loads new weights into a second
# actor; the event loop swaps the two, between two steps, so no step waits for a load and none acts with half a version.
#
# The policy is a `PolicyRunner`, whose random generator all sessions share. Each session keeps its part of the acting
# state (`carried`: recurrent state, ticks, the weights that acted last), lends it for an action, and keeps the old one
# if the action fails. An actor that keeps a state of its own between steps (it overrides `begin_episode` and is no
# `BatchActor`) is refused: the sessions would act with each other's.

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tmrl_core.actor.rollout.runner import PolicyRunner, refuse_own_state
from tmrl_core.networking.protocol.messages import Blob, Version


class SharedPolicy(PolicyRunner):
    """A policy that acts for many sessions, one at a time, and a second actor into which new weights are loaded.

    Each session keeps its acting state (`carried`), and lends it to the policy for an action. Loading may take long and
    may run in another thread, while the first actor acts. `adopt` then switches to the second actor. Only the acting
    thread may call it, and only while no load runs.

    Args:
        make_actor, observation_space, action_space, device, seed: see `PolicyRunner`.

    Raises:
        ConfigError: the result of `make_actor` is not an actor, or keeps an internal state within an episode.

    Attributes:
        version: version of the acting weights.
        explores: False: the weights come from a file, without the trainer's exploration parameters.
    """

    def __init__(
        self,
        make_actor: Callable[..., Any],
        observation_space: Any,
        action_space: Any,
        *,
        device: Any = "cpu",
        seed: int | None = None,
    ) -> None:
        super().__init__(make_actor, observation_space, action_space, device=device, seed=seed)
        refuse_own_state(self.actor, "several sessions")
        seed = None if seed is None else seed + 1  # otherwise both actors would explore equally
        self._spare = PolicyRunner(make_actor, observation_space, action_space, device=device, seed=seed)
        self.version: Version = (0, 0)
        self.explores = True
        self._exploration: Mapping[str, float] = {}

    def load_policies(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> None:
        """Load the only policy of a version and its exploration parameters, for `adopt`; see `PolicyTarget`."""
        # The spare actor holds the parameters of two versions ago. A message without parameters means those of the
        # previous version.
        exploration = exploration or self._exploration
        self._spare.load_policies(policies, exploration)
        self._exploration = exploration

    def load_file(self, path: Path) -> None:
        """Load weights that `PolicyFiles` has stored, and act with them. Raise the errors of the actor's `load`."""
        super().load_file(path)
        self.explores = False

    def adopt(self, version: Version) -> None:
        """Act with the weights loaded last, which have this version."""
        self.actor, self._spare.actor = self._spare.actor, self.actor
        self.version = version
        self.explores = True
