from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.errors import ConfigError
from tmrl_core.samples import Buffer
from tmrl_core.sessions import Session, SessionWriter
from tmrl_core.training import CheckpointStore, ReplayMemory
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.interface import Delivery, LocalInterface
from tmrl_core.training.loops.recorded_sessions import SessionLoader
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.mixed import MixedMemory

SPACES = gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)


def session(number: int, ticks: int = 6, **values: Any) -> Session:
    rng = np.random.default_rng(number)
    return Session(
        observations=np.stack([np.full(3, 100 * number + tick) for tick in range(ticks + 1)]).astype(np.float32),
        **{
            "actions": rng.uniform(-1, 1, (ticks, 1)).astype(np.float32),
            "rewards": rng.random(ticks),
            "terminated": True,
            **values,
        },
    )


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Five sessions of six steps; the third was interrupted."""
    with SessionWriter(tmp_path / "recording", *SPACES) as writer:
        for number in range(5):
            writer.write(session(number, terminated=number != 2))
    return tmp_path / "recording"


def make(recording: Path | None, memory: Any = None, **settings: Any) -> TrainingOffline:
    return TrainingOffline(
        SPACES,
        partial(ReplayMemory, memory_size=60, batch_size=8) if memory is None else memory,
        partial(SacAgent, model_kwargs={"hidden_sizes": (8, 8)}),
        epochs=4,
        rounds=2,
        steps=5,
        update_model_interval=3,
        update_buffer_interval=2,
        device="cpu",
        offline=recording,
        **settings,
    )


def weights(training: TrainingOffline) -> list[torch.Tensor]:
    agent = training.agent
    return [*agent.model.state_dict().values(), *agent.target_critics.state_dict().values(), agent.log_alpha.detach()]


def same(one: TrainingOffline, two: TrainingOffline) -> bool:
    return all(map(torch.equal, weights(one), weights(two)))


def run(training: TrainingOffline, epochs: int, interface: LocalInterface | None = None) -> list[Any]:
    interface = LocalInterface() if interface is None else interface
    return [row for _ in range(epochs) for row in training.run_epoch(interface)]


def test_each_step_of_a_recording_is_one_transition(recording: Path) -> None:
    training = make(recording)
    run(training, 1)
    memory = training.memory
    assert len(memory) == 30
    for item in range(30):
        prev_obs, act, rew, obs, terminated, truncated, _ = memory.get_transition(item)
        number, tick = divmod(item, 6)
        expected = session(number)
        np.testing.assert_array_equal(prev_obs, expected.observations[tick])
        np.testing.assert_array_equal(obs, expected.observations[tick + 1])
        np.testing.assert_array_equal(act, expected.actions[tick])
        assert rew == np.float32(expected.rewards[tick])
        assert (terminated, truncated) == (tick == 5 and number != 2, False)


def test_no_limit_of_updates_per_sample_holds(recording: Path) -> None:
    training = make(recording, max_training_steps_per_env_step=0.01, start_training=1000)
    rows = run(training, 4)
    assert (training.total_updates, training.total_samples) == (40, 0)
    assert [row["memory_len"] for row in rows] == [30] * 8


@pytest.mark.parametrize(
    ("storage", "prioritized"),
    [
        ("ram", True),
        ("disk", False),
        pytest.param("ram", False, marks=pytest.mark.full),
        pytest.param("disk", True, marks=pytest.mark.full),
    ],
)
def test_resuming_equals_the_uninterrupted_run_bit_for_bit(
    tmp_path: Path, recording: Path, storage: str, prioritized: bool
) -> None:
    def memory(**kwargs: Any) -> ReplayMemory:
        folder = {"storage": storage, "folder": tmp_path / "memory"} if storage == "disk" else {}
        priority: Any = {"priority": {}} if prioritized else {}
        return ReplayMemory(memory_size=60, batch_size=8, **folder, **priority, **kwargs)

    torch.manual_seed(1)
    training = make(recording, memory)
    run(training, 2)
    CheckpointStore(tmp_path / "store").save(training, wait=True)
    run(training, 2)
    training.memory.close()

    torch.manual_seed(99)
    shutil.rmtree(recording)  # the rows come from the checkpoint, or from the disk
    resumed = CheckpointStore(tmp_path / "store").restore(lambda: make(recording, memory))
    assert resumed is not None
    assert resumed.total_updates == 20
    run(resumed, 2)
    assert len(resumed.memory) == 30
    assert same(training, resumed)
    resumed.memory.close()


def test_a_crash_before_the_first_checkpoint_appends_nothing_twice(tmp_path: Path, recording: Path) -> None:
    memory = partial(ReplayMemory, memory_size=60, batch_size=8, storage="disk", folder=tmp_path / "memory")
    expected = None
    for _ in range(2):
        torch.manual_seed(1)
        training = make(recording, memory)
        run(training, 2)
        assert len(training.memory) == 30
        training.memory.close()
        assert expected is None or same(expected, training)
        expected = training


def test_loading_continues_on_disk_after_a_crash(
    tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_core.training.loops.recorded_sessions.COMMITTED_AT_ONCE", 1)
    memory = ReplayMemory(memory_size=60, batch_size=8, storage="disk", folder=tmp_path / "memory")
    append = memory.append

    def failing(buffer: Buffer) -> Any:
        if len(memory) >= 18:
            raise KeyboardInterrupt
        return append(buffer)

    memory.append = failing
    with pytest.raises(KeyboardInterrupt):
        SessionLoader(recording, "trainer.offline", SPACES[1]).load(memory, 0)
    memory.close()
    training = make(recording, partial(ReplayMemory, memory_size=60, storage="disk", folder=tmp_path / "memory"))
    assert (len(training.memory), training.sessions_loaded) == (18, 3)
    run(training, 1)
    assert (len(training.memory), training.sessions_loaded) == (30, -5)
    observations = [float(training.memory.get_transition(item)[0][0]) for item in range(30)]
    assert observations == [100 * number + tick for number in range(5) for tick in range(6)]
    training.memory.close()


class Live(LocalInterface):
    """Hands over one recorded message each time that it is asked, from a position that can be chosen."""

    def __init__(self, make_rows: Any, position: int = 0) -> None:
        super().__init__()
        self.position = position
        self._make_rows = make_rows

    def receive(self) -> list[Delivery]:
        self.position += 1
        buffer = Buffer(maxlen=None)
        buffer.extend([self._make_rows(1, self.position, 0, 4)])
        return [Delivery(buffer.chunks, buffer.episodes)]


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_a_mixed_run_is_resumed_bit_for_bit(tmp_path: Path, recording: Path, make_rows: Any, storage: str) -> None:
    folder: Any = {"storage": "disk", "folder": tmp_path / "memory"} if storage == "disk" else {}
    memory = partial(
        MixedMemory,
        partial(ReplayMemory, memory_size=20, **folder),
        partial(ReplayMemory, memory_size=60),
        batch_size=8,
    )

    def build() -> TrainingOffline:
        return make(None, memory, recorded=recording, max_training_steps_per_env_step=1e9)

    torch.manual_seed(1)
    training, interface = build(), Live(make_rows)
    run(training, 2, interface)
    CheckpointStore(tmp_path / "store").save(training, wait=True)
    position, samples, live = interface.position, training.total_samples, len(training.memory.live)
    assert samples == 4 * position
    if storage == "disk":
        training.memory.close()
        shutil.copytree(tmp_path / "memory", tmp_path / "copy")
        training = CheckpointStore(tmp_path / "store").restore(build)
    run(training, 2, Live(make_rows, position))
    training.memory.close()
    if storage == "disk":
        shutil.rmtree(tmp_path / "memory")
        shutil.copytree(tmp_path / "copy", tmp_path / "memory")

    torch.manual_seed(99)
    shutil.rmtree(recording)
    resumed = CheckpointStore(tmp_path / "store").restore(build)
    assert resumed is not None
    assert (resumed.total_samples, len(resumed.memory.live)) == (samples, live)
    run(resumed, 2, Live(make_rows, position))
    assert same(training, resumed)
    assert len(resumed.memory.recorded_sessions) == 30
    resumed.memory.close()


def test_a_recording_without_sessions_is_refused(tmp_path: Path) -> None:
    with SessionWriter(tmp_path / "empty", *SPACES):
        pass
    with pytest.raises(ConfigError, match=r"trainer.offline: .*empty holds no session"):
        run(make(tmp_path / "empty"), 1)
    with pytest.raises(ConfigError, match=r"trainer.offline: .*nothing does not exist"):
        run(make(tmp_path / "nothing"), 1)


def test_a_session_with_nan_is_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    with SessionWriter(tmp_path / "nan", *SPACES) as writer:
        writer.write(session(0))
        writer.write(session(1, extras={"v": np.array([0, np.nan, 0, 0, 0, 0])}))
    training = make(tmp_path / "nan")
    with pytest.raises(ConfigError, match=r"session 2 of .*nan cannot be used: the extra v holds NaN"):
        run(training, 1)
    assert len(training.memory) == 0


def test_actions_outside_their_space_are_refused_or_clipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SessionWriter(tmp_path / "wide", *SPACES) as writer:
        writer.write(session(0))
        writer.write(session(1, actions=np.array([[0], [50], [-7], [1.0005], [0], [0]], np.float32)))
    training = make(tmp_path / "wide")
    found = r"wide are outside their space, from session 2 on: action\[0\] is -7 to 50, allowed: -1 to 1"
    with pytest.raises(ConfigError, match=f"trainer.offline: .*{found}"):
        run(training, 1)
    assert len(training.memory) == 0
    memory = partial(MixedMemory, partial(ReplayMemory, memory_size=20), partial(ReplayMemory, memory_size=60))
    with pytest.raises(ConfigError, match=f"memory.recorded: .*{found}"):
        run(make(None, partial(memory, batch_size=8), recorded=tmp_path / "wide"), 1)
    training = make(tmp_path / "wide", recorded_actions="clip")
    run(training, 1)
    assert [float(training.memory.get_transition(item)[1][0]) for item in range(6, 10)] == [0, 1, -1, 1]
    assert "3 of 12 actions were outside their space" in caplog.text
    training = make(tmp_path / "wide", recorded_actions=None)
    run(training, 1)
    assert float(training.memory.get_transition(7)[1][0]) == 50
