"""Whole runs on this machine: Server, workers and trainer for real, over TLS or as threads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.command_line import Start, in_this_process, started
from tests.waiting import until
from tmrl_core.config import load
from tmrl_core.metrics import follow, read_records
from tmrl_core.metrics.records import MetricRecord
from tmrl_core.storage.port_record import recorded_port

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
run: {name: small}
environment: {cls: "tmrl_core.envs:GenericGymEnv", kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [16, 16]}}
worker: {max_env_steps_per_update: 8, max_samples_per_episode: 50}
server: {port: 0}
memory: {batch_size: 32}
trainer:
  epochs: 1
  rounds: 2
  steps: 100
  start_training: 200
  update_model_interval: 20
  update_buffer_interval: 20
  device: cpu
  evaluation: {episodes: 2, every_updates: 100, target_return: TARGET, time_limit_s: 60}
"""

LEARNED_BY = 8_000
"""Updates within which the default configuration has learned Pendulum by far; it takes two to four thousand."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command line in an empty folder; what still runs at the test's end is killed."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with started(tmp_path, environ) as call:
        yield call


def configured(folder: Path, target: float) -> str:
    """A small configuration with this target."""
    path = folder / "small.yaml"
    path.write_text(SMALL.replace("TARGET", str(target)), encoding="utf-8")
    return str(path)


def roles_running(folder: Path) -> list[str]:
    """Processes of ours that work in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "tmrl_core" in words and process.info["cwd"] == str(folder):
            found.append(" ".join(words))
    return found


THREADS = ("--local", "--single-process", "--workers", "1")

SLOW = """
import time
from tmrl_core.envs import GenericGymEnv

class Slow(GenericGymEnv):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)
"""


def endless(folder: Path) -> list[str]:
    """Return arguments for a run without an end that leaves the processors to others."""
    (folder / "slow_environment.py").write_text(SLOW, encoding="utf-8")
    return [
        "--set", "environment={cls: 'slow_environment:Slow', kwargs: {id: Pendulum-v1, to_float32: true}}",
        "--set", "trainer.rounds=1000000", "--set", "trainer.max_training_steps_per_env_step=1",
    ]  # fmt: skip


WANDERING = """
import os, tempfile
from pathlib import Path
from tmrl_core.envs import GenericGymEnv

class Wandering(GenericGymEnv):
    def __init__(self):
        super().__init__("Pendulum-v1", to_float32=True)
        self.folder = tempfile.mkdtemp(dir=Path(__file__).parent)
        os.chdir(self.folder)

    def close(self):
        os.rmdir(self.folder)  # fails if something was written there
        super().close()
"""


def test_an_environment_that_changes_the_working_folder_does_not_move_the_runs_files(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    (tmp_path / "wandering.py").write_text(WANDERING, encoding="utf-8")
    file = configured(tmp_path, -1e6)
    with in_this_process(start, ["wandering"]) as run:
        changes = [
            "environment={cls: 'wandering:Wandering', kwargs: {}}",
            "worker.record=recorded",
            "memory.storage=disk",
        ]
        done = run(*THREADS, "-c", file, *(word for change in changes for word in ("--set", change)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and path.name != "__pycache__") == ["start"]
    run_folder = start / "runs" / "small"
    for name in ("metrics.jsonl", "config.yaml", "policy.tmod", "checkpoint/lock", "worker/policy.tmod", "memory"):
        assert (run_folder / name).exists(), name
    assert list((start / "recorded").glob("*/*.seg"))
    assert "folder: runs" in (run_folder / "config.yaml").read_text(encoding="utf-8")


def test_threads_of_one_process_learn_too(tmp_path: Path) -> None:
    with in_this_process(tmp_path) as run:
        done = run(*THREADS, "-c", configured(tmp_path, -1e6))
    assert done.stdout.rstrip().splitlines()[-1].startswith("Learned: "), done
    assert not (tmp_path / "runs" / "small" / "logs").exists()


BROKEN = """
from tmrl_core.actor import SquashedGaussianMLPActor

class Broken(SquashedGaussianMLPActor):
    def act(self, obs, test=False):
        return super().act(obs, test).reshape(2, 2)
"""


def test_a_policy_that_cannot_act_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken_policy.py").write_text(BROKEN, encoding="utf-8")
    with in_this_process(tmp_path, ["broken_policy"]) as run:
        done = run(*THREADS, "-c", configured(tmp_path, -1e6), "--set", "actor.cls=broken_policy:Broken")
    assert done.returncode == 2, done
    assert "Broken cannot act in the action space Box" in done.stderr
    assert "ValueError: cannot reshape array of size 1 into shape (2,2)" in done.stderr


BOARD = """
import gymnasium, numpy as np

class Board(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, high=1):
        self.observation_space = gymnasium.spaces.Box(0, high, (2, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.low, {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.low, 1.0, self.steps >= 10, False, {}
"""
BOARD_SETTINGS = """
run: {name: board}
environment: {cls: "board_environment:Board", kwargs: {high: HIGH}}
agent: {cls: "tmrl_core.training:DQNAgent"}
actor: {cls: "tmrl_core.actor:QValueMLPActor", kwargs: {hidden_sizes: [8], convolutions: none}}
worker: {max_env_steps_per_update: 8}
server: {port: 0}
trainer: {epochs: 1, rounds: 1, steps: 20, start_training: 50, device: cpu}
"""


def test_the_layout_of_bytes_is_recorded_and_another_one_is_refused_at_a_resume(tmp_path: Path) -> None:
    (tmp_path / "board_environment.py").write_text(BOARD, encoding="utf-8")
    told = []
    for high in (1, 255):
        (tmp_path / "board.yaml").write_text(BOARD_SETTINGS.replace("HIGH", str(high)), encoding="utf-8")
        with in_this_process(tmp_path, ["board_environment"]) as run:
            told.append(run(*THREADS, "-c", "board.yaml", "--set", f"trainer.epochs={1 + (high > 1)}"))
    assert told[0].returncode == 0, told[0]
    starts = [
        one.values["layout"]
        for one in read_records(tmp_path / "runs" / "board" / "metrics.jsonl")
        if "layout" in one.values
    ]
    assert starts == ["itself values 0 to 1"]
    assert told[1].returncode != 0
    assert "the layout of agent.model.actor was itself values 0 to 1 and is itself values 0 to 255" in told[1].stderr


def test_evaluations_and_tests_are_filmed(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="the extra video")
    pytest.importorskip("pygame", reason="the extra render")
    folder = tmp_path / "runs" / "small"
    with in_this_process(tmp_path) as run:
        run(*THREADS, "-c", configured(tmp_path, -1e6), "--set", "worker.evaluation_videos=true")
        videos = list((folder / "worker" / "videos").iterdir())
        assert all(re.fullmatch(r"evaluation-\d+\.mp4", video.name) for video in videos)
        assert min(video.stat().st_size for video in videos) > 1000
        for path in ("test.mp4", "folder"):
            test = ("--test", "--episodes", "1", "-c", str(folder / "config.yaml"), "--video", str(tmp_path / path))
            assert f"video: {tmp_path / path}" in run(*test).stdout
    assert (tmp_path / "test.mp4").stat().st_size > 1000
    assert (tmp_path / "folder" / "episode-1.mp4").stat().st_size > 1000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_signals_write_a_checkpoint_and_end_all_roles_in_order_and_the_run_can_continue(
    start: Start, tmp_path: Path
) -> None:
    """SIGUSR1 and SIGHUP as a scheduler and a lost connection send them."""

    def checkpoint(record: MetricRecord) -> bool:
        return record.values.get("event") == "checkpoint"

    # Only the first samples, signals and the end lead to a checkpoint here.
    arguments = ("--local", "-c", configured(tmp_path, 0.0), *endless(tmp_path), "--set", "trainer.start_training=50")
    process = start(*arguments)
    wait_for(tmp_path, checkpoint, process)
    wait_for(tmp_path, lambda record: record.step >= 100, process)
    process.send_signal(signal.SIGUSR1)
    wait_for(tmp_path, lambda record: checkpoint(record) and record.step >= 100, process)
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "SIGHUP: ending in order" in out
    assert out.rstrip().endswith("the same command resumes from the checkpoint.")
    assert roles_running(tmp_path) == []
    run = tmp_path / "runs" / "small"
    for name in ("worker-1", "worker-2"):
        assert " 0 lost" in (run / "logs" / f"{name}.log").read_text(encoding="utf-8")
    episodes = [record for record in read_records(run / "metrics.jsonl") if record.kind == "episode"]
    assert {record.text("worker") for record in episodes} == {"worker-1", "worker-2"}
    assert "the control pipe: a checkpoint is requested" in (run / "logs" / "trainer.log").read_text(encoding="utf-8")
    done = max(record.step for record in read_records(run / "metrics.jsonl"))
    # In this process, because the continuation is the same there.
    reader = follow(run / "metrics.jsonl")

    def press_ctrl_c() -> None:
        until(lambda: any(record.step > done for record in reader.read()), limit_s=110)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press_ctrl_c)
    pressing.start()
    with in_this_process(tmp_path, ["slow_environment"]) as again:
        ended = again(*arguments, "--single-process")
    pressing.join()
    assert ended.returncode == 0, ended.stderr
    assert "ending in order" in ended.stderr
    # It went on: nothing was collected anew, and rounds count on.
    rounds = [record.step for record in read_records(run / "metrics.jsonl") if record.kind == "round"]
    assert rounds == sorted(set(rounds))


def test_the_default_configuration_trains(tmp_path: Path) -> None:
    changes = ("trainer.epochs=1", "trainer.rounds=1", "trainer.steps=20", "trainer.device=cpu")
    with in_this_process(tmp_path) as run:
        done = run(*THREADS, *(word for change in changes for word in ("--set", change)))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "default" / "policy.tmod").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_a_default_port_that_is_taken_gives_way_and_other_commands_find_the_new_one(
    start: Start, tmp_path: Path
) -> None:
    with socket.socket() as holder:
        with contextlib.suppress(OSError):  # taken by another program: as good
            holder.bind(("127.0.0.1", 55555))
            holder.listen()
        small = ("-c", configured(tmp_path, 0.0), "--set", "server.port=null")
        process = start("--local", *small, "--workers", "1", *endless(tmp_path))
        assert process.stdout is not None
        told = next(line for line in process.stdout if "Port 55555 is taken" in line)
        found = re.search(r"the Server of run small listens on port (\d+)\.", told)
        assert found is not None, told
        wait_for(tmp_path, lambda record: record.kind == "episode", process)
        seen = start("--status", "--json", *small, "--log-level", "error")
        played = start("--worker", *small, "--set", "worker.nb_episodes=1", "--set", "worker.name=more")
        status, _ = seen.communicate(timeout=60)
        assert seen.returncode == 0, status
        assert [one["worker"] for one in json.loads(status)["streams"] if one["worker"] != "more"] == ["worker-1"]
        out, _ = played.communicate(timeout=60)
        assert played.returncode == 0, out
        assert f"the Server of run small listens on port {found[1]}" in out
        # A port that is set is refused, with its holder.
        refused = start("--local", *small, "--set", f"server.port={found[1]}", "--set", "run.name=second")
        out, _ = refused.communicate(timeout=60)
        assert refused.returncode == 1, out
        assert f"port {found[1]}" in out
        assert sys.platform != "linux" or re.search(r"held by process \d+ \(.* -m tmrl_core --server", out), out
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    record = tmp_path / "runs" / "small" / "server_port"
    assert (recorded_port(record), recorded_port(record, ended=True)) == (None, int(found[1]))


@pytest.mark.full
@pytest.mark.timeout(700)  # it is updates that count: on a busy machine they take their time
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_the_three_commands_learn_without_configuration(start: Start, tmp_path: Path) -> None:
    server = start("--server", "--announce", "--set", "server.port=0")
    assert server.stdout is not None
    # Its messages come on the same pipe here.
    port = next(json.loads(line)["port"] for line in server.stdout if line.startswith("{"))
    others = [start(role, TMRL_CORE_SERVER_PORT=str(port)) for role in ("--worker", "--trainer")]
    returns: list[float] = []

    def learned(record: MetricRecord) -> bool:
        value = record.number("rollout/ep_rew") if record.kind == "episode" else None
        returns.extend([] if value is None else [value])
        assert record.step < LEARNED_BY, f"after {record.step} updates the latest returns are {returns[-5:]}"
        # Episodes of a policy that knows nothing return about -1300, and hardly ever more than -900.
        return len(returns) >= 5 and sum(returns[-5:]) / 5 > -600

    wait_for(tmp_path, learned, others[1], name="default", limit_s=600)
    for process in (*others, server):
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out


def wait_for(
    folder: Path,
    wanted: Callable[[MetricRecord], bool],
    process: subprocess.Popen[str],
    *,
    name: str = "small",
    limit_s: float = 110.0,
) -> None:
    """Until a new record is as wanted; the process that leads to it must not end before."""
    reader = follow(folder / "runs" / name / "metrics.jsonl")
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if any(wanted(record) for record in reader.read()):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"it ended with {process.wait(0.1)} before the records came")
    pytest.fail("the records did not come")


SYNCHRONOUS = """
run: {name: small}
environment: {kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [8]}}
worker: {collection: synchronous, max_samples_per_episode: 25, initial_steps: 60, max_steps_per_update: 30}
server: {port: 0}
memory: {batch_size: 16}
trainer:
  epochs: 1
  rounds: 3
  steps: 50
  start_training: 50
  update_model_interval: 20
  update_buffer_interval: 10
  device: cpu
  threads: 1
  evaluation: {episodes: 1, every_updates: 40}
"""


RUNS = (("first", 7), ("second", 7), ("third", 8))
"""Folders and seeds."""


def test_a_run_reports_that_nothing_was_learned_leaves_its_files_and_repeats_with_its_seed(
    start: Start, tmp_path: Path
) -> None:
    """Synchronous collection with one worker: between processes as among threads, however fast either side is."""
    chosen = [*synchronous(tmp_path), "--set", "trainer.evaluation.target_return=0.0"]
    process = start("--local", "--workers", "1", "--quickstart", *chosen, "--seed", "7", "--set", "run.folder=first")
    out, _ = process.communicate(timeout=110)
    assert process.returncode == 1, out
    assert roles_running(tmp_path) == []
    run = tmp_path / "first" / "small"
    for name in ("learning_curve.png", "metrics.jsonl", "policy.tmod", "config.yaml", "checkpoint"):
        assert (run / name).exists(), name
    assert {path.name for path in (run / "logs").iterdir()} == {"server.log", "trainer.log", "worker-1.log"}
    assert out.rstrip().splitlines()[-1].startswith("Not learned: the last evaluation of 1 episodes has a mean return")
    assert "python -m tmrl_core --credentials bundle worker --name robot7" in out
    assert load(run / "config.yaml", environ={}).run.name == "small"
    episodes = [record for record in read_records(run / "metrics.jsonl") if record.kind == "episode"]
    assert {record.text("worker") for record in episodes} == {"worker-1"}
    with in_this_process(tmp_path) as command:
        # The policy that it left plays without a server.
        played = command("--test", "--episodes", "2", "-c", str(run / "config.yaml"))
        assert "mean return of 2 episodes" in played.stdout
        for folder, seed in RUNS[1:]:
            more = ("--seed", str(seed), "--set", f"run.folder={folder}")
            assert command(*THREADS, *chosen, *more).returncode == 1
    assert not (tmp_path / "second" / "small" / "logs").exists()
    assert outcome(tmp_path / "first") == outcome(tmp_path / "second")
    assert outcome(tmp_path / "first")[0] != outcome(tmp_path / "third")[0]


@pytest.mark.full
@pytest.mark.parametrize("how", ["tls", "threads"])
def test_runs_beside_each_other_do_not_change_with_their_speed(start: Start, tmp_path: Path, how: str) -> None:
    chosen = synchronous(tmp_path)
    if how == "threads":
        chosen += ["--single-process", "--set", "worker.end_episodes=false", "--set", "worker.send_every=7"]
    # One run alone, then two at the same time.
    for together in (RUNS[:1], RUNS[1:]):
        processes = []
        for folder, seed in together:
            more = ("--seed", str(seed), "--set", f"run.folder={folder}")
            processes.append(start("--local", "--workers", "1", *chosen, *more))
        for process in processes:
            out, _ = process.communicate(timeout=100)
            assert process.returncode == 0, out
    assert outcome(tmp_path / "first") == outcome(tmp_path / "second")
    assert outcome(tmp_path / "first")[0] != outcome(tmp_path / "third")[0]


def synchronous(folder: Path) -> list[str]:
    """Write the configuration; return the arguments that name it."""
    path = folder / "synchronous.yaml"
    path.write_text(SYNCHRONOUS, encoding="utf-8")
    return ["-c", str(path)]


def outcome(folder: Path) -> tuple[bytes, list[object]]:
    """Return the weights of a run, and its rounds' steps and losses."""
    rounds = [record for record in read_records(folder / "small" / "metrics.jsonl") if record.kind == "round"]
    figures: list[object] = [(one.step, one.env_steps, one.values["train/critic_loss"]) for one in rounds]
    return (folder / "small" / "policy.tmod").read_bytes(), figures
