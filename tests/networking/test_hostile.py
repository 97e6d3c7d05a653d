"""What strangers, and peers that were let in, can do to a real Server over TLS: lose their own connection, no more."""

from __future__ import annotations

import logging
import socket
import ssl
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard

from tests.waiting import until
from tmrl_core.config import from_values
from tmrl_core.errors import CodecError
from tmrl_core.metrics import MemorySink, Recorder
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink
from tmrl_core.networking.links.observer_link import ObserverLink
from tmrl_core.networking.links.sealing import Mode as EndToEndMode
from tmrl_core.networking.protocol.framing import FIRST, HEADER, LAST, MAX_PAYLOAD_BYTES, FrameReader, Kind, cut
from tmrl_core.networking.protocol.messages import (
    MAX_COUNT,
    POLICY_HEAD,
    SAMPLES_HEAD,
    CloseStream,
    Control,
    Credit,
    Direct,
    Have,
    Hello,
    OpenStream,
    Refused,
    Report,
    Resume,
    Role,
    Unused,
    Waits,
    Want,
    Welcome,
    control_frame,
    decode_control,
    encode_control,
    turn_text,
)
from tmrl_core.networking.relay import core
from tmrl_core.networking.relay.stream_budget import OF_ONE_BYTES
from tmrl_core.networking.security import credentials, tls_contexts
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, decode_message, encode_message
from tmrl_core.samples.codec import most_records
from tmrl_core.training.remote import interface as remote
from tmrl_core.training.remote.interface import RemoteInterface

DEADLINE_S = 20.0
MESSAGE_BYTES = 1 << 20


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


@pytest.fixture(scope="module")
def certified(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The credentials of a worker's machine, with a certificate of its own."""
    there = tmp_path_factory.mktemp("robot7")
    credentials.install(credentials.bundle(keys, "worker", "robot7", tmp_path_factory.mktemp("bundle")), there / "c")
    return there / "c"


def episode(first: int, rows: int) -> list[Chunk]:
    buffer = Buffer(maxlen=None)
    for i in range(rows):
        observation = np.full(3, first + i, np.float32)
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.5, False, i == rows - 1, {}))
    return buffer.take()[0]


class Place:
    """A Server over TLS, and a worker and a trainer that are linked to it and mind their own business.

    Args:
        keys: credentials folder of the Server, and of the members that have none of their own.
        members: credentials folders of worker and trainer, which authenticate each other; None: strangers need no proof
            of what they say. The fixture `place` of `tests/hostile/` has both kinds of members.
        mode: `network.end_to_end` of such members.
        server: further settings of the Server.
    """

    def __init__(
        self,
        keys: Path,
        stack: ExitStack,
        members: dict[Role, Path] | None = None,
        mode: EndToEndMode = "authenticate",
        **server: object,
    ) -> None:
        self.keys = keys
        self.stack = stack
        network = {"credentials_dir": str(keys), "security": "TLS", "max_message_bytes": MESSAGE_BYTES}
        self.port = self.start_server({"network": network, "server": {"port": 0, **server}})
        self.members = members
        self.settings = LinkSettings(
            port=self.port,
            hostname="localhost",
            credentials_dir=str(keys if members is None else members["worker"]),
            backoff_min_s=0.01,
            end_to_end="off" if members is None else mode,
        )
        self.worker = WorkerLink(self.settings, name="good", run="run")
        self.worker.start()
        stack.callback(self.worker.close, drain=False)
        assert self.worker.wait_connected(DEADLINE_S)
        self.rows = 0

    def start_server(self, values: dict[str, Any]) -> int:
        """Start the Server; return its port."""
        self.server = Server(config=from_values(values))
        self.stack.callback(self.server.close)
        self.relay = self.server.relay
        return self.server.port

    def start_trainer(self, inbox_bytes: int = 64 << 20) -> TrainerLink:
        settings = self.settings
        if self.members is not None:
            settings = msgspec.structs.replace(settings, credentials_dir=str(self.members["trainer"]))
        self.trainer = TrainerLink(settings, name="trainer", run="run", inbox_bytes=inbox_bytes)
        self.trainer.start()
        self.stack.callback(self.trainer.close)
        assert self.trainer.wait_connected(DEADLINE_S)
        return self.trainer

    def goes_on(self) -> None:
        """Samples travel and are acknowledged, over the links that there were."""
        self.worker.send(episode(self.rows, 100), [])
        expected = list(range(self.rows, self.rows + 100))
        self.rows += 100
        numbers: list[float] = []
        while len(numbers) < 100:
            assert self.trainer.wait(DEADLINE_S)
            received = [one for one in self.trainer.receive() if one.stream == self.worker.stream]
            for one in received:
                chunk = decode_message(one.payload, max_bytes=1 << 24).chunk
                assert chunk is not None
                numbers += np.asarray(chunk.observation)[:, 0].tolist()
            self.trainer.acknowledge(received)
        assert numbers == expected
        until(lambda: self.worker.counts.samples_acked == self.rows)
        assert self.worker.counts.reconnects == 0
        assert self.trainer.counts.reconnects == 0

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        self.stack.callback(sock.close)
        return sock

    def stranger(self, folder: Path | None = None) -> Stranger:
        """A peer over TLS; with the certificate in `folder`, else with none."""
        if folder is not None:
            context = tls_contexts.client_context(folder, "worker")
        else:
            context = ssl.create_default_context(cafile=str(self.keys / "ca.pem"))
        tls = context.wrap_socket(self.connect(), server_hostname="localhost")
        self.stack.callback(tls.close)
        return Stranger(tls, {role: tls_contexts.token_for(self.keys, role) or "" for role in ("worker", "trainer")})


class Stranger:
    """The other end of a real socket, that says what it likes."""

    def __init__(self, sock: ssl.SSLSocket, tokens: dict[str, str]) -> None:
        self.sock = sock
        self.tokens = tokens
        self.heard: list[Control] = []
        self._reader = FrameReader()

    def write(self, *wires: bytes) -> None:
        for wire in wires:
            self.sock.sendall(wire)

    def tell(self, *messages: Control) -> None:
        self.write(*(control_frame(message) for message in messages))

    def frame(self, kind: int, flags: int, payload: bytes, *, epoch: int = 1, channel: int = 0) -> None:
        self.write(HEADER.pack(len(payload), kind, flags, epoch, channel) + payload)

    def hear(self, kind: type[Control] | None = None) -> Control | None:
        """The next control message (of that type); None at the end of the connection."""
        while True:
            while not self.heard:
                buffer = self._reader.get_buffer()
                try:
                    n = self.sock.recv_into(buffer)
                except (ConnectionError, ssl.SSLEOFError):
                    n = 0
                if n == 0:
                    return None
                frames = [frame for frame in self._reader.received(n) if frame.kind == Kind.CONTROL]
                self.heard += [decode_control(frame.payload) for frame in frames]
            message = self.heard.pop(0)
            if kind is None or isinstance(message, (kind, Refused)):
                return message

    def refused(self, code: str, words: str) -> None:
        """The Server says why, and closes."""
        message = self.hear(Refused)
        assert isinstance(message, Refused)
        assert message.code == code
        assert words in message.reason
        assert not any(token in message.reason for token in self.tokens.values())
        assert self.hear() is None

    def greet(self, role: Role = "worker", **changes: object) -> None:
        values = {"token": self.tokens[role], "run": "run", "name": "stranger", "peer": b"x" * 16} | changes
        self.tell(Hello(role=role, **{"versions": (1,), **values}))  # type: ignore[arg-type]

    def as_worker(self, *, signature: bytes = b"") -> Resume:
        """Let in as a worker with one stream, which the trainer has resumed."""
        self.greet()
        assert isinstance(self.hear(Welcome), Welcome)
        self.tell(OpenStream(0, b"stream of a wolf", "wolf", signature))
        resume = self.hear(Resume)
        assert isinstance(resume, Resume)
        return resume


@pytest.fixture
def place(keys: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        place = Place(keys, stack)
        place.start_trainer()
        place.goes_on()
        yield place


def head(number: int = 0, length: int = 1, *, floor: int = 0, position: int = 0, samples: int = 1) -> bytes:
    return SAMPLES_HEAD.pack(number, floor, position, samples, length)


# -- before TLS --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "is not TLS"),
        (b"\x00\xff" * 500, "is not TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "is not TLS"),
        (HEADER.pack(5, Kind.CONTROL, 0, 0, 0) + b"hello", "is not TLS"),
        (b"", "closed the connection before it was secured"),
    ],
    ids=["http", "garbage", "ssh", "frame", "nothing"],
)
def test_data_that_is_not_tls_closes_the_connection_and_is_logged_once(
    place: Place, caplog: pytest.LogCaptureFixture, wire: bytes, words: str
) -> None:
    with caplog.at_level(logging.WARNING):
        sock = place.connect()
        sock.sendall(wire)
        if not wire:
            sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):  # an alert, then the end
            pass
        sock.close()
        until(lambda: place.server.refusals.count == 1)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert words in warnings[0]
    assert "127.0.0.1" in warnings[0]
    place.goes_on()


# -- before the greeting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bytes was announced; at most 8192"),
        (HEADER.pack(0xFFFF_FFFF, Kind.DATA, FIRST, 0, 0), "4294967295 bytes was announced"),
        (HEADER.pack(4, 77, 0, 0, 0) + b"what", "unknown kind of frame: 77"),
        (HEADER.pack(4, Kind.CONTROL, 0, 0, 0) + b"what", "could not be decoded"),
        (HEADER.pack(1, Kind.DATA, FIRST | LAST, 0, 0) + b"x", "data before it identified itself"),
        (HEADER.pack(1, Kind.WEIGHTS, FIRST | LAST, 0, 0) + b"x", "data before it identified itself"),
        (control_frame(Want(0, 0, 1)), "Want is not allowed in state 'greeting'"),
        (control_frame(Resume(1, 0)), "Resume is not allowed in state 'greeting'"),
        (control_frame(Hello((1,), "worker", "", "run", "", b"short")), "a peer's id has 16 bytes"),
    ],
    ids=["http", "too long", "kind", "garbage", "data", "weights", "want", "resume", "peer"],
)
def test_misuse_before_the_greeting(place: Place, wire: bytes, words: str) -> None:
    stranger = place.stranger()
    stranger.write(wire)
    stranger.refused("misuse", words)
    assert place.relay.protocol_errors == place.server.refusals.count == 1
    place.goes_on()


@pytest.mark.parametrize(
    ("role", "changes", "code", "words"),
    [
        ("worker", {"token": "guess"}, "token", "not this Server's token of the role worker"),
        ("trainer", {"token": "guess"}, "token", "not this Server's token of the role trainer"),
        ("worker", {"token": ""}, "certificate", "neither a client certificate nor a token"),
        ("trainer", {"token": "worker's"}, "token", "--credentials bundle trainer"),
        ("worker", {"token": "trainer's"}, "token", "--credentials bundle worker"),
    ],
    ids=["wrong", "wrong trainer", "none", "worker's as trainer", "trainer's as worker"],
)
def test_tokens(place: Place, role: Role, changes: dict[str, str], code: str, words: str) -> None:
    stranger = place.stranger()
    if changes["token"].endswith("'s"):
        changes = {"token": stranger.tokens[changes["token"][:-2]]}
    stranger.greet(role, **changes)
    stranger.refused(code, words)
    assert place.relay.refused_peers == place.server.refusals.count == 1
    assert place.relay.protocol_errors == 0
    place.goes_on()


def test_a_workers_certificate_with_any_token_is_not_a_trainers(place: Place, certified: Path) -> None:
    stranger = place.stranger(certified)
    stranger.greet("trainer")
    stranger.refused("role", "this certificate is a worker's; it cannot act as trainer")
    assert place.relay.refused_peers == place.server.refusals.count == 1
    place.goes_on()


def test_a_workers_certificate_needs_no_token(place: Place, certified: Path) -> None:
    stranger = place.stranger(certified)
    stranger.greet("worker", token="")
    assert isinstance(stranger.hear(), Welcome)
    place.goes_on()


def test_the_refusal_of_another_version_lists_the_supported_ones(place: Place) -> None:
    stranger = place.stranger()
    stranger.tell(Hello((77, 78), "worker", stranger.tokens["worker"], "run", "", b"x" * 16))
    stranger.refused("protocol", "speaks protocol version 1, the peer 77, 78")


def test_a_second_trainer_does_not_replace_the_first(place: Place) -> None:
    stranger = place.stranger()
    stranger.greet("trainer")
    stranger.refused("trainer_present", "already has a trainer")
    place.goes_on()


# -- let in as a worker ------------------------------------------------------------------------------------------------


def weights(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.WEIGHTS, FIRST | LAST, POLICY_HEAD.pack(9, 9, 1) + b"x")


def four_gigabytes(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.DATA, FIRST, head(length=0xFFFF_FFFF) + b"x", epoch=resume.epoch)


def more_than_the_credit(wolf: Stranger, resume: Resume) -> None:
    body = bytes(MAX_PAYLOAD_BYTES)
    wolf.frame(Kind.DATA, FIRST, (head(length=200_000) + body)[:MAX_PAYLOAD_BYTES], epoch=resume.epoch)
    wolf.frame(Kind.DATA, 0, body, epoch=resume.epoch)


def a_large_want(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(Want(0, resume.epoch, 1 << 40))


def a_large_gift(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(Unused(0, resume.epoch, resume.credit + 1))


def an_unknown_channel(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.DATA, FIRST | LAST, head() + b"x", channel=9)


def an_unknown_want(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(Want(9, resume.epoch, 1))


def an_unknown_close(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(CloseStream(9))


def a_closed_channel(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(CloseStream(0))
    wolf.frame(Kind.DATA, FIRST | LAST, head() + b"x", epoch=resume.epoch)


def an_open_channel(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(OpenStream(0, b"y" * 16, "again"))


def a_short_stream_id(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(OpenStream(1, b"y" * 15, "short"))


def a_second_hello(wolf: Stranger, resume: Resume) -> None:
    wolf.greet()


def an_acknowledgement(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(Direct(0, 1, b""))


def a_report(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(Report(b""))


def a_trainers_credit(wolf: Stranger, resume: Resume) -> None:
    wolf.tell(Credit(0, 0, 1))


def half_a_head(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.DATA, FIRST | LAST, head()[:20], epoch=resume.epoch)


def no_beginning(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.DATA, LAST, b"x", epoch=resume.epoch)


def too_few_bytes(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.DATA, FIRST | LAST, head(length=10) + b"x", epoch=resume.epoch)


def too_many_bytes(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.DATA, FIRST | LAST, head(length=1) + bytes(10), epoch=resume.epoch)


def crumbs(wolf: Stranger, resume: Resume) -> None:
    """Each frame costs the Server more than its bytes."""
    wolf.frame(Kind.DATA, FIRST, head(length=1_000), epoch=resume.epoch)
    wolf.frame(Kind.DATA, 0, b"x", epoch=resume.epoch)


def an_unreal_number(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.DATA, FIRST | LAST, head((1 << 64) - 1) + b"x", epoch=resume.epoch)


def an_unreal_position(wolf: Stranger, resume: Resume) -> None:
    wolf.frame(Kind.DATA, FIRST | LAST, head(0, position=1 << 63) + b"x", epoch=resume.epoch)


def an_unreal_floor(wolf: Stranger, resume: Resume) -> None:
    """The trainer would refuse it too, and end the link over which it gets everybody's samples."""
    wolf.frame(Kind.DATA, FIRST | LAST, head(0, floor=1 << 62) + b"x", epoch=resume.epoch)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (weights, "it may not send frames of kind WEIGHTS"),
        (four_gigabytes, "a message of 4294967295 bytes; at most 1048576 are relayed"),
        (more_than_the_credit, "bytes more were sent than credit was given"),
        (a_large_want, "more credit was asked for than the window allows"),
        (a_large_gift, "more credit was given back than was left"),
        (an_unknown_channel, "channel 9 is not open"),
        (an_unknown_want, "channel 9 is not open"),
        (an_unknown_close, "channel 9 is not open"),
        (a_closed_channel, "channel 0 is not open"),
        (an_open_channel, "channel 0 is open already"),
        (a_short_stream_id, "a stream's id has 16 bytes"),
        (a_second_hello, "Hello is not allowed in state 'worker'"),
        (an_acknowledgement, "Direct is not allowed in state 'worker'"),
        (a_report, "Report is not allowed in state 'worker'"),
        (a_trainers_credit, "Credit is not allowed in state 'worker'"),
        (half_a_head, "too short for its head"),
        (no_beginning, "was continued without a beginning"),
        (too_few_bytes, "different lengths"),
        (too_many_bytes, "different lengths"),
        (crumbs, "only a message's last frame is not full"),
        (an_unreal_number, "out of range"),
        (an_unreal_position, "out of range"),
        (an_unreal_floor, "out of range"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_misbehaving_worker_loses_only_its_own_link(
    place: Place, attack: Callable[[Stranger, Resume], None], words: str
) -> None:
    wolf = place.stranger()
    attack(wolf, wolf.as_worker())
    wolf.refused("misuse", words)
    assert place.relay.protocol_errors == place.server.refusals.count == 1
    until(lambda: len(place.relay.workers) == 1)
    place.goes_on()
    assert place.trainer.counts.gap_messages == 0


def test_a_message_that_begins_before_the_last_one_has_ended(place: Place) -> None:
    wolf = place.stranger()
    resume = wolf.as_worker()
    wolf.tell(Want(0, resume.epoch, 400_000))
    assert isinstance(wolf.hear(Credit), Credit)
    for _ in range(2):
        wolf.frame(Kind.DATA, FIRST, (head(length=100_000) + bytes(70_000))[:MAX_PAYLOAD_BYTES], epoch=resume.epoch)
    wolf.refused("misuse", "began before the last one ended")
    place.goes_on()


def test_memory_of_incomplete_messages_is_released_with_the_link(place: Place) -> None:
    reserved = place.relay.flow.reserved_bytes
    wolf = place.stranger()
    resume = wolf.as_worker()
    wolf.frame(Kind.DATA, FIRST, (head(length=100_000) + bytes(70_000))[:MAX_PAYLOAD_BYTES], epoch=resume.epoch)
    wolf.tell(CloseStream(77))
    wolf.refused("misuse", "channel 77")
    until(lambda: place.relay.flow.reserved_bytes == reserved)
    place.goes_on()


def test_frames_of_an_earlier_epoch_are_discarded(place: Place) -> None:
    wolf = place.stranger()
    resume = wolf.as_worker()
    for _ in range(5):
        wolf.frame(Kind.DATA, FIRST | LAST, head(length=30_000) + bytes(30_000), epoch=resume.epoch + 1)
    until(lambda: place.relay.flow.discarded_messages == 5)
    place.goes_on()


def test_a_stream_of_another_run_is_not_forwarded(place: Place) -> None:
    wolf = place.stranger()
    wolf.greet(run="another")
    assert isinstance(wolf.hear(Welcome), Welcome)
    wolf.tell(OpenStream(0, b"stream of a wolf", "wolf"))
    wolf.frame(Kind.DATA, FIRST | LAST, head() + b"x")
    until(lambda: place.relay.flow.discarded_messages == 1)
    place.goes_on()
    assert place.trainer.counts.workers == 1


def test_the_longest_names_and_signatures_do_not_harm_a_later_trainer(keys: Path) -> None:
    with ExitStack() as stack:
        place = Place(keys, stack)
        for i, run in enumerate(("run", "\U000e0001" * 200)):
            wolf = place.stranger()
            wolf.greet(run=run, name="\U0001f916" * 1_000, peer=bytes([i]) * 16)
            assert isinstance(wolf.hear(Welcome), Welcome)
            wolf.tell(*(OpenStream(j, bytes([i, j]) * 8, "\U0001f916" * 1_000, bytes(60_000)) for j in range(3)))
        until(lambda: len(place.relay.streams) == 7)
        place.start_trainer()
        place.goes_on()
        assert place.trainer.counts.workers == 4


_FORGED = "arm\n12:00:00 ERROR all is lost\x1b[2J\x9b31m\u202e"


def test_peers_cannot_forge_log_lines_or_control_a_terminal(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tmrl_core")
    with ExitStack() as stack:
        place = Place(keys, stack)
        stranger = place.stranger()  # has shown nothing yet
        stranger.frame(Kind.CONTROL, 0, msgspec.msgpack.encode([_FORGED, 1]), epoch=0)
        stranger.refused("misuse", "could not be decoded")
        trainer = place.stranger()
        trainer.greet("trainer", name=_FORGED, peer=b"t" * 16, run=_FORGED)
        assert isinstance(trainer.hear(Welcome), Welcome)
        second = place.stranger()
        second.greet("trainer", name="second", peer=b"s" * 16)
        second.refused("trainer_present", "arm?12:00:00 ERROR all is lost?[2J")
        trainer.tell(Refused(_FORGED, _FORGED))  # the last words of a peer
        assert trainer.hear(Refused) is None
        place.start_trainer()
        worker = place.stranger()
        worker.greet(name=_FORGED)
        worker.tell(OpenStream(0, b"stream of a wolf", _FORGED), Waits(0, _FORGED))
        until(lambda: any("12:00:00" in text for _, text in place.trainer.waits))
        assert all(text.isprintable() for pair in place.trainer.waits for text in pair)
        assert all(member.name.isprintable() for member in place.trainer.members)
        worker.tell(Refused("x", _FORGED))
        assert worker.hear(Refused) is None
    quoting = [record.getMessage() for record in caplog.records if "12:00:00" in record.getMessage()]
    assert len(quoting) > 4
    assert all(message.isprintable() for message in quoting)


def test_the_streams_of_one_certificate_cannot_fill_the_memory_of_server_and_trainer(
    keys: Path, certified: Path
) -> None:
    with ExitStack() as stack:
        place = Place(keys, stack)
        wolves = [place.stranger(certified) for _ in range(3)]
        for i, wolf in enumerate(wolves):
            wolf.greet(token="", peer=bytes([i]) * 16)
            assert isinstance(wolf.hear(Welcome), Welcome)
            with suppress(ConnectionError, ssl.SSLError):  # a refused one is cut if it sends much more
                for j in range(200):
                    wolf.tell(OpenStream(j, bytes([i, j]) * 8, "wolf", bytes(60_000)))
            if i == 0:  # a paused link is read later, so the first one could be refused instead of the others
                until(lambda: len(place.relay.streams) == 201)
        wolves[-1].hear(Refused)  # since these credentials announce too much
        until(lambda: len(place.relay.workers) == 2)
        opened = len(place.relay.streams)
        assert opened * 60_000 < OF_ONE_BYTES
        place.start_trainer()
        place.goes_on()
        for wolf in wolves:
            wolf.sock.close()
        until(lambda: len(place.relay.streams) == 1)

        def returns() -> bool:
            again = place.stranger(certified)
            again.greet()
            again.hear(Welcome)
            again.tell(OpenStream(0, b"stream of a wolf", "wolf", bytes(60_000)))
            return isinstance(again.hear(Resume), Resume)

        until(returns)  # the memory is free at once; announcements have a rate
        place.goes_on()


def test_a_worker_cannot_make_the_trainer_publish_endlessly(place: Place, certified: Path) -> None:
    for _ in range(16):
        wolf = place.stranger(certified)
        wolf.greet(token="", incarnation=place.relay.incarnation + 1)
        assert isinstance(wolf.hear(Welcome), Welcome)
    before = place.relay.incarnation
    wolf = place.stranger(certified)
    wolf.greet(token="", incarnation=before + 1)
    wolf.refused("misuse", "repeatedly")
    assert place.relay.incarnation == before
    other = place.stranger()
    other.greet(peer=b"o" * 16, incarnation=before + 1)
    assert isinstance(other.hear(Welcome), Welcome)
    place.goes_on()


def test_the_links_of_one_certificate_are_limited(
    place: Place, certified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "LINKS_OF_ONE", 2)
    wolves = [place.stranger(certified) for _ in range(3)]
    for i, wolf in enumerate(wolves[:2]):
        wolf.greet(token="", peer=bytes([i]) * 16)
        assert isinstance(wolf.hear(Welcome), Welcome)
    wolves[2].greet(token="", peer=b"2" * 16)
    wolves[2].refused("full", "2 workers with this certificate are connected")
    with_token = place.stranger()
    with_token.greet(peer=b"3" * 16)
    assert isinstance(with_token.hear(Welcome), Welcome)
    comes_back = place.stranger(certified)
    comes_back.greet(token="", peer=bytes([1]) * 16)
    assert isinstance(comes_back.hear(Welcome), Welcome)
    place.goes_on()


def test_names_in_records_of_episodes_are_one_short_line(place: Place) -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    interface = RemoteInterface(place.trainer, recorder=recorder)
    record = EpisodeRecord(_FORGED, 1.0, 3, "train", "terminated", worker=_FORGED * 1_000)
    place.worker.send(episode(0, 4), [record])
    until(lambda: bool(interface.retrieve_buffer().episodes))
    recorder.close()
    (shown,) = [record for record in sink.records if record.kind == "episode"]
    assert all(shown.text(name).isprintable() for name in ("worker", "agent"))
    assert len(shown.text("worker")) <= 1_000


def test_records_of_episodes_are_bounded_by_the_size_of_their_message(place: Place) -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    interface = RemoteInterface(place.trainer, recorder=recorder)
    record = EpisodeRecord("", 1.0, 3, "train", "terminated", worker="w" * 300)
    body = encode_message(None, [record] * 40_000, compression="none")
    frame = b"\x01" + zstandard.ZstdCompressor(level=19).compress(body[1:])
    assert len(frame) < 3_000
    wolf = place.stranger()
    resume = wolf.as_worker()
    wolf.frame(Kind.DATA, FIRST | LAST, head(length=len(frame)) + frame, epoch=resume.epoch)
    taken = 0

    def arrived() -> bool:
        nonlocal taken
        taken += len(interface.retrieve_buffer().episodes)
        return taken > 0

    until(arrived)
    assert taken == most_records(len(frame)) < 300
    # An honest worker's short episodes all arrive: its messages are as large as their number needs.
    place.worker.send(episode(0, 4), [record] * 10_000)
    taken = 0
    until(lambda: arrived() and taken == 10_000)
    recorder.close()


def test_a_worker_that_never_finishes_its_turn_does_not_block_training(place: Place) -> None:
    now = 0.0
    interface = RemoteInterface(place.trainer, clock=lambda: now)
    place.worker.say_waits(turn_text((9, 9)))
    until(lambda: place.trainer.trainer.waits_of(place.worker.stream) != "")
    assert not interface.has_turn(), "the only worker is waited for"
    wolf = WorkerLink(place.settings, name="wolf", run="run")
    wolf.start()
    place.stack.callback(wolf.close, drain=False)
    wolf.say_waits(turn_text((9, 9)))
    until(lambda: place.trainer.trainer.waits_of(wolf.stream) != "")
    assert interface.has_turn()
    wolf.close(drain=False)
    until(lambda: sum(member.live for member in place.trainer.members) == 1)
    assert not interface.has_turn()
    now += remote.TURN_S
    assert interface.has_turn()
    interface.give_turn()
    assert interface.has_turn(), "not again and again"


def test_endlessly_opened_streams_do_not_fill_the_records(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "JOINS_AT_ONCE", 5)
    sink = MemorySink()
    recorder = Recorder([sink])
    interface = RemoteInterface(place.trainer, recorder=recorder, clock=lambda: 0.0)
    wolf = place.stranger()
    wolf.greet()
    for round_ in range(4):
        wolf.tell(*(OpenStream(i, bytes([round_, i]) * 8, "wolf") for i in range(5)))
        until(lambda: len(place.trainer.members) == 6)
        interface.retrieve_buffer()
        wolf.tell(*(CloseStream(i) for i in range(5)))
        until(lambda: len(place.trainer.members) == 1)
        interface.retrieve_buffer()
    recorder.close()
    told = [record.text("event") for record in sink.records if record.kind == "event"]
    assert told.count("worker_joined") == 5
    assert told.count("worker_left") == 4  # of those that were told of; the first is the one that stays


def test_the_largest_claimed_numbers_do_not_overflow(place: Place, keys: Path) -> None:
    wolf = place.stranger()
    wolf.greet()
    largest = (1 << 62) - 1
    for i in range(5):
        wolf.tell(OpenStream(i, bytes([i]) * 16, "wolf"))
        resume = wolf.hear(Resume)
        assert isinstance(resume, Resume)
        wild = head(largest, position=largest, samples=0xFFFF_FFFF) + b"x"
        wolf.frame(Kind.DATA, FIRST | LAST, wild, epoch=resume.epoch, channel=i)
    until(lambda: place.trainer.counts.messages_received == 6)
    place.trainer.acknowledge(place.trainer.receive())
    assert place.trainer.counts.gap_samples == place.trainer.counts.gap_messages == MAX_COUNT
    with ObserverLink(place.settings, run="run", timeout_s=DEADLINE_S) as link:
        status = link.fetch_status()
    assert status is not None
    assert status.dropped_messages == MAX_COUNT
    place.goes_on()


def test_a_worker_cannot_use_up_the_numbers_of_incarnations(keys: Path) -> None:
    with ExitStack() as stack:
        place = Place(keys, stack)
        for incarnation, words in ((1 << 62, "incarnation"), ((1 << 64) - 1, "could not be decoded")):
            wolf = place.stranger()
            hello = Hello((1,), "worker", wolf.tokens["worker"], "run", "", b"x" * 16, incarnation)
            payload = encode_control(hello)
            wolf.write(HEADER.pack(len(payload), Kind.CONTROL, 0, 0, 0) + payload)
            wolf.refused("misuse", words)
        place.start_trainer()
        place.goes_on()
        assert place.trainer.trainer.incarnation == 1


def test_a_decompression_bomb_is_relayed_and_refused_by_the_decoder(place: Place) -> None:
    stream = zstandard.ZstdCompressor(level=1).compressobj(size=512 << 20)
    block = bytes(1 << 20)
    frame = b"".join([*(stream.compress(block) for _ in range(512)), stream.flush()])
    unsized = zstandard.ZstdCompressor(level=1).compressobj()
    endless = b"".join([*(unsized.compress(block) for _ in range(64)), unsized.flush()])
    wolf = place.stranger()
    resume = wolf.as_worker()
    bombs = [b"\x01" + frame, b"\x01" + endless]
    for number, bomb in enumerate(bombs):
        assert len(bomb) < 65_000
        wolf.frame(Kind.DATA, FIRST | LAST, head(number, len(bomb)) + bomb, epoch=resume.epoch)
        assert place.trainer.wait(DEADLINE_S)
        (received,) = place.trainer.receive()
        tracemalloc.start()
        try:
            with pytest.raises(CodecError):
                decode_message(received.payload, max_bytes=16 << 20)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
        place.trainer.refuse(received, "not a message of samples")
    assert place.relay.protocol_errors == 0, "the Server never looks into a payload"
    place.goes_on()


# -- let in as a trainer -----------------------------------------------------------------------------------------------


def data(wolf: Stranger) -> None:
    wolf.frame(Kind.DATA, FIRST | LAST, head() + b"x")


def a_huge_policy(wolf: Stranger) -> None:
    wolf.frame(Kind.WEIGHTS, FIRST, POLICY_HEAD.pack(1, 1, 1 << 40) + b"x")


def a_policy_of_the_last_version(wolf: Stranger) -> None:
    wolf.frame(Kind.WEIGHTS, FIRST | LAST, POLICY_HEAD.pack(1, (1 << 64) - 1, 1) + b"x")


def half_a_policy_head(wolf: Stranger) -> None:
    wolf.frame(Kind.WEIGHTS, FIRST | LAST, b"x")


def a_policy_without_a_beginning(wolf: Stranger) -> None:
    wolf.frame(Kind.WEIGHTS, LAST, b"x")


def a_policy_that_lies(wolf: Stranger) -> None:
    wolf.frame(Kind.WEIGHTS, FIRST | LAST, POLICY_HEAD.pack(1, 1, 100) + b"x")


def a_policy_in_crumbs(wolf: Stranger) -> None:
    wolf.frame(Kind.WEIGHTS, FIRST, POLICY_HEAD.pack(1, 1, 10_000) + b"x")


def no_policy(wolf: Stranger) -> None:
    wolf.frame(Kind.WEIGHTS, FIRST | LAST, POLICY_HEAD.pack(1, 1, 10) + b"0123456789")


def no_policy_in_many_frames(wolf: Stranger) -> None:
    wolf.write(bytes(next(cut(Kind.WEIGHTS, POLICY_HEAD.pack(1, 1, 1 << 20), [bytes(1 << 20)], epoch=0, channel=0))))


def a_stream(wolf: Stranger) -> None:
    wolf.tell(OpenStream(0, b"x" * 16, "wolf"))


def a_want(wolf: Stranger) -> None:
    wolf.tell(Want(0, 1, 1))


def a_confirmation(wolf: Stranger) -> None:
    wolf.tell(Have(1, 1))


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (data, "it may not send frames of kind DATA"),
        (a_huge_policy, "a policy of 1099511627776 bytes; at most"),
        (a_policy_of_the_last_version, "is out of range"),
        (half_a_policy_head, "too short for its head"),
        (a_policy_without_a_beginning, "was continued without a beginning"),
        (a_policy_that_lies, "different lengths"),
        (a_policy_in_crumbs, "only a policy's last frame is not full"),
        (no_policy, "published bytes are not a policy update"),
        (no_policy_in_many_frames, "published bytes are not a policy update"),
        (a_stream, "OpenStream is not allowed in state 'trainer'"),
        (a_want, "Want is not allowed in state 'trainer'"),
        (a_confirmation, "Have is not allowed in state 'trainer'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_misbehaving_trainer_can_be_replaced(keys: Path, attack: Callable[[Stranger], None], words: str) -> None:
    with ExitStack() as stack:
        place = Place(keys, stack)
        wolf = place.stranger()
        wolf.greet("trainer")
        assert isinstance(wolf.hear(Welcome), Welcome)
        attack(wolf)
        wolf.refused("misuse", words)
        assert place.relay.protocol_errors == place.server.refusals.count == 1
        assert place.relay.policies.latest is None
        place.start_trainer()
        place.goes_on()


def test_unknown_channels_named_by_a_trainer_are_ignored(keys: Path) -> None:
    """A stream may have left while the trainer was speaking of it."""
    with ExitStack() as stack:
        place = Place(keys, stack)
        lamb = place.stranger()
        lamb.greet("trainer")
        assert isinstance(lamb.hear(Welcome), Welcome)
        lamb.tell(Resume(77, 5), Direct(77, 1, b"x"))
        lamb.sock.close()
        until(lambda: place.relay.trainer is None)
        assert place.relay.protocol_errors == 0
        place.start_trainer()
        place.goes_on()
