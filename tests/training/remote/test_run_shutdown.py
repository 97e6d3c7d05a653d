"""The last samples of a run, before its workers are let go."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from tmrl_core.errors import StorageError
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.protocol.delivery import Received
from tmrl_core.networking.protocol.framing import FIRST, HEADER_BYTES, LAST, Frame, Kind
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD
from tmrl_core.networking.trainer.inbox import TAKEN_BYTES, TAKEN_MESSAGES
from tmrl_core.samples import Chunk
from tmrl_core.samples.codec import encode_message
from tmrl_core.training import ReplayMemory
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.interface import TrainingInterface
from tmrl_core.training.loops.training_loop import INSERT_S, TrainingOffline
from tmrl_core.training.remote.interface import DECODE_S, DECODED_BYTES, RemoteInterface
from tmrl_core.training.remote.run_shutdown import RunShutdown
from tmrl_core.training.value_types import Batch, Metrics

MESSAGES, ROWS = 12, 10


class Idle(TrainingAgent):
    def train(self, batch: Batch) -> Metrics:
        return {}

    def get_actor(self) -> None:
        return None


class Slow(TrainingOffline):
    """Finds at each look at the clock that much time has passed. After each insertion, `on_insert` is called."""

    def __init__(self, on_insert: Callable[[], object]) -> None:
        def memory(nb_steps: int, device: Any) -> ReplayMemory:
            return ReplayMemory(device, nb_steps, memory_size=1)

        super().__init__((gym.spaces.Discrete(2), gym.spaces.Discrete(2)), memory, Idle)
        self.clock = itertools.count(0.0, 2 * INSERT_S).__next__
        self.on_insert = on_insert

    def update_buffer(self, interface: TrainingInterface) -> None:
        super().update_buffer(interface)
        self.on_insert()


def full_inbox(
    make_rows: Callable[..., Chunk], messages: int = MESSAGES, cost: int = TAKEN_BYTES // 4
) -> tuple[RemoteInterface, Callable[[], None]]:
    """Return an interface at which messages of several takes have arrived, and what lets another one arrive."""
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run", cost_of=lambda payload: cost)
    body = encode_message(make_rows(1, 0, 0, ROWS), [])
    numbers = itertools.count()

    def arrive() -> None:
        number = next(numbers)
        stream = bytes([number % 2]) * 16
        head = SAMPLES_HEAD.pack(number, 0, 0, ROWS, len(body))
        frame = Frame(Kind.DATA, FIRST | LAST, 1, 1, bytearray(HEADER_BYTES) + head + body)
        received, _ = link.trainer.receiver(stream).frame(frame, 1 << 30)
        assert isinstance(received, Received)
        link.trainer.inbox.append(received, stream.hex())

    for _ in range(messages):
        arrive()
    return RemoteInterface(link), arrive


def test_all_that_has_arrived_is_inserted_at_the_end_but_nothing_endlessly(make_rows: Callable[..., Chunk]) -> None:
    interface, arrive = full_inbox(make_rows)

    def refill() -> None:
        for _ in range(6):
            arrive()

    training = Slow(refill)
    RunShutdown(training, interface).take_arrived()
    assert all(one.number >= MESSAGES for one in interface.link.trainer.inbox)
    assert training.total_samples >= MESSAGES * ROWS


def test_a_disk_that_accepts_no_samples_does_not_delay_the_end(make_rows: Callable[..., Chunk]) -> None:
    interface, _ = full_inbox(make_rows)

    def keep(received: list[Received]) -> None:
        raise StorageError("the disk is full")

    interface.keep = keep
    calls: list[None] = []
    RunShutdown(Slow(lambda: calls.append(None)), interface).take_arrived()
    assert len(calls) == 2, "what was taken before is stored first"
    assert interface.link.trainer.inbox


def test_messages_that_take_long_to_decode_are_taken_one_at_a_time(make_rows: Callable[..., Chunk]) -> None:
    interface, _ = full_inbox(make_rows, cost=2 * DECODED_BYTES)
    interface._clock = itertools.count(0.0, 2 * DECODE_S).__next__  # decoding takes that long
    taken = []
    while interface.link.trainer.inbox:
        taken.append(len(interface.receive()))
        assert interface.has_more == bool(interface.link.trainer.inbox)
    assert taken == [1] * MESSAGES
    interface, _ = full_inbox(make_rows, cost=2 * DECODED_BYTES)
    interface._clock = lambda: 0.0
    assert len(interface.receive()) == MESSAGES


def test_messages_that_arrive_after_a_take_are_not_more_of_it(make_rows: Callable[..., Chunk]) -> None:
    interface, arrive = full_inbox(make_rows)
    left = []
    for _ in range(3):
        interface.receive()
        arrive()
        left.append(interface.has_more)
    assert left == [True, True, True]
    while interface.has_more:
        interface.receive()
    arrive()
    assert not interface.has_more


def test_tiny_messages_do_not_stop_training_for_longer_than_large_ones(make_rows: Callable[..., Chunk]) -> None:
    interface, _ = full_inbox(make_rows, 3 * TAKEN_MESSAGES, cost=1)
    training = Slow(lambda: None)
    training.update_buffer(interface)
    assert training.total_samples == TAKEN_MESSAGES * ROWS
    assert interface.has_more
    training.clock = lambda: 0.0
    training.update_buffer(interface)
    assert training.total_samples == 3 * TAKEN_MESSAGES * ROWS
    assert not interface.has_more
