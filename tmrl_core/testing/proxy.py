"""TCP proxy that impairs connections as bad networks do: for tests, and to try a pipeline on bad Wi-Fi.

    python -m tmrl_core.testing.proxy --listen 55556 --to 127.0.0.1:55555 --latency-ms 80 --jitter-ms 40

Peers then connect to port 55556 instead of the Server's; TLS passes through unchanged.
"""

# Theory of operation
#
# Each connection is a `_Pair` with two directions, up (towards the Server) and down. A direction has a reader, a
# bounded queue of data in transit, and a writer that sends each part when it is due. The proxy knows nothing of the
# bytes: TCP neither loses nor changes them, so the proxy does not either. What an application sees of a bad network is
# time, ends and resets, and these are what it can cause.
#
#     latency, jitter   each part is due later; never before the part in front of it, since TCP keeps the order
#     bytes_per_s       a part is sent in pieces of a 50th of a second, and each waits until the line is free
#     black_hole        data and the end of a connection are held, and continue after `heal`
#     reset_all         both sides get a RST; data in transit is lost, as when a router forgets its table
#     truncate          both sides get a FIN after so many bytes, also in the middle of a frame
#
# Example: latency 80 ms, jitter 40 ms. A part read at 0.000 s with a jitter of 25 ms is due at 0.105 s, the next one,
# read at 0.001 s with a jitter of 5 ms, at 0.105 s too and not at 0.086 s.
#
# A black hole looks to peers as it does in a real network. A new connection is accepted, because the kernel does that,
# but goes no further. With `retransmission`, held data does not continue when the hole ends but when TCP would send it
# again, after doubling waits from `_RETRANSMIT_S` (for a new connection from `_CONNECT_AGAIN_S`): a recovered network
# seems dead for up to as long again.
#
# The queue of a direction is bounded like a router's buffer; beyond it the reader stops, so that the sender feels the
# pressure as it would without a proxy. Errors are put into the queue in spite of its limit: a reset arrives after the
# data before it, and never waits for room.
#
# One thread runs all of it, in one event loop. `Proxy`'s public methods may be called from any thread: those that touch
# sockets run in the loop (`_in_loop`), others set one attribute that is read for data to come.

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from tmrl_core.errors import NetworkError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Direction = Literal["up", "down"]
_READ_BYTES = 65_536
_UNDER_WAY_BYTES = 262_144
"""Maximum bytes that a direction buffers, like a router. Beyond the limit, the proxy stops reading."""
_DIAL_S = 10.0
_RETRANSMIT_S = 0.2
_CONNECT_AGAIN_S = 1.0
"""RFC 6298: the first packet of a connection is sent again after 1 s; systems send later packets again earlier."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Condition of the network, applied separately to each direction of each connection.

    Raises:
        ValueError: a number is negative, or a size is 0.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    """Maximum random addition to the latency; the order is kept."""
    bytes_per_s: float | None = None
    """Maximum rate; None: no limit."""
    slice_bytes: int | None = None
    """Maximum size of one send; None: as received."""
    retransmission: bool = False
    """True: data held in a black hole continues when TCP would send it again, after doubling waits, instead of
    immediately. A recovered network therefore seems dead for some time."""

    def __post_init__(self) -> None:
        if min(self.latency_s, self.jitter_s) < 0:
            raise ValueError("latency and jitter are 0 or more")
        for name, value in (("bytes_per_s", self.bytes_per_s), ("slice_bytes", self.slice_bytes)):
            if value is not None and value <= 0:
                raise ValueError(f"{name} is above 0, or None; found {value}")


class Proxy:
    """Forward TCP connections to one address, and impair them.

    Args:
        to: host and port of the target; resolved for each connection.
        listen: port to listen on; 0: a free port, see `port`.
        host: address to listen on.
        conditions: initial impairments.
        seed: seed of the jitter.

    Raises:
        NetworkError: the port cannot be opened.
    """

    def __init__(
        self,
        to: tuple[str, int],
        *,
        listen: int = 0,
        host: str = "127.0.0.1",
        conditions: Conditions | None = None,
        seed: int | None = None,
    ) -> None:
        self.to = to
        self.conditions = conditions or Conditions()
        self.connections_made = 0
        """Connections that have reached the other side."""
        self._rng = random.Random(seed)
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        try:
            self._listener = socket.create_server((host, listen), backlog=256)
        except OSError as exc:
            raise NetworkError(f"the proxy cannot listen on {host} port {listen}: {exc.strerror or exc}") from exc
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._truncate_bytes: int | None = None
        self._loop = asyncio.new_event_loop()
        self._open: dict[Direction, asyncio.Event] = {"up": asyncio.Event(), "down": asyncio.Event()}
        for event in self._open.values():
            event.set()
        self._thread = threading.Thread(target=self._run, name="tmrl-proxy", daemon=True)
        self._thread.start()

    # --- the faults, from any thread ---

    def change(self, **conditions: Any) -> None:
        """Change some of the impairments, for data read from now on."""
        self.conditions = replace(self.conditions, **conditions)

    def black_hole(self, direction: Direction | Literal["both"] = "both") -> None:
        """Hold all data silently until `heal`."""
        self._in_loop(lambda: self._shut(_directions(direction)))

    def heal(self) -> None:
        """Forward all data again, beginning with the held data."""
        self._in_loop(lambda: self._shut([]))

    def reset_all(self) -> int:
        """Reset (RST) every connection, both sides; return their number."""
        return self._in_loop(self._reset_all)

    def truncate(self, after_bytes: int | None) -> None:
        """End (FIN) each later connection after this number of bytes in one direction; None: no longer."""
        if after_bytes is not None and after_bytes <= 0:
            raise ValueError("a connection is truncated after one byte or more")
        self._truncate_bytes = after_bytes

    @property
    def connections(self) -> int:
        """Return the number of open connections, including those in a black hole."""
        return len(self._pairs)

    def close(self) -> None:
        """Reset all connections and end the thread. May be called more than once."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10.0)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- in the thread ---

    def _in_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10.0)

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        self._spawn(self._accept(), loop)
        try:
            loop.run_forever()
        finally:
            self._reset_all()
            self._listener.close()
            for task in self._tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            loop.close()
            asyncio.set_event_loop(None)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
        task = loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._listener)
            except OSError as exc:  # for example, no file descriptors are left
                logger.warning("the proxy could not accept a connection: %s", exc)
                await asyncio.sleep(0.1)
                continue
            self._spawn(self._carry(client), self._loop)

    async def _carry(self, client: socket.socket) -> None:
        pair = _Pair(self, client, self._truncate_bytes)
        self._pairs.add(pair)
        try:
            await pair.run()
        except OSError as exc:
            logger.debug("a connection through the proxy ended: %s", exc)
        finally:
            pair.reset()
            self._pairs.discard(pair)

    def _shut(self, directions: list[Direction]) -> None:
        for direction, event in self._open.items():
            if direction in directions:
                event.clear()
            elif not directions:
                event.set()

    def _reset_all(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()
        return len(pairs)

    async def wait_open(self, direction: Direction, first_s: float = _RETRANSMIT_S) -> None:
        """Wait while `direction` is a black hole. `first_s`: time after which TCP sends again for the first time."""
        event = self._open[direction]
        begun = self._loop.time()
        while not event.is_set():
            await event.wait()
            if self.conditions.retransmission:
                await asyncio.sleep(until_sent_again(self._loop.time() - begun, first_s))


class _Pair:
    """One connection: a socket on each side, and the data in transit between them."""

    def __init__(self, proxy: Proxy, client: socket.socket, truncate_bytes: int | None) -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._client = _prepared(client)
        self._server: socket.socket | None = None
        self._truncate_bytes = truncate_bytes
        self._running: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        up = _Queue()
        reading = self._task(self._read(self._client, up))
        dialling = self._task(self._dial())
        await asyncio.wait({reading, dialling}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and not dialling.done():
            return  # the client gave up before the connection was forwarded
        self._server = await dialling
        self._proxy.connections_made += 1
        down = _Queue()
        self._task(self._read(self._server, down))
        writers = [
            self._task(self._write("up", up, self._server)),
            self._task(self._write("down", down, self._client)),
        ]
        done, _ = await asyncio.wait(writers, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        for sock in (self._server, self._client):
            sock.close()

    def _task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._proxy._spawn(coroutine, self._loop)
        task.add_done_callback(_note)
        self._running.append(task)
        return task

    async def _dial(self) -> socket.socket:
        await self._proxy.wait_open("up", _CONNECT_AGAIN_S)
        await self._proxy.wait_open("down", _CONNECT_AGAIN_S)
        host, port = self._proxy.to
        infos = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failed: OSError | None = None
        for family, kind, protocol, _, address in infos:
            sock = _prepared(socket.socket(family, kind, protocol))
            try:
                await asyncio.wait_for(self._loop.sock_connect(sock, address), _DIAL_S)
            except (OSError, asyncio.TimeoutError) as exc:
                sock.close()
                failed = exc if isinstance(exc, OSError) else OSError("no answer")
            else:
                return sock
        raise failed or OSError(f"{host} has no address")

    async def _read(self, sock: socket.socket, queue: _Queue) -> None:
        proxy = self._proxy
        due = 0.0
        while True:
            try:
                data = await self._loop.sock_recv(sock, _READ_BYTES)
            except OSError as exc:
                await queue.put(due, exc)  # the other side receives a reset when the network lets it through
                return
            conditions = proxy.conditions
            delay = conditions.latency_s + proxy._rng.random() * conditions.jitter_s
            due = max(due, self._loop.time() + delay)
            await queue.put(due, data)
            if not data:
                return

    async def _write(self, direction: Direction, queue: _Queue, sock: socket.socket) -> None:
        loop, proxy = self._loop, self._proxy
        carried = 0
        free_at = 0.0
        while True:
            due, data = await queue.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await proxy.wait_open(direction)
            if isinstance(data, OSError):
                raise data
            if not data:
                sock.shutdown(socket.SHUT_WR)
                return
            view = memoryview(data)
            while view:
                conditions = proxy.conditions
                piece = view[: conditions.slice_bytes or len(view)]
                if self._truncate_bytes is not None:
                    piece = piece[: self._truncate_bytes - carried]
                if conditions.bytes_per_s is not None:
                    piece = piece[: max(1, int(conditions.bytes_per_s / 50))]
                    free_at = max(free_at, loop.time()) + len(piece) / conditions.bytes_per_s
                    await asyncio.sleep(free_at - loop.time())
                    await proxy.wait_open(direction)
                await loop.sock_sendall(sock, piece)
                carried += len(piece)
                view = view[len(piece) :]
                if carried == self._truncate_bytes:
                    self._end()
                    return
            queue.taken(len(data))

    def _end(self) -> None:
        """End both sides in order, and discard data in transit."""
        for sock in (self._client, self._server):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Reset both sides."""
        for task in self._running:
            task.cancel()
        for sock in (self._client, self._server):
            if sock is not None and sock.fileno() >= 0:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Tasks that wait for the socket must leave the loop's selector first.
                self._loop.call_soon(sock.close)


class _Queue:
    """Data in transit in one direction, bounded in bytes."""

    def __init__(self) -> None:
        self._items: deque[tuple[float, bytes | OSError]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    async def put(self, due: float, data: bytes | OSError) -> None:
        """Add a piece. Wait while the buffer is full."""
        while self._bytes >= _UNDER_WAY_BYTES and not isinstance(data, OSError):
            await self._change()
        self._items.append((due, data))
        self._bytes += len(data) if isinstance(data, bytes) else 0
        self._changed.set()

    async def get(self) -> tuple[float, bytes | OSError]:
        """Wait for the next part and return it."""
        while not self._items:
            await self._change()
        return self._items.popleft()

    def taken(self, size: int) -> None:
        """Record the number of bytes sent."""
        self._bytes -= size
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def until_sent_again(waited_s: float, first_s: float) -> float:
    """Return the seconds until TCP sends data again that has waited for `waited_s`. The wait doubles each time."""
    wait, at = first_s, first_s
    while at < waited_s:
        wait *= 2
        at += wait
    return at - waited_s


def _prepared(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _note(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()


def _directions(direction: Direction | Literal["both"]) -> list[Direction]:
    return ["up", "down"] if direction == "both" else [direction]


# --- the command line ---


class _Faults:
    """Automatic faults at random times, each with its mean interval."""

    def __init__(self, proxy: Proxy, options: argparse.Namespace, rng: random.Random) -> None:
        self._proxy = proxy
        self._options = options
        self._rng = rng
        now = time.monotonic()
        self._next_hole = self._after(now, options.black_hole_every)
        self._next_reset = self._after(now, options.reset_every)
        self._heals = float("inf")

    def _after(self, now: float, mean_s: float) -> float:
        return now + mean_s * self._rng.uniform(0.5, 1.5) if mean_s else float("inf")

    def wait_s(self) -> float:
        """Return the seconds until the next fault; an hour at most."""
        soonest = min(self._next_hole, self._next_reset, self._heals)
        return max(0.0, min(soonest - time.monotonic(), 3600.0))

    def act(self) -> None:
        """Cause the due faults."""
        now = time.monotonic()
        options = self._options
        if now >= self._heals:
            self._heals = float("inf")
            self._proxy.heal()
            self._next_hole = self._after(now, options.black_hole_every)
            logger.info("the black hole has healed")
        if now >= self._next_hole:
            self._next_hole = float("inf")
            self._heals = now + options.black_hole_for
            self._proxy.black_hole()
            logger.info("nothing gets through for %g s", options.black_hole_for)
        if now >= self._next_reset:
            self._next_reset = self._after(now, options.reset_every)
            logger.info("%d connections were reset", self._proxy.reset_all())


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tmrl_core.testing.proxy",
        description="TCP proxy that delays, limits and breaks connections like a bad network. Ctrl-C ends it.",
        epilog="example: --listen 55556 --to 127.0.0.1:55555 --latency-ms 80 --jitter-ms 40 --black-hole-every 60; "
        "then start a worker with --set server.port=55556",
    )
    parser.add_argument("--listen", type=int, required=True, metavar="PORT", help="port to listen on; 0: a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="address to forward to")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="delay added in each direction")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="random delay added to that, at most")
    parser.add_argument("--bandwidth-kbps", type=float, help="kilobits per second in each direction of each connection")
    parser.add_argument("--slice-bytes", type=int, help="largest piece to send at once")
    parser.add_argument("--truncate", type=int, metavar="BYTES", help="close each connection after BYTES")
    parser.add_argument(
        "--black-hole-every",
        type=float,
        default=0.0,
        metavar="S",
        help="mean seconds between times without any traffic",
    )
    parser.add_argument("--black-hole-for", type=float, default=15.0, metavar="S", help="seconds that each lasts")
    parser.add_argument(
        "--reset-every", type=float, default=0.0, metavar="S", help="mean seconds between connection resets"
    )
    parser.add_argument("--seed", type=int, help="seed of the random numbers")
    options = parser.parse_args(arguments)
    host, colon, port = options.to.rpartition(":")
    if not (colon and host and port.isdecimal()):
        parser.error(f"--to is HOST:PORT, such as 127.0.0.1:55555; found {options.to!r}")
    options.to = (host.strip("[]"), int(port))
    try:
        options.conditions = Conditions(
            latency_s=options.latency_ms / 1e3,
            jitter_s=options.jitter_ms / 1e3,
            bytes_per_s=options.bandwidth_kbps * 125 if options.bandwidth_kbps is not None else None,
            slice_bytes=options.slice_bytes,
            retransmission=True,
        )
    except ValueError as exc:
        parser.error(str(exc))
    return options


def main(arguments: Sequence[str] | None = None, stop: threading.Event | None = None) -> int:
    """Run a proxy until Ctrl-C, or until `stop` is set. Return the exit status."""
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop = stop or threading.Event()
    try:
        proxy = Proxy(
            options.to, listen=options.listen, host=options.host, conditions=options.conditions, seed=options.seed
        )
    except NetworkError as exc:
        print(exc, file=sys.stderr)
        return 1
    with proxy, contextlib.suppress(KeyboardInterrupt):
        proxy.truncate(options.truncate)
        logger.info("port %d is forwarded to %s port %d", proxy.port, *options.to)
        faults = _Faults(proxy, options, random.Random(options.seed))
        while not stop.wait(faults.wait_s()):
            faults.act()
    return 0


if __name__ == "__main__":
    sys.exit(main())
