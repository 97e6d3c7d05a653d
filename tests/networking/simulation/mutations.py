"""The core with one of its safeguards taken out: what the checker must notice.

Each mutation is a context in which the core is different; nothing but what is said is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from tmrl_core.networking.protocol.delivery import CommittedOffset, Received, StreamReceiver, StreamSender
from tmrl_core.networking.protocol.framing import Frame
from tmrl_core.networking.protocol.messages import Want
from tmrl_core.networking.relay import Relay, RelayConnection, core, credit_flow
from tmrl_core.networking.relay.credit_flow import Flow
from tmrl_core.networking.relay.latest_policy import Policies
from tmrl_core.networking.relay.spooling import SpoolHandoff
from tmrl_core.networking.relay.stream_budget import StreamBudget
from tmrl_core.networking.relay.streams import RelayStream, Share
from tmrl_core.networking.spools.spool import Spool, SpooledMessage, StreamInfo
from tmrl_core.networking.trainer import TrainerState


@contextmanager
def over_asking() -> Iterator[None]:
    """A trainer asks again for what has arrived and is not committed. Harmless: repetitions are recognised."""

    attach = StreamReceiver.attach

    def more(self: StreamReceiver) -> int:
        attach(self)
        return self.offset.next_number

    with patch.object(StreamReceiver, "attach", more):
        yield


@contextmanager
def no_deduplication() -> Iterator[None]:
    """A trainer that asks again for what has arrived does not recognise it when it comes again."""

    attach, commit = StreamReceiver.attach, StreamReceiver.commit

    def forget(self: StreamReceiver) -> int:
        attach(self)
        self.next_number = self.offset.next_number
        self.position = self.offset.position
        return self.next_number

    def commit_forgotten(self: StreamReceiver, number: int, refused: str | None = None) -> None:
        self.next_number = max(self.next_number, number + 1)  # it was taken before it was forgotten
        commit(self, number, refused)

    with patch.object(StreamReceiver, "attach", forget), patch.object(StreamReceiver, "commit", commit_forgotten):
        yield


@contextmanager
def no_resume() -> Iterator[None]:
    """A worker goes on where it was, whatever the trainer asks for."""

    resume = StreamSender.resume

    def go_on(self: StreamSender, *, channel: int, epoch: int, next_number: int, credit: int) -> None:
        sent = self._sent[-1].number + 1 if self._sent else next_number
        resume(self, channel=channel, epoch=epoch, next_number=max(next_number, sent), credit=credit)

    with patch.object(StreamSender, "resume", go_on):
        yield


@contextmanager
def acknowledge_before_commit() -> Iterator[None]:
    """A trainer acknowledges what the training thread has taken, before the memory has it."""

    take, acknowledge = TrainerState.take, TrainerState.acknowledge

    def take_and_acknowledge(self: TrainerState) -> list[Received]:
        taken = take(self)
        for received in taken:
            acknowledge(self, received)
        return taken

    def nothing(self: TrainerState, received: Received, refused: str | None = None) -> None:
        if refused is not None:
            acknowledge(self, received, refused)

    with patch.object(TrainerState, "take", take_and_acknowledge), patch.object(TrainerState, "acknowledge", nothing):
        yield


@contextmanager
def no_gap_notice() -> Iterator[None]:
    """A trainer does not count what is missing."""

    take_frame = StreamReceiver.frame

    def count_nothing(self: StreamReceiver, *arguments: Any, **keywords: Any) -> Any:
        result = take_frame(self, *arguments, **keywords)
        self.gap_messages = self.gap_samples = 0
        return result

    with patch.object(StreamReceiver, "frame", count_nothing):
        yield


@contextmanager
def no_budget() -> Iterator[None]:
    """The relay grants whatever is asked for."""

    want = Flow.want

    def generous(self: Flow, connection: RelayConnection, message: Want) -> None:
        want(self, connection, message)
        stream = connection.stream(message.channel)
        need = message.total - stream.limit
        if stream.active and message.epoch == stream.epoch and need > 0:
            stream.limit += need
            self.reserved_bytes += need
            self._send_credit(stream)

    with patch.object(Flow, "want", generous):
        yield


@contextmanager
def no_epochs() -> Iterator[None]:
    """The relay takes frames of an earlier resume for those of the latest."""

    samples_frame = Flow.frame

    def any_epoch(self: Flow, connection: RelayConnection, frame: Frame) -> bool:
        stream = connection.streams.get(frame.channel)
        if stream is not None and stream.active:
            frame.epoch = stream.epoch
        return samples_frame(self, connection, frame)

    with patch.object(Flow, "frame", any_epoch):
        yield


@contextmanager
def one_incarnation() -> Iterator[None]:
    """The relay gives a new trainer the incarnation of the last."""

    greet = Relay._accept_trainer

    def same(self: Relay, connection: RelayConnection, hello: Any) -> None:
        known = self.incarnation
        greet(self, connection, hello)
        if known and self.trainer is connection:
            self.incarnation = known

    def welcome(self: Relay, connection: RelayConnection, incarnation: int) -> None:
        original(self, connection, max(1, incarnation - 1) if connection.state == "trainer" else incarnation)

    original = Relay._welcome
    with patch.object(Relay, "_accept_trainer", same), patch.object(Relay, "_welcome", welcome):
        yield


@contextmanager
def offsets_forgotten() -> Iterator[None]:
    """A trainer that starts again from its memory does not look how far each stream is in it."""

    start = TrainerState.__init__

    def without(self: TrainerState, **arguments: Any) -> None:
        arguments["offsets"] = {stream: CommittedOffset(0, 0) for stream in arguments.get("offsets") or {}}
        start(self, **arguments)

    with patch.object(TrainerState, "__init__", without):
        yield


@contextmanager
def stored_before_written() -> Iterator[None]:
    """The Server says that it keeps what a worker hands over before it does."""

    append = Spool.append

    def promise(self: Spool, info: StreamInfo, **arguments: Any) -> str:
        refusal = append(self, info, **arguments)
        if not refusal:
            kept = self.streams[info.stream]
            kept.stored = kept.next_number
            self.on_stored(info.stream)
        return refusal

    def written(self: Spool, kept: Any, message: SpooledMessage) -> None:
        """Said already."""

    with patch.object(Spool, "append", promise), patch.object(Spool, "_is_stored", written):
        yield


@contextmanager
def spool_skipped() -> Iterator[None]:
    """The Server resumes a worker or its own queue without what it had taken over before."""

    def nothing(self: SpoolHandoff, stream: RelayStream, next_number: int) -> int:
        kept = self.kept(stream)
        return max(next_number, kept.next_number) if kept is not None else next_number

    with patch.object(SpoolHandoff, "replay", nothing):
        yield


@contextmanager
def half_a_policy() -> Iterator[None]:
    """Workers that have a part of a policy wait for the rest, though it will not come."""

    def forget(self: Policies) -> None:
        self.arriving = None

    with patch.object(Policies, "abandon", forget):
        yield


@contextmanager
def no_shares() -> Iterator[None]:
    """A principal gets all the credit that there is."""
    with patch.object(Flow, "_exceeds_share", lambda self, share, need, free: False):
        yield


@contextmanager
def hoarders_block() -> Iterator[None]:
    """A principal that exceeds its share keeps its place before the others when the pool is nearly empty."""

    exceeds = Flow._exceeds_share

    def only_if_it_fits(self: Flow, share: Share, need: int, free: int) -> bool:
        return need <= free and exceeds(self, share, need, free)

    with patch.object(Flow, "_exceeds_share", only_if_it_fits):
        yield


@contextmanager
def share_for_each_stream() -> Iterator[None]:
    """Every stream counts as a principal of its own."""

    join = Flow.join

    def alone(self: Flow, stream: RelayStream, principal: str, *arguments: Any, **keywords: Any) -> None:
        join(self, stream, principal + stream.id.hex(), *arguments, **keywords)

    with patch.object(Flow, "join", alone):
        yield


@contextmanager
def every_stream_examined() -> Iterator[None]:
    """Each request for credit looks at all streams that want some."""

    grant = Flow.grant

    def sorting(self: Flow) -> None:
        sorted((stream for stream in self._relay.streams.values() if stream.asking), key=lambda stream: stream.turn)
        grant(self)

    with patch.object(Flow, "grant", sorting):
        yield


@contextmanager
def all_granted_at_once() -> Iterator[None]:
    """Bytes that come free are granted to thousands of small requests in one call."""
    with patch.object(credit_flow, "_STEPS", 1 << 30):
        yield


@contextmanager
def stalled_links_stay() -> Iterator[None]:
    """A link whose peer reads nothing stays."""

    def nothing(self: RelayConnection, now: float, unused: int) -> None:
        self.checked_at = now

    with patch.object(RelayConnection, "check_progress", nothing):
        yield


@contextmanager
def unused_credit_stays() -> Iterator[None]:
    """A link keeps credit that it does not use, though others wait for it."""
    with patch.object(Flow, "unused_credit", lambda self, stream: 0):
        yield


@contextmanager
def no_stream_budget() -> Iterator[None]:
    """The streams of one principal may take all memory."""
    with patch.object(StreamBudget, "acquire", lambda self, *arguments, **changes: ""):
        yield


@contextmanager
def old_policies_stay() -> Iterator[None]:
    """Every version of the policy stays in memory as long as a link still sends it."""
    with patch.object(Relay, "limit_old_policies", lambda self: None):
        yield


@contextmanager
def announcements_without_a_rate() -> Iterator[None]:
    """A principal opens and closes streams with large signatures as fast as it can."""

    acquire = StreamBudget.acquire

    def forget(self: StreamBudget, *arguments: Any, **changes: Any) -> str:
        self._announcements.clear()
        return acquire(self, *arguments, **changes)

    with patch.object(StreamBudget, "acquire", forget):
        yield


@contextmanager
def links_without_a_limit() -> Iterator[None]:
    """A certificate may have any number of links."""
    with patch("tests.networking.simulation.scenario.LINKS", 1 << 30):  # the simulation has its own number
        yield


@contextmanager
def long_names() -> Iterator[None]:
    """Names and wait reasons are kept as long as they come."""
    with patch.object(core, "plain", lambda text, most=0: text):
        yield


REQUIRED: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "no-deduplication": no_deduplication,
    "no-resume": no_resume,
    "acknowledge-before-commit": acknowledge_before_commit,
    "no-gap-notice": no_gap_notice,
}
MORE: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "no-budget": no_budget,
    "no-epochs": no_epochs,
    "one-incarnation": one_incarnation,
    "offsets-forgotten": offsets_forgotten,
    "stored-before-written": stored_before_written,
    "spool-skipped": spool_skipped,
    "half-a-policy": half_a_policy,
}
HOSTILE: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "no-shares": no_shares,
    "hoarders-block": hoarders_block,
    "share-for-each-stream": share_for_each_stream,
    "every-stream-examined": every_stream_examined,
    "all-granted-at-once": all_granted_at_once,
    "stalled-links-stay": stalled_links_stay,
    "unused-credit-stays": unused_credit_stays,
    "no-stream-budget": no_stream_budget,
    "long-names": long_names,
    "old-policies-stay": old_policies_stay,
    "announcements-without-a-rate": announcements_without_a_rate,
    "links-without-a-limit": links_without_a_limit,
}
"""Protections against a member, which the simulation notices only beside a hostile one.

Two are out of its reach. It decodes no samples: `tests/samples/test_codec.py` and `tests/networking/test_hostile.py`
hold the bound of a message's episode records. Its Server is honest and bounds announcements itself:
`tests/networking/test_worker_and_trainer.py` holds the trainer's own bound of signatures.
"""
SHOWN_BY = {
    "all-granted-at-once": 65,
    "announcements-without-a-rate": 33,
    "every-stream-examined": 50,
    "hoarders-block": 50,
    "links-without-a-limit": 20,
    "no-deduplication": 5,
    "no-epochs": 37,
    "no-stream-budget": 31,
    "offsets-forgotten": 29,
    "old-policies-stay": 51,
    "spool-skipped": 13,
    "stored-before-written": 41,
}
"""Seed that shows the effect of a mutation which few seeds show, or show quickly.

In each change, the unchanged core is simulated with these seeds and few others.
"""
MUTATIONS = REQUIRED | MORE
HARMLESS: dict[str, Callable[[], AbstractContextManager[None]]] = {"over-asking": over_asking}


def candidates(name: str, seeds: int) -> Iterator[int]:
    """Return the seeds to try with a mutation: first the one that has shown it."""
    if name in SHOWN_BY:
        yield SHOWN_BY[name]
    yield from range(seeds)
