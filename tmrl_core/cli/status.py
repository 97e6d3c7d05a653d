"""`python -m tmrl_core --status`: the Server's status, as text and as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tmrl_core.config import Config
from tmrl_core.config.endpoints import Endpoint, at_endpoint, endpoints_of
from tmrl_core.config.ratios import count
from tmrl_core.errors import ConfigError, NetworkError
from tmrl_core.metrics.text import bytes_text as size
from tmrl_core.metrics.text import duration_text as duration
from tmrl_core.metrics.text import milliseconds_text
from tmrl_core.networking.links.observer_link import ObserverLink
from tmrl_core.networking.protocol.messages import plain
from tmrl_core.networking.protocol.status import (
    BudgetStatus,
    PeerStatus,
    Rates,
    ServerStatus,
    SpooledStatus,
    StreamStatus,
    rates,
)
from tmrl_core.networking.transports.selection import link_settings
from tmrl_core.roles.shutdown import ShutdownSignal

_Item = TypeVar("_Item")

RATE_S = 1.0
"""Seconds between the two snapshots that rates are computed from, without `--watch`."""
PIPED_COLUMNS = 200
"""Width without a terminal. All columns are shown, and long lines are not broken, for `grep` and `less -S`."""


def status(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--status`: once, or with `--watch` repeatedly until a stop is requested."""
    if config.network.transport == "local":
        raise ConfigError("network.transport is 'local': such a Server is part of one process and cannot be queried")
    if len(config.server.endpoints) > 1:
        return status_of_all(config, options, shutdown)
    settings = link_settings(config)
    requested: Callable[[], bool] = lambda: shutdown.requested  # noqa: E731 - read again at each call
    show = Shown(sys.stdout.isatty(), as_json=options.json, watched=options.watch is not None)
    with ObserverLink(settings, run=config.run.name, timeout_s=settings.connect_timeout_s) as link:
        earlier = link.fetch_status(requested)
        if earlier is None or not link.rest(min(RATE_S, options.watch or RATE_S), requested):
            return 0
        while (later := link.fetch_status(requested)) is not None:
            show(later, rates(earlier, later), f"{settings.host} port {settings.port}")
            earlier = later
            if options.watch is None or not link.rest(options.watch, requested):
                break
    return 0


class Observed:
    """One of several Servers, and its latest answer.

    Args:
        config: the configuration.
        endpoint: address of the Server.

    Attributes:
        status: latest status; None: the Server did not answer.
        rate: rates since the answer before; None: there is none.
        why: reason why there is no answer.
    """

    def __init__(self, config: Config, endpoint: Endpoint) -> None:
        self.where = f"{endpoint.host} port {endpoint.port}"
        settings = link_settings(at_endpoint(config, endpoint))
        self._link = ObserverLink(settings, run=config.run.name, timeout_s=settings.connect_timeout_s)
        self.status: ServerStatus | None = None
        self.rate: Rates | None = None
        self.why = ""

    def look(self, ending: Callable[[], bool]) -> None:
        """Ask the Server."""
        earlier, self.why = self.status, ""
        try:
            self.status = self._link.fetch_status(ending)
        except NetworkError as exc:
            self.status, self.why = None, str(exc)
        self.rate = None if earlier is None or self.status is None else rates(earlier, self.status)

    def values(self) -> dict[str, Any]:
        """Return the answer as primitive values."""
        if self.status is None:
            return {"server": self.where, "error": self.why}
        return {"server": self.where, **as_values(self.status, self.rate)}

    def close(self) -> None:
        """Close the link."""
        self._link.close()


def status_of_all(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--status` with several Servers: each in turn; one that does not answer is shown as that.

    Returns:
        Exit status: 0, or 1 if a Server did not answer the last time.
    """
    requested: Callable[[], bool] = lambda: shutdown.requested  # noqa: E731 - read again at each call
    console = Console(width=None if sys.stdout.isatty() else PIPED_COLUMNS, highlight=False)
    with contextlib.ExitStack() as closing:
        servers = [Observed(config, endpoint) for endpoint in endpoints_of(config)]
        for server in servers:
            closing.callback(server.close)
            server.look(requested)
        while not shutdown.wait(min(RATE_S, options.watch or RATE_S)):
            for server in servers:
                server.look(requested)
            if shutdown.requested:
                break
            show_all(servers, console, as_json=options.json, watched=options.watch is not None)
            if options.watch is None:
                break
    return 0 if all(server.status is not None for server in servers) or shutdown.requested else 1


def show_all(servers: Sequence[Observed], console: Console, *, as_json: bool, watched: bool) -> None:
    """Write the latest answers of all Servers to standard output."""
    if as_json:
        print(json.dumps({"servers": [one.values() for one in servers]}, indent=None if watched else 2), flush=True)
        return
    if watched and console.is_terminal:
        console.clear()
    answers = [one.status for one in servers if one.status is not None]
    samples = sum(one.rate.samples for one in servers if one.rate is not None)
    workers = sum(status.workers for status in answers)
    console.print(
        Text(
            f"{len(answers)} of {count(len(servers), 'Server')} answered: {count(workers, 'worker')}, "
            f"now {samples:,.0f} samples/s",
            style="bold",
        )
    )
    for one in servers:
        console.print()
        if one.status is None:
            console.print(Text(f"Server {one.where}: {plain(one.why)}", style="bold yellow"))
        elif console.is_terminal:
            console.print(overview(one.status, one.rate, one.where, console.size[0]))
        else:
            console.print(tables(one.status, one.rate, one.where))


class Shown:
    """Write each snapshot to standard output.

    Args:
        terminal: True: standard output is a terminal; each snapshot is an overview that fits it and replaces the last.
        as_json: True: JSON instead of tables; one line per snapshot with `--watch`.
        watched: True: several snapshots follow each other.
    """

    def __init__(self, terminal: bool, *, as_json: bool, watched: bool) -> None:
        self._as_json = as_json
        self._watched = watched
        self._terminal = terminal
        self._clear = terminal and watched
        self._console = Console(width=None if terminal else PIPED_COLUMNS, highlight=False)

    def __call__(self, status: ServerStatus, rate: Rates | None, where: str) -> None:
        """Write one snapshot; `where` is the Server's address."""
        if self._as_json:
            print(json.dumps(as_values(status, rate), indent=None if self._watched else 2), flush=True)
            return
        if self._clear:
            self._console.clear()
        elif self._watched:
            self._console.print(time.strftime("%H:%M:%S"))
        if not self._terminal:
            self._console.print(tables(status, rate, where))
            return
        columns, lines = self._console.size
        # One line is left for the cursor or the shell's prompt.
        self._console.print(overview(status, rate, where, columns, lines - 1 if self._watched else None))


def as_values(status: ServerStatus, rate: Rates | None) -> dict[str, Any]:
    """Return the status and its rates as primitive values, with the names of `ServerStatus`."""
    values: dict[str, Any] = msgspec.to_builtins(status)
    values["rates"] = None
    if rate is not None:
        values["rates"] = {
            "seconds": rate.seconds,
            "messages_per_s": rate.messages,
            "samples_per_s": rate.samples,
            "bytes_per_s": rate.bytes,
        }
    for stream in values["streams"]:
        stream["samples_per_s"] = rate.samples_of.get(stream["stream"]) if rate is not None else None
    return values


def tables(status: ServerStatus, rate: Rates | None, where: str) -> RenderableType:
    """Return the status as readable text."""
    parts: list[RenderableType] = [*_headlines(status, rate, where), _budgets(status.budgets)]
    parts.append(_peers(status.peers))
    if status.peers_left_out:
        parts.append(Text(f"... and {count(status.peers_left_out, 'more peer')}"))
    if status.streams:
        parts.append(_streams([worker.stream for worker in _workers(status)], rate))
    if status.streams_left_out:
        parts.append(Text(f"... and {count(status.streams_left_out, 'more stream')}"))
    if status.spooled:
        parts.append(_spooled(status.spooled))
    if status.spooled_left_out:
        parts.append(Text(f"... and {count(status.spooled_left_out, 'more spooled stream')}"))
    waiting = [stream for stream in status.streams if stream.waits]
    for stream in waiting[:10]:
        parts.append(Text(f"worker {plain(stream.worker)} waits: {plain(stream.waits)}"))
    return Group(*parts)


SILENT_S = 5.0
"""Seconds without a message after which a link counts as a problem. An idle link sends a heartbeat every 3 s."""
FAR_BEHIND = 10
"""Policy lag in versions from which a worker counts as a problem."""
MANY_LATE = 0.01
"""Fraction of late steps from which a worker counts as a problem."""
_WIDEST_NAME = 24


class _Worker(NamedTuple):
    """A worker's stream, its link, and its problem; worse problems have larger ranks."""

    stream: StreamStatus
    peer: PeerStatus | None
    rank: int
    trouble: str


def _workers(status: ServerStatus) -> list[_Worker]:
    """Return the workers, those with the worst problems first."""
    links = {(peer.name, peer.run): peer for peer in status.peers if peer.role == "worker"}
    found = []
    for stream in status.streams:
        peer = links.get((stream.worker, stream.run)) if stream.linked else None
        troubles = _troubles(status, stream, peer)
        rank = max((rank for rank, _ in troubles), default=0)
        found.append(_Worker(stream, peer, rank, ", ".join(text for _, text in troubles)))
    return sorted(found, key=lambda worker: (-worker.rank, plain(worker.stream.worker)))


def _troubles(status: ServerStatus, stream: StreamStatus, peer: PeerStatus | None) -> list[tuple[int, str]]:
    behind = _behind(status, peer) or 0
    forged = peer.forged if peer is not None else 0
    outdated = peer.outdated if peer is not None else 0
    late, steps = stream.late_steps or 0, stream.steps or 0
    return [
        (rank, text)
        for rank, holds, text in (
            (5, not stream.linked, "has gone"),
            (6, forged, f"ignored {count(forged, 'forged message')}"),
            (4, peer is not None and peer.heard_s >= SILENT_S, f"silent for {duration(peer.heard_s if peer else 0)}"),
            (3, stream.dropped_messages, f"dropped {count(stream.dropped_messages, 'message')}"),
            (2, behind >= FAR_BEHIND, f"{behind:,} policies behind"),
            (2, late > MANY_LATE * steps, f"{late / max(1, steps):.0%} of its steps late"),
            (1, outdated, f"ignored {count(outdated, 'outdated message')}"),
            (1, stream.waits, f"waits: {plain(stream.waits)}"),
        )
        if holds
    ]


def _behind(status: ServerStatus, peer: PeerStatus | None) -> int | None:
    """Return the number of policies that a worker has not received yet; None: unknown."""
    policy = status.policy
    if policy is None or peer is None or peer.run != policy.run or peer.policy[0] != policy.incarnation:
        return None
    return max(0, policy.counter - peer.policy[1])


def _lateness(stream: StreamStatus) -> str:
    """Return the number of late steps and the 99.9th percentile of lateness."""
    if not isinstance(stream.lateness_p999_s, float):
        return "-"
    return f"{stream.late_steps:,}, {milliseconds_text(stream.lateness_p999_s)}"


def _troubles_of_all(status: ServerStatus) -> list[tuple[int, str]]:
    """Return numbers of what has gone wrong, each with its text."""
    counts = [
        (status.dropped_messages, "message", " dropped by workers"),
        (status.discarded_messages, "message", " sent again"),
        (status.refused_peers, "peer", " refused"),
        (status.protocol_errors, "protocol error", ""),
        (sum(peer.forged for peer in status.peers), "forged message", " ignored by members"),
        (sum(peer.outdated for peer in status.peers), "outdated message", " ignored by members"),
    ]
    return [(number, count(number, noun) + rest) for number, noun, rest in counts]


def overview(
    status: ServerStatus, rate: Rates | None, where: str, width: int, height: int | None = None
) -> RenderableType:
    """Return the status for a terminal: totals in a few lines, then the workers, those with problems first.

    Args:
        width: columns; table columns that do not fit are left out.
        height: lines; workers that do not fit are counted. None: all are shown.
    """
    lines = _headlines(status, rate, where)
    workers = _workers(status)
    parts: list[RenderableType] = [*lines]
    if workers:
        room = len(workers) if height is None else max(3, height - len(lines) - 3)
        shown = workers if len(workers) <= room else workers[: room - 1]
        parts += [Text(), _worker_table(status, shown, rate, width)]
        left = workers[len(shown) :]
        troubled = sum(worker.rank > 0 for worker in left)
        if left or status.streams_left_out:
            more = f"... and {count(len(left) + status.streams_left_out, 'more worker')}"
            parts.append(Text(f"{more}, {troubled} of them in trouble" if troubled else more, style="dim"))
    return Group(*parts)


def _worker_count(status: ServerStatus) -> str:
    limit = status.max_workers
    return count(status.workers, "worker") if limit is None else f"{status.workers} of {count(limit, 'worker')}"


def _headlines(status: ServerStatus, rate: Rates | None, where: str) -> list[Text]:
    policy = status.policy
    observers = sum(peer.role == "observer" for peer in status.peers)
    server = [f"Server {where}", f"tmrl_core {plain(status.version)}"]
    server += [f"up {duration(status.uptime_s)}"] if status.uptime_s is not None else []
    server += [f"process {status.pid}"] if status.pid is not None else []
    server += [f"memory {size(status.memory_bytes)}"] if status.memory_bytes is not None else []
    version = "no policy yet"
    if policy is not None:
        version = f"policy {policy.incarnation}.{policy.counter} of run {plain(policy.run)}, {size(policy.size_bytes)}"
    now = "" if rate is None else f"now {rate.samples:,.0f} samples/s, {size(rate.bytes)}/s; "
    stores = [
        f"{plain(name)} {size(budget.used_bytes)}" + (f" of {size(budget.limit_bytes)}" if budget.limit_bytes else "")
        for name, budget in status.budgets.items()
    ]
    troubles = ", ".join(text for number, text in _troubles_of_all(status) if number)
    spooled = sum(stream.samples for stream in status.spooled)
    trainer = Text("a trainer") if status.trainer else Text("no trainer", style="bold yellow")
    lines = [
        Text(", ".join(server), style="bold"),
        Text.assemble(f"{_worker_count(status)}, ", trainer, f", {count(observers, 'observer')}; {version}"),
        Text(f"{now}relayed {status.relayed_samples:,} samples, {size(status.relayed_bytes)}"),
        Text(f"held: {', '.join(stores)}" + (f"; {spooled:,} samples spooled" if spooled else "")),
        Text(f"trouble: {troubles}", style="bold red") if troubles else Text("trouble: none", style="dim"),
    ]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _worker_table(status: ServerStatus, workers: Sequence[_Worker], rate: Rates | None, width: int) -> Table:
    """Return as many columns as fit. The last columns are dropped first, and the problem gets the remaining width."""

    def cells(of: Callable[[StreamStatus, PeerStatus | None], str]) -> list[str]:
        return [of(worker.stream, worker.peer) for worker in workers]

    def behind(stream: StreamStatus, peer: PeerStatus | None) -> str:
        count = _behind(status, peer)
        return "-" if count is None else f"{count:,}"

    per_s = {} if rate is None else rate.samples_of
    timed = any(worker.stream.steps is not msgspec.UNSET for worker in workers)
    columns = [
        ("worker", cells(lambda stream, _: plain(stream.worker)[:_WIDEST_NAME])),
        ("samples/s", cells(lambda stream, _: f"{per_s.get(stream.stream, 0.0):,.0f}")),
        ("behind", cells(behind)),
        ("queued", cells(lambda stream, _: f"{stream.queued_messages:,}")),
        *([("late", cells(lambda stream, _: _lateness(stream)))] if timed else []),
        ("heard", cells(lambda _, peer: f"{peer.heard_s:.1f} s" if peer else "-")),
        ("dropped", cells(lambda stream, _: f"{stream.dropped_messages:,}")),
        ("samples", cells(lambda stream, _: f"{stream.relayed_samples:,}")),
        ("since", cells(lambda _, peer: duration(peer.since_s) if peer else "-")),
        ("bytes", cells(lambda stream, _: size(stream.relayed_bytes))),
        ("certificate", cells(lambda _, peer: _certificate_of(peer, _WIDEST_NAME) if peer else "-")),
        ("address", cells(lambda _, peer: plain(peer.address) if peer else "-")),
        ("run", cells(lambda stream, _: plain(stream.run)[:_WIDEST_NAME])),
    ]
    wanted = min(max((len(worker.trouble) for worker in workers), default=0), 30)
    widths = [max(len(name), *map(len, column)) + 2 for name, column in columns]
    count = 1
    while count < len(columns) and sum(widths[: count + 1]) + wanted <= width:
        count += 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width)
    for name, _ in columns[:count]:
        table.add_column(name, justify="left" if name in ("worker", "certificate", "address", "run") else "right",
                         no_wrap=True)  # fmt: skip
    table.add_column("trouble" if wanted else "", no_wrap=True, overflow="ellipsis", ratio=1)
    for number, worker in enumerate(workers):
        style = "red" if worker.rank > 1 else "yellow" if worker.rank else ""
        table.add_row(*(Text(column[number]) for _, column in columns[:count]), Text(worker.trouble), style=style)
    return table


def _table(
    title: str, items: Iterable[_Item], columns: Iterable[tuple[str, Callable[[_Item], str]]], texts: int = 1
) -> Table:
    """Return a table of columns (name, text of an item); all but the first `texts` of them are numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cells = []
    for index, (name, cell) in enumerate(columns):
        table.add_column(name, justify="left" if index < texts else "right", no_wrap=True)
        cells.append(cell)
    for item in items:
        table.add_row(*(Text(cell(item)) for cell in cells))
    return table


def _budgets(budgets: dict[str, BudgetStatus]) -> Table:
    return _table(
        "budgets",
        budgets.items(),
        [
            ("store", lambda item: plain(item[0])),
            ("used", lambda item: size(item[1].used_bytes)),
            ("reserved", lambda item: size(item[1].reserved_bytes)),
            ("limit", lambda item: "none" if item[1].limit_bytes is None else size(item[1].limit_bytes)),
        ],
    )


def _policy_of(peer: PeerStatus) -> str:
    return f"{peer.policy[0]}.{peer.policy[1]}" if peer.role == "worker" and any(peer.policy) else "-"


def _certificate_of(peer: PeerStatus, width: int | None = None) -> str:
    """Return the name in a peer's certificate, with its weight if it is not that of one worker."""
    weight = f" (weight {peer.weight:,})" if peer.weight != 1 else ""
    return (plain(peer.certificate)[:width] + weight) or "-"


def _peers(peers: Sequence[PeerStatus]) -> Table:
    return _table(
        "peers",
        peers,
        [
            ("role", lambda peer: plain(peer.role)),
            ("name", lambda peer: plain(peer.name)),
            ("certificate", _certificate_of),
            ("address", lambda peer: plain(peer.address)),
            ("run", lambda peer: plain(peer.run)),
            ("since", lambda peer: duration(peer.since_s)),
            ("heard", lambda peer: f"{peer.heard_s:.1f} s ago"),
            ("in", lambda peer: size(peer.bytes_in)),
            ("out", lambda peer: size(peer.bytes_out)),
            ("unread", lambda peer: size(peer.unread_bytes)),
            ("policy received", _policy_of),  # a worker may not use it yet
        ],
        texts=5,
    )


def _streams(streams: Sequence[StreamStatus], rate: Rates | None) -> Table:
    per_s = {} if rate is None else rate.samples_of
    return _table(
        "streams",
        streams,
        [
            ("worker", lambda stream: plain(stream.worker)),
            ("stream", lambda stream: plain(stream.stream[:8])),
            ("state", lambda stream: "active" if stream.active else "halted" if stream.linked else "left"),
            ("epoch", lambda stream: str(stream.epoch)),
            ("queued", lambda stream: f"{stream.queued_messages:,}"),
            ("", lambda stream: size(stream.queued_bytes)),
            ("reserved", lambda stream: size(stream.reserved_bytes)),
            ("limit", lambda stream: size(stream.limit_bytes)),
            ("samples", lambda stream: f"{stream.relayed_samples:,}"),
            ("messages", lambda stream: f"{stream.relayed_messages:,}"),
            ("bytes", lambda stream: size(stream.relayed_bytes)),
            ("samples/s", lambda stream: "" if rate is None else f"{per_s.get(stream.stream, 0.0):,.0f}"),
            ("dropped", lambda stream: f"{stream.dropped_messages:,}"),
            ("late", _lateness),
            ("position", lambda stream: f"{stream.position:,}"),
        ],
        texts=3,
    )


def _spooled(streams: Sequence[SpooledStatus]) -> Table:
    return _table(
        "spooled: kept for the next trainer of the run",
        streams,
        [
            ("worker", lambda stream: plain(stream.worker)),
            ("stream", lambda stream: plain(stream.stream[:8])),
            ("run", lambda stream: plain(stream.run)),
            ("samples", lambda stream: f"{stream.samples:,}"),
            ("messages", lambda stream: f"{stream.messages:,}"),
            ("bytes", lambda stream: size(stream.bytes)),
            ("state", lambda stream: "whole" if stream.ended else "being handed over, or cut off"),
        ],
        texts=3,
    )
