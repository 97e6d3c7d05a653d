"""One seed: a profile drawn from it, a while of faults, a while of peace, and the checks."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Literal
from unittest.mock import patch

import numpy as np

from tests.networking.simulation.actors import Client, Trainer, Viewer, Worker, held
from tests.networking.simulation.checker import Checker, queued_bytes
from tests.networking.simulation.hostile import (
    ANNOUNCED_BYTES,
    ANNOUNCED_BYTES_PER_S,
    LINKS,
    OF_A_THIEF_BYTES,
    OF_ALL_BYTES,
    STALLED_S,
    STOLEN,
    Gains,
    MeteredRelay,
    Thief,
)
from tests.networking.simulation.memory import Memory
from tests.networking.simulation.network import Network, Route, Violation
from tests.networking.simulation.seals import TrainerMachine, WorkerMachine
from tests.networking.simulation.spools import Disk, SimulatedDiskSpool
from tmrl_core.actor.policies.weights import encode_arrays, with_bfloat16_matrices
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.framing import message_bytes
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, Progress
from tmrl_core.networking.relay import Relay, RelaySettings
from tmrl_core.networking.relay.stream_budget import StreamBudget
from tmrl_core.networking.relay.streams import RelayStream
from tmrl_core.networking.spools.spool import MemorySpool, Spool
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker.seal import Mode

Weights = Literal["whole", "delta", "bfloat16"]
_WEIGHTS = np.random.default_rng(0).standard_normal(40_000, np.float32)
"""Each packed policy is a little different from the one before it, as policies are."""

EVENTS = 1_000
"""A seed has at least so many."""
KINDS = 5
"""A seed has at least so many kinds of fault."""
TOLD = 20
"""Workers that are told at most when they have not caught up."""
CAUGHT_UP_S = 45.0
"""Simulated seconds after the last fault within which everybody has caught up, however much they hold."""
LINKED_S = 25.0
"""Simulated seconds after the last fault within which the last link is open.

A dial that went into a black hole takes 10 s to fail and the longest back-off is 4 s; silence is noticed after 10 s.
"""
ROUND_S = 0.11
"""Longest time in which one window of messages is moved on mended links: two times the latency with jitter, the time
until the trainer works again, and a policy on its way."""
STEADY_S = 25.0
"""Simulated seconds without faults beside a thief, longer than a link may make no progress."""
ACKNOWLEDGED_S = 4.0
"""Simulated seconds within which a sample is then acknowledged, whatever the thief does."""
_AUDIT_EVENTS = 100
_FEW = 8
"""Number of workers for which the profile of a seed is made; it is scaled for more."""
_EVENTS_OF_A_WORKER = 20
"""Least number of events for each of many workers; to connect takes a third of them."""
_SIGNS = 0.85
"""Probability that a thief signs and seals, where machines authenticate each other."""


@dataclass(frozen=True)
class Core:
    """The parts under test; a mutation replaces one of them."""

    relay: Callable[..., Relay] = Relay
    sender: Callable[..., StreamSender] = StreamSender
    trainer_state: Callable[..., TrainerState] = TrainerState
    trainer_connection: Callable[..., TrainerConnection] = TrainerConnection


@dataclass
class Result:
    """What came of a seed."""

    seed: int
    events: int = 0
    digest: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    thief: str = ""
    """The mood of the thief; empty: there is none."""
    said: int = 0
    """Messages of the thief."""
    signed: bool = False
    """True: the thief signs its streams and seals its samples."""
    gains: Gains = field(default_factory=Gains)
    """Streams and credit of the thief."""
    slowest_s: float = 0.0
    """Longest time until samples were acknowledged beside the thief, without faults."""
    beginners: int = 0
    """Workers at the beginning."""
    workers: int = 0
    messages: int = 0
    samples: int = 0
    dropped: int = 0
    simulated_s: float = 0.0
    caught_up_s: float = 0.0
    failure: str = ""
    """Which promise was broken, and how, or the error that ended the seed; empty: none."""
    crashed: bool = False
    """True: an error ended the seed that is no broken promise. A mutation that fails so is not noticed, but broken."""
    trace: list[tuple[float, int, int]] | None = None
    """Every event, if they were asked for: when, what kind, and a number that goes with it."""


class Scenario:
    """The profile of a seed and what it does.

    Args:
        seed: decides everything.
        core: what is simulated.
        hostile: add a thief with a stolen bundle.
        unsigned: the thief signs and seals nothing, also where machines authenticate each other.
        weights: form of policies, as `network.weights`.
        viewers: number of viewers, which change what the seed does.
        workers: number of workers at the beginning; None: a few. Memory, messages and events grow with it.
    """

    def __init__(
        self,
        seed: int,
        core: Core | None = None,
        *,
        hostile: bool = False,
        unsigned: bool = False,
        weights: Weights = "whole",
        viewers: int = 0,
        workers: int | None = None,
    ) -> None:
        self.weights = weights
        self._many = workers
        scale = max(1, (workers or 0) // _FEW)
        self.most_workers = max(12, (workers or 0) + 8)
        self.least_events = EVENTS if workers is None else max(EVENTS, _EVENTS_OF_A_WORKER * workers)
        self.audit_events = _AUDIT_EVENTS * scale
        self.random = random = Random(seed)
        self.core = core or Core()
        self.result = Result(seed)
        self.checker = Checker()
        big = random.random() < 0.06
        self.sizes = (10, 40_000, 150_000) if big else random.choice([(10, 60, 300), (10, 200, 1_500)])
        most = self.sizes[-1] + 100
        budget = 2 * most + 400 + scale * random.choice((0, most, 8 * most, 40 * most))
        settings = RelaySettings(
            budget_bytes=budget,
            max_message_bytes=most,
            max_policy_bytes=1 << 20,
            standing_bytes=random.choice((0, 64, 512, 4_096)),
            silent_s=10.0,
            heartbeat_s=3.0,
            greeting_s=10.0,
            stalled_s=STALLED_S if hostile else 30.0,
        )
        self.spool_bytes = scale * (random.choice((4, 20, 200)) * most + 20_000)
        self.spool: str = random.choice(("none", "memory", "disk"))
        self.disk = Disk()
        self._settings = settings
        self._hostile = hostile
        self._errors_seen = 0
        self.network = Network(random, settings, self._new_relay, self.checker.look, scale)
        self.checker.network = self.network
        self.durable = random.random() < 0.5
        self.bad = random.choice((0.0, 0.0, 0.05, 0.3))
        self.drops = random.choice((0.0, 0.5, 1.0))
        self.queue_bytes = random.choice((2, 5, 30)) * most
        self.inbox_bytes = scale * random.choice((1, 4, 40)) * most
        self.small = 0.95
        """Probability that a policy has one frame."""
        self.pace_s = random.choice((0.05, 0.1, 0.2)) / scale
        """Between two messages of all workers together."""
        self.authenticated = seed % 2 == 0
        self.mode: Mode = "encrypt" if seed % 4 == 0 else "authenticate"
        """True: workers and trainers authenticate each other; half of those encrypt samples."""
        self.bundles: dict[str, WorkerMachine] = {}
        """By worker's name, which is that of a machine."""
        self.machines: list[TrainerMachine] = []
        """Of each memory; several may be on one machine."""
        self.memories: list[Memory] = []
        self.workers: list[Worker] = []
        """Alive and dead."""
        self.trainers: list[Trainer] = []
        self.peace = False
        self.viewers = [Viewer(self.network, self.route(), authenticated=self.authenticated) for _ in range(viewers)]
        self._obeyed: set[str] = set()
        self.published = 0
        everything = list(FAULTS)
        random.shuffle(everything)
        self.kinds = everything[: random.randint(KINDS, 9)]
        self.others = list(FAULTS)
        self._pending = list(self.kinds)
        self._next_uid = 0
        self._sequence = 0
        self.thief: Thief | None = None
        self.certified = False
        """True: each honest worker has a certificate of its own."""
        if hostile:
            chosen = Random(f"thief {seed}")
            self.result.signed = self.authenticated and not unsigned and Random(f"signs {seed}").random() < _SIGNS
            self.thief = Thief(self.network, chosen, most, self.mode if self.result.signed else None)
            self.certified = chosen.random() < 0.7
            self.result.thief = self.thief.name
            self.result.gains = self.thief.gains
            self.small = self.thief.mood.small

    # --- processes ---

    def _new_relay(self, network: Network) -> Relay:
        """A Server process."""
        spool: Spool | None = None
        if self.spool == "disk":
            spool = SimulatedDiskSpool(self.spool_bytes, self.disk, network)
        elif self.spool == "memory":
            spool = MemorySpool(self.spool_bytes)
        if not self._hostile:
            return self.core.relay(self._settings, wall_clock=lambda: 0.0, spool=spool)
        relay = MeteredRelay(self._settings, wall_clock=lambda: 0.0, spool=spool, on_refused=self._refused)
        relay._stream_budget = StreamBudget(OF_A_THIEF_BYTES, OF_ALL_BYTES, ANNOUNCED_BYTES, ANNOUNCED_BYTES_PER_S)
        self._errors_seen = self.checker.forgiven_errors = 0
        return relay

    def _refused(self, address: str, reason: str) -> None:
        """A peer was refused, or has broken the protocol."""
        errors = self.network.relay.protocol_errors
        if address == STOLEN.address:
            self.checker.forgiven_errors += errors - self._errors_seen
        self._errors_seen = errors

    def route(self) -> Route:
        """A way to the Server."""
        random = self.random
        return Route(
            latency_s=random.choice((0.001, 0.01, 0.1)),
            jitter_s=random.choice((0.0005, 0.01, 0.1)),
            slicing=random.choice((0.0, 0.05, 0.3)),
            window_bytes=random.choice((400, 4_000, 131_072)),
        )

    def new_worker(self, name: str | None = None, peer: bytes | None = None) -> Worker:
        """Start a worker process."""
        uid = self._next_uid
        self._next_uid += 1
        name = name or f"worker{uid}"
        machine = None
        if self.authenticated:
            machine = self.bundles.setdefault(name, WorkerMachine(uid, self.mode))
        worker = Worker(
            self.network,
            self.route(),
            uid,
            name=name,
            queue_bytes=self.queue_bytes,
            drop_oldest=self.random.random() < self.drops,
            peer=peer,
            sender=self.core.sender,
            certified=self.certified,
            machine=machine,
        )
        self.workers.append(worker)
        worker.connect()
        return worker

    def new_trainer(self, memory: Memory, run: str = "run", others: Sequence[TrainerMachine] = ()) -> Trainer:
        """Start a trainer process; with the keys of other machines, if somebody has copied them."""
        if memory not in self.memories:
            self.memories.append(memory)
            if self.authenticated:
                same = self.machines and self.random.random() < 0.5
                self.machines.append(self.machines[0] if same else TrainerMachine(len(self.machines), self.mode))
        trainer = Trainer(
            self.network,
            self.route(),
            memory,
            inbox_bytes=self.inbox_bytes,
            run=run,
            state=self.core.trainer_state,
            connection=self.core.trainer_connection,
            machine=self.machines[self.memories.index(memory)] if self.authenticated else None,
            others=others,
            packs=self.weights != "whole",
            shows=bool(self.viewers),
        )
        self.trainers.append(trainer)
        self._work(trainer)
        self.publish(trainer)
        trainer.connect()
        return trainer

    def living(self) -> list[Worker]:
        """The workers whose process lives."""
        return [worker for worker in self.workers if worker.alive]

    @property
    def trainer(self) -> Trainer:
        """The trainer of the run: the first that lives."""
        return next(trainer for trainer in self.trainers if trainer.alive and trainer.state.run == "run")

    @property
    def any_trainer(self) -> bool:
        return any(trainer.alive and trainer.state.run == "run" for trainer in self.trainers)

    # --- what they do ---

    def _work(self, trainer: Trainer) -> None:
        """A trainer's loop, which goes on until its process ends."""
        if not trainer.alive:
            return
        trainer.work()
        self._note_orders(trainer)
        self.network.note(4, trainer.memory.samples)
        random = self.random
        if trainer.memory.samples:
            chance = random.random()
            if chance < 0.1:
                self.publish(trainer)
            elif chance < 0.15:
                trainer.direct()
            elif chance < 0.2:
                trainer.report(Progress(samples=trainer.memory.samples, updates=trainer.memory.updates))
            elif chance < 0.25:
                trainer.checkpoint()
        self.network.at(0.05 if self.peace else 0.1 + 0.4 * random.random(), self._work, trainer)

    def _note_orders(self, trainer: Trainer) -> None:
        """Take the orders that a trainer has carried out.

        Raises:
            Violation: one was carried out twice.
        """
        for order in trainer.obeyed:
            if order in self._obeyed:
                raise Violation(f"order {order} was carried out twice")
            self._obeyed.add(order)
        trainer.obeyed.clear()

    def _order(self) -> None:
        """Each viewer gives an order; again and again until there is peace."""
        if not self.peace:
            self._order_once()
            self.network.at(3.0 * self.random.random(), self._order)

    def _order_once(self) -> None:
        for viewer in self.viewers:
            viewer.order()
        for worker in self.workers if self.viewers else ():
            worker.show()

    def publish(self, trainer: Trainer, *, large: bool = False) -> None:
        """A policy of its own, most of one frame, others of several."""
        self.published += 1
        small = not large and self.random.random() < self.small
        size = self.random.choice((10, 500, 3_000)) if small else 70_000 * self.random.randint(1, 4)
        name = b"<%b>%d" % (trainer.state.run.encode(), self.published)
        if self.weights == "whole":
            trainer.publish(name + bytes(size))
            return
        values = _WEIGHTS[: 800 if small else 40_000] + np.float32(self.published / 1_000)
        body = encode_arrays({"matrix": values[None]}, {"name": name.ljust(24, b"-").decode()})
        trainer.publish(with_bfloat16_matrices(body) if self.weights == "bfloat16" else body)

    def _make(self) -> None:
        """One worker hands over a message; again and again until there is peace."""
        if self.peace:
            return
        living = self.living()
        if living:
            worker = self.random.choice(living)
            if not worker.state.ending:
                self.make(worker)
        self.network.at(2 * self.pace_s * self.random.random(), self._make)

    def make(self, worker: Worker) -> None:
        """Hand one message over."""
        random = self.random
        small, middle, large = self.sizes
        chance = random.random()
        size = (
            small if chance < 0.5 else random.randint(small, middle) if chance < 0.9 else random.randint(small, large)
        )
        worker.make(random.randint(0, 3) if random.random() < 0.9 else 50, size, random.random() < self.bad)
        self.network.note(5, worker.uid)

    def _fault(self) -> None:
        """One fault; again and again until there is peace."""
        if self.peace:
            return
        random = self.random
        kind = self._pending[-1] if self._pending else random.choice(self.kinds)
        if self.network.events >= self.least_events:
            kind = random.choice(self.others)  # what was drawn cannot be done now
        if self.viewers and random.random() < 0.3:
            cut_viewers(self)
        if FAULTS[kind](self):
            self.network.note(6, len(kind))
            self.result.faults[kind] += 1
            if self._pending and kind == self._pending[-1]:
                self._pending.pop()
        elif self._pending:
            self._pending.insert(0, self._pending.pop())
        self.network.at(self.random.random() * 2.0, self._fault)

    # --- the whole ---

    def run(self) -> Result:
        """Play it.

        Raises:
            Violation: a promise was broken; the message says which.
        """
        network, random = self.network, self.random
        result = self.result
        self.new_trainer(Memory(self.durable))
        for _ in range(random.randint(2, 8) if self._many is None else self._many):
            self.new_worker()
        result.beginners = len(self.workers)
        self._make()
        for viewer in self.viewers:
            viewer.connect()
        if self.viewers:
            network.at(1.0, self._order)
        network.at(1.0, self._fault)
        if self.thief is not None:
            network.at(0.5, self.thief.act)
        audit = self.audit_events
        while network.events < self.least_events or len(result.faults) < KINDS:
            network.step()
            if network.events >= audit:
                audit += self.audit_events
                self._audit()
            if network.now > 1_000:
                raise Violation("the scenario does not come to an end")
        self.finish()
        return result

    def finish(self) -> None:
        """Peace, and the checks that everybody has caught up and nothing is missing.

        Raises:
            Violation: it is not so.
        """
        network = self.network
        self.make_peace()
        began = network.now
        allowed_s = self._allowed_s()
        caught_up = network.run(self.caught_up, allowed_s)
        self.result.caught_up_s = network.now - began
        if not caught_up:
            raise Violation(f"not caught up {allowed_s:.1f} s after the last fault: {self.lagging()}")
        self._audit()
        if self.thief is not None:
            self._steady()
        if self.viewers:
            self._view()
        memory = self.trainer.memory
        elsewhere = [other for other in self.memories if other is not memory]
        for worker in self.workers:
            forgotten = self.spool == "memory" and network.servers > worker.servers
            self.checker.finished(worker, memory, elsewhere, forgotten)
        seals = [client.state.seal for client in (*self.workers, *self.trainers) if client.state.seal is not None]
        if self.thief is None and (forged := sum(seal.forged for seal in seals)):
            raise Violation(f"{forged} messages of honest peers were taken for forged ones")
        left = sum(map(queued_bytes, self._streams()))
        if left:
            raise Violation(f"{left} bytes are left at the relay")

    def _view(self) -> None:
        """Let each viewer see what its trainer does now, and be obeyed.

        Raises:
            Violation: it does not see it, or is not obeyed.
        """
        network = self.network
        began = network.now
        if not network.run(lambda: all(viewer.seen_s >= began for viewer in self.viewers), LINKED_S):
            raise Violation("a viewer does not see the present")
        # The relay limits orders for each holder of credentials.
        network.run(lambda: False, 2.0 * len(self.viewers))
        before = len(self._obeyed)
        self._order_once()
        if not network.run(lambda: len(self._obeyed) == before + len(self.viewers), LINKED_S):
            raise Violation(f"{len(self._obeyed) - before} of {len(self.viewers)} orders were carried out")

    def _allowed_s(self) -> float:
        """Return the simulated seconds within which everybody has to catch up, from what has to be moved now."""
        if self.thief is not None:
            return CAUGHT_UP_S  # its messages have to be moved too
        relay = self.network.relay
        largest = message_bytes(SAMPLES_HEAD, relay.settings.max_message_bytes)
        window = min(max(largest, self.inbox_bytes), relay.settings.budget_bytes)
        size: int = sum(message.size for worker in self.living() for message in held(worker.sender).values())
        stored = relay.spool_handoff.spool.of_run("run")
        size += sum(message.cost for kept in stored for message in kept.messages)
        # A window may be half empty, because the next message has to fit as a whole.
        needed_s = LINKED_S + ROUND_S * 2 * size / window
        return needed_s if self._many is not None else min(CAUGHT_UP_S, needed_s)

    def _steady(self) -> None:
        """A fleet without faults beside the thief: every sample is acknowledged within a bound.

        Raises:
            Violation: it is not.
        """
        network = self.network
        end = network.now + STEADY_S
        while network.now < end:
            for worker in self.living():
                worker.make(1, self.random.choice(self.sizes), False)
            began = network.now
            acknowledged = network.run(self._acknowledged, ACKNOWLEDGED_S)
            self.result.slowest_s = max(self.result.slowest_s, network.now - began)
            if not acknowledged:
                raise Violation(f"not acknowledged within {ACKNOWLEDGED_S:g} s beside a thief: {self.lagging()}")
            pause = network.now + 3.0 * self.random.random()
            while network.now < pause:
                network.run(lambda: False, 0.5)
                self._audit()

    def _audit(self) -> None:
        self.checker.audit(self.network.relay, self.workers)
        if self.thief is not None and self.network.server_up:
            self.thief.audit(self.network.relay)

    def _acknowledged(self) -> bool:
        return all(one.drained() and not one.sender.samples_unresolved for one in self.living())

    def _streams(self) -> list[RelayStream]:
        """The streams of honest workers at the relay."""
        return [
            stream for stream in self.network.relay.streams.values() if stream.id not in self.network.hostile_streams
        ]

    def _known(self) -> tuple[int, int, int]:
        """Return the numbers of honest workers and streams that the relay knows, and that the trainer knows."""
        workers = sum(one.identity is not STOLEN for one in self.network.relay.workers.values())
        members = len(self.trainer.state.members.keys() - self.network.hostile_streams)
        return workers, len(self._streams()), members

    def fill(self) -> None:
        """What the result says of the run so far."""
        result, network = self.result, self.network
        result.events = network.events
        result.digest = network.digest
        result.workers = len(self.workers)
        result.messages = sum(len(worker.samples) for worker in self.workers)
        result.samples = sum(sum(worker.samples) for worker in self.workers)
        result.dropped = sum(worker.sender.samples_dropped for worker in self.workers)
        result.simulated_s = network.now
        result.said = self.thief.said if self.thief is not None else 0

    def make_peace(self) -> None:
        """No more faults: what was broken is mended, and each worker says one last thing."""
        self.peace = True
        network = self.network
        if not network.server_up:
            network.start_server()
        for client in (*self.workers, *self.trainers, *self.viewers):
            client.route.mend()
            client.route.heal()
        ours = [trainer for trainer in self.trainers if trainer.alive and trainer.state.run == "run"]
        stays = next((trainer for trainer in ours if trainer.linked), ours[0] if ours else None)
        for trainer in list(self.trainers):
            trainer.idle = False
            if trainer is not stays:
                trainer.kill()
        if stays is not None and len(set(self.machines)) > 1:
            stays.kill()  # to begin again with the keys of all machines, for which samples may be stored
            stays = self.new_trainer(stays.memory, others=self.machines)
        elif stays is None:
            stays = self.new_trainer(self.memories[0], others=self.machines)
        stays.route.mend()  # it may have begun with a link of its own
        if self.thief is not None:
            stays.route.window_bytes = max(4_000, self.sizes[-1])  # no faster than announcements can be
            if self.thief.mood.narrow:
                stays.route.bytes_per_s = max(150_000, 10 * self.sizes[-1])
        seen: set[bytes] = set()
        for worker in self.living():
            if worker.state.peer in seen:  # two that supersede each other never come to rest
                worker.kill()
            seen.add(worker.state.peer)
        for worker in self.living():
            if worker.state.ending:
                worker.end_in_order()
        while not self.living():
            self.new_worker()
        for worker in self.living():
            worker.make(1, 10, False)

    def caught_up(self) -> bool:
        """Whether nothing is on its way any more, and everybody knows the latest."""
        trainer = self.trainer
        state = trainer.state
        unsaid = not state.to_acknowledge.keys() <= self.network.hostile_streams
        if self._uncommitted() or not trainer.linked or unsaid or self.spooled():
            return False
        if set(self._known()) != {len(self.living())}:
            return False  # somebody is taken for alive who is not, or the other way round
        for worker in self.workers:
            if worker.alive and not (
                worker.linked
                and worker.drained()
                and not worker.sender.samples_unresolved
                and worker.policy == trainer.policy
                and worker.state.directive.revision == trainer.revision
                and worker.state.progress == (state.progress or Progress())
            ):
                return False
        return True

    def _uncommitted(self) -> bool:
        return any(received.stream not in self.network.hostile_streams for received in self.trainer.arrived)

    def spooled(self) -> int:
        """How many streams of the run the Server's spool keeps."""
        spool = self.network.relay.spool_handoff.spool
        hostile = self.network.hostile_streams
        return sum(kept.info.stream not in hostile for kept in spool.of_run("run"))

    def lagging(self) -> str:
        """Who has not caught up, and how."""
        trainer = self.trainer
        words = [] if trainer.linked else ["the trainer is not linked"]
        workers, streams, members = self._known()
        if {workers, streams, members} != {len(self.living())}:
            words.append(
                f"of {len(self.living())} workers the relay knows {workers} and {streams} streams, and the trainer "
                f"{members}"
            )
        if self.spooled():
            words.append(f"the spool keeps {self.spooled()} streams")
        if self._uncommitted():
            words.append("the trainer has not committed everything")
        for worker in self.living():
            if not worker.linked:
                words.append(f"worker {worker.uid} is not linked")
            elif not worker.drained() or worker.sender.samples_unresolved:
                words.append(f"worker {worker.uid} holds {worker.sender.held_messages} messages")
            elif worker.policy != trainer.policy:
                words.append(f"worker {worker.uid} has version {worker.version}, {trainer.state.version} is the latest")
            elif worker.state.directive.revision != trainer.revision:
                words.append(f"worker {worker.uid} has an old directive")
            elif worker.state.progress != (trainer.state.progress or Progress()):
                words.append(f"worker {worker.uid} has an old report")
        if len(words) > TOLD:
            words[TOLD:] = [f"and {len(words) - TOLD:,} more"]
        return "; ".join(words) or "acknowledgements are left"


# --- faults: each says whether it could be done ---


def some_worker(scenario: Scenario) -> Worker | None:
    """One whose process lives."""
    living = scenario.living()
    return scenario.random.choice(living) if living else None


def cut_worker(scenario: Scenario) -> bool:
    """A worker's connection breaks."""
    worker = some_worker(scenario)
    if worker is None or worker.end is None or not worker.end.up:
        return False
    worker.end.cut()
    return True


def cut_trainer(scenario: Scenario) -> bool:
    """Only the trainer's connection breaks."""
    if not scenario.any_trainer:
        return False
    end = scenario.trainer.end
    if end is None or not end.up:
        return False
    end.cut()
    return True


def _swallow(scenario: Scenario, route: Route) -> bool:
    if not (route.up and route.down):
        return False
    way = scenario.random.randrange(3)
    route.up = way == 1
    route.down = way == 2
    seconds = scenario.random.choice((1.0, 6.0, 14.0)) * scenario.random.random()
    scenario.network.at(seconds, route.heal)
    return True


def swallow_worker(scenario: Scenario) -> bool:
    """A worker's link swallows everything, in one direction or both, for a while."""
    worker = some_worker(scenario)
    return worker is not None and _swallow(scenario, worker.route)


def swallow_trainer(scenario: Scenario) -> bool:
    """The trainer's link swallows everything."""
    return scenario.any_trainer and _swallow(scenario, scenario.trainer.route)


def cut_viewers(scenario: Scenario) -> bool:
    """The viewers' connections break."""
    ends = [viewer.end for viewer in scenario.viewers if viewer.end is not None and viewer.end.up]
    for end in ends:
        end.cut()
    return bool(ends)


def restart_server(scenario: Scenario) -> bool:
    """The Server ends, in order or not, and comes again with nothing."""
    network = scenario.network
    if not network.server_up:
        return False
    network.stop_server(in_order=scenario.random.random() < 0.3)
    network.at(2.0 * scenario.random.random(), _start_server, scenario)
    return True


def _start_server(scenario: Scenario) -> None:
    if not scenario.network.server_up:
        scenario.network.start_server()


def restart_trainer(scenario: Scenario) -> bool:
    """The trainer is killed and comes again with what its memory kept."""
    if not scenario.any_trainer:
        return False
    trainer = scenario.trainer
    trainer.kill()
    scenario.network.at(3.0 * scenario.random.random(), _start_trainer, scenario, trainer.memory)
    return True


def _start_trainer(scenario: Scenario, memory: Memory) -> None:
    if not any(trainer.alive and trainer.memory is memory for trainer in scenario.trainers) and not scenario.peace:
        scenario.new_trainer(memory)


def forget_trainer(scenario: Scenario) -> bool:
    """The trainer is killed, and another begins from nothing."""
    if not scenario.any_trainer or len(scenario.memories) > 2:
        return False
    scenario.trainer.kill()
    scenario.network.at(3.0 * scenario.random.random(), _start_trainer, scenario, Memory(scenario.durable))
    return True


def second_trainer(scenario: Scenario) -> bool:
    """A second trainer of the run wants in; it is let in only while the first is away."""
    ours = [trainer for trainer in scenario.trainers if trainer.alive and trainer.state.run == "run"]
    if len(ours) != 1 or len(scenario.memories) > 2:
        return False
    second = scenario.new_trainer(Memory(scenario.durable))
    scenario.network.at(5.0 * scenario.random.random(), _end, scenario, second)
    return True


def _end(scenario: Scenario, client: Client) -> None:
    if not scenario.peace:
        client.kill()


def foreign_trainer(scenario: Scenario) -> bool:
    """A trainer of another run wants in."""
    if any(trainer.alive and trainer.state.run != "run" for trainer in scenario.trainers):
        return False
    other = scenario.new_trainer(Memory(True), "other")
    scenario.network.at(5.0 * scenario.random.random(), _end, scenario, other)
    return True


def idle_trainer(scenario: Scenario) -> bool:
    """The trainer takes nothing for a while, as when it compiles."""
    if not scenario.any_trainer or scenario.trainer.idle:
        return False
    trainer = scenario.trainer
    trainer.idle = True
    scenario.network.at(8.0 * scenario.random.random(), _end_idling, trainer)
    return True


def _end_idling(trainer: Trainer) -> None:
    trainer.idle = False


def kill_worker(scenario: Scenario) -> bool:
    """A worker is killed, and another process takes its place after a while."""
    worker = some_worker(scenario)
    if worker is None:
        return False
    worker.kill()
    scenario.network.at(3.0 * scenario.random.random(), _replace, scenario, worker.state.name)
    return True


def _replace(scenario: Scenario, name: str) -> None:
    if not scenario.peace:
        scenario.new_worker(name)


def end_worker(scenario: Scenario) -> bool:
    """A worker ends in order: it waits for acknowledgements, or for the Server to take over, but not for ever."""
    worker = some_worker(scenario)
    if worker is None or worker.state.ending:
        return False
    worker.begin_to_end()
    _drain(scenario, worker, scenario.network.now + 5.0 * scenario.random.random())
    return True


def end_without_trainer(scenario: Scenario) -> bool:
    """The trainer is killed, and stays away while workers end."""
    if not scenario.any_trainer:
        return False
    trainer = scenario.trainer
    trainer.kill()
    scenario.network.at(3.0 + 6.0 * scenario.random.random(), _start_trainer, scenario, trainer.memory)
    for _ in range(2):
        scenario.network.at(1.0 + scenario.random.random(), end_worker, scenario)
    if scenario.random.random() < 0.5:
        scenario.network.at(1.0 + 2.0 * scenario.random.random(), _restart_server, scenario)
    return True


def _restart_server(scenario: Scenario) -> None:
    if not scenario.peace:
        restart_server(scenario)


def _drain(scenario: Scenario, worker: Worker, deadline: float) -> None:
    if not worker.alive:
        return
    if worker.drained() or scenario.network.now >= deadline:
        worker.end_in_order()
        _replace(scenario, worker.state.name)
    else:
        scenario.network.at(0.2, _drain, scenario, worker, deadline)


def join_worker(scenario: Scenario) -> bool:
    """One more worker."""
    if len(scenario.living()) >= scenario.most_workers:
        return False
    scenario.new_worker()
    return True


def copy_worker(scenario: Scenario) -> bool:
    """A worker's bundle is used on a second machine: the same name, or even the same peer id."""
    worker = some_worker(scenario)
    if worker is None or len(scenario.living()) >= scenario.most_workers:
        return False
    same = scenario.random.random() < 0.5
    copy = scenario.new_worker(worker.state.name, worker.state.peer if same else None)
    if same:
        scenario.network.at(6.0 * scenario.random.random(), _end, scenario, copy)
    return True


def burst(scenario: Scenario) -> bool:
    """One worker hands over more than the queues hold."""
    worker = some_worker(scenario)
    if worker is None:
        return False
    for _ in range(30):
        scenario.make(worker)
    return True


def slow_down(scenario: Scenario) -> bool:
    """A link becomes slow and ragged."""
    worker = some_worker(scenario)
    if worker is None:
        return False
    route = worker.route
    route.latency_s, route.jitter_s, route.slicing, route.window_bytes = 0.3, 0.3, 0.5, 300
    return True


def publish_much(scenario: Scenario) -> bool:
    """Policies come faster than they can be sent."""
    if not scenario.any_trainer:
        return False
    for _ in range(10):
        scenario.network.at(0.2 * scenario.random.random(), _publish, scenario, scenario.trainer)
    return True


def _publish(scenario: Scenario, trainer: Trainer) -> None:
    if trainer.alive:
        scenario.publish(trainer)


def halve_policy(scenario: Scenario) -> bool:
    """The trainer's link breaks, or the trainer dies, when the relay has a part of a policy."""
    if not scenario.any_trainer:
        return False
    trainer = scenario.trainer
    scenario.publish(trainer, large=True)
    scenario.network.at(0.002, _halve, scenario, trainer, scenario.network.now + 2.0)
    return True


def _halve(scenario: Scenario, trainer: Trainer, deadline: float) -> None:
    if scenario.peace or not trainer.alive or scenario.network.now > deadline:
        return
    if trainer.end is None or not trainer.end.up or scenario.network.relay.policies.arriving is None:
        scenario.network.at(0.002, _halve, scenario, trainer, deadline)
    elif scenario.random.random() < 0.5:
        trainer.end.cut()
    else:
        trainer.kill()
        scenario.network.at(3.0 * scenario.random.random(), _start_trainer, scenario, trainer.memory)


FAULTS: dict[str, Callable[[Scenario], bool]] = {
    "worker's link cut": cut_worker,
    "trainer's link cut": cut_trainer,
    "worker's link silent": swallow_worker,
    "trainer's link silent": swallow_trainer,
    "Server restarted": restart_server,
    "trainer restarted": restart_trainer,
    "trainer without its state": forget_trainer,
    "second trainer": second_trainer,
    "trainer of another run": foreign_trainer,
    "trainer takes nothing": idle_trainer,
    "worker killed": kill_worker,
    "worker ended": end_worker,
    "workers ended without a trainer": end_without_trainer,
    "worker joined": join_worker,
    "worker copied": copy_worker,
    "queues filled": burst,
    "link slow": slow_down,
    "policies published": publish_much,
    "policy broken off": halve_policy,
}


def simulate(
    seed: int,
    core: Core | None = None,
    *,
    keep_events: bool = False,
    hostile: bool = False,
    unsigned: bool = False,
    weights: Weights = "whole",
    viewers: int = 0,
    workers: int | None = None,
) -> Result:
    """Play one seed; a violation, or what the core raised, is in the result's `failure`."""
    scenario = Scenario(
        seed, core, hostile=hostile, unsigned=unsigned, weights=weights, viewers=viewers, workers=workers
    )
    result = scenario.result
    if keep_events:
        result.trace = scenario.network.trace = []
    try:
        with patch("tmrl_core.networking.relay.core.LINKS_OF_ONE", LINKS) if hostile else nullcontext():
            scenario.run()
    except Violation as exc:
        result.failure = str(exc)
    except Exception as exc:
        where = traceback.extract_tb(exc.__traceback__)[-1]
        result.failure = f"{exc!r} in {where.name}, {where.filename}:{where.lineno}"
        result.crashed = True
    scenario.fill()
    return result


__all__ = ["FAULTS", "Core", "Result", "Scenario", "Violation", "simulate"]
