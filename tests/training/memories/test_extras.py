"""Extras that a worker stored with its samples, in a columnar memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Chunk
from tmrl_core.training import FrameStackMemory, ReplayMemory
from tmrl_core.training.memories.layout import RowLayout

STACK = 2


@pytest.fixture(params=["ram", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def made(cls: Any = ReplayMemory, **settings: Any) -> Any:
        where: Any = {"storage": "disk", "folder": tmp_path / "memory"} if request.param == "disk" else {}
        return cls(**{"memory_size": 40, "batch_size": 16, "seed": 1, "keep_extras": True, **settings}, **where)

    return made


def with_extras(chunk: Chunk) -> Chunk:
    """Extras of several shapes, which are functions of the step that their action was chosen for."""
    steps = chunk.step
    state = (np.stack([steps, -steps], 1).astype(np.float32), np.broadcast_to(steps[:, None, None], (len(steps), 2, 3)))
    return replace(chunk, extras={"logp": -steps.astype(np.float32), "state": {"z": state[0], "a": state[1]}})


def check(memory: Any, n_step: int = 1) -> None:
    for _ in range(4):
        batch = memory.sample()
        first = batch[3][:, 2].int() if n_step == 1 else batch[0][:, 2].int() + 1
        extras = batch[6]
        assert torch.equal(extras["logp"], -first.float())
        assert list(extras["state"]) == ["z", "a"]
        assert torch.equal(extras["state"]["z"], torch.stack([first, -first], 1).float())
        assert extras["state"]["a"].shape == (16, 2, 3)
        assert torch.equal(extras["state"]["a"][:, 1, 2], first.long())


@pytest.mark.parametrize(
    "settings",
    [{}, {"nb_steps": 10}, {"priority": {}}, {"n_step": 3}, {"sample_preprocessor": lambda *values: values}],
    ids=["uniform", "blocks", "prioritized", "n steps", "preprocessed"],
)
def test_extras_of_any_shape_are_those_of_the_transition_s_action(make: Any, make_rows: Any, settings: Any) -> None:
    memory = make(**settings)
    for first, count in ((0, 6), (6, 1), (7, 9)):
        memory.append_chunk(with_extras(make_rows(1, 0, first, count, end="terminated" if first == 7 else "")))
    check(memory, settings.get("n_step", 1))
    assert set(memory.get_transition(0)[6]) >= {"logp", "state"}
    memory.close()


def test_frame_stacks_have_extras(make: Any, make_rows: Any) -> None:
    memory = make(FrameStackMemory, frame_stack=STACK)
    chunk = with_extras(make_rows(1, 0, 0, 9))
    frames = np.arange(9)[:, None] + np.arange(STACK)
    memory.append_chunk(replace(chunk, observation=np.broadcast_to(frames[..., None], (9, STACK, 3)).copy()))
    batch = memory.sample()
    assert torch.equal(batch[6]["logp"], -batch[3][:, 0, 0].float())
    memory.close()


def test_extras_survive_a_restart(make: Any, make_rows: Any) -> None:
    memory = make(n_step=2)
    memory.append_chunk(with_extras(make_rows(1, 0, 0, 9)))
    state = memory.state_dict()
    rows = [ring[: memory.written].copy() for ring in memory.row_arrays]
    memory.close()
    again = make(n_step=2)
    again.load_state_dict(state, rows)
    again.append_chunk(with_extras(make_rows(1, 0, 9, 4, end="terminated")))
    assert len(again) == 12
    check(again, 2)
    again.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_the_first_rows_have_extras_where_a_reset_alone_completes_them(
    make: Any, make_rows: Any, restarts: bool
) -> None:
    memory = make(n_step=9)
    memory.append_chunk(with_extras(make_rows(1, 0, 0, 4)))
    assert memory.layout is None
    if restarts:
        state = memory.state_dict()
        memory.close()
        memory = make(n_step=9)
        memory.load_state_dict(state, [])
    memory.append_chunk(make_rows(1, 1, 0, 1))
    memory.append_chunk(with_extras(make_rows(1, 1, 1, 12)))
    first = [memory.get_transition(item) for item in range(len(memory))]
    assert [int(extras["logp"]) for *_, extras in first] == [-1, -2, -3, -1, -2, -3, -4]
    assert all(extras["state"]["z"].tolist() == [obs[2] + 1, -obs[2] - 1] for obs, *_, extras in first)
    memory.close()


def test_without_extras_nothing_changes(make_rows: Any) -> None:
    kept, dropped = [ReplayMemory(memory_size=40, seed=1, keep_extras=keep) for keep in (True, False)]
    kept.append_chunk(make_rows(1, 0, 0, 9))
    dropped.append_chunk(with_extras(make_rows(1, 0, 0, 9)))
    assert len(kept.sample()) == len(dropped.sample()) == 6
    assert kept.layout is not None
    assert dropped.layout is not None
    assert kept.layout.describe() == dropped.layout.describe()
    assert "sample_extras" not in kept.layout.describe()


def test_a_memory_that_began_without_extras_continues_without(
    make: Any, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory = make()
    memory.append_chunk(make_rows(1, 0, 0, 9))
    memory.append_chunk(with_extras(make_rows(2, 0, 0, 9)))
    memory.append_chunk(with_extras(make_rows(2, 0, 9, 2)))
    assert (len(memory), len(memory.sample())) == (18, 6)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"the extra {name!r} of the samples is unknown to the policy, or to the samples that the memory already holds"
        for name in ("logp", "state")
    ]
    memory.close()


def test_samples_without_extras_get_zeros_and_other_shapes_are_refused(make: Any, make_rows: Any) -> None:
    memory = make()
    memory.append_chunk(with_extras(make_rows(1, 0, 0, 3)))
    memory.append_chunk(make_rows(2, 0, 0, 2))
    *_, extras = memory.get_transition(2)
    assert extras["logp"] == 0
    assert not extras["state"]["a"].any()
    wrong = replace(make_rows(3, 0, 0, 3), extras={"logp": np.zeros((3, 2), np.float32)})
    with pytest.raises(SampleRefusedError, match=r"the extra logp of 3 samples is .*\[2\]"):
        memory.append_chunk(wrong)
    memory.close()


def test_extras_that_cannot_be_stored_are_left_out_with_a_warning(
    make: Any, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory = make()
    chunk = make_rows(1, 0, 0, 3)
    extras: Any = {"discount": np.zeros(3, np.float32), "note": ["a", "b", "c"], "logp": np.ones(3, np.float32)}
    memory.append_chunk(replace(chunk, extras=extras))
    assert set(memory.sample()[6]) == {"logp"}
    assert [record.message for record in caplog.records] == [
        "the extra 'discount' of the samples has the name of an extra of the memory: it is not stored",
        "the extra 'note' of the samples is not made of numeric arrays: it is not stored",
    ]
    memory.close()


def test_a_layout_with_extras_comes_back_from_its_description(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=10, keep_extras=True)
    memory.append_chunk(with_extras(make_rows(1, 0, 0, 3)))
    assert memory.layout is not None
    described = memory.layout.describe()
    assert RowLayout.from_description(described).describe() == described
