"""Checkpoints that a run resumes from, in the project's format or another one, and the lock on writing them."""

# Theory of operation
#
# It decides when a checkpoint is written, in which format, and what a resumed run may change. It writes no bytes
# itself.
#
# There are three formats, in this order: the functions `dump` and `load` that a Trainer was given; the training
# object's own `save` and `load`, if a subclass has them; else the project's, a `CheckpointStore`. Only the last is
# written by time (`checkpoint.every_s`): a custom format may take long, and may not hold state in the middle of an
# epoch.
#
# A new run writes its first checkpoint when it has accepted its first samples, since before there is nothing to resume.
# It waits for that one, and an error ends the run: a run of a week must not find out at its end that its folder cannot
# be written to. At startup the folder is tested and locked, so that a second trainer removes nothing of the first
# one's. File systems without locks are common on clusters; there a warning takes the lock's place.
#
# Changed settings: the manifest holds the configuration of the run. `config/resuming.py` is the table of keys that must
# not change, which are refused, and of keys whose first value stays in force (`run.seed`); all others take effect, and
# the log shows both values. Settings that training itself may change, such as a learning rate under a schedule,
# continue as trained unless the setting has changed (constructor_settings.py). Example: a run began with a learning
# rate of 1e-3 and a schedule that has lowered it to 2e-4. Resumed with 1e-3 in the file it continues with 2e-4; with
# 5e-4 in the file it continues with 5e-4. Rejected: always the settings of today (a schedule would start again); always
# those of the checkpoint (a changed learning rate would be ignored).
#
# What fails: no usable checkpoint is an error that names the reason for each, never a silent new run; a run without any
# checkpoint begins anew, with the transitions that its memory on disk has. A checkpoint by time is not written again
# while nothing has happened since (`_progress_of`), or a run that waits for workers would write the same state for
# ever.

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_core.config.resuming import FIRST, Change, changes_since, in_force, plain
from tmrl_core.errors import CheckpointError, ConfigError, FolderLockedError, StorageError
from tmrl_core.storage.lock import FolderLock
from tmrl_core.training.contracts import LoopLike, as_loop

if TYPE_CHECKING:
    from tmrl_core.config import Config
    from tmrl_core.training.checkpoints.checkpoint_store import CheckpointStore

logger = logging.getLogger(__name__)


class RunCheckpoints:
    """The checkpoints of one run.

    Args:
        path: folder of checkpoints, or the file of a custom format; None: no checkpoints.
        config: the configuration.
        make: makes a new training object.
        dump: `(training, path)` writes a checkpoint; None: the project's format, or the training object's `save`
            if it has a format of its own.
        load: `(path) -> training` reads a checkpoint.
        updater: `(training) -> training`, called after a checkpoint was loaded.
        configured: True: the training object is made from the configuration. Checkpoints then hold the configuration,
            and a resume checks its changes.
        clock: seconds.

    Attributes:
        asked: True: a checkpoint is requested for the next pause of the loop. Any thread may set it.
        in_force: the configuration, with the checkpoint's values for keys that cannot change.
        locked: True: the folder of the project's format is locked against other trainers.
        at: number of updates of the checkpoint to resume from; None: the newest usable one.
        dump, load, updater: the arguments of these names, which may be replaced before the run.
    """

    def __init__(
        self,
        path: Path | None,
        config: Config,
        make: Callable[[], LoopLike],
        dump: Callable[[LoopLike, Path], None] | None = None,
        load: Callable[[Path], LoopLike] | None = None,
        updater: Callable[[LoopLike], LoopLike] | None = None,
        *,
        configured: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.locked = False
        self.asked = False
        self.at: int | None = None
        self.in_force = config
        self._config = config
        self._configured = configured
        self._clock = clock
        self._changes: list[Change] = []
        self._first = False
        """True: the disk has no checkpoint of this run yet."""
        self._written_at = 0.0
        self._written = (-1, -1)
        self._make = make
        self.dump = dump
        self.load = load
        self.updater = updater
        self._store: CheckpointStore | None = None
        self._lock: FolderLock | None = None

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(
        self,
        training: LoopLike,
        *,
        score: float | None = None,
        wait: bool = False,
        on_written: Callable[[], None] = lambda: None,
    ) -> str:
        """Write a checkpoint, unless checkpoints are disabled or a new run has not accepted any sample yet.

        This method waits for the first checkpoint of a new run. If it cannot be written, the run must not continue.

        Args:
            training: the training object.
            score: mean return of its latest evaluation.
            wait: return once the checkpoint is on the disk.
            on_written: called once the checkpoint is on the disk.

        Returns:
            The reason of a failure, if known already; empty otherwise.

        Raises:
            CheckpointError: the first checkpoint cannot be written; or `wait` is set and writing failed for another
                reason than the disk.
        """
        first = self._first
        if self.path is None or (first and _is_empty(training)):
            return ""
        self._written_at, self._written = self._clock(), _progress_of(training)
        self._first = self.asked = False
        if self.dump is None and not as_loop(training).own_format:
            return self._save_to_store(training, score, wait or first, first, on_written)
        if self.dump is not None:
            self.dump(training, self.path)
        else:
            training.save(self.path)
        on_written()
        return ""

    def _save_to_store(
        self, training: LoopLike, score: float | None, wait: bool, first: bool, on_written: Callable[[], None]
    ) -> str:
        store = self._the_store()
        failures = store.failures
        try:
            store.save(training, score=score, wait=wait, on_written=on_written)
        except CheckpointError as exc:
            if first or wait:
                raise
            logger.exception("no checkpoint after epoch %s; training continues", training.epoch)
            return str(exc)
        if store.failures == failures:
            return ""
        if first:
            raise CheckpointError(f"the first checkpoint cannot be written to {store.root}: {store.last_error}")
        return store.last_error if wait else ""

    def due(self, training: LoopLike) -> bool:
        """Return True if a checkpoint is due between epochs: the first one, a requested one, or by time."""
        if self.path is None:
            return False
        if self._first or self.asked:
            empty = self._first and _is_empty(training)
            if empty and self.asked:
                logger.info("no checkpoint is written: no sample has been accepted yet")
                self.asked = False
            return not empty
        every_s, store = self._config.checkpoint.every_s, self._store
        # A custom format may take long to write, and may not hold state in the middle of an epoch.
        return (
            every_s is not None
            and store is not None
            and self._clock() - self._written_at >= every_s
            and not store.busy
            and self._written != _progress_of(training)
        )

    @property
    def latest_name(self) -> str:
        """Return the name of the folder of the checkpoint that was written last; empty: unknown."""
        written = self._store.written if self._store is not None else None
        return "" if written is None else str(written)

    def write_separately(self, training: LoopLike, path: Path) -> None:
        """Write a self-contained checkpoint to another path.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """
        if self.dump is not None:
            self.dump(training, path)
        else:
            training.save(path)

    def _the_store(self) -> CheckpointStore:
        from tmrl_core.training.checkpoints.checkpoint_store import CheckpointStore

        if self._store is None:
            assert self.path is not None
            settings = self._config.checkpoint
            self._lock_folder(self.path)
            self._store = CheckpointStore(
                self.path, settings.keep_last, settings.keep_best, plain(self._config) if self._configured else None
            )
        return self._store

    def _lock_folder(self, path: Path) -> None:
        """Lock this run's checkpoints against other trainers, which would remove them.

        Raises:
            FolderLockedError: another trainer uses them.
        """
        if self._lock is None and self.locked:
            try:
                self._lock = FolderLock(path, "this run's checkpoints")
            except FolderLockedError:
                raise
            except StorageError as exc:
                # A file system without locks, common on clusters, can still hold checkpoints.
                logger.warning("%s cannot be locked (%s): make sure that no other trainer uses it", path, exc)

    def unlock(self) -> None:
        """Finish writing, and release the folder's lock."""
        self.locked = False
        if self._lock is not None:
            if self._store is not None:
                self._store.close(60.0)
                self._store = None
            self._lock.close()
            self._lock = None

    def close(self) -> None:
        """Finish pending writes."""
        if self._store is not None:
            self._store.close(60.0)

    # --- reading ------------------------------------------------------------------------------------------------------

    def make_or_load(self) -> tuple[Any, bool]:
        """Return the training object, and True if it is new.

        Raises:
            CheckpointError: there are checkpoints, and none can be used; or none can be written.
            FolderLockedError: another trainer uses them.
        """
        path = self.path
        loaded = made = None
        if path is not None and path.exists():
            self._refuse_parts(path)
            if self.load is not None:
                loaded = self.load(path)
            elif self.dump is not None or (path.is_file() or (path / "manifest.json").exists()):
                loaded = self.read(path)
            else:
                loaded = self._restore()
                if loaded is None:
                    made = self._make()
                    if as_loop(made).own_format:
                        made.load(path)
                        loaded = made
        self._written_at = self._clock()
        if loaded is None:
            made = made or self._make()
            self._first = True
            if path is not None and self.dump is None and not as_loop(made).own_format:
                self._the_store().check_writable()
            return made, True
        if self.updater is not None:
            loaded = self.updater(loaded)
        return loaded, False

    def _refuse_parts(self, path: Path) -> None:
        """Refuse the folder of a run that several processes have trained, whose parts this one would not find.

        Raises:
            CheckpointError: it is one.
        """
        from tmrl_core.training.checkpoints.parts import parts_of

        if (parts := parts_of(path)) is not None:
            raise CheckpointError(
                f"{path} holds the checkpoints of {parts} processes that trained together, and this is one process. "
                f"Start {parts} again (docs/rooms.md), or choose another run.name"
            )

    def _restore(self) -> LoopLike | None:
        """Return the training object of the newest usable checkpoint; None without any checkpoint.

        Raises:
            CheckpointError: there are checkpoints, but none is usable.
        """
        try:
            loaded = self._the_store().restore(
                self._make, drop_damaged=self._config.checkpoint.drop_damaged, agree=self._agree, at=self.at
            )
        except CheckpointError as exc:
            if not self._changes:
                raise
            raise CheckpointError(f"{exc} Changed since then: {'; '.join(map(str, self._changes))}.") from exc
        for change in self._changes if loaded is not None else ():
            reason = change.reason(FIRST)
            if reason is None:
                logger.info("%s, which takes effect", change)
            else:
                logger.warning("%s: the checkpoint's value stays in force, as %s", change, reason)
        if loaded is not None and self._configured:
            self._the_store().configuration = plain(self.in_force)
        return loaded

    def _agree(self, stored: Mapping[str, object]) -> None:
        """Compare the configuration of a checkpoint with today's.

        Raises:
            CheckpointError: a key has changed that must not change.
        """
        if not self._configured:
            return
        self._changes = changes_since(stored, self._config)
        fixed = [f"{change} ({change.fixed})" for change in self._changes if change.fixed]
        if fixed:
            raise CheckpointError(f"it cannot be resumed with {'; '.join(fixed)}")
        try:
            self.in_force = in_force(stored, self._config)
        except ConfigError as exc:
            raise CheckpointError(f"the configuration in its manifest is invalid: {exc}") from exc

    def read(self, path: Path) -> LoopLike:
        """Return the training object of a self-contained checkpoint.

        Raises:
            CheckpointError: the checkpoint is damaged, or belongs to another configuration.
        """
        if self.load is not None:
            return self.load(path)
        training = self._make()
        training.load(path)
        return training


def _progress_of(training: LoopLike) -> tuple[int, int]:
    """Return counters that have grown if another checkpoint would hold more than the last one."""
    return training.total_updates, training.total_samples


def _is_empty(training: LoopLike) -> bool:
    """Return True when no sample was accepted."""
    return training.epoch == 0 and training.total_samples == 0


def log_kept_memory(training: LoopLike) -> None:
    """Log that a run without a checkpoint begins with the samples that its memory on disk has."""
    memory = as_loop(training).training_memory
    if memory is not None and memory.recorded is not None:
        logger.info(
            "there is no checkpoint; training begins again, with %d transitions of the memory on disk (%d samples)",
            len(memory),
            training.total_samples,
        )
