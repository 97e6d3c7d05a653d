"""Promises of a transport, as tests for pytest to collect.

class TestMyTransport(TransportSuite):
    def make_transport(self, role):
        return MyTransport(server=role == "server")
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from tmrl_core.errors import NetworkError, PortInUseError
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.messages import Blob, Directive, PolicyUpdate
from tmrl_core.networking.relay import Relay, RelaySettings
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.transports.base import Driver, Listener, Transport, new_event_loop
from tmrl_core.networking.worker import WorkerConnection, WorkerState

Suite = TypeVar("Suite", bound="TransportSuite")


def in_loop(test: Callable[[Suite], Coroutine[Any, Any, None]]) -> Callable[[Suite], None]:
    """Make a test of a coroutine, which runs in an event loop of its own."""

    @functools.wraps(test)
    def run(suite: Suite) -> None:
        suite.run(test(suite))

    return run


class TransportSuite:
    """Subclass it in a test file and implement `make_transport`."""

    host = "127.0.0.1"
    """Host that is listened on and dialled."""
    deadline_s = 20.0
    """Time limit of a test's waits, in seconds."""

    def make_transport(self, role: Literal["server", "worker", "trainer"]) -> Transport:
        """Make the transport of one side: the Server's listens, the others dial it."""
        raise NotImplementedError("implement make_transport")

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """Make the event loop of a test."""
        return new_event_loop()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a new event loop."""
        loop = self.make_loop()
        try:
            loop.run_until_complete(main)
        finally:
            loop.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop run until the condition holds."""
        deadline = asyncio.get_running_loop().time() + self.deadline_s
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
            await asyncio.sleep(0.001)

    @in_loop
    async def test_samples_of_all_sizes_arrive_in_order_and_intact(self) -> None:
        """Messages from zero bytes to three megabytes arrive unchanged."""
        async with Session(self) as session:
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
                    trainer.acknowledge(received)
                trainer_driver.wake()
                return len(got) == len(bodies) * 3 and sender.samples_acked == len(got)

            await self.until(collect)
            assert got == bodies * 3

    @in_loop
    async def test_weights_and_directives_go_the_other_way(self) -> None:
        """Versions and directives of a trainer reach a worker."""
        async with Session(self) as session:
            worker, sender = make_worker()
            trainer = make_trainer()
            connection, driver = await session.trainer(trainer)
            await session.worker(worker)
            for i in range(20):
                trainer.publish(PolicyUpdate((0, 0), {"policy": Blob("text", bytes([i]) * 500_000)}))
                driver.wake()
            await self.until(lambda: worker.policy_version == (1, 20))
            await self.until(lambda: sender.stream in trainer.members)
            trainer.directives[sender.stream] = Directive(revision=1, pause=True)
            connection.direct(sender.stream)
            await self.until(lambda: worker.directive.pause)

    @in_loop
    async def test_closing_one_side_in_order_is_noticed_by_the_other(self) -> None:
        """The Server records an ordered end, not a failure."""
        async with Session(self) as session:
            worker, _ = make_worker()
            connection, driver = await session.worker(worker)
            await self.until(lambda: len(session.relay.workers) == 1)
            connection.close()
            driver.wake()
            await asyncio.wait_for(driver.ended, self.deadline_s)
            await self.until(lambda: session.relay.workers == {})
            assert session.accepted[0].reason is None, "it was closed in order"

    @in_loop
    async def test_aborting_one_side_is_noticed_by_the_other(self) -> None:
        """Abort a link as a killed process does."""
        async with Session(self) as session:
            worker, _ = make_worker()
            _, driver = await session.worker(worker)
            await self.until(lambda: len(session.relay.workers) == 1)
            driver.abort()
            await self.until(lambda: session.relay.workers == {})

    @in_loop
    async def test_closing_the_listener_ends_every_link(self) -> None:
        """When the Server closes, the clients' drivers end too."""
        drivers = []
        async with Session(self) as session:
            for name in "abc":
                _, driver = await session.worker(make_worker(name)[0])
                drivers.append(driver)
            await self.until(lambda: len(session.relay.workers) == 3)
        for driver in drivers:
            await asyncio.wait_for(driver.ended, self.deadline_s)

    @in_loop
    async def test_dialling_a_port_without_listener_is_an_error(self) -> None:
        """The error for a port without a listener names the port."""
        async with Session(self) as session:
            port = session.listener.port
        connection = WorkerConnection(make_worker()[0], silent_s=10, heartbeat_s=3)
        dialling = self.make_transport("worker").dial(self.host, port, connection, 5.0)
        assert str(port) in await _error_of(dialling)

    @in_loop
    async def test_a_port_in_use_is_an_error(self) -> None:
        """The error for a used port is a PortInUseError that names the port."""
        async with Session(self) as session:
            again = session.server.serve(self.host, session.listener.port, session.accept)
            error = await _error_of(again, PortInUseError)
            assert str(session.listener.port) in error
            assert "in use" in error

    @in_loop
    async def test_the_closing_message_arrives_before_the_link_ends(self) -> None:
        """A client that is refused learns the reason."""
        async with Session(self, max_workers=1) as session:
            await session.worker(make_worker("first")[0])
            await self.until(lambda: len(session.relay.workers) == 1)
            refused, driver = await session.worker(make_worker("second")[0])
            await asyncio.wait_for(driver.ended, self.deadline_s)
            assert "max_workers" in str(refused.reason)

    @in_loop
    async def test_heartbeats_keep_an_idle_link_and_silence_ends_one(self) -> None:
        """The driver passes the time to its connection."""
        async with Session(self, silent_s=1.0, heartbeat_s=0.05) as session:
            alive, driver = await session.worker(make_worker("alive")[0], silent_s=1.0, heartbeat_s=0.05)
            mute, _ = await session.worker(make_worker("mute")[0], silent_s=60, heartbeat_s=60)
            await self.until(lambda: mute.closing)
            assert mute.state == "open", "it was let in before it was silent"
            await self.until(lambda: len(session.relay.workers) == 1)
            assert not alive.closing
            assert not driver.ended.done()

    @in_loop
    async def test_a_trainer_that_falls_silent_at_once_is_noticed(self) -> None:
        """The deadline of a silent peer begins with the link."""
        async with Session(self, silent_s=0.4, heartbeat_s=0.05) as session:
            mute, _ = await session.trainer(make_trainer(), silent_s=60, heartbeat_s=60)
            await self.until(lambda: mute.closing)
            assert mute.state == "open", "it was let in before it was silent"
            await self.until(lambda: session.relay.trainer is None)

    @in_loop
    async def test_a_paused_process_takes_no_peer_for_silent(self) -> None:
        """A suspended laptop, or a process that is stopped or gets no processor time."""
        async with Session(self, silent_s=0.6, heartbeat_s=0.1) as session:
            connection, driver = await session.worker(make_worker()[0], silent_s=0.6, heartbeat_s=0.1)
            await self.until(lambda: len(session.relay.workers) == 1)
            time.sleep(1.0)  # like a suspended laptop, or a process that is stopped or gets no processor time
            heard = connection.bytes_in
            await self.until(lambda: connection.bytes_in > heard or connection.closing)
            assert not connection.closing
            assert not driver.ended.done()
            assert len(session.relay.workers) == 1

    @in_loop
    async def test_a_slow_reader_holds_back_no_other_and_no_memory_grows(self) -> None:
        """With a slow reader, the relay's budget is respected, and all samples arrive in the end."""
        async with Session(self, budget_bytes=40 << 20) as session:
            worker, sender = make_worker()
            trainer = make_trainer()
            _, trainer_driver = await session.trainer(trainer)
            _, driver = await session.worker(worker)
            for _ in range(60):  # more than budget and inbox hold together
                sender.offer([bytes(1_000_000)], 1)
            driver.wake()
            # The trainer's inbox is not read. First the inbox fills, then the relay's budget.
            await self.until(lambda: trainer.inbox.held_bytes > 3 << 20 and session.relay.flow.queued_bytes > 2 << 20)
            for _ in range(200):
                await asyncio.sleep(0)
                assert session.relay.flow.reserved_bytes <= 40 << 20
            other, other_sender = make_worker("other")
            await session.worker(other)
            await self.until(lambda: other_sender.active)
            taken = 0

            def drain() -> bool:
                nonlocal taken
                for received in trainer.take():
                    trainer.acknowledge(received)
                    taken += 1
                trainer_driver.wake()
                return taken == 60

            await self.until(drain)

    def test_a_connection_that_fails_by_our_own_fault_ends_its_link(self, caplog: Any) -> None:
        """A defect in one connection ends only its own link."""

        async def main() -> None:
            async with Session(self) as session:
                worker, _ = make_worker()
                connection, driver = await session.worker(worker)
                other, _ = await session.worker(make_worker("b")[0])
                await self.until(lambda: connection.state == "open" and other.state == "open")

                def broken(now: float) -> list[bytes | bytearray | memoryview]:
                    raise IndexError("a defect")

                session.accepted[0].to_send = broken  # type: ignore[method-assign]
                session.accepted[0].wake()
                await asyncio.wait_for(driver.ended, self.deadline_s)
                # A transport with a process of its own notifies each side of the end, in either order.
                await self.until(lambda: len(session.relay.workers) == 1)
                assert not other.closing

        self.run(main())
        assert "a link failed" in caplog.text


def make_worker(name: str = "a") -> tuple[WorkerState, StreamSender]:
    """Make the state of a worker with one stream, and the stream."""
    state = WorkerState(run="run", name=name, peer=name.encode().ljust(16, b"."))
    sender = StreamSender(name.encode().rjust(16, b"."), queue_bytes=1 << 30, drop_oldest=False)
    state.add_stream(sender, b"")
    return state, sender


def make_trainer() -> TrainerState:
    """Make the state of a trainer with an inbox of 4 MB."""
    return TrainerState(run="run", name="trainer", peer=b"t" * 16, inbox_bytes=4 << 20)


async def _error_of(work: Coroutine[Any, Any, object], kind: type[NetworkError] = NetworkError) -> str:
    try:
        await work
    except kind as error:
        return str(error)
    raise AssertionError(f"a {kind.__name__} was expected")


class Session:
    """A listening relay, with a method to dial it."""

    def __init__(self, suite: TransportSuite, **settings: float) -> None:
        self.suite = suite
        self.server = suite.make_transport("server")
        self.relay = Relay(RelaySettings(**settings))  # type: ignore[arg-type]
        self.accepted: list[Connection] = []
        self.drivers: list[Driver] = []

    def accept(self) -> Connection:
        """Make the Server's end of a link."""
        connection = self.relay.connection()
        self.accepted.append(connection)
        return connection

    async def __aenter__(self) -> Session:
        self.listener: Listener = await self.server.serve(self.suite.host, 0, self.accept)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.listener.close()
        for driver in self.drivers:
            driver.abort()
            await asyncio.wait_for(driver.ended, self.suite.deadline_s)
        await asyncio.sleep(0)  # the event loop closes the sockets in its next iteration

    async def worker(
        self, state: WorkerState, silent_s: float = 10, heartbeat_s: float = 3
    ) -> tuple[WorkerConnection, Driver]:
        """Connect a worker."""
        connection = WorkerConnection(state, silent_s=silent_s, heartbeat_s=heartbeat_s)
        return connection, await self._dial("worker", connection)

    async def trainer(
        self, state: TrainerState, silent_s: float = 10, heartbeat_s: float = 3
    ) -> tuple[TrainerConnection, Driver]:
        """Connect a trainer."""
        connection = TrainerConnection(state, silent_s=silent_s, heartbeat_s=heartbeat_s)
        return connection, await self._dial("trainer", connection)

    async def _dial(self, role: Literal["worker", "trainer"], connection: Connection) -> Driver:
        driver = await self.suite.make_transport(role).dial(self.suite.host, self.listener.port, connection, 10.0)
        self.drivers.append(driver)
        return driver
