"""The transport `tlspyo` beyond what all transports promise: its processes, its refusals, restarts without loss."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import pickle
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from tests.waiting import until
from tmrl_core.config import from_values
from tmrl_core.errors import ConfigError, CredentialsError, HandshakeError, MissingExtraError, NetworkError
from tmrl_core.networking import Server
from tmrl_core.networking.links import TrainerLink, WorkerLink
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.networking.security import credentials
from tmrl_core.networking.security.admission import FIRST_DELAY_S, FREE_FAILURES, AdmissionSettings
from tmrl_core.networking.transports.selection import LinkSettings
from tmrl_core.networking.transports.tlspyo import files
from tmrl_core.networking.transports.tlspyo.transport import TlspyoTransport
from tmrl_core.samples import Buffer
from tmrl_core.samples.codec import decode_message

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tlspyo") is None, reason="the extra tlspyo")

DEADLINE_S = 40.0


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder)
    return folder


class Place:
    """A Server over tlspyo, and links to it."""

    def __init__(self, keys: Path, stack: ExitStack) -> None:
        self.keys = keys
        self.stack = stack
        self.local_port = free_port()
        self.port = 0
        self.server: Server

    def start_server(self, **network: Any) -> Server:
        values = {"transport": "tlspyo", "credentials_dir": str(self.keys), "local_port_server": self.local_port}
        config = from_values({"network": {**values, **network}, "server": {"port": self.port}})
        self.server = Server(config=config)
        self.stack.callback(self.server.close)
        self.port = self.server.port
        return self.server

    def settings(self, **changes: Any) -> LinkSettings:
        values = {"port": self.port, "transport": "tlspyo", "security": "TLS", "credentials_dir": str(self.keys)}
        return LinkSettings(**{**values, "backoff_min_s": 0.05, "backoff_max_s": 0.2, **changes})

    def worker(self, **changes: Any) -> WorkerLink:
        link = WorkerLink(self.settings(**changes), name="a", run="run", drain_timeout_s=DEADLINE_S)
        link.start()
        self.stack.callback(link.close, drain=False)
        return link

    def trainer(self, **changes: Any) -> TrainerLink:
        link = TrainerLink(self.settings(**changes), name="trainer", run="run")
        link.start()
        self.stack.callback(link.close)
        return link


@pytest.fixture
def place(keys: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(keys, stack)
    until(lambda: io_processes() == [], limit_s=DEADLINE_S)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def io_processes(parent: int | None = None) -> list[psutil.Process]:
    """The I/O processes that this process (or `parent`) has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(parent).children(recursive=True) if is_io(child)]
    return []


def is_io(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("tlspyo.io_process" in word for word in process.cmdline())
    return False


def send(worker: WorkerLink, first: int, rows: int) -> None:
    buffer = Buffer(maxlen=None)
    for i in range(first, first + rows):
        buffer.append_sample((np.zeros(1, np.float32), np.full(3, i, np.float32), 0.5, False, False, {}))
    chunks, _ = buffer.take()
    worker.send(chunks, [])


def collect(trainer: TrainerLink, numbers: list[float], rows: int) -> None:
    while len(numbers) < rows:
        assert trainer.wait(DEADLINE_S), f"{len(numbers)} of {rows} rows came"
        received = trainer.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=1 << 24).chunk
            assert chunk is not None
            numbers += np.asarray(chunk.observation)[:, 0].tolist()
        trainer.acknowledge(received)


def test_roles_connect_with_the_credentials_of_the_command(place: Place) -> None:
    """They may share one local port, and their own processes never import tlspyo."""
    place.start_server()
    ports = {"local_port_trainer": place.local_port, "local_port_worker": place.local_port}
    sharing = from_values({"network": ports})
    worker = place.worker(config=sharing)
    trainer = place.trainer(config=sharing)
    trainer.publish({"policy": Blob("text", b"weights")})
    send(worker, 0, 300)
    numbers: list[float] = []
    collect(trainer, numbers, 300)
    assert numbers == list(range(300))
    assert worker.wait_policy(DEADLINE_S)
    assert not {"tlspyo", "twisted"} & set(sys.modules)


def test_a_restart_of_the_server_loses_and_repeats_nothing(place: Place) -> None:
    place.start_server()
    worker, trainer = place.worker(), place.trainer()
    numbers: list[float] = []
    for i in range(20):
        send(worker, 100 * i, 100)
    collect(trainer, numbers, 500)
    place.server.close()
    place.start_server()
    for i in range(20):
        send(worker, 2_000 + 100 * i, 100)
    collect(trainer, numbers, 4_000)
    assert numbers == list(range(4_000))


@pytest.mark.parametrize("whose", [pytest.param("the Server's", marks=pytest.mark.full), "everybody's"])
def test_a_killed_io_process_is_replaced_and_nothing_is_lost(place: Place, whose: str) -> None:
    place.start_server()
    relay = io_processes()
    worker, trainer = place.worker(), place.trainer()
    numbers: list[float] = []
    send(worker, 0, 500)
    collect(trainer, numbers, 500)
    for i in range(10):
        send(worker, 500 + 50 * i, 50)
    for process in relay if whose == "the Server's" else io_processes():
        process.kill()
    collect(trainer, numbers, 1_000)
    assert numbers == list(range(1_000))


# -- refusals ----------------------------------------------------------------------------------------------------------


def failure(link: WorkerLink) -> Exception:
    with pytest.raises(NetworkError) as caught:
        link.wait_connected(DEADLINE_S)
    return caught.value


def test_a_wrong_password_is_named_and_final(place: Place) -> None:
    place.start_server()
    error = failure(place.worker(token="another password"))
    assert isinstance(error, HandshakeError)
    assert f"port {place.port} refuses this connection: the password is not this Server's" in str(error)
    assert "TMRL_CORE_TOKEN" in str(error)
    assert "another password" not in str(error)
    until(lambda: place.server.refusals.count, limit_s=DEADLINE_S)  # the Server's log says so too


def test_another_certificate_and_another_host_name_are_named_and_final(place: Place, tmp_path: Path) -> None:
    place.start_server()
    credentials.create(tmp_path)
    (tmp_path / "tlspyo.password").write_bytes((place.keys / "tlspyo.password").read_bytes())
    error = failure(place.worker(credentials_dir=str(tmp_path)))
    assert isinstance(error, HandshakeError)
    assert "another certificate than certificate.pem here" in str(error)
    error = failure(place.worker(hostname="elsewhere.example.org"))
    assert isinstance(error, HandshakeError)
    assert "for another name than 'elsewhere.example.org'. Set network.hostname" in str(error)


def test_the_error_names_a_used_local_port_in_time(place: Place) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", place.local_port))
        holder.listen()
        transport = transport_of(place.keys, local_port=place.local_port, start_s=0.2)
        with pytest.raises(NetworkError, match=rf"local port {place.local_port}.*network\.local_port_server"):
            asyncio.run(transport.serve("127.0.0.1", 0, no_peer))
    assert io_processes() == []


def test_missing_files_and_passwords_are_named(place: Place, tmp_path: Path) -> None:
    own = tmp_path / "own"
    place.keys = own
    (tmp_path / "bare").mkdir()
    with pytest.raises(CredentialsError, match=r"certificate.pem not found.*--credentials create"):
        place.worker(credentials_dir=str(tmp_path / "bare"))
    place.start_server()  # on loopback: it makes them
    (own / "tlspyo.password").unlink()
    with pytest.raises(CredentialsError, match=r"no password for tlspyo.*TMRL_CORE_TOKEN"):
        place.worker()
    assert place.worker(token=place.server._transport._password).wait_connected(DEADLINE_S)  # type: ignore[attr-defined]


def test_a_broken_certificate_is_named(keys: Path) -> None:
    transport = TlspyoTransport(password="p", certificate="no certificate", key="no key")
    with pytest.raises(CredentialsError, match=r"certificate\.pem and key\.pem"):
        asyncio.run(transport.serve("127.0.0.1", 0, no_peer))
    assert io_processes() == []


@pytest.mark.parametrize("size", [1, 5, 257])
def test_a_header_that_holds_no_length_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"network.header_size: {size} bytes"):
        TlspyoTransport(password="p", header_size=size)


def test_another_header_size_ends_in_an_error_in_time(place: Place) -> None:
    place.start_server(header_size=20)
    connection = Connection(silent_s=10, heartbeat_s=3)
    with pytest.raises(NetworkError):
        asyncio.run(transport_of(place.keys).dial("127.0.0.1", place.port, connection, 2.0))


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[tlspyo\]"):
        TlspyoTransport(password="p")


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.4.1")
    with pytest.raises(ConfigError, match=r"0\.4\.1 is installed"):
        TlspyoTransport(password="p")


def test_plaintext_stays_on_this_machine(place: Place) -> None:
    place.start_server(security=None)
    assert place.worker(security=None).wait_connected(DEADLINE_S)
    with pytest.raises(ConfigError, match="allow_insecure_remote"):
        place.worker(security=None, host="192.0.2.1")


def transport_of(keys: Path, **more: Any) -> TlspyoTransport:
    part = files.load(keys, server=True)
    values = {"password": part.password, "certificate": part.certificate, "key": part.key}
    return TlspyoTransport(**{**values, "key_of_local_port": "network.local_port_server", **more})


def no_peer_of() -> Connection:
    return Connection(silent_s=5.0, heartbeat_s=1.0)


def no_peer() -> Connection:
    raise AssertionError("nobody should come")


# -- peers that are none -----------------------------------------------------------------------------------------------


class Stranger:
    """Speaks tlspyo's protocol by hand."""

    def __init__(self, place: Place) -> None:
        part = files.load(place.keys, server=False)
        context = ssl.create_default_context(cadata=part.certificate)
        self.password = part.password.encode()
        raw = socket.create_connection(("127.0.0.1", place.port), DEADLINE_S)
        self.sock = context.wrap_socket(raw, server_hostname="default")

    def say(self, *message: Any, password: bytes | None = None, length: int | None = None) -> None:
        body = msgspec.msgpack.encode(message)
        head = b"%-12d" % (len(body) if length is None else length)
        self.sock.sendall(head + (self.password if password is None else password) + body)

    def join(self, group: Any) -> None:
        self.say(1, "HELLO", None, [group])

    def everything(self) -> bytes:
        """What comes until the other side closes."""
        out = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := self.sock.recv(65_536):
                out += data
        return out


@pytest.fixture
def stranger(place: Place) -> Iterator[Stranger]:
    place.start_server()
    made = Stranger(place)
    with made.sock:
        yield made


def test_a_client_with_a_wrong_password_gets_only_the_reason(stranger: Stranger) -> None:
    stranger.say(1, "HELLO", None, ["p." + "0" * 32], password=b"x" * len(stranger.password))
    said = stranger.everything()
    assert b"the password is not this Server's" in said
    assert stranger.password not in said


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_1_1_is_refused(place: Place) -> None:
    place.start_server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", place.port), DEADLINE_S) as raw,
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
    ):
        context.wrap_socket(raw)


GROUPS = ["hub", "p.", "p." + "0" * 31, "p." + "g" * 32, "trainers", 7, [], {"p": 1}, None]
"""Groups that no peer may join."""
INVALID: list[tuple[Any, ...]] = [
    (2, "OBJ", {"p." + "1" * 32: -1}, b"for another peer"),
    (2, "OBJ", {"hub": 1}, b"to be consumed"),
    (2, "OBJ", {"hub": -1, "p." + "1" * 32: -1}, b""),
    (2, "OBJ", {"hub": -1}, "no bytes"),
    (2, "OBJ", {"hub": -1}, b"no piece"),
    (2, "NTF", {"hub": -1}, None),
    (2, "HELLO", None, ["p." + "2" * 32]),
    (2, "SHOUT", None, None),
    (2, "OBJ"),
    (),
]
"""Messages of a peer that has joined; the empty one stands for bytes that are no message."""


def test_a_wrong_group_and_invalid_messages_end_only_their_own_connection(place: Place) -> None:
    place.start_server()
    worker = place.worker()
    assert worker.wait_connected(DEADLINE_S)
    own = "p." + "0" * 32
    for group, message in [*((group, None) for group in GROUPS), *((own, message) for message in INVALID)]:
        stranger = Stranger(place)
        with stranger.sock:
            stranger.join(group)
            if message is not None:
                stranger.say(*message) if message else stranger.sock.sendall(b"garbage" * 100)
            try:
                stranger.everything()
            except TimeoutError:
                pytest.fail(f"{message or group!r} did not end the connection")
        assert worker.connected, f"{message or group!r} ended another connection"


def test_a_second_join_ends_the_connection_immediately(stranger: Stranger) -> None:
    stranger.join("p." + "0" * 32)
    stranger.join("p." + "2" * 32)
    begun = time.monotonic()
    stranger.everything()
    assert time.monotonic() - begun < 0.5 * AdmissionSettings().greeting_s  # not for want of a greeting


class _Code:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_the_relay_refuses_a_pickle(place: Place, tmp_path: Path) -> None:
    place.start_server()
    body = pickle.dumps((1, "OBJ", {"hub": -1}, _Code(tmp_path / "ran")))
    for joined in (False, True):
        stranger = Stranger(place)
        with stranger.sock:
            if joined:
                stranger.join("p." + "0" * 32)
            stranger.sock.sendall(b"%-12d" % len(body) + stranger.password + body)
            stranger.everything()
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("inside", [False, True], ids=["instead of a message", "as its content"])
def test_a_client_refuses_a_pickle_of_a_false_relay(keys: Path, tmp_path: Path, inside: bool) -> None:
    part = files.load(keys, server=True)
    file = tmp_path / "relay.pem"
    file.write_text(part.key + part.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    code = pickle.dumps((1, "OBJ", _Code(tmp_path / "ran")))
    body = msgspec.msgpack.encode((1, "OBJ", code)) if inside else code

    def pose(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listening.accept()
                with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
                    tls.sendall(b"%-12d" % len(body) + body)
                    tls.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=pose, args=(listening,), daemon=True)
        thread.start()
        transport = transport_of(keys, header_size=12)
        dial = transport.dial("127.0.0.1", listening.getsockname()[1], no_peer_of(), 5.0)
        with pytest.raises(NetworkError):
            asyncio.run(dial)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_S)
    assert not (tmp_path / "ran").exists()


def test_a_length_above_the_limit_ends_the_connection_before_it_is_waited_for(stranger: Stranger) -> None:
    stranger.say(1, "HELLO", None, ["p." + "0" * 32], length=70_000)
    stranger.everything()


@pytest.mark.parametrize(
    ("bounds", "knocks", "closed"),
    [
        (AdmissionSettings(greeting_s=0.3), 1, 1),
        (AdmissionSettings(max_unauthenticated=6), 5, 2),
        (AdmissionSettings(max_unauthenticated=6, connections_per_s=1e-3), 9, 6),
    ],
    ids=["time", "number of one address", "rate"],
)
def test_unauthenticated_connections_are_limited(
    place: Place, bounds: AdmissionSettings, knocks: int, closed: int
) -> None:
    refused: list[str] = []
    transport = transport_of(place.keys, admission=bounds, on_refused=lambda address, reason: refused.append(reason))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = await transport.serve("127.0.0.1", 0, no_peer)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(listener.close)
            socks = [stack.enter_context(socket.socket()) for _ in range(knocks)]
            for sock in socks:
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", listener.port))
            for sock in socks[-closed:]:
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(loop.sock_recv(sock, 1), DEADLINE_S) == b""
            for sock in socks[:-closed]:
                with pytest.raises(BlockingIOError):
                    sock.recv(1)
            deadline = loop.time() + DEADLINE_S
            while len(refused) < closed:
                assert loop.time() < deadline
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_rejected_connections_use_up_their_addresss_allowance(place: Place) -> None:
    bounds = AdmissionSettings(max_unauthenticated=4, connections_per_s=1e-3)
    transport = transport_of(place.keys, admission=bounds)

    async def knock(port: int) -> bool:
        """Whether the connection is closed at once."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return True
        try:
            return await asyncio.wait_for(reader.read(1), 0.3) == b""
        except ConnectionError:
            return True
        except asyncio.TimeoutError:
            return False
        finally:
            writer.transport.abort()

    async def main() -> None:
        listener = await transport.serve("127.0.0.1", 0, no_peer)
        try:
            assert [await knock(listener.port) for _ in range(6)] == [False] * 4 + [True] * 2
        finally:
            await listener.close()

    asyncio.run(main())


def test_rejections_of_a_guessing_client_are_delayed_longer_each_time(place: Place) -> None:
    place.start_server()
    waited = []
    for _ in range(FREE_FAILURES + 2):
        stranger = Stranger(place)
        with stranger.sock:
            begun = time.monotonic()
            stranger.say(1, "HELLO", None, ["p." + "0" * 32], password=b"x" * len(stranger.password))
            assert b"the password is not this Server's" in stranger.everything()
            waited.append(time.monotonic() - begun)
    assert waited[-1] > 1.5 * FIRST_DELAY_S
    assert waited[-2] > 0.5 * FIRST_DELAY_S


# -- processes ---------------------------------------------------------------------------------------------------------

ROLE = """
import sys, time
from tmrl_core.config import from_values
from tmrl_core.networking import Server
server = Server(config=from_values({"network": {"transport": "tlspyo", "credentials_dir": sys.argv[1],
    "local_port_server": int(sys.argv[3])}, "server": {"port": int(sys.argv[2])}}))
print(server.port, flush=True)
if "fork" in sys.argv:
    import os
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
sys.stdin.read()
"""


def start_role(place: Place, port: int, *more: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", ROLE, str(place.keys), str(port), str(place.local_port), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    place.stack.enter_context(process)
    place.stack.callback(process.kill)
    return process, int(process.stdout.readline())


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has other signals")
def test_a_killed_server_leaves_no_process_and_releases_its_ports(place: Place) -> None:
    process, port = start_role(place, 0)
    children = io_processes(process.pid)
    assert len(children) == 1
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_S)
    assert alive == []
    _, again = start_role(place, port)
    assert again == port


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_server_with_a_forked_child_leaves_no_process(place: Place) -> None:
    process, _ = start_role(place, 0, "fork")
    assert process.stdout is not None
    forked = int(process.stdout.readline())
    children = io_processes(process.pid)
    process.kill()
    process.wait()
    try:
        _, alive = psutil.wait_procs(children, timeout=DEADLINE_S)
        assert alive == []
    finally:
        os.kill(forked, signal.SIGKILL)


def test_nothing_secret_is_in_a_command_line_or_an_environment(place: Place) -> None:
    place.start_server()
    password = files.load(place.keys, server=True).password
    (child,) = io_processes()
    assert not any(password in word for word in [*child.cmdline(), *child.environ().values()])
    assert password not in repr(place.server._transport)
