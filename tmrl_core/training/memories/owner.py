"""Owner of the folder of a memory on disk: the run whose transitions it holds."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tmrl_core.config.run_folder import ID_NAME, keep_id, kept_id
from tmrl_core.errors import ConfigError, StorageError
from tmrl_core.training.contracts import TrainingMemory

logger = logging.getLogger(__name__)


def claim_folder(memory: TrainingMemory, run: Callable[[], str], *, take_over: bool) -> None:
    """Make a run the owner of the folder of a memory on disk. The memory has locked the folder.

    Args:
        memory: the memory; nothing is done if its samples are in RAM. It is closed if its folder is refused.
        run: returns the run's id.
        take_over: also of transitions that another run has left.

    Raises:
        ConfigError: the folder holds transitions of another run.
        StorageError: the id cannot be written.
    """
    from tmrl_core.training.memories.disk_rows import DiskRows

    disk = memory.disk
    if not isinstance(disk, DiskRows):
        return
    mine, owner = run(), kept_id(disk.folder)
    if owner == mine:
        return
    what = f"{len(disk)} transitions of {f'run {owner}' if owner is not None else 'an unknown run'}"
    if len(disk) and not take_over:
        memory.close()
        raise ConfigError(
            f"memory.folder: {disk.folder} holds {what}, and this is run {mine}. Choose another folder (null: in the "
            "run's own), or set memory.take_over: true to train on them and own the folder from now on."
        )
    try:
        keep_id(disk.folder, mine)
    except OSError as exc:
        memory.close()
        raise StorageError(f"{disk.folder / ID_NAME} cannot be written: {exc.strerror or exc}") from exc
    if len(disk):
        logger.info("the memory in %s holds %s, which are taken over (memory.take_over)", disk.folder, what)
