"""Training of many agents over TLS: rounds of `TrainingLockstep` that workers play, and the learner of a manager."""

# Theory of operation
#
# `MultiAgentTraining` is a lockstep loop whose round is one `Learner.run_episode` with a `RemoteActor`. Assignments,
# stalls, restarts, evaluations, records and checkpoints are those of lockstep; what is trained, and in what order, is
# the learner's. The remote actor calls back into `collect`, which returns when the round is complete.
#
#     loop:    _collect_and_train -> learner.run_episode -> actor.roll_out -> loop.collect -> workers
#     learner: store_experiences -> train -> update_epsilon, on the joined experiences
#
# The first stream of a round gets the round's seed as it is, the others seeds derived from it, so one worker plays the
# episodes that an `Actor` in the learner's process would play.
#
# State in checkpoints: the policies by name, the pools by the first agent that uses them, the explorer, all generators,
# and the counters of lockstep. An unfinished round is collected again. The constructor seeds the manager, and a
# checkpoint then replaces the state of its generators, so the order of the two matters. On resume agents may be added
# (`follow_memory`).
#
# A round in which every update of some agent was skipped counts as one bad round; too many in a row end the run, as bad
# updates do for one agent.

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.config.descriptions import described_by
from tmrl_core.config.sections import LockstepSection, TrainerSection
from tmrl_core.errors import ConfigError, LinkClosedError
from tmrl_core.multiagent.agent import mean_metrics
from tmrl_core.multiagent.experiences import MAX_EPISODE_BYTES
from tmrl_core.multiagent.learner import EpisodeResult, Learner, episode_seeds
from tmrl_core.multiagent.manager import AgentManager
from tmrl_core.multiagent.remote import RemoteActor
from tmrl_core.multiagent.round_episodes import RoundEpisodes
from tmrl_core.training.checkpointable import StateOwner, parameters_of
from tmrl_core.training.interface import TrainingInterface
from tmrl_core.training.loops.evaluation import mean_of
from tmrl_core.training.loops.lockstep import TrainingLockstep
from tmrl_core.training.updates.skipped_updates import SKIPPED
from tmrl_core.training.value_types import Batch, Device, Metrics, State

if TYPE_CHECKING:
    from tmrl_core.config import Config


MOST_NAMED = 100
"""Number of policies or agents above which they have no metrics of their own: 2,000 policies take 316 kB a round, and a
page with 8,000 curves shows nothing."""


class ManagedAgents(StateOwner):
    """The agents of a manager, as the agent of a training loop.

    Args:
        manager: a manager in mode `training`.
    """

    type_id = "managed_agents"
    type_version = 1

    def __init__(self, manager: AgentManager) -> None:
        self.manager = manager
        self.policies = dict(manager.policies)
        first = {id(agent.experience_pool): name for name, agent in reversed(manager.agents.items())}
        self.pools = {name: manager.agents[name].experience_pool for name in reversed(first.values())}
        """Pools by the first agent that has them."""
        self.explorer = manager.explorer

    transient = frozenset({"manager"})

    def train(self, batch: Batch) -> Metrics:
        """Refuse: `Learner.run_episode` trains the agents."""
        raise NotImplementedError("many agents are trained by their learner")

    def get_actor(self) -> PolicyBundle:
        """Return the policies of all agents with their exploration parameters."""
        return PolicyBundle(self.manager.get_models(), self.explorer.epsilons)


@described_by(TrainerSection, LockstepSection)
class MultiAgentTraining(TrainingLockstep):
    """Train the agents of a manager with episodes that workers play.

    A round is one `Learner.run_episode` with a `RemoteActor`: publish models and exploration parameters, collect
    episodes, store the experiences, train, update the exploration.

    Args:
        manager: a manager in mode `training`, or a function that makes one.
        episodes_per_round: episodes that all workers together play with one version of the policies.
        seed: seeds the manager, and each round's first episode; None: neither is seeded.
        max_episode_bytes: maximum size of the experiences of one episode.
        args, kwargs: as for `TrainingLockstep`, without spaces, memory and agent.

    Raises:
        ConfigError: the manager is not in mode `training`.
    """

    type_id = "multi_agent"
    type_version = 1

    def __init__(
        self,
        manager: AgentManager | Callable[[], AgentManager],
        epochs: int = 10,
        rounds: int = 50,
        *,
        episodes_per_round: int = 1,
        seed: int | None = None,
        max_episode_bytes: int = MAX_EPISODE_BYTES,
        **kwargs: Any,
    ) -> None:
        self.manager = manager if isinstance(manager, AgentManager) else manager()
        if self.manager.mode != "training":
            raise ConfigError(f"the trainer needs a manager in mode 'training', this one is in {self.manager.mode!r}")
        self.actor = RemoteActor(self)
        # The constructor seeds the manager, and a checkpoint then replaces the state of its generators.
        self.learner = Learner(self.manager, self.actor, None if seed is None else episode_seeds(seed))
        self.max_episode_bytes = max_episode_bytes
        self.round_seed: int | None = None
        """Seed of the first episode of the present round."""
        self._of_round: dict[str, float] = {}
        super().__init__(
            (None, None),
            None,
            lambda **spaces: ManagedAgents(self.manager),
            epochs,
            rounds,
            episodes_per_round=episodes_per_round,
            seed=seed,
            **kwargs,
        )

    transient: ClassVar[frozenset[str]] = parameters_of(__init__) | {
        "manager",
        "actor",
        "learner",
        "round_seed",
        "_of_round",
    }

    def make_round_memory(self, *, nb_steps: int, device: Device) -> RoundEpisodes:
        """Return the memory of the episodes of a round."""
        return RoundEpisodes(
            self.manager.agents, self.manager.score, max_episode_bytes=self.max_episode_bytes, clock=self.clock
        )

    def follow_memory(self) -> None:
        """Add agents and policies that are new since a checkpoint to the state of the next ones."""
        self.agent = ManagedAgents(self.manager)
        self._follow_parts()

    def _seed_of(self, stream: bytes, index: int) -> int | None:
        seed = self.round_seed
        return seed if seed is None or index == 0 else episode_seeds(seed)(index)

    def _collect_and_train(self, interface: TrainingInterface) -> bool:
        self.actor.interface = interface
        self.learner.episodes = self.rounds_done
        before = self._counts()
        try:
            result = self.learner.run_episode()
        except LinkClosedError:
            if interface.stopping:
                return False
            raise
        self._note(result, before, time.perf_counter() - self.actor.collected_s)
        return True

    def _counts(self) -> list[tuple[int, int]]:
        """Return the numbers of updates and of skipped updates of each agent."""
        return [(agent.updates, agent.updates_skipped) for agent in self.manager.agents.values()]

    def _note(self, result: EpisodeResult, before: list[tuple[int, int]], training_s: float) -> None:
        """Count the updates of a round, and keep its metrics.

        Args:
            result: of the learner.
            before: result of `_counts` before the round.
            training_s: seconds after the collection.

        Raises:
            BadUpdatesError: all updates of some agent were skipped in too many rounds in a row.
        """
        made = [(now[0] - then[0], now[1] - then[1]) for now, then in zip(self._counts(), before, strict=True)]
        updates = sum(number for number, _ in made)
        self.updates_skipped += sum(skipped for _, skipped in made)
        useless = any(number and number == skipped for number, skipped in made)
        self._bad.note(self.rounds_done + 1, {SKIPPED: True} if useless else {}, None)
        statistics = self.statistics
        statistics.add(policy_metrics(result.metrics))
        statistics.updates = updates
        statistics.training_s += training_s
        if updates:
            self._threads.note(updates, training_s)
        self.total_updates += updates
        self.rounds_done += 1
        self._of_round = {"epsilon": mean_of(list(result.epsilons.values()))} if result.epsilons else {}

    def _row(self) -> State:
        memory: RoundEpisodes = self.memory
        return {
            **super()._row(),
            "memory_len": sum(map(len, self.agent.pools.values())),
            **self._of_round,
            **agent_metrics(memory.experiences_by_agent()),
        }


def policy_metrics(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of each policy under its name; of more than `MOST_NAMED` policies, the means of all."""
    kept = {policy: {name: value for name, value in own.items() if name != SKIPPED} for policy, own in metrics.items()}
    if len(kept) > MOST_NAMED:
        return {f"train/{name}": value for name, value in mean_metrics(list(kept.values())).items()}
    return {f"train/{policy}/{name}": value for policy, own in kept.items() for name, value in own.items()}


def agent_metrics(experiences: Mapping[str, int]) -> dict[str, int]:
    """Return the number of each agent's experiences under its name; of more than `MOST_NAMED` agents, the sum."""
    if len(experiences) > MOST_NAMED:
        return {"rollout/experiences": sum(experiences.values())}
    return {f"rollout/experiences/{agent}": rows for agent, rows in experiences.items()}


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
