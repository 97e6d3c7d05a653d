"""One policy for many runners: all sessions share one copy of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tmrl_core.actor.module import ActorModule, BatchActor
from tmrl_core.actor.rollout.runner import PolicyRunner, only_policy
from tmrl_core.errors import ConfigError
from tmrl_core.networking.protocol.messages import Blob, Version


class SharedPolicy:
    """An actor that all runners share, and a second one into which new weights are loaded.

    Loading may take long and may run in another thread, while the first actor acts. `adopt` then switches all runners
    to the second actor. Only the acting thread may call it, and only while no load runs. Each runner has its own
    recurrent state and generator. An actor with an internal generator is shared together with that generator.

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
        self._acting, self._loading = (
            PolicyRunner(
                make_actor,
                observation_space,
                action_space,
                device=device,
                seed=None if seed is None else seed + number,  # otherwise both actors would explore equally
            )
            for number in range(2)
        )
        actor = self._acting.actor
        if type(actor).begin_episode is not ActorModule.begin_episode and not isinstance(actor, BatchActor):
            raise ConfigError(
                f"{type(actor).__name__} overrides begin_episode, so it keeps a state between steps that several "
                "sessions cannot share. Derive it from tmrl_core.actor.BatchActor, which is handed its state at each "
                "step."
            )
        self.version: Version = (0, 0)
        self.explores = True
        self._spaces = observation_space, action_space
        self._exploration: Mapping[str, float] = {}

    @property
    def actor(self) -> ActorModule:
        """Return the acting actor."""
        return self._acting.actor

    def runner(self) -> PolicyRunner:
        """Return a new runner of the actor. Call `refresh` with it before each action."""
        return PolicyRunner(lambda **_: self._acting.actor, *self._spaces, device=self._acting.device)

    def refresh(self, runner: PolicyRunner) -> None:
        """Make a runner act with the weights adopted last. Its episode continues."""
        if runner.actor is not self._acting.actor:
            runner.actor = self._acting.actor

    def try_action(self, obs: Any) -> Any:
        """Return a deterministic action for an observation, from a runner of its own.

        Raises:
            ConfigError: the policy cannot act in its action space.
        """
        runner = self.runner()
        runner.reset()
        return runner.decide(obs, True, True)[0]

    # --- weights ------------------------------------------------------------------------------------------------------

    def load(self, tag: str, data: bytes) -> None:
        """Load weights, for `adopt`.

        Raises:
            WeightsError: the weights do not fit.
        """
        self._loading.load(tag, data)
        # The spare actor holds the parameters of two versions ago. A message without parameters means those of the
        # previous version.
        if self._exploration:
            self._loading.set_exploration(self._exploration)

    def load_policies(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> None:
        """Load the only policy of a version and its exploration parameters, for `adopt`; see `PolicyTarget`."""
        blob = only_policy(policies)
        self.load(blob.format, blob.data)
        if exploration:
            self.set_exploration(exploration)

    def file_content(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> bytes:
        """Return the weights with the exploration parameters, for `load_file`."""
        return self._loading.file_content(policies, exploration)

    def load_file(self, path: Path) -> None:
        """Load weights that `PolicyFiles` has stored, and act with them. Raise the errors of the actor's `load`."""
        self._loading.load_file(path)
        self.adopt(self.version)
        self.explores = False

    def set_exploration(self, parameters: Mapping[str, float]) -> None:
        """Explore with these parameters as soon as the loaded weights are adopted."""
        self._exploration = dict(parameters)
        self._loading.set_exploration(parameters)

    def adopt(self, version: Version) -> None:
        """Act with the weights loaded last, which have this version."""
        self._acting, self._loading = self._loading, self._acting
        self.version = version
        self.explores = True
