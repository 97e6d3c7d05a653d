from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.checkpoints.test_checkpoint_folder import SPACES, make_training
from tmrl_core.samples import Buffer
from tmrl_core.testing.random_samples import buffer_of, random_chunk
from tmrl_core.training import CheckpointStore
from tmrl_core.training.memories.generic import GenericTorchMemory
from tmrl_core.training.memories.sample_columns import SampleColumns
from tmrl_core.training.memories.trees import flatten


class Lists(GenericTorchMemory):
    """The same memory with lists, as derived classes with an `append_buffer` of their own have them."""

    def append_buffer(self, buffer: Buffer) -> None:
        super().append_buffer(buffer)


def observation(kind: str, rng: np.random.Generator) -> Any:
    number = rng.normal()
    made: dict[str, Callable[[], Any]] = {
        "vector": lambda: rng.normal(size=3).astype(np.float32),
        "doubles": lambda: rng.normal(size=(2, 2)),
        "python": lambda: (float(number), int(number * 9), bool(number > 0)),
        "scalars": lambda: {"z": np.float64(number), "a": np.float32(number), "b": np.int64(number * 9)},
        "0-d": lambda: np.array(number),
        "nested": lambda: {"image": rng.integers(0, 256, (4, 5), np.uint8), "more": (np.zeros(1), {"x": np.ones(2)})},
    }
    return made[kind]()


def buffers(kind: str, episodes: int, rng: np.random.Generator, ends: int = 7) -> list[Buffer]:
    """Messages of two streams in turn, cut at random; some are lost."""
    chunks: list[list[Any]] = [[], []]
    for stream, found in enumerate(chunks):
        buffer = Buffer(maxlen=None)
        for episode in range(episodes):
            buffer.start_episode(episode, (1, 1))
            buffer.append_sample((None, observation(kind, rng), 0.0, False, False, {}))
            for step in range(1, ends + 1):
                info = {"step": step} if rng.random() < 0.3 else {}
                action = rng.normal(size=2).astype(np.float32)
                buffer.append_sample((action, observation(kind, rng), float(step), step == ends, False, info))
                if rng.random() < 0.3:
                    found += [(stream, chunk) for chunk in buffer.take()[0]]
        found += [(stream, chunk) for chunk in buffer.take()[0]]
    made = []
    while any(chunks):
        stream = int(rng.integers(2)) if all(chunks) else int(not chunks[0])
        number, chunk = chunks[stream].pop(0)
        chunk.stream = bytes([number + 1]) * 16
        if rng.random() < 0.95:
            made.append(buffer_of(chunk))
    return made


def assert_same_values(found: Any, expected: Any) -> None:
    left, right = flatten(found), flatten(expected)
    assert [path for path, _ in left] == [path for path, _ in right]
    for (_, one), (_, other) in zip(left, right, strict=True):
        assert type(one) is type(other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
        assert np.array_equal(one, other)


def assert_same(found: GenericTorchMemory, expected: GenericTorchMemory) -> None:
    assert len(found) == len(expected)
    assert [len(values) for values in found.data] == [len(values) for values in expected.data]
    for values, others in zip(found.data, expected.data, strict=True):
        assert_same_values(tuple(values), tuple(others))
    for item in range(len(found)):
        assert_same_values(found.get_transition(item)[:6], expected.get_transition(item)[:6])
        assert found.get_transition(item)[6] == expected.get_transition(item)[6]
    if len(found):
        for batch, other in zip(found, expected, strict=True):
            for one, two in zip(flatten(batch), flatten(other), strict=True):
                assert one[0] == two[0]
                assert one[1].dtype == two[1].dtype
                assert torch.equal(one[1], two[1])


KINDS = ["vector", "doubles", "python", "scalars", "0-d", "nested"]


def pair(**kwargs: Any) -> tuple[GenericTorchMemory, Lists]:
    torch.manual_seed(3)
    columns = GenericTorchMemory(batch_size=8, nb_steps=3, **kwargs)
    torch.manual_seed(3)
    return columns, Lists(batch_size=8, nb_steps=3, **kwargs)


@pytest.mark.parametrize("memory_size", [5, 40, 10_000])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_lists_hold_the_same(kind: str, memory_size: int) -> None:
    columns, lists = pair(memory_size=memory_size)
    for number, buffer in enumerate(buffers(kind, 9, np.random.default_rng(memory_size))):
        columns.append(buffer)
        lists.append(buffer)
        if number % 7 == 0:
            assert_same(columns, lists)
    assert_same(columns, lists)
    assert isinstance(columns.data, SampleColumns)
    assert isinstance(lists.data, list)


@pytest.mark.parametrize(("first", "second"), [("vector", "doubles"), ("scalars", "python"), ("nested", "vector")])
def test_another_structure_makes_lists_of_columns(first: str, second: str) -> None:
    columns, lists = pair(memory_size=60)
    rng = np.random.default_rng(0)
    for buffer in [*buffers(first, 4, rng), *buffers(second, 2, rng)]:
        columns.append(buffer)
        lists.append(buffer)
    assert isinstance(columns.data, list)
    assert len(columns) == len(lists)
    for values, others in zip(columns.data, lists.data, strict=True):
        assert_same_values(tuple(values), tuple(others))


def test_a_message_longer_than_the_memory_leaves_its_newest_samples() -> None:
    columns, lists = pair(memory_size=20)
    for memory in (columns, lists):
        memory.append(buffer_of(random_chunk(rows=100)))
    assert_same(columns, lists)
    assert len(columns.data[0]) == 20


def test_texts_are_lists_from_the_beginning() -> None:
    memory = GenericTorchMemory()
    buffer = Buffer(maxlen=None)
    for step in range(3):
        buffer.append_sample((np.ones(1), "left", float(step), False, False, {}))
    memory.append(buffer)
    assert isinstance(memory.data, list)
    assert memory.get_transition(1)[3] == "left"


def test_a_preprocessor_and_a_derived_class_see_each_transition() -> None:
    class Doubled(GenericTorchMemory):
        def get_transition(self, item: int) -> Any:
            prev_obs, act, rew, *rest = super().get_transition(item)
            return prev_obs, act, np.float32(2 * rew), *rest

    def negative(prev_obs: Any, act: Any, rew: Any, *rest: Any) -> Any:
        return prev_obs, act, -rew, *rest

    for memory, sign in (
        (Doubled(batch_size=4), 2),
        (GenericTorchMemory(batch_size=4, sample_preprocessor=negative), -1),
    ):
        memory.append(buffer_of(random_chunk(rows=2)))
        assert memory.sample()[2].tolist() == [sign] * 4
        assert isinstance(memory.data, SampleColumns)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def filled(training: Any, count: int, start: int = 0) -> None:
    for episode in range(start, start + count):
        training.memory.append(buffer_of(random_chunk(*SPACES, episode=episode)))


def test_later_checkpoints_write_new_rows_only(tmp_path: Path) -> None:
    training = make_training(GenericTorchMemory, memory_size=10_000)
    store = CheckpointStore(tmp_path)
    written = []
    for start in (0, 100, 110):
        filled(training, 100 if start == 0 else 10, start)
        store.save(training, wait=True)
        written.append(sum(path.stat().st_size for path in tmp_path.rglob("*.seg")))
    assert written[1] - written[0] < 0.2 * written[0]
    resumed = store.restore(partial(make_training, GenericTorchMemory, memory_size=10_000))
    assert resumed is not None
    assert_same(resumed.memory, training.memory)


def test_rows_that_are_written_are_not_overwritten_before() -> None:
    memory = GenericTorchMemory(memory_size=64)
    columns = memory.data
    for episode in range(8):
        memory.append(buffer_of(random_chunk(episode=episode)))
    rings, start, stop = columns.row_arrays, columns.first, columns.written
    kept = [ring.copy() for ring in rings]
    lease = columns.lease_rows(0)
    lease.release()  # what its reader has read may be overwritten
    memory.append(buffer_of(random_chunk(episode=9)))
    assert (lease.start, stop - start) == (stop, 64)
    assert not all(np.array_equal(a, b) for a, b in zip(kept, columns.row_arrays, strict=True))


def test_growing_leaves_the_rows_of_a_reader_alone() -> None:
    memory = GenericTorchMemory(memory_size=10_000)
    for episode in range(100):
        memory.append(buffer_of(random_chunk(episode=episode)))
    columns = memory.data
    rings = columns.row_arrays
    kept = [ring[: columns.written].copy() for ring in rings]
    columns.lease_rows(0)  # never advanced: growing does not wait
    for episode in range(100, 300):
        memory.append(buffer_of(random_chunk(episode=episode)))
    assert all(np.array_equal(ring[:1000], old) for ring, old in zip(rings, kept, strict=True))
    assert len(columns) == 3000


@pytest.mark.parametrize("memory_size", [30, 60, 5_000])
def test_another_capacity_keeps_the_newest_samples(tmp_path: Path, memory_size: int) -> None:
    training = make_training(GenericTorchMemory, memory_size=60)
    filled(training, 10)
    training.save(tmp_path / "saved")
    resumed = make_training(GenericTorchMemory, memory_size=memory_size)
    resumed.load(tmp_path / "saved")
    for one in (training, resumed):
        filled(one, 1, 10)
    found, expected = ([obs.tolist() for obs in one.memory.data[1]] for one in (resumed, training))
    assert len(found) == {30: 30, 60: 60, 5_000: 70}[memory_size]
    assert found[-60:] == expected[-len(found) :]


def test_a_checkpoint_before_the_first_action_can_be_loaded(tmp_path: Path) -> None:
    training = make_training(GenericTorchMemory)
    buffer = Buffer(maxlen=None)
    buffer.start_episode(0, (1, 1))
    buffer.append_sample((None, np.zeros(3, np.float32), 0.0, False, False, {"seed": 3}))
    training.memory.append(buffer)
    training.save(tmp_path / "saved")
    resumed = make_training(GenericTorchMemory)
    resumed.load(tmp_path / "saved")
    assert resumed.memory.data[1][0].tolist() == [0, 0, 0]
    assert resumed.memory.data[5][0] == {"seed": 3}
    for one in (training, resumed):
        filled(one, 2)
    assert_same(resumed.memory, training.memory)


def test_a_checkpoint_of_lists_is_loaded_as_lists(tmp_path: Path) -> None:
    training = make_training(GenericTorchMemory)
    columns: Any = training.memory
    filled(training, 2)
    columns._use_lists(columns.data)
    training.save(tmp_path / "saved")
    resumed = make_training(GenericTorchMemory)
    resumed.load(tmp_path / "saved")
    assert isinstance(resumed.memory.data, list)
    assert_same(resumed.memory, training.memory)


def test_damaged_columns_are_refused() -> None:
    memory = GenericTorchMemory(memory_size=60)
    memory.append(buffer_of(random_chunk()))
    columns = memory.data
    state, rows = columns.state_dict(), columns.rows(columns.first, columns.written)
    SampleColumns(60).load_state_dict(state, rows)
    fields = state["fields"]
    for bad, found in (({}, rows[1:]), ({"fields": [None, *fields[1:]]}, rows), ({"fields": fields[1:]}, rows)):
        with pytest.raises(ValueError, match="do not fit the saved columns"):
            SampleColumns(60).load_state_dict({**state, **bad}, found)
    with pytest.raises(ValueError, match="a column of the kind 'text'"):
        SampleColumns(60).load_state_dict({**state, "fields": [[np.zeros((0, 1)), "text"], *fields[1:]]}, rows)
