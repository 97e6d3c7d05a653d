"""Workers with environments of rtgym: action buffers in stored observations, the safe action, durations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rtgym
from gymnasium import spaces

from tests.actor.rollout.composing import compose
from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.rollout.real_time import benchmark_rows
from tmrl_core.compat.custom.custom_memories import MemoryTMLidar, get_local_buffer_sample_lidar
from tmrl_core.envs import real_time_env
from tmrl_core.errors import EnvironmentFailedError
from tmrl_core.samples import Buffer
from tmrl_core.training.memories.generic import GenericTorchMemory

pytestmark = pytest.mark.filterwarnings("ignore:.*[Tt]ime-step.*")  # a busy machine

STEP = {"time_step_duration": 0.004, "start_obs_capture": 0.004, "time_step_timeout_factor": 1e6}
DEFAULT = np.zeros(1, np.float32)


class Noting(rtgym.RealTimeGymInterface):  # type: ignore[misc]
    """Observe the number of actions sent so far, and note each of them.

    Args:
        notes: receives actions, "reset" and "wait".
        terminates: number of observations after the reset with which each episode terminates; 0: none.
    """

    def __init__(self, notes: list[Any], terminates: int = 0) -> None:
        self.notes, self.terminates, self.seen = notes, terminates, 0

    def get_observation_space(self) -> Any:
        return spaces.Tuple([spaces.Box(0, 1e6, (1,), np.float32), spaces.Box(0, 1e6, (19,), np.float32)])

    def get_action_space(self) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def get_default_action(self) -> Any:
        return DEFAULT

    def send_control(self, control: Any) -> None:
        self.notes.append(float(control[0]))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observation = self._observation()
        self.notes.append("reset")
        self.seen = 0
        return observation, {}

    def wait(self) -> None:
        self.notes.append("wait")

    def get_obs_rew_terminated_info(self) -> Any:
        self.seen += 1
        return self._observation(), 1.0, self.seen == self.terminates, {}

    def _observation(self) -> list[Any]:
        sent = len(sent_of(self.notes))
        return [np.full(1, sent, np.float32), np.full(19, sent, np.float32)]


def sent_of(notes: list[Any]) -> list[float]:
    return [note for note in notes if isinstance(note, float)]


class Counting(ActorModule):
    """Each action is another one."""

    def act(self, obs: Any, test: bool = False) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return np.full(1, self.count / 1000, np.float32)


def flown(notes: list[Any], config: dict[str, Any], episodes: int = 4, terminates: int = 0, **worker: Any) -> Buffer:
    """The samples of a worker's episodes, with a test episode among them."""
    made = compose(
        lambda: real_time_env(Noting, {"notes": notes, "terminates": terminates}, {**STEP, **config}),
        Counting,
        **worker,
    )
    for _ in range(episodes):
        made.collect_train_episode()
    made.run_episode(max_samples=3)
    made.collect_train_episode()
    received = Buffer(None)
    received += made.buffer
    made.close()
    return received


CONFIGS = [
    {"act_buf_len": length, "reset_act_buf": refilled, "last_act_on_reset": last}
    for length in (1, 3)
    for refilled, last in ((True, False), (False, False), (False, True))
]


@pytest.mark.parametrize("end", ["time limit", "terminated", "cut by the worker"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(str(value) for value in config.values()))
def test_the_buffer_in_each_observation_holds_the_actions_that_were_sent(config: dict[str, Any], end: str) -> None:
    notes: list[Any] = []
    limits: dict[str, Any] = {"terminates": 6 if end == "terminated" else 0}
    if end == "cut by the worker":
        limits["max_samples_per_episode"] = 6
    else:
        config = {**config, "ep_max_length": 6}
    memory = GenericTorchMemory("cpu", 1)
    memory.append(flown(notes, config, **limits))
    sent = np.array(sent_of(notes), np.float32)
    length = config["act_buf_len"]
    found = 0
    for item in range(len(memory)):
        before, act, _, obs, terminated, truncated, _ = memory.get_transition(item)
        for observed, ends in ((before, False), (obs, bool(terminated or truncated))):
            # The action of the newest entry is sent after the observation. That of an episode's end never is.
            number, buffer = int(observed[0][0]), np.concatenate(observed[2:])
            unsent = ends and end != "cut by the worker"
            expected = [*sent[:number], act[0] if unsent else sent[number]][-length:]
            expected = [*[0.0] * (length - len(expected)), *expected]
            if config["reset_act_buf"]:
                # Actions before the reset are replaced by the default action.
                known = 1 + sent_since_reset(notes, number, include_reset=not unsent)
                expected[: max(0, length - known)] = [0.0] * max(0, length - known)
            np.testing.assert_array_equal(buffer, np.array(expected, np.float32))
            found += 1
        assert obs[-1][0] == act[0]
    assert found == 2 * 5 * 6


def sent_since_reset(notes: list[Any], number: int, include_reset: bool) -> int:
    """Number of actions between the last reset before action `number` and that action."""
    count = 0
    since = 0
    for note in notes:
        if note == "reset" and (count < number or include_reset):
            since = count
        if isinstance(note, float):
            if count == number:
                break
            count += 1
    return number - since


@pytest.mark.parametrize("length", [1, 3])
def test_a_memory_puts_back_the_actions_that_a_compressor_left_out(length: int) -> None:
    received = flown(
        [],
        {"act_buf_len": length, "ep_max_length": 6},
        sample_compressor=get_local_buffer_sample_lidar,
        crc_debug=True,
    )
    memory = MemoryTMLidar(imgs_obs=1, act_buf_len=length, crc_debug=True)
    memory.append(received)
    assert len(memory) == 5 * 6
    for item in range(len(memory)):
        memory[item]  # compares it with the worker's, action by action


def test_the_action_of_a_reset_is_stored_as_it_was_sent() -> None:
    notes: list[Any] = []
    received = flown(notes, {"ep_max_length": 3, "reset_act_buf": False, "last_act_on_reset": True})
    resets = [chunk.sample(row) for chunk in received.chunks for row in range(chunk.rows) if chunk.step[row] == 0]
    sent = sent_of(notes)
    assert [float(sample[0][0]) for sample in resets] == pytest.approx(
        [sent[int(sample[1][0][0])] for sample in resets]
    )


@pytest.mark.parametrize("safe_action", [[0.5], None])
@pytest.mark.parametrize("config", [{"ep_max_length": 3}, {}], ids=["after an episode", "within one"])
def test_motors_stop_at_the_end(config: dict[str, Any], safe_action: Any) -> None:
    notes: list[Any] = []
    made = compose(
        lambda: real_time_env(Noting, {"notes": notes}, {**STEP, **config}), Counting, safe_action=safe_action
    )
    if config:
        made.run(nb_episodes=1, verbose=False)
    else:
        made.reset(collect_samples=True)
        for _ in range(3):
            made.step((DEFAULT,) * 3, test=False, collect_samples=True)
    made.close()
    end = ["wait"] if safe_action is None else [0.5, "wait"]
    assert notes[-len(end) :] == end
    assert notes.count("wait") == 1


def test_motors_stop_after_a_failure_of_the_interface() -> None:
    notes: list[Any] = []

    class Broken(Noting):
        def get_obs_rew_terminated_info(self) -> Any:
            if self.seen == 2:
                raise OSError("no contact")
            return super().get_obs_rew_terminated_info()

    made = compose(lambda: real_time_env(Broken, {"notes": notes}, STEP), Counting, safe_action=[0.5], max_failures=0)
    with pytest.raises(EnvironmentFailedError, match="no contact"):
        made.run(nb_episodes=1, verbose=False)
    assert notes[-2:] == [0.5, "wait"]
    made.close()


def test_a_worker_that_goes_on_after_a_run_resets_first() -> None:
    notes: list[Any] = []
    made = compose(
        lambda: real_time_env(Noting, {"notes": notes}, {**STEP, "ep_max_length": 3}), Counting, safe_action=[0.5]
    )
    for _ in range(2):
        made.run(nb_episodes=1, verbose=False)
    first = notes.index("wait")
    assert [str(note) for note in notes[first : first + 3]] == ["wait", "reset", "0.0"]
    made.close()


@pytest.mark.parametrize("kind", ["polyak", "trace"])
def test_durations_are_measured_beside_the_policy(kind: str) -> None:
    config = {**STEP, "benchmark": True, "benchmark_type": kind}
    made = compose(lambda: real_time_env(Noting, {"notes": []}, config), Counting)
    rows = benchmark_rows(made.run_env_benchmark(20, verbose=False))
    assert {name for name, _, _ in rows} == {
        "time_step_duration",
        "step_duration",
        "join_duration",
        "inference_duration",
        "send_control_duration",
        "get_obs_duration",
    }
    means = {name: mean for name, mean, _ in rows}
    assert means["time_step_duration"] >= 0.003
    assert made.lateness is not None
    assert made.lateness.steps == 20
    made.close()


def test_durations_that_were_not_measured_have_no_row() -> None:
    assert benchmark_rows({"step_duration": (None, 0.0), "join_duration": (0.5, 0.1)}) == [("join_duration", 0.5, 0.1)]
    assert benchmark_rows({"clock": {}}) == []


def test_a_worker_logs_lateness_and_durations_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    config = {**STEP, "ep_max_length": 3, "benchmark": True}
    made = compose(lambda: real_time_env(Noting, {"notes": []}, config), Counting)
    with caplog.at_level("INFO"):
        made.run(nb_episodes=1, verbose=False)
    made.close()
    assert " of 3 steps late, 99.9th percentile of lateness " in caplog.text
    assert "inference_duration " in caplog.text
