"""One end of a link: deadlines, heartbeats, the order in which things leave, and which message is legal when."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import NetworkError, RefusedError, RemoteProtocolError
from tmrl_core.networking.observer import ObserverConnection, ObserverState, ViewerConnection, ViewerState
from tmrl_core.networking.protocol.connection import SEND_BYTES, Connection, Identity
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.framing import (
    FIRST,
    HEADER,
    LAST,
    MAX_FRAME_BYTES,
    PING_FRAME,
    Frame,
    FrameReader,
    Kind,
    cut,
    message_bytes,
)
from tmrl_core.networking.protocol.messages import (
    POLICY_HEAD,
    SAMPLES_HEAD,
    Ack,
    Announce,
    Bye,
    CloseStream,
    Command,
    Control,
    Credit,
    Diagnosis,
    Direct,
    Directive,
    Echo,
    Film,
    Forged,
    Halt,
    HandOver,
    Have,
    Hello,
    Incarnation,
    Lacks,
    Lateness,
    Notice,
    OpenStream,
    Place,
    Probe,
    Progress,
    Refused,
    Report,
    Resume,
    Revoked,
    Show,
    StatusPage,
    StatusRequest,
    Stored,
    StreamClosed,
    StreamOpened,
    Undelivered,
    Unused,
    Waits,
    Want,
    Watch,
    Watched,
    Welcome,
    control_frame,
    decode_control,
    encode_body,
)
from tmrl_core.networking.protocol.pictures import Piece
from tmrl_core.networking.protocol.telemetry import Scene
from tmrl_core.networking.relay import MemorySpool, Relay, RelayConnection, RelaySettings
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker import WorkerConnection, WorkerState

WELCOME = Welcome(1, 3, 1 << 20, 1 << 20, 1 << 20, 3.0)


class Talker(Connection):
    """The least that a connection can be: open after a `Welcome`; keeps what it gets, sends what it is given."""

    LEGAL: ClassVar[dict[str, frozenset[type]]] = {
        "greeting": frozenset({Welcome}),
        "open": frozenset({Report, Notice}),
    }

    def __init__(self) -> None:
        super().__init__(silent_s=10, heartbeat_s=3, greeting_s=7)
        self.got: list[Control | Frame] = []
        self.data: list[bytes] = []
        self.takes = Kind.DATA
        self.source = lambda: self.data.pop(0) if self.data else None
        self.closed_times = 0

    def _on_control(self, message: Control) -> None:
        if isinstance(message, Welcome):
            self.state = "open"
        self.got.append(message)

    def _on_frame(self, frame: Frame) -> None:
        self.got.append(frame)

    def _on_closed(self) -> None:
        self.closed_times += 1


def say(connection: Connection, *wires: bytes, now: float = 0.0) -> None:
    for wire in wires:
        view = memoryview(wire)
        while view:
            buffer = connection.get_buffer()
            n = min(len(buffer), len(view))
            buffer[:n] = view[:n]
            view = view[n:]
            connection.received(n, now)


def tell(connection: Connection, *messages: Control, now: float = 0.0) -> None:
    say(connection, *(control_frame(message) for message in messages), now=now)


def sent(connection: Connection, now: float = 0.0) -> list[Frame]:
    """Everything that it has to send."""
    reader = FrameReader()
    frames: list[Frame] = []
    while buffers := connection.to_send(now):
        view = memoryview(b"".join(buffers))
        while view:
            buffer = reader.get_buffer()
            n = min(len(buffer), len(view))
            buffer[:n] = view[:n]
            view = view[n:]
            frames += reader.received(n)
    assert reader.empty
    return frames


@pytest.mark.parametrize(("state", "due"), [("greeting", 7.0), ("open", 10.0)])
def test_a_deadline_that_passed_during_a_pause_is_postponed_by_a_heartbeat(state: str, due: float) -> None:
    connection = Talker()
    connection.connected(Identity("test"), 0.0)
    connection.state = state
    connection.compensate_pause(100.0 - due, 100.0)  # the timer for the deadline fires at 100 s instead
    connection.tick(100.0)
    assert not connection.closing
    connection.tick(102.9)
    assert not connection.closing
    connection.tick(103.1)
    assert connection.closing


def test_a_pause_does_not_count_as_age_of_a_link() -> None:
    connection = Talker()
    connection.connected(Identity("test"), 0.0)
    connection.state = "open"
    connection.compensate_pause(50.0, 100.0)
    assert connection.linked_s(100.0) == 50.0


def said(connection: Connection, now: float = 0.0) -> list[Control]:
    return [decode_control(frame.payload) for frame in sent(connection, now) if frame.kind == Kind.CONTROL]


def is_closing(connection: Connection) -> bool:
    return connection.closing  # a call, since time changes it


@pytest.fixture
def talker() -> Talker:
    connection = Talker()
    connection.connected(Identity("somewhere"), 0.0)
    return connection


@pytest.fixture
def opened(talker: Talker) -> Talker:
    tell(talker, WELCOME)
    talker.got.clear()
    return talker


# -- time --------------------------------------------------------------------------------------------------------------


def test_an_unconnected_transport_has_no_deadline() -> None:
    connection = Talker()
    assert connection.deadline() == float("inf")
    connection.tick(1e9)
    assert not connection.closing


def test_a_peer_that_is_silent_during_the_greeting_is_disconnected(talker: Talker) -> None:
    assert talker.deadline() == 7
    talker.tick(6.9)
    assert not is_closing(talker)
    talker.tick(7.0)
    assert is_closing(talker)
    assert "did not identify itself within 7 s" in str(talker.reason)


def test_other_bytes_do_not_extend_the_greeting_deadline(talker: Talker) -> None:
    say(talker, PING_FRAME, PING_FRAME[:5], now=6.0)
    assert talker.deadline() == 7
    talker.tick(7.0)
    assert talker.closing


def test_silence_is_noticed_on_time_and_a_single_byte_prevents_it(opened: Talker) -> None:
    opened.tick(9.5)
    assert not is_closing(opened)
    say(opened, PING_FRAME[:1], now=9.5)
    opened.tick(19.0)
    assert not is_closing(opened)
    opened.tick(19.5)
    assert is_closing(opened)
    assert "no data came from the other side for 10 s" in str(opened.reason)


def test_heartbeats_are_sent_when_nothing_else_was(opened: Talker) -> None:
    assert opened.deadline() == 3
    opened.tick(2.9)
    assert sent(opened, 2.9) == []
    opened.tick(3.0)
    (heartbeat,) = sent(opened, 3.0)
    assert heartbeat.kind == Kind.PING
    assert opened.deadline() == 6
    opened.put("report", Report(b""))
    sent(opened, 5.0)
    assert opened.deadline() == 8, "any frame counts as one"
    opened.tick(6.0)
    assert sent(opened, 6.0) == []


def test_a_blocked_transport_has_one_waiting_heartbeat_and_is_not_polled(
    opened: Talker,
) -> None:
    for now in (3.0, 6.0, 9.0):
        opened.tick(now)
        assert opened.deadline() > now
    assert [frame.kind for frame in sent(opened, 9.5)] == [Kind.PING]


def test_no_heartbeat_before_the_greeting(talker: Talker) -> None:
    talker.tick(5.0)
    assert sent(talker, 5.0) == []


def test_a_heartbeat_needs_no_answer_and_is_not_forwarded(opened: Talker) -> None:
    say(opened, PING_FRAME)
    assert opened.got == []
    assert sent(opened) == []


def test_a_closing_connection_has_no_deadline(opened: Talker) -> None:
    opened.close()
    assert opened.deadline() == float("inf")
    opened.tick(1e9)
    assert opened.reason is None


# -- what leaves, and in which order -----------------------------------------------------------------------------------


def test_control_messages_precede_last_values_which_precede_data(opened: Talker) -> None:
    opened.data.append(HEADER.pack(2, Kind.DATA, FIRST | LAST, 0, 0) + b"xx")
    opened.put("report", Report(b"1"))
    opened.send(Have(1, 1))
    frames = sent(opened)
    assert [frame.kind for frame in frames] == [Kind.CONTROL, Kind.CONTROL, Kind.DATA]
    assert [decode_control(frame.payload) for frame in frames[:2]] == [Have(1, 1), Report(b"1")]


def test_a_last_value_replaces_the_unsent_one(opened: Talker) -> None:
    for i in range(100):
        opened.put("a", Report(b"%d" % i))
        opened.put("b", Notice(i, 0, 0))
    assert said(opened) == [Report(b"99"), Notice(99, 0, 0)]
    opened.put("a", Report(b"next"))
    assert said(opened) == [Report(b"next")]


def test_one_call_returns_a_bounded_piece(opened: Talker) -> None:
    frame = HEADER.pack(60_000, Kind.DATA, 0, 0, 0) + bytes(60_000)
    opened.data += [frame] * 10
    piece = opened.to_send(0.0)
    assert SEND_BYTES <= sum(map(len, piece)) < SEND_BYTES + len(frame)
    assert len(sent(opened)) == 10 - len(piece)
    assert opened.to_send(0.0) == []
    assert opened.bytes_out == 10 * len(frame)


def test_one_call_returns_a_bounded_number_of_small_frames(opened: Talker) -> None:
    frame = HEADER.pack(32, Kind.DATA, 0, 0, 0) + bytes(32)
    opened.data += [frame] * 1_000
    sizes = [len(piece) for piece in iter(lambda: opened.to_send(0.0), [])]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 128
    assert opened.bytes_out == 1_000 * len(frame)


def test_no_data_is_sent_before_the_greeting(talker: Talker) -> None:
    talker.data.append(PING_FRAME)
    assert sent(talker) == []


def test_queued_messages_wake_the_transport(opened: Talker) -> None:
    woken: list[int] = []
    opened.wake = lambda: woken.append(1)
    opened.send(Bye())
    opened.put("report", Report(b""))
    assert len(woken) == 2


# -- the end -----------------------------------------------------------------------------------------------------------


def test_closing_in_order_sends_a_closing_message_last(opened: Talker) -> None:
    opened.data.append(PING_FRAME)
    opened.send(Have(1, 1))
    opened.put("report", Report(b""))
    opened.close()
    opened.close()
    assert said(opened) == [Have(1, 1), Bye()]
    assert opened.reason is None


def test_the_other_sides_closing_message_is_not_a_failure(opened: Talker) -> None:
    tell(opened, Bye())
    assert opened.closing
    assert opened.reason is None
    assert sent(opened) == []


def test_the_end_of_the_stream_without_a_closing_message_is_a_failure(opened: Talker) -> None:
    opened.received(0, 1.0)
    assert opened.closing
    assert "closed the connection" in str(opened.reason)


def test_after_a_refusal_nothing_else_is_sent(opened: Talker) -> None:
    opened.send(Have(1, 1))
    opened.put("report", Report(b""))
    opened.refuse("misuse", "because " * 1_000)
    opened.refuse("token", "a second reason")
    (message,) = said(opened)
    assert isinstance(message, Refused)
    assert message.code == "misuse"
    assert len(message.reason) == 1_000
    assert isinstance(opened.reason, RemoteProtocolError)


def test_a_refusal_received_is_kept_with_its_code(talker: Talker) -> None:
    tell(talker, Refused("full", "this Server takes 1 workers"))
    assert isinstance(talker.reason, RefusedError)
    assert (talker.reason.code, talker.reason.reason) == ("full", "this Server takes 1 workers")


def test_nothing_is_read_while_closing(opened: Talker) -> None:
    opened.close()
    tell(opened, Report(b"late"))
    assert opened.got == []


def test_frames_after_a_closing_message_are_ignored(opened: Talker) -> None:
    say(opened, control_frame(Report(b"1")) + control_frame(Bye()) + control_frame(Report(b"2")))
    assert opened.got == [Report(b"1")]


def test_losing_the_transport_is_reported_once_with_the_first_reason(opened: Talker) -> None:
    opened.refuse("misuse", "first")
    opened.lost(NetworkError("second"), 1.0)
    opened.lost(NetworkError("third"), 2.0)
    assert opened.closed_times == 1
    assert str(opened.reason) == "first"
    assert sent(opened) == [], "there is nobody left to say it to"


def test_losing_an_open_transport_keeps_its_reason(opened: Talker) -> None:
    opened.lost(NetworkError("cable"), 1.0)
    assert str(opened.reason) == "cable"


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.WEIGHTS])
def test_data_before_the_greeting_is_misuse(talker: Talker, kind: Kind) -> None:
    say(talker, HEADER.pack(1, kind, FIRST | LAST, 0, 0) + b"x")
    assert said(talker) == [Refused("misuse", "it sent data before it identified itself")]


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    for connection in (Talker(), Relay().connection(), worker(), trainer()):
        connection.connected(Identity("stranger"), 0.0)
        say(connection, *pieces)
        assert all(frame.kind == Kind.CONTROL for frame in sent(connection))


# -- which message is legal when ---------------------------------------------------------------------------------------

HELLO_WORKER = Hello((1,), "worker", "", "run", "w", b"w" * 16)
HELLO_TRAINER = Hello((1,), "trainer", "", "run", "t", b"t" * 16, announces=True)
HELLO_OBSERVER = Hello((1,), "observer", "", "run", "o", b"o" * 16)
PROBE = Probe((1,), "worker", "", "run")
MESSAGES: dict[type, Control] = {
    Hello: HELLO_WORKER,
    Probe: PROBE,
    Diagnosis: Diagnosis(1, (1,), 1e9, "", False, "", 1 << 20),
    Echo: Echo(1, 10, b"filler"),
    Welcome: WELCOME,
    OpenStream: OpenStream(5, b"n" * 16, "w"),
    CloseStream: CloseStream(0),
    StreamOpened: StreamOpened(1, b"s" * 16, "w"),
    StreamClosed: StreamClosed(1, True),
    Resume: Resume(0, 0, 1, 65_536),
    Halt: Halt(0),
    Ack: Ack(0, 0),
    Announce: Announce(4, b"card"),
    Forged: Forged(1),
    Revoked: Revoked(b"list"),
    Waits: Waits(0, "40 updates"),
    Lateness: Lateness(0, 1000, 3, 1200),
    Place: Place(2),
    HandOver: HandOver(0),
    Stored: Stored(0, 0),
    Unused: Unused(0, 0, 10),
    Want: Want(0, 0, 10),
    Credit: Credit(0, 0, 1 << 20),
    Have: Have(1, 1),
    Lacks: Lacks(),
    Incarnation: Incarnation(4),
    Direct: Direct(0, 1, encode_body(Directive())),
    Report: Report(encode_body(Progress())),
    Notice: Notice(1, 0, 0),
    StatusRequest: StatusRequest(0),
    StatusPage: StatusPage(0, 2, b"page"),
    Watch: Watch("run"),
    Show: Show("scene", encode_body(Scene(run="run"))),
    Film: Film("camera", 0, encode_body(Piece("run", "w", "camera", 1, 0, 1, b"frame"))),
    Watched: Watched(1, 1),
    Command: Command(0, b"order"),
    Undelivered: Undelivered(0, "no trainer"),
}


def worker() -> WorkerConnection:
    state = WorkerState(run="run", name="w", peer=b"w" * 16)
    state.add_stream(StreamSender(b"s" * 16, queue_bytes=1 << 20, drop_oldest=False), b"")
    return WorkerConnection(state, silent_s=10, heartbeat_s=3)


def trainer() -> TrainerConnection:
    state = TrainerState(run="run", name="t", peer=b"t" * 16, inbox_bytes=1 << 20)
    return TrainerConnection(state, silent_s=10, heartbeat_s=3)


def observer() -> ObserverConnection:
    connection = ObserverConnection(ObserverState(run="", name="o", peer=b"o" * 16), silent_s=10, heartbeat_s=3)
    connection.request_status()
    return connection


def viewer() -> ViewerConnection:
    connection = ViewerConnection(ViewerState(run="", name="v", peer=b"v" * 16), silent_s=10, heartbeat_s=3)
    connection.request_status()
    return connection


def relay_end() -> Connection:
    return Relay(spool=MemorySpool(1 << 20)).connection()


ENDS: dict[str, Callable[[], Connection]] = {
    "relay": relay_end,
    "worker": worker,
    "trainer": trainer,
    "observer": observer,
    "viewer": viewer,
}

# (end, what is said before, state, what is legal then): written out, not taken from the code
STATES = [
    ("relay", (), "greeting", {Hello, Probe}),
    ("relay", (PROBE,), "probe", {Echo}),
    (
        "relay",
        (HELLO_WORKER, OpenStream(0, b"s" * 16, "w")),
        "worker",
        {OpenStream, CloseStream, HandOver, Want, Unused, Waits, Have, Lacks, Forged, Lateness, Place, Film},
    ),
    ("relay", (HELLO_TRAINER,), "trainer", {Resume, Halt, Ack, Announce, Credit, Direct, Report, Forged, Show}),
    ("relay", (HELLO_OBSERVER,), "observer", {StatusRequest, Watch, Command}),
    ("viewer", (), "greeting", {Welcome}),
    ("viewer", (WELCOME,), "open", {StatusPage, Show, Film, Announce, Revoked, Undelivered}),
    ("observer", (), "greeting", {Welcome}),
    ("observer", (WELCOME,), "open", {StatusPage}),
    ("worker", (), "greeting", {Welcome}),
    ("worker", (WELCOME,), "open", {Resume, Halt, Ack, Stored, Announce, Credit, Direct, Report, Revoked, Place}),
    ("trainer", (), "greeting", {Welcome}),
    (
        "trainer",
        (WELCOME,),
        "open",
        {StreamOpened, StreamClosed, Incarnation, Have, Waits, Lateness, Notice, Revoked, Watched, Command},
    ),
]


def test_the_table_has_every_message_except_the_closing_ones() -> None:
    assert set(MESSAGES) | {Refused, Bye} == set(Control.__subclasses__())


@pytest.mark.parametrize(("end", "before", "state", "legal"), STATES, ids=[f"{row[0]}-{row[2]}" for row in STATES])
def test_each_message_in_each_state_is_accepted_or_misuse(
    end: str, before: tuple[Control, ...], state: str, legal: set[type]
) -> None:
    for kind, message in MESSAGES.items():
        connection = ENDS[end]()
        connection.connected(Identity("there"), 0.0)
        tell(connection, *before)
        sent(connection)
        assert connection.state == state
        tell(connection, message)
        if kind in legal:
            assert not connection.closing, kind
            assert not any(isinstance(answer, Refused) for answer in said(connection)), kind
            continue
        assert connection.closing, kind
        assert isinstance(connection.reason, RemoteProtocolError)
        assert said(connection) == [Refused("misuse", f"{kind.__name__} is not allowed in state {state!r}")]


@pytest.mark.parametrize(("end", "before", "state", "legal"), STATES, ids=[f"{row[0]}-{row[2]}" for row in STATES])
def test_closing_messages_are_legal_in_each_state(
    end: str, before: tuple[Control, ...], state: str, legal: set[type]
) -> None:
    for words, reason in ((Bye(), type(None)), (Refused("full", "later"), RefusedError)):
        connection = ENDS[end]()
        connection.connected(Identity("there"), 0.0)
        tell(connection, *before, words)
        assert connection.closing
        assert isinstance(connection.reason, reason)


# -- clients towards a Server that says nonsense -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Resume(7, 0, 1, 0), "there is no channel 7"),
        (Halt(1), "there is no channel 1"),
        (Ack(1, 0), "there is no channel 1"),
        (Credit(1, 0, 1), "there is no channel 1"),
        (Resume(0, 9, 1, 0), "asks for message 9"),
        (Ack(0, 9), "message 8 was acknowledged"),
        (Direct(0, 1, b"nonsense"), "Directive could not be decoded"),
        (Report(b"nonsense"), "Progress could not be decoded"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_worker_reports_unknown_messages(message: Control, words: str) -> None:
    connection = worker()
    connection.connected(Identity("server"), 0.0)
    tell(connection, WELCOME)
    sent(connection)
    tell(connection, message)
    (refused,) = said(connection)
    assert isinstance(refused, Refused)
    assert words in refused.reason


def test_each_client_accepts_only_messages_for_its_role() -> None:
    for connection, kind, words in (
        (worker(), Kind.DATA, "frames of kind DATA"),
        (trainer(), Kind.WEIGHTS, "frames of kind WEIGHTS"),
    ):
        connection.connected(Identity("server"), 0.0)
        tell(connection, WELCOME)
        sent(connection)
        say(connection, HEADER.pack(1, kind, FIRST | LAST, 0, 0) + b"x")
        (refused,) = said(connection)
        assert isinstance(refused, Refused)
        assert words in refused.reason


def test_acknowledgements_that_wait_for_a_slow_worker_are_merged_and_lose_no_refusal() -> None:
    connection = Relay().connection()
    connection.connected(Identity("worker"), 0.0)
    tell(connection, HELLO_WORKER)
    sent(connection)
    for i in range(0, 600, 2):
        connection.acknowledge(Ack(0, i + 1, ((i, "\U0001f916" * 400),)))
        connection.acknowledge(Ack(0, i + 2))
    heard = said(connection)
    assert all(isinstance(message, Ack) for message in heard)
    acks = [message for message in heard if isinstance(message, Ack)]
    assert [number for ack in acks for number, _ in ack.refused] == list(range(0, 600, 2))
    assert acks[-1].next == 600
    assert [ack.next for ack in acks] == sorted(ack.next for ack in acks)
    for i in range(600, 900):
        connection.acknowledge(Ack(0, i + 1))
    assert said(connection) == [Ack(0, 900)]


# -- the relay's end, word by word -------------------------------------------------------------------------------------


class Ends:
    """A relay with one trainer and some workers who say exactly what they are told to.

    Args:
        own: each worker has a certificate of its own.
    """

    def __init__(self, workers: int = 1, own: bool = False, **settings: int) -> None:
        self.relay = Relay(RelaySettings(**{"max_message_bytes": 1 << 20, **settings}))
        self.trainer = self.end(HELLO_TRAINER)
        self.workers = [
            self.end(
                *(Hello((1,), "worker", "", "run", "w", bytes([i]) * 16), OpenStream(0, bytes([i]) * 16, "w")),
                identity=Identity("there", "worker", f"w{i}") if own else Identity("there"),
            )
            for i in range(workers)
        ]
        joined = [message for message in said(self.trainer) if isinstance(message, StreamOpened)]
        self.channels = [message.channel for message in joined]
        self.resumes = []
        for channel, worker in zip(self.channels, self.workers, strict=True):
            tell(self.trainer, Resume(channel, 0))
            self.resumes += [message for message in said(worker) if isinstance(message, Resume)]

    def end(self, *messages: Control, identity: Identity = Identity("there")) -> RelayConnection:  # noqa: B008
        connection = self.relay.connection()
        connection.connected(identity, 0.0)
        tell(connection, *messages)
        return connection

    def limits(self, worker: int) -> list[int]:
        return [message.limit for message in said(self.workers[worker]) if isinstance(message, Credit)]

    def want(self, worker: int, more: int) -> None:
        resume = self.resumes[worker]
        tell(self.workers[worker], Want(0, resume.epoch, resume.credit + more))

    def message(self, number: int, body: bytes, worker: int = 0) -> None:
        head = SAMPLES_HEAD.pack(number, number, number, 1, len(body))
        epoch = self.resumes[worker].epoch
        say(self.workers[worker], *(bytes(wire) for wire in cut(Kind.DATA, head, [body], epoch=epoch, channel=0)))


def test_released_credit_is_granted_to_waiting_streams() -> None:
    ends = Ends(3, own=True, budget_bytes=2 << 20, max_message_bytes=900_000)
    for worker in (0, 1):
        ends.want(worker, 900_000)
        assert len(ends.limits(worker)) == 1
    ends.want(2, 200_000)
    assert ends.limits(2) == [], "the pool is empty"
    tell(ends.workers[0], Unused(0, ends.resumes[0].epoch + 1, 150_000))
    assert ends.limits(2) == [], "that epoch is over"
    reserved = ends.relay.flow.reserved_bytes
    tell(ends.workers[0], Unused(0, ends.resumes[0].epoch, 150_000))
    assert ends.limits(2) == [ends.resumes[2].credit + 200_000]
    assert ends.relay.flow.reserved_bytes == reserved - 150_000 + 200_000
    assert not ends.workers[0].closing


def test_a_want_is_granted_up_to_the_window_and_again_when_something_was_forwarded() -> None:
    ends = Ends(budget_bytes=8 << 20)
    window = ends.relay.settings.window_bytes
    size = message_bytes(SAMPLES_HEAD, 100_000)
    ends.want(0, window - 65_536)
    assert ends.limits(0) == [window]
    ends.want(0, window)
    assert ends.limits(0) == [], "it has its share"
    ends.message(0, bytes(100_000))
    assert ends.limits(0) == []
    tell(ends.trainer, Credit(0, 0, 10 * size))
    assert sum(len(frame.buffer) for frame in sent(ends.trainer) if frame.kind == Kind.DATA) == size
    assert ends.limits(0) == [65_536 + window]
    assert ends.relay.flow.reserved_bytes == 65_536 + window - size


def test_a_large_want_is_not_passed_over_for_small_ones_that_came_later() -> None:
    ends = Ends(4, own=True, budget_bytes=2 * message_bytes(SAMPLES_HEAD, 1 << 20), standing_bytes=0)
    for worker, more in ((0, 1_000_000), (1, 600_000), (2, 1_000_000), (3, 1_000)):
        ends.want(worker, more)
    assert ends.limits(0) == [1_000_000]
    assert ends.limits(1) == [600_000]
    assert ends.limits(2) == [], "there is no room for it now"
    assert ends.limits(3) == [], "there would be room for this one; then the large one might wait for ever"
    ends.workers[0].lost(None, 1.0)
    assert ends.limits(2) == [1_000_000]
    assert ends.limits(3) == [1_000]


def test_a_resume_drops_queued_messages_of_the_earlier_epoch() -> None:
    ends = Ends()
    reserved = ends.relay.flow.reserved_bytes
    ends.message(0, bytes(1_000))
    assert ends.relay.flow.queued_bytes > 0
    tell(ends.trainer, Resume(ends.channels[0], 0), Credit(0, 0, 1 << 20))
    assert ends.relay.flow.queued_bytes == 0
    assert ends.relay.flow.reserved_bytes == reserved
    assert not [frame for frame in sent(ends.trainer) if frame.kind == Kind.DATA]


def test_workers_are_halted_and_queues_released_when_the_trainer_leaves() -> None:
    ends = Ends(workers=2)
    ends.message(0, bytes(1_000))
    ends.trainer.lost(None, 1.0)
    for worker in ends.workers:
        assert Halt(0) in said(worker)
    assert (ends.relay.flow.queued_bytes, ends.relay.flow.reserved_bytes) == (0, 0)


def publish(trainer: Connection, incarnation: int, counter: int) -> None:
    body = b"weights"
    wires = cut(Kind.WEIGHTS, POLICY_HEAD.pack(incarnation, counter, len(body)), [body], epoch=0, channel=0)
    say(trainer, *(bytes(wire) for wire in wires))


def versions(worker: Connection) -> list[tuple[int, int]]:
    frames = [frame for frame in sent(worker) if frame.kind == Kind.WEIGHTS]
    return [POLICY_HEAD.unpack_from(frame.payload)[:2] for frame in frames if frame.flags & FIRST]


def test_one_policy_is_in_flight_per_worker_until_that_very_version_has_arrived() -> None:
    ends = Ends()
    (worker,) = ends.workers
    publish(ends.trainer, 1, 1)
    assert versions(worker) == [(1, 1)]
    publish(ends.trainer, 1, 2)
    publish(ends.trainer, 1, 3)
    assert versions(worker) == []
    tell(worker, Have(1, 3))
    assert versions(worker) == [], "that one was never sent"
    tell(worker, Have(1, 1))
    assert versions(worker) == [(1, 3)]
    tell(worker, Have(1, 3))
    assert versions(worker) == []


def test_a_policy_of_another_incarnation_is_confirmed_but_not_forwarded() -> None:
    ends = Ends()
    for incarnation in (0, 2):
        publish(ends.trainer, incarnation, 1)
        assert Have(incarnation, 1) in said(ends.trainer)
        assert versions(ends.workers[0]) == []


def test_an_abandoned_message_releases_the_trainers_credit() -> None:
    connection = trainer()
    connection.connected(Identity("server"), 0.0)
    tell(connection, WELCOME, StreamOpened(1, b"s" * 16, "w"))
    (granted,) = [message.limit for message in said(connection) if isinstance(message, Credit)]
    head = SAMPLES_HEAD.pack(0, 0, 0, 1, 1 << 20)
    begun = bytes(next(cut(Kind.DATA, head, [bytes(1 << 20)], epoch=1, channel=1)))
    assert len(begun) == MAX_FRAME_BYTES
    limits = []
    for _ in range(20):
        say(connection, begun)
        limits += [message.limit for message in said(connection) if isinstance(message, Credit)]
    assert limits == sorted(limits)
    assert granted + 16 * MAX_FRAME_BYTES <= limits[-1] <= granted + 19 * MAX_FRAME_BYTES


def test_a_worker_that_reconnects_replaces_its_older_link() -> None:
    ends = Ends()
    (older,) = ends.workers
    newer = ends.end(Hello((1,), "worker", "", "run", "w", bytes(16)), OpenStream(0, bytes(16), "w"))
    (refused,) = [message for message in said(older) if isinstance(message, Refused)]
    assert refused.code == "superseded"
    older.lost(None, 1.0)
    assert ends.relay.workers == {bytes(16): newer}
    left, joined = [message for message in said(ends.trainer) if isinstance(message, (StreamClosed, StreamOpened))]
    assert left == StreamClosed(ends.channels[0], False)
    assert isinstance(joined, StreamOpened)
    assert joined.channel > ends.channels[0], "a channel is never used again on a link"


def test_policy_versions_only_grow() -> None:
    state = WorkerState(run="run", name="w", peer=b"w" * 16)
    for version in ((1, 5), (1, 4), (1, 5), (0, 9)):
        state.policy_arrived(version, b"%d.%d" % version)
        assert state.policy == ((1, 5), b"1.5")
    state.policy_arrived((2, 1), b"2.1")
    assert state.policy == ((2, 1), b"2.1")


@pytest.mark.parametrize(
    ("who_reads_nothing", "code", "reason"),
    [
        ("worker", "misuse", "faster than the answers are read"),
        ("trainer", "full", "announced more than 16 MB of signatures"),
    ],
)
def test_streams_opened_faster_than_their_announcements_are_read_end_the_link(
    who_reads_nothing: str, code: str, reason: str
) -> None:
    ends = Ends()
    # A worker of another run is answered with the names of both; the trainer is told the signature.
    run, signature = ("\U000e0001" * 200, b"") if who_reads_nothing == "worker" else ("run", bytes(60_000))
    wolf = ends.end(Hello((1,), "worker", "", run, "wolf", b"wolf" * 4))
    opened = 0
    while not is_closing(wolf):
        tell(wolf, OpenStream(1, opened.to_bytes(16, "big"), "wolf", signature), CloseStream(1))
        opened += 1
        assert opened < 20_000
    assert opened > 200, "who opens many streams at once may do so"
    (refused,) = said(wolf)
    assert isinstance(refused, Refused)
    assert refused.code == code
    assert reason in refused.reason
    assert not is_closing(ends.workers[0])
    assert not is_closing(ends.trainer)
