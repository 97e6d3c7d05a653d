"""Where frames lie: what both kinds promise, and which frames observations consist of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.training.memories.disk_rows import DiskRows
from tmrl_core.training.memories.frame_store import Frames, FrameStore, RamFrames, StackFormat, frames_held
from tmrl_core.training.memories.layout import Leaf, TreeSpec

CAPACITY, STACK = 64, 3
SHAPE, DTYPE = (2, 5), np.dtype(np.uint16)


@pytest.fixture(params=["ram", "disk", "disk, not committed"])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The frames, and what puts them where they stay."""
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", 600)
    if request.param == "ram":
        yield RamFrames(CAPACITY, STACK, SHAPE, DTYPE), lambda: None
        return
    rows = DiskRows(CAPACITY, tmp_path)
    rows.allocate_frames(StackFormat(STACK, TreeSpec(None, (Leaf("", DTYPE, (STACK, *SHAPE)),))), 1)
    yield rows.frames[0], (lambda: rows.commit({})) if request.param == "disk" else lambda: None
    rows.close()


def frames_of(numbers: Any) -> Any:
    return np.broadcast_to(np.asarray(numbers)[:, None, None], (len(numbers), *SHAPE)).astype(DTYPE)


def test_the_newest_frames_come_back_by_their_numbers(made: Any) -> None:
    frames, commit = made
    generator = np.random.default_rng(0)
    held = frames_held(CAPACITY, STACK)
    assert (frames.written, frames.oldest, frames.size) == (0, 0, held)
    while frames.written < 3 * held:
        count = int(generator.integers(0, 9))
        frames.put(frames_of(np.arange(frames.written, frames.written + count)))
        commit()
        assert frames.oldest == max(0, frames.written - held)
        numbers = generator.integers(frames.oldest, frames.written, 20) if frames.written else np.arange(0)
        found = frames.take(numbers)
        np.testing.assert_array_equal(found, frames_of(numbers))
        assert (found.dtype, found.shape[1:]) == (DTYPE, SHAPE)


def test_frames_of_another_memory_are_loaded() -> None:
    frames = RamFrames(CAPACITY, STACK, SHAPE, DTYPE)
    frames.load(500, frames_of(np.arange(460, 500)))
    frames.put(frames_of([500]))
    assert frames.written == 501
    np.testing.assert_array_equal(frames.take(np.array([460, 499, 500])), frames_of([460, 499, 500]))


def test_each_frame_of_a_run_is_stored_once(made: Any) -> None:
    frames: Frames = made[0]
    store = FrameStore(CAPACITY, STACK, frames)
    padded = frames_of([7, 7, 7, 8, 9])  # as after a reset
    stacks = np.stack([padded[i : i + STACK] for i in range(3)])
    first = store.store(stacks[:1], None)
    assert first.tolist() == [[0, 0, 0]]
    assert store.store(stacks[1:2], first[0]).tolist() == [[0, 0, 1]]
    assert store.store(stacks[2:], np.array([0, 0, 1])).tolist() == [[0, 1, 2]]
    assert store.written == 3
    np.testing.assert_array_equal(store.frames(np.array([[0, 0, 1], [0, 1, 2]])), stacks[1:])
    # What does not continue is stored for itself.
    assert store.store(stacks[:1], np.array([0, 1, 2])).tolist() == [[3, 3, 3]]
    made[1]()
    np.testing.assert_array_equal(store.frames(np.array([0, 2, 3])), frames_of([7, 9, 7]))


def test_transitions_are_removed_with_their_frames(made: Any) -> None:
    frames, commit = made
    store = FrameStore(CAPACITY, STACK, frames)
    for row in range(CAPACITY):
        store.note(row, row + 1, store.floor())
        frames.put(frames_of([0, 0]))
        commit()
        first = store.first_row(0, row + 1)
        needs = store.state_dict()["needs"][: row + 1]
        assert (needs[first:] >= frames.oldest).all()
        assert first == 0 or needs[first - 1] < frames.oldest
    assert 0 < first < CAPACITY


def test_frames_that_a_checkpoint_has_yet_to_write_are_not_overwritten() -> None:
    frames = RamFrames(CAPACITY, STACK, SHAPE, DTYPE)
    frames.put(frames_of(np.arange(frames.size)))
    lease = frames.lease_rows(0)
    writer = threading.Thread(target=frames.put, args=(frames_of([7, 7]),))
    writer.start()
    lease.advance(1)
    writer.join(0.05)
    assert writer.is_alive()
    assert frames.written == frames.size
    lease.advance(2)
    writer.join(10)
    assert frames.written == frames.size + 2


def test_frames_of_another_shape_are_refused() -> None:
    frames, other = (RamFrames(CAPACITY, STACK, shape, DTYPE) for shape in (SHAPE, (5, 2)))
    other.put(np.zeros((3, 5, 2), DTYPE))
    with pytest.raises(ValueError, match=r"of shape \[5, 2\] do not fit this memory"):
        frames.load_state_dict(other.state_dict(), [ring[:3] for ring in other.row_arrays])
    assert frames.written == 0
