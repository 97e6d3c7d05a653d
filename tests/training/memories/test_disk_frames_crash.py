"""Frames in the files of a memory on disk, written by processes that are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training import stacked_writer as writer
from tmrl_core.training import CheckpointStore, FrameStackMemory

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file every few records."""
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MIN_SEGMENT_BYTES", writer.FILE_BYTES)
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", writer.FILE_BYTES)


def transitions(memory: FrameStackMemory) -> list[tuple[int, int, int]]:
    """Where the end of each belongs, oldest first; each is what was sent, byte for byte."""
    found = []
    for item in range(len(memory)):
        prev_obs, _, reward, obs, terminated, truncated, _ = memory.get_transition(item)
        found.append(writer.check_transition(prev_obs, obs))
        assert (float(reward), terminated, truncated) == (found[-1][2], False, found[-1][2] == writer.EPISODE - 1)
    return found


@pytest.mark.timeout(900)
def test_a_killed_process_neither_loses_nor_duplicates_committed_samples(tmp_path: Path, full: bool) -> None:
    generator = random.Random(0)
    in_ram = writer.make_memory(None)
    """What an undisturbed memory holds after as many messages."""
    given = said = saved = 0
    command = [sys.executable, "-c", "from tests.training.stacked_writer import main; main()"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as children:
        assert children.stdin is not None
        assert children.stdout is not None
        for _ in range(400 if full else 30):
            # In any of its phases: while it opens what is there, while it commits, or draws, or saves.
            lines, delay_s = (
                generator.choice([0, 1, 2, 8, 9, 40]),
                generator.choice([0, 2e-4, 2e-2]) * generator.random(),
            )
            order = {"folder": str(tmp_path), "lines": lines, "delay_s": delay_s}
            children.stdin.write(json.dumps(order) + "\n")
            children.stdin.flush()
            ended: dict[str, Any] = json.loads(children.stdout.readline())
            assert ended["killed"], "the writer has ended by itself; see what it wrote"
            for word, *numbers in ended["said"]:
                if word == "open":
                    assert int(numbers[0]) >= said, "what was committed is not there"
                    assert int(numbers[1]) >= saved, "what was checkpointed is not there"
                elif word == "kept":
                    said = int(numbers[0])
                elif word == "saved":
                    saved = int(numbers[0])
            if not (tmp_path / "memory").exists():
                continue
            memory = writer.make_memory(tmp_path / "memory")
            assert memory.disk is not None
            assert memory.disk.lost_rows == 0
            assert memory.disk.verify() == []
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
        children.stdin.close()
    assert said > 2 * writer.CAPACITY // writer.ROWS, "old files have not been removed yet"
    restored = CheckpointStore(tmp_path / "checkpoint").restore(lambda: writer.make_training(tmp_path / "memory"))
    assert restored is not None
    assert restored.epoch >= saved > 0
    assert transitions(restored.memory) == transitions(in_ram)
    restored.memory.close()
