"""The checkpoints of one run: written in the background, pruned to a few, and restored from the newest usable one."""

# Theory of operation
#
# The training thread copies the state (`capture`) and goes on; a thread writes it. Only one checkpoint is written at a
# time, and `save` waits for the one before, so that at most one copy is in memory. The store knows folders and numbers;
# what is in a checkpoint is checkpoint_folder.py's, when one is due is resumption.py's.
#
# Rows of memories in RAM are not copied: the writing thread reads them from the rings. A lease (rows.py) keeps an
# insertion from overwriting rows that are not yet written; the insertion then waits, which is rare, since the oldest
# rows are written first. Rows that an earlier checkpoint has written are referred to, not written again. Example: a
# memory of 1,000,000 rows, a checkpoint every 50,000 samples. The first one writes what is there, each later one 50,000
# rows to the end of the newest file in `replay/`, and its manifest names the files and how many of their bytes belong
# to it. A file is closed at 64 MB, so that old rows can be removed: pruning deletes files that no kept manifest names.
#
# The copy is taken between two updates (in lockstep, between two rounds). Offsets of streams, the trainer's incarnation
# and the memory are part of the same copy, so they cannot disagree: what a resumed run does not know, it is sent again.
#
# A full disk fails one checkpoint, with a warning, and leaves the earlier ones alone; training continues. Any other
# exception of the thread is a defect: it is logged, and the next `save` raises it, since the thread has no other way to
# reach its owner. `_rows` changes in the writing thread; `save` and `restore` touch it after they have waited for that
# thread.
#
# Restoring tries the newest checkpoint first, each time with a new training object, so that none is partly loaded.
# Damage in a shared file of rows may affect every checkpoint. With `checkpoint.drop_damaged`, the newest one whose only
# damage is in older rows is then used without the rows up to the damage; the next checkpoint writes all rows again to
# new files, because nothing is added to a damaged one.

from __future__ import annotations

import logging
import math
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.training.checkpoints.capture import Captured, capture
from tmrl_core.training.checkpoints.checkpoint_folder import (
    delivery_note,
    flush_memory,
    manifest_of,
    release_memory,
    restore_checkpoint,
    write_checkpoint,
)
from tmrl_core.training.checkpoints.manifest import Manifest, read_manifest
from tmrl_core.training.checkpoints.replay_rows import RowsError, SharedRows
from tmrl_core.training.memories.row_memory import RowLease

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class _Snapshot:
    captured: Captured
    manifest: Manifest
    leases: dict[str, RowLease]
    note: bytes


class CheckpointStore:
    """The checkpoints of one run, in one folder.

    `save` copies the state and returns; a thread writes it. `save` waits for an earlier checkpoint that is still being
    written, so that at most one copy is in memory.

    Args:
        root: the folder; created with the first checkpoint.
        keep_last: number of the newest checkpoints to keep.
        keep_best: keep the one with the highest score too.
        configuration: of the training object, as plain values; written into each checkpoint.

    Attributes:
        failures: number of checkpoints that could not be written.
        last_error: reason of the last failure; empty after a success.
    """

    def __init__(
        self,
        root: str | Path,
        keep_last: int = 2,
        keep_best: bool = True,
        configuration: Mapping[str, object] | None = None,
    ) -> None:
        self.configuration = configuration
        self.root = Path(root)
        self.rows_folder = self.root / "replay"
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.failures = 0
        self.last_error = ""
        self.written: int | None = None
        """Number of the checkpoint that was written last."""
        self._counter: int | None = None
        self._rows: defaultdict[str, SharedRows] = defaultdict(partial(SharedRows, self.rows_folder))
        """Files of rows, by the memory's path."""
        self._thread: threading.Thread | None = None
        self._defect: BaseException | None = None
        self._logged: set[str] = set()
        """Paths of skipped values that a warning has already named."""

    def counters(self) -> list[int]:
        """Return the numbers of the stored checkpoints, ascending."""
        if not self.root.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.root.iterdir() if entry.name.isdecimal() and entry.is_dir())

    # --- writing ---

    def save(
        self,
        training: object,
        *,
        score: float | None = None,
        wait: bool = False,
        on_written: Callable[[], None] = lambda: None,
    ) -> int:
        """Checkpoint the current state of `training`.

        If the disk is full or fails, earlier checkpoints stay unchanged, and a warning is logged each time.

        Args:
            training: not changed.
            score: mean return of its latest evaluation, for `keep_best`.
            wait: return once the checkpoint is on the disk.
            on_written: called in the writing thread once the checkpoint is on the disk.

        Returns:
            The checkpoint's number.

        Raises:
            CheckpointError: an internal error occurred while the checkpoint before was written.
        """
        self.wait()
        if self._defect is not None:
            raise CheckpointError("an earlier checkpoint could not be written") from self._defect
        captured = capture(training)
        captured.warn(self._logged)
        # Before the manifest: a checkpoint must not refer to rows on disk that a power cut could take.
        flush_memory(training)
        if self._counter is None:
            self._counter = max(self.counters(), default=0)
        self._counter += 1
        manifest = manifest_of(training, self._counter, score)
        manifest.configuration = None if self.configuration is None else dict(self.configuration)
        leases = {path: rows.memory.lease_rows(self._rows[path].saved_until) for path, rows in captured.rows.items()}
        snapshot = _Snapshot(captured, manifest, leases, delivery_note(training))
        self._thread = threading.Thread(
            target=self._work, args=(snapshot, on_written), name="tmrl-checkpoint", daemon=True
        )
        self._thread.start()
        if wait:
            self.wait()
        return self._counter

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is being written; return False after the timeout."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    close = wait

    @property
    def busy(self) -> bool:
        """True: a checkpoint is being written, so that `save` would wait."""
        return self._thread is not None and self._thread.is_alive()

    def check_writable(self) -> None:
        """Check that files can be written to the folder.

        Raises:
            CheckpointError: they cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.root).close()
        except OSError as exc:
            raise CheckpointError(
                f"no checkpoint can be written to {self.root}: {exc.strerror or exc}. Set checkpoint.path to a "
                "writable folder."
            ) from exc

    def _work(self, snapshot: _Snapshot, on_written: Callable[[], None]) -> None:
        try:
            self._write(snapshot)
            self._prune()
            self.last_error = ""
            self.written = snapshot.manifest.counter
            on_written()
        except (OSError, StorageError) as exc:
            self.failures += 1
            self.last_error = str(exc)
            logger.warning(
                "checkpoint %d could not be written to %s: %s. Earlier checkpoints are unchanged, and "
                "training continues. Free disk space; the next checkpoint is written as scheduled.",
                snapshot.manifest.counter,
                self.root,
                str(exc).rstrip("."),
            )
        except Exception as exc:
            self.failures += 1
            self.last_error = repr(exc)
            self._defect = exc
            logger.exception("checkpoint %d could not be written", snapshot.manifest.counter)
        finally:
            for lease in snapshot.leases.values():
                lease.release()

    def _write(self, snapshot: _Snapshot) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        for path, rows in snapshot.captured.rows.items():
            snapshot.manifest.rows[path] = self._rows[path].write(rows, snapshot.leases[path], snapshot.note)
        write_checkpoint(self.root / str(snapshot.manifest.counter), snapshot.captured, snapshot.manifest)
        logger.debug("checkpoint %d is written", snapshot.manifest.counter)

    def _prune(self) -> None:
        """Remove checkpoints that are no longer kept, and files of rows that no checkpoint needs."""
        manifests: dict[int, Manifest] = {}
        for counter in self.counters():
            with suppress(CheckpointError):
                manifests[counter] = read_manifest(self.root / str(counter))
        keep = set(sorted(manifests)[-self.keep_last :])
        # A worker may return any number, and a score of NaN or infinity would stay the best one for ever.
        scored = {
            counter: found.score
            for counter, found in manifests.items()
            if found.score is not None and math.isfinite(found.score)
        }
        if self.keep_best and scored:
            keep.add(max(scored, key=lambda counter: (scored[counter], counter)))
        for entry in self.root.iterdir():
            ours = (entry.name.isdecimal() and int(entry.name) not in keep) or entry.suffix in (".tmp", ".old")
            if ours and entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
        needed = {segment.file for rows in self._rows.values() for segment in rows.segments}
        for counter in keep:
            needed |= {segment.file for rows in manifests[counter].rows.values() for segment in rows.segments}
        if self.rows_folder.is_dir():
            for file in self.rows_folder.glob("rows-*.seg"):
                # Windows removes no file that another program reads; the next checkpoint removes it.
                with suppress(OSError):
                    if file.name not in needed:
                        file.unlink()

    # --- reading ---

    def restore(
        self,
        make: Callable[[], T],
        *,
        drop_damaged: bool = False,
        agree: Callable[[Mapping[str, object]], None] = lambda configuration: None,
        at: int | None = None,
    ) -> T | None:
        """Return a training object with the state of the newest usable checkpoint, or None without any checkpoint.

        Each attempt fills a new object, so that no object is partly loaded. All checkpoints of a memory in RAM share
        the files of replay rows, so that damage there may affect each of them.

        Args:
            make: makes a training object with the settings of the saved one.
            drop_damaged: if no checkpoint is intact, use the newest one whose only damage is in older replay rows, and
                drop the rows up to the damage with a warning.
            agree: called with the configuration in a checkpoint, if it holds one; raises CheckpointError if that does
                not match the present one.
            at: number of updates of the checkpoint; None: any.

        Raises:
            CheckpointError: no checkpoint is usable; the message gives the reason for each.
        """
        self.wait()
        reasons: list[tuple[int, CheckpointError]] = []
        training = self._restore(make, agree, reasons, at)
        if training is None and drop_damaged and any(isinstance(exc, RowsError) for _, exc in reasons):
            training = self._restore(make, agree, reasons, at, drop_damaged=True)
        if training is None and reasons:
            raise CheckpointError(
                f"no checkpoint in {self.root} can be used ({_joined(reasons)}). Choose another run.name, or move the "
                "folder away to start from scratch."
                + (
                    " To continue without the replay rows up to the damaged ones, set checkpoint.drop_damaged: true."
                    if not drop_damaged and any(isinstance(exc, RowsError) for _, exc in reasons)
                    else ""
                )
            )
        return training

    def _restore(
        self,
        make: Callable[[], T],
        agree: Callable[[Mapping[str, object]], None],
        reasons: list[tuple[int, CheckpointError]],
        at: int | None,
        *,
        drop_damaged: bool = False,
    ) -> T | None:
        for counter in reversed(self.counters()):
            folder = self.root / str(counter)
            if at is not None and not _is_at(folder, at):
                continue
            training = make()
            try:
                agree(read_manifest(folder).configuration or {})
                manifest = restore_checkpoint(training, folder, self.rows_folder, drop_damaged=drop_damaged)
            except CheckpointError as exc:
                reasons.append((counter, exc))
                release_memory(training)
                continue
            # No rows are added to damaged files: the next checkpoint writes all rows again.
            self._rows.clear()
            if not drop_damaged:
                self._rows.update({path: SharedRows(self.rows_folder, entry) for path, entry in manifest.rows.items()})
            for unusable, reason in reasons:
                logger.warning("checkpoint %d cannot be used: %s", unusable, reason)
            logger.info("resuming from checkpoint %d (epoch %s)", counter, manifest.epoch)
            return training
        return None


def _is_at(folder: Path, updates: int) -> bool:
    with suppress(CheckpointError):
        return read_manifest(folder).updates == updates
    return False


def _joined(reasons: list[tuple[int, CheckpointError]]) -> str:
    """Join the reasons why checkpoints cannot be used, each reason once."""
    numbers: dict[str, list[str]] = {}
    for counter, exc in reasons:
        numbers.setdefault(str(exc).rstrip("."), []).append(str(counter))
    return "; ".join(f"{' and '.join(counters)}: {reason}" for reason, counters in numbers.items())
