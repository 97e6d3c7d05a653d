"""Links in threads of their own, over real sockets and in process."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tmrl_core import rate_limited_log
from tmrl_core.config import from_values
from tmrl_core.errors import (
    ConfigError,
    HandshakeError,
    LinkClosedError,
    NetworkError,
    RefusedError,
)
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink, base
from tmrl_core.networking.protocol.delivery import CommittedOffset, Received
from tmrl_core.networking.protocol.messages import Blob, Directive, Evaluation, Progress
from tmrl_core.networking.security import credentials
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, decode_message

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


class Place:
    """A Server and a way to reach it."""

    def __init__(self, transport: str, keys: Path, stack: ExitStack) -> None:
        self.transport = transport
        self.keys = keys
        self.stack = stack
        self.port = 0
        self.marks: dict[bytes, CommittedOffset] = {}
        self.start_server()

    def start_server(self, **server: Any) -> None:
        config = from_values(
            {
                "network": {
                    "transport": "local" if self.transport == "local" else "tls",
                    "security": "TLS" if self.transport == "tls" else None,
                    "credentials_dir": str(self.keys),
                    "max_message_bytes": 1 << 20,
                },
                "server": {"port": self.port, **server},
            }
        )
        self.server = Server(config=config)
        self.stack.callback(self.server.close)
        self.port = self.server.port

    def settings(self, **changes: Any) -> LinkSettings:
        return LinkSettings(
            **{
                "host": "127.0.0.1",
                "port": self.port,
                "hostname": "localhost",
                "transport": "local" if self.transport == "local" else "tls",
                "security": "TLS" if self.transport == "tls" else None,
                "credentials_dir": str(self.keys),
                "backoff_min_s": 0.01,
                "backoff_max_s": 0.05,
                **changes,
            }
        )

    def worker(self, name: str = "a", **changes: Any) -> WorkerLink:
        settings = self.settings(**changes.pop("settings", {}))
        link = WorkerLink(settings, name=name, run="run", **{"drain_timeout_s": DEADLINE_S, **changes})
        link.start()
        self.stack.callback(link.close, drain=False)
        return link

    def trainer(self, **changes: Any) -> TrainerLink:
        link = TrainerLink(self.settings(**changes.pop("settings", {})), name="trainer", run="run", **changes)
        link.start()
        self.stack.callback(link.close)
        return link


@pytest.fixture(params=["local", "tls"])
def place(request: pytest.FixtureRequest, keys: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(request.param, keys, stack)


def episode(first: float, rows: int) -> list[Chunk]:
    buffer = Buffer(maxlen=None)
    for i in range(rows):
        observation = np.full(3, first + i, np.float32)
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.5, False, i == rows - 1, {}))
    chunks, _ = buffer.take()
    return chunks


def collect(trainer: TrainerLink, rows: int) -> list[float]:
    """Take and commit until so many rows have come; the first number of each row's observation."""
    numbers: list[float] = []
    while len(numbers) < rows:
        assert trainer.wait(DEADLINE_S), f"{len(numbers)} of {rows} rows came"
        received = trainer.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=1 << 24).chunk
            assert chunk is not None
            numbers += np.asarray(chunk.observation)[:, 0].tolist()
        trainer.acknowledge(received)
    return numbers


def until(condition: Callable[[], bool], link: WorkerLink | TrainerLink) -> None:
    assert link._wait(condition, DEADLINE_S)


def test_samples_go_up_and_are_acknowledged_weights_come_down(place: Place) -> None:
    worker, trainer = place.worker(), place.trainer()
    version = trainer.publish({"policy": Blob("text", b"weights")})
    worker.send(episode(0, 500), [EpisodeRecord("agent", 1.5, 500, "train", "truncated")])
    assert collect(trainer, 500) == list(range(500))
    assert worker.wait_policy(DEADLINE_S)
    policy = worker.take_policy()
    assert policy is not None
    assert policy.policies == {"policy": Blob("text", b"weights")}
    assert policy.version == (1, version[1])
    assert worker.take_policy() is None
    until(lambda: worker.counts.samples_acked == 500, worker)
    report = worker.close()
    assert report == (500, 0, 0)


def test_large_samples_are_sent_in_pieces_in_order(place: Place) -> None:
    worker, trainer = place.worker(), place.trainer(inbox_bytes=2 << 20)
    chunks = episode(0, 150_000)
    done = threading.Thread(target=worker.send, args=(chunks, []))
    done.start()
    assert collect(trainer, 150_000) == list(range(150_000))
    assert trainer.counts.messages_received > 2
    done.join(DEADLINE_S)
    assert not done.is_alive()


def test_samples_beyond_the_queue_limit_are_sent_in_parts(place: Place) -> None:
    worker, trainer = place.worker(queue_bytes=300_000, when_full="block"), place.trainer()
    done = threading.Thread(target=worker.send, args=(episode(0, 60_000), []))
    done.start()
    assert collect(trainer, 60_000) == list(range(60_000))
    assert trainer.counts.messages_received > 2
    done.join(DEADLINE_S)
    assert not done.is_alive()


def test_a_server_restart_loses_and_duplicates_nothing(place: Place) -> None:
    worker, trainer = place.worker(), place.trainer()
    trainer.publish({"policy": Blob("text", b"1")})
    worker.send(episode(0, 10), [])
    assert collect(trainer, 10) == list(range(10))
    worker.send(episode(10, 10), [])
    place.server.close()
    worker.send(episode(20, 10), [])
    place.start_server()
    assert collect(trainer, 20) == list(range(10, 30))
    until(lambda: worker.counts.samples_acked == 30, worker)
    assert trainer.counts.gap_messages == 0
    assert worker.counts.reconnects >= 1


def test_a_trainer_that_ends_between_receipt_and_commit_gets_the_samples_again(place: Place) -> None:
    worker, trainer = place.worker(), place.trainer()
    worker.send(episode(0, 10), [])
    assert collect(trainer, 10) == list(range(10))
    worker.send(episode(10, 10), [])
    assert trainer.wait(DEADLINE_S)
    assert len(trainer.receive()) == 1
    offsets, incarnation = trainer.trainer.offsets, trainer.trainer.incarnation
    trainer.close()
    again = place.trainer(offsets=offsets, incarnation=incarnation)
    assert collect(again, 10) == list(range(10, 20))
    assert again.trainer.incarnation == incarnation + 1


def test_directives_and_progress_reach_the_worker(place: Place) -> None:
    worker, trainer = place.worker(), place.trainer()
    until(lambda: len(trainer.members) == 1, trainer)
    trainer.report(Progress(samples=7, updates=3))
    trainer.direct(Directive(revision=1, pause=True), worker.stream)
    trainer.direct(Directive(revision=2, finish=True))
    until(lambda: worker.finished and worker.directive.pause and worker.progress.samples == 7, worker)


def test_a_change_before_a_wait_is_not_missed(place: Place) -> None:
    trainer, worker = place.trainer(), place.worker()
    trainer.direct(Directive(1, pause=True))
    until(lambda: worker.directive.pause, worker)
    while worker.wait_change(0.2):
        pass
    trainer.report(Progress(samples=5))
    until(lambda: worker.progress.samples == 5, worker)
    assert worker.wait_change(DEADLINE_S)


def test_a_waiting_worker_is_woken(place: Place) -> None:
    worker = place.worker()
    assert worker.wait_connected(DEADLINE_S)
    while worker.wait_change(0.2):
        pass
    worker.wake()
    assert worker.wait_change(DEADLINE_S)
    threading.Timer(0.05, worker.wake).start()
    assert worker.wait_change(DEADLINE_S)
    worker.close()
    assert worker.wait_change(DEADLINE_S)


def test_a_full_blocking_link_waits_and_close_ends_the_wait(place: Place) -> None:
    worker = place.worker(queue_bytes=10_000, when_full="block")
    worker.send(episode(0, 400), [])
    failed: list[Exception] = []

    def send() -> None:
        try:
            worker.send(episode(0, 400), [])
        except LinkClosedError as exc:
            failed.append(exc)

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "there is no room, and nobody takes anything"
    worker.close(drain=False)
    thread.join(DEADLINE_S)
    assert failed


def test_a_call_that_waits_for_space_is_woken(place: Place) -> None:
    worker = place.worker(queue_bytes=10_000, when_full="block")
    worker.send(episode(0, 500), [])
    threading.Timer(0.05, worker.wake).start()
    with pytest.raises(LinkClosedError):
        worker.send(episode(0, 500), [])
    worker.wake()
    with pytest.raises(LinkClosedError):
        worker.send(episode(0, 500), [])
    assert not worker.closed


def test_a_link_that_nobody_holds_closes_once_its_samples_are_delivered(place: Place) -> None:
    worker, trainer = place.worker(), place.trainer()
    until(lambda: trainer.members != [], trainer)
    worker.send(episode(0, 10), [])
    worker.close_soon()
    assert collect(trainer, 10) == list(range(10))
    until(lambda: worker.closed, worker)
    until(lambda: not trainer.members, trainer)
    assert worker.counts.samples_acked == 10


def test_a_link_that_nobody_holds_closes_in_time_without_a_trainer(place: Place) -> None:
    worker = place.worker(drain_timeout_s=0.1)
    worker.send(episode(0, 10), [])
    worker.close_soon()
    until(lambda: worker.closed, worker)


def test_a_full_dropping_link_warns_drops_the_oldest_and_the_trainer_counts_the_gap(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    worker = place.worker(queue_bytes=20_000, when_full="drop_oldest")
    with caplog.at_level(logging.WARNING):
        for i in range(20):
            worker.send(episode(i * 100, 100), [])
        until(lambda: not worker._outbox and worker.counts.queued_bytes <= 20_000, worker)
    (warning,) = (message for message in caplog.messages if "dropped" in message)
    assert all(part in warning for part in ("worker.queue_bytes (20000)", "worker.when_full: block"))
    kept = worker.counts.queued_samples
    trainer = place.trainer()
    numbers = collect(trainer, kept)
    assert numbers == list(range(2000 - kept, 2000))
    assert trainer.counts.gap_samples == 2000 - kept == worker.counts.samples_dropped
    # The next outage is said again, after everything has been acknowledged.
    until(lambda: worker.counts.queued_samples == 0 and not worker._warned_of_drops, worker)
    trainer.close()
    until(lambda: not worker._sender.active, worker)
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        for i in range(20):
            worker.send(episode(i * 100, 100), [])
        until(lambda: not worker._outbox and worker.counts.samples_dropped > 2000 - kept, worker)
    assert len([message for message in caplog.messages if "dropped" in message]) == 1


def poll(condition: Callable[[], bool], worker: WorkerLink) -> None:
    """Wait for a condition whose change wakes nobody."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        worker.wait_change(0.005)


def await_the_disk(worker: WorkerLink) -> None:
    """Wait until what was sent is encoded, and on the disk as far as it should be."""
    overflow = worker._overflow
    assert overflow is not None
    poll(lambda: not worker._outbox and not overflow._busy, worker)


def test_samples_of_an_outage_wait_on_the_disk_and_none_is_lost(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = place.worker(queue_bytes=100_000, when_full="drop_oldest", spool_dir=tmp_path / "spool")
    trainer = place.trainer()
    worker.send(episode(0, 100), [])
    assert collect(trainer, 100) == list(range(100))
    until(lambda: worker.counts.samples_acked == 100, worker)
    assert not (tmp_path / "spool").exists()
    place.server.close()
    for i in range(1, 20):
        worker.send(episode(i * 500, 500), [])
        await_the_disk(worker)
    files = list((tmp_path / "spool" / worker.stream.hex()).glob("*.seg"))
    assert files
    place.start_server()
    assert collect(trainer, 9_500) == list(range(500, 10_000))
    until(lambda: worker.counts.samples_acked == 9_600, worker)
    assert (worker.counts.samples_dropped, trainer.counts.gap_samples) == (0, 0)
    assert worker.close() == (9_600, 0, 0)
    assert list((tmp_path / "spool").iterdir()) == []
    assert not [record for record in caplog.records if "dropped" in record.message]


def test_a_spool_beyond_its_bound_drops_the_oldest_and_names_the_setting(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = place.worker(queue_bytes=100_000, when_full="drop_oldest", spool_dir=tmp_path, spool_bytes=150_000)
    with caplog.at_level(logging.WARNING):
        for i in range(40):
            worker.send(episode(i * 500, 500), [])
            await_the_disk(worker)
    (warning,) = (message for message in caplog.messages if "dropped" in message)
    assert "worker.spool_bytes (150000)" in warning
    kept = worker.counts.queued_samples
    trainer = place.trainer()
    assert collect(trainer, kept) == list(range(20_000 - kept, 20_000))
    assert trainer.counts.gap_samples == 20_000 - kept == worker.counts.samples_dropped


def left_by_a_worker(place: Place, folder: Path, **changes: Any) -> WorkerLink:
    """Return a worker that has ended while the Server was away, with 1,000 samples of which 100 were acknowledged."""
    worker, trainer = place.worker(spool_dir=folder, **changes), place.trainer(settings=changes.get("settings", {}))
    worker.send(episode(0, 100), [])
    assert collect(trainer, 100) == list(range(100))
    until(lambda: worker.counts.samples_acked == 100, worker)
    place.server.close()
    for i in range(1, 10):
        worker.send(episode(i * 100, 100), [])
    worker.drain_timeout_s = 0.05
    assert worker.close() == (100, 0, 0), "900 wait on the disk"
    place.marks = trainer.trainer.offsets
    trainer.close()
    place.start_server()
    return worker


@pytest.mark.parametrize("mode", ["off", "authenticate", "encrypt"])
def test_a_worker_delivers_what_an_earlier_one_has_left(keys: Path, tmp_path: Path, mode: str) -> None:
    with ExitStack() as stack:
        place = Place("tls", keys, stack)
        settings = {"end_to_end": mode}
        first = left_by_a_worker(place, tmp_path / "spool", settings=settings)
        assert [path.name for path in (tmp_path / "spool").iterdir()] == [first.stream.hex()]
        second = place.worker(spool_dir=tmp_path / "spool", settings=settings)
        trainer = place.trainer(settings=settings, offsets=place.marks, incarnation=1)
        assert collect(trainer, 900) == list(range(100, 1_000))
        assert trainer.counts.gap_samples == trainer.counts.duplicate_messages == 0
        poll(lambda: not second._left, second)
        assert list((tmp_path / "spool").iterdir()) == []
        # The stream of the earlier process has ended, and this one goes on.
        until(lambda: [member.stream for member in trainer.members] == [second.stream], trainer)
        second.send(episode(0, 10), [])
        assert collect(trainer, 10) == list(range(10))
        assert second.close() == (10, 0, 0)


def test_a_trainer_does_not_take_an_earlier_process_for_a_worker(place: Place, tmp_path: Path) -> None:
    first = left_by_a_worker(place, tmp_path)
    trainer = place.trainer(offsets=place.marks)
    second = place.worker(spool_dir=tmp_path)
    until(lambda: len(trainer.members) == 2, trainer)
    assert {member.stream: member.live for member in trainer.members} == {first.stream: False, second.stream: True}
    trainer.direct(Directive(revision=1, pause=True), first.stream)
    trainer.direct(Directive(revision=1, evaluation=Evaluation(1, (1,))), second.stream)
    until(lambda: second.directive.evaluation is not None, second)
    assert not second.directive.pause
    assert collect(trainer, 900) == list(range(100, 1_000))


def test_samples_of_another_run_or_of_a_running_worker_are_left_where_they_are(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = left_by_a_worker(place, tmp_path)
    running = place.worker(queue_bytes=100_000, spool_dir=tmp_path)
    assert running._left, "it delivers what was left"
    trainer = place.trainer(offsets=place.marks)
    collect(trainer, 900)
    poll(lambda: not running._left, running)
    trainer.close()
    for i in range(20):
        running.send(episode(i * 500, 500), [])
        await_the_disk(running)
    assert [path.name for path in tmp_path.iterdir()] == [running.stream.hex()] != [first.stream.hex()]
    assert not place.worker(spool_dir=tmp_path)._left
    running.drain_timeout_s = 0.0
    place.server.close()
    running.close()
    with caplog.at_level(logging.WARNING):
        other = WorkerLink(place.settings(), name="a", run="other", spool_dir=tmp_path)
    assert not other._left
    assert "10000 samples wait in" in caplog.text
    assert "they are of run 'run'" in caplog.text
    assert (tmp_path / running.stream.hex()).exists()


def test_a_file_without_a_whole_message_is_removed(place: Place, tmp_path: Path) -> None:
    first = left_by_a_worker(place, tmp_path)
    (path,) = (tmp_path / first.stream.hex()).glob("*.seg")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 4)
    assert not place.worker(spool_dir=tmp_path)._left
    assert list(tmp_path.iterdir()) == []


def test_samples_of_a_run_that_is_over_are_not_kept(place: Place, tmp_path: Path) -> None:
    worker, trainer = place.worker(spool_dir=tmp_path, drain_timeout_s=0.05), place.trainer()
    trainer.direct(Directive(revision=1, finish=True))
    until(lambda: worker.finished, worker)
    trainer.close()
    place.server.close()
    worker.send(episode(0, 10), [])
    assert worker.close() == (0, 0, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_message_is_released_counted_and_logged_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    worker, trainer = place.worker(), place.trainer()
    worker.send(episode(0, 10), [])
    assert trainer.wait(DEADLINE_S)
    (received,) = trainer.receive()
    with caplog.at_level(logging.WARNING):
        trainer.refuse(received, "shape (3,) where (4,) is held")
        until(lambda: worker.counts.samples_refused == 10, worker)
        assert worker.counts.queued_samples == 0
        worker.send(episode(0, 10), [])
        assert trainer.wait(DEADLINE_S)
        trainer.refuse(trainer.receive()[0], "shape (3,) where (4,) is held")
        until(lambda: worker.counts.samples_refused == 20, worker)
        worker.close()
    said = [record.message for record in caplog.records if "refused message" in record.message]
    assert len(said) == 1, "each reason is said once"
    assert "shape (3,) where (4,) is held" in said[0]


def test_closing_without_a_trainer_hands_over_unacknowledged_samples(place: Place) -> None:
    worker = place.worker()
    worker.send(episode(0, 10), [])
    assert worker.close() == (0, 10, 0)


def test_closing_without_a_server_reports_unacknowledged_samples(place: Place) -> None:
    worker = place.worker(drain_timeout_s=0.1)
    assert worker.wait_connected(DEADLINE_S)
    place.server.close()
    worker.send(episode(0, 10), [])
    assert worker.close() == (0, 0, 10)


def test_a_worker_that_starts_first_waits_for_the_server(keys: Path) -> None:
    with ExitStack() as stack:
        place = Place("tls", keys, stack)
        place.server.close()
        worker, trainer = place.worker(), place.trainer()
        worker.send(episode(0, 10), [])
        place.start_server()
        assert collect(trainer, 10) == list(range(10))


def test_a_worker_logs_when_its_samples_lose_and_regain_a_receiver(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tmrl_core.networking.links")
    worker = place.worker()
    until(lambda: worker._taken is False, worker)
    trainer = place.trainer()
    until(lambda: worker._taken is True, worker)
    trainer.close()
    until(lambda: worker._taken is False, worker)
    said = [record.getMessage() for record in caplog.records if "run 'run'" in record.getMessage()]
    waits = "no trainer of run 'run' is connected: samples wait here until one connects"
    assert said == [waits, "a trainer of run 'run' takes samples", waits]
    worker.send(episode(0, 10), [])
    worker.close()  # hands over to the Server, which is no trainer
    said = [record.getMessage() for record in caplog.records if "run 'run'" in record.getMessage()]
    assert said[3:] == []


def test_a_worker_of_another_run_logs_that_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    trainer = TrainerLink(place.settings(), name="trainer", run="other")
    trainer.start()
    place.stack.callback(trainer.close)
    assert trainer.wait_connected(DEADLINE_S)
    worker = place.worker()
    until(lambda: bool(worker._logged_halts), worker)
    (said,) = [record for record in caplog.records if "run.name" in record.getMessage()]
    assert said.levelno == logging.WARNING
    assert "'other'" in said.getMessage()


def test_a_wrong_token_is_logged_on_both_sides_and_ends_the_attempts(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, collect_garbage: Callable[[], object]
) -> None:
    with ExitStack() as stack:
        place = Place("tls", keys, stack)
        only_authority = tmp_path / "credentials"
        only_authority.mkdir()
        for file in keys.glob("ca*"):
            if "key" not in file.name:
                (only_authority / file.name).write_bytes(file.read_bytes())
        worker = place.worker(settings={"credentials_dir": str(only_authority), "token": "wrong-token"})
        with pytest.raises(RefusedError, match="token") as caught:
            worker.wait_connected(DEADLINE_S)
        assert caught.value.code == "token"
        assert "wrong-token" not in str(caught.value)
        worker.close(drain=False)
        collect_garbage()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, said
    assert "refused a connection from 127.0.0.1" in said[0]
    assert said[0].count("refused") == 1
    assert "token of the role worker" in said[0]
    assert "wrong-token" not in said[0]


def test_the_server_logs_and_counts_garbage(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        place = Place("plain", keys, stack)
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", place.port), DEADLINE_S) as knock:
                knock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while knock.recv(4096):
                    pass
        assert place.server.refusals.count == 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, said
    assert "refused a connection from 127.0.0.1" in said[0]


def test_the_client_reports_a_foreign_ca(keys: Path, tmp_path: Path) -> None:
    credentials.create(tmp_path / "other", ["localhost"])
    with ExitStack() as stack:
        place = Place("tls", keys, stack)
        other = {"credentials_dir": str(tmp_path / "other")}
        worker, trainer = place.worker(settings=other), place.trainer(settings=other)
        for link in (worker, trainer):
            with pytest.raises(HandshakeError):
                link.wait_connected(DEADLINE_S)
        with pytest.raises(HandshakeError):  # a trainer with a full memory waits for nothing
            trainer.receive()


def test_the_client_reports_a_wrong_host_name(keys: Path) -> None:
    with ExitStack() as stack:
        place = Place("tls", keys, stack)
        worker = place.worker(settings={"hostname": "other.example"})
        with pytest.raises(HandshakeError, match=r"other\.example"):
            worker.wait_connected(DEADLINE_S)


def test_a_port_in_use_is_raised_by_the_constructor(place: Place) -> None:
    with pytest.raises(NetworkError, match="in use"):
        place.start_server()


def test_a_server_that_accepts_and_drops_is_retried_slowly_and_logged_rarely(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        place = Place("local", keys, stack)
        relay = place.server.relay
        accepted: list[float] = []
        tried = threading.Event()

        def drop(connection: Any, message: Any) -> None:
            accepted.append(time.monotonic())
            connection.close()
            if len(accepted) == 7:
                tried.set()

        relay.open_stream = drop  # type: ignore[method-assign]
        place.worker(settings={"backoff_min_s": 0.02, "backoff_max_s": 60.0})
        assert tried.wait(DEADLINE_S)
        # Six waits of at least half of 0.02, 0.04, ... 0.64 s.
        assert accepted[6] - accepted[0] >= 0.5 * 0.02 * (2**6 - 1)
    assert sum("trying again" in record.message for record in caplog.records) == 1


def test_a_server_that_refuses_with_new_reasons_fills_neither_log_nor_memory(
    keys: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limited_log, "LINES_AT_ONCE", 5)
    monkeypatch.setattr(base, "_LINES_PER_S", 0.0)
    with ExitStack() as stack, caplog.at_level(logging.INFO, "tmrl_core.networking.links.base"):
        place = Place("local", keys, stack)
        refused: list[str] = []
        done = threading.Event()

        def refuse(connection: Any, message: Any) -> None:
            refused.append(f"reason {len(refused)}")
            connection.refuse("full", refused[-1])
            if len(refused) == 60:
                done.set()

        place.server.relay.open_stream = refuse  # type: ignore[method-assign]
        worker = place.worker(settings={"backoff_min_s": 0.001, "backoff_max_s": 0.001})
        assert done.wait(DEADLINE_S)
        worker.close(drain=False)
    assert sum("trying again" in record.message for record in caplog.records) == 5
    assert sum("connected to the Server" in record.message for record in caplog.records) == 5
    assert len(worker._logged_reasons) <= 20


def test_directives_for_streams_that_the_trainer_has_forgotten_are_removed() -> None:
    trainer = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    state = trainer.trainer
    streams = [number.to_bytes(16, "big") for number in range(20_000)]
    trainer.direct(Directive(revision=1))
    for number, stream in enumerate(streams):
        state.receiver(stream)  # none of their workers is linked any more
        trainer.direct(Directive(revision=number), stream)
    assert len(state.directives) <= 2 * len(state.receivers) < 10_000
    assert {None, *state.receivers} <= state.directives.keys(), "a worker that returns finds its directive"


def test_invented_reasons_of_refusals_take_little_memory_and_small_checkpoints() -> None:
    trainer = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    state = trainer.trainer
    streams = [number.to_bytes(16, "big") for number in range(100)]
    for stream in streams:
        state.receiver(stream).next_number = 120
        state.names[stream] = "thief"
        for number in range(120):
            reason = f"observation {stream.hex()} {number} " + "\N{GRINNING FACE}" * 400
            trainer.refuse(Received(stream, number, 1, memoryview(b""), 1), reason)
    told = [reason for one in streams for _, reason in state.receivers[one]._refused]
    assert len(told) == 100 * 120
    assert len({id(reason) for reason in told}) <= 129
    assert len(msgspec.msgpack.encode(trainer.trainer.refusals)) < 100 * 20 * 110
    honest = b"h" * 16
    state.receiver(honest).next_number = 1
    trainer.refuse(Received(honest, 0, 1, memoryview(b""), 1), "shape (3,) where (4,) is held")
    assert trainer.trainer.refusals[honest] == ((0, "shape (3,) where (4,) is held"),)


def test_a_directive_too_large_for_a_message_is_refused_immediately(place: Place) -> None:
    trainer = place.trainer()
    with pytest.raises(ValueError, match="60000"):
        trainer.direct(Directive(evaluation=Evaluation(1, tuple(range(70_000, 100_000)))))


def test_plaintext_beyond_this_machine_is_refused_before_the_token_leaves() -> None:
    settings = LinkSettings(host="192.0.2.1", security=None, token="secret")
    with pytest.raises(ConfigError, match="allow_insecure_remote"):
        WorkerLink(settings, name="a", run="run").start()


def test_a_suggestion_to_a_link_that_is_not_connected_has_to_be_repeated(place: Place) -> None:
    link = TrainerLink(place.settings(), name="trainer", run="run")
    assert not link.suggest(7)
    trainer = place.trainer()
    until(lambda: trainer.suggest(7), trainer)
