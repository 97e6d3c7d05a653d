"""What those who have not been let in can cost a real Server, and whom they can keep out: nobody with a certificate."""

from __future__ import annotations

import ast
import inspect
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import tmrl_core
from tests.networking.test_hostile import DEADLINE_S, Place, Stranger
from tests.waiting import until
from tmrl_core.networking.links import LinkSettings, WorkerLink
from tmrl_core.networking.protocol.framing import HEADER, PING_FRAME, Kind
from tmrl_core.networking.protocol.messages import Welcome
from tmrl_core.networking.security import admission, credentials, tls_contexts
from tmrl_core.networking.security.tls_contexts import TokenVerifier


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


@pytest.fixture(scope="module")
def robot(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return credentials.bundle(keys, "worker", "robot7", tmp_path_factory.mktemp("bundle"))


Serve = Callable[..., "Room"]


class Room(Place):
    """A Server with settings of the test's own, and nobody linked to it."""

    def __init__(self, keys: Path, stack: ExitStack, **changes: object) -> None:
        self.keys = keys
        self.stack = stack
        self.port = self.start_server({"network": {"credentials_dir": str(keys)}, "server": {"port": 0, **changes}})

    @property
    def admission(self) -> admission.Admission:
        return self.server._transport.admission  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def serve(keys: Path) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda **changes: Room(keys, stack, **changes)


def ended(sock: socket.socket) -> bool:
    """Whether the Server closes this connection, after whatever it still says."""
    try:
        while sock.recv(4096):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    return True


def wrong(place: Room) -> float:
    """How long the Server takes to refuse a wrong token, in seconds."""
    stranger = place.stranger()
    begun = time.monotonic()
    stranger.greet(token="guess")
    stranger.refused("token", "not this Server's token")
    return time.monotonic() - begun


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_deadline_of_identification_includes_the_handshake(
    serve: Serve, robot: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = serve(greeting_s=0.3)
    for folder in (None, robot):
        begun = time.monotonic()
        assert ended(place.stranger(folder).sock)
        assert time.monotonic() - begun < 5.0
    until(lambda: place.server.refusals.count == 2)
    assert any("it did not identify itself within 0.3 s" in line for line in caplog.messages)
    until(lambda: place.admission.waiting == 0)


def test_heartbeats_do_not_identify_a_peer(serve: Serve) -> None:
    place = serve(greeting_s=0.3)
    stranger = place.stranger()
    pings = threading.Thread(target=ping, args=(stranger,))
    pings.start()
    assert ended(stranger.sock)
    pings.join(DEADLINE_S)
    assert not pings.is_alive()


def ping(stranger: Stranger) -> None:
    pause = threading.Event()
    with suppress(OSError):
        while not pause.wait(0.05):
            stranger.write(PING_FRAME)


def test_admitted_peers_have_no_such_deadline(serve: Serve) -> None:
    place = serve(greeting_s=0.2)
    stranger = place.stranger()
    stranger.greet()
    assert isinstance(stranger.hear(), Welcome)
    late = place.stranger()
    assert ended(late.sock)
    assert len(place.relay.workers) == 1


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [8_193, 65_524])
def test_frames_before_the_greeting_are_limited_at_their_header(serve: Serve, length: int) -> None:
    place = serve()
    stranger = place.stranger()
    stranger.write(HEADER.pack(length, Kind.CONTROL, 0, 0, 0))
    stranger.refused("misuse", f"a frame of {length} bytes was announced; at most 8192")


def test_the_bytes_before_the_greeting_are_counted(serve: Serve) -> None:
    place = serve()
    stranger = place.stranger()
    with suppress(OSError):
        for _ in range(200):
            stranger.write(PING_FRAME * 100)
    assert ended(stranger.sock)
    until(lambda: place.server.refusals.count == 1)
    assert place.relay.workers == {}


# -- number and rate ---------------------------------------------------------------------------------------------------


def test_idle_connections_are_limited_and_evicted(serve: Serve, robot: Path) -> None:
    place = serve(max_unauthenticated=8)
    idle = [place.connect() for _ in range(40)]
    until(lambda: place.admission.waiting == 4)
    until(lambda: place.admission.rejected > 0)
    stop = time.monotonic() + DEADLINE_S
    while True:  # when the idle ones have had their second, they make room
        try:
            stranger = place.stranger(robot)
            stranger.greet(token="")
            assert isinstance(stranger.hear(), Welcome)
            break
        except OSError:
            assert time.monotonic() < stop
    assert place.admission.waiting <= 4
    assert len(idle) == 40


def test_too_frequent_connections_are_closed_before_the_handshake(serve: Serve) -> None:
    place = serve(max_unauthenticated=8, connections_per_s=0.001)
    for _ in range(8):
        sock = place.connect()
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ended(sock)
        sock.close()
        until(lambda: place.admission.waiting == 0)
    sock = place.connect()
    assert ended(sock)
    until(lambda: place.server.refusals.count == 9)
    assert place.admission.rejected == 1


def test_reconnections_of_a_fleet_are_not_limited(serve: Serve, robot: Path) -> None:
    place = serve(max_unauthenticated=4, connections_per_s=0.001)
    for number in range(20):
        stranger = place.stranger(robot)
        stranger.greet(token="", peer=bytes([number]) * 16)
        assert isinstance(stranger.hear(), Welcome)
        stranger.sock.close()
        until(lambda: place.admission.waiting == 0)


# -- guessing ----------------------------------------------------------------------------------------------------------


def test_rejections_are_delayed_but_valid_credentials_are_accepted_immediately(
    serve: Serve, robot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "FIRST_DELAY_S", 0.2)
    monkeypatch.setattr(admission, "MAX_DELAY_S", 0.8)
    place = serve()
    took = [wrong(place) for _ in range(admission.FREE_FAILURES + 3)]
    assert took[-3] >= 0.18
    assert took[-2] >= 0.35
    assert took[-1] >= 0.7
    waiting = place.stranger()
    waiting.greet(token="guess")  # its refusal is held back meanwhile
    for folder in (robot, None):
        stranger = place.stranger(folder)
        token = "" if folder else stranger.tokens["worker"]
        stranger.greet(peer=b"y" * 16 if folder else b"z" * 16, token=token)
        assert isinstance(stranger.hear(), Welcome)
    assert waiting.heard == []
    assert place.admission.failed_logins == admission.FREE_FAILURES + 4
    waiting.refused("token", "not this Server's token")


def test_the_wrong_role_of_a_valid_certificate_is_not_delayed(serve: Serve, robot: Path) -> None:
    place = serve()
    for _ in range(6):
        stranger = place.stranger(robot)
        stranger.greet("trainer", token="")
        stranger.refused("role", "is a worker's")
    assert place.admission.failed_logins == 0


def test_a_second_greeting_before_a_delayed_rejection_is_misuse(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "FREE_FAILURES", 0)
    monkeypatch.setattr(admission, "FIRST_DELAY_S", 2.0)
    place = serve()
    stranger = place.stranger()
    stranger.greet(token="guess")
    stranger.greet()  # the right one
    stranger.refused("misuse", "has identified itself already")
    assert place.relay.workers == {}


def test_a_fleet_that_shares_an_attackers_address_stays_connected(serve: Serve, keys: Path, robot: Path) -> None:
    place = serve()
    over = threading.Event()
    attempts = [0]

    def attack() -> None:
        idle: list[socket.socket] = []
        with ExitStack() as mine:
            context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
            while not over.is_set():
                attempts[0] += 1
                with suppress(OSError):
                    raw = socket.create_connection(("127.0.0.1", place.server.port), timeout=DEADLINE_S)
                    mine.callback(raw.close)
                    if attempts[0] % 2:
                        idle.append(raw)
                        continue
                    tls = context.wrap_socket(raw, server_hostname="localhost")
                    mine.callback(tls.close)
                    Stranger(tls, {"worker": "guess"}).greet()
                over.wait(0.01)

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        until(lambda: place.admission.failed_logins >= 10)
        settings = LinkSettings(
            port=place.server.port, hostname="localhost", credentials_dir=str(robot), backoff_max_s=1.0
        )
        links = [WorkerLink(settings, name=f"robot{i}", run="run") for i in range(20)]
        for link in links:
            link.start()
            place.stack.callback(link.close, drain=False)
        assert all(link.wait_connected(DEADLINE_S) for link in links)
    finally:
        over.set()
        attacker.join(DEADLINE_S)
    assert all(link.connected and link.counts.reconnects == 0 for link in links)


# -- versions of TLS, compression --------------------------------------------------------------------------------------


def test_tls_1_1_is_refused_and_the_server_logs_the_reason(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    place = serve()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(place.connect(), server_hostname="localhost")
    until(lambda: place.server.refusals.count == 1)
    assert any("the peer does not speak TLS 1.2 or newer" in line for line in caplog.messages)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_nothing_is_compressed_by_tls_and_a_resumed_session_proves_nothing(
    serve: Serve, version: ssl.TLSVersion
) -> None:
    place = serve()
    context = ssl.create_default_context(cafile=str(place.keys / "ca.pem"))
    context.options &= ~ssl.OP_NO_COMPRESSION
    context.minimum_version = context.maximum_version = version
    sock = context.wrap_socket(place.connect(), server_hostname="localhost")
    place.stack.callback(sock.close)
    stranger = Stranger(sock, {"worker": str(tls_contexts.token_for(place.keys, "worker"))})
    stranger.greet()
    assert isinstance(stranger.hear(), Welcome)
    assert sock.compression() is None
    if version == ssl.TLSVersion.TLSv1_3:
        assert sock.session is not None
        assert not sock.session.has_ticket, "there is nothing to resume with"
        return
    # OpenSSL keeps sessions of TLS 1.2, which Python cannot turn off.
    again = context.wrap_socket(place.connect(), server_hostname="localhost", session=sock.session)
    place.stack.callback(again.close)
    assert again.session_reused
    assert ended(again)
    until(lambda: place.server.refusals.count == 1)


def test_code_before_authentication_cannot_decompress() -> None:
    """Compressed payloads are passed on as they are: only who was let in sends any, and only their readers decode."""
    network = Path(tmrl_core.__file__).parent / "networking"
    reached = [
        *(network / "protocol" / f"{name}.py" for name in ("connection", "framing", "messages")),
        *(network / "security" / f"{name}.py" for name in ("admission", "authentication")),
        *(network / "relay").glob("*.py"),
        *(network / "transports" / f"{name}.py" for name in ("tls", "base", "selection")),
    ]
    for file in reached:
        names: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module.partition(".")[0], ".".join(node.module.split(".")[:2])}
        assert not names & {"zlib", "gzip", "bz2", "lzma", "zstandard", "tmrl_core.samples", "pickle", "marshal"}, file


def test_tokens_are_compared_whole() -> None:
    """In constant time: `hmac.compare_digest` on hashes, whatever is shown and whether there is such a role."""
    assert "compare_digest" in inspect.getsource(TokenVerifier.holds)
    verifier = TokenVerifier({"worker": "0" * 64})
    for role in ("worker", "nobody"):
        for token in ("", "x", "x" * 4_096, "\u00e4"):
            assert not verifier.check(role, token)
    assert verifier.holds("worker", "0" * 64)
    for place in (0, 31, 63):
        assert not verifier.holds("worker", "0" * place + "1" + "0" * (63 - place))
