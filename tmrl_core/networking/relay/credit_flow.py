"""Forwarding of samples through the relay: credit pool, queues and fair scheduling. Sans-I/O.

Theory of operation
-------------------
The relay buffers complete messages of samples as the received frames, in one queue per stream. It rewrites each frame's
channel and epoch in place and never decodes a payload. Streams take turns by bytes (start-time fair queueing, Goyal et
al. 1996), one message at a time, as the trainer's credit allows. Busy streams get equal shares, and a stream that sends
little need not wait until all busy streams have had a turn.

All memory for samples comes from one pool of `budget_bytes`. A stream reserves from the pool the bytes that it may send
and that are not forwarded yet: a small standing credit, and the amount that it requested with `Want`. Each `Want` is
granted in full or not at all, in the order of turns. A worker sends only messages that fit its credit completely. Every
reserved byte therefore belongs to a message that will be complete, and incomplete messages cannot fill the pool and
wait for each other.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush, heapreplace
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import (
    FIRST,
    HEADER_BYTES,
    LAST,
    MAX_FRAME_BYTES,
    SAMPLES_HEAD,
    Frame,
    message_bytes,
    samples_head,
)
from tmrl_core.networking.protocol.messages import Credit, Unused, Want
from tmrl_core.networking.relay.streams import RelayStream

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection
    from tmrl_core.networking.relay.core import Relay

_HEAD_START_BYTES = MAX_FRAME_BYTES
"""Bytes of unused turns that a stream with an empty queue keeps."""
"""Upper bound of a stream's messages or samples; larger counts would not fit trainers' and checkpoints' integers."""


class Flow:
    """Samples that a relay buffers between a worker's link and the trainer's.

    Args:
        relay: owner of the streams.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._settings = relay.settings
        self.reserved_bytes = 0
        self.queued_bytes = 0
        self.discarded_messages = 0
        self.relayed_messages = 0
        self.relayed_samples = 0
        self.relayed_bytes = 0
        self.dropped_messages = 0
        """Messages that workers dropped, as far as the relay sees it. The trainer's count of gaps is authoritative."""
        self._trainer_limit = 0
        self._trainer_sent = 0
        self._turns: list[tuple[int, int, RelayStream]] = []
        """Heap of the streams with queued messages: (turn, order among equals, stream)."""
        self._order = count()
        self._turn = 0
        """Turn of the latest message: bytes forwarded so far for a stream that always has messages."""
        self._wants: OrderedDict[bytes, RelayStream] = OrderedDict()
        self._short_bytes = 0
        """Bytes that the first waiting stream was short of at the last check. Until that many are released, no check is
        needed."""
        self._sending: tuple[RelayStream, list[bytearray], int] | None = None
        self._sending_index = 0
        self._sending_spooled = False

    # --- a stream begins, and ends ---

    def activate(self, stream: RelayStream) -> None:
        """Begin a new epoch of a stream whose credit was forfeited, with its standing credit."""
        stream.epoch = (stream.epoch + 1) & 0xFFFF
        if stream.worker is None:
            return
        stream.active = True
        room = self._settings.budget_bytes // 2 - len(self._relay.streams) * self._settings.standing_bytes
        stream.standing = self._settings.standing_bytes if room >= 0 else 0
        free = self._settings.budget_bytes - self.reserved_bytes
        stream.limit = stream.sent_limit = min(stream.standing, max(0, free))
        self.reserved_bytes += stream.limit

    def detach(self, stream: RelayStream) -> None:
        """Discard a stream's incomplete message and return its unused credit to the pool, because its link is gone."""
        self._wants.pop(stream.id, None)
        self._short_bytes = 0
        stream.partial = []
        kept = self.held_bytes(stream)
        self.reserved_bytes -= stream.reserved - kept
        stream.limit = stream.forwarded + kept

    def held_bytes(self, stream: RelayStream) -> int:
        """Return the bytes of the pool that complete messages of a stream occupy."""
        sending = self._sending
        sent = sending[2] if sending is not None and sending[0] is stream and not self._sending_spooled else 0
        return sum(size for _, size in stream.queue) + sum(size for _, size in stream.handed) + sent

    def void(self, stream: RelayStream) -> None:
        """Drop all buffered messages of a stream and return its reserved bytes; spooled messages stay."""
        for _, size in (*stream.queue, *stream.handed):
            self.queued_bytes -= size
        stream.queue.clear()
        stream.handed.clear()
        stream.replay = None
        if self._sending is not None and self._sending[0] is stream:
            if not self._sending_spooled:
                self.queued_bytes -= self._sending[2]
            self._sending = None
        stream.partial = []
        self.reserved_bytes -= stream.reserved
        stream.limit = stream.forwarded = stream.received = stream.sent_limit = stream.wanted = 0
        stream.standing = 0
        stream.active = False
        self._wants.pop(stream.id, None)
        self._short_bytes = 0

    # --- from workers ---

    def frame(self, connection: RelayConnection, frame: Frame) -> None:
        """Handle a DATA frame from a worker."""
        stream = connection.stream(frame.channel)
        if not stream.active or frame.epoch != stream.epoch:
            if frame.flags & LAST:
                self.discarded_messages += 1
            return
        size = len(frame.buffer)
        stream.received += size
        if stream.received > stream.limit:
            raise RemoteProtocolError(f"{stream.received - stream.limit} bytes more were sent than credit was given")
        if frame.flags & FIRST:
            # Reject frames that the trainer's end of a stream would reject. Otherwise they would end the trainer's
            # link.
            *_, length = samples_head(frame.payload)
            if length > self._settings.max_message_bytes:
                raise RemoteProtocolError(
                    f"a message of {length} bytes; at most {self._settings.max_message_bytes} are relayed"
                )
            if stream.partial:
                raise RemoteProtocolError("a message began before the last one ended")
            stream.partial_length = message_bytes(SAMPLES_HEAD, length)
            stream.partial_bytes = 0
        elif not stream.partial:
            raise RemoteProtocolError("a message was continued without a beginning")
        stream.partial.append(frame.buffer)
        stream.partial_bytes += size
        frame.readdress(frame.epoch, stream.trainer_channel)
        if frame.flags & LAST:
            if stream.partial_bytes != stream.partial_length:
                raise RemoteProtocolError("a message's frames and its head say different lengths")
            frames, stream.partial = stream.partial, []
            if stream.handing:
                self._relay.spool_handoff.take(stream, frames, stream.partial_bytes)
                return
            stream.queue.append((frames, stream.partial_bytes))
            self.queued_bytes += stream.partial_bytes
            self.take_turns(stream)
        elif stream.partial_bytes >= stream.partial_length:
            raise RemoteProtocolError("a message's frames and its head say different lengths")
        # A frame costs more memory than its bytes, so that many small frames would exceed the budget.
        elif size != MAX_FRAME_BYTES:
            raise RemoteProtocolError("only a message's last frame is not full")

    def want(self, connection: RelayConnection, message: Want) -> None:
        """Handle a worker's request for credit for complete messages."""
        stream = connection.stream(message.channel)
        if not stream.active or message.epoch != stream.epoch:
            return
        settings = self._settings
        most = max(settings.window_bytes, message_bytes(SAMPLES_HEAD, settings.max_message_bytes))
        if message.total > stream.limit + most:
            raise RemoteProtocolError("more credit was asked for than the window allows")
        if message.total > stream.wanted:
            stream.wanted = message.total
            self._wants.setdefault(stream.id, stream)
            self._short_bytes = 0
            self.grant()

    def unused(self, connection: RelayConnection, message: Unused) -> None:
        """Take back the credit of a worker that has dropped the messages and has nothing else to send.

        Otherwise, a few workers that stop sending after a trainer's absence could hold the whole pool.
        """
        stream = connection.stream(message.channel)
        if not stream.active or message.epoch != stream.epoch:
            return
        if message.size > stream.limit - stream.received:
            raise RemoteProtocolError("more credit was given back than was left")
        stream.received += message.size
        self.forwarded(stream, message.size)

    def grant(self) -> None:
        """Grant the requested credit in the order of turns, as far as the pool suffices.

        A waiting stream keeps its turn while served streams move back, so that no stream starves.
        """
        if self._settings.budget_bytes - self.reserved_bytes < self._short_bytes:
            return
        self._short_bytes = 0
        for stream in sorted(self._wants.values(), key=attrgetter("turn")):
            need = stream.wanted - stream.limit
            if need > 0:
                over = stream.wanted - stream.forwarded > self._settings.window_bytes
                if over and stream.limit - stream.forwarded > stream.standing:
                    continue  # the stream has its share; its turn comes again after some of its messages were forwarded
                if need > self._settings.budget_bytes - self.reserved_bytes:
                    self._short_bytes = need
                    return  # later streams wait too, so that a large request is not overtaken forever
                stream.limit += need
                self.reserved_bytes += need
            self._send_credit(
                stream
            )  # the standing credit may already cover the request without the worker's knowledge
            del self._wants[stream.id]

    def _send_credit(self, stream: RelayStream) -> None:
        if stream.worker is not None and stream.limit > stream.sent_limit:
            stream.sent_limit = stream.limit
            stream.worker.put(("credit", stream.channel), Credit(stream.channel, stream.epoch, stream.limit))

    def forwarded(self, stream: RelayStream, size: int) -> None:
        """Return a message's bytes to the pool: it was sent to the trainer, or stored in the spool."""
        stream.forwarded += size
        self.reserved_bytes -= size
        if stream.worker is None:
            self._relay.forget_if_done(stream)
        else:
            # Renew the standing credit.
            lacking = stream.standing - stream.reserved
            free = self._settings.budget_bytes - self.reserved_bytes
            if lacking > 0 and free >= lacking:
                stream.limit += lacking
                self.reserved_bytes += lacking
                if stream.limit - stream.sent_limit >= stream.standing // 2:
                    self._send_credit(stream)
        self.grant()

    # --- to the trainer ---

    def trainer_came(self) -> None:
        """Handle a trainer's new link: its credit starts at zero."""
        self._trainer_limit = 0
        self._trainer_sent = 0

    def trainer_left(self) -> None:
        """Clear all turns, because the trainer has left; the caller drops the streams' messages one by one."""
        self._turns.clear()

    def trainer_credit(self, message: Credit) -> None:
        """Handle the trainer's credit for more samples."""
        self._trainer_limit = max(self._trainer_limit, message.limit)
        if self._relay.trainer is not None:
            self._relay.trainer.wake()

    def take_turns(self, stream: RelayStream) -> None:
        """Schedule a stream that has messages for the trainer."""
        if not stream.in_turn:
            stream.in_turn = True
            # An idle stream accumulates little. A stream that sends little always comes next.
            stream.turn = max(stream.turn, self._turn - _HEAD_START_BYTES)
            heappush(self._turns, (stream.turn, next(self._order), stream))
        if self._relay.trainer is not None:
            self._relay.trainer.wake()

    def next_frame(self) -> bytearray | None:
        """Return the next frame for the trainer; None: nothing queued, or no credit."""
        if self._sending is None and not self._next_message():
            return None
        assert self._sending is not None
        stream, frames, size = self._sending
        frame = frames[self._sending_index]
        frames[self._sending_index] = bytearray()  # release the memory of each frame, not of the whole message at once
        self._sending_index += 1
        self._trainer_sent += len(frame)
        if self._sending_index == len(frames):
            self._sending = None
            self.relayed_messages += 1
            self.relayed_bytes += size
            stream.relayed_messages += 1
            stream.relayed_bytes += size
            if not self._sending_spooled:  # spooled messages do not belong to the pool
                self.queued_bytes -= size
                self.forwarded(stream, size)
        return frame

    def _next_message(self) -> bool:
        turns = self._turns
        while turns:
            turn, _, stream = turns[0]
            spooled = self._relay.spool_handoff.upcoming(stream)
            if spooled is None and not stream.queue:
                heappop(turns)
                stream.in_turn = False
                continue
            size = stream.queue[0][1] if spooled is None else spooled
            if self._trainer_sent + size > self._trainer_limit:
                return False
            if spooled is None:
                frames, size = stream.queue.popleft()
            else:
                replayed = self._relay.spool_handoff.frames(stream)
                if replayed is None:
                    self._relay.forget_if_done(stream)
                    continue
                frames = replayed
            self._turn = turn
            stream.turn = turn + size
            heapreplace(turns, (stream.turn, next(self._order), stream))
            self._sending_spooled = spooled is not None
            self._sending = (stream, frames, size)
            self._sending_index = 0
            self._count(stream, frames[0])
            return True
        return False

    def _count(self, stream: RelayStream, frame: bytearray) -> None:
        """Count a message whose forwarding begins, from its header, for the status."""
        number, _, position, samples, _ = SAMPLES_HEAD.unpack_from(frame, HEADER_BYTES)
        passed_over = max(0, number - stream.next_number)
        stream.next_number = number + 1
        stream.position = position + samples
        stream.relayed_samples += samples
        stream.dropped_messages += passed_over
        self.relayed_samples += samples
        self.dropped_messages += passed_over
