"""The files of a memory on disk, of rows and of frames, written by processes that are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.training import stacked_writer as writer
from tests.training.disk_memory import whole
from tmrl_core.training import CheckpointStore, ReplayMemory

ROOT = Path(__file__).resolve().parents[3]


def transitions(memory: ReplayMemory) -> list[tuple[int, int, int]]:
    """Places at which the transitions end, oldest first. Each transition is as it was sent, byte for byte."""
    found = []
    for item in range(len(memory)):
        prev_obs, _, reward, obs, terminated, truncated, _ = memory.get_transition(item)
        found.append(writer.check_transition(prev_obs, obs))
        assert (float(reward), terminated, truncated) == (found[-1][2], False, found[-1][2] == writer.EPISODE - 1)
    return found


class Writers:
    """Runs of a writer that end by a kill: one process starts them all, as its imports cost more than many runs."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from tests.training.stacked_writer import main; main()"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def killed(self, folder: Path, kind: str, lines: int, delay_s: float) -> list[list[str]]:
        """Kill a writer so long after it has said so many lines, and return what it said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"folder": str(folder), "kind": kind, "lines": lines, "delay_s": delay_s}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        ended: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert ended["killed"], "the writer has ended by itself; see what it wrote"
        said: list[list[str]] = ended["said"]
        return said


def run_and_kill(writers: Writers, folder: Path, kind: str, times: int) -> None:
    generator = random.Random(0)
    make = partial(writer.make_memory, kind=kind)
    in_ram = make(None)
    """Content of an undisturbed memory after as many messages."""
    given = said = saved = 0
    for _ in range(times):
        # In any of its phases: while it opens what is there, while it commits, or draws, or saves.
        lines, delay_s = generator.choice([0, 1, 2, 8, 9, 40]), generator.choice([0, 2e-4, 2e-2]) * generator.random()
        for word, *numbers in writers.killed(folder, kind, lines, delay_s):
            if word == "open":
                assert int(numbers[0]) >= said, "what was committed is not there"
                assert int(numbers[1]) >= saved, "what was checkpointed is not there"
            elif word == "kept":
                said = int(numbers[0])
            elif word == "saved":
                saved = int(numbers[0])
        if not (folder / "memory").exists():
            continue
        memory = make(folder / "memory")
        assert memory.disk is not None
        assert memory.disk.lost_rows == 0
        assert whole(memory.disk.folder)
        offsets, values = memory.recorded or ({}, {"samples": 0})
        sent = sum(number for number, _ in offsets.values())
        assert offsets == writer.offsets_after(sent)
        assert values["samples"] == writer.ROWS * sent
        assert said <= sent <= said + 3, "what was being committed when it died may be there, and no more"
        for number in range(given, sent):
            in_ram.append_chunk(writer.message(number))
        given = sent
        assert (memory.written, transitions(memory)) == (in_ram.written, transitions(in_ram))
        memory.close()
    assert said > 2 * writer.CAPACITY // writer.ROWS, "old files have not been removed yet"
    restored = CheckpointStore(folder / "checkpoint").restore(lambda: writer.make_training(folder / "memory", kind))
    assert restored is not None
    assert restored.epoch >= saved > 0
    assert transitions(restored.memory) == transitions(in_ram)
    restored.memory.close()


@pytest.mark.timeout(900)
def test_a_killed_process_neither_loses_nor_duplicates_committed_samples(
    tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = Writers()
    with writers.process:
        for kind, times in (("frames", 400 if full else 10), ("rows", 100 if full else 8)):
            for name in ("MIN_SEGMENT_BYTES", "MAX_SEGMENT_BYTES"):
                monkeypatch.setattr(f"tmrl_core.training.memories.disk_rows.{name}", writer.FILE_BYTES[kind])
            run_and_kill(writers, tmp_path / kind, kind, times)
