"""`python -m tmrl_core --status`: the Server's status, as text and as JSON."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
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
    PeerStatus,
    Rates,
    ServerStatus,
    StreamStatus,
    rates,
)
from tmrl_core.networking.transports.selection import link_settings
from tmrl_core.roles.shutdown import ShutdownSignal

RATE_S = 1.0
"""Seconds between the two snapshots that rates are computed from, without `--watch`."""
PIPED_COLUMNS = 250
"""Width without a terminal. All columns are shown, and long lines are not broken, for `grep` and `less -S`."""


def status(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--status`: ask each Server of the run, once or with `--watch` until a stop is requested.

    Returns:
        Exit status: 0, or 1 if one of several Servers did not answer the last time.

    Raises:
        NetworkError: the only Server does not answer.
    """
    if config.network.transport == "local":
        raise ConfigError("network.transport is 'local': such a Server is part of one process and cannot be queried")
    requested: Callable[[], bool] = lambda: shutdown.requested  # noqa: E731 - read again at each call
    show = Shown(sys.stdout.isatty(), as_json=options.json, watched=options.watch is not None)
    with contextlib.ExitStack() as closing:
        servers = [Observed(config, endpoint) for endpoint in endpoints_of(config)]
        for server in servers:
            closing.callback(server.close)
        # The rates need a second answer soon, however rarely the answers are to be shown.
        pause_s, shown = 0.0, False
        while all(server.rest(pause_s / len(servers), requested) for server in servers):
            answers = [server.ask(requested) for server in servers]
            if len(answers) == 1 and answers[0].error is not None:
                raise answers[0].error
            if shutdown.requested:
                break
            if pause_s:
                show(answers)
                shown = True
            if shown and options.watch is None:
                return 0 if all(answer.status is not None for answer in answers) else 1
            pause_s = options.watch if shown else min(RATE_S, options.watch or RATE_S)
    return 0


class Answer(NamedTuple):
    """Answer of a Server.

    Attributes:
        where: address of the Server.
        status: the answer; None: there is none, because of `error`.
        rate: rates since the answer before; None: there is none.
    """

    where: str
    status: ServerStatus | None
    rate: Rates | None = None
    error: NetworkError | None = None

    def values(self) -> dict[str, Any]:
        """Return the answer as primitive values."""
        return {"error": str(self.error)} if self.status is None else as_values(self.status, self.rate)


class Observed:
    """Link to one Server of a run, and its latest answer.

    Args:
        config: the configuration.
        endpoint: address of the Server.
    """

    def __init__(self, config: Config, endpoint: Endpoint) -> None:
        self._where = f"{endpoint.host} port {endpoint.port}"
        settings = link_settings(at_endpoint(config, endpoint))
        self._link = ObserverLink(settings, run=config.run.name, timeout_s=settings.connect_timeout_s)
        self.rest, self.close = self._link.rest, self._link.close
        self._earlier: ServerStatus | None = None

    def ask(self, ending: Callable[[], bool]) -> Answer:
        """Ask the Server."""
        earlier, self._earlier = self._earlier, None
        try:
            status = self._earlier = self._link.fetch_status(ending)
        except NetworkError as exc:
            return Answer(self._where, None, error=exc)
        return Answer(self._where, status, rates(earlier, status) if earlier and status else None)


class Shown:
    """Write answers to standard output.

    Args:
        terminal: True: standard output is a terminal; answers replace the last ones, and those of one Server fit it.
        as_json: True: JSON instead of tables; one line per answer with `--watch`.
        watched: True: several answers follow each other.
    """

    def __init__(self, terminal: bool, *, as_json: bool, watched: bool) -> None:
        self._as_json = as_json
        self._watched = watched
        self._terminal = terminal
        self._console = Console(width=None if terminal else PIPED_COLUMNS, highlight=False)

    def __call__(self, answers: Sequence[Answer]) -> None:
        """Write the answers of all Servers."""
        several = len(answers) > 1
        if self._as_json:
            servers = [{"server": answer.where, **answer.values()} for answer in answers]
            values = {"servers": servers} if several else answers[0].values()
            print(json.dumps(values, indent=None if self._watched else 2), flush=True)
            return
        if self._watched and self._terminal:
            self._console.clear()
        elif self._watched:
            self._console.print(time.strftime("%H:%M:%S"))
        columns, lines = self._console.size
        # One line is left for the cursor or the shell's prompt.
        height = lines - 1 if self._terminal and self._watched and not several else None
        if several:
            self._console.print(Text(_of_all(answers), style="bold"))
        for answer in answers:
            if several:
                self._console.print()
            if answer.status is None:
                self._console.print(Text(f"Server {answer.where}: {plain(str(answer.error))}", style="bold yellow"))
            else:
                self._console.print(overview(answer.status, answer.rate, answer.where, columns, height))


def _of_all(answers: Sequence[Answer]) -> str:
    there = [answer.status for answer in answers if answer.status is not None]
    samples = sum(answer.rate.samples for answer in answers if answer.rate is not None)
    workers = count(sum(status.workers for status in there), "worker")
    return f"{len(there)} of {count(len(answers), 'Server')} answered: {workers}, now {samples:,.0f} samples/s"


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


SILENT_S = 5.0
"""Seconds without a message after which a link counts as a problem. An idle link sends a heartbeat every 3 s."""
FAR_BEHIND = 10
"""Policy lag in versions from which a worker counts as a problem."""
MANY_LATE = 0.01
"""Fraction of late steps from which a worker counts as a problem."""
_WIDEST_NAME = 24
_GAP = 2
"""Spaces between two columns."""
_LEFT_ALIGNED = ("worker", "certificate", "address", "run")


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
        parts += [Text(), *_worker_table(status, shown, rate, width)]
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


def _worker_table(status: ServerStatus, workers: Sequence[_Worker], rate: Rates | None, width: int) -> list[Text]:
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
    wanted = min(max((cell_len(worker.trouble) for worker in workers), default=0), 30)
    widths = [max(len(name), *map(cell_len, column)) for name, column in columns]
    shown = 1
    while shown < len(columns) and sum(widths[: shown + 1]) + _GAP * (shown + 1) + wanted <= width:
        shown += 1

    def line(cells: Iterable[str], trouble: str, style: str) -> Text:
        # By hand: a table of rich takes 5 ms for each worker.
        texts = []
        for (name, _), broad, cell in zip(columns, widths, itertools.islice(cells, shown), strict=False):
            rest = " " * (broad - cell_len(cell))
            texts.append(cell + rest if name in _LEFT_ALIGNED else rest + cell)
        text = (" " * _GAP).join((*texts, trouble)).rstrip()
        return Text(text, style, no_wrap=True, overflow="ellipsis")

    lines = [line((name for name, _ in columns), "trouble" if wanted else "", "bold")]
    for worker, *cells_of_one in zip(workers, *(column for _, column in columns), strict=True):
        style = "red" if worker.rank > 1 else "yellow" if worker.rank else ""
        lines.append(line(cells_of_one, worker.trouble, style))
    return lines


def _certificate_of(peer: PeerStatus, width: int) -> str:
    """Return the name in a peer's certificate, with its weight if it is not that of one worker."""
    weight = f" (weight {peer.weight:,})" if peer.weight != 1 else ""
    return (plain(peer.certificate)[:width] + weight) or "-"
