"""A run as its folder shows it: finished, growing, stopped, begun again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tmrl_core.dashboard.faults import Seen, faults
from tmrl_core.dashboard.recorded import RecordedRun
from tmrl_core.errors import ConfigError
from tmrl_core.metrics.records import MetricRecord, Value, encode_line
from tmrl_core.networking.protocol.telemetry import Order

NOW = 1_795_000_000.0


class Folder:
    """A folder of a run; `now` is the clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = NOW
        self.step = 0

    def write(self, kind: str, values: dict[str, Value], *, anew: bool = False) -> None:
        record = MetricRecord(
            time_s=self.now,
            elapsed_s=self.now - NOW,
            step=self.step,
            kind=kind,  # type: ignore[arg-type]
            values=values,
            env_steps=10 * self.step,
        )
        with open(self.folder / "metrics.jsonl", "wb" if anew else "ab") as file:
            file.write(encode_line(record))

    def learn(self, episodes: int = 30) -> None:
        self.write("event", {"event": "start", "run_name": "pendulum", "eval/target_reward": -200.0})
        self.write("event", {"event": "phase", "phase": "learning"})
        for _ in range(episodes):
            self.step += 10
            self.now += 1.0
            self.write("episode", {"rollout/ep_rew": float(self.step), "version": f"1.{self.step}", "mode": "train"})
        self.write("round", {"train/actor_loss": 2.5, "rollout/ep_rew_mean": 12.0})

    def source(self) -> RecordedRun:
        return RecordedRun(self.folder, lambda: self.now)


@pytest.fixture
def run(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no metrics.jsonl in it; allowed: the folder of a run, such as runs/NAME"):
        RecordedRun(tmp_path)
    with pytest.raises(ConfigError, match=r"missing, no such folder"):
        RecordedRun(tmp_path / "missing")


def test_a_run_is_shown(run: Folder) -> None:
    run.learn()
    source = run.source()
    scene, history = source.scene, source.history
    assert scene is not None
    assert (scene.run, scene.state, scene.env_steps, scene.updates) == ("pendulum", "training", 3000, 300)
    assert (scene.version, scene.target_return, scene.elapsed_s) == ((1, 300), -200.0, 30.0)
    assert scene.values["train/actor_loss"] == 2.5
    assert history is not None
    assert history.series["rollout/ep_rew"][-1] == (3000, 30.0, 300.0)
    assert source.state == "connected"


def test_a_run_that_grows_wakes_the_page(run: Folder) -> None:
    run.learn()
    source = run.source()
    seen = source.changed
    assert not source.wait(0.0, seen)
    run.step += 10
    run.write("round", {"train/actor_loss": 1.5})
    assert source.wait(5.0, seen)
    assert source.scene is not None
    assert source.scene.values["train/actor_loss"] == 1.5


def test_a_run_without_new_records_has_stopped(run: Folder) -> None:
    run.learn()
    source = run.source()
    run.now += 121.0
    assert source.wait(5.0, source.changed)
    assert source.scene is not None
    assert source.scene.state == "ended"
    (fault,) = faults(Seen(scene=source.scene, recorded=True))
    assert fault.text == "The run has ended: it has written no record for minutes, so its trainer was stopped or killed"


def test_a_run_that_ended_in_order_says_so(run: Folder) -> None:
    run.learn()
    run.write("event", {"event": "end"})
    source = run.source()
    assert source.scene is not None
    assert (source.scene.state, source.scene.waits) == ("ended", "")


def test_a_run_that_begins_again_begins_with_nothing(run: Folder) -> None:
    run.learn()
    source = run.source()
    run.step = 0
    run.write("event", {"event": "start", "run_name": "another"}, anew=True)
    assert source.wait(5.0, source.changed)
    assert source.scene is not None
    assert (source.scene.run, source.scene.values, source.scene.version) == ("another", {}, (0, 0))
    assert source.history is not None
    assert source.history.series == {}


def test_a_folder_obeys_nobody(run: Folder) -> None:
    run.learn()
    source = run.source()
    assert not source.may_order
    with pytest.raises(ConfigError, match="--folder shows records only"):
        source.order(Order(kind="pause"))


def test_close_wakes_who_waits(run: Folder) -> None:
    run.learn()
    source = run.source()
    waiting = threading.Thread(target=source.wait, args=(60.0,))
    waiting.start()
    source.close()
    waiting.join(10)
    assert not waiting.is_alive()


def test_all_settings_of_the_run_are_shown(run: Folder) -> None:
    run.learn()
    (run.folder / "config.yaml").write_text("trainer: {epochs: 7}", encoding="utf-8")
    source = run.source()
    assert source.history is not None
    assert source.history.settings["trainer.epochs"] == "7"
    assert source.history.settings["run.name"] == "default"
    (run.folder / "config.yaml").write_text("trainer: {epochs: seven}", encoding="utf-8")
    source = run.source()
    assert source.history is not None
    assert source.history.settings == {}
