"""Configuration in force of a run, in the run's folder."""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path

from tmrl_core.config.loading import resolved
from tmrl_core.config.sections import Config
from tmrl_core.errors import ConfigError
from tmrl_core.storage.own_files import open_own, write_whole


def check_run_folder(config: Config) -> None:
    """Create the run's folder, and check that files can be written there.

    Raises:
        ConfigError: files cannot be written there.
    """
    folder = config.run_folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as exc:
        raise ConfigError(f"run.folder: {folder} cannot be written: {exc.strerror or exc}") from exc


def write_in_force(config: Config, now: datetime.datetime | None = None) -> Path:
    """Write the whole configuration, without secrets, as `config.yaml` and as a dated copy in `configs/`.

    Args:
        config: the configuration in force.
        now: date of the copy; None: the present time.

    Raises:
        OSError: the files cannot be written.
    """
    text = resolved(config).encode()
    copies = config.run_folder / "configs"
    copies.mkdir(parents=True, exist_ok=True)
    stem = (now or datetime.datetime.now()).strftime("%Y-%m-%d_%H-%M-%S")
    number = 1
    while True:
        copy = copies / f"{stem}{f'_{number}' if number > 1 else ''}.yaml"
        try:
            descriptor = open_own(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        break
    path = config.run_folder / "config.yaml"
    write_whole(path, text)
    return path


def free_run_name(config: Config) -> str:
    """Return the run's name, with a number if a run of that name exists."""
    folder, name = config.run_folder.parent, config.run.name
    number = 1
    while (folder / name).exists():
        number += 1
        name = f"{config.run.name[:56]}-{number}"
    return name
