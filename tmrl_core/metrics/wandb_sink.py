"""Sink for Weights & Biases, online if possible and else offline. It never delays training."""

# Theory of operation
#
# For: wandb's charts of a run, by all three axes. Everything that can take time, wandb's import included, happens at
# the first `write`, in the thread of this sink. Meanwhile records wait in the Recorder's bounded queue.
#
# Behaviour of wandb (0.31), and what this file does about it:
#
# - `wandb.init` without a key asks for one on a terminal and raises elsewhere. So the key is looked up first, where
#   `wandb login` and the environment put it, and without one the run is offline.
# - With a key and no network, `wandb.init` tries for 90 s and then raises. Its limit is set (10 s), and an offline run
#   follows.
# - Offline, wandb's own process writes every few seconds. The end of a killed trainer is in `metrics.jsonl` only;
#   `--metrics send` gives wandb all records from there.
# - `run.finish` waits for the upload for ever. It gets a limit, and what is missing stays on the disk for `wandb sync`.
# - wandb captures the console. That is off, because the live display draws there.
# - Its steps only grow, and records of several kinds do not come in one order. So the step is left to wandb, and each
#   record carries the three axes as values; `define_metric` makes one of them the axis of all charts.
# - A resumed run keeps its id (of the run's folder), also offline: `wandb sync` then asks for the steps that are there
#   and goes on after them, instead of sending the resumed part over the first one.
#
# Files go beside the records: videos into the charts, at the environment steps of their evaluation; the policy as an
# artifact of type `model`, with the alias `best` after each best evaluation and `final` at the end (wandb adds `latest`
# to each newest one). Each evaluation's policy would be hundreds of megabytes for a run of images. A failure there is
# logged once and must not make `write` fail, because the recorder would write the record again.
#
# The key is a secret. It is passed to wandb as an object, never put into `os.environ`, where child processes and error
# reports would find it, and taken out of wandb's error texts.

from __future__ import annotations

import importlib.util
import logging
import math
import netrc
import os
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tmrl_core.errors import MissingExtraError
from tmrl_core.metrics import names
from tmrl_core.metrics.reading import iter_records
from tmrl_core.metrics.records import Axis, Kind, MetricRecord
from tmrl_core.metrics.run_files import RunFiles
from tmrl_core.metrics.sinks import MetricSink
from tmrl_core.metrics.standard import SinkRun

logger = logging.getLogger(__name__)

_AXES: Mapping[Axis, str] = {
    "env_steps": names.SAMPLES_RECEIVED,
    "updates": names.UPDATES,
    "wall_time": names.ELAPSED,
}


VIDEO = "eval/video"


def of_run(run: SinkRun, policy: Path | None = None, **settings: Any) -> WandbSink:
    """Make the sink of a run.

    Args:
        run: the run.
        policy: file of the trainer's current weights; None: no files are stored.
        settings: of `WandbSink`.
    """
    if policy is None:
        return WandbSink(folder=run.folder, x_axis=run.x_axis, **settings)
    # Of a resumed run, so that a worse evaluation than that before does not become the best one.
    unread: tuple[Kind, ...] = ("round", "network", "episode", "event")
    earlier = () if run.cut is None else iter_records(run.folder / "metrics.jsonl", without=unread)
    scores = [each.number(names.RETURN_EVALUATION) for each in earlier]
    best = max((score for score in scores if score is not None), default=-math.inf)
    files = RunFiles(run.folder, policy)
    return WandbSink(folder=run.folder, x_axis=run.x_axis, files=files, best=best, **settings)


class WandbSink(MetricSink):
    """Sink that logs each record's metrics with all three axes: environment steps, updates and time.

    `WANDB_MODE` (online, offline, disabled) and wandb's other settings apply as usual.

    Args:
        project: wandb's project.
        entity: user or team; None: wandb's default.
        run_id: identity of the run, under which a resumed run continues; None: wandb creates one.
        run_name: name to show.
        group: group of runs that are shown together.
        tags: tags of the run.
        notes: notes on the run.
        folder: folder of wandb's files (in `wandb/` below it); created if it is missing.
        config: settings of the run to show; without secrets.
        x_axis: default horizontal axis of every chart.
        files: of the run, to store beside its records; None: none.
        best: mean return of the run's best evaluation until now.
        key: wandb's API key; None: `WANDB_API_KEY`, wandb's settings or the netrc file, where `wandb login` puts it.
        start_limit_s: maximum wait for wandb's server at the start; then the run is offline.
        finish_limit_s: maximum wait for the upload at the end.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(
        self,
        *,
        project: str,
        folder: str | os.PathLike[str],
        entity: str | None = None,
        run_id: str | None = None,
        run_name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        config: Mapping[str, Any] | None = None,
        x_axis: Axis = "env_steps",
        files: RunFiles | None = None,
        best: float = -math.inf,
        key: str | None = None,
        start_limit_s: float = 10.0,
        finish_limit_s: float = 10.0,
    ) -> None:
        # A folder `wandb` in the current directory is found as a namespace package, which has no origin. The import of
        # wandb itself takes a second, which is spent in this sink's thread.
        found = importlib.util.find_spec("wandb")
        if found is None or found.origin is None:
            raise MissingExtraError("wandb", "wandb", "The wandb sink")
        self.folder = Path(folder)
        self.mode = ""
        """`online`, `offline` or `disabled` once wandb has started; "" before."""
        self._identity: dict[str, Any] = {"project": project, "entity": entity, "id": run_id, "name": run_name}
        # Omitted settings stay unchanged, even if a user has changed them in wandb.
        self._identity |= {
            name: value for name, value in (("group", group), ("tags", list(tags)), ("notes", notes)) if value
        }
        self._config = dict(config or {})
        self._x_axis = _AXES[x_axis]
        self._files = files
        self._evaluations: dict[int, Mapping[str, float]] = {}
        """Axes of the evaluations whose videos may still come, by number."""
        self._best = best
        self._failed = False
        self._latest: Mapping[str, float] = {}
        """Axes of the latest record."""
        self._key = key
        self._start_limit_s = start_limit_s
        self._finish_limit_s = finish_limit_s
        self._run: Any = None
        # If the offline start fails too, the next write starts again, and does not wait for the network once more.
        self._unreachable = False
        self._closed = False

    def write(self, record: MetricRecord) -> None:
        """Log the record's metrics; the first call starts wandb, which takes up to `start_limit_s` and a few seconds.

        Raises:
            Exception: errors of wandb, without the key.
        """
        if self._closed:
            raise ValueError("the sink is closed")
        if self._run is None:
            self._run = self._start()
        values = record.numbers()
        # A record of labels alone would be a step without a point.
        axes = {
            names.UPDATES: record.step,
            names.ELAPSED: record.elapsed_s,
            names.SAMPLES_RECEIVED: record.env_steps or 0,
        }
        if values:
            self._run.log({**axes, **values})
        if self._files is not None:
            self._latest = axes
            self._note_evaluation(record, axes)
            self._store(self._store_videos, self._evaluations)

    def flush(self) -> None:
        """Do nothing: wandb's own process has each record, and decides when to write and send it."""

    def close(self) -> None:
        """Finish the run. Wait for wandb's upload for at most `finish_limit_s`."""
        self._closed = True
        if self._run is not None and self._files is not None:
            self._store(self._store_videos, None)
            self._store(self._store_policy, "final", self._latest)
        run, self._run = self._run, None
        if run is not None:
            run.finish()
            if self.mode == "offline":
                logger.info("wandb kept this run on disk; `wandb sync %s` uploads it", Path(run.dir).parent)

    def _note_evaluation(self, record: MetricRecord, axes: Mapping[str, float]) -> None:
        """Remember where an evaluation's video belongs, and store the policy after the best one."""
        if record.kind != "evaluation":
            return
        if (number := record.values.get(names.EVALUATION)) is not None:
            self._evaluations[int(number)] = axes
        score = record.number(names.RETURN_EVALUATION)
        if score is not None and score > self._best:
            self._best = score
            self._store(self._store_policy, "best", {**axes, names.RETURN_EVALUATION: score})

    def _store(self, store: Callable[..., None], *arguments: Any) -> None:
        try:
            store(*arguments)
        except Exception as error:  # the record is written, and writing it again would double it
            if not self._failed:
                self._failed = True
                logger.warning("wandb does not store files of this run: %s: %s", type(error).__name__, error)

    def _store_videos(self, evaluations: Container[int] | None) -> None:
        import wandb

        assert self._files is not None
        for number, path in self._files.new_videos(evaluations):
            video = wandb.Video(str(path), caption=f"evaluation {number}", format="mp4")
            self._run.log({**self._evaluations.pop(number, self._latest), VIDEO: video})

    def _store_policy(self, alias: str, metadata: Mapping[str, float]) -> None:
        import wandb

        assert self._files is not None
        if self._files.policy.is_file():
            artifact = wandb.Artifact(f"policy-{self._run.id}", type="model", metadata=dict(metadata))
            artifact.add_file(str(self._files.policy), name="policy.tmod", policy="mutable")
            self._run.log_artifact(artifact, aliases=[alias])

    def _start(self) -> Any:
        import wandb

        # wandb takes the system's temporary folder instead of one that is missing.
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.setup().settings
        wanted = str(settings.mode)
        if wanted in ("offline", "dryrun", "disabled"):
            mode = "disabled" if wanted == "disabled" else "offline"
            return self._init(wandb, mode, key=None)
        key, elsewhere = self._find_key(settings)
        if key is None and not elsewhere:
            logger.info("wandb has no API key (`wandb login` or WANDB_API_KEY), so this run is logged offline")
            return self._init(wandb, "offline", key=None)
        if not self._unreachable:
            try:
                return self._init(wandb, "online", key=key)
            except Exception as error:
                self._unreachable = True
                # The first line: the others are a trace of wandb's own process.
                text = str(error).strip().splitlines()
                reason = _without_key(text[0] if text else type(error).__name__, key)
                logger.warning("wandb is not reachable or refuses (%s); this run is logged offline", reason)
        return self._init(wandb, "offline", key=None)

    def _init(self, wandb: Any, mode: str, *, key: str | None) -> Any:
        settings: dict[str, Any] = {
            "mode": mode,
            "console": "off",
            "silent": True,
            "init_timeout": self._start_limit_s,
            # Allow other runs in this process, for example of another trainer.
            "reinit": "create_new",
        }
        if key is not None:
            settings["api_key"] = key
        known = wandb.Settings.model_fields  # older ones of the versions that the extra allows have no such limit
        if "finish_timeout" in known:
            settings["finish_timeout"] = self._finish_limit_s
        run = wandb.init(
            dir=str(self.folder),
            config=self._config,
            # Offline too: `wandb sync` then asks for the steps that the run has, and continues after them.
            resume="allow" if self._identity["id"] else None,
            settings=wandb.Settings(**settings),
            **self._identity,
        )
        self.mode = mode
        # Records of several kinds do not arrive in the order that wandb's step counter requires.
        run.define_metric(self._x_axis, hidden=True)
        run.define_metric("*", step_metric=self._x_axis)
        if mode == "online":
            logger.info("wandb shows this run at %s", run.url)
        return run

    def _find_key(self, settings: Any) -> tuple[str | None, bool]:
        """Return the API key, and True if wandb can log in by other means. It must never ask on the terminal."""
        if self._key is not None:
            return self._key, True
        if os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
            return None, True
        key = os.environ.get("WANDB_API_KEY") or settings.api_key
        return key or _netrc_key(str(settings.base_url)), False


def _netrc_key(base_url: str) -> str | None:
    path = os.environ.get("NETRC")
    try:
        candidates = [Path(path)] if path else [Path.home() / ".netrc", Path.home() / "_netrc"]
    except RuntimeError:  # this user has no home folder
        return None
    host = urlsplit(base_url).netloc
    for candidate in candidates:
        try:
            entries = netrc.netrc(candidate)
        except (OSError, netrc.NetrcParseError):
            continue
        for name in (host, "api.wandb.ai"):
            # netrc's `default` entry is for other services, so only the entries in `hosts` count.
            if name in entries.hosts:
                return entries.hosts[name][2] or None
    return None


def _without_key(text: str, key: str | None) -> str:
    return text.replace(key, "***") if key else text
