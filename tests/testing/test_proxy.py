"""The proxy: what goes in comes out, spoiled as was asked for and no other way."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tmrl_core.errors import NetworkError
from tmrl_core.testing.proxy import Conditions, Proxy, main, until_sent_again

DEADLINE_S = 20.0


class Echo:
    """Sends back what it gets, until its connections end."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.ended: list[str] = []
        """How each connection ended."""
        self.changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(sock,), daemon=True).start()

    def _echo(self, sock: socket.socket) -> None:
        how = "in order"
        with sock:
            try:
                while data := sock.recv(65_536):
                    sock.sendall(data)
            except OSError:
                how = "reset"
        with self.changed:
            self.ended.append(how)
            self.changed.notify_all()

    def wait_ended(self) -> str:
        with self.changed:
            assert self.changed.wait_for(lambda: self.ended, DEADLINE_S)
            return self.ended.pop()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.listener.close()


class Place:
    """A proxy in front of an echo."""

    def __init__(self, echo: Echo, stack: ExitStack) -> None:
        self.proxy = stack.enter_context(Proxy(echo.address, seed=1))
        self.stack = stack

    def dial(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.proxy.port), DEADLINE_S)
        return self.stack.enter_context(sock)


@pytest.fixture
def place(echo: Echo) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(echo, stack)


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more, f"the connection ended after {len(data)} of {size} bytes"
        data += more
    return data


def said(sock: socket.socket, data: bytes) -> bytes:
    """Send, and read as much."""
    sock.sendall(data)
    return exactly(sock, len(data))


def silent(sock: socket.socket, seconds: float) -> bool:
    sock.settimeout(seconds)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(DEADLINE_S)
    return False


def test_a_megabyte_passes_unchanged_both_ways_and_the_end_too(place: Place, echo: Echo) -> None:
    sock = place.dial()
    data = os.urandom(1 << 20)
    sender = threading.Thread(target=sock.sendall, args=(data,))
    sender.start()
    assert hashlib.sha256(exactly(sock, len(data))).digest() == hashlib.sha256(data).digest()
    sender.join(DEADLINE_S)
    sock.shutdown(socket.SHUT_WR)
    assert sock.recv(1) == b""
    assert echo.wait_ended() == "in order"
    assert place.proxy.connections_made == 1


def test_latency_is_added_in_each_direction(place: Place) -> None:
    place.proxy.change(latency_s=0.1)
    sock = place.dial()
    begun = time.monotonic()
    assert said(sock, b"a" * 1000) == b"a" * 1000
    assert 0.2 <= time.monotonic() - begun < 2.0


def test_jitter_keeps_the_order(place: Place) -> None:
    place.proxy.change(jitter_s=0.02)
    sock = place.dial()
    data = bytes(range(100))
    for i in range(100):
        sock.sendall(data[i : i + 1])
    assert exactly(sock, 100) == data


def test_bandwidth_is_held_and_may_change_meanwhile(place: Place) -> None:
    place.proxy.change(bytes_per_s=100_000)
    sock = place.dial()
    begun = time.monotonic()
    said(sock, b"a" * 50_000)
    assert 0.5 <= time.monotonic() - begun < 4.0
    place.proxy.change(bytes_per_s=None)
    begun = time.monotonic()
    said(sock, b"a" * 200_000)
    assert time.monotonic() - begun < 1.0


def test_slices_are_no_larger(place: Place, echo: Echo) -> None:
    place.proxy.change(slice_bytes=7)
    sock = place.dial()
    assert said(sock, bytes(range(256)) * 20) == bytes(range(256)) * 20


def test_a_black_hole_holds_data_and_releases_it(place: Place) -> None:
    sock = place.dial()
    said(sock, b"before")
    place.proxy.black_hole()
    sock.sendall(b"during")
    assert silent(sock, 0.1)
    place.proxy.heal()
    assert exactly(sock, 6) == b"during"
    assert said(sock, b"after") == b"after"


def test_held_data_continues_at_the_time_of_a_tcp_retransmission(place: Place) -> None:
    sock = place.dial()
    said(sock, b"before")
    place.proxy.change(retransmission=True)
    place.proxy.black_hole()
    sock.sendall(b"during")
    assert silent(sock, 0.3)
    place.proxy.heal()
    begun = time.monotonic()
    assert exactly(sock, 6) == b"during"
    assert time.monotonic() - begun >= 0.2  # sent again after 0.2 and 0.6 s


@pytest.mark.parametrize(("waited", "wait"), [(0.0, 0.2), (0.2, 0.0), (0.3, 0.3), (1.0, 0.4), (6.3, 6.3)])
def test_waits_between_retransmissions_double(waited: float, wait: float) -> None:
    assert until_sent_again(waited, 0.2) == pytest.approx(wait)


def test_a_hole_in_one_direction_lets_the_other_through(place: Place) -> None:
    sock = place.dial()
    said(sock, b"before")
    place.proxy.black_hole("down")
    sock.sendall(b"there, and not back")
    assert silent(sock, 0.1)
    place.proxy.heal()
    assert exactly(sock, 19) == b"there, and not back"


def test_an_end_in_a_black_hole_is_noticed_after_it_heals(place: Place, echo: Echo) -> None:
    sock = place.dial()
    said(sock, b"before")
    place.proxy.black_hole()
    sock.close()
    with echo.changed:
        assert not echo.changed.wait_for(lambda: echo.ended, 0.1)
    place.proxy.heal()
    assert echo.wait_ended()


def test_a_new_connection_waits_in_the_black_hole_or_gives_up(place: Place) -> None:
    place.proxy.black_hole()
    waiting, leaving = place.dial(), place.dial()
    leaving.close()
    waiting.sendall(b"hello")
    assert silent(waiting, 0.1)
    assert place.proxy.connections_made == 0
    place.proxy.heal()
    assert exactly(waiting, 5) == b"hello"
    assert place.proxy.connections_made == 1


def test_a_reset_is_one_for_both_sides(place: Place, echo: Echo) -> None:
    sock = place.dial()
    said(sock, b"before")
    assert place.proxy.reset_all() == 1
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    assert echo.wait_ended() == "reset"
    assert said(place.dial(), b"again") == b"again"


def test_a_truncated_connection_ends_after_the_configured_bytes(place: Place, echo: Echo) -> None:
    place.proxy.truncate(1000)
    sock = place.dial()
    sock.sendall(b"a" * 1500)
    got = 0
    try:
        while data := sock.recv(4096):
            got += len(data)
    except ConnectionResetError:
        pass
    assert got <= 1000
    echo.wait_ended()
    place.proxy.truncate(None)
    assert said(place.dial(), b"b" * 5000) == b"b" * 5000


def test_a_dead_target_ends_the_connection(place: Place, echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        place.proxy.to = gone.getsockname()
    with pytest.raises(ConnectionResetError):  # as soon as while it connects
        place.dial().recv(1)
    assert place.proxy.connections_made == 0


def test_close_ends_connections_and_the_thread(echo: Echo) -> None:
    with Proxy(echo.address) as proxy:
        sock = socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S)
        said(sock, b"before")
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    sock.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tmrl-proxy"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S)
    proxy.close()


def test_a_port_in_use_is_raised(echo: Echo) -> None:
    with pytest.raises(NetworkError, match=f"port {echo.address[1]}"):
        Proxy(echo.address, listen=echo.address[1])


@pytest.mark.parametrize("wrong", [{"latency_s": -1}, {"jitter_s": -1}, {"slice_bytes": 0}, {"bytes_per_s": 0}])
def test_impossible_conditions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0"):
        Conditions(**wrong)  # type: ignore[arg-type]


def test_truncating_after_nothing_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="one byte"):
        place.proxy.truncate(0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def test_the_command_line_forwards_and_resets(echo: Echo) -> None:
    stop = threading.Event()
    port = free_port()
    arguments = ["--listen", str(port), "--to", f"127.0.0.1:{echo.address[1]}", "--reset-every", "0.2", "--seed", "1"]
    arguments += ["--latency-ms", "1", "--jitter-ms", "1", "--black-hole-every", "0.1", "--black-hole-for", "0.05"]
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(main(arguments, stop)))
    thread.start()
    try:
        deadline = time.monotonic() + DEADLINE_S
        answered = False
        while not answered:
            assert time.monotonic() < deadline
            # It may not listen yet, and on a busy machine the reset may be faster than the answer.
            with (
                contextlib.suppress(ConnectionRefusedError, ConnectionResetError),
                socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock,
            ):
                assert said(sock, b"hello") == b"hello"
                answered = True
                with pytest.raises(ConnectionResetError):
                    sock.recv(1)
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    assert ended == [0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "127.0.0.1:1"],
        ["--listen", "0", "--to", "nowhere"],
        ["--listen", "0", "--to", "h:1", "--latency-ms=-1"],
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err
