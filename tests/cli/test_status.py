"""`--status`: a real Server over TLS, asked by real links and by the command line."""

from __future__ import annotations

import argparse
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests.waiting import until
from tmrl_core.cli import main as cli
from tmrl_core.cli import status as cli_status
from tmrl_core.config import Config, from_values
from tmrl_core.errors import NetworkError, RefusedError
from tmrl_core.metrics.text import bytes_text, duration_text
from tmrl_core.networking import Server
from tmrl_core.networking.links import ObserverLink, WorkerLink
from tmrl_core.networking.protocol.status import (
    BudgetStatus,
    PeerStatus,
    PolicyStatus,
    ServerStatus,
    StreamStatus,
    rates,
)
from tmrl_core.networking.security import credentials
from tmrl_core.networking.transports.selection import LinkSettings
from tmrl_core.roles.shutdown import ShutdownSignal

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder)
    return folder


def config(keys: Path, port: int = 0) -> Config:
    return from_values({"server": {"port": port}, "network": {"credentials_dir": str(keys), "security": "TLS"}})


@pytest.fixture
def server(keys: Path) -> Iterator[Server]:
    with Server(config=config(keys)) as made:
        yield made


def settings(keys: Path, port: int, **changes: object) -> LinkSettings:
    return LinkSettings(**({"port": port, "credentials_dir": str(keys)} | changes))  # type: ignore[arg-type]


def test_status_over_tls_shows_workers_and_this_observer(server: Server, keys: Path) -> None:
    worker = WorkerLink(settings(keys, server.port), name="robot7", run="run")
    worker.start()
    try:
        assert worker.wait_connected(DEADLINE_S)
        until(lambda: bool(server.relay.streams))
        with ObserverLink(settings(keys, server.port)) as link:
            first = link.fetch_status()
            assert link.rest(0.25)
            second = link.fetch_status()
        assert first is not None
        assert second is not None
        assert {peer.role for peer in first.peers} == {"worker", "observer"}
        assert [stream.worker for stream in first.streams] == ["robot7"]
        assert first.pid is not None
        assert (first.memory_peak_bytes or 0) > 1 << 20
        assert second.uptime_s is not None
        assert second.uptime_s > (first.uptime_s or 0)
        assert rates(first, second) is not None
        until(lambda: not server.relay.observers)
        assert worker.connected
    finally:
        worker.close(drain=False)


def test_a_trainers_bundle_may_request_the_status_and_a_wrong_token_is_named(
    server: Server, keys: Path, tmp_path: Path
) -> None:
    bundle = credentials.bundle(keys, "trainer", "hpc", tmp_path / "t.bundle")
    with ObserverLink(settings(bundle, server.port)) as link:
        assert link.fetch_status() is not None
    with (
        ObserverLink(settings(keys, server.port, token="wrong")) as link,
        pytest.raises(RefusedError, match="TMRL_CORE_TOKEN"),
    ):
        link.fetch_status()


def test_the_certificates_name_is_shown_with_the_peers_label(
    server: Server, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = credentials.bundle(keys, "worker", "robot7", tmp_path / "w.bundle")
    worker = WorkerLink(settings(bundle, server.port), name="calls itself boss", run="run")
    worker.start()
    try:
        assert worker.wait_connected(DEADLINE_S)
        with ObserverLink(settings(keys, server.port)) as link:
            seen = link.fetch_status()
    finally:
        worker.close(drain=False)
    assert seen is not None
    assert {(peer.role, peer.name, peer.certificate) for peer in seen.peers if peer.role == "worker"} == {
        ("worker", "calls itself boss", "robot7")
    }
    assert [peer.certificate for peer in seen.peers if peer.role == "observer"] == [""]
    cli_status.Shown(False, as_json=False, watched=False)([cli_status.Answer("here", seen)])
    shown = capsys.readouterr().out
    assert "calls itself boss" in shown
    assert "robot7" in shown
    assert "weight" not in shown


def test_the_weight_of_a_gateways_certificate_is_shown(server: Server, keys: Path, tmp_path: Path) -> None:
    bundle = credentials.bundle(keys, "worker", "web", tmp_path / "g.bundle", weight=1_000)
    worker = WorkerLink(settings(bundle, server.port), name="gateway", run="run")
    worker.start()
    try:
        assert worker.wait_connected(DEADLINE_S)
        until(lambda: bool(server.relay.streams))
        with ObserverLink(settings(keys, server.port)) as link:
            seen = link.fetch_status()
    finally:
        worker.close(drain=False)
    assert seen is not None
    assert [peer.weight for peer in seen.peers if peer.role == "worker"] == [1_000]
    written = io.StringIO()
    Console(file=written, width=200).print(cli_status.overview(seen, None, "here", 200))
    assert "web (weight 1,000)" in written.getvalue()


def test_it_connects_again_after_the_server_was_restarted(keys: Path) -> None:
    server = Server(config=config(keys))
    port = server.port
    with ObserverLink(settings(keys, port)) as link:
        assert link.fetch_status() is not None
        server.close()
        with pytest.raises(NetworkError):
            link.fetch_status()
        with Server(config=config(keys, port)):
            assert link.fetch_status() is not None


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["--status", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_tables_for_people_and_json_for_programs(
    server: Server, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--set", f"server.port={server.port}", "--set", f"network.credentials_dir={keys}")
    status, out, err = run(capsys, *where)
    assert (status, err) == (0, "")
    for word in ("Server", "memory", "samples/s", "held", "1 observer", "127.0.0.1", "trouble"):
        assert word in out
    status, out, err = run(capsys, *where, "--json")
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert told["peers"][0]["role"] == "observer"
    assert told["rates"]["samples_per_s"] == 0
    assert told["budgets"]["samples"]["limit_bytes"] == server.relay.settings.budget_bytes


def test_watching_ends_in_order(server: Server, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = config(keys, server.port)
    options = argparse.Namespace(json=True, watch=0.2)
    statuses: list[int] = []
    shutdown = ShutdownSignal()
    thread = threading.Thread(target=lambda: statuses.append(cli_status.status(made, options, shutdown)))
    thread.start()
    until(lambda: bool(server.relay.observers))
    shown = ""

    def seen() -> bool:
        nonlocal shown
        shown += capsys.readouterr().out
        return shown.count("\n") >= 2

    until(seen)
    shutdown.request("a test")
    thread.join(DEADLINE_S)
    assert statuses == [0]
    first, second = (json.loads(line) for line in shown.splitlines()[:2])
    assert second["clock_s"] > first["clock_s"]


def test_a_missing_server_and_wrong_options_are_reported(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(config=config(keys)) as server:
        port = server.port
    status, out, err = run(capsys, "--set", f"server.port={port}", "--set", f"network.credentials_dir={keys}")
    assert (status, out) == (1, "")
    assert "the Server is not up yet, or server.port differs" in err
    assert "Traceback" not in err
    status, _, err = run(capsys, "--watch", "0")
    assert (status, "--watch: found 0" in err) == (2, True)
    assert cli.main(["--server", "--json"]) == 2


def test_labels_of_peers_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    stream = StreamStatus(
        worker="\x1b[2J[red]x\n",
        stream="ab" * 16,
        run="r",
        linked=True,
        active=False,
        epoch=0,
        queued_messages=0,
        queued_bytes=0,
        reserved_bytes=0,
        limit_bytes=0,
        relayed_messages=0,
        relayed_samples=0,
        relayed_bytes=0,
        dropped_messages=0,
        position=0,
        waits="\x07 for [bold]ever",
    )
    status = ServerStatus(
        clock_s=1.0,
        version="1",
        incarnation=0,
        workers=1,
        trainer=False,
        streams=(stream,),
        streams_left_out=3,
        relayed_messages=0,
        relayed_samples=0,
        relayed_bytes=0,
        dropped_messages=0,
        discarded_messages=0,
        refused_peers=0,
        protocol_errors=0,
    )
    cli_status.Shown(False, as_json=False, watched=False)([cli_status.Answer("here", status)])
    out = capsys.readouterr().out
    assert "?[2J[red]x?" in out
    assert "? for [bold]ever" in out
    assert "... and 3 more workers" in out
    assert not set(out) & {"\x1b", "\x07"}


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(999), "999 B"),
        (bytes_text(67_108_864), "67.1 MB"),
        (bytes_text(5e15), "5,000.0 TB"),
        (duration_text(3.2), "3 s"),
        (duration_text(150), "2 min 30 s"),
        (duration_text(7_260), "2 h 01 min"),
        (duration_text(400_000), "4 d 15 h"),
        (duration_text(float("inf")), "?"),
        (duration_text(float("nan")), "?"),
    ],
)
def test_figures_for_people(made: str, text: str) -> None:
    assert made == text


def seen_from(workers: int, *, troubled: int = 0) -> ServerStatus:
    """A busy Server; the last `troubled` of its workers are, in turn, gone, silent, dropping, waiting."""
    streams, peers = [], []
    for number in range(workers):
        trouble = number - (workers - troubled) if number >= workers - troubled else -1
        name = f"robot{number:02d}.laboratory.example.org"[:24]
        gone, silent = trouble % 4 == 0, trouble % 4 == 1
        streams.append(
            StreamStatus(
                worker=name, stream=f"{number:032x}", run="pendulum_sac", linked=trouble < 0 or not gone, active=True,
                epoch=3, queued_messages=2, queued_bytes=81_920, reserved_bytes=4_000_000, limit_bytes=4_000_000,
                relayed_messages=12_345, relayed_samples=1_234_567, relayed_bytes=987_654_321,
                dropped_messages=12 if trouble >= 0 and trouble % 4 == 2 else 0, position=1_234_567,
                waits="1200 samples are above trainer.start_training" if trouble >= 0 and trouble % 4 == 3 else "",
            )
        )  # fmt: skip
        peers.append(
            PeerStatus(
                role="worker", name=name, address=f"192.168.100.{number}:51234", run="pendulum_sac", since_s=7_000.0,
                heard_s=8.5 if trouble >= 0 and silent else 0.4, bytes_in=987_654_321, bytes_out=12_345_678,
                unread_bytes=0, policy=(1, 4321), certificate=name,
            )
        )  # fmt: skip
    return ServerStatus(
        clock_s=10.0, version="0.1.0", uptime_s=7_384.0, pid=4242, memory_bytes=84_000_000, incarnation=1,
        policy=PolicyStatus(incarnation=1, counter=4322, run="pendulum_sac", size_bytes=284_000), workers=workers,
        max_workers=64, trainer=True, peers=tuple(peers), streams=tuple(streams),
        budgets={"samples": BudgetStatus(used_bytes=1_200_000, limit_bytes=67_108_864)}, relayed_messages=98_765,
        relayed_samples=9_876_543, relayed_bytes=7_901_234_568, dropped_messages=12, discarded_messages=3,
        refused_peers=2, protocol_errors=0,
    )  # fmt: skip


def drawn(status: ServerStatus, columns: int, lines: int | None) -> list[str]:
    console = Console(width=columns, height=lines or 100, file=io.StringIO(), color_system=None)
    console.print(cli_status.overview(status, None, "server.example.org port 55555", columns, lines))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_forged_and_outdated_messages_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status = seen_from(2)
    assert not any("ignored" in line for line in drawn(status, 240, None))
    robot = msgspec.structs.replace(status.peers[0], forged=3, outdated=4)
    status = msgspec.structs.replace(status, peers=(robot, status.peers[1]))
    shown = drawn(status, 240, None)
    assert "3 forged messages ignored by members, 4 outdated messages ignored by members" in "".join(shown[:5])
    (row,) = [line for line in shown if line.startswith("robot00")]
    assert "ignored 3 forged messages, ignored 4 outdated messages" in row
    cli_status.Shown(False, as_json=False, watched=False)([cli_status.Answer("here", status)])
    assert "4 outdated messages ignored by members" in capsys.readouterr().out


def test_one_is_not_many(capsys: pytest.CaptureFixture[str]) -> None:
    status = seen_from(1)
    stream = msgspec.structs.replace(status.streams[0], dropped_messages=1)
    status = msgspec.structs.replace(
        status, max_workers=None, dropped_messages=1, refused_peers=1, streams=(stream,), peers_left_out=1
    )
    cli_status.Shown(False, as_json=False, watched=False)([cli_status.Answer("here", status)])
    out = " ".join([capsys.readouterr().out, *drawn(status, 100, 20)])
    for text in (
        "1 worker, a trainer",
        "1 message dropped by workers",
        "1 peer refused",
        "dropped 1 message",
    ):
        assert text in out
        assert f"{text}s" not in out


def test_lateness_is_shown_for_workers_whose_environments_have_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    status = seen_from(2)
    assert not any(" late" in line for line in drawn(status, 120, None))
    robot = msgspec.structs.replace(status.streams[0], steps=1_000, late_steps=34, lateness_p999_s=0.0123)
    status = msgspec.structs.replace(status, streams=(robot, status.streams[1]))
    shown = drawn(status, 120, None)
    (row,) = [line for line in shown if line.startswith("robot00")]
    assert "34, 12 ms" in row
    assert "3% of its steps late" in row
    (row,) = [line for line in shown if line.startswith("robot01")]
    assert "late" not in row
    cli_status.Shown(False, as_json=False, watched=False)([cli_status.Answer("here", status)])
    assert "34, 12 ms" in capsys.readouterr().out


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (60, 15)])
@pytest.mark.parametrize(("workers", "troubled"), [(0, 0), (1, 0), (8, 4), (64, 6)])
def test_a_snapshot_fits_the_terminal_with_problems_first(
    columns: int, lines: int, workers: int, troubled: int
) -> None:
    shown = drawn(seen_from(workers, troubled=troubled), columns, lines - 1)
    assert len(shown) < lines
    assert max(map(len, shown)) <= columns
    assert "12 messages dropped by workers" in "".join(shown[:5])
    if troubled:
        rows = [line for line in shown if line.startswith("robot")]
        assert ["has gone" in rows[0], "silent for" in rows[2 if workers > 8 else 1]] == [True, True]
        missing = workers - len(rows)
        assert (f"... and {missing} more workers" in shown[-1]) == (missing > 0)


def test_several_servers_are_shown_one_after_the_other(
    server: Server, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [f"127.0.0.1:{server.port}", "127.0.0.1:1"]
    several = from_values(
        {"server": {"endpoints": servers}, "network": {"credentials_dir": str(keys), "security": "TLS"}}
    )
    with ShutdownSignal() as shutdown:
        ended = cli_status.status(several, argparse.Namespace(json=True, watch=None), shutdown)
        found = json.loads(capsys.readouterr().out)["servers"]
        assert ended == 1  # one of them did not answer
        assert found[0]["server"] == f"127.0.0.1 port {server.port}"
        assert found[0]["rates"]["seconds"] > 0
        assert "127.0.0.1" in found[1]["error"]
        cli_status.status(several, argparse.Namespace(json=False, watch=None), shutdown)
    text = capsys.readouterr().out
    assert "1 of 2 Servers answered: 0 workers, now 0 samples/s" in text
    assert f"Server 127.0.0.1 port {server.port}, tmrl_core" in text
    assert "Server 127.0.0.1 port 1: " in text
