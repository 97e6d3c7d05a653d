"""Messages of stacked frames that say where they belong, and processes that write them to a memory until killed.

`main` is told, a line of JSON for each, to start a writer and to kill it at some moment. Writers are forked
here, of a process with one thread that has imported everything: a hundred of them take a few seconds.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import CheckpointStore, FrameStackMemory, ReplayMemory, TrainingOffline
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.memories import disk_rows

K, SHAPE, ROWS, EPISODE = 4, (48, 48), 5, 30
"""Frames in a stack, a frame's shape, rows of a message, steps of an episode."""
CAPACITY = 60
FILE_BYTES = {"frames": 40_000, "rows": 200_000}
"""Of either kind of memory: one that shares frames, and one that stores stacks whole."""
STREAMS = [bytes([i]) * 16 for i in (1, 2)]
SPACES = (gym.spaces.Box(-1e3, 1e3, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))
_NOISE = np.random.default_rng(0).integers(0, 256, 20_000).astype(np.uint8)
_WINDOWS = np.lib.stride_tricks.sliding_window_view(_NOISE, SHAPE[0] * SHAPE[1])
"""So many different frames."""


def observations(stream: int, episode: int, steps: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What is seen at these steps, padded as after a reset; `sound` takes no multiple of 8 bytes a frame."""
    numbers = np.maximum(steps[:, None] + np.arange(1 - K, 1), 0)
    image = _WINDOWS[(stream * 7919 + episode * 613 + numbers * 37) % len(_WINDOWS)]
    place = np.stack([np.full(len(steps), stream), np.full(len(steps), episode), steps], 1).astype(np.float32)
    return {"image": image.reshape(len(steps), K, *SHAPE), "sound": image[..., :3].astype(np.float32), "place": place}


def message(number: int) -> Chunk:
    """The message of this number; the streams take turns."""
    stream, of_stream = number % len(STREAMS), number // len(STREAMS)
    episode, first = divmod(of_stream * ROWS, EPISODE)
    steps = np.arange(first, first + ROWS)
    return Chunk(
        rows=ROWS,
        action=steps[:, None].astype(np.float32),
        action_present=steps > 0,
        observation=observations(stream, episode, steps),
        reward=steps.astype(np.float64),
        terminated=np.zeros(ROWS, bool),
        truncated=steps == EPISODE - 1,
        segments=(Segment(ROWS, episode, first, 1, 1),),
        stream=STREAMS[stream],
    )


def offsets_after(messages: int) -> dict[bytes, tuple[int, int]]:
    """Where the streams stand after so many messages."""
    sent = {stream: len(range(i, messages, len(STREAMS))) for i, stream in enumerate(STREAMS)}
    return {stream: (number, ROWS * number) for stream, number in sent.items() if number}


def make_memory(folder: Path | None, kind: str = "frames", **kwargs: Any) -> ReplayMemory:
    """On disk, or in RAM."""
    where: Any = {} if folder is None else {"storage": "disk", "folder": folder}
    settings: Any = {"memory_size": CAPACITY, "batch_size": 8, "seed": 4, **where, **kwargs}
    return FrameStackMemory(**{"frame_stack": K, **settings}) if kind == "frames" else ReplayMemory(**settings)


def check_transition(prev_obs: Any, obs: Any) -> tuple[int, int, int]:
    """Where a transition's end belongs; both of its observations must be what was seen there, byte for byte."""
    stream, episode, step = (int(value) for value in obs["place"])
    for seen, at in ((prev_obs, step - 1), (obs, step)):
        for name, expected in observations(stream, episode, np.array([at])).items():
            values = np.asarray(seen[name])
            assert values.dtype == expected.dtype
            assert values.tobytes() == expected[0].tobytes(), f"{name} of step {at} of episode {episode} is another"
    return stream, episode, step


class _Agent(TrainingAgent):
    def train(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_actor(self) -> Any:
        return None


def make_training(folder: Path, kind: str = "frames") -> TrainingOffline:
    """A training object whose memory is in a folder."""
    return TrainingOffline(SPACES, lambda nb_steps, device: make_memory(folder, kind, nb_steps=nb_steps), _Agent)


def write(folder: Path, kind: str, say: Callable[..., None]) -> None:
    """Append, commit, draw and checkpoint for ever, from where the process before has ended."""
    disk_rows.MIN_SEGMENT_BYTES = disk_rows.MAX_SEGMENT_BYTES = FILE_BYTES[kind]
    store = CheckpointStore(folder / "checkpoint")
    make = functools.partial(make_training, folder / "memory", kind)
    training = store.restore(make) or make()
    memory = training.memory
    sent = sum(number for number, _ in training.delivery.get("marks", {}).values())
    assert training.delivery.get("marks", {}) == offsets_after(sent)
    assert training.total_samples == ROWS * sent
    memory.deferred = True
    say("open", sent, training.epoch)
    for commits in range(1, sys.maxsize):
        for number in range(sent, sent + 1 + sent % 3):
            memory.append_chunk(message(number))
            sent = number + 1
        say("commits", sent)
        memory.commit(offsets_after(sent), samples=ROWS * sent)
        training.total_samples = ROWS * sent
        training.delivery = {"incarnation": 0, "counter": 0, "marks": offsets_after(sent)}
        say("kept", sent)
        batch = memory.sample()
        for row in range(memory.batch_size):
            check_transition(*({name: part[row] for name, part in batch[i].items()} for i in (0, 3)))
        if commits % 7 == 0:
            training.epoch += 1
            store.save(training, on_written=lambda epoch=training.epoch: say("saved", epoch))


def _say(pipe: int, *words: Any) -> None:
    # In one call, as checkpoints are said by a thread of their own.
    os.write(pipe, (" ".join(map(str, words)) + "\n").encode())


def _run_and_kill(folder: Path, kind: str, lines: int, delay_s: float) -> dict[str, Any]:
    """Start a writer and kill it so long after it has said so many lines; what it said, and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(folder, kind, functools.partial(_say, writing))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    os.close(writing)
    said = []
    with open(reading, encoding="utf-8") as pipe:
        for _ in range(lines):
            said.append(pipe.readline())
        time.sleep(delay_s)  # not for anything to happen: this is the moment at which it dies
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        said += pipe.readlines()
    return {"killed": os.WIFSIGNALED(status), "said": [line.split() for line in said if line.endswith("\n")]}


def main() -> None:
    """Follow the orders that come in, and say how each has ended."""
    for order in sys.stdin:
        wanted = json.loads(order)
        ended = _run_and_kill(Path(wanted["folder"]), wanted["kind"], wanted["lines"], wanted["delay_s"])
        print(json.dumps(ended), flush=True)
