from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.samples import Buffer, EpisodeRecord
from tmrl_core.training import ReplayMemory, TrainingOffline
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.interface import Delivery, LocalInterface
from tmrl_core.training.loops.episode_metrics import MAX_NAMES, MAX_NAMES_EACH, MetricNames, info_means

SPACES = (spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (1,), np.float32))


class Idle(TrainingAgent):
    def train(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_actor(self) -> Any:
        return None


class Playing(LocalInterface):
    """Brings one training episode at a time, and two that do not count."""

    def __init__(self, make_rows: Any) -> None:
        super().__init__()
        self.make_rows = make_rows
        self.played = 0

    def receive(self) -> list[Delivery]:
        buffer = Buffer(maxlen=None)
        metrics = {"is_success": float(self.played >= 100), "cost": float(self.played)}
        records = [
            EpisodeRecord("", 0.0, 1, "train", "truncated", metrics=metrics),
            EpisodeRecord("", 0.0, 1, "test", "truncated", metrics={"cost": 1e9}),
            EpisodeRecord("", 0.0, 1, "train", "aborted", metrics={"cost": 1e9}),
        ]
        buffer.extend([self.make_rows(1, self.played, 0, 3, end="truncated")], records)
        self.played += 1
        return [Delivery(buffer.chunks, buffer.episodes)]


def test_rows_have_the_means_over_the_latest_hundred_training_episodes(make_rows: Any) -> None:
    training = TrainingOffline(
        SPACES,
        lambda nb_steps, device: ReplayMemory(memory_size=100, nb_steps=nb_steps, batch_size=2),
        Idle,
        epochs=1,
        rounds=2,
        steps=80,
        update_buffer_interval=1,
        device="cpu",
    )
    interface = Playing(make_rows)
    first, second = training.run_epoch(interface)
    assert first["success_rate"] == 0.0
    # Of the latest hundred, those from number 100 on have reached the goal.
    assert second["success_rate"] == pytest.approx((interface.played - 100) / 100)
    assert second["rollout/info/cost"] == pytest.approx(interface.played - 50.5)


def test_memories_know_the_certificate_of_each_stream(make_rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    origins: list[Any] = []

    class Noting(ReplayMemory):  # type: ignore[misc]
        def append_buffer(self, buffer: Buffer) -> Any:
            origins.extend(chunk.origin for chunk in buffer.chunks)
            return super().append_buffer(buffer)

    training = TrainingOffline(SPACES, partial(Noting, memory_size=100, batch_size=2), Idle, device="cpu")
    interface = Playing(make_rows)
    monkeypatch.setattr(interface, "origin", lambda stream: "robot")
    training.update_buffer(interface)
    assert set(origins) == {"robot"}


def test_names_are_bounded_for_any_input() -> None:
    episodes = [{f"key{number}": 1.0} for number in range(500)]
    assert len(info_means("eval", episodes)) == 32
    assert info_means("eval", [{"is_success": 1.0}, {"is_success": 0.0}, {}]) == {"eval/success_rate": 0.5}
    assert info_means("rollout", []) == {}


def test_invented_metrics_do_not_displace_the_success_rate() -> None:
    made_up = {f"made_up_{number}": 1.0 for number in range(32)}
    means = info_means("rollout", [made_up, {"is_success": 1.0}, {"is_success": 0.0}])
    assert means["rollout/success_rate"] == 0.5
    assert len(means) == 33


def test_one_worker_records_a_bounded_number_of_names(caplog: pytest.LogCaptureFixture) -> None:
    names = MetricNames()
    found: set[str] = set()
    for number in range(200):
        found |= names.recorded({f"made_up_{number}_{key}": 1.0 for key in range(32)}, "thief").keys()
    assert len(found) == MAX_NAMES_EACH
    assert names.recorded({"made_up_0_0": 2.0, "is_success": 1.0}, "thief") == {"made_up_0_0": 2.0, "is_success": 1.0}
    assert names.recorded({"cost": 1.0}, "honest") == {"cost": 1.0}
    assert names.recorded({"cost": 2.0}, "thief") == {"cost": 2.0}
    for number in range(2 * MAX_NAMES):
        found |= names.recorded({f"invented_{number}": 1.0}, f"worker{number}").keys()
    assert len(found) == MAX_NAMES - 1  # and `cost`
    assert sum("too many different metrics" in record.message for record in caplog.records) == 1
