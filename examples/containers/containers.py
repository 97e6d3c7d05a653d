"""Container inventory: empty containers gather where goods are imported, and orders need them where goods are exported.

In each tick, orders for containers arise between ports. An order takes an empty container of its port, which then waits
for a ship. An order without a container is lost: a *shortage*. Ships sail round their routes. At a call, a ship puts
the full containers for this port ashore, loads waiting ones, and asks the port for a decision: put empty containers
ashore, or take some along? The call is the decision event, and the port is the agent. A full container put ashore is an
empty one some ticks later.

The order within a tick: returned containers, new orders, one snapshot, ships in the order of the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tmrl_core.multiagent import EventEnvironment


class Port(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A port. The shares of all ports are relative to each other."""

    name: str
    exports: float
    """Share of all orders that begin here."""
    imports: float
    """Share of all orders that end here."""


class Ship(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ship that sails round the ports of its route for ever."""

    name: str
    route: tuple[str, ...]
    """Ports in the order of the calls. Each port once."""
    leg: int = 4
    """Ticks from one port to the next."""
    capacity: int = 180
    """Containers, full and empty together."""
    first: int = 0
    """Tick of the first call, at the first port of the route."""


WEST = ("shanghai", "rotterdam", "santos")
EAST = ("shenzhen", "los_angeles", "hamburg")
WORLD = ("shanghai", "los_angeles", "santos", "shenzhen", "rotterdam", "hamburg")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scenario. Two of six ports export most goods, and two import most."""

    ports: tuple[Port, ...] = (
        Port(name="shanghai", exports=0.30, imports=0.06),
        Port(name="shenzhen", exports=0.25, imports=0.08),
        Port(name="santos", exports=0.16, imports=0.14),
        Port(name="hamburg", exports=0.13, imports=0.18),
        Port(name="rotterdam", exports=0.09, imports=0.26),
        Port(name="los_angeles", exports=0.07, imports=0.28),
    )
    ships: tuple[Ship, ...] = (
        *(Ship(name=f"west_{i}", route=WEST, first=4 * i) for i in range(3)),
        *(Ship(name=f"east_{i}", route=EAST, first=4 * i + 2) for i in range(3)),
        *(Ship(name=f"world_{i}", route=WORLD, first=8 * i + 1, capacity=260) for i in range(3)),
    )
    ticks: int = 100
    containers: int = 2200
    """Number of containers. At the beginning all are empty and divided equally among the ports."""
    orders: float = 80.0
    """Mean number of orders of a tick, of all ports together."""
    season: float = 0.5
    """Amplitude of each port's seasonal demand relative to its mean. The phase is drawn for each episode."""
    season_ticks: int = 50
    noise: float = 0.5
    """Standard deviation of the logarithm of a port's demand in a tick."""
    return_ticks: int = 3
    """Ticks until a full container put ashore is an empty one."""

    def __post_init__(self) -> None:
        names = [port.name for port in self.ports]
        limits = {"ticks": 1, "containers": 0, "orders": 0, "noise": 0, "season_ticks": 1, "return_ticks": 1}
        for name, least in limits.items():
            if not least <= (found := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be at least {least} and finite, got {found}")
        if not 0 <= self.season <= 1:
            raise ValueError(f"season must be between 0 and 1, got {self.season}")
        if not names:
            raise ValueError("ports must name at least one port")
        if len({*names}) != len(names) or len({ship.name for ship in self.ships}) != len(self.ships):
            raise ValueError("two ports or two ships have the same name; rename one of them")
        for port in self.ports:
            if not (0 <= port.exports < math.inf and 0 <= port.imports < math.inf):
                raise ValueError(f"port {port.name}: exports and imports must be at least 0 and finite")
        for ship in self.ships:
            if len(ship.route) < 2 or len({*ship.route}) != len(ship.route) or not {*ship.route} <= {*names}:
                raise ValueError(f"ship {ship.name}: its route needs two or more different ports of {', '.join(names)}")
            if ship.leg < 1 or ship.capacity < 0 or ship.first < 0:
                raise ValueError(f"ship {ship.name}: leg must be at least 1, capacity and first at least 0")


def config_of(config: Config | Mapping[str, Any] | None) -> Config:
    """Return a configuration; a mapping may have some of its keys only."""
    return config if isinstance(config, Config) else msgspec.convert(dict(config or {}), Config)


@dataclass(frozen=True, slots=True)
class Call:
    """A decision event: a ship calls at a port. A valid action is an integer from -`loadable` to `dischargeable`."""

    tick: int
    agent: str
    """The port."""
    ship: str
    empty: int
    """Empty containers at the port."""
    dischargeable: int
    """Empty containers on the ship, which can be put ashore."""
    free: int
    """Containers for which the ship has room."""

    @property
    def loadable(self) -> int:
        """Largest number of empty containers that the ship can take along."""
        return min(self.empty, self.free)


class PortState(NamedTuple):
    """A port in a tick, after its orders and before the ships."""

    empty: int
    waiting: int
    """Full containers that wait for a ship."""
    returning: int
    """Containers that will be empty ones here in the next ticks."""
    orders: int
    """New orders of this tick."""
    shortage: int
    """Orders of this tick that found no container."""


class ShipState(NamedTuple):
    """A ship in a tick, before it calls."""

    port: str
    """Port of the next call."""
    tick: int
    """Tick of the next call."""
    full: int
    empty: int


@dataclass(frozen=True, slots=True)
class Snapshots:
    """History of an episode: by name, one state for each tick so far."""

    ports: dict[str, list[PortState]]
    ships: dict[str, list[ShipState]]


class _Port:
    """Present state of a port."""

    __slots__ = ("empty", "lost", "new", "returning", "states", "total", "total_lost", "waiting")

    def __init__(self, empty: int, ports: int, return_ticks: int, states: list[PortState]) -> None:
        self.empty = empty
        self.waiting = [0] * ports  # by destination
        self.returning = [0] * return_ticks  # by tick modulo return_ticks
        self.states = states
        self.new = self.lost = self.total = self.total_lost = 0


class _Ship:
    """Present state of a ship. `calls` are indices of ports."""

    __slots__ = ("calls", "empty", "free", "full", "leg", "name", "next", "states", "tick")

    def __init__(self, ship: Ship, calls: list[int], states: list[ShipState]) -> None:
        self.name, self.calls, self.leg, self.states = ship.name, calls, ship.leg, states
        self.next, self.tick = 0, ship.first
        self.full = dict.fromkeys(calls, 0)  # by destination
        self.empty, self.free = 0, ship.capacity


class ContainerInventory(EventEnvironment):
    """The scenario as an environment. Ports are the agents; a seed gives the same orders whatever the agents do.

    Args:
        config: a `Config`, or a mapping with some of its keys, as in a configuration file.
    """

    def __init__(self, config: Config | Mapping[str, Any] | None = None) -> None:
        self.config = config_of(config)
        self.names = tuple(port.name for port in self.config.ports)
        index = {name: at for at, name in enumerate(self.names)}
        self._routes = [[index[name] for name in ship.route] for ship in self.config.ships]
        self._rates = self._rates_of_pairs()
        self._seed: int | None = None
        self._random = np.random.default_rng()
        self._events: Iterator[Call] | None
        self._event: Call | None
        self._moving: tuple[_Port, _Ship] | None
        self.reset()

    def set_seed(self, seed: int) -> None:
        """Seed the orders of the episode that begins with the next `step(None)`."""
        self._seed = seed

    def reset(self) -> None:
        """End the episode. The next one begins with `step(None)`."""
        config = self.config
        self._snapshots = Snapshots({name: [] for name in self.names}, {ship.name: [] for ship in config.ships})
        each, rest = divmod(config.containers, len(self.names))
        self._ports = [
            _Port(each + (at < rest), len(self.names), config.return_ticks, self._snapshots.ports[name])
            for at, name in enumerate(self.names)
        ]
        self._ships = [
            _Ship(ship, calls, self._snapshots.ships[ship.name])
            for ship, calls in zip(config.ships, self._routes, strict=True)
        ]
        self._total = self._lost = 0
        self._events, self._event, self._moving = None, None, None

    def step(self, action: int | None) -> tuple[dict[str, Any], Call | None, bool]:
        """Carry out a decision and go on to the next event.

        Args:
            action: empty containers put ashore (positive) or taken along (negative), or None for the first event.

        Returns:
            Orders and shortage so far, the next event, and True at the end. The event is None at the end.

        Raises:
            ValueError: the action is not an integer in the event's range. Nothing has changed; step again.
            RuntimeError: None within an episode, or a step after its end.
        """
        if action is None:
            if self._events is not None:
                raise RuntimeError("step(None) begins an episode, and one is running; pass an action or call reset()")
            self._orders = self._draw()
            self._events = self._run()
        elif self._event is None:
            raise RuntimeError("no decision is due; call reset(), then step(None)")
        else:
            self._move(action, self._event)
        assert self._events
        self._event = next(self._events, None)
        return {"orders": self._total, "shortage": self._lost}, self._event, self._event is None

    @property
    def snapshot_list(self) -> Snapshots:
        """History of this episode."""
        return self._snapshots

    @property
    def metrics(self) -> dict[str, Any]:
        """Orders, shortage and fulfilment (the share of the orders that found a container), in total and by port."""
        ports = {
            name: _figures(port.total, port.total_lost) for name, port in zip(self.names, self._ports, strict=True)
        }
        return {**_figures(self._total, self._lost), "ports": ports}

    def _rates_of_pairs(self) -> np.ndarray:
        """Return the mean orders of a tick [from, to]. A pair without a common route has none."""
        config = self.config
        joined = np.zeros((len(self.names), len(self.names)))
        for calls in self._routes:
            joined[np.ix_(calls, calls)] = 1.0
        np.fill_diagonal(joined, 0.0)
        joined *= [port.imports for port in config.ports]
        joined /= np.maximum(joined.sum(1, keepdims=True), 1e-12)
        joined *= np.array([[port.exports] for port in config.ports])
        rates: np.ndarray = joined * (config.orders / max(joined.sum(), 1e-12))
        return rates

    def _draw(self) -> list[list[list[int]]]:
        """Draw the orders of the episode, by tick, port and destination."""
        config = self.config
        if self._seed is not None:
            self._random, self._seed = np.random.default_rng(self._seed), None
        random, shape = self._random, (config.ticks, len(self.names), 1)
        angle = np.arange(config.ticks)[:, None, None] / config.season_ticks + random.random((1, len(self.names), 1))
        demand = 1.0 + config.season * np.sin(2 * np.pi * angle)
        demand *= np.exp(config.noise * random.standard_normal(shape) - config.noise**2 / 2)
        orders: list[list[list[int]]] = random.poisson(demand * self._rates).tolist()
        return orders

    def _run(self) -> Iterator[Call]:
        """Run the ticks; give an event for each call."""
        for tick, orders in enumerate(self._orders):
            self._order(tick, orders)
            for ship in self._ships:
                if ship.tick == tick:
                    at = ship.calls[ship.next]
                    port = self._ports[at]
                    self._load(tick, at, port, ship)
                    self._moving = port, ship
                    yield Call(tick, self.names[at], ship.name, port.empty, ship.empty, ship.free)

    def _order(self, tick: int, orders: list[list[int]]) -> None:
        """Return containers, take the new orders, and record a snapshot."""
        slot = tick % self.config.return_ticks
        for port, row in zip(self._ports, orders, strict=True):
            port.empty += port.returning[slot]
            port.returning[slot] = 0
            port.new = sum(row)
            waiting, before = port.waiting, port.empty
            for to, number in enumerate(row):
                if number:
                    taken = min(number, port.empty)
                    port.empty -= taken
                    waiting[to] += taken
            port.lost = port.new - (before - port.empty)
            port.total += port.new
            port.total_lost += port.lost
            self._total += port.new
            self._lost += port.lost
            port.states.append(PortState(port.empty, sum(waiting), sum(port.returning), port.new, port.lost))
        for ship in self._ships:
            next_port = self.names[ship.calls[ship.next]]
            ship.states.append(ShipState(next_port, ship.tick, sum(ship.full.values()), ship.empty))

    def _load(self, tick: int, at: int, port: _Port, ship: _Ship) -> None:
        """Put the full containers for this port ashore, and load those for the next ones. Empty ones make room."""
        landed = ship.full[at]
        ship.full[at] = 0
        ship.free += landed
        port.returning[tick % self.config.return_ticks] += landed
        ship.next, ship.tick = (ship.next + 1) % len(ship.calls), tick + ship.leg
        for step in range(len(ship.calls) - 1):
            to = ship.calls[(ship.next + step) % len(ship.calls)]
            if wanted := port.waiting[to]:
                if wanted > ship.free:
                    ashore = min(ship.empty, wanted - ship.free)
                    ship.empty -= ashore
                    ship.free += ashore
                    port.empty += ashore
                loaded = min(wanted, ship.free)
                port.waiting[to] -= loaded
                ship.full[to] += loaded
                ship.free -= loaded

    def _move(self, action: int, event: Call) -> None:
        """Carry out a decision and send the ship to its next port."""
        if isinstance(action, bool) or not isinstance(action, (int, np.integer)):
            raise ValueError(f"the action must be an integer, got {action!r}")
        if not -event.loadable <= action <= event.dischargeable:
            raise ValueError(
                f"the action must be between {-event.loadable} and {event.dischargeable} for ship {event.ship} at "
                f"{event.agent} in tick {event.tick}, got {action}"
            )
        assert self._moving is not None
        port, ship = self._moving
        port.empty += int(action)
        ship.empty -= int(action)
        ship.free += int(action)


def _figures(orders: int, shortage: int) -> dict[str, Any]:
    return {"orders": orders, "shortage": shortage, "fulfilment": 1.0 - shortage / orders if orders else 1.0}
