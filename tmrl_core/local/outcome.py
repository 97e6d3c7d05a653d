"""Summary of a run on one machine for its user, made from the run's records."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tmrl_core.config import Config
from tmrl_core.config.sections import WorkerSection
from tmrl_core.errors import CheckpointError, MissingExtraError
from tmrl_core.metrics import names
from tmrl_core.metrics.records import MetricRecord
from tmrl_core.metrics.text import duration_text, return_text
from tmrl_core.roles.from_config import GYMNASIUM_ENVIRONMENTS

FINISHED_BEFORE = (
    "this run was finished before. To continue, raise trainer.epochs; to start again, add --new or choose another "
    "run.name."
)
NO_EVALUATION = "the policy was not evaluated (trainer.evaluation.every_updates is 0)"
MANY_STEPS_PER_UPDATE = 100
"""More than any robot or game at a rate makes beside a trainer."""


class Outcome:
    """Summary of a run, made from its records.

    Args:
        target_return: mean return of an evaluation that counts as learned; None: the run has no target.
        evaluates: False: the configuration has no evaluation.
    """

    def __init__(self, target_return: float | None, evaluates: bool = True) -> None:
        self.target_return = target_return
        self.evaluates = evaluates
        self.reached = False
        self.last: MetricRecord | None = None
        """Return the latest evaluation."""
        self.best: float | None = None
        self.samples = 0
        self.updates = 0
        self.elapsed_s = 0.0
        self.trained_s = 0.0
        """Time since the first update."""
        self.lack = ""
        """Wait reason of the trainer; empty while it trains."""
        self._has_phase = False
        self._first: tuple[float, int, int] | None = None
        """Time, samples and updates of the first record with an update."""

    def take(self, records: Iterable[MetricRecord]) -> None:
        """Add new records, oldest first."""
        for record in records:
            self._has_phase = True
            if record.step > self.updates:
                self.lack = ""
            self.updates = max(self.updates, record.step)
            self.elapsed_s = max(self.elapsed_s, record.elapsed_s)
            self.samples = int(record.number(names.SAMPLES_RECEIVED) or self.samples)
            if self.updates and self._first is None:
                self._first = self.elapsed_s, self.samples, self.updates
            self.trained_s = 0.0 if self._first is None else self.elapsed_s - self._first[0]
            if names.LACK in record.values:
                self.lack = record.text(names.LACK)
            mean = record.number(names.RETURN_EVALUATION) if record.kind == "evaluation" else None
            if mean is None:
                continue
            self.last = record
            self.best = mean if self.best is None else max(self.best, mean)
            self.reached = self.target_return is not None and mean >= self.target_return

    @property
    def learned(self) -> bool:
        """True: the latest evaluation reached the target, or there was no target."""
        return self.reached or self.target_return is None

    def sentence(self) -> str:
        """Summarize the result of learning, or the reason for its absence."""
        if not self._has_phase:  # a trainer that trains writes a record of its phase first
            return f"Nothing was trained: {FINISHED_BEFORE}"
        effort = f"{self.samples:,} environment steps, {self.updates:,} updates, {duration_text(self.elapsed_s)}"
        evaluated = "no evaluation was finished" if self.evaluates else NO_EVALUATION
        if self.last is not None:
            mean = self.last.number(names.RETURN_EVALUATION) or 0.0
            episodes = self.last.number(names.EPISODES)
            of = f" of {episodes:.0f} episodes" if episodes else ""
            evaluated = f"the last evaluation{of} has a mean return of {return_text(mean, self.target_return)}"
            if self.best is not None and self.best > mean:
                evaluated += f" (best: {return_text(self.best, self.target_return)})"
        target = return_text(self.target_return)
        if self.target_return is None:
            return f"Done: {evaluated}; {effort}."
        if self.reached:
            return f"Learned: {evaluated}, the target is {target}; {effort}."
        if self.samples == 0:
            return f"Not learned: no sample reached the trainer in {duration_text(self.elapsed_s)}."
        return f"Not learned: {evaluated}, the target is {target}; {effort}."

    def advice(self, worker: WorkerSection) -> str:
        """Return how to give the processor to a trainer that simulators have starved of it; else an empty text."""
        # The samples before the first update (`trainer.start_training`) starve nobody.
        _, samples, updates = self._first if self._first is not None and self.trained_s else (0.0, 0, 0)
        steps = (self.samples - samples) // max(self.updates - updates, 1)
        waits = worker.collection != "asynchronous" or worker.max_env_steps_per_update is not None
        if waits or not self.updates or steps < MANY_STEPS_PER_UPDATE:
            return ""
        return (
            f"The workers made {steps:,} steps for each update. worker.max_env_steps_per_update: 1 lets simulators on "
            "the trainer's machine wait for it, and it learns faster."
        )


def draw_curve(config: Config) -> str:
    """Draw the run's learning curve, if it is not drawn yet. Return an empty text, or the reason for its absence."""
    from tmrl_core.metrics import draw

    metrics, picture = (config.run_folder / name for name in ("metrics.jsonl", "learning_curve.png"))
    if not metrics.exists():
        return ""
    # The trainer has drawn it when it ended. If it was killed, whoever started it does.
    if picture.exists() and picture.stat().st_mtime >= metrics.stat().st_mtime:
        return ""
    try:
        draw(
            config.run_folder,
            run_name=config.run.name,
            return_target=config.trainer.evaluation.target_return,
            x_axis=config.metrics.x_axis,
        )
    except (MissingExtraError, OSError) as exc:
        return f"No picture of the learning curve: {exc}"
    return ""


FILES = (
    ("learning_curve.png", "the learning curve"),
    ("policy.tmod", "the final weights"),
    ("checkpoint", "to go on from"),
    ("metrics.jsonl", "all metrics"),
    ("tensorboard", "the same for TensorBoard: tensorboard --logdir"),
    ("config.yaml", "the configuration in force, every key"),
    ("logs", "log of each role"),
)


def has_checkpoint(path: Path | None) -> bool:
    """Return True if there is a checkpoint. A folder that a trainer has only prepared contains just a lock file."""
    return path is not None and (path.is_file() or any(entry.name.isdecimal() for entry in path.glob("*")))


def is_finished(config: Config) -> bool:
    """Return True if the newest checkpoint has all epochs, so that a trainer of this run would train nothing.

    It reads a manifest, which takes no import of torch. False: unknown, as for the checkpoints of a custom format.
    """
    path = config.checkpoint_path
    if path is None or not path.is_dir():
        return False
    from tmrl_core.training.checkpoints.manifest import read_manifest

    with contextlib.suppress(CheckpointError, OSError):
        numbered = [entry for entry in path.iterdir() if entry.name.isdecimal()]
        epoch = read_manifest(max(numbered, key=lambda entry: int(entry.name), default=path)).epoch
        return epoch is not None and epoch >= config.trainer.epochs
    return False


def files(folder: Path) -> str:
    """Return the run's existing files, one per line."""
    there = [(name, what) for name, what in FILES if (folder / name).exists()]
    if not has_checkpoint(folder / "checkpoint"):
        there = [(name, what) for name, what in there if name != "checkpoint"]
    lines = [f"  {name + (os.sep if (folder / name).is_dir() else ''):<20} {what}" for name, what in there]
    return "\n".join([f"Files in {folder}{os.sep}", *lines])


def python_here() -> str:
    """Return the command of the running Python: `python` if it is on the path, else its path, relative if possible."""
    found = shutil.which("python")
    if found is not None and os.path.samefile(Path(found).parent, Path(sys.executable).parent):
        return "python"
    try:
        return str(Path(sys.executable).relative_to(Path.cwd()))
    except ValueError:
        return sys.executable


def _seen_with(config: Config) -> str:
    """Return the option of `--test` that can show the environment on this machine; empty if none is known."""
    if config.environment.cls not in GYMNASIUM_ENVIRONMENTS or importlib.util.find_spec("pygame") is None:
        return ""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return " --render"
    return " --video test.mp4" if importlib.util.find_spec("imageio_ffmpeg") is not None else ""


def what_next(config: Config) -> str:
    """Return the commands to type next: play, continue, split the roles over machines."""
    path = config.written_run_folder / "config.yaml"
    python = python_here()
    seen = _seen_with(config)
    play = "watch what it does" if seen else "play ten episodes"
    return f"""\
What to type next:
  {play:<29}{python} -m tmrl_core --test -c {path}{seen}
  each role by itself          {python} -m tmrl_core --server (then --trainer, --worker, each in a terminal of its own)
  and on three machines, with config/three_machines.yaml as a start (set server.host to the first one's name):
    on the Server's machine    python -m tmrl_core --credentials create --host NAME
                               python -m tmrl_core --credentials bundle trainer --name hpc
                               python -m tmrl_core --credentials bundle worker --name robot7
                               python -m tmrl_core --server -c FILE
    on the trainer's           python -m tmrl_core --credentials install hpc.trainer.bundle
                               python -m tmrl_core --trainer -c FILE
    on each worker's           python -m tmrl_core --credentials install robot7.worker.bundle
                               python -m tmrl_core --worker -c FILE"""
