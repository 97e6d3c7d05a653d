"""A folder of transitions belongs to one run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tmrl_core.errors import ConfigError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training import ReplayMemory
from tmrl_core.training.memories.owner import claim_folder

Rows = Callable[..., Chunk]


def memory_in(folder: Path) -> ReplayMemory:
    return ReplayMemory(memory_size=40, batch_size=4, seed=0, storage="disk", folder=folder)


def fill(memory: ReplayMemory, chunk: Chunk) -> None:
    buffer = Buffer(maxlen=None)
    buffer.extend([chunk])
    memory.append(buffer)


def test_a_run_finds_its_own_transitions_again(tmp_path: Path, make_rows: Rows) -> None:
    for length in (0, 4, 8):
        memory = memory_in(tmp_path)
        claim_folder(memory, lambda: "one-1234", take_over=False)
        assert len(memory) == length
        fill(memory, make_rows(1, length, 0, 5))
        memory.close()


@pytest.mark.parametrize("owner", ["one-1234", None])
def test_transitions_of_another_run_are_refused_unless_they_are_asked_for(
    owner: str | None, tmp_path: Path, make_rows: Rows
) -> None:
    memory = memory_in(tmp_path)
    if owner is not None:
        claim_folder(memory, lambda: owner, take_over=False)
    fill(memory, make_rows(1, 0, 0, 5))
    memory.close()
    for _ in range(2):  # the refused memory has released the folder
        whose = "an unknown run" if owner is None else "run one-1234"
        with pytest.raises(ConfigError, match=rf"holds 4 transitions of {whose}, and this is run one-5678.*take_over"):
            claim_folder(memory_in(tmp_path), lambda: "one-5678", take_over=False)
    memory = memory_in(tmp_path)
    claim_folder(memory, lambda: "one-5678", take_over=True)
    assert len(memory) == 4
    memory.close()
    memory = memory_in(tmp_path)
    claim_folder(memory, lambda: "one-5678", take_over=False)
    memory.close()


def test_an_empty_folder_is_taken_from_another_run(tmp_path: Path) -> None:
    for run in ("one-1234", "two-1234"):
        memory = memory_in(tmp_path)
        claim_folder(memory, partial(str, run), take_over=False)
        memory.close()


def test_a_memory_in_ram_belongs_to_nobody() -> None:
    def run() -> str:
        raise AssertionError("the run's folder would get an id")

    claim_folder(ReplayMemory(memory_size=40, batch_size=4, seed=0), run, take_over=False)
