"""The actor of a learner whose episodes are played by workers behind a Server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.errors import ConfigError, LinkClosedError
from tmrl_core.multiagent.trajectory import Experiences
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.training.interface import TrainingInterface

if TYPE_CHECKING:
    from tmrl_core.config import Config
    from tmrl_core.multiagent.manager import AgentManager
    from tmrl_core.multiagent.round_episodes import RoundEpisodes
    from tmrl_core.multiagent.training import MultiAgentTraining


class RemoteActor:
    """Let the workers of a Server play a round of episodes, as `Actor` plays one episode.

    Args:
        rounds: training object that collects the rounds.

    Attributes:
        interface: interface to the Server; None: there is no link.
    """

    def __init__(self, rounds: MultiAgentTraining) -> None:
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


@contextlib.contextmanager
def remote_actor(config: Config, manager: AgentManager, *, episodes_per_round: int = 1) -> Iterator[RemoteActor]:
    """Connect to the Server of a configuration as its trainer, for a `Learner` in this script.

    At the end, the workers are notified of the run's end.

    Args:
        config: network, run name, and the settings of `trainer.lockstep` about workers.
        manager: the learner's manager, in mode `training`.
        episodes_per_round: episodes that all workers together play in one `roll_out`.

    Yields:
        The actor, for `Learner(manager, actor)`.
    """
    from tmrl_core.metrics.recorder import Recorder
    from tmrl_core.multiagent.training import MultiAgentTraining
    from tmrl_core.networking.transports.selection import link_settings
    from tmrl_core.training.remote.linked_training import LinkedTraining
    from tmrl_core.training.remote.run_shutdown import RunShutdown

    lockstep = config.trainer.lockstep
    rounds = MultiAgentTraining(
        manager,
        episodes_per_round=episodes_per_round,
        grace_s=lockstep.grace_s,
        min_workers=lockstep.min_workers,
    )
    linked = LinkedTraining(link_settings(config), config, config.run.name, lambda training: None)
    interface = linked.open(rounds, Recorder([]))
    try:
        rounds.actor.interface = interface
        yield rounds.actor
        RunShutdown(rounds, interface).finish_workers()
    finally:
        linked.close()
