"""A seeded clock, a seeded network and a Server process that are no more than a heap of events. Nothing here does I/O.

The real sans-I/O connections are driven here as a transport drives them (`transports/base.py`): bytes are put into
`get_buffer()`, output is asked for while the link takes more, `tick` is called when `deadline()` has come, a connection
that closes says its last words and then ends. What a network may do to bytes is done here: delay, slice, hold back,
lose together with the connection, also in the middle of a frame.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tmrl_core.errors import NetworkError
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.relay import Relay, RelaySettings

CONNECT_TIMEOUT_S = 10.0
CLOCK_S = 1e-4
"""How late a timer fires: what rounding may hide."""
_LOOK_STEPS = 8
"""Steps between two looks at what is waited for."""
SERVER, CLIENT = Identity("server"), Identity("client")


class Violation(AssertionError):
    """A promise was broken."""


class Dials(Protocol):
    """A process that connects to the Server."""

    route: Route

    identity: Identity
    """Identity of the link, as the Server knows it."""

    def connected(self, end: End) -> None:
        """Its connection stands."""

    def over(self, end: End) -> None:
        """Its connection has ended, or never stood."""


class Route:
    """The way between one client and the Server: how slow it is, and whether it swallows bytes."""

    __slots__ = ("bytes_per_s", "down", "ends", "jitter_s", "latency_s", "slicing", "up", "window_bytes")

    def __init__(self, latency_s: float, jitter_s: float, slicing: float, window_bytes: int) -> None:
        self.latency_s = latency_s
        self.jitter_s = jitter_s
        self.slicing = slicing
        """Probability that a piece arrives in two."""
        self.window_bytes = window_bytes
        """What may be on its way in one direction: the buffers of both sockets."""
        self.bytes_per_s = float("inf")
        """Of the direction from the Server."""
        self.up = self.down = True
        """Whether bytes towards the Server, and from it, arrive. What is held back arrives when it heals."""
        self.ends: list[End] = []

    def mend(self) -> None:
        """It is a good link from now on."""
        self.latency_s, self.jitter_s, self.slicing, self.window_bytes = 0.01, 0.01, 0.05, 131_072
        for end in self.ends:
            end.wake()

    def heal(self) -> None:
        """Both directions work again."""
        self.up = self.down = True
        for end in self.ends:
            end.move()


class End:
    """One end of a connection: what a transport's driver is."""

    __slots__ = (
        "blocked",
        "broken",
        "connection",
        "flight",
        "flight_bytes",
        "free_at",
        "moving",
        "network",
        "owner",
        "peer",
        "route",
        "server",
        "timer",
        "up",
        "waking",
    )

    def __init__(self, network: Network, connection: Connection, route: Route, owner: Dials | None) -> None:
        self.network = network
        self.connection = connection
        self.route = route
        self.owner = owner
        self.server = owner is None
        self.peer: End = self
        self.flight: deque[tuple[float, bytes]] = deque()
        """When each piece arrives; an empty one is the end of the stream."""
        self.flight_bytes = 0
        self.free_at = 0.0
        """When the last piece has left here."""
        self.up = True
        """Whether the process still has this connection."""
        self.waking = self.moving = self.blocked = False
        self.broken = False
        """Whether nothing arrives any more, which its process has not been told yet."""
        self.timer = float("inf")
        connection.wake = self.wake

    def wake(self) -> None:
        """There may be something to send."""
        if not self.waking and self.up:
            self.waking = True
            self.network.at(0.0, self.pump)

    def pump(self) -> None:
        """Put what the connection has to say on its way, as far as the window reaches."""
        self.waking = False
        if not self.up:
            return
        connection, network = self.connection, self.network
        window = self.route.window_bytes
        while self.flight_bytes < window or connection.closing:
            out = connection.to_send(network.now)
            if not out:
                break
            self._fly(b"".join(out))
        else:
            self.blocked = True
        if connection.closing:
            self._fly(b"")
            self._ended(None)
            return
        deadline = connection.deadline()
        if deadline < self.timer:
            self.timer = deadline
            network.at(max(0.0, deadline - network.now) + CLOCK_S, self.tick, deadline)

    def tick(self, timer: float) -> None:
        """A deadline has come, or has moved meanwhile."""
        if timer != self.timer or not self.up:
            return
        self.timer = float("inf")
        network = self.network
        if self.connection.deadline() <= network.now:
            network.note(1, self.server)
            self.connection.tick(network.now)
            self.pump()
            if self.up and self.connection.deadline() <= network.now - CLOCK_S:
                raise Violation("a deadline stays in the past after its tick: a driver would spin")
        else:
            self.pump()

    def _fly(self, data: bytes) -> None:
        if self.broken:
            return
        route, network = self.route, self.network
        self.free_at = max(self.free_at, network.now) + (len(data) / route.bytes_per_s if self.server else 0.0)
        due = self.free_at + route.latency_s + route.jitter_s * network.random.random()
        if self.flight and due < self.flight[-1][0]:
            due = self.flight[-1][0]  # a stream keeps its order
        self.flight.append((due, data))
        self.flight_bytes += len(data)
        if not self.moving:
            self.moving = True
            network.at(due - network.now, self.arrive)

    def move(self) -> None:
        """What was held back may go on."""
        if self.flight and not self.moving:
            self.moving = True
            self.network.at(max(0.0, self.flight[0][0] - self.network.now), self.arrive)

    def arrive(self) -> None:
        """The next piece reaches the other end, if the way is open."""
        self.moving = False
        route, network = self.route, self.network
        if not self.flight or not (route.down if self.server else route.up):
            return
        due, data = self.flight.popleft()
        if len(data) > 1 and network.random.random() < route.slicing:
            cut = network.random.randint(1, len(data) - 1)
            self.flight.appendleft((due + route.jitter_s, data[cut:]))
            data = data[:cut]
        self.flight_bytes -= len(data)
        if self.flight:
            self.moving = True
            due = self.flight[0][0]
            network.at(due - network.now if due > network.now else 0.0, self.arrive)
        self.peer.take(data)
        if self.blocked and self.flight_bytes < route.window_bytes:
            self.blocked = False
            self.pump()

    def take(self, data: bytes) -> None:
        """Bytes arrive here; none: the other side closed."""
        if not self.up:
            return
        network, connection = self.network, self.connection
        network.note(2 + self.server, len(data))
        self.waking = True  # it is asked for output below anyway
        if not data:
            connection.received(0, network.now)
            self._ended(None)
            return
        offset, size = 0, len(data)
        while offset < size and not connection.closing:
            view = connection.get_buffer()
            n = min(len(view), size - offset)
            view[:n] = data[offset : offset + n]
            offset += n
            connection.received(n, network.now)
        network.look(self)
        self.pump()

    def cut(self) -> None:
        """The connection breaks: a part of what is on its way still arrives, the rest is gone."""
        network = self.network
        for end in (self, self.peer):
            if end.flight and (end.route.down if end.server else end.route.up) and network.random.random() < 0.5:
                data = end.flight[0][1]
                if data:
                    end.peer.take(data[: network.random.randint(1, len(data))])
        for end in (self, self.peer):
            end.broken = True
            end.flight.clear()
            end.flight_bytes = 0
            if end.up:
                network.at(network.random.random() * end.route.latency_s, end.reset)

    def reset(self) -> None:
        """The system says that the connection is broken."""
        self.flight.clear()
        self.flight_bytes = 0
        self._ended(NetworkError("the connection was reset"))

    def kill(self) -> None:
        """The process is gone, without a word. The other side hears of it, or not, if its network went too."""
        if not self.up:
            return
        self.up = False
        self._forget()
        network = self.network
        if network.random.random() < 0.5:
            self._fly(b"")  # what the system had taken over still goes out
        else:
            self.flight.clear()
            self.flight_bytes = 0
            if self.route.up and self.route.down and network.random.random() < 0.8:
                network.at(self.route.latency_s, self.peer.reset)

    def _ended(self, reason: NetworkError | None) -> None:
        if self.up:
            self.up = False
            self._forget()
            self.connection.lost(reason, self.network.now)
            self.network.look(self)
            if self.owner is not None:
                self.owner.over(self)

    def _forget(self) -> None:
        if self.server:
            self.network.server_ends.pop(self, None)
        # The route forgets a pair when both have ended, and nothing of it is on its way.
        if not self.peer.up:
            self.route.ends = [end for end in self.route.ends if end not in (self, self.peer) or end.flight]


class Network:
    """The heap of events, and the Server process.

    Args:
        random: decides everything that is left to chance.
        settings: of the relay.
        relay: makes one.
        watch: called with each end after something has happened to it.
        scale: how much larger the network is than usual, so that what is waited for is looked at less often.
    """

    def __init__(
        self,
        random: Random,
        settings: RelaySettings,
        relay: Callable[[Network], Relay] | None = None,
        watch: Callable[[End], None] = lambda end: None,
        scale: int = 1,
    ) -> None:
        self._look_steps = _LOOK_STEPS * scale
        self.random = random
        self.settings = settings
        self.now = 0.0
        self.events = 0
        """What has happened: pieces that arrived, deadlines, faults, actions of the application."""
        self.digest = 0
        """Of all events so far, in their order: two runs with the same digest were the same."""
        self.trace: list[tuple[float, int, int]] | None = None
        self.look = watch
        self.server_up = True
        self.server_ends: dict[End, None] = {}
        self.hostile_streams: set[bytes] = set()
        """Ids of the streams of a hostile member."""
        self._heap: list[tuple[float, float, Callable[..., object], tuple[Any, ...]]] = []
        self._make_relay = relay or (lambda network: Relay(settings))
        self.servers = 1
        """How many Server processes there were."""
        self.relay = self._make_relay(self)

    def at(self, delay: float, do: Callable[..., object], *args: Any) -> None:
        """Call `do` after `delay` seconds; who goes first at the same time is left to chance."""
        heapq.heappush(self._heap, (self.now + delay, self.random.random(), do, args))

    def step(self) -> None:
        """Do what comes next."""
        self.now, _, do, args = heapq.heappop(self._heap)
        do(*args)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Go on until it holds; False: it did not within so much simulated time."""
        end = self.now + limit_s
        while not until():
            for _ in range(self._look_steps):
                if not self._heap or self._heap[0][0] > end:
                    return until()
                self.step()
        return True

    def note(self, kind: int, value: int) -> None:
        """Something has happened."""
        self.events += 1
        self.digest = hash((self.digest, self.now, kind, value))
        if self.trace is not None:
            self.trace.append((self.now, kind, value))

    def dial(self, client: Dials, connection: Connection) -> None:
        """Connect; `client.connected` is called with its end, or `client.over` with an end that never was up."""
        self.at(2 * client.route.latency_s, self._dialled, client, connection)

    def _dialled(self, dialling: Dials, connection: Connection) -> None:
        route = dialling.route
        client = End(self, connection, route, dialling)
        if not (route.up and route.down):
            self.at(CONNECT_TIMEOUT_S, dialling.over, client)
            return
        if not self.server_up:
            dialling.over(client)
            return
        server = End(self, self.relay.connection(), route, None)
        client.peer, server.peer = server, client
        route.ends += (client, server)
        self.server_ends[server] = None
        server.connection.connected(dialling.identity, self.now)
        server.pump()
        dialling.connected(client)
        connection.connected(SERVER, self.now)
        client.pump()

    def stop_server(self, *, in_order: bool) -> None:
        """The Server's process ends, with all that it held; in order: it says goodbye."""
        self.server_up = False
        self.relay.spool_handoff.spool.close()
        for end in list(self.server_ends):
            if in_order:
                end.connection.close()
                end.pump()
            else:
                end.kill()

    def start_server(self) -> None:
        """A new Server process listens."""
        self.servers += 1
        self.relay = self._make_relay(self)
        self.server_up = True
