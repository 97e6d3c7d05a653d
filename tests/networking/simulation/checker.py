"""What must hold: at every step, now and then, and in the end."""

from __future__ import annotations

from tests.networking.simulation.actors import Trainer, Viewer, Worker, held, picture, stored
from tests.networking.simulation.memory import Memory
from tests.networking.simulation.network import End, Network, Violation
from tmrl_core.networking.relay import Relay
from tmrl_core.networking.relay.streams import RelayStream


def queued_bytes(stream: RelayStream) -> int:
    """Return the bytes of the frames in a stream's queue, counted one by one."""
    queue = stream.queue
    whole = [entry if isinstance(entry, bytearray) else b"".join(entry[0]) for entry in queue._entries]
    return sum(map(len, whole)) - queue._begin


class Checker:
    """Compares what was promised with what happens."""

    def __init__(self) -> None:
        self.network: Network
        self.policies: dict[tuple[int, int], bytes] = {}
        """The body under which each version was first seen anywhere."""
        self.forgiven_errors = 0
        """Peers at the present relay that broke the protocol and are not honest."""
        self._given: dict[int, tuple[Trainer, Relay]] = {}
        self._given_again: set[int] = set()

    # --- at every step ---

    def look(self, end: End) -> None:
        """Something has happened at this end.

        Raises:
            Violation: a budget is passed, or weights went back.
        """
        # A Server must not pass on weights of an incarnation before it is known here.
        relay, owner = self.network.relay, end.owner or end.peer.owner
        if not 0 <= relay.flow.queued_bytes <= relay.flow.reserved_bytes <= relay.settings.budget_bytes:
            raise Violation(
                f"the relay's budget: {relay.flow.queued_bytes} bytes queued, {relay.flow.reserved_bytes} reserved, "
                f"{relay.settings.budget_bytes} allowed"
            )
        if isinstance(owner, Worker):
            state = owner.state
            if state.policy_version < owner.version or state.versions_published < owner.published:
                raise Violation(f"worker {owner.uid}: weights went back from {owner.version} to {state.policy_version}")
            owner.version, owner.published = state.policy_version, state.versions_published
            if state.policy is not None:
                self._policy(owner)
        elif isinstance(owner, Trainer):
            if owner.state.inbox.held_bytes > owner.inbox_limit:
                raise Violation(
                    f"the trainer's inbox holds {owner.state.inbox.held_bytes} bytes of {owner.inbox_limit}"
                )
            if owner.state.holding != owner.holding:
                self._incarnation(owner, relay)
        elif isinstance(owner, Viewer) and owner.state.scene is not None:
            scene = owner.state.scene
            if scene.run != "run":
                raise Violation(f"a viewer of run 'run' sees run {scene.run!r}")
            if scene.time_s < owner.seen_s:
                raise Violation(f"a viewer has seen {owner.seen_s:.1f} s, and now sees {scene.time_s:.1f} s")
            owner.seen_s = scene.time_s
            for shown in owner.state.pictures.shown.values():
                if shown.number < owner.numbers.get((shown.worker, shown.kind), 0):
                    raise Violation(f"a viewer sees an older {shown.kind} of {shown.worker} again")
                # A worker that encrypts says so in place of a picture.
                if shown.content != (b"" if shown.text else picture(shown.kind, shown.number)):
                    raise Violation(f"a viewer sees a {shown.kind} that {shown.worker} never showed")
                owner.numbers[shown.worker, shown.kind] = shown.number

    def _incarnation(self, trainer: Trainer, relay: Relay) -> None:
        number = trainer.state.holding
        if trainer.state.seal is not None:
            # What the Server has accepted counts, also if the trainer has followed a suggestion meanwhile.
            number = relay._announced.incarnation if relay._announced is not None else 0
            if not number or relay._held_by != (number, trainer.state.peer):
                return
        trainer.holding = number
        before = self._given.setdefault(number, (trainer, relay))
        if before[0] is trainer:
            return
        # Only a Server and a trainer that have both lost everything may begin from the same number again.
        if before[1] is relay or trainer.known >= number:
            raise Violation(f"incarnation {number} was given twice")
        self._given_again.add(number)

    def _policy(self, worker: Worker) -> None:
        assert worker.state.policy is not None
        version, body = worker.state.policy[0], bytes(worker.state.policy[1])
        worker.state.policy = None
        worker.policy = body
        if version < worker.accepted:
            raise Violation(f"worker {worker.uid} has version {version}; its machine had {worker.accepted} before")
        if version[0] not in self._given_again and self.policies.setdefault(version, body) != body:
            raise Violation(f"version {version} has two different weights")
        if b"<" + worker.state.run.encode() + b">" not in body:
            raise Violation(f"worker {worker.uid} of run {worker.state.run} has weights of another run")

    # --- now and then ---

    def audit(self, relay: Relay, workers: list[Worker]) -> None:
        """Sums that are kept up to date must be the sums that they are.

        Raises:
            Violation: they are not.
        """
        if relay.protocol_errors > self.forgiven_errors:
            raise Violation("an honest peer was taken to have broken the protocol")
        reserved = sum(stream.reserved for stream in relay.streams.values())
        sending = relay.flow._sending if not relay.flow._sending_spooled else None
        queued = 0
        for stream in relay.streams.values():
            held = queued_bytes(stream) + sum(size for _, size in stream.handed)
            held += sending[2] if sending is not None and sending[0] is stream else 0
            if held != stream.held_bytes:
                raise Violation(f"the relay counts {stream.held_bytes} bytes of a stream's messages; there are {held}")
            queued += held
        if reserved != relay.flow.reserved_bytes or queued != relay.flow.queued_bytes:
            raise Violation(
                f"the relay counts {relay.flow.reserved_bytes} bytes reserved and {relay.flow.queued_bytes} queued; "
                f"there are {reserved} and {queued}"
            )
        for worker in workers:
            self.accounts(worker)

    def accounts(self, worker: Worker) -> None:
        """A worker's counters add up, and its bound is kept.

        Raises:
            Violation: they do not, or it is not.
        """
        sender = worker.sender
        told = sender.samples_acked + sender.samples_refused + sender.samples_dropped + sender.samples_unresolved
        if told + sender.held_samples != sum(worker.samples):
            raise Violation(
                f"worker {worker.uid} made {sum(worker.samples)} samples; {sender.samples_acked} acknowledged, "
                f"{sender.samples_refused} refused, {sender.samples_dropped} dropped, {sender.samples_unresolved} "
                f"unresolved and {sender.held_samples} held do not add up to them"
            )
        if sender.held_bytes > max(sender.queue_bytes, worker.largest):
            raise Violation(f"worker {worker.uid} holds {sender.held_bytes} bytes of {sender.queue_bytes}")

    # --- when a worker is gone, and in the end ---

    def finished(self, worker: Worker, memory: Memory, elsewhere: list[Memory], forgotten: bool) -> None:
        """Everything that a worker handed over is where it should be.

        Nothing may be missing but what the worker holds or dropped and counted, and what was in the memory of a trainer
        that lost it (what was acknowledged since its last checkpoint) or in another memory. What a worker that ended
        had handed over to the Server is not held by it any more, unless the Server has `forgotten` it: a spool in
        memory goes with its process.

        Raises:
            Violation: something is missing, or counted wrongly.
        """
        self.accounts(worker)
        sender, rows = worker.sender, memory.rows(worker.stream)
        here = {*rows.numbers, *rows.refused}
        forgiven = set(memory.lost.get(worker.stream, ()))
        for other in elsewhere:
            forgiven.update(other.lost.get(worker.stream, ()), *other_rows(other, worker.stream))
        handed_over = stored(sender) if worker.state.ending and not worker.killed and not forgotten else 0
        holding = [n for n in held(sender) if n >= handed_over]
        samples = worker.samples
        missing = [n for n in range(len(samples)) if n not in here and n not in forgiven and n not in holding]
        lost = sum(samples[n] for n in missing)
        counted = sender.samples_dropped + sender.samples_unresolved
        if lost > counted:
            raise Violation(
                f"worker {worker.uid}: {lost} samples are missing, {counted} were dropped; messages {missing[:5]} of "
                f"{len(samples)}"
            )
        if not wrong_refusals(worker, rows.numbers, rows.refused):
            raise Violation(f"worker {worker.uid}: messages {rows.refused[:5]} should not have been refused")
        if holding or forgiven or elsewhere or not worker.alive:
            return
        refused = sum(samples[n] for n in rows.refused)
        present = sum(samples[n] for n in rows.numbers)
        if counted != lost:
            raise Violation(f"worker {worker.uid} counts {counted} samples as dropped, {lost} are missing")
        if sender.samples_acked + sender.samples_refused != present + refused or sender.samples_refused > refused:
            raise Violation(
                f"worker {worker.uid} counts {sender.samples_acked} samples as acknowledged and "
                f"{sender.samples_refused} as refused; {present} and {refused} are"
            )
        if sender.samples_refused != refused and not memory.processes_lost:
            raise Violation(f"worker {worker.uid} heard of {sender.samples_refused} of {refused} refused samples")


def other_rows(memory: Memory, stream: bytes) -> tuple[list[int], list[int]]:
    """What a memory holds of a stream and has refused of it."""
    rows = memory.streams.get(stream)
    return (rows.numbers, rows.refused) if rows is not None else ([], [])


def wrong_refusals(worker: Worker, numbers: list[int], refused: list[int]) -> bool:
    """Whether exactly the bad messages were refused."""
    return worker.bad.isdisjoint(numbers) and worker.bad.issuperset(refused)
