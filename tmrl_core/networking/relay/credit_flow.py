"""Forwarding of samples through the relay: credit pool, queues and fair scheduling. Sans-I/O."""

# Theory of operation
#
# `Flow` holds every sample that is inside the Server, and answers two questions: who may send how much (credit), and
# whose message goes to the trainer next (turns). It knows the streams and their principals, and nothing of who they are
# or why they come and go.
#
# The relay buffers complete messages as the received frames, in one queue per stream. It rewrites each frame's channel
# and epoch in place and never decodes a payload.
#
# Turns. Streams take turns by bytes (start-time fair queueing, Goyal et al. 1996), one message at a time, as the
# trainer's credit allows. A message counts 4 kB more than it has, since small ones cost more than their bytes.
# Principals take turns first, then the streams of each. Busy principals get shares in proportion to their weights, and
# a stream that sends little need not wait until all busy streams have had a turn. Example: A sends messages of 1 MB all
# the time, B one of 100 kB each second. B's turn is behind A's by nearly all that A has sent meanwhile, so its message
# goes after the one of A that is being sent. What is unused counts for at most 64 kB: after an idle hour, B cannot send
# for an hour.
#
# Credit. All memory for samples comes from one pool of `budget_bytes`. A stream reserves from the pool the bytes that
# it may send and that are not forwarded yet: a small standing credit, and the amount that it requested with `Want`.
# Each `Want` is granted in full or not at all, in the order of turns. A worker sends only messages that fit its credit
# completely. Every reserved byte therefore belongs to a message that will be complete, and incomplete messages cannot
# fill the pool and wait for each other.
#
# All counters of a stream are bytes since the beginning of its epoch and only grow, so a lost or late message about
# them does no harm:
#
#     forwarded <= received <= limit        limit - forwarded   reserved from the pool
#                                           limit - received    credit that the worker has not used
#     wanted                                what it has asked for; above limit while it waits
#
# Example with a pool of 64 MB: a stream begins with limit 65,536. Its worker has a message of 1 MB, asks for a total of
# 1,000,224, and waits in `wants`. A grant raises limit to that and reserves 934,688 bytes more. When the last frame has
# gone to the trainer, forwarded is 1,000,224, nothing is reserved, and the standing credit is renewed: limit 1,065,760,
# of which the worker hears once half of it is new to it.
#
# Fairness of the pool. A principal that has reserved more than `_SHARE_OF_FREE` times the free bytes waits (dynamic
# thresholds, Choudhury and Hahne 1998), and so does one that would leave less than one request of another principal
# (`request_bytes`). Whatever one principal reserves, a part of the pool therefore stays free for the others: alone it
# gets four fifths, and a newcomer finds the last fifth. One request at a time is granted to each principal regardless
# of these rules: where the pool is always full, a fleet with much standing credit would else never be granted a large
# message. Nothing is revoked: a principal that uses none of its credit while others wait loses its link
# (`connection.py`), and its reservations with it.
#
# Time. A message takes the logarithm of the numbers of principals and of the sender's own streams, since both orders
# are heaps of heaps. Heaps are not searched: an entry that became wrong (a stream closed, a turn moved) stays, and is
# dropped or pushed again when it comes to the top. Bytes that come free may suffice for thousands of small requests of
# one principal, so a call of `grant` takes a few steps for each principal, and the relay's links continue it when other
# input had its turn.
#
# Rejected: fixed windows for each worker (200 windows that suit one fast worker exceed any budget); revoking granted
# windows (one more round trip, and a second state machine); interleaving frames of many messages (200 half-received
# messages fill the trainer's inbox without one complete message).

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import FIRST, HEADER_BYTES, LAST, MAX_FRAME_BYTES, Frame, message_bytes
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, Credit, Unused, Want, samples_head
from tmrl_core.networking.relay.streams import RelayStream, Share

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection
    from tmrl_core.networking.relay.core import Relay

_HEAD_START_BYTES = MAX_FRAME_BYTES
"""Bytes of unused turns that a stream or a principal with an empty queue keeps."""
_SHARE_OF_FREE = 4
"""Maximum bytes that one principal reserves, as a multiple of the free ones. Alone, it gets four fifths of the pool."""
_MESSAGE_BYTES = 4_096
"""Bytes that each message counts in the turns besides its own, because it takes as long as so many do."""
_REPLAY_BYTES = 16_384
"""Minimum size of a spooled message in the turns. To read a tiny one takes as long as to forward so many bytes."""
_SMALL_BYTES = 8_192
"""Maximum standing credit of a stream with a role's token, once its others have half of what one principal may have."""
_STEPS = 8
"""Maximum steps for one principal in one call of `Flow.grant`. A grant takes two of them."""


class Flow:
    """Samples that a relay buffers between a worker's link and the trainer's.

    Args:
        relay: owner of the streams.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._settings = settings = relay.settings
        # Stored, because each request is compared with them.
        self._window_bytes, self._request_bytes = settings.window_bytes, settings.request_bytes
        self._most_bytes = max(settings.window_bytes, message_bytes(SAMPLES_HEAD, settings.max_message_bytes))
        """Maximum bytes that a stream may want beyond its credit."""
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
        self._shares: dict[str, Share] = {}
        """Those with a stream, and others whose turn counts; at most as many as there are certificates and roles."""
        self._turns: list[tuple[int, int, Share]] = []
        """Heap of the principals with queued messages: (turn, order among equals, share)."""
        self._order = count(1)
        self._turn = 0
        """Turn of the latest message: bytes forwarded so far for a principal that always has messages."""
        self._asking: list[tuple[int, int, Share]] = []
        """Heap of the principals that want credit: (turn and reserved bytes, order among equals, share)."""
        self._standing_bytes = 0
        """Standing credit of all streams."""
        self.waiting = False
        """True: a principal was refused credit at the last check."""
        self._short_bytes = 0
        """Bytes that the first waiting stream was short of at the last check. Until that many are released, no check is
        needed."""
        self._sending: tuple[RelayStream, list[bytearray], int] | None = None
        self._sending_index = 0
        self._sending_spooled = False

    # --- a stream begins, and ends ---

    def join(self, stream: RelayStream, principal: str, weight: int | None = None) -> None:
        """Count a stream as one of its owner's.

        The owner's latest certificate states the weight. None, for a spooled stream, does not change it.
        """
        share = self._shares.get(principal)
        if share is None:
            share = self._shares[principal] = Share(principal)
        stream.share = share
        stream.share.streams += 1
        if weight is not None:
            stream.share.weight = weight

    def leave(self, stream: RelayStream) -> None:
        """Forget a stream that `void` has emptied."""
        share = stream.share
        share.streams -= 1
        stream.in_turn = False
        if not share.streams:
            share.wants.clear()
            share.queued.clear()
            self._forget_share(share)
        elif len(share.queued) > 2 * share.streams + 64:  # dropped together, as withdrawn requests are
            share.queued = [entry for entry in share.queued if entry[2].in_turn]
            heapify(share.queued)

    def _forget_share(self, share: Share) -> None:
        """Forget a share without streams, unless a heap holds it or its turn is later than that of a new one.

        Otherwise a principal that opens its streams again and again would always come next.
        """
        held = share.streams or share.in_turn or share.asking
        if not held and share.turn <= max(0, self._turn - _HEAD_START_BYTES):
            self._shares.pop(share.principal, None)

    def activate(self, stream: RelayStream) -> None:
        """Begin a new epoch of a stream whose credit was forfeited, with its standing credit."""
        # The field in the header has 16 bits. An old frame would need to be 65,536 resumes late to be taken for a new
        # one.
        stream.epoch = (stream.epoch + 1) & 0xFFFF
        if stream.worker is None:
            return
        stream.active = True
        settings, share = self._settings, stream.share
        standing = settings.standing_bytes
        # A thousand workers with one token have some each: most messages are small, and a request takes a round trip.
        if stream.worker.identity.role is None and share.standing_bytes > settings.budget_bytes // 8:
            standing = min(standing, _SMALL_BYTES)
        # One principal with many streams leaves standing credit for others.
        most = min(settings.budget_bytes // 2, settings.budget_bytes - 2 * self._request_bytes)
        if self._standing_bytes + standing <= most and share.standing_bytes + standing <= settings.budget_bytes // 4:
            self._set_standing(stream, standing)
        self._renew_standing(stream)
        stream.sent_limit = stream.limit

    def _renew_standing(self, stream: RelayStream) -> None:
        """Reserve a stream's standing credit, if that leaves enough for a request."""
        lacking = stream.standing - (stream.limit - stream.forwarded)
        free = self._settings.budget_bytes - self.reserved_bytes
        if lacking > 0 and free - lacking >= self._request_bytes:
            stream.limit += lacking
            self._reserve(stream, lacking)

    def _set_standing(self, stream: RelayStream, standing: int) -> None:
        self._standing_bytes += standing - stream.standing
        stream.share.standing_bytes += standing - stream.standing
        stream.standing = standing

    def _reserve(self, stream: RelayStream, size: int) -> None:
        """Count bytes of the pool as reserved for a stream; a negative size returns them."""
        self.reserved_bytes += size
        stream.share.reserved_bytes += size

    def detach(self, stream: RelayStream) -> None:
        """Discard a stream's incomplete message and return its unused credit to the pool, because its link is gone."""
        self._withdraw(stream)
        if stream.partial:
            self.charge_in_vain(stream, stream.partial_bytes)
        stream.partial = []
        self._reserve(stream, stream.held_bytes - stream.reserved)
        stream.limit = stream.forwarded + stream.held_bytes

    def charge_in_vain(self, stream: RelayStream, n: int) -> None:
        """Charge bytes of samples that a worker has sent and that reach nobody, because of what it did."""
        self._relay.processor_time.charge_in_vain(stream.share.principal, n)

    def _withdraw(self, stream: RelayStream) -> None:
        """Forget that a stream wants credit."""
        self._short_bytes = 0
        stream.over_window = False
        if stream.asking:
            stream.asking = 0
            share = stream.share
            # Withdrawn entries are dropped together, or each of a link's streams would cost a search.
            if len(share.wants) > 2 * share.streams + 64:
                share.wants = [entry for entry in share.wants if entry[1] == entry[2].asking]
                heapify(share.wants)

    def hold(self, stream: RelayStream, size: int) -> None:
        """Count `size` bytes of complete messages; a negative size: they are gone."""
        stream.held_bytes += size
        self.queued_bytes += size

    def void(self, stream: RelayStream) -> None:
        """Drop all buffered messages of a stream and return its reserved bytes; spooled messages stay."""
        self.hold(stream, -stream.held_bytes)
        stream.queue.clear()
        stream.handed.clear()
        stream.replay = None
        if self._sending is not None and self._sending[0] is stream:
            self._sending = None
        stream.partial = []
        self._reserve(stream, -stream.reserved)
        stream.limit = stream.forwarded = stream.received = stream.sent_limit = stream.wanted = 0
        self._set_standing(stream, 0)
        stream.active = False
        self._withdraw(stream)

    # --- from workers ---

    def frame(self, connection: RelayConnection, frame: Frame) -> bool:
        """Handle a DATA frame from a worker. Return False if it belongs to no current epoch."""
        stream = connection.stream(frame.channel)
        if not stream.active or frame.epoch != stream.epoch:
            if frame.flags & LAST:
                self.discarded_messages += 1
            return False
        size = len(frame.buffer)
        stream.received += size
        # A worker that ignores its credit would fill the memory that others have reserved.
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
        # Now and not when it is forwarded: the header is in the cache, and a stream has one channel until it is
        # announced anew.
        frame.readdress(frame.epoch, stream.trainer_channel)
        if frame.flags & LAST:
            if stream.partial_bytes != stream.partial_length:
                raise RemoteProtocolError("a message's frames and its head say different lengths")
            frames, stream.partial = stream.partial, []
            if stream.handing:
                self._relay.spool_handoff.take(stream, frames, stream.partial_bytes)
                return True
            stream.queue.append(frames, stream.partial_bytes)
            self.hold(stream, stream.partial_bytes)
            self.take_turns(stream)
        elif stream.partial_bytes >= stream.partial_length:
            raise RemoteProtocolError("a message's frames and its head say different lengths")
        # A frame costs more memory than its bytes, so that many small frames would exceed the budget.
        elif size != MAX_FRAME_BYTES:
            raise RemoteProtocolError("only a message's last frame is not full")
        return True

    def want(self, connection: RelayConnection, message: Want) -> None:
        """Handle a worker's request for credit for complete messages."""
        stream = connection.stream(message.channel)
        if not stream.active or message.epoch != stream.epoch:
            return
        # A request that could never be granted would stop all that come after it.
        if message.total > stream.limit + self._most_bytes:
            raise RemoteProtocolError("more credit was asked for than the window allows")
        if message.total > stream.wanted:
            stream.wanted = message.total
            self._ask(stream)
            self._short_bytes = 0
            self.grant()

    def unused(self, connection: RelayConnection, message: Unused) -> None:
        """Take back the credit of a worker that has dropped the messages, and whose next one is larger.

        Otherwise, a few workers that stop sending after a trainer's absence could hold the whole pool.
        """
        stream = connection.stream(message.channel)
        if not stream.active or message.epoch != stream.epoch:
            return
        if message.size > stream.limit - stream.received:
            raise RemoteProtocolError("more credit was given back than was left")
        stream.received += message.size
        self.forwarded(stream, message.size)

    def unused_credit(self, stream: RelayStream) -> int:
        """Return the bytes that a stream was granted beyond its standing credit and has not used."""
        return max(0, stream.limit - stream.received - stream.standing)

    def _ask(self, stream: RelayStream) -> None:
        """Take a place in the order in which credit is granted."""
        share = stream.share
        stream.over_window = False
        if not stream.asking:
            stream.asking = next(self._order)
            heappush(share.wants, (stream.turn, stream.asking, stream))
        if not share.asking:
            share.asking = True
            heappush(self._asking, (self._place(share), next(self._order), share))

    def _place(self, share: Share) -> int:
        """Return the place of a principal among those that want credit: the turn at which it will have used its own."""
        if not share.in_turn:
            share.turn = max(share.turn, self._turn - _HEAD_START_BYTES)
        return share.turn + share.reserved_bytes // share.weight

    def grant(self) -> None:
        """Grant the requested credit in the order of turns, as far as the pool suffices.

        A waiting principal keeps its turn while served ones move back, so that none starves.
        """
        if self._settings.budget_bytes - self.reserved_bytes < self._short_bytes:
            return
        self._short_bytes = 0
        self._relay.unfinished = False
        passed_over = []
        asking = self._asking
        steps: dict[Share, int] = {}
        while asking:
            place, order, share = asking[0]
            steps[share] = steps.get(share, 0) + 1
            if not share.wants:
                share.asking = False
                heappop(asking)
                self._forget_share(share)
                continue
            if steps[share] > _STEPS:
                self._relay.unfinished = True
                passed_over.append(heappop(asking))
                continue
            turn, since, stream = share.wants[0]
            if since != stream.asking:
                heappop(share.wants)  # the request was withdrawn
            elif turn < stream.turn:
                heapreplace(share.wants, (stream.turn, since, stream))
            elif place < self._place(share):
                heapreplace(asking, (self._place(share), order, share))
            else:
                need = stream.wanted - stream.limit
                free = self._settings.budget_bytes - self.reserved_bytes
                if self._exceeds_share(share, need, free):
                    passed_over.append(heappop(asking))
                    continue
                if need > free:
                    # Later ones wait too, so that a large request is not overtaken forever.
                    self._short_bytes = 0 if self._relay.unfinished else need
                    break
                heappop(share.wants)
                stream.asking = 0
                over = stream.wanted - stream.forwarded > self._window_bytes
                if need > 0 and over and stream.reserved > stream.standing:
                    stream.over_window = True  # it asks again after some of its messages were forwarded
                    continue
                if need > 0:
                    stream.limit += need
                    self._reserve(stream, need)
                # The standing credit may already cover the request without the worker's knowledge.
                self._send_credit(stream)
        for entry in passed_over:
            heappush(asking, entry)
        self.waiting = bool(asking)

    def _exceeds_share(self, share: Share, need: int, free: int) -> bool:
        """Return True if a principal that gets `need` of the `free` bytes would leave others too little."""
        request = self._request_bytes
        if need <= 0 or (share.reserved_bytes <= share.standing_bytes and need <= request):
            return False
        return share.reserved_bytes + need > _SHARE_OF_FREE * (free - need) or free - need < request

    def _send_credit(self, stream: RelayStream) -> None:
        if stream.worker is not None and stream.limit > stream.sent_limit:
            stream.sent_limit = stream.limit
            stream.worker.put(("credit", stream.channel), Credit(stream.channel, stream.epoch, stream.limit))

    def forwarded(self, stream: RelayStream, size: int) -> None:
        """Return a message's bytes to the pool: it was sent to the trainer, or stored in the spool."""
        stream.forwarded += size
        self._reserve(stream, -size)
        if stream.over_window:
            self._ask(stream)
        if stream.worker is None:
            self._relay.forget_if_done(stream)
        else:
            self._renew_standing(stream)
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
        for _, _, share in self._turns:
            share.in_turn = False
            share.queued.clear()
        self._turns.clear()

    def trainer_credit(self, message: Credit) -> None:
        """Handle the trainer's credit for more samples."""
        self._trainer_limit = max(self._trainer_limit, message.limit)
        if self._relay.trainer is not None:
            self._relay.trainer.wake()

    def take_turns(self, stream: RelayStream) -> None:
        """Schedule a stream that has messages for the trainer."""
        share = stream.share
        # The idle accumulate little. A stream that sends little always comes next among those of its principal.
        if not stream.in_turn:
            stream.in_turn = True
            stream.turn = max(stream.turn, share.stream_turn - _HEAD_START_BYTES)
            heappush(share.queued, (stream.turn, next(self._order), stream))
        if not share.in_turn:
            share.in_turn = True
            # The head start lets a principal that sends now and then come next, and limits what it may save up.
            share.turn = max(share.turn, self._turn - _HEAD_START_BYTES)
            heappush(self._turns, (share.turn, next(self._order), share))
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
                self.hold(stream, -size)
                self.forwarded(stream, size)
        return frame

    def _next_message(self) -> bool:
        turns = self._turns
        while turns:
            share = turns[0][2]
            if not share.queued:
                heappop(turns)
                share.in_turn = False
                self._forget_share(share)
                continue
            stream = share.queued[0][2]
            spooled = None if stream.replay is None else self._relay.spool_handoff.upcoming(stream)
            # It has nothing more, and leaves the turns; `take_turns` brings it back.
            if spooled is None and not stream.queue.nbytes:
                heappop(share.queued)
                stream.in_turn = False
                continue
            size = stream.queue.first_bytes if spooled is None else spooled.size
            # The whole message or nothing, as for workers: the trainer's memory must never hold parts that wait for
            # credit. The first in turn waits, whatever its size, or a large message would be overtaken for ever.
            if self._trainer_sent + size > self._trainer_limit:
                return False
            if spooled is None:
                frames = stream.queue.popleft()
            else:
                replayed = self._relay.spool_handoff.frames(stream, spooled)
                if replayed is None:
                    self._relay.forget_if_done(stream)
                    continue
                frames = replayed
            self._turn, share.stream_turn = share.turn, stream.turn
            turn_bytes = size + _MESSAGE_BYTES if spooled is None else max(size + _MESSAGE_BYTES, _REPLAY_BYTES)
            stream.turn += turn_bytes
            share.turn += -(-turn_bytes // share.weight)
            heapreplace(share.queued, (stream.turn, next(self._order), stream))
            heapreplace(turns, (share.turn, next(self._order), share))
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
