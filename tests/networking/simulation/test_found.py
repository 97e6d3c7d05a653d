"""What the simulation has found, each by itself."""

from __future__ import annotations

from random import Random

from tests.networking.simulation.actors import Trainer, Worker
from tests.networking.simulation.memory import Memory
from tests.networking.simulation.network import Network, Route
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.framing import Kind, cut, message_bytes
from tmrl_core.networking.protocol.messages import (
    SAMPLES_HEAD,
    Credit,
    StreamClosed,
    StreamOpened,
    Welcome,
    control_frame,
    decode_control,
)
from tmrl_core.networking.relay import RelaySettings
from tmrl_core.networking.trainer import TrainerConnection, TrainerState


def world(**settings: int) -> tuple[Network, Worker, Trainer]:
    """A worker and a trainer whose inbox holds one message, on a perfect network."""
    network = Network(Random(0), RelaySettings(budget_bytes=1 << 20, max_message_bytes=1_000, **settings))

    def route() -> Route:
        return Route(latency_s=0.001, jitter_s=0.0, slicing=0.0, window_bytes=1 << 20)

    worker = Worker(network, route(), 0, name="a", queue_bytes=1 << 20, drop_oldest=False)
    trainer = Trainer(network, route(), Memory(durable=True), inbox_bytes=0)
    worker.connect()
    trainer.connect()
    return network, worker, trainer


def settle(network: Network, trainer: Trainer) -> None:
    for _ in range(20):
        network.run(lambda: False, 0.05)
        trainer.work()


def test_an_inbox_that_holds_one_message_takes_the_next_of_any_size() -> None:
    network, worker, trainer = world()
    for size in (60, 1_000, 60, 1_000):
        worker.make(1, size, False)
    settle(network, trainer)
    assert trainer.memory.rows(worker.stream).numbers == [0, 1, 2, 3]


def test_a_request_within_the_standing_credit_is_answered() -> None:
    network, worker, trainer = world(standing_bytes=1_000)
    for size in (350, 750):  # after the first, the relay's limit is 1,400 and the worker has been told of 1,000
        worker.make(1, size, False)
        settle(network, trainer)
    assert trainer.memory.rows(worker.stream).numbers == [0, 1]


def test_memory_of_a_message_is_released_when_its_stream_leaves() -> None:
    state = TrainerState(run="run", name="trainer", peer=bytes(16), inbox_bytes=100_000)
    connection = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    connection.connected(Identity("server"), 0.0)
    frames = cut(Kind.DATA, SAMPLES_HEAD.pack(0, 0, 0, 1, 90_000), [bytes(90_000)], epoch=1, channel=1)
    begun = bytes(next(frames))

    def say(data: bytes | bytearray) -> None:
        offset = 0
        while offset < len(data):
            view = connection.get_buffer()
            n = min(len(view), len(data) - offset)
            view[:n] = data[offset : offset + n]
            connection.received(n, 0.0)
            offset += n

    def credit() -> int:
        frames = connection.to_send(0.0)
        said = [decode_control(memoryview(frame)[12:]) for frame in frames if frame[4] == Kind.CONTROL]
        return max(message.limit for message in said if isinstance(message, Credit))

    say(control_frame(Welcome(1, 1, 1 << 20, 90_000, 1 << 20, 3.0)))
    say(control_frame(StreamOpened(1, b"s" * 16, "a")))
    room = max(100_000, message_bytes(SAMPLES_HEAD, 90_000))
    assert credit() == room
    say(begun)
    say(control_frame(StreamClosed(1, False)))
    assert credit() == room + len(begun)
