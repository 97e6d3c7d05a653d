"""Core of the Server: admission of peers, routing of messages and limits of memory. Sans-I/O.

`Relay` knows the linked peers and routes their messages. `credit_flow.py` forwards samples. `spooling.py` stores the
samples of workers that end while no trainer is linked.
"""

# Theory of operation
#
# `Relay` is the Server without its sockets: it knows the linked peers, decides who is admitted, and routes messages
# between links. It never decodes a payload, keeps no sample that its worker does not keep too, and can be killed at any
# moment: what matters is with the workers and the trainer, who find each other again through any Server. Transports
# drive the links (`RelayConnection`), which call the relay; its answers go out through the links' `send` and `put`. All
# of it happens in one thread, so nothing here has a lock.
#
# Parts with rules of their own stand beside it: `credit_flow.py` forwards samples, `spooling.py` acts as trainer while
# there is none, `latest_policy.py` stores weights, `status.py` takes snapshots; `processor_time.py`,
# `stream_budget.py`, `id_registry.py`, `sent_weights.py` and `places.py` bound what one principal may take from the
# others; `viewers.py` shows observers what the trainer of a run tells of it.
#
# Who is who. A *peer* is a process, named by 16 random bytes of its own. A *principal* is the holder of a certificate,
# or of a role's token: the owner of ids, the unit of every limit. A *stream* belongs to the principal that opened it
# first. Names that peers choose are labels and decide nothing.
#
# A worker's way: `Hello` -> authenticated -> `Welcome`, then the card, the report and the directive of its run, if
# there is a trainer -> `OpenStream` -> announced to the trainer (`StreamOpened`), or halted (`Halt`) -> the trainer's
# `Resume`, from which on samples flow (`credit_flow.py`). The other order, a trainer that comes to streams that wait,
# passes the same function, `introduce`.
#
# The order of three things matters. Revocations go before streams, so that a trainer never opens a stream of a
# certificate that it will hear to be revoked. A card goes before what its trainer has sent, so that a worker can check
# it. And a stream that is taken over by a new link is detached from the old one first, so that one number is never in
# two queues.
#
# What peers tell each other is of two kinds. Acknowledgements, resumes and halts are messages in order. Everything else
# from the trainer (weights, directives, report, card, incarnation) is a last value: a slow worker holds one value of
# each kind, whatever the trainer sends meanwhile. Values that must outlive their trainer are kept here for the run: its
# card, and the directive that says that the run is over. Both are bounded in number, the oldest run goes first.
#
# Incarnations. Policies have versions (incarnation, counter), which must never go back, and a Server that restarts has
# forgotten them. So peers report what they know in `Hello`. The relay gives each new trainer a number above all that it
# has heard of. Example: the Server dies with incarnation 4 known and starts again with 0. A worker that has policy 4.17
# connects and reports 4; the trainer, still running, reports `holding=4` and keeps it, and its next policy is 4.18. If
# the trainer had come first, as a new process, it would be 1; the worker's report then raises the number to 5, which
# `Incarnation` tells the trainer, and it publishes again under 5.
#
# A number from a peer may be invented, so it is believed within limits (`_BELIEVED`), which leave room to exceed it,
# and 16 times for one principal (`_MOST_RAISES`), because each makes the trainer publish again. A peer beyond them is
# not refused but told to forget its numbers (`anew`). Rejected: a limit relative to the Server's own count (after a
# restart it refused every peer that knew the number), and counting from the clock (the clocks of Servers and trainers
# can be wrong). A trainer that authenticates chooses its own incarnation, since a Server that was taken over must not
# decide which policy is newer; the relay then only suggests.
#
# What fails. A peer that breaks the protocol loses its link, with the reason, and nobody else notices: `_fail` and
# `refuse` end in `left`, which takes its streams' complete messages as they are and forgets the rest. A trainer that
# leaves makes every queue worthless, because the next one resumes elsewhere: queues are cleared, and workers told to
# halt.

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.connection import Authenticate
from tmrl_core.networking.protocol.framing import FIRST, Frame, Kind
from tmrl_core.networking.protocol.messages import (
    ALL_CHANNELS,
    MAX_BODY_BYTES,
    MAX_CARD_BYTES,
    MAX_COUNT,
    MAX_NAME_CHARACTERS,
    MAX_NUMBER,
    MAX_WAITS_CHARACTERS,
    MOST_RAISED,
    PROTOCOL_VERSION,
    Ack,
    Announce,
    CloseStream,
    Command,
    Control,
    Credit,
    Direct,
    Echo,
    Film,
    Forged,
    Halt,
    HandOver,
    Have,
    Hello,
    Lacks,
    Lateness,
    Notice,
    OpenStream,
    Place,
    Probe,
    Report,
    Resume,
    Show,
    StatusPage,
    StatusRequest,
    StreamClosed,
    StreamOpened,
    Unused,
    Version,
    Waits,
    Want,
    Watch,
    Welcome,
    plain,
    versions_of,
)
from tmrl_core.networking.relay.connection import REGISTERED, RelayConnection
from tmrl_core.networking.relay.credit_flow import Flow
from tmrl_core.networking.relay.id_registry import IdRegistry
from tmrl_core.networking.relay.latest_policy import Policies, Policy
from tmrl_core.networking.relay.linked_workers import LinkedWorkers
from tmrl_core.networking.relay.membership_log import MembershipLog
from tmrl_core.networking.relay.places import Places
from tmrl_core.networking.relay.probes import Probes
from tmrl_core.networking.relay.processor_time import (
    PAUSE_S,
    SIGNATURE_BYTE_S,
    STATUS_BYTE_S,
    STREAM_S,
    WAITS_BYTE_S,
    WAITS_S,
    ProcessorTime,
)
from tmrl_core.networking.relay.sent_weights import SentWeights
from tmrl_core.networking.relay.settings import RelaySettings
from tmrl_core.networking.relay.spooling import SpoolHandoff
from tmrl_core.networking.relay.status import FRESH_S, MAX_OBSERVERS, WATCHED_S, Snapshots
from tmrl_core.networking.relay.stream_budget import LINKS_OF_ONE, StreamBudget
from tmrl_core.networking.relay.streams import RelayStream
from tmrl_core.networking.relay.viewers import Viewers
from tmrl_core.networking.spools.spool import MemorySpool, Spool

_MAX_STREAMS_PER_LINK = 1_024
_MAX_UNREAD_BYTES = 16 << 20
"""Maximum unread control bytes of a peer. A worker that opens further streams beyond its own limit, or the trainer's,
loses its link."""
_MAX_RUNS = 64
"""Maximum number of runs whose lasting directive, or whose card, is stored."""
_BELIEVED = {"worker": 1 << 48, "trainer": 1 << 61}
"""Highest incarnation accepted from each role.

The bounds keep peers from exhausting the numbers. A worker, whose machine may be stolen, cannot report an incarnation
that a trainer could not exceed. A peer with a higher one starts again with this Server's incarnation."""
_MOST_RAISES = 16
"""Number of times that workers of one identity may report a higher incarnation than the linked trainer's.

Each such report makes the trainer publish again. After a restart of the Server, one report is normal."""


_BEHIND_PAUSE_S = 0.5
"""Time for which nothing is read from links that hand over faster than the spool stores."""


def _pause(links: Iterable[RelayConnection], seconds: float) -> None:
    """Read nothing from these links for some seconds.

    The transport resumes them in this order, and the first that is read may be followed by another pause of all. So the
    one that was read longest ago comes first, or the others would never be read.
    """
    for link in sorted(links, key=lambda link: link.read_at):
        link.pause(seconds)


class Relay:
    """Hub between many workers and one trainer. Not thread-safe: one thread drives all of its connections.

    Args:
        settings: bounds.
        authenticate: checks a peer's `Hello`; the default admits every peer (for the in-process transport).
        on_refused: called with (address, reason) for each peer that is refused or breaks the protocol.
        wall_clock: seconds since 1970, for clients that compare their clock with the Server's.
        spool: stores samples of workers that end while there is no trainer; None: nothing is stored.
        say: called with each line for the Server's log.
        check_update: called with the beginning of each policy update; raises RemoteProtocolError if it is not one.
    """

    def __init__(
        self,
        settings: RelaySettings | None = None,
        authenticate: Authenticate = lambda hello, connection: None,
        on_refused: Callable[[str, str], None] = lambda address, reason: None,
        wall_clock: Callable[[], float] = time.time,
        spool: Spool | None = None,
        say: Callable[[str], None] = lambda line: None,
        check_update: Callable[[memoryview], None] = lambda begin: None,
    ) -> None:
        self.settings = settings or RelaySettings()
        self.authenticate = authenticate
        self.on_refused = on_refused
        self.wall_clock = wall_clock
        self.probes = Probes(self)
        self.membership_log = MembershipLog(say)
        self.incarnation = 0
        self.policies = Policies(self.settings.max_policy_bytes, check_update)
        self.workers: dict[bytes, RelayConnection] = {}
        self.trainer: RelayConnection | None = None
        self.observers = Places(MAX_OBSERVERS)
        self.viewers = Viewers()
        self.snapshots = Snapshots(self)
        self.process: Callable[[], Mapping[str, Any]] = dict
        """Return facts about the process for observers: any of `uptime_s`, `pid`, `memory_bytes`, ..."""
        self.unfinished = False
        """True: `Flow.grant` left requests for its next call, which should come soon."""
        self.signed_revocations: Callable[[], bytes] = bytes
        """Return the list of revoked certificates with the CA's signature, for workers and the trainer; empty: none."""
        self.streams: dict[bytes, RelayStream] = {}
        self._stream_ids = IdRegistry()
        self._peer_ids = IdRegistry()
        self._stream_budget = StreamBudget()
        self._raises: Counter[str] = Counter()
        self.spool_handoff = SpoolHandoff(self, MemorySpool(0) if spool is None else spool, say)
        self.flow = Flow(self)
        self.linked = LinkedWorkers()
        self.processor_time = ProcessorTime(self.linked.of_principal)
        self.sent_weights = SentWeights()
        self.refused_peers = 0
        """Number of peers whose requests were refused."""
        self.protocol_errors = 0
        """Number of peers that violated the protocol."""
        self._by_trainer_channel: dict[int, RelayStream] = {}
        self._next_trainer_channel = 1
        self._report: Report | None = None
        self._direct_all: Direct | None = None
        self._lasting: OrderedDict[str, Direct] = OrderedDict()
        """Directive for all workers of a run that stays in force without its trainer, by run."""
        self._held_by = (0, b"")
        """Incarnation and peer id of the latest trainer."""
        self._announced: Announce | None = None
        """Card of the linked trainer."""
        self._cards: OrderedDict[str, Announce] = OrderedDict()
        """Card of each run's latest trainer, which may have left."""

    def connection(self) -> RelayConnection:
        """Return a new connection for a transport to drive."""
        return RelayConnection(self)

    # --- events of the links ---

    def message(self, link: RelayConnection, message: Control) -> None:
        """Handle a message that is legal in the link's state.

        Raises:
            RemoteProtocolError: its content is not allowed.
        """
        match message:
            case Want():
                self.flow.want(link, message)
            case Ack():
                self._forward_ack(message)
            case Credit():
                self.flow.trainer_credit(message)
            case Have():
                link.confirm_policy((message.incarnation, message.counter))
            case Lacks():
                link.base = (0, 0)
            case Report():
                self._report = message
                for worker in self._workers_of_run():
                    worker.put("report", message)
            case Direct():
                self._direct(message)
            case Waits():
                stream = link.stream(message.channel)
                stream.waits = plain(message.text, MAX_WAITS_CHARACTERS)
                link.trainer_s += WAITS_S + len(stream.waits.encode()) * WAITS_BYTE_S
                self._send_wait_reason(stream)
            case Lateness():
                stream = link.stream(message.channel)
                stream.lateness = message
                link.trainer_s += WAITS_S
                self._send_lateness(stream)
            case Unused():
                self.flow.unused(link, message)
            case Resume():
                self._resume(message)
            case Halt():
                self._halt_stream(message)
            case OpenStream():
                if link.opened or link.identity.role is not None:  # a fleet with one token connects again together
                    link.trainer_s += STREAM_S + len(message.signature) * SIGNATURE_BYTE_S
                link.opened = True
                self.open_stream(link, message)
            case CloseStream():
                self._close_stream(link.stream(message.channel))
            case HandOver():
                self.spool_handoff.begin(link, message.channel)
            case Place():
                if link.has_kept:
                    raise RemoteProtocolError("it has told its number already")
                link.has_kept = True
                # Otherwise another worker has got the number while this one was away, and keeps it.
                self.linked.keep_place(link, message.number)
            case Announce():
                self._announce(link, message)
            case Forged():
                link.forged = min(message.count, MAX_COUNT)
                link.outdated = min(message.outdated, MAX_COUNT)
            case StatusRequest():
                self._show(link, message.page)
            case Show():
                self.viewers.show(link, message)
            case Film():
                self.viewers.film(link, message)
            case Watch():
                self._watch(link, message.run)
            case Command():
                self.viewers.command(link, message)
            case Echo():
                link.echoes.take(message)
                link.wake()
            case Hello():
                self._accept_hello(link, message)
                link.admitted()
                if link.state in REGISTERED:
                    self.membership_log.joined(link, link.now)
            case Probe():
                self.probes.accept(link, message, link.now)
                link.admitted()

    def other_version(self, link: RelayConnection, greeting: memoryview) -> bool:
        """Refuse a peer whose first message is unreadable, if it speaks only other versions. False: it does not."""
        # A message of another protocol version may be unreadable, but its version number never is.
        versions = versions_of(greeting)
        if not versions or PROTOCOL_VERSION in versions:
            return False
        self.refuse_versions(link, versions)
        return True

    def _take_policy(self, link: RelayConnection, frame: Frame) -> None:
        """Handle a frame of the trainer's policy."""
        policy = self.policies.take(frame, self.trainer_incarnation)
        if policy.whole:
            link.put("have", Have(*policy.version))
        if policy.whole or frame.flags & FIRST:
            self.limit_old_policies()
        if not policy.abandoned:
            self.notify_policy()

    def next_policy(self, link: RelayConnection) -> Policy | None:
        """Return the version that a worker's link begins to send; None: nothing is to be sent, or not yet."""
        policy = self.policies.version_for(link.run, link.have, link.base)
        if policy is None or link.identity.role is None:  # a fleet may share a token
            return policy
        wait_s = self.sent_weights.wait_s(link.principal, policy.version, policy.size, link.now)
        link.policy_due = link.now + wait_s if wait_s else float("inf")
        return None if wait_s else policy

    def charge(self, link: RelayConnection, seconds: float, now: float) -> None:
        """Charge processor time to the link's principal, and read its links slowly if it has used up its share."""
        time_of, principal = self.processor_time, link.principal
        pause_s = time_of.charge(principal, seconds, now, link.trainer_s)
        link.trainer_s = 0.0
        if link.closing:
            return
        if pause_s:
            links = [link]
            if time_of.begin_pause(principal, pause_s, now):
                everyone = (*self.workers.values(), *self.observers, *self.probes.places)
                links = [one for one in everyone if one.principal == principal]
            time_of.charge(principal, PAUSE_S * len(links), now)
            _pause(links, pause_s)
            if time_of.should_log(principal, now):
                self.membership_log.slowed(link)
        if link.hands_over and self.spool_handoff.is_behind(principal):
            links = [one for one in self.workers.values() if one.principal == principal and one.hands_over]
            _pause(links, max(pause_s, _BEHIND_PAUSE_S))

    def overspent(self, link: RelayConnection) -> bool:
        """Return True if the link's principal has used more processor time than its share."""
        return self.processor_time.overspent(link.principal, link.now)

    def passed(self, link: RelayConnection, now: float) -> None:
        """Handle the passing of time; send the trainer the size of the queues."""
        if self.unfinished:
            self.flow.grant()
        self.membership_log.passed(now)
        if link in self.viewers and not link.closing:
            link.tell_revocations(self.signed_revocations())
        if link.state not in REGISTERED or link.closing:
            return
        if now >= link.checked_at + link.heartbeat_s:
            unused = sum(map(self.flow.unused_credit, link.streams.values())) if self.flow.waiting else 0
            link.check_progress(now, unused)
        if not link.closing:
            link.tell_revocations(self.signed_revocations())
        if link is self.trainer and now - link.noticed_at >= link.heartbeat_s:
            link.noticed_at = now
            self.notice()

    def left(self, link: RelayConnection, reason: object) -> None:
        """Remove a link, although its transport may still be open."""
        if link.state in REGISTERED:
            self.membership_log.left(link, reason, link.now)
        if link.state == "worker":
            self.worker_left(link)
        elif link is self.trainer:
            self._trainer_left(link)
        elif link.state == "probe":
            self.probes.places.discard(link)
        elif link.state == "observer":
            self.observers.discard(link)
            self.viewers.left(link)

    def misused(self, link: RelayConnection, reason: str) -> None:
        """Count a violation of the protocol."""
        self.protocol_errors += 1
        self.on_refused(link.identity.address, reason)

    def _show(self, link: RelayConnection, page: int) -> None:
        """Send an observer one page at a time, so that little data waits for a slow observer."""
        if link.unread_bytes > MAX_BODY_BYTES:
            raise RemoteProtocolError("status pages are requested faster than they are read")
        if page == 0:
            link.snapshot = self.snapshots.take(link.now, WATCHED_S if link in self.viewers else FRESH_S)
        pages = -(-len(link.snapshot) // MAX_BODY_BYTES)
        if page >= pages:
            raise RemoteProtocolError(f"there is no page {page} of {pages}")
        body = link.snapshot[page * MAX_BODY_BYTES : (page + 1) * MAX_BODY_BYTES]
        if page == pages - 1:
            link.snapshot = b""
        link.answers_s += len(body) * STATUS_BYTE_S
        link.send(StatusPage(page, pages, body))

    def _watch(self, link: RelayConnection, run: str) -> None:
        """Show an observer the telemetry of a run, after what it needs to check it."""
        if link.unread_bytes > MAX_BODY_BYTES:
            raise RemoteProtocolError("runs are watched faster than the answers are read")
        link.tell_revocations(self.signed_revocations())
        link.flush("revoked")
        self.viewers.watch(link, run)  # last values, which leave after messages in order
        if (card := self._cards.get(self.viewers.run_of(link))) is not None:
            link.send(card)

    # --- admission ---

    def _accept_hello(self, connection: RelayConnection, hello: Hello) -> None:
        """Answer a `Hello`: admit the peer, or refuse it with the reason."""
        if len(hello.peer) != 16:
            raise RemoteProtocolError("a peer's id has 16 bytes")
        # Before anything of the message is used, and before its id could tell who else is linked.
        if not self.admits(connection, hello):
            return
        if hello.incarnation >= MAX_NUMBER:
            raise RemoteProtocolError(f"no trainer has had the incarnation {hello.incarnation}")
        connection.anew = hello.role != "observer" and hello.incarnation > max(self.incarnation, _BELIEVED[hello.role])
        if hello.role == "worker" and self.trainer is not None and hello.incarnation > self.incarnation:
            self._raises[connection.principal] += not connection.anew
            if self._raises[connection.principal] > _MOST_RAISES and connection.identity.role is not None:
                raise RemoteProtocolError("it repeatedly reports a higher incarnation")
            # Many workers may share a token. A worker that has used up its reports does not exclude the others.
            connection.anew |= self._raises[connection.principal] > _MOST_RAISES
        if connection.anew:
            hello = msgspec.structs.replace(hello, incarnation=0, holding=0, have=(0, 0), base=(0, 0))
        link = self.workers.get(hello.peer)
        taken = link is not None and link.principal != connection.principal  # also if the identity was forgotten
        if hello.role != "observer" and (taken or not self._peer_ids.claim(hello.peer, connection.principal)):
            self.refuse_peer(
                connection,
                "name",
                "this peer's id was first used with other credentials, and belongs to them. If these are new, start "
                "this process again, which gives it a new id",
            )
            return
        connection.run = hello.run
        connection.name = connection.called = plain(hello.name, MAX_NAME_CHARACTERS)
        connection.peer = hello.peer
        if hello.role == "worker":
            self._accept_worker(connection, hello)
        elif hello.role == "trainer":
            self._accept_trainer(connection, hello)
        else:
            self._accept_observer(connection)

    def admits(self, connection: RelayConnection, hello: Hello) -> bool:
        """Return True for a peer of a known version with valid credentials, which the link has then; refuse others."""
        if PROTOCOL_VERSION not in hello.versions:
            self.refuse_versions(connection, hello.versions)
            return False
        verdict = self.authenticate(hello, connection)
        if verdict is not None:
            self.refuse_peer(connection, *verdict)
            return False
        connection.belong_to_holder(hello.role)
        return True

    def refuse_versions(self, connection: RelayConnection, versions: tuple[int, ...]) -> None:
        """Tell a peer that the two sides have no protocol version in common."""
        theirs = ", ".join(map(str, versions[:20])) or "none"
        older = "the peer's" if max(versions, default=0) < PROTOCOL_VERSION else "the Server's"
        self.refuse_peer(
            connection,
            "protocol",
            f"the Server speaks protocol version {PROTOCOL_VERSION}, the peer {theirs}: install the same version of "
            f"tmrl_core on both sides ({older} is the older one)",
        )

    def refuse_peer(self, connection: RelayConnection, code: str, reason: str, delay_s: float = 0.0) -> None:
        """Refuse a peer's request with the reason, count the refusal and log it immediately."""
        self.refused_peers += 1
        self.on_refused(connection.identity.address, connection.identity.named(reason))
        if delay_s > 0:
            connection.refuse_later(code, reason, delay_s)
        else:
            connection.refuse(code, reason)

    def _welcome(self, connection: RelayConnection, incarnation: int) -> None:
        settings = self.settings
        connection.send(
            Welcome(
                PROTOCOL_VERSION,
                incarnation,
                settings.window_bytes // 2,
                settings.max_message_bytes,
                settings.max_policy_bytes,
                settings.heartbeat_s,
                self.spool_handoff.spool.limit_bytes,
                connection.anew,
            )
        )
        if connection.state != "observer":
            connection.tell_revocations(self.signed_revocations())
            connection.flush("revoked")  # before any stream

    def no_place_for(self, role: str) -> str:
        """Return the reason why one more peer of that role would be refused now; empty: it would be admitted."""
        limit = self.settings.max_workers
        if role == "worker" and limit is not None and len(self.workers) >= limit:
            return (
                f"this Server takes {limit} workers (server.max_workers) and has them; it tries again when one leaves"
            )
        older = self.trainer
        if role == "trainer" and older is not None:
            return (
                f"this Server already has a trainer ({older.name or 'unnamed'} of run {older.run!r}, at "
                f"{older.identity.address}); stop that one, or wait until it ends"
            )
        return ""

    def _accept_worker(self, connection: RelayConnection, hello: Hello) -> None:
        older = self.workers.get(hello.peer)
        if older is None and (no_place := self.no_place_for("worker")):
            self.refuse_peer(connection, "full", no_place)
            return
        # Several machines may share a token.
        of_one = self.linked.of_principal[connection.principal]
        if older is None and connection.identity.role is not None and of_one >= LINKS_OF_ONE:
            self.refuse_peer(
                connection,
                "full",
                f"{LINKS_OF_ONE} workers with this certificate are connected already; make bundles for others",
            )
            return
        # A dead link may look alive for `silent_s`. Its peer is here, so the old one is closed without waiting for
        # that.
        if older is not None:
            older.refuse("superseded", "the same worker has connected again")
        self.linked.enter(connection)
        self.workers[hello.peer] = connection
        connection.state, connection.takes = "worker", Kind.DATA
        connection.sink, connection.source = self.flow.frame, connection.next_policy_frame
        connection.have, connection.base = hello.have, hello.base
        connection.claimed = hello.incarnation
        self._welcome(connection, self.incarnation)
        if connection.place > 1:
            connection.send(Place(connection.place))
        card = self._cards.get(connection.run)
        if card is not None:
            connection.send(card)
        if hello.incarnation > self.incarnation:
            self.incarnation = hello.incarnation
            if self.trainer is not None:
                self.incarnation += 1
                self.trainer.suggest(self.incarnation)
        if self.trainer is not None and self.trainer.run == connection.run:
            if self._report is not None:
                connection.put("report", self._report)
            if self._direct_all is not None:
                connection.put("direct-all", self._direct_all)
        elif connection.run in self._lasting:
            connection.put("direct-all", self._lasting[connection.run])
        self.notice()

    def _accept_trainer(self, connection: RelayConnection, hello: Hello) -> None:
        older = self.trainer
        if older is not None and older.peer != hello.peer:
            self.refuse_peer(connection, "trainer_present", self.no_place_for("trainer"))
            return
        if older is not None:
            older.refuse("superseded", "the same trainer has connected again")
        known = max(self.incarnation, hello.incarnation)
        # Trainers that choose their incarnation may choose the same one.
        free = self._held_by[1] == hello.peer or self._held_by[0] != known
        self.incarnation = known if hello.holding and hello.holding == known and free else known + 1
        connection.announces = hello.announces
        if not hello.announces:
            self._held_by = (self.incarnation, hello.peer)
        self._raises.clear()
        self.policies.begin_run(hello.run)
        self._lasting.pop(hello.run, None)
        if not hello.announces and self._cards.pop(hello.run, None) is not None:
            self.policies.clear()  # this trainer does not authenticate, and workers that do not cannot use it
        self.limit_old_policies()
        self.trainer = connection
        self.flow.trainer_came()
        connection.state, connection.takes, connection.is_first = "trainer", Kind.WEIGHTS, True
        connection.sink, connection.source = self._take_policy, self.flow.next_frame
        connection.unanswered = 1  # the welcome has an incarnation
        self._welcome(connection, self.incarnation)
        self.viewers.trainer_came(connection)
        for stream in self.streams.values():
            if stream.worker is not None:
                self.introduce(stream)
        self.spool_handoff.introduce(hello.run)
        self.notice()

    def _accept_observer(self, connection: RelayConnection) -> None:
        """Admit an observer. It takes no worker's place, and no peer is notified of it."""
        if not self.observers.admit(connection):
            self.refuse_peer(connection, "full", f"{MAX_OBSERVERS} observers are connected already; try again later")
            return
        connection.state = "observer"
        self._welcome(connection, self.incarnation)

    def introduce(self, stream: RelayStream) -> None:
        """Announce a stream to the trainer if both are of the same run; the trainer answers with a `Resume`."""
        trainer = self.trainer
        worker = stream.worker
        if trainer is None or trainer.run != stream.run:
            if worker is not None and not stream.handing:  # the spool still acts as the stream's trainer
                reason = ""
                if trainer is not None:
                    reason = (
                        f"the Server's trainer is of run {trainer.run!r}, this worker of run {stream.run!r}: nothing "
                        "is sent until the names are the same (run.name)"
                    )
                worker.send(Halt(stream.channel, reason))
            return
        # Never reused on this link: messages about a stream that has left, still on their way from the trainer, must
        # not hit another one.
        stream.trainer_channel = self._next_trainer_channel
        self._next_trainer_channel += 1
        self._by_trainer_channel[stream.trainer_channel] = stream
        live = worker is not None and not stream.stored
        trainer.send(StreamOpened(stream.trainer_channel, stream.id, stream.name, stream.signature, live))
        if stream.waits:
            self._send_wait_reason(stream)
        self._send_lateness(stream)

    def open_stream(self, connection: RelayConnection, message: OpenStream) -> None:
        """Open a stream on a worker's link."""
        if len(message.stream) != 16:
            raise RemoteProtocolError("a stream's id has 16 bytes")
        if message.channel in connection.streams:
            raise RemoteProtocolError(f"channel {message.channel} is open already")
        if len(connection.streams) >= _MAX_STREAMS_PER_LINK:
            raise RemoteProtocolError(f"a link carries at most {_MAX_STREAMS_PER_LINK} streams")
        if connection.unread_bytes > _MAX_UNREAD_BYTES:
            raise RemoteProtocolError("streams are opened faster than the answers are read")
        if self.trainer is not None and self.trainer.unread_bytes > _MAX_UNREAD_BYTES:
            # Others may have opened them.
            self.refuse_peer(connection, "full", "too many new streams wait for the trainer's link; try again later")
            return
        # Also if the id was forgotten, as after a restart of the Server.
        taken = not self._owners_of(message.stream) <= {connection.principal}
        if taken or not self._stream_ids.claim(message.stream, connection.principal):
            self.refuse_peer(
                connection,
                "name",
                "this stream was first opened with other credentials, and belongs to them. If these are new, start "
                "this process again, which gives it a new stream",
            )
            return
        name = plain(message.name, MAX_NAME_CHARACTERS)
        label = connection.name if name == connection.called else name
        stream = RelayStream(message.stream, label, connection.run, message.signature)
        self.spool_handoff.kept(stream)  # if the stream is spooled, its run must be the same
        older = self.streams.get(message.stream)
        if older is not None:
            self._detach(older)
            self.flow.charge_in_vain(older, older.held_bytes)
            self._forget(older)
        no_space = self._stream_budget.acquire(
            stream.id,
            connection.principal,
            len(message.signature),
            connection.now,
            by_token=connection.identity.role is None,
        )
        if no_space:
            self.refuse_peer(connection, "full", f"{no_space}; the worker tries again")
            return
        stream.worker = connection
        stream.stored = message.stored
        stream.channel = message.channel
        self.flow.join(stream, connection.principal, connection.identity.weight)
        self.streams[stream.id] = stream
        connection.streams[message.channel] = stream
        self.introduce(stream)

    def _owners_of(self, stream: bytes) -> set[str]:
        """Return the principals whose stream this is, live or spooled, as far as they are known."""
        live, kept = self.streams.get(stream), self.spool_handoff.spool.streams.get(stream)
        owners = {live.share.principal} if live is not None else set()
        if kept is not None:
            owners.add(kept.info.principal)
        return owners

    def _close_stream(self, stream: RelayStream) -> None:
        """Close a stream that has ended in order."""
        self._detach(stream)
        stream.ended = True
        self.spool_handoff.ended(stream)
        self.forget_if_done(stream)
        self.flow.grant()

    def _detach(self, stream: RelayStream) -> None:
        """Detach a stream from its link and discard its incomplete message."""
        if stream.worker is not None:
            stream.worker.streams.pop(stream.channel, None)
            stream.worker = None
        self.flow.detach(stream)

    def forget_if_done(self, stream: RelayStream) -> None:
        """Forget a stream without a link once the trainer has all of its queued and spooled messages.

        A spooled stream stays announced to the trainer until the trainer has acknowledged it.
        """
        if stream.worker is not None or stream.held_bytes:
            return
        if not stream.trainer_channel or self.spool_handoff.kept(stream) is None:
            self._forget(stream)

    def _forget(self, stream: RelayStream) -> None:
        """Remove a stream and its queued messages."""
        self.flow.void(stream)
        if self.streams.pop(stream.id, None) is not None:
            self.flow.leave(stream)
        self._stream_budget.release(stream.id)
        if stream.trainer_channel:
            self._by_trainer_channel.pop(stream.trainer_channel, None)
            if self.trainer is not None:
                self.trainer.send(StreamClosed(stream.trainer_channel, stream.ended))
            stream.trainer_channel = 0

    def worker_left(self, connection: RelayConnection) -> None:
        """Handle the end of a worker's link. Its complete messages still go to the trainer."""
        if self.workers.get(connection.peer) is connection:
            del self.workers[connection.peer]
            self.linked.leave(connection)
        for stream in list(connection.streams.values()):
            self._detach(stream)
            self.forget_if_done(stream)
        self.flow.grant()
        self.notice()

    def _trainer_left(self, connection: RelayConnection) -> None:
        """Handle the end of the trainer's link: workers keep all messages until the next resume."""
        if self._direct_all is not None and self._direct_all.lasting:
            self._lasting[connection.run] = self._direct_all
            if len(self._lasting) > _MAX_RUNS:
                self._lasting.popitem(last=False)
        # Before the trainer is forgotten: the workers to notify are those of its run.
        self.policies.abandon()
        self.limit_old_policies()
        self.notify_policy()  # workers may have received only a part of it
        self.trainer = None
        self.viewers.trainer_left()
        self._by_trainer_channel.clear()
        self._report = None
        self._direct_all = None
        self._announced = None
        # Queued messages are dropped and not kept for the next trainer: it may resume from an older checkpoint, or
        # belong to another run, and the workers still have them.
        for stream in list(self.streams.values()):
            stream.trainer_channel = 0
            stream.in_turn = False
            if stream.handing:
                continue  # the spool still acts as the stream's trainer
            self.flow.void(stream)
            if stream.worker is None:
                del self.streams[stream.id]
                self.flow.leave(stream)
                self._stream_budget.release(stream.id)
            else:
                stream.worker.flush("report")  # the report of the trainer that has left
                stream.worker.send(Halt(stream.channel))
        self.flow.trainer_left()

    # --- samples ---

    def _resume(self, message: Resume) -> None:
        """Resume a stream from the message that the trainer names."""
        stream = self._by_trainer_channel.get(message.channel)
        if stream is None or (stream.worker is None and self.spool_handoff.kept(stream) is None):
            return  # the stream has left, and the trainer is notified
        if not stream.handing:
            # Nothing is queued when a trainer comes. A linked one asks again, for instance if a message is missing.
            self.flow.charge_in_vain(stream, stream.held_bytes + (stream.partial_bytes if stream.partial else 0))
        self.flow.void(stream)
        stream.handing = False
        stream.next_number = message.next
        # Spooled messages come first: their numbers are lower than all that the worker sends.
        following = self.spool_handoff.replay(stream, message.next)
        self.flow.activate(stream)
        if stream.worker is not None:
            # The card before the resume: a worker seals its first message with it.
            stream.worker.flush("announce")
            stream.worker.send(Resume(stream.channel, following, stream.epoch, stream.limit))
        if stream.replay is not None:
            self.flow.take_turns(stream)

    def _halt_stream(self, message: Halt) -> None:
        """Halt a stream that the linked trainer cannot take. As without a trainer, its worker may hand it over."""
        stream = self._by_trainer_channel.pop(message.channel, None)
        if stream is None:
            return  # the stream has left, and the trainer is notified
        stream.trainer_channel = 0
        if stream.worker is None:
            self.forget_if_done(stream)
        elif not stream.handing:  # otherwise the spool still acts as the stream's trainer
            self.flow.void(stream)
            stream.worker.send(Halt(stream.channel, message.reason))

    def _send_wait_reason(self, stream: RelayStream) -> None:
        if self.trainer is not None and stream.trainer_channel:
            self.trainer.put(("waits", stream.trainer_channel), Waits(stream.trainer_channel, stream.waits))

    def _send_lateness(self, stream: RelayStream) -> None:
        trainer, message, channel = self.trainer, stream.lateness, stream.trainer_channel
        if trainer is not None and message is not None and channel:
            trainer.put(("lateness", channel), msgspec.structs.replace(message, channel=channel))

    # --- messages of the trainer ---

    def _forward_ack(self, message: Ack) -> None:
        """Forward the trainer's acknowledgement of a stream's messages."""
        stream = self._by_trainer_channel.get(message.channel)
        if stream is None:
            return
        # The spool first: `forget_if_done` asks what it still has.
        self.spool_handoff.acknowledged(stream, message)
        if stream.worker is not None:
            stream.worker.acknowledge(Ack(stream.channel, message.next, message.refused, message.tag))
        else:
            self.forget_if_done(stream)

    @property
    def trainer_incarnation(self) -> int:
        """Return the incarnation whose policies the linked trainer may publish."""
        return self.incarnation if self._announced is None else self._announced.incarnation

    def _announce(self, connection: RelayConnection, message: Announce) -> None:
        """Send the card of the linked trainer, which has chosen its incarnation, to every worker of its run."""
        if not connection.announces:
            raise RemoteProtocolError("a trainer that does not choose its incarnation has announced one")
        if message.incarnation >= _BELIEVED["trainer"]:
            raise RemoteProtocolError(f"no trainer has had the incarnation {message.incarnation}")
        held, peer = self._held_by
        connection.unanswered = max(0, connection.unanswered - 1)
        if peer != connection.peer and message.incarnation <= held:
            # Workers would not distinguish it from that trainer. What workers have claimed may be implausible, so a
            # trainer that repeats its incarnation keeps it, unless it answers what it was told before the free one. A
            # higher one may have crossed the suggestion.
            if message.incarnation != connection.taken:
                connection.taken = message.incarnation
                connection.suggest(held + 1)
                return
            if connection.unanswered:
                return
        self._announced = message
        self.incarnation = message.incarnation
        self._held_by = (message.incarnation, connection.peer)
        self.policies.begin_incarnation(message.incarnation)
        self.limit_old_policies()
        self._cards[connection.run] = message
        if len(self._cards) > _MAX_RUNS:
            self._cards.popitem(last=False)
        self.viewers.announce(connection.run, message)
        for worker in self._workers_of_run():
            worker.put("announce", message)
            if worker.unread_bytes <= MAX_CARD_BYTES:
                worker.flush("announce")  # what an earlier trainer has sent belongs before it
        self._suggest_above_claims(connection, message.incarnation)

    def _suggest_above_claims(self, trainer: RelayConnection, announced: int) -> None:
        """Suggest an incarnation above those that linked workers have reported, as far as the trainer would follow.

        A report may have come while a higher one of another worker stood, which the trainer has ignored since.
        """
        claims = (worker.claimed for worker in self._workers_of_run())
        highest = max((claim for claim in claims if claim <= announced + MOST_RAISED), default=0)
        if highest > announced and highest >= trainer.suggested:  # once, because the trainer may keep its number
            self.incarnation = trainer.suggested = highest + 1
            trainer.suggest(self.incarnation)

    def card_of(self, run: str) -> bytes:
        """Return the card of the latest trainer of a run; empty: there is none."""
        card = self._cards.get(run)
        return b"" if card is None else card.body

    def _direct(self, message: Direct) -> None:
        """Send a directive to the worker of one stream, or to all workers of the run."""
        if message.channel == ALL_CHANNELS:
            self._direct_all = message
            for worker in self._workers_of_run():
                worker.put("direct-all", message)
            return
        stream = self._by_trainer_channel.get(message.channel)
        if stream is not None and stream.worker is not None:
            stream.worker.put(("direct", stream.channel), Direct(stream.channel, message.revision, message.body))

    def _workers_of_run(self) -> list[RelayConnection]:
        run = self.trainer.run if self.trainer is not None else None
        return [worker for worker in self.workers.values() if worker.run == run]

    def notify_policy(self) -> None:
        """Wake the links of the trainer's workers after frames of a policy have arrived or the policy was abandoned."""
        for worker in self._workers_of_run():
            worker.wake()

    def old_policies(self) -> dict[RelayConnection, Policy]:
        """Return the versions that links still send and that are not the latest: memory that is kept for them alone."""
        new = self.policies.held
        links = self.workers.values()
        return {link: link.policy for link in links if link.policy is not None and link.policy not in new}

    def limit_old_policies(self) -> None:
        """Limit the memory of versions that only slow links still send, for each owner of such links.

        Called when the latest or the arriving version has become such a version.

        The oldest transfer always goes on, so that a slow link receives a version however often new ones come.
        """
        links = self.old_policies()
        old: dict[str, dict[Version, Policy]] = {}
        for worker, policy in links.items():
            old.setdefault(worker.principal, {})[policy.version] = policy
        dropped: set[tuple[str, Version]] = set()
        for principal, versions in old.items():
            room = self.settings.budget_bytes // 4
            for index, version in enumerate(sorted(versions)):
                room -= versions[version].size
                if room < 0 and index:
                    dropped.add((principal, version))
        for worker, policy in links.items():
            if (worker.principal, policy.version) in dropped:
                worker.send_latest_policy()

    def notice(self) -> None:
        """Send the trainer the counts that only the Server knows."""
        if self.trainer is not None:
            others = len(self.workers) - self.linked.of_run[self.trainer.run]
            self.trainer.put("notice", Notice(len(self.workers), self.flow.queued_bytes, others))
