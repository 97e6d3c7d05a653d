"""Devices that one part of one process on this machine can have at a time: a gamepad, an arm."""

from __future__ import annotations

from urllib.parse import quote

from tmrl_core.config.loading import data_folder
from tmrl_core.errors import ConfigError, FolderLockedError, StorageError
from tmrl_core.storage import FolderLock


def hold_device(device: str, key: str, remedy: str) -> FolderLock | None:
    """Hold a device, until the lock is closed or this process ends.

    Args:
        device: its name; the same device must have the same one.
        key: configuration key, for the message.
        remedy: next step of a user whose device is held by another worker.

    Returns:
        The lock; None: this user has no folder to lock in.

    Raises:
        ConfigError: another process of this user, or another part of this one, has the device.
    """
    try:
        # A name is at most as long as that of a file.
        return FolderLock(data_folder() / "devices" / quote(device, safe="")[-200:], device)
    except FolderLockedError as exc:
        raise ConfigError(f"{key}: {device} is in use by {exc.holder}. {remedy}") from exc
    except (StorageError, ConfigError):
        return None
