"""Dict observations come out of every memory with their keys in the order in which the environment returned them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.stacked_writer import SPACES
from tmrl_core.samples import Chunk
from tmrl_core.training import FrameStackMemory, GenericTorchMemory, ReplayMemory, TrainingOffline
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.loops.lockstep_round import Round
from tmrl_core.training.loops.round_memory import RoundMemory
from tmrl_core.training.memories.layout import spec_of
from tmrl_core.training.memories.sequences import SequenceMemory

Rows = Callable[..., Chunk]
UNSORTED: list[Any] = [("zoom", []), ("arm", [("y", []), ("b", [])]), ("map", [])]
STACK = 2


def observations(rows: int) -> Any:
    steps = np.arange(rows, dtype=np.float32)
    images = np.arange(rows * STACK * 4, dtype=np.uint8).reshape(rows, STACK, 4)
    return {"zoom": steps, "arm": ({"y": steps + 100, "b": steps[:, None] + 200},), "map": images}


def turned(rows: int) -> Any:
    """The same in another order."""
    found = observations(rows)
    (arm,) = found["arm"]
    return {"map": found["map"], "arm": ({"b": arm["b"], "y": arm["y"]},), "zoom": found["zoom"]}


def keys(tree: Any) -> Any:
    """The keys of nested dicts, in their order."""
    if isinstance(tree, tuple):
        return keys(tree[0])
    return [(key, keys(item)) for key, item in tree.items()] if isinstance(tree, dict) else []


def chunk_of(make_rows: Rows, stream: int, observation: Any = observations) -> Chunk:
    chunk = make_rows(stream, 0, 0, 8, observation=observation)
    chunk.action = {"throttle": chunk.action, "brake": chunk.action}
    return chunk


def check(batch: Any) -> None:
    prev_obs, act, rew, obs, *_ = batch
    assert keys(prev_obs) == keys(obs) == UNSORTED
    assert [*act] == ["throttle", "brake"]
    for index in range(len(rew)):
        step = float(obs["zoom"][index])
        assert float(obs["arm"][0]["y"][index]) == step + 100
        assert float(obs["arm"][0]["b"][index, 0]) == step + 200
        assert int(obs["map"][index, 0, 0]) == 8 * step


KINDS: dict[str, Any] = {
    "uniform": (ReplayMemory, {}),
    "blocks": (ReplayMemory, {"nb_steps": 100}),
    "prioritized": (ReplayMemory, {"priority": {}}),
    "n steps": (ReplayMemory, {"n_step": 3}),
    "preprocessed": (ReplayMemory, {"sample_preprocessor": lambda *transition: transition}),
    "frame stacks": (FrameStackMemory, {"frame_stack": STACK}),
    "frame stacks, n steps": (FrameStackMemory, {"frame_stack": STACK, "n_step": 2, "priority": {}}),
}


@pytest.mark.parametrize("storage", ["ram", "disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_have_the_environment_s_order(tmp_path: Path, make_rows: Rows, kind: str, storage: str) -> None:
    cls, kwargs = KINDS[kind]
    place = {"storage": "disk", "folder": tmp_path} if storage == "disk" else {}
    memory = cls(memory_size=64, batch_size=4, seed=1, **{**kwargs, **place})
    memory.append_chunk(chunk_of(make_rows, 1))
    memory.append_chunk(chunk_of(make_rows, 2, turned))
    for _ in range(3):
        check(memory.sample())
    assert keys(memory.get_transition(0)[3]) == UNSORTED
    memory.close()
    if storage == "disk":
        reopened = cls(memory_size=64, batch_size=4, seed=1, **{**kwargs, **place})
        check(reopened.sample())
        reopened.append_chunk(chunk_of(make_rows, 3, turned))
        check(reopened.sample())
        reopened.close()


def test_a_generic_memory_keeps_it_too(make_rows: Rows, make_buffer: Any) -> None:
    memory = GenericTorchMemory(batch_size=4)
    memory.append_buffer(make_buffer([chunk_of(make_rows, 1)]))
    check(memory.sample())


def test_lockstep_batches_have_it(make_rows: Rows, make_buffer: Any) -> None:
    memory = RoundMemory()
    round_ = Round(1, (1, 1), amount=16, grace_s=5.0)
    memory.begin(round_)
    round_.poll([(bytes([number]) * 16, str(number)) for number in (1, 2)], 0.0, lambda stream, what: False)
    assert memory.append(make_buffer([chunk_of(make_rows, 1)])) == []
    assert memory.append(make_buffer([chunk_of(make_rows, 2, turned)])) == []
    check(memory.batch())


class Idle(TrainingAgent):
    def train(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_actor(self) -> Any:
        return None


@pytest.mark.parametrize("kind", ["uniform", "n steps", "frame stacks"])
def test_a_restored_checkpoint_keeps_it(tmp_path: Path, make_rows: Rows, kind: str) -> None:
    cls, kwargs = KINDS[kind]

    def make() -> TrainingOffline:
        def memory(nb_steps: Any, device: Any) -> Any:
            return cls(memory_size=64, batch_size=4, seed=1, **kwargs)

        return TrainingOffline(SPACES, memory, Idle, epochs=2, rounds=1, steps=1, device="cpu")

    training = make()
    training.memory.append_chunk(chunk_of(make_rows, 1))
    training.save(tmp_path / "checkpoint")
    restored = make()
    restored.load(tmp_path / "checkpoint")
    check(restored.memory.sample())
    restored.memory.append_chunk(chunk_of(make_rows, 2, turned))
    check(restored.memory.sample())


def test_a_state_with_an_impossible_order_is_refused(make_rows: Rows) -> None:
    memory = ReplayMemory(memory_size=64, batch_size=4, seed=1)
    memory.append_chunk(chunk_of(make_rows, 1))
    state = memory.state_dict()
    state["layout"]["observation"]["shape"] = ["dict", {"zoom": 0, "map": 2}]
    with pytest.raises(ValueError, match="a structure that is not one of 4 leaves"):
        ReplayMemory(memory_size=64, batch_size=4, seed=1).load_state_dict(state, memory.row_arrays)


@pytest.mark.parametrize("kind", ["replay", "sequences", "lockstep"])
def test_keys_without_an_order_are_refused(make_rows: Rows, make_buffer: Any, kind: str) -> None:
    """A worker may send them wherever neither spaces nor policy define the structure."""
    mixed: Any = dict.fromkeys((1, "a", None), np.zeros((4, 2), np.float32))
    good, bad = make_rows(1, 0, 0, 4), make_rows(2, 0, 0, 4)
    memory: Any = RoundMemory() if kind == "lockstep" else ReplayMemory()
    if kind == "sequences":
        memory = SequenceMemory(length=2)
        good.extras, bad.extras = {"state.h": np.zeros((4, 2), np.float32)}, {"state.h": mixed}
    else:
        bad.observation = mixed
    assert memory.append(make_buffer([good])) == []
    ((refused, why),) = memory.append(make_buffer([bad]))
    assert refused is bad
    assert "keys without an order, of the types NoneType, int, str" in str(why)


def test_samples_in_another_key_order_are_logged_once(make_rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    memory = ReplayMemory(memory_size=64, batch_size=4, seed=1)
    with caplog.at_level(logging.WARNING):
        memory.append_chunk(chunk_of(make_rows, 1))
        assert not caplog.records
        memory.append_chunk(chunk_of(make_rows, 2, turned))
        memory.append_chunk(chunk_of(make_rows, 3, turned))
    (record,) = caplog.records
    assert "another order ({map, arm: ({b, y}), zoom})" in record.getMessage()
    assert "({zoom, arm: ({y, b}), map})" in record.getMessage()


def test_samples_of_another_structure_before_the_first_transition_leave_no_order_behind(make_rows: Rows) -> None:
    memory = ReplayMemory(memory_size=64, batch_size=4, seed=1)

    def other(rows: int) -> Any:
        return {"odd": np.zeros(rows, np.float32), "even": np.zeros(rows, np.float32)}

    memory.append_chunk(make_rows(1, 0, 0, 1, observation=other))
    memory.append_chunk(chunk_of(make_rows, 2))
    check(memory.sample())


def test_an_order_of_a_structure_that_is_nested_too_deeply_is_refused() -> None:
    shape: Any = 0
    for _ in range(2000):
        shape = ["tuple", [shape]]
    with pytest.raises(ValueError, match="nested too deeply"):
        spec_of({"shape": shape, "leaves": [["", "<f4", [1]]]})
