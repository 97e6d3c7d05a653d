"""Synchronous collection under faults: it goes on, or both sides end with their error; it never stands still.

The ratio, the worker's watch and the trainer's check are the real ones (`rate_limit.py`, `actor/rollout/starvation.py`,
`training/remote/interface.py`); the loops around them, which wait for real time, are played here as events
(`actor/rollout/synchronous_rule.py`, `training/loops/training_loop.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from tests.networking.simulation.actors import Trainer, Worker
from tests.networking.simulation.memory import Memory
from tests.networking.simulation.network import Violation
from tests.networking.simulation.scenario import Core, Scenario
from tmrl_core.actor.rollout.starvation import StarvationWatch
from tmrl_core.errors import StarvedError
from tmrl_core.networking.protocol.messages import Progress
from tmrl_core.networking.relay import RelaySettings
from tmrl_core.networking.trainer import Member, TrainerConnection, TrainerState
from tmrl_core.networking.worker import WorkerConnection
from tmrl_core.rate_limit import RateLimit
from tmrl_core.training.remote.interface import RemoteInterface

EVENTS = 1_000
SETTLED_S = 120.0
"""Simulated seconds after the last fault within which training has gone on, or everybody has ended with the error."""
LINKS_ONLY = (
    "worker's link cut",
    "trainer's link cut",
    "worker's link silent",
    "trainer's link silent",
    "Server restarted",
    "trainer restarted",
    "link slow",
    "policies published",
)
"""Faults that lose no sample: whoever has enough of them goes on."""
PROCESSES = ("worker killed", "worker joined", "trainer without its state", "trainer takes nothing")


class _Counts(NamedTuple):
    policies_published: int


class LinkView:
    """What `RemoteInterface` asks of a `TrainerLink`."""

    def __init__(self, trainer: Trainer) -> None:
        self._process = trainer

    @property
    def trainer(self) -> TrainerState:
        """As `TrainerLink.trainer`."""
        return self._process.state

    @property
    def waits(self) -> list[tuple[str, str]]:
        """As `TrainerLink.waits`."""
        state = self.trainer
        return [(member.name, state.waits.get(stream, "")) for stream, member in state.members.items()]

    @property
    def members(self) -> list[Member]:
        """As `TrainerLink.members`."""
        return list(self.trainer.members.values())

    @property
    def settings(self) -> RelaySettings:
        """Of `TrainerLink.settings`, the life of a silent link."""
        return self._process.network.settings

    @property
    def counts(self) -> _Counts:
        """As `TrainerLink.counts`."""
        return _Counts(self.trainer.published)

    def report(self, progress: Progress) -> None:
        """As `TrainerLink.report`."""
        self._process.report(progress)


class Pace:
    """The worker's side: `SynchronousRule`, a slice of steps an event."""

    def __init__(self, scenario: SynchronousScenario, worker: Worker) -> None:
        self.scenario = scenario
        self.worker = worker
        self.limit = RateLimit(scenario.max_steps_per_update)
        self.models = 0
        self.collected = 0
        self.waiting = 0
        """Steps in the buffer."""
        self.seen = 0
        self.error = ""
        self._watch: StarvationWatch | None = None
        self.turn()

    @property
    def steps(self) -> int:
        """`Uplink.steps_that_count`."""
        sender = self.worker.sender
        return self.collected - sender.samples_dropped - sender.samples_refused

    @property
    def allowed(self) -> bool:
        """As `SynchronousRule`."""
        return self.limit.allows(self.steps + 1, 1 + self.models)

    def turn(self) -> None:
        """Collect, or wait for models."""
        worker, network = self.worker, self.scenario.network
        if not worker.alive:
            return
        network.note(5, worker.uid)
        delay = 0.05 + 0.1 * network.random.random()
        if self.allowed:
            self._watch = None
            self._say("")
            steps = int(min(self.limit.most(1 + self.models) - self.steps, network.random.randint(1, 8)))
            self.collected += steps
            self.waiting += steps
            if self.waiting >= 6:
                self._send()
            network.at(delay, self.turn)
            return
        self._send()
        if self._watch is None:
            self._watch = StarvationWatch(1.0, clock=lambda: network.now)
        models = worker.state.versions_published - self.seen
        self.seen += models
        self.models += models
        queued = worker.sender.held_samples + self.waiting
        if self._watch.starving(worker.state.progress, worker.state.versions_published, queued):
            self.error = f"{self.steps} steps, {self.models} models"
            worker.begin_to_end()
            worker.end_in_order()
            return
        self._say("" if queued or models else f"{self.steps} steps, {self.models} models")
        network.at(delay, self.turn)

    def _send(self) -> None:
        if self.waiting and self.worker.make(self.waiting, 10, False):
            self.waiting = 0

    def _say(self, text: str) -> None:
        if text != self.worker.state.waits:
            self.worker.state.waits = text
            if self.worker.end is not None and isinstance(self.worker.end.connection, WorkerConnection):
                self.worker.end.connection.say_waits()


class Training:
    """The trainer's side: `TrainingOffline`, some updates an event."""

    def __init__(self, scenario: SynchronousScenario, trainer: Trainer) -> None:
        self.scenario = scenario
        self.trainer = trainer
        network = scenario.network
        self.interface = RemoteInterface(cast(Any, LinkView(trainer)), clock=lambda: network.now)
        self.error = ""
        self._waits_for = ""
        self._closing_since = 0.0
        self.turn()

    def _lack(self) -> str:
        memory, scenario = self.trainer.memory, self.scenario
        if memory.samples == 0:
            return "no sample has arrived yet"
        if memory.samples < scenario.start_training:
            return f"{memory.samples} of {scenario.start_training}"
        if memory.updates / memory.samples > scenario.updates_per_sample:
            return f"{memory.updates} updates / {memory.samples} samples"
        return ""

    def _report(self) -> None:
        memory = self.trainer.memory
        self.interface.report(
            Progress(
                samples=memory.samples,
                updates=memory.updates,
                start_training=self.scenario.start_training,
                lack=self._waits_for,
            )
        )

    def turn(self) -> None:
        """Train, or wait for samples."""
        trainer, network = self.trainer, self.scenario.network
        if not trainer.alive:
            return
        if self.error:
            self._close()
            return
        trainer.work()
        network.note(4, trainer.memory.samples)
        if not trainer.idle:
            self._train()
        network.at(0.05 + 0.1 * network.random.random(), self.turn)

    def _train(self) -> None:
        trainer, memory = self.trainer, self.trainer.memory
        for _ in range(10):
            lack = self._lack()
            if lack:
                if lack != self._waits_for:
                    self._waits_for = lack
                self._report()
                try:
                    self.interface._check_starvation()
                except StarvedError as exc:
                    self.error = str(exc)
                    self._closing_since = self.scenario.network.now
                return
            self._waits_for = ""
            memory.updates += 1
            if memory.updates % self.scenario.interval == 0:
                self.scenario.publish(trainer)
                trainer.checkpoint()
                self._report()
        self._report()

    def _close(self) -> None:
        """`TrainerLink.close`: what is still to be said goes out first."""
        trainer, network = self.trainer, self.scenario.network
        connection = trainer.end.connection if trainer.end is not None and trainer.end.up else None
        said = not isinstance(connection, TrainerConnection) or connection.all_sent
        if said or network.now - self._closing_since > 5.0:
            trainer.close()
        else:
            network.at(0.1, self.turn)


class SynchronousScenario(Scenario):
    """Workers that keep a ratio of steps to models, and a trainer that keeps one of updates to samples.

    Attributes:
        surplus: how many models a trainer can make of what the workers may collect with one; below 1 they starve.
        links_only: whether the faults are such that nothing is lost; then, and with a surplus, nobody may give up.
    """

    def __init__(self, seed: int, core: Core | None = None) -> None:
        super().__init__(seed, core)
        random = self.random
        self.bad = self.drops = 0.0
        self.durable = True
        self.queue_bytes = 1 << 20
        self.links_only = random.random() < 0.6
        self.surplus = random.choice((0.4, 1.25, 1.25, 3.0))
        self.count = random.randint(1, 4)
        self.max_steps_per_update = random.choice((4.0, 10.0, 12.5))
        self.interval = random.choice((5, 20))
        self.updates_per_sample = self.surplus * self.interval / (self.count * self.max_steps_per_update)
        self.start_training = random.choice((0, int(0.7 * self.count * self.max_steps_per_update)))
        self.kinds = [*LINKS_ONLY] if self.links_only else [*LINKS_ONLY, *PROCESSES]
        random.shuffle(self.kinds)
        self.others = self.kinds
        self._pending = list(self.kinds[:5])
        self.paces: list[Pace] = []
        self.trainings: list[Training] = []

    def new_worker(self, name: str | None = None, peer: bytes | None = None) -> Worker:
        """Start a worker process that collects."""
        worker = super().new_worker(name, peer)
        self.paces.append(Pace(self, worker))
        return worker

    def _work(self, trainer: Trainer) -> None:
        self.trainings.append(Training(self, trainer))

    @property
    def ended(self) -> bool:
        """Whether a trainer has given up."""
        return any(training.error for training in self.trainings)

    def play(self) -> None:
        """Play it.

        Raises:
            Violation: it stood still without its error, or gave up for no reason.
        """
        network = self.network
        self.new_trainer(Memory(self.durable))
        for _ in range(self.count):
            self.new_worker()
        network.at(1.0, self._fault)
        while (network.events < EVENTS or len(self.result.faults) < 5) and not self.gave_up():
            network.step()
            if network.now > 300:
                break
        self.end_faults()
        training = self.trainings[-1]
        updates = training.trainer.memory.updates + 5 * self.interval
        settled = network.run(
            lambda: self.trainings[-1].trainer.memory.updates >= updates or self.everybody_gave_up(), SETTLED_S
        )
        errors = self.errors()
        if not settled:
            raise Violation(
                f"training stands still: {training.trainer.memory.updates} updates of {updates}, "
                f"{training.trainer.memory.samples} samples, lack {training.trainer.state.progress}, waits "
                f"{training.trainer.state.waits}; who gave up: {errors}"
            )
        # Of the models that a trainer had published before it was killed a worker may have missed some, and does not
        # get them again: only a surplus makes up for that.
        enough = 3 if self.result.faults["trainer restarted"] else 1
        if errors and self.links_only and self.surplus >= enough:
            raise Violation(f"gave up for no reason: {errors[0]}")

    def errors(self) -> list[str]:
        """Of all who gave up."""
        told = [training.error for training in self.trainings] + [pace.error for pace in self.paces]
        return [error for error in told if error]

    def gave_up(self) -> bool:
        """Whether anybody did."""
        return bool(self.errors())

    def everybody_gave_up(self) -> bool:
        """Whether nobody is left who waits."""
        if not self.ended:
            return False
        # A worker that was away when the trainer gave up knows of none, and waits for the next one.
        return not any(pace.worker.alive and pace.worker.state.progress.lack for pace in self.paces)

    def end_faults(self) -> None:
        """No more faults: somebody of each role is there, and all links are good."""
        self.peace = True
        network = self.network
        if not network.server_up:
            network.start_server()
        if not self.any_trainer and not self.ended:
            self.new_trainer(self.memories[0])
        if not self.living() and not self.gave_up():
            self.new_worker()
        for trainer in self.trainers:
            trainer.idle = False
        for client in (*self.workers, *self.trainers):
            client.route.mend()
            client.route.heal()


def simulate_synchronous(seed: int) -> SynchronousScenario:
    """Play one seed; a violation is in the result's `failure`."""
    scenario = SynchronousScenario(seed)
    try:
        scenario.play()
    except Violation as exc:
        scenario.result.failure = str(exc)
    scenario.fill()
    return scenario
