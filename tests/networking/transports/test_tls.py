"""TLS between a real Server and real clients: what each side says when they do not come together, and how often."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from tests.waiting import until
from tmrl_core.config import from_values
from tmrl_core.errors import HandshakeError, NetworkError, RefusedError
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, WorkerLink, base
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.messages import CloseStream, Hello, OpenStream, control_frame
from tmrl_core.networking.security import authentication, certificates, credentials, handshakes, tls_contexts
from tmrl_core.networking.security.admission import Admission
from tmrl_core.networking.transports.tls import (
    _LINGER_BYTES,
    _READ_BYTES,
    TlsTransport,
    _TlsDriver,
    _TlsListener,
    bound_sockets,
)
from tmrl_core.networking.worker import WorkerConnection, WorkerState

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Credentials folders by what is wrong with them."""
    root = tmp_path_factory.mktemp("credentials")
    places = {name: root / name for name in ("good", "foreign", "expired server")}
    for place in places.values():
        credentials.create(place, ["localhost"])

    def installed(source: Path, name: str, days: float) -> Path:
        there = root / name
        credentials.install(credentials.bundle(source, "worker", name.replace(" ", "-"), root, days=days), there)
        return there

    places["certified"] = installed(places["good"], "certified", 30)
    places["expired client"] = installed(places["good"], "expired client", -1)
    places["foreign client"] = installed(places["foreign"], "foreign client", 30)
    (places["foreign client"] / "ca.pem").write_bytes((places["good"] / "ca.pem").read_bytes())
    places["nothing to show"] = root / "nothing to show"
    places["nothing to show"].mkdir()
    (places["nothing to show"] / "ca.pem").write_bytes((places["good"] / "ca.pem").read_bytes())
    # The same CA and tokens, and a server certificate of yesterday.
    credentials.create(places["expired server"], days=-1)
    return places


@pytest.fixture
def stack(collect_garbage: Callable[[], object]) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    collect_garbage()  # an exception that a test has kept holds sockets


def serve(stack: ExitStack, folder: Path, port: int = 0, security: str | None = "TLS", **changes: object) -> Server:
    network = {"credentials_dir": str(folder), "security": security}
    server = Server(config=from_values({"network": network, "server": {"port": port, **changes}}))
    stack.callback(server.close)
    return server


def dial(stack: ExitStack, folder: Path, port: int, **changes: object) -> WorkerLink:
    values: dict[str, object] = {
        "port": port,
        "hostname": "localhost",
        "credentials_dir": str(folder),
        "backoff_min_s": 0.001,
        "backoff_max_s": 0.01,
    }
    link = WorkerLink(LinkSettings(**(values | changes)), name="robot7", run="run")  # type: ignore[arg-type]
    link.start()
    stack.callback(link.close, drain=False)
    return link


def failure(link: WorkerLink) -> NetworkError:
    """What has ended the link for good."""
    with pytest.raises(NetworkError) as caught:
        link.wait_connected(DEADLINE_S)
    return caught.value


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- addresses ---------------------------------------------------------------------------------------------------------

needs_both = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


@needs_both
@pytest.mark.parametrize("bind", ["::", "0::0"])
def test_a_server_of_all_interfaces_is_reached_by_both_versions(
    stack: ExitStack, folders: dict[str, Path], bind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        server = serve(stack, folders["good"], bind=bind)
        for host in ("127.0.0.1", "::1", "localhost"):
            link = dial(stack, folders["good"], server.port, host=host)
            assert link.wait_connected(DEADLINE_S), host
    # Addresses of IPv4 are shown, and counted by admission, as such.
    assert not any("::ffff" in message for message in caplog.messages)
    hosts = {one.identity.address.rpartition(":")[0] for one in server.relay.workers.values()}
    assert hosts == {"127.0.0.1", "::1"}


@needs_both
def test_an_empty_host_is_one_port_of_both_versions() -> None:
    with ExitStack() as closing:
        bound = [closing.enter_context(sock) for sock in bound_sockets(("",), 0)]
        assert {sock.family for sock in bound} == {socket.AF_INET, socket.AF_INET6}
        assert len({sock.getsockname()[1] for sock in bound}) == 1


@needs_both
def test_a_server_of_one_address_listens_on_no_other(stack: ExitStack, folders: dict[str, Path]) -> None:
    for bind, other in (("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("0.0.0.0", "::1")):
        server = serve(stack, folders["good"], bind=bind)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, server.port), 5.0).close()


def test_an_unknown_host_is_reported_while_the_link_tries_again(
    stack: ExitStack, folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    dial(stack, folders["good"], 1, host="no-such-host.invalid")
    until(lambda: any("cannot reach no-such-host.invalid port 1" in line for line in warnings(caplog)))


def name_server(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], list[str]]) -> str:
    """A name, with the addresses that `answer` returns."""
    real = socket.getaddrinfo

    def look_up(host: str, port: int, **kwargs: int) -> list[object]:
        if host != "two.example":
            return real(host, port, **kwargs)  # type: ignore[return-value]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer()]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return "two.example"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, a full queue or 127.0.0.2 answers")
def test_an_address_that_drops_packets_leaves_time_for_the_next(
    stack: ExitStack, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(stack, folders["good"])
    silent = stack.enter_context(socket.socket())
    silent.bind(("127.0.0.2", server.port))
    silent.listen(0)
    stack.enter_context(socket.create_connection(("127.0.0.2", server.port)))  # its queue is full
    host = name_server(monkeypatch, lambda: ["127.0.0.2", "127.0.0.1"])
    link = dial(stack, folders["good"], server.port, host=host, connect_timeout_s=1.0)
    assert link.wait_connected(DEADLINE_S)


def test_a_look_up_may_take_longer_than_a_connection(
    stack: ExitStack, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> list[str]:
        time.sleep(0.5)  # as behind a name server that is silent
        return ["127.0.0.1"]

    server = serve(stack, folders["good"])
    link = dial(stack, folders["good"], server.port, host=name_server(monkeypatch, slow), connect_timeout_s=0.3)
    assert link.wait_connected(DEADLINE_S)


# -- wrong credentials: what both sides say ----------------------------------------------------------------------------

# what is wrong: (server's folder, client's folder, settings, what the client says, what it says to run, Server's words)
WRONG: dict[str, tuple[str, str, dict[str, str], str, str, str]] = {
    "host name": (
        *("good", "good", {"hostname": "other.example"}),
        "the Server's certificate is not for 'other.example'",
        "python -m tmrl_core --credentials create --host other.example",
        "this Server's certificate (it may not be for the name that was dialled)",
    ),
    "foreign CA": (
        *("good", "foreign", {}),
        "has a certificate of another CA than the one in this machine's credentials",
        "python -m tmrl_core --credentials bundle worker --name NAME",
        "does not know the CA of this Server's certificate",
    ),
    "expired server certificate": (
        *("expired server", "expired server", {}),
        "the Server's certificate, or its CA's, has expired",
        "python -m tmrl_core --credentials renew",
        "this Server's certificate has expired",
    ),
    "expired client certificate": (
        *("good", "expired client", {}),
        "this machine's client certificate has expired",
        "python -m tmrl_core --credentials bundle worker --name NAME",
        "the peer's certificate has expired",
    ),
    "foreign client certificate": (
        *("good", "foreign client", {}),
        "does not know the CA of this machine's client certificate",
        "python -m tmrl_core --credentials bundle worker --name NAME",
        "the peer's certificate is of a foreign CA",
    ),
    "neither certificate nor token": (
        *("good", "nothing to show", {}),
        "neither a client certificate nor a token was shown",
        "python -m tmrl_core --credentials bundle worker --name NAME",
        "neither a client certificate nor a token was shown",
    ),
    "wrong token": (
        *("good", "nothing to show", {"token": "guessed-token"}),
        "the token is not this Server's token of the role worker",
        "python -m tmrl_core --credentials bundle worker --name NAME",
        "the token is not this Server's token of the role worker",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_each_side_logs_the_known_reason_once_and_the_client_stops(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    server_folder, client_folder, changes, client_words, to_run, server_words = WRONG[wrong]
    server = serve(stack, folders[server_folder])
    link = dial(stack, folders[client_folder], server.port, **changes)
    reason = failure(link)
    assert isinstance(reason, HandshakeError | RefusedError)
    assert client_words in str(reason)
    assert to_run in str(reason)
    assert "guessed-token" not in str(reason)
    # The link's thread has ended: there is nobody left who could try again.
    link.close(drain=False)
    assert link._thread is not None
    assert not link._thread.is_alive()
    until(lambda: server.refusals.count == 1)
    server.close()
    assert server.refusals.count == 1
    (said,) = [line for line in warnings(caplog) if "refused a connection" in line]
    assert server_words in said
    assert "refused a connection from 127.0.0.1" in said
    assert "guessed-token" not in said


@pytest.mark.parametrize("whose", ["server", "client"])
def test_a_client_tries_again_while_a_certificate_is_not_valid_yet(
    tmp_path: Path, stack: ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Small computers without a clock get the time minutes after their start, when a worker has long begun."""
    place, there = tmp_path / "place", tmp_path / "there"

    def make() -> None:
        if whose == "server":
            credentials.create(place, ["localhost"])
        else:
            credentials.install(credentials.bundle(place, "worker", "robot7", tmp_path), there)

    credentials.create(place, ["localhost"])
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_CLOCK_SLACK", timedelta(days=-1))
        make()
    server = serve(stack, place)
    link = dial(stack, place if whose == "server" else there, server.port)
    until(lambda: "valid yet" in caplog.text and "trying again" in caplog.text)
    assert not link.closed
    make()
    assert link.wait_connected(DEADLINE_S)


@pytest.mark.parametrize("wrong", ["expired client certificate", "foreign client certificate"])
def test_the_reasons_are_sent_over_tls_1_2_too(folders: dict[str, Path], wrong: str) -> None:
    """There the alert comes within the handshake, with 1.3 after it."""
    _, client_folder, _, client_words, _, server_words = WRONG[wrong]
    heard: list[str] = []
    server_context, _ = tls_contexts.server_context(folders["good"])
    server_context.maximum_version = ssl.TLSVersion.TLSv1_2
    both = {
        side: (lambda exc, side=side: handshakes.explain(exc, host="192.0.2.1", side=side))
        for side in ("server", "client")
    }

    async def main() -> None:
        listening = TlsTransport(
            server_context, explain=both["server"], on_refused=lambda address, reason: heard.append(reason)
        )
        listener = await listening.serve("127.0.0.1", 0, worker_connection)
        dialling = TlsTransport(
            tls_contexts.client_context(folders[client_folder], "worker"),
            server_hostname="localhost",
            explain=both["client"],
        )
        connection = worker_connection()
        driver = await dialling.dial("127.0.0.1", listener.port, connection, DEADLINE_S)
        await asyncio.wait_for(driver.ended, DEADLINE_S)
        assert isinstance(connection.reason, HandshakeError)
        assert client_words in str(connection.reason)
        await listener.close()

    asyncio.run(main())
    assert len(heard) == 1
    assert server_words in heard[0]


def worker_connection() -> WorkerConnection:
    return WorkerConnection(WorkerState(run="run", name="a", peer=b"p" * 16), silent_s=10, heartbeat_s=3)


def test_a_link_that_lasts_warns_of_its_certificate(
    folders: dict[str, Path],
    stack: ExitStack,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "_CHECKS_S", 0.02)
    monkeypatch.setattr(authentication, "_WARN_EVERY", timedelta(0))
    days = authentication.WARN_DAYS + 2.0 / 86_400
    credentials.install(
        credentials.bundle(folders["good"], "worker", "lasting", tmp_path, days=days), tmp_path / "there"
    )
    link = dial(stack, tmp_path / "there", serve(stack, folders["good"]).port)
    assert link.wait_connected(DEADLINE_S)
    until(lambda: any("this machine's client certificate (lasting) expires on" in line for line in warnings(caplog)))


def test_with_a_certificate_of_its_own_a_worker_needs_no_token(folders: dict[str, Path], stack: ExitStack) -> None:
    server = serve(stack, folders["good"])
    (folders["certified"] / "worker.token").unlink(missing_ok=True)
    assert dial(stack, folders["certified"], server.port).wait_connected(DEADLINE_S)
    (connection,) = server.relay.workers.values()
    assert (connection.identity.role, connection.identity.name) == ("worker", "certified")


# -- TLS on one side only ----------------------------------------------------------------------------------------------


def test_tls_to_a_plaintext_server_names_the_possible_cause(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(stack, folders["good"], security=None)
    reason = failure(dial(stack, folders["good"], server.port, security="TLS"))
    assert "is not TLS: another program uses that port, or one side has network.security null" in str(reason)
    until(lambda: server.refusals.count == 1)
    (said,) = warnings(caplog)
    assert "the peer speaks TLS, and this Server does not (network.security is null here)" in said


def test_plaintext_to_a_tls_server_names_the_setting_to_change(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(stack, folders["good"])
    reason = failure(dial(stack, folders["good"], server.port, security=None))
    assert isinstance(reason, HandshakeError)
    assert "speaks TLS, and this side does not. network.security is null here" in str(reason)
    until(lambda: server.refusals.count == 1)
    (said,) = warnings(caplog)
    assert "is not TLS" in said
    assert "network.security null" in said


def test_plaintext_to_a_port_that_closes_names_the_setting_and_retries(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(stack, read_once)
    link = dial(stack, folders["good"], door.port, security=None)
    until(lambda: door.calls >= 3)
    link.close(drain=False)
    (said,) = warnings(caplog)
    assert "closed the connection without a message. network.security is null here" in said


# -- what may pass: tried again, said once -----------------------------------------------------------------------------


class Door:
    """A port where something listens, and treats each caller as it is told to; it counts them."""

    def __init__(self, stack: ExitStack, answer: Callable[[socket.socket], None]) -> None:
        self.calls = 0
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        stack.callback(self._close)

    def _run(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            self.calls += 1
            with caller, suppress(OSError):
                self._answer(caller)

    def _close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(DEADLINE_S)


def read_once(caller: socket.socket) -> None:
    caller.recv(4096)


def test_a_port_that_closes_is_retried_and_logged_once(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(stack, read_once)
    link = dial(stack, folders["good"], door.port)
    until(lambda: door.calls >= 10)
    link.close(drain=False)
    (said,) = warnings(caplog)
    assert "closed the connection before it was secured; trying again, at most every 0.01 s" in said


def test_a_missing_server_is_logged_once(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(stack, folders["good"])
    port = server.port
    server.close()
    link = dial(stack, folders["good"], port)
    until(lambda: len(warnings(caplog)) == 1)
    assert "nothing listens at 127.0.0.1 on that port" in warnings(caplog)[0]
    serve(stack, folders["good"], port)
    assert link.wait_connected(DEADLINE_S)
    assert len(warnings(caplog)) == 1


def test_waits_between_attempts_grow(folders: dict[str, Path], stack: ExitStack) -> None:
    times: list[float] = []
    door = Door(stack, lambda caller: times.append(time.monotonic()))
    dial(stack, folders["good"], door.port, backoff_min_s=0.01, backoff_max_s=100.0)
    until(lambda: len(times) >= 7)
    waits = [later - earlier for earlier, later in pairwise(times)]
    # Each wait is at least half of twice the one before it: jitter takes at most one half.
    assert all(wait >= 0.5 * 0.01 * 2**i for i, wait in enumerate(waits))


def test_a_link_that_was_refused_after_it_had_been_welcomed_waits_the_longest_time(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    server = serve(stack, folders["good"])
    link = dial(stack, folders["certified"], server.port, backoff_max_s=3600.0)
    assert link.wait_connected(DEADLINE_S)
    server.close()
    # The certificate of this worker is no trainer's; the Server that comes back knows another CA.
    again = serve(stack, folders["foreign"], server.port)
    until(lambda: again.refusals.count == 1)
    until(lambda: any("another CA" in line for line in warnings(caplog)))
    other = dial(stack, folders["foreign"], again.port)
    assert other.wait_connected(DEADLINE_S), "time enough for many tries of the shortest kind"
    assert again.refusals.count == 1
    assert not link.closed
    assert sum("another CA" in line for line in warnings(caplog)) == 1


# -- who does not answer -----------------------------------------------------------------------------------------------


def test_a_peer_that_never_finishes_the_handshake_is_disconnected(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(stack, folders["good"], greeting_s=0.05)
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as mute:
        while mute.recv(4096):
            pass
    assert server.refusals.count == 1
    (said,) = warnings(caplog)
    assert "the TLS handshake was not finished within 0.05 s" in said


def test_a_server_that_never_finishes_the_handshake_is_given_up(
    folders: dict[str, Path], stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    def read_on(caller: socket.socket) -> None:
        while caller.recv(4096):
            pass

    door = Door(stack, read_on)
    link = dial(stack, folders["good"], door.port, connect_timeout_s=0.05)
    until(lambda: door.calls >= 2)
    link.close(drain=False)
    (said,) = warnings(caplog)
    assert "did not finish the TLS handshake within 0.05 s" in said


class _Watched:
    """Received bytes of a link that were not decrypted yet, and the most of them at any time."""

    def __init__(self, bio: ssl.MemoryBIO) -> None:
        self._bio = bio
        self.most = 0

    def write(self, data: memoryview) -> None:
        self._bio.write(data)
        self.most = max(self.most, self._bio.pending)


def test_what_follows_a_refusal_is_not_stored(
    folders: dict[str, Path], stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)  # a fast machine: no read pauses the link
    server = serve(stack, folders["good"])
    loop, listener = server._loop, server._listener
    assert loop is not None
    assert isinstance(listener, _TlsListener)
    context = tls_contexts.client_context(folders["certified"], "worker")
    raw = socket.create_connection(("127.0.0.1", server.port))
    caller = stack.enter_context(context.wrap_socket(raw, server_hostname="localhost"))
    caller.sendall(control_frame(Hello((1,), "worker", "", "run", "robot", bytes(16))))
    for channel in range(150):  # the system and the Server read more at a time after many large messages
        opening = control_frame(OpenStream(channel, channel.to_bytes(16, "big"), "robot", bytes(58_000)))
        caller.sendall(opening + control_frame(CloseStream(channel)))
    held, go_on = threading.Event(), threading.Event()
    stack.callback(go_on.set)
    until(lambda: [worker.frames_in for worker in server.relay.workers.values()] == [301])
    watched: list[_Watched] = []

    def hold() -> None:
        for driver in listener.drivers:
            driver._in = _Watched(driver._in)  # type: ignore[assignment]
            watched.append(driver._in)  # type: ignore[arg-type]
        held.set()
        go_on.wait(DEADLINE_S)

    loop.call_soon_threadsafe(hold)
    assert held.wait(DEADLINE_S)
    sent = 0
    caller.settimeout(0.3)
    with suppress(OSError):
        while sent < 8 << 20:  # illegal messages
            sent += caller.send(bytes(1 << 16))
    assert sent > 4 * _READ_BYTES
    go_on.set()
    until(lambda: server.relay.protocol_errors > 0 and not listener.drivers)
    (most,) = (one.most for one in watched)
    assert 0 < most < 2 * _READ_BYTES


def test_a_refused_link_that_sends_on_and_on_is_cut(
    folders: dict[str, Path], stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_core.networking.transports.tls.LINGER_S", 3_600.0)
    server = serve(stack, folders["good"])
    context = tls_contexts.client_context(folders["certified"], "worker")
    raw = socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
    caller = stack.enter_context(context.wrap_socket(raw, server_hostname="localhost"))
    caller.sendall(bytes(100))  # no message
    sent = 0
    with suppress(ssl.SSLError, ConnectionError):
        while sent < 32 * _LINGER_BYTES:
            sent += caller.send(bytes(1 << 20))
    assert _LINGER_BYTES <= sent < 32 * _LINGER_BYTES


def test_a_link_whose_input_fails_by_our_own_fault_is_opened_again(
    folders: dict[str, Path], stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(stack, folders["good"])
    received, failed = WorkerConnection.received, list[int]()

    def fail_once(self: WorkerConnection, n: int, now: float) -> None:
        if not failed:
            failed.append(n)
            raise IndexError("a defect")
        received(self, n, now)

    monkeypatch.setattr(WorkerConnection, "received", fail_once)
    link = dial(stack, folders["certified"], server.port)
    assert link.wait_connected(DEADLINE_S)
    assert failed


@pytest.mark.parametrize("size", [1, 65_536])
def test_each_discarded_read_has_a_minimum_price(size: int) -> None:
    charged: list[float] = []

    class Ended(Connection):
        def charge(self, seconds: float, n: int, now: float) -> None:
            charged.append(seconds)

    async def main() -> None:
        connection = Ended(silent_s=10.0, heartbeat_s=1.0)
        connection.closing = True
        pending = Admission().arrive("192.0.2.7:1", 0.0)
        assert not isinstance(pending, str)
        driver = _TlsDriver(TlsTransport(None), connection, asyncio.get_running_loop(), pending)
        for _ in range(100):
            driver.buffer_updated(size)

    asyncio.run(main())
    assert sum(charged) == pytest.approx(100 * (5e-6 + size * 2e-9))


def test_a_link_that_pauses_again_and_again_does_not_count_as_silent() -> None:
    class Socket:
        def pause_reading(self) -> None:
            """Do nothing: there is no socket."""

    async def main() -> None:
        connection = Connection(silent_s=10.0, heartbeat_s=1.0)
        driver = _TlsDriver(TlsTransport(None), connection, asyncio.get_running_loop(), None)
        connection.connected(Identity("test"), driver.loop.time() - 8.0)
        connection.state = "open"
        driver._socket = cast(asyncio.Transport, Socket())
        driver._pause(4.0)
        assert driver._resume is not None
        connection.tick(driver._resume.when() - 0.1)
        assert not connection.closing, "nothing is read now"
        driver._pause(4.0)
        connection.tick(driver._resume.when())
        assert not connection.closing, "its input is read next"
        driver._resume.cancel()

    asyncio.run(main())
