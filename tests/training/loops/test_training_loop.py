from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.errors import StarvedError
from tmrl_core.networking.protocol.messages import Progress
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord
from tmrl_core.training import ReplayMemory, TorchTrainingOffline
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.interface import Delivery, LocalInterface
from tmrl_core.training.loops import training_loop
from tmrl_core.training.loops.training_loop import TrainingOffline

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))


class Listener(TrainingAgent):
    """An agent that only counts."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.updates = 0

    def train(self, batch: Any) -> dict[str, Any]:
        self.updates += 1
        return {"loss_actor": float(self.updates)}

    def get_actor(self) -> int:
        return self.updates


class Fed(LocalInterface):
    """Hands over `rows` rows of a new episode each time that it is asked, and notes when it was."""

    def __init__(self, make_rows: Any, rows: int, version: tuple[int, int] = (1, 0)) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.waiting = threading.Event()
        self.published: list[int] = []
        self.reports: list[Progress] = []
        self.agent: Any = None
        self.expert = False
        self._make_rows = make_rows
        self._rows = rows
        self._row_version = version

    def receive(self) -> list[Delivery]:
        if self._rows:
            self.put_rows(self._make_rows(1, len(self.asked), 0, self._rows, version=self._row_version))
        self.asked.append(self.agent.updates)
        deliveries = super().receive()
        for one in deliveries:
            one.expert = self.expert
        return deliveries

    def put_rows(self, chunk: Chunk) -> None:
        buffer = Buffer(maxlen=None)
        buffer.extend([chunk])
        self.put(buffer)

    def wait(self, timeout_s: float) -> bool:
        self.waiting.set()
        return super().wait(timeout_s)

    def broadcast_model(self, actor: Any) -> tuple[int, int]:
        self.published.append(actor)
        return super().broadcast_model(actor)

    def report(self, progress: Progress) -> None:
        self.reports.append(progress)
        super().report(progress)


def make(interface: Fed | None = None, cls: Any = TrainingOffline, **settings: Any) -> TrainingOffline:
    def memory(nb_steps: int, device: Any) -> ReplayMemory:
        return ReplayMemory(device, nb_steps, memory_size=10_000, batch_size=4)

    defaults: dict[str, Any] = {"epochs": 2, "rounds": 3, "steps": 10, "max_training_steps_per_env_step": 1e9}
    training = cls(SPACES, memory, Listener, **{**defaults, **settings})
    if interface is not None:
        interface.agent = training.agent
    assert isinstance(training, TrainingOffline)
    return training


def test_an_epoch_is_rounds_of_steps_and_gives_a_row_each(make_rows: Any) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface)
    rows = training.run_epoch(interface)
    assert training.agent.updates == training.total_updates == 30
    assert (training.epoch, len(rows), interface.rows) == (1, 3, rows)
    assert [row["loss_actor"] for row in rows] == [5.5, 15.5, 25.5]
    assert {
        "memory_len",
        "round_time",
        "idle_time",
        "return_test",
        "return_train",
        "episode_length_test",
        "episode_length_train",
        "sampling_duration",
        "training_step_duration",
    } <= rows[0].keys()
    assert all(isinstance(value, (int, float)) for value in rows[0].values())
    training.run_epoch(interface)
    assert training.finished


@pytest.mark.parametrize(("fixed", "used"), [(3, {3}), (None, {1})])
def test_a_loop_sets_its_threads_for_updates_only(make_rows: Any, fixed: int | None, used: set[int]) -> None:
    import torch

    seen = set()

    class Counting(Listener):
        def train(self, batch: Any) -> dict[str, Any]:
            seen.add(torch.get_num_threads())
            return super().train(batch)

    interface = Fed(make_rows, 5)
    torch.set_num_threads(2)
    try:
        training = TrainingOffline(
            SPACES,
            lambda nb_steps, device: ReplayMemory(device, nb_steps, memory_size=100, batch_size=4),
            Counting, rounds=1, steps=10, max_training_steps_per_env_step=1e9, threads=fixed,
        )  # fmt: skip
        interface.agent = training.agent
        training.run_epoch(interface)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == used, "measured, ten short updates are made with one thread"


def test_a_policy_is_published_at_the_start_and_after_each_interval(make_rows: Any) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface, update_model_interval=8)
    training.run_epoch(interface)
    assert interface.published == [0, 8, 16, 24]


def test_samples_are_polled_after_each_interval_of_updates(make_rows: Any) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface, update_buffer_interval=7)
    training.run_epoch(interface)
    assert interface.asked == [0, 0, 7, 14, 21, 28]  # the first time it had to, since there was nothing


def test_the_ratio_allows_one_additional_update(make_rows: Any) -> None:
    interface = Fed(make_rows, 0)
    training = make(interface, max_training_steps_per_env_step=2.0, sleep_between_buffer_retrieval_attempts=60.0)
    seen = []

    def more(timeout_s: float) -> bool:
        seen.append((training.total_updates, training.total_samples, interface.progress.lack))
        interface.put_rows(make_rows(1, len(seen), 0, 5))
        return True

    interface.wait = more  # type: ignore[method-assign]
    training.run_epoch(interface)
    assert [numbers[:2] for numbers in seen] == [(0, 0), (11, 5), (21, 10)]
    assert seen[1][2] == "11 updates / 5 samples received is above trainer.max_training_steps_per_env_step = 2"


def test_arriving_samples_wake_it(make_rows: Any) -> None:
    interface = Fed(make_rows, 0)
    training = make(interface, sleep_between_buffer_retrieval_attempts=600.0)
    thread = threading.Thread(target=lambda: training.run_epoch(interface))
    thread.start()
    assert interface.waiting.wait(10)
    interface.put_rows(make_rows(1, 0, 0, 5))
    thread.join(10)
    assert not thread.is_alive()
    assert interface.samples_committed == 5


def test_training_waits_for_start_training_and_reports_the_reason(make_rows: Any) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface, start_training=20, sleep_between_buffer_retrieval_attempts=0.0)
    training.run_epoch(interface)
    assert interface.asked[:4] == [0, 0, 0, 0]
    lacks = [progress.lack for progress in interface.reports if progress.lack]
    assert lacks == [f"{n} of trainer.start_training = 20 samples have arrived" for n in (5, 10, 15)]
    assert interface.progress.lack == ""
    assert (interface.progress.samples, interface.progress.start_training) == (training.total_samples, 20)


def test_the_wait_reason_is_stable_during_a_wait(make_rows: Any) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface, start_training=8, sleep_between_buffer_retrieval_attempts=0.0)
    lacks = []

    def more(timeout_s: float) -> bool:
        lacks.append([progress.lack for progress in interface.reports[1:]])
        interface._rows = 5 if len(lacks) == 4 else 0
        return True

    interface.wait = more  # type: ignore[method-assign]
    training.run_epoch(interface)
    lack = "5 of trainer.start_training = 8 samples have arrived"
    assert lacks[:4] == [[lack] * (1 + looks) for looks in range(4)]
    assert interface.progress.lack == ""


def test_workers_get_the_wait_reason_after_starvation(make_rows: Any) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface, start_training=8, sleep_between_buffer_retrieval_attempts=0.0)

    def starve(timeout_s: float) -> bool:
        raise StarvedError("both wait")

    interface.wait = starve  # type: ignore[method-assign]
    with pytest.raises(StarvedError):
        training.run_epoch(interface)
    assert interface.progress.lack == "5 of trainer.start_training = 8 samples have arrived"


def test_training_waits_for_a_complete_transition(make_rows: Any) -> None:
    interface = Fed(make_rows, 1)
    training = make(interface, sleep_between_buffer_retrieval_attempts=0.0)
    lacks = []

    def more(timeout_s: float) -> bool:
        lacks.append(interface.progress.lack)
        interface._rows = 3 if len(lacks) == 4 else 1
        return True

    interface.wait = more  # type: ignore[method-assign]
    training.run_epoch(interface)
    assert lacks == [f"{n} samples have arrived, but no complete transition" for n in (1, 2, 3, 4)]
    assert training.agent.updates == 30


def test_the_wait_reason_names_refused_samples(make_rows: Any) -> None:
    interface = Fed(make_rows, 0)
    training = make(interface, sleep_between_buffer_retrieval_attempts=0.0)
    lacks = []

    def more(timeout_s: float) -> bool:
        lacks.append(interface.progress.lack)
        if len(lacks) < 3:
            interface.put_rows(replace(make_rows(1, len(lacks), 0, 4), reward=np.zeros((4, 2))))
        else:
            interface._rows = 5
        return True

    interface.wait = more  # type: ignore[method-assign]
    training.run_epoch(interface)
    assert lacks[0] == "no sample has arrived yet"
    assert lacks[1].startswith("all 4 samples that have arrived were refused: the reward is float64[2] per sample")
    assert lacks[2].startswith("all 8 samples that have arrived were refused: ")
    assert interface.progress.lack == ""
    assert training.agent.updates == 30


def test_a_stopped_epoch_continues_later(make_rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "NOTED_S", 0.0)  # looks for a stop after each update
    interface = Fed(make_rows, 5)
    training = make(interface)
    train = training.agent.train

    def stop_at_14(batch: Any) -> Any:
        if training.agent.updates == 13:
            interface.stop()
        return train(batch)

    training.agent.train = stop_at_14
    assert len(training.run_epoch(interface)) == 1
    assert (training.total_updates, training.round, training.step, training.epoch) == (14, 1, 4, 0)
    again = Fed(make_rows, 5)
    again.agent = training.agent
    assert len(training.run_epoch(again)) == 2
    assert (training.total_updates, training.round, training.step, training.epoch) == (30, 0, 0, 1)


def test_stopping_ends_a_wait(make_rows: Any) -> None:
    interface = Fed(make_rows, 0)
    training = make(interface, sleep_between_buffer_retrieval_attempts=600.0)
    thread = threading.Thread(target=lambda: training.run_epoch(interface))
    thread.start()
    assert interface.waiting.wait(10)
    interface.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert training.total_updates == 0


def test_the_wait_reason_is_one_printable_line(make_rows: Any) -> None:
    """A worker chooses the names in it, and terminals show it."""
    interface = Fed(make_rows, 0)
    training = make(interface, declared=("observation",))
    interface.put_rows(replace(make_rows(1, 0, 0, 4), observation={"\x1b[2J\nforged": np.zeros((4, 3), np.float32)}))
    training.update_buffer(interface)
    assert "all 4 samples that have arrived were refused" in training._shortfall()
    assert training._shortfall().isprintable()


def test_a_refused_chunk_is_reported_and_training_continues(make_rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface)
    interface.put_rows(make_rows(2, 0, 0, 5))
    bad = make_rows(3, 0, 0, 4, dtype=np.int32)
    interface.put_rows(bad)
    training.run_epoch(interface)
    assert training.total_updates == 30
    ((chunk, reason),) = interface.refused
    assert chunk.rows == 4
    assert "int32" in reason
    assert "samples refused" in caplog.text
    assert training.total_samples == interface.samples_committed
    assert training.total_samples == 5 * (len(interface.asked) + 1)


class Portions(Fed):
    """Has `left` portions of samples, and returns one at a time."""

    left = 30

    @property
    def has_more(self) -> bool:
        return self.left > 0

    def receive(self) -> list[Delivery]:
        self.left -= 1
        return super().receive()


def test_all_samples_that_have_arrived_are_inserted(make_rows: Any) -> None:
    interface = Portions(make_rows, 5)
    training = make(interface)
    training.clock = lambda: 0.0
    training.update_buffer(interface)
    assert training.total_samples == interface.samples_committed == 30 * 5
    assert not interface.has_more


def test_samples_that_take_long_do_not_stop_training(make_rows: Any) -> None:
    interface = Portions(make_rows, 5)
    training = make(interface)
    training.clock = lambda: 0.2 * len(interface.asked)
    training.update_buffer(interface)
    assert len(interface.asked) == 3
    training.update_buffer(interface)
    assert len(interface.asked) == 6


def test_the_messages_of_refused_samples_are_found_without_a_search(make_rows: Any) -> None:
    looks = 0

    class Chunks(list[Chunk]):
        def __iter__(self) -> Iterator[Chunk]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    deliveries = []
    for episode in range(100):
        dtype = np.int32 if episode and episode != 50 else np.float32  # the first ones define the structure
        deliveries.append(Delivery(Chunks([make_rows(1, episode, 0, 3, dtype=dtype)])))
    training = make()
    training._take(deliveries, 0)
    assert [episode for episode, delivery in enumerate(deliveries) if not delivery.refusal] == [0, 50]
    assert training.total_samples == 2 * 3
    assert looks < 10 * len(deliveries)


def test_portions_beyond_the_ratio_wait_for_updates(make_rows: Any) -> None:
    interface = Portions(make_rows, 5)
    training = make(interface, samples_per_insert=4.0, error_buffer=40.0, start_training=10)
    training.clock = lambda: 0.0
    training.update_buffer(interface)
    assert 10 < training.total_samples < 30 * 5
    assert not training.limiter.can_insert(training.total_samples, training.total_updates)


def test_stale_samples_are_discarded_and_counted(make_rows: Any) -> None:
    interface = Fed(make_rows, 0)
    training = make(interface, max_policy_lag=1)
    for _ in range(5):
        interface.broadcast_model(0)
    buffer = Buffer(maxlen=None)
    buffer.extend(
        [
            make_rows(1, 0, 0, 6, version=(1, 5)),
            make_rows(1, 0, 6, 4, version=(1, 3)),  # two behind: a gap
            make_rows(1, 0, 10, 3, version=(1, 4)),
        ]
    )
    interface.put(buffer)
    training.update_buffer(interface)
    assert training.samples_stale == 4
    assert training.total_samples == 13
    assert len(training.memory) == 5 + 2
    assert training.statistics.lag_max == 2
    assert training.statistics.row()["policy_lag_mean"] == (4 * 2 + 3) / 13


def test_samples_of_an_expert_are_never_stale(make_rows: Any) -> None:
    interface = Fed(make_rows, 0)
    training = make(interface, max_policy_lag=1)
    for _ in range(5):
        interface.broadcast_model(0)
    buffer = Buffer(maxlen=None)
    buffer.extend([make_rows(1, 0, 0, 6, version=(0, 0))])
    for interface.expert, stale in ((True, 0), (False, 6)):
        interface.put(buffer)
        training.update_buffer(interface)
        assert (training.samples_stale, len(training.memory)) == (stale, 5)
    assert training.statistics.row()["policy_lag_mean"] == 5


def test_policy_lag_is_in_the_row(make_rows: Any) -> None:
    interface = Fed(make_rows, 5, version=(1, 1))
    training = make(interface, update_buffer_interval=10, update_model_interval=10)
    rows = training.run_epoch(interface)
    assert [row["policy_lag_max"] for row in rows] == [0, 1, 2]


def test_the_scheduler_is_called_at_each_epoch_s_start(make_rows: Any) -> None:
    called = []
    interface = Fed(make_rows, 5)
    training = make(interface, agent_scheduler=lambda agent, epoch: called.append((agent.updates, epoch)))
    training.run_epoch(interface)
    training.run_epoch(interface)
    assert called == [(0, 0), (30, 1)]


def test_returns_are_those_of_the_latest_episodes(make_rows: Any) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface)
    buffer = Buffer(maxlen=None)
    buffer.extend(
        [],
        [EpisodeRecord("", -5.0, 9, "train", "truncated"), EpisodeRecord("", -2.0, 8, "test", "truncated")],
    )
    interface.put(buffer)
    row = training.run_epoch(interface)[0]
    assert (row["return_train"], row["episode_length_train"]) == (-5.0, 9)
    assert (row["return_test"], row["episode_length_test"]) == (-2.0, 8)


def test_without_a_test_episode_the_row_has_no_return_of_one(make_rows: Any) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface)
    buffer = Buffer(maxlen=None)
    buffer.extend([], [EpisodeRecord("", -5.0, 9, "train", "truncated")])
    interface.put(buffer)
    row = training.run_epoch(interface)[0]
    assert (row["return_train"], row["episode_length_train"]) == (-5.0, 9)
    assert np.isnan([row["return_test"], row["episode_length_test"]]).all()


def test_profiling_is_logged(make_rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    interface = Fed(make_rows, 5)
    training = make(interface, profiling=True)
    with caplog.at_level(logging.INFO):
        training.run_epoch(interface)
    assert "update_buffer" in caplog.text


def test_an_override_that_does_not_commit_is_safe(make_rows: Any) -> None:
    class Mine(TrainingOffline):
        def update_buffer(self, interface: Any) -> None:
            buffer = interface.retrieve_buffer()
            self.memory.append(buffer)
            self.total_samples += len(buffer)

    interface = Fed(make_rows, 5)
    training = make(interface, Mine)
    training.run_epoch(interface)
    assert interface.samples_committed == training.total_samples - 5
    interface.commit()
    assert interface.samples_committed == training.total_samples


def test_the_environment_is_closed_after_reading_its_spaces() -> None:
    made = []

    class Env(gym.Env[Any, Any]):
        observation_space, action_space = SPACES

        def __init__(self) -> None:
            made.append(self)
            self.closed = False

        def close(self) -> None:
            self.closed = True

    training = TrainingOffline(Env, lambda nb_steps, device: ReplayMemory(device, nb_steps), Listener)
    assert training.agent.observation_space is SPACES[0]
    assert [env.closed for env in made] == [True]


def test_torch_training_picks_a_device() -> None:
    assert make(cls=TorchTrainingOffline).device in ("cpu", "cuda")
    assert make(cls=TorchTrainingOffline, device="meta").device == "meta"
