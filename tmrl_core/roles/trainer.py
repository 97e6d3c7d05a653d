"""Trainer: learns from workers' samples, publishes policies, writes checkpoints."""

# Theory of operation
#
# This file is the trainer as a whole: it brings together a training object (loop, agent, memory), the link to the
# Server, checkpoints, records and the file of the current weights, and decides when each of them begins and ends. It
# trains nothing (`training/loops`), knows nothing of messages (`LinkedTraining`), and does not know how a checkpoint
# looks (`RunCheckpoints`).
#
# Threads. One thread trains: the one that calls `run`, or `train_iteration`. The link has its I/O thread, and
# checkpoints are written by a third. Other threads call `stop`, `checkpoint` and `close` only; the first two set flags
# that the training thread looks at between two updates.
#
# The order of `run`, and why:
#
# - The run's folder is tried before anything is made: a run that cannot write its results should fail in its first
#   second, not after its first epoch.
# - Torch is prepared before the training object, whose networks go to the device.
# - The checkpoint is read, or a new object made, before the link: with the object come the offsets of the streams,
#   which say what the Server must send, and the incarnation, which must be above every one used before.
# - The folder of a memory on disk is claimed: two trainers in one folder would mix two runs.
# - Records that were written after the checkpoint are cut off. An example: a trainer wrote a checkpoint at update
#   1,000, records up to update 1,400, and was killed. It resumes at 1,000; without the cut, metrics.jsonl would hold
#   two different branches of 1,001 to 1,400.
# - The link opens. Only after the Server has admitted this trainer are the configuration in force and the weights
#   written: a trainer that is refused, because another one trains this run, must not replace that one's files by an
#   untrained policy.
# - Epochs follow, each with a checkpoint, until all are done, the target is reached twice, the time is over, or a stop
#   is requested.
# - At the end the workers are told, their last samples are stored, the last checkpoint and the weights are written, and
#   the event with the reason is recorded, also after a failure.
#
# Reaching the target takes two evaluations. The first one judges a policy that is some updates old, and one lucky
# evaluation is not a result: the current policy is evaluated again, and only that ends the run.
#
# What fails. A full disk at the end does not lose a finished run: `_write_end` retries for ten minutes. A broken link
# does not end anything; the link connects again while training goes on with what it has. A failed update is rolled back
# by the loop. What does reach this file as an exception (no checkpoint can be written, workers and trainer wait for
# each other for ever, a permanent refusal) ends `run` with the memory's folder released and the reason in the records.
#
# `train_iteration` is the same round by round: the object and the link stay between the calls, and the caller decides
# about checkpoints and the end. A trainer from recorded sessions alone has neither Server nor
# workers (`without_server.py`).

from __future__ import annotations

import contextlib
import logging
import math
import random
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from gymnasium import Space

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.config import CFG, Cfg, Config, current, given, ratios_conflict, with_changes
from tmrl_core.config.descriptions import described_by
from tmrl_core.config.run_folder import check_run_folder, run_id, write_in_force
from tmrl_core.config.sections import NetworkSection
from tmrl_core.errors import CheckpointError, ConfigError, LinkClosedError, NetworkError, StorageError
from tmrl_core.metrics import names
from tmrl_core.metrics.branch import cut_after
from tmrl_core.metrics.console import show_messages
from tmrl_core.metrics.latest import LatestSink
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.standard import WandbSettings, open_sinks
from tmrl_core.networking.transports.selection import link_settings
from tmrl_core.roles.training_object import prepare_torch, training_from_config
from tmrl_core.roles.without_server import OfflineInterface
from tmrl_core.samples import EpisodeRecord
from tmrl_core.signal_handlers import take_back
from tmrl_core.training.checkpoints.model_file import ModelFile
from tmrl_core.training.checkpoints.resumption import RunCheckpoints, log_kept_memory
from tmrl_core.training.contracts import LoopLike, TrainingLoop, actor_of, as_loop
from tmrl_core.training.memories.owner import claim_folder
from tmrl_core.training.remote.linked_training import LinkedTraining
from tmrl_core.training.remote.run_shutdown import RunShutdown

if TYPE_CHECKING:
    from tmrl_core.training.remote.interface import RemoteInterface

logger = logging.getLogger(__name__)

FINISHED_S = 5.0
"""Maximum wait in seconds for a Server if the checkpoint is of a finished run, so that workers are informed."""
ROOM_S = 600.0
"""Seconds during which the trainer retries to write the end of a run to a disk that fails or is full."""
ROOM_RETRY_S = 5.0
END_SHOWN_S = 1.0
"""Maximum wait in seconds for the sinks, before viewers are sent the last scene."""


@described_by(NetworkSection)
class Trainer:
    """Train with samples that a Server relays from RolloutWorkers.

    Parameters with the default `cfg` come from the configuration when they are left out.

    Args:
        training_cls: callable without arguments that creates the training object (`TrainingOffline` or a similar one).
        server_ip: name or address of the Server; None: this machine.
        server_port: port of the Server.
        password: the token.
        security: "TLS", or None for plain TCP.
        model_path: file of the current weights; None: they are not written.
        checkpoint_path: folder of checkpoints; None: no checkpoints.
        dump_run_instance_fn: `(run_instance, path)` writes a checkpoint; None: the project's own format, or the
            training object's `save` if it has its own format.
        load_run_instance_fn: `(path) -> run_instance` reads a checkpoint.
        updater_fn: `(run_instance, training_cls) -> run_instance`, called after a checkpoint was loaded.
        config: the configuration; None: the one in use.
        run_name: name of the run.

    Raises:
        ConfigError: the settings are invalid.
    """

    def __init__(
        self,
        training_cls: Callable[[], LoopLike] | Cfg = CFG,
        server_ip: str | Cfg | None = CFG,
        server_port: int | Cfg = CFG,
        password: str | Cfg | None = CFG,
        security: Literal["TLS"] | Cfg | None = CFG,
        hostname: str | Cfg | None = CFG,
        model_path: str | Path | Cfg | None = CFG,
        checkpoint_path: str | Path | Cfg | None = CFG,
        dump_run_instance_fn: Callable[[Any, Path], None] | None = None,
        load_run_instance_fn: Callable[[Path], Any] | None = None,
        updater_fn: Callable[[Any, Callable[[], Any]], Any] | None = None,
        *,
        config: Config | None = None,
        transport: str | Cfg = CFG,
        run_name: str | Cfg = CFG,
    ) -> None:
        show_messages()
        config = self._config = config if config is not None else current()
        self._configured = isinstance(training_cls, Cfg)
        self.training_cls: Callable[[], LoopLike] = (
            training_from_config(config) if isinstance(training_cls, Cfg) else training_cls
        )
        settings = link_settings(
            config,
            host=server_ip,
            port=server_port,
            transport=transport,
            security=security,
            hostname=hostname,
            password=password,
        )
        self._run_name = given(run_name, config.run.name)
        # Taken now: `current()` and the working folder may be others when `run` is called.
        model = given(model_path, config.trainer_model_path)
        # Absolute, because the environment may change the working folder.
        self._model = ModelFile(Path(model).absolute() if model is not None else None)
        checkpoint = given(checkpoint_path, config.checkpoint_path)
        self._checkpoints = RunCheckpoints(
            Path(checkpoint).absolute() if checkpoint is not None else None,
            config,
            self._make,
            dump_run_instance_fn,
            load_run_instance_fn,
            None if updater_fn is None else lambda training: updater_fn(training, self.training_cls),
            configured=self._configured,
        )
        self._checkpoint_told: tuple[int, int] | None = None
        self._latest: LatestSink | None = None
        """Sink of the run's records whose values viewers see."""
        self._linked = LinkedTraining(settings, config, self._run_name, self._write_weights)
        self._running: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._recorder: Recorder | None = None
        """Recorder of `train_iteration`, open between the rounds, as its link is."""
        self._closing = contextlib.ExitStack()
        self._episodes: list[EpisodeRecord] = []
        """Training episodes that ended in the round of `train_iteration`."""
        self.training: Any = None
        """The training object, once `run`, `train_iteration` or `restore` has made or loaded it."""

    @property
    def leads(self) -> bool:
        """True: this process shows the run. Only one of several that train together does."""
        return True

    @property
    def checkpoint_path(self) -> Path | None:
        """Folder of checkpoints; None: no checkpoints."""
        return self._checkpoints.path

    @checkpoint_path.setter
    def checkpoint_path(self, path: Path | None) -> None:
        self._checkpoints.path = path

    @property
    def model_path(self) -> Path | None:
        """File of the current weights; None: they are not written."""
        return self._model.path

    @model_path.setter
    def model_path(self, path: Path | None) -> None:
        self._model.path = path

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train until the epochs are done, the target or the time limit is reached, or `stop`; in any thread.

        Raises:
            CheckpointError: no checkpoint can be written, or none of the existing ones can be used.
            StarvedError: workers and trainer wait for each other.
            TmrlError: credentials are missing, or the Server refuses this trainer permanently.
        """
        self._run(None)

    def run_with_wandb(
        self,
        entity: str | Cfg | None = CFG,
        project: str | Cfg = CFG,
        run_id: str | Cfg | None = CFG,
        key: str | None = None,
    ) -> None:
        """Do the same as `run`, and send the records to wandb too. A failure of wandb never stops training.

        Raises:
            TmrlError: see `run`.
        """
        metrics, run = self._config.metrics, self._config.run
        self._run(
            WandbSettings(
                project=given(project, metrics.wandb_project),
                entity=given(entity, metrics.wandb_entity),
                run_id=given(run_id, metrics.wandb_run_id) or self._run_id(),
                run_name=self._run_name,
                group=run.group,
                tags=run.tags,
                notes=run.notes,
                config=msgspec.to_builtins(self._config, enc_hook=str),
                key=key,
                policy=self._config.trainer_model_path if metrics.wandb_artifacts else None,
            )
        )

    def stop(self) -> None:
        """End `run` in order, with a checkpoint. Safe in signal handlers and from other threads."""
        self._linked.stop()

    def checkpoint(self) -> None:
        """Request a checkpoint from `run` between two updates; training continues. Safe from other threads."""
        self._checkpoints.asked = True

    def close(self) -> None:
        """End everything: stop `run` in another thread, wait for it, and finish pending writes."""
        self.stop()
        # Bounded: an update cannot be interrupted, and a notebook that closes its trainer must not hang for
        # ever.
        if self._running is not threading.current_thread():
            self._idle.wait(60.0)
        self._checkpoints.close()
        self._end_iterations()

    # --- one round at a time ------------------------------------------------------------------------------------------

    def train_iteration(self) -> dict[str, Any]:
        """Train for one round of the training object; the workers stay linked between the rounds.

        The first call creates a new training object, unless `restore` has loaded one, and connects to the Server.
        Neither this method nor `save` uses `checkpoint_path`; `trainer.epochs` and targets end nothing here.

        Returns:
            The round's row of statistics, with `iteration` (number of finished iterations), and, for the training
            episodes that ended in it, `episodes` (their number), `return_min`, `return_mean`, `return_max` and
            `episode_length_mean`; NaN without episodes. In lockstep these are exactly the episodes that ended in the
            round.

        Raises:
            LinkClosedError: `stop` or `close` was called meanwhile.
            TmrlError: see `run`.
        """
        training, interface = as_loop(self._made_training()), self.interface
        if self._recorder is None or interface is None:
            self._recorder = self.open_recorder(training, self._closing)
            interface = self._linked.open(training, self._recorder, self._latest)
            interface.on_admitted = self._write_configuration
            interface.on_episode = self._note_episode
            interface.event(names.EVENT_START, **self._start_facts(training))
        self._episodes = []
        with interface.whole_round():  # the caller decides when to stop
            row = training.run_iteration(interface)
        if row is None:
            raise LinkClosedError("the trainer was stopped within the round; the round's samples are not trained on")
        return {**_episode_statistics(self._episodes), **row, "iteration": training.iterations}

    def _note_episode(self, record: EpisodeRecord) -> None:
        if record.mode == "train" and record.end != "aborted":
            self._episodes.append(record)

    def save(self, root: str | Path) -> Path:
        """Write a checkpoint into a new folder under `root`, and wait until it is written.

        Returns:
            The checkpoint's folder, `checkpoint_` and the number of iterations; `restore` accepts it.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """
        training = as_loop(self._made_training())
        path = Path(root) / f"checkpoint_{training.iterations:06d}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise CheckpointError(f"no checkpoint can be written into {root}: {exc}") from exc
        self._linked.note_delivery(training, self._recorder)
        self._checkpoints.write_separately(training.own, path)
        return path

    def restore(self, path: str | Path) -> None:
        """Resume from a checkpoint that `save` wrote; for `train_iteration` and `act`.

        Raises:
            CheckpointError: the checkpoint is damaged, or belongs to another configuration. Nothing was changed then.
        """
        prepare_torch(self._config)
        training = self._checkpoints.read(Path(path))
        self._claim_memory(as_loop(training))
        self._end_iterations()  # the next one opens a new link
        self.training = training

    def act(self, obs: Any, test: bool = True) -> Any:
        """Return the policy's action for one observation. `test`: without exploration. Needs no Server.

        A recurrent policy carries its state to the next call; `begin_episode` resets it.

        Raises:
            ConfigError: the training object has no agent.
            ValueError: the policy cannot act on it, because it is not of the observation space.
        """
        actor = self._actor()
        try:
            return actor.act_(obs, test=test)
        # Checked only after a failure: the check of a large observation costs as much as acting.
        except Exception as exc:
            space = actor.observation_space
            if isinstance(space, Space) and not space.contains(obs):
                raise ValueError(
                    f"the observation {obs!r:.200} is not of the policy's observation space, {space!s:.200}"
                ) from exc
            raise

    def begin_episode(self) -> None:
        """Let `act` begin an episode. Only recurrent policies need it.

        Raises:
            ConfigError: the training object has no agent.
        """
        self._actor().begin_episode()

    def _actor(self) -> Any:
        actor = actor_of(self._made_training())
        if actor is None or isinstance(actor, PolicyBundle):
            raise ConfigError("this training object has no agent that can act")
        return actor

    def finish(self) -> None:
        """Notify the workers of the run's end after `train_iteration`, and insert their last samples."""
        if self.interface is not None and self.training is not None:
            RunShutdown(as_loop(self.training), self.interface).finish_workers()

    @property
    def interface(self) -> RemoteInterface | None:
        """Interface of the training object to the Server, while there is a link."""
        return self._linked.interface

    def make_training(self) -> Any:
        """Return a new training object."""
        prepare_torch(self._config)
        made = self._make()
        self._claim_memory(as_loop(made))
        return made

    def _made_training(self) -> Any:
        """Return the training object of `train_iteration`; make it at the first call."""
        if self.training is None:
            self.training = self.make_training()
        return self.training

    def _end_iterations(self) -> None:
        """Close the link and the records of `train_iteration`. The training object is kept."""
        self._recorder = None
        self._linked.close()
        self._linked.interface = None
        self._closing.close()

    def open_recorder(
        self, training: TrainingLoop, closing: contextlib.ExitStack, wandb: WandbSettings | None = None
    ) -> Recorder:
        """Return the recorder of the run, which `closing` closes.

        Raises:
            ConfigError: the records cannot be written.
        """
        try:
            cut = cut_after(
                self._config.metrics_path,
                training.delivery.get("metrics"),
                updates=training.total_updates,
                elapsed_s=training.elapsed_s,
            )
            sinks = open_sinks(
                self._config.run_folder,
                tensorboard=self._config.metrics.tensorboard,
                wandb=wandb,
                console=self._config.metrics.console,
                x_axis=self._config.metrics.x_axis if self._config.trainer.offline is None else "updates",
                hparams=msgspec.to_builtins(self._config, enc_hook=str),
                cut=cut,
                further=self._config.metrics.sinks,
            )
        except OSError as exc:
            raise ConfigError(f"no records can be written to {self._config.run_folder}: {exc}") from exc
        if self._config.trainer.offline is None:
            self._latest = LatestSink(self._config.metrics_path)
            sinks.append(self._latest)
        recorder = Recorder(
            sinks,
            elapsed_s=max(training.elapsed_s, 0.0 if cut is None else cut.elapsed_s),
            env_steps=training.total_samples,
        )
        closing.callback(recorder.close)
        if cut is not None and cut.event is not None:
            recorder.write(cut.event, in_file=True)
        return recorder

    def _start_facts(self, training: TrainingLoop) -> dict[str, Any]:
        """Return the name of the run, and the layout of bytes in its policy's observations if there are any."""
        actor = actor_of(training)
        architecture = actor.architecture() if isinstance(actor, ActorModule) else {}
        layout = architecture.get("metadata", {}).get("layout")
        return {names.RUN_NAME: self._run_name, **({} if layout is None else {names.LAYOUT: layout})}

    def _write_configuration(self) -> None:
        """Write the configuration in force into the run's folder, if the training object is made from it."""
        if self._configured:
            try:
                write_in_force(self._checkpoints.in_force)
            except OSError as exc:
                logger.warning("the configuration cannot be written to %s: %s", self._config.run_folder, exc)

    def _run_id(self) -> str:
        return run_id(self._config.run_folder, self._run_name)

    def _claim_memory(self, training: TrainingLoop) -> None:
        """Refuse the folder of a memory on disk if it belongs to another run.

        Raises:
            ConfigError: it does, and `memory.take_over` is not set.
        """
        memory = training.training_memory
        if memory is not None:
            claim_folder(memory, self._run_id, take_over=self._config.memory.take_over)

    def _close_memory(self, training: LoopLike | None) -> None:
        """Release the folder of a memory on disk for another trainer. The memory can still be read."""
        memory = None if training is None else as_loop(training).training_memory
        if memory is not None:
            memory.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self, wandb: WandbSettings | None) -> None:
        self._running = threading.current_thread()
        self._idle.clear()
        # From now on, the folder of the checkpoints is this process's.
        self._checkpoints.locked = True
        try:
            self._run_here(wandb)
        finally:
            # In this order: another trainer that takes the checkpoints must find the memory's folder free
            # too.
            self._close_memory(self.training)
            self._checkpoints.unlock()
            self._idle.set()
            self._running = None

    def _run_here(self, wandb: WandbSettings | None) -> None:
        if self._configured:
            check_run_folder(self._config)
        prepare_torch(self._config)
        self.training, is_new = self._checkpoints.make_or_load()
        training = as_loop(self.training)
        self._claim_memory(training)
        self._after_load(training, is_new)
        if is_new:
            log_kept_memory(training)
        if training.epoch >= training.epochs:
            logger.info(
                "the checkpoint is of a finished run: %d of %d epochs (trainer.epochs)", training.epoch, training.epochs
            )
            # Workers may wait for this run, started again with the trainer; nobody else would tell them.
            if self._config.trainer.offline is None:
                self._pass_on_the_end(training)
            return
        # Tried before the link: the first weights are written much later, and a refusal then would waste the
        # run.
        problem = self._model.check(training)
        if problem:
            raise StorageError(
                f"the current weights cannot be written to {self._model.path} (trainer.model_path): {problem}. Name a "
                "file in a folder that can be written to, with free space on its disk."
            )
        with contextlib.ExitStack() as closing:
            recorder = self.open_recorder(training, closing, wandb)
            if self._config.trainer.offline is not None:
                self._train_offline(training, recorder)
                return
            interface = self._linked.open(training, recorder, self._latest)
            interface.operations.controls = _Controls(self._config, training, self._checkpoints)
            interface.on_admitted = self._write_configuration
            self._watch_rests(interface, training, recorder)
            closing.callback(self._linked.close)
            self._train(training, interface, recorder)

    def _train(self, training: TrainingLoop, interface: RemoteInterface, recorder: Recorder) -> None:
        target = self._config.trainer.evaluation.target_return
        facts = self._start_facts(training) | ({} if target is None else {names.RETURN_TARGET: target})
        interface.event(names.EVENT_START, **facts)
        why = "failed"
        try:
            while training.epoch < training.epochs and not interface.stopping:
                training.run_epoch(interface)
                # Without a checkpoint: the epoch goes on where the target has interrupted it.
                if interface.reached_target and not self._confirmed(training, interface):
                    continue
                if not interface.stopping:
                    self._write_checkpoint(training, recorder)
            # Read before the final evaluation, which may reach the target and change the answer.
            why = self._why(interface)
            # A requested stop leaves the workers as they are: they wait for the trainer that resumes.
            if interface.stop_requested:
                self._linked.commit(training)
            else:
                if not interface.reached_target:
                    RunShutdown(training, interface).evaluate()
                RunShutdown(training, interface).finish_workers()
            try:
                self._write_end(training, recorder)
            except StorageError:
                why += ", but its end could not be written to disk"
                raise
        finally:
            if missing := interface.link.counts.gap_samples:
                why += f"; {missing} samples never arrived, because workers dropped them or a checkpoint was older"
            interface.event(names.EVENT_END, why, step=training.total_updates, phase="done")
            # Viewers learn the end from the last scene, which is made from what the sinks have.
            recorder.flush(END_SHOWN_S)
            interface.link.show()
            if not self._config.metrics.console:  # the sinks log that event
                logger.info("end: %s", why)

    def _train_offline(self, training: TrainingLoop, recorder: Recorder) -> None:
        interface = OfflineInterface(
            recorder,
            stop_requested=lambda: self._linked.stopping,
            on_rest=lambda: self._rest(training, recorder),
            on_publish=lambda: self._write_weights(training),
            counter=training.versions_before,
            time_limit_s=self._config.trainer.evaluation.time_limit_s,
        )
        self._write_configuration()
        logger.info("no policy is evaluated, since workers do that: play the final one with --test")
        interface.event(names.EVENT_START, step=training.total_updates, **self._start_facts(training))
        why = "failed"
        try:
            while training.epoch < training.epochs and not interface.stopping:
                training.run_epoch(interface)
                if not interface.stopping:
                    self._write_checkpoint(training, recorder)
            why = (
                "stopped on request"
                if self._linked.stopping
                else "the time limit is reached"
                if interface.time_limit_reached
                else "all epochs are done"
            )
            self._write_end(training, recorder)
        finally:
            interface.event(names.EVENT_END, why, step=training.total_updates, phase="done")
            if not self._config.metrics.console:
                logger.info("end: %s", why)

    def _write_end(self, training: TrainingLoop, recorder: Recorder) -> None:
        """Write the last checkpoint and the final weights. If the disk is full, retry until there is space.

        Raises:
            StorageError: they cannot be written in time.
        """
        # Both files are tried in each round, because a checkpoint may fail on one disk and the weights on
        # another.
        deadline = time.monotonic() + ROOM_S
        told = False
        while True:
            try:
                problem = self._write_checkpoint(training, recorder, wait=True)
            except (OSError, StorageError) as exc:
                problem = str(exc)
            weights = self._write_weights(training, now=True)
            if weights:
                problem = f"{problem}; {self._model.path}: {weights}" if problem else f"{self._model.path}: {weights}"
            if not problem:
                return
            if self._linked.stopping or time.monotonic() >= deadline:
                raise StorageError(
                    f"the end of this run cannot be written to {self._config.run_folder}: {problem}. What was written "
                    "before is unchanged. Free disk space or fix the problem, and start the trainer again: it resumes "
                    "from its latest checkpoint."
                )
            if not told:
                told = True
                logger.error(
                    "the end of this run cannot be written to %s: %s. Free disk space or fix the problem: the trainer "
                    "tries again for %g s, or until it is stopped.",
                    self._config.run_folder,
                    problem,
                    ROOM_S,
                )
            time.sleep(ROOM_RETRY_S)

    def _why(self, interface: RemoteInterface) -> str:
        if interface.stop_requested:
            return "stopped on request"
        if interface.reached_target:
            return "two evaluations have reached the target"
        return "the time limit is reached" if interface.time_limit_reached else "all epochs are done"

    def _confirmed(self, training: TrainingLoop, interface: RemoteInterface) -> bool:
        """Evaluate the current policy. The policy that reached the target is older by some updates."""
        RunShutdown(training, interface).evaluate()
        return interface.confirm_target()

    def _pass_on_the_end(self, training: TrainingLoop) -> None:
        """Notify workers that wait for this run's trainer of the run's end."""
        samples = training.total_samples
        with contextlib.ExitStack() as closing:
            recorder = Recorder([], elapsed_s=training.elapsed_s, env_steps=samples)
            interface = self._linked.open(training, recorder)
            closing.callback(self._linked.close)
            deadline = time.monotonic() + FINISHED_S
            try:
                while not interface.stop_requested and time.monotonic() < deadline:
                    if interface.link.wait_connected(0.1):
                        logger.info("workers that wait for this run are notified of its end")
                        RunShutdown(training, interface).finish_workers(just_come=True)
                        break
                else:
                    logger.info("no Server was notified: none accepted this trainer within %g s", FINISHED_S)
            except NetworkError as exc:
                logger.warning("workers that wait for this trainer are not notified of the run's end: %s", exc)
            if training.total_samples != samples:
                self._write_checkpoint(training, recorder, wait=True)

    # --- files --------------------------------------------------------------------------------------------------------

    def _after_load(self, training: TrainingLoop, is_new: bool) -> None:
        """Prepare a training object that was made or loaded. Default: it is ready."""

    def _watch_rests(self, interface: RemoteInterface, training: TrainingLoop, recorder: Recorder) -> None:
        """Write due checkpoints where the loop rests."""
        interface.on_rest = lambda: self._rest(training, recorder)

    def _rest(self, training: TrainingLoop, recorder: Recorder) -> None:
        if self._checkpoints.due(training.own):
            self._write_checkpoint(training, recorder)

    def _write_weights(self, training: TrainingLoop, now: bool = False) -> str:
        """Write the current weights with `ModelFile.write`, once a Server has admitted this trainer, if it needs one.

        A refused trainer must not leave an untrained policy, which `--test` would run.
        """
        if self._config.trainer.offline is not None:
            return self._model.write(training, now)
        interface = self.interface
        return self._model.write(training, now) if interface is not None and interface.link.was_connected else ""

    def _write_checkpoint(self, training: TrainingLoop, recorder: Recorder, wait: bool = False) -> str:
        """Write a checkpoint. Return the reason of a failure, if known already."""
        if self.checkpoint_path is None:
            return ""
        # The best checkpoint is kept by the mean return of the latest evaluation.
        evaluator = self.interface.evaluator if self.interface is not None else None
        score = evaluator.latest.mean if evaluator is not None and evaluator.latest is not None else None
        self._linked.note_delivery(training, recorder)
        at = (training.epoch, training.total_updates)

        def written() -> None:
            # The last checkpoint adds only the samples that arrived while the workers finished.
            if at != self._checkpoint_told:
                self._checkpoint_told = at
                name = self._checkpoints.latest_name
                folder = {names.CHECKPOINT: name} if name else {}
                recorder.event(names.EVENT_CHECKPOINT, step=at[1], epoch=at[0], **folder)

        return self._checkpoints.write(training.own, score=score, wait=wait, on_written=written)

    def _make(self) -> LoopLike:
        seed = self._config.run.seed
        if seed is not None:
            import torch

            # All three are seeded before the first object is made: networks are initialized in
            # constructors, in any of them.
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
        try:
            return self.training_cls()
        # Also after a failure: otherwise Ctrl-C would call the handler of a module that could not be used.
        finally:
            take_back()  # for modules and loops of users that install signal handlers


class _Controls:
    """Parts of a Trainer that orders of operators can change; see `training.remote.operations`."""

    def __init__(self, config: Config, training: TrainingLoop, checkpoints: RunCheckpoints) -> None:
        self._config = config
        self._training = training
        self._checkpoints = checkpoints

    def checkpoint_now(self) -> str:
        """Request a checkpoint. Return the reason against it; empty: it is written at the next occasion."""
        if self._checkpoints.path is None:
            return "this run writes no checkpoints (checkpoint.path)"
        self._checkpoints.asked = True
        return ""

    def change_ratio(self, updates_per_step: float) -> None:
        """Limit the updates for each environment step from now on.

        Raises:
            ConfigError: the ratio is not possible here, or workers and trainer would wait for each other.
        """
        changed = with_changes(self._config, [f"trainer.max_training_steps_per_env_step={updates_per_step!r}"])
        if not ratios_conflict(self._config) and (conflict := ratios_conflict(changed)):
            raise ConfigError(conflict)
        self._training.limit_updates(updates_per_step)


def _episode_statistics(records: list[EpisodeRecord]) -> dict[str, Any]:
    """Statistics of the training episodes that have arrived in a round. A lockstep round counts its own episodes."""
    returns = [record.episode_return for record in records]
    return {
        "episodes": len(returns),
        "return_min": min(returns, default=math.nan),
        "return_mean": statistics.fmean(returns) if returns else math.nan,
        "return_max": max(returns, default=math.nan),
        "episode_length_mean": statistics.fmean(record.length for record in records) if records else math.nan,
    }
