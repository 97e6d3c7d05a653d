from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tmrl_core.samples import Chunk
from tmrl_core.training import ReplayMemory
from tmrl_core.training.batches import transitions_of
from tmrl_core.training.checkpoints.capture import capture
from tmrl_core.training.checkpoints.restore import restore
from tmrl_core.training.memories.interventions import InterventionMemory
from tmrl_core.training.memories.mixed import MixedMemory, rows_of_shares


def marked(chunk: Chunk, taken: Sequence[int]) -> Chunk:
    """A chunk whose steps of these numbers a person took over."""
    flags = np.isin(chunk.step, taken)
    return replace(chunk, extras={"is_intervention": flags, "policy_action": np.zeros((chunk.rows, 1), np.float32)})


def steps_of(memory: ReplayMemory) -> list[tuple[int, int]]:
    """The steps before and after the action of each transition."""
    rows = [memory.get_transition(item) for item in range(len(memory))]
    return [(int(row[0][2]), int(row[3][2])) for row in rows]


@pytest.mark.parametrize("cut", [12, 4, 5, 1])
def test_only_steps_of_persons_are_kept_however_chunks_are_cut(make_rows: Any, make_buffer: Any, cut: int) -> None:
    memory = InterventionMemory(memory_size=50, seed=0)
    whole = marked(make_rows(1, 0, 0, 12), [3, 4, 6, 11])
    for start in range(0, 12, cut):
        memory.append(make_buffer([whole.slice(start, min(12, start + cut))]))
    assert steps_of(memory) == [(2, 3), (3, 4), (5, 6), (10, 11)]
    assert len(memory.sample()) == 6


def test_over_several_steps_the_first_action_decides(make_rows: Any, make_buffer: Any) -> None:
    memory = InterventionMemory(memory_size=50, seed=0, n_step=3, gamma=0.5)
    whole = marked(make_rows(1, 0, 0, 9, end="terminated"), [2, 8])
    for start in (0, 3, 4):
        memory.append(make_buffer([whole.slice(start, {0: 3, 3: 4, 4: 9}[start])]))
    assert steps_of(memory) == [(1, 4), (7, 8)]
    assert memory.get_transition(0)[2] == 2 + 0.5 * 3 + 0.25 * 4


def test_an_open_episode_survives_a_checkpoint(make_rows: Any, make_buffer: Any) -> None:
    whole = marked(make_rows(1, 0, 0, 9), [4, 5])
    for n_step in (1, 2):
        before, after = (InterventionMemory(memory_size=50, seed=0, n_step=n_step) for _ in range(2))
        before.append(make_buffer([whole.slice(0, 5)]))
        after.load_state_dict(before.state_dict(), [array[: len(before)] for array in before.row_arrays])
        after.append(make_buffer([whole.slice(5, 9)]))
        assert len(after) == 2


def make(shares: dict[str, float], make_recorded: Any = None, **kwargs: Any) -> MixedMemory:
    of_size = partial(ReplayMemory, memory_size=50, seed=0)
    return MixedMemory(
        of_size,
        of_size if "demonstrations" in shares else None,
        make_interventions=partial(InterventionMemory, memory_size=50, seed=1),
        batch_size=8,
        shares=shares,
        **kwargs,
    )


def test_each_origin_has_its_share_and_interventions_are_awaited_by_nobody(make_rows: Any, make_buffer: Any) -> None:
    memory = make({"online": 0.5, "demonstrations": 0.25, "interventions": 0.25}, marked=True)
    memory.for_sessions.append(make_buffer([make_rows(2, 0, 0, 5)]))
    assert len(memory) == 0
    memory.append(make_buffer([marked(make_rows(1, 0, 0, 6), [])]))
    assert len(memory) == memory.sampleable == 9
    (batch,) = memory
    assert batch[0][:, 0].tolist() == [1] * 4 + [2] * 2
    assert batch[6]["shown"].tolist() == [0] * 4 + [1] * 2
    memory.append(make_buffer([marked(make_rows(1, 0, 6, 4), [7])]))
    (batch,) = memory
    assert batch[0][:, 0].tolist() == [1] * 4 + [2] * 2 + [1] * 2
    assert batch[3][6:, 2].tolist() == [7, 7]
    shown_B = transitions_of(batch, 0.9).shown_B
    assert shown_B is not None
    assert shown_B.tolist() == [0] * 4 + [1] * 4
    # The extras of a takeover are for the memories: agents do not get them.
    assert batch[6].keys() == {"shown"}
    # All steps stay in the memory of live samples too.
    assert len(memory.live) == 9


def test_the_first_takeover_is_in_the_next_batch_of_a_round(make_rows: Any, make_buffer: Any) -> None:
    memory = make({"online": 0.5, "interventions": 0.5}, nb_steps=4, marked=True)
    memory.append(make_buffer([marked(make_rows(1, 0, 0, 6), [])]))
    round_ = iter(memory)
    assert [len(next(round_)[0]) for _ in range(2)] == [4, 4]
    memory.append(make_buffer([marked(make_rows(1, 0, 6, 4), [7])]))
    batch = next(round_)
    assert batch[3][4:, 2].tolist() == [7] * 4
    assert batch[6]["shown"].tolist() == [0] * 4 + [1] * 4
    assert len([*round_]) == 1


def test_interventions_alone_are_awaited(make_rows: Any, make_buffer: Any) -> None:
    memory = make({"interventions": 1.0})
    memory.append(make_buffer([marked(make_rows(1, 0, 0, 6), [])]))
    assert len(memory) == 0
    memory.append(make_buffer([marked(make_rows(1, 0, 6, 3), [6])]))
    assert len(memory) == 1
    assert [len(batch[0]) for batch in memory] == [8]


def test_live_samples_displace_no_intervention(make_rows: Any, make_buffer: Any) -> None:
    memory = make({"online": 0.5, "interventions": 0.5})
    memory.append(make_buffer([marked(make_rows(1, 0, 0, 6), [1])]))
    for episode in range(1, 30):
        memory.append(make_buffer([marked(make_rows(1, episode, 0, 11), [])]))
    assert memory.interventions is not None
    assert (len(memory.live), len(memory.interventions)) == (50, 1)


def test_a_refused_chunk_is_in_no_memory(make_rows: Any, make_buffer: Any) -> None:
    memory = make({"online": 0.5, "interventions": 0.5})
    memory.append(make_buffer([marked(make_rows(1, 0, 0, 6), [1])]))
    other = marked(make_rows(1, 1, 0, 6, observation=lambda rows: np.zeros((rows, 7), np.float32)), [2])
    assert len(memory.append(make_buffer([other]))) == 1
    assert memory.interventions is not None
    assert len(memory.interventions) == 1


def test_rounding_loses_no_row() -> None:
    assert rows_of_shares({"online": 0.5, "demonstrations": 0.3, "interventions": 0.2}, 7) == {
        "online": 4, "demonstrations": 2, "interventions": 1,
    }  # fmt: skip


def test_a_checkpoint_holds_interventions(make_rows: Any, make_buffer: Any) -> None:
    class Training:
        def __init__(self) -> None:
            self.memory = make({"online": 0.5, "interventions": 0.5})

    before, after = Training(), Training()
    before.memory.append(make_buffer([marked(make_rows(1, 0, 0, 9), [3, 8])]))
    captured = capture(before)
    rows = {path: [ring[found.start : found.stop] for ring in found.rings] for path, found in captured.rows.items()}
    restore(after, captured.tree, captured.arrays, rows)
    after.memory.append(make_buffer([marked(make_rows(1, 0, 9, 2), [9])]))
    assert after.memory.interventions is not None
    assert steps_of(after.memory.interventions) == [(2, 3), (7, 8), (8, 9)]


def test_a_run_that_resumes_with_a_share_for_interventions_begins_to_keep_them(
    make_rows: Any, make_buffer: Any
) -> None:
    class Training:
        def __init__(self, memory: MixedMemory) -> None:
            self.memory = memory

    of_size = partial(ReplayMemory, memory_size=50, seed=0)
    before = Training(MixedMemory(of_size, of_size, batch_size=8))
    after = Training(make({"online": 0.5, "demonstrations": 0.25, "interventions": 0.25}))
    before.memory.append(make_buffer([marked(make_rows(1, 0, 0, 9), [3])]))
    before.memory.for_sessions.append(make_buffer([make_rows(2, 0, 0, 5)]))
    captured = capture(before)
    rows = {path: [ring[found.start : found.stop] for ring in found.rings] for path, found in captured.rows.items()}
    restore(after, captured.tree, captured.arrays, rows)
    after.memory.append(make_buffer([marked(make_rows(1, 0, 9, 2), [10])]))
    assert after.memory.interventions is not None
    assert steps_of(after.memory.interventions) == [(9, 10)]
    assert [len(batch[0]) for batch in after.memory] == [8]
