"""The actor of a learner whose episodes are played by workers behind a Server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.errors import ConfigError, LinkClosedError
from tmrl_core.multiagent.trajectory import Experiences
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.training.interface import TrainingInterface

if TYPE_CHECKING:
    from tmrl_core.multiagent.round_episodes import RoundEpisodes


class Rounds(Protocol):
    """A training object that collects rounds of episodes, see `MultiAgentTraining`."""

    round_seed: int | None
    memory: Any

    def collect(self, interface: TrainingInterface, policy: PolicyBundle, /) -> bool:
        """Publish policies, and collect a round with them. False: collection was stopped before the end."""


class RemoteActor:
    """Let the workers of a Server play a round of episodes, as `Actor` plays one episode.

    Args:
        rounds: training object that collects the rounds.

    Attributes:
        interface: interface to the Server; None: there is no link.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.interface: TrainingInterface | None = None
        self._models: Mapping[str, Blob] | None = None
        self._epsilons: Mapping[str, float] = {}
        self.collected_s = 0.0
        """Time at which the last round was complete, on the clock of `time.perf_counter`."""

    def roll_out(
        self,
        models: Mapping[str, Blob] | None = None,
        epsilons: Mapping[str, float] | None = None,
        seed: int | None = None,
    ) -> tuple[dict[str, Any], Experiences]:
        """Publish models and exploration parameters as one version, and collect a round of episodes with it.

        Workers that leave, hang or are slow delay a round by at most `grace_s`: others play their episodes.

        Args:
            models: by policy name; None: those of the last call.
            epsilons: by agent id; None: those of the last call.
            seed: seed of the first worker's first episode; other workers get seeds derived from it. None: workers
                continue with their generators.

        Returns:
            The performance by worker, as a list if a worker has played several episodes; and the experiences by agent,
            joined in the order of the workers' names.

        Raises:
            LinkClosedError: training was stopped within the round.
            StarvedError: workers and trainer wait for each other.
            NetworkError: the Server refuses this trainer permanently.
            ConfigError: the first call has no models, or there is no link.
        """
        self._models = models if models is not None else self._models
        self._epsilons = epsilons if epsilons is not None else self._epsilons
        if self._models is None:
            raise ConfigError("the first roll_out needs models: workers have none yet")
        if self.interface is None:
            raise ConfigError("there is no link to a Server: take the actor of `with remote_actor(...)`, or a Trainer")
        self._rounds.round_seed = seed
        if not self._rounds.collect(self.interface, PolicyBundle(self._models, self._epsilons)):
            raise LinkClosedError("training was stopped within the round; its episodes are dropped")
        self.collected_s = time.perf_counter()
        memory: RoundEpisodes = self._rounds.memory
        return memory.joined()
