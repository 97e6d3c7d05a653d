from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.errors import CodecError
from tmrl_core.samples import Buffer


def obs(step: int) -> np.ndarray:
    return np.full(2, step, np.float32)


ACT = np.full(1, 0.5, np.float32)


def push(recorder: StepRecorder, steps: int, first: int = 1, **flags: Any) -> Any:
    """Push steps with their number as observation and reward; return what the last call returned."""
    truncated = None
    for step in range(first, first + steps):
        last = step == first + steps - 1
        truncated = recorder.step(
            ACT, obs(step), float(step), last and flags.get("terminated"), last and flags.get("truncated"), {}
        )
    return truncated


def recorded(recorder: StepRecorder) -> list[tuple[int, int]]:
    """(episode, step) of each sample."""
    return [
        pair
        for chunk in recorder.buffer.chunks
        for pair in zip(chunk.episode.tolist(), chunk.step.tolist(), strict=True)
    ]


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_steps_that_are_pushed_become_samples_and_a_record(flag: str) -> None:
    recorder = StepRecorder(Buffer(None), name="robot")
    recorder.set_version((3, 7))
    episode = recorder.begin(obs(0), {"fresh": 1}, seed=5)
    episode.evaluation = 9
    states = [recorder.recording]
    push(recorder, 3, **{flag: True})
    assert [*states, recorder.recording] == [True, False]
    samples = list(recorder.buffer.memory)
    assert [sample[0] is None for sample in samples] == [True, False, False, False]
    assert [float(sample[1][0]) for sample in samples] == [sample[2] for sample in samples] == [0, 1, 2, 3]
    assert samples[0][5] == {"fresh": 1}
    (record,) = recorder.buffer.episodes
    assert (record.episode_return, record.length, record.mode, record.end) == (6.0, 3, "train", flag)
    assert (record.version, record.seed, record.evaluation, record.worker) == ((3, 7), 5, 9, "robot")
    assert (recorder.steps_collected, recorder.episodes) == (4, 1)
    assert [segment.version for segment in recorder.buffer.chunks[0].segments] == [(3, 7)]


@pytest.mark.parametrize("number", [int, np.float16, np.int8])
def test_a_return_is_summed_in_floats_and_an_episode_has_one_layout(number: Any) -> None:
    recorder = StepRecorder(Buffer(None))
    recorder.begin(obs(0), {})
    for step in range(1, 3_001):
        recorder.step(ACT, obs(step), number(1), step == 3_000, False, {})
    (chunk,), (record,) = recorder.take()
    assert chunk.reward.dtype == np.float64
    assert record.episode_return == 3_000.0


def test_an_interrupted_episode_is_aborted_and_not_joined_with_the_next() -> None:
    recorder = StepRecorder(Buffer(None))
    recorder.begin(obs(0), {})
    push(recorder, 2)
    recorder.end()
    recorder.end()
    recorder.begin(obs(0), {})
    push(recorder, 1)
    recorder.begin(obs(0), {})
    assert recorded(recorder) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    assert [(record.episode, record.end, record.metrics) for record in recorder.buffer.episodes] == [
        (0, "aborted", {}),
        (1, "aborted", {}),
    ]


def test_the_limit_truncates_and_the_caller_is_notified() -> None:
    recorder = StepRecorder(Buffer(None), max_samples_per_episode=3)
    recorder.begin(obs(0), {})
    assert not push(recorder, 2)
    assert push(recorder, 1, first=3) is True
    recorder.begin(obs(0), {}, limit=1)
    assert not push(recorder, 1, terminated=True), "a terminated step is not truncated too"
    recorder.begin(obs(0), {}, limit=math.inf)
    push(recorder, 9)
    assert recorder.recording
    assert [(record.length, record.end) for record in recorder.buffer.episodes] == [(3, "truncated"), (1, "terminated")]
    assert recorder.buffer.chunks[0].truncated.tolist()[:4] == [False, False, False, True]
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        StepRecorder(Buffer(None), max_samples_per_episode=0)


def test_an_episode_that_is_not_collected_leaves_its_record_only() -> None:
    recorder = StepRecorder(Buffer(None))
    recorder.begin(obs(0), {}, collect=False)
    push(recorder, 2, terminated=True)
    recorder.begin(obs(0), {}, collect=False)
    recorder.step(ACT, obs(1), 1.0, False, False, {}, test=False)
    push(recorder, 1, first=2, terminated=True)
    recorder.begin(obs(0), {}, collect=False)
    recorder.end()
    assert len(recorder.buffer) == recorder.steps_collected == 0
    assert [(record.mode, record.length) for record in recorder.buffer.episodes] == [("test", 2), ("train", 2)]


def test_steps_after_the_end_are_samples_of_another_episode() -> None:
    recorder = StepRecorder(Buffer(None))
    recorder.begin(obs(0), {})
    push(recorder, 1, terminated=True)
    push(recorder, 1)
    assert [step for _, step in recorded(recorder)] == [0, 1, 0]
    assert len(recorder.buffer.episodes) == 1


def test_extras_are_columns_of_their_own() -> None:
    recorder = StepRecorder(Buffer(None))
    recorder.begin(obs(0), {}, action=ACT, extras={"logp": 0.0})
    recorder.step(ACT, obs(1), 0.0, False, False, {}, {"logp": -1.5})
    (chunk,) = recorder.buffer.chunks
    assert np.array_equal(np.asarray(chunk.extras["logp"]), [0.0, -1.5])
    assert recorder.buffer.memory[0][0].tolist() == [0.5]


def test_the_compressor_gets_every_sample_and_the_original_stays_with_crc_debug() -> None:
    shared = obs(0)
    recorder = StepRecorder(
        Buffer(None), crc_debug=True, sample_compressor=lambda act, obs, *rest: (act, obs[:1] * 10, *rest)
    )
    recorder.begin(shared, {"key": 1})
    shared[:] = 1  # an environment writes over the array that it returned
    recorder.step(ACT, shared, 2.0, True, False, {})
    reset, step = recorder.buffer.memory
    assert [reset[1].tolist(), step[1].tolist()] == [[0], [10]]
    assert reset[5]["crc_sample"][0] is None
    previous, action, new, reward, terminated, truncated = step[5]["crc_sample"]
    assert (previous.tolist(), new.tolist(), action.tolist()) == ([0, 0], [1, 1], [0.5])
    assert (reward, terminated, truncated) == (2.0, True, False)
    assert [sample[5]["crc_sample_ts"] for sample in (reset, step)] == [(1, 0), (2, 1)]
    assert reset[5]["key"] == 1


def test_unsent_samples_can_be_dropped_and_sent_ones_stay() -> None:
    recorder = StepRecorder(Buffer(None))
    assert recorder.drop_unsent() == 0
    recorder.begin(obs(0), {})
    push(recorder, 2)
    chunks, _ = recorder.take()
    assert sum(chunk.rows for chunk in chunks) == 3
    assert recorder.episode is not None
    assert recorder.episode.sent
    push(recorder, 2, first=3)
    assert recorder.drop_unsent() == recorder.samples_dropped == 2
    recorder.end(record=recorder.episode.sent)
    recorder.begin(obs(0), {})
    push(recorder, 1)
    assert recorder.drop_unsent() == 2
    recorder.end(record=False)
    assert [record.episode for record in recorder.buffer.episodes] == [0]
    assert recorder.steps_collected - recorder.samples_dropped == 3


def test_the_last_row_of_an_open_episode_can_begin_its_next_samples() -> None:
    recorder = StepRecorder(Buffer(None))
    recorder.begin(obs(0), {})
    push(recorder, 2)
    taken = [chunk.rows for chunk in recorder.take(repeat_last=True)[0]]
    assert (taken, recorded(recorder)) == ([3], [(0, 2)])
    push(recorder, 2, first=3, terminated=True)
    assert [chunk.rows for chunk in recorder.buffer.chunks] == [1, 2]
    assert recorded(recorder) == [(0, 2), (0, 3), (0, 4)]
    assert [float(sample[2]) for sample in recorder.buffer.memory] == [2, 3, 4]
    recorder.take(repeat_last=True)
    assert recorded(recorder) == [], "the episode has ended"


def test_a_version_holds_from_the_next_sample_on() -> None:
    recorder = StepRecorder(Buffer(None))
    recorder.set_version((1, 1))
    recorder.begin(obs(0), {})
    push(recorder, 1)
    recorder.set_version((1, 2))
    push(recorder, 1, first=2, truncated=True)
    recorder.set_version((1, 3))
    recorder.begin(obs(0), {}, collect=False)
    recorder.set_version((1, 4))
    recorder.begin(obs(0), {})
    assert recorder.buffer.chunks[0].version.tolist() == [[1, 1], [1, 1], [1, 2], [1, 4]]
    assert recorder.buffer.episodes[0].version == (1, 2)


def test_infos_become_metrics_of_the_record() -> None:
    recorder = StepRecorder(Buffer(None), info_metrics=["cost:mean"])
    recorder.begin(obs(0), {"cost": 100.0})
    recorder.step(ACT, obs(1), 0.0, False, False, {"cost": 1.0})
    recorder.step(ACT, obs(2), 0.0, True, False, {"cost": 3.0, "is_success": True})
    assert recorder.buffer.episodes[0].metrics == {"cost_mean": 2.0, "is_success": 1.0}


def test_a_sample_that_cannot_be_carried_is_refused_and_not_counted() -> None:
    recorder = StepRecorder(Buffer(None))
    recorder.begin(obs(0), {})
    with pytest.raises(CodecError, match="observation"):
        recorder.step(ACT, {"camera": object()}, 0.0, False, False, {})
    assert len(recorder.buffer) == recorder.steps_collected == 1
    push(recorder, 1)
    assert recorded(recorder) == [(0, 0), (0, 1)]
