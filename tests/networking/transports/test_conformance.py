"""What every transport must do; each implementation runs through the same tests."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tmrl_core.errors import NetworkError
from tmrl_core.networking.peers import TrainerConnection, TrainerState, WorkerConnection, WorkerState
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.messages import Blob, Directive, PolicyUpdate
from tmrl_core.networking.relay import Relay, RelaySettings
from tmrl_core.networking.security import credentials, handshakes, tlspyo_files
from tmrl_core.networking.transports.base import Driver, Listener, Transport, new_event_loop
from tmrl_core.networking.transports.local import LocalTransport
from tmrl_core.networking.transports.tls import TlsTransport
from tmrl_core.networking.transports.tlspyo.transport import TlspyoTransport

DEADLINE_S = 20.0

needs_tlspyo = pytest.mark.skipif(importlib.util.find_spec("tlspyo") is None, reason="the extra tlspyo")


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


class Ends:
    """The two sides of one transport."""

    def __init__(self, server: Transport, worker: Transport, trainer: Transport) -> None:
        self.server = server
        self.worker = worker
        self.trainer = trainer


@pytest.fixture(params=["local", "plain", "tls", pytest.param("tlspyo", marks=needs_tlspyo)])
def ends(request: pytest.FixtureRequest, keys: Path) -> Ends:
    if request.param == "local":
        return Ends(LocalTransport(), LocalTransport(), LocalTransport())
    if request.param == "plain":
        return Ends(TlsTransport(None), TlsTransport(None), TlsTransport(None))
    if request.param == "tlspyo":
        part = tlspyo_files.load(keys, server=True)
        made = TlspyoTransport(password=part.password, certificate=part.certificate, key=part.key)
        return Ends(made, made, made)
    context, _ = credentials.server_context(keys)
    return Ends(
        TlsTransport(context, identity_of=handshakes.identity_of),
        TlsTransport(credentials.client_context(keys, "worker"), server_hostname="localhost"),
        TlsTransport(credentials.client_context(keys, "trainer"), server_hostname="localhost"),
    )


@pytest.fixture(params=["asyncio", "fastest"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop() if request.param == "asyncio" else new_event_loop()
    with ExitStack() as stack:
        stack.callback(loop.close)
        yield loop


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.001)


def make_worker(name: str = "a") -> tuple[WorkerState, StreamSender]:
    state = WorkerState(run="run", name=name, peer=name.encode().ljust(16, b"."))
    sender = StreamSender(name.encode().rjust(16, b"."), queue_bytes=1 << 30, drop_oldest=False)
    state.add_stream(sender, b"")
    return state, sender


def make_trainer() -> TrainerState:
    return TrainerState(run="run", name="trainer", peer=b"t" * 16, inbox_bytes=4 << 20)


class Session:
    """A relay that is served, and a way to dial it."""

    def __init__(self, ends: Ends, **settings: float) -> None:
        self.ends = ends
        self.relay = Relay(RelaySettings(**settings))  # type: ignore[arg-type]
        self.accepted: list[Connection] = []
        self.drivers: list[Driver] = []

    def accept(self) -> Connection:
        connection = self.relay.connection()
        self.accepted.append(connection)
        return connection

    async def __aenter__(self) -> Session:
        self.listener: Listener = await self.ends.server.serve("127.0.0.1", 0, self.accept)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.listener.close()
        for driver in self.drivers:
            driver.abort()
            await asyncio.wait_for(driver.ended, DEADLINE_S)
        await asyncio.sleep(0)  # the event loop closes the sockets in its next turn

    async def worker(self, state: WorkerState, **times: float) -> tuple[WorkerConnection, Driver]:
        connection = WorkerConnection(
            state, silent_s=times.get("silent_s", 10), heartbeat_s=times.get("heartbeat_s", 3)
        )
        driver = await self.ends.worker.dial("127.0.0.1", self.listener.port, connection, 10.0)
        self.drivers.append(driver)
        return connection, driver

    async def trainer(self, state: TrainerState, **times: float) -> tuple[TrainerConnection, Driver]:
        connection = TrainerConnection(
            state, silent_s=times.get("silent_s", 10), heartbeat_s=times.get("heartbeat_s", 3)
        )
        driver = await self.ends.trainer.dial("127.0.0.1", self.listener.port, connection, 10.0)
        self.drivers.append(driver)
        return connection, driver


def test_samples_of_all_sizes_arrive_in_order_and_intact(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            worker, sender = make_worker()
            trainer = make_trainer()
            _, driver = await session.worker(worker)
            _, trainer_driver = await session.trainer(trainer)
            bodies = [bytes([i % 251]) * size for i, size in enumerate((0, 1, 100, 65_480, 65_524, 65_536, 3_000_000))]
            for body in bodies * 3:
                assert sender.offer([body], 1)
                driver.wake()
            got: list[bytes] = []

            def collect() -> bool:
                for received in trainer.take():
                    got.append(received.payload.tobytes())
                    trainer.commit(received)
                trainer_driver.wake()
                return len(got) == len(bodies) * 3 and sender.samples_acked == len(got)

            await until(collect)
            assert got == bodies * 3

    loop.run_until_complete(main())


def test_weights_and_directives_go_the_other_way(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            worker, sender = make_worker()
            trainer = make_trainer()
            connection, driver = await session.trainer(trainer)
            await session.worker(worker)
            for i in range(20):
                trainer.publish(PolicyUpdate((0, 0), {"policy": Blob("text", bytes([i]) * 500_000)}))
                driver.wake()
            await until(lambda: worker.policy_version == (1, 20))
            await until(lambda: sender.stream in trainer.members)
            trainer.directives[sender.stream] = Directive(revision=1, pause=True)
            connection.direct(sender.stream)
            await until(lambda: worker.directive.pause)

    loop.run_until_complete(main())


def test_closing_one_side_in_order_is_noticed_by_the_other(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            worker, _ = make_worker()
            connection, driver = await session.worker(worker)
            await until(lambda: len(session.relay.workers) == 1)
            connection.close()
            driver.wake()
            await asyncio.wait_for(driver.ended, DEADLINE_S)
            await until(lambda: session.relay.workers == {})
            assert session.accepted[0].reason is None, "it was closed in order"

    loop.run_until_complete(main())


def test_aborting_one_side_is_noticed_by_the_other(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            worker, _ = make_worker()
            _, driver = await session.worker(worker)
            await until(lambda: len(session.relay.workers) == 1)
            driver.abort()
            await until(lambda: session.relay.workers == {})

    loop.run_until_complete(main())


def test_closing_the_listener_ends_every_link(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        drivers = []
        async with Session(ends) as session:
            for name in "abc":
                _, driver = await session.worker(make_worker(name)[0])
                drivers.append(driver)
            await until(lambda: len(session.relay.workers) == 3)
        for driver in drivers:
            await asyncio.wait_for(driver.ended, DEADLINE_S)

    loop.run_until_complete(main())


def test_dialling_where_nobody_listens_says_so(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            port = session.listener.port
        connection = WorkerConnection(make_worker()[0], silent_s=10, heartbeat_s=3)
        with pytest.raises(NetworkError, match=str(port)):
            await ends.worker.dial("127.0.0.1", port, connection, 5.0)

    loop.run_until_complete(main())


def test_a_port_in_use_says_so(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            with pytest.raises(NetworkError, match=f"{session.listener.port}.*in use"):
                await ends.server.serve("127.0.0.1", session.listener.port, session.accept)

    loop.run_until_complete(main())


def test_the_last_words_arrive_before_the_link_ends(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends, max_workers=1) as session:
            await session.worker(make_worker("first")[0])
            await until(lambda: len(session.relay.workers) == 1)
            refused, driver = await session.worker(make_worker("second")[0])
            await asyncio.wait_for(driver.ended, DEADLINE_S)
            assert "max_workers" in str(refused.reason)

    loop.run_until_complete(main())


def test_heartbeats_keep_an_idle_link_and_silence_ends_one(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends, silent_s=0.4, heartbeat_s=0.05) as session:
            alive, driver = await session.worker(make_worker("alive")[0], silent_s=0.4, heartbeat_s=0.05)
            mute, _ = await session.worker(make_worker("mute")[0], silent_s=60, heartbeat_s=60)
            await until(lambda: len(session.relay.workers) == 2)
            await until(lambda: len(session.relay.workers) == 1)
            await until(lambda: mute.closing)
            assert not alive.closing
            assert not driver.ended.done()

    loop.run_until_complete(main())


def test_a_deadline_that_is_past_already_is_met_at_once(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            connection, driver = await session.worker(make_worker()[0])
            await until(lambda: connection.state == "open")
            connection._last_out -= 100.0
            driver._pump()
            driver._pump()
            sent = connection.bytes_out
            await until(lambda: connection.bytes_out > sent)

    loop.run_until_complete(main())


def test_a_deadline_that_is_past_already_hides_no_silence(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            connection, driver = await session.worker(make_worker()[0])
            await until(lambda: connection.state == "open")
            since = connection._connected_at
            connection._last_out -= 100.0
            driver._pump()
            sent = connection.bytes_out
            await until(lambda: connection.bytes_out > sent)
            assert connection._connected_at == since, "nobody stood still"

    loop.run_until_complete(main())


def test_a_trainer_that_falls_silent_at_once_is_noticed(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends, silent_s=0.4, heartbeat_s=0.05) as session:
            mute, _ = await session.trainer(make_trainer(), silent_s=60, heartbeat_s=60)
            await until(lambda: session.relay.trainer is not None)
            await until(lambda: session.relay.trainer is None)
            await until(lambda: mute.closing)

    loop.run_until_complete(main())


def test_a_paused_process_takes_no_peer_for_silent(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends, silent_s=0.6, heartbeat_s=0.1) as session:
            connection, driver = await session.worker(make_worker()[0], silent_s=0.6, heartbeat_s=0.1)
            await until(lambda: len(session.relay.workers) == 1)
            time.sleep(1.0)  # as a suspended laptop, a stopped process, or one that gets no processor
            heard = connection.bytes_in
            await until(lambda: connection.bytes_in > heard or connection.closing)
            assert not connection.closing
            assert not driver.ended.done()
            assert len(session.relay.workers) == 1

    loop.run_until_complete(main())


def test_a_slow_reader_holds_back_no_other_and_no_memory_grows(ends: Ends, loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        async with Session(ends, budget_bytes=40 << 20) as session:
            worker, sender = make_worker()
            trainer = make_trainer()
            _, trainer_driver = await session.trainer(trainer)
            _, driver = await session.worker(worker)
            for _ in range(100):
                sender.offer([bytes(1_000_000)], 1)
            driver.wake()
            # Nobody takes anything from the trainer's inbox: it fills, then the relay's budget, and no more.
            await until(lambda: trainer.inbox_held > 3 << 20 and session.relay.flow.queued_bytes > 2 << 20)
            for _ in range(200):
                await asyncio.sleep(0)
                assert session.relay.flow.reserved_bytes <= 40 << 20
            other, other_sender = make_worker("other")
            await session.worker(other)
            await until(lambda: other_sender.active)
            taken = 0

            def drain() -> bool:
                nonlocal taken
                for received in trainer.take():
                    trainer.commit(received)
                    taken += 1
                trainer_driver.wake()
                return taken == 100

            await until(drain)

    loop.run_until_complete(main())


def test_a_connection_that_fails_by_our_own_fault_ends_its_link(
    ends: Ends, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Session(ends) as session:
            worker, _ = make_worker()
            connection, driver = await session.worker(worker)
            other, _ = await session.worker(make_worker("b")[0])
            await until(lambda: connection.state == "open" and other.state == "open")

            def broken(now: float) -> list[bytes | bytearray | memoryview]:
                raise IndexError("a defect")

            session.accepted[0].to_send = broken  # type: ignore[method-assign]
            session.accepted[0].wake()
            await asyncio.wait_for(driver.ended, DEADLINE_S)
            # Over tlspyo each side hears of the end from a process of its own, in either order.
            await until(lambda: len(session.relay.workers) == 1)
            assert not other.closing

    loop.run_until_complete(main())
    assert "a link failed" in caplog.text
