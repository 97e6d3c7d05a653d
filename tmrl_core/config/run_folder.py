"""Configuration in force and id of a run, in the run's folder."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import secrets
import tempfile
from pathlib import Path

from tmrl_core.config.loading import resolved
from tmrl_core.config.sections import Config
from tmrl_core.errors import ConfigError
from tmrl_core.storage.own_files import open_own, write_whole

logger = logging.getLogger(__name__)

ID_NAME = "run_id"
"""Name of the file of a run's id, in the run's folder and in the folder of its replay memory."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def run_id(folder: Path, run_name: str) -> str:
    """Return the id of the run in a folder, which the folder keeps for resumes.

    Runs of one name in several folders, or a new run in an emptied folder, are different runs.
    """
    found = kept_id(folder)
    if found is not None:
        return found
    made = f"{run_name}-{secrets.token_hex(4)}"
    try:
        keep_id(folder, made)
    except OSError as error:
        logger.warning("the id %s of this run cannot be kept, so a resumed run will be a new one: %s", made, error)
    return made


def kept_id(folder: Path) -> str | None:
    """Return the id that a folder keeps; None: there is no valid one."""
    try:
        with open(folder / ID_NAME, encoding="utf-8", opener=open_own) as file:
            found = file.read(200).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return found if _ID.fullmatch(found) else None


def keep_id(folder: Path, run: str) -> None:
    """Write the id of a run into a folder.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(folder / ID_NAME, f"{run}\n".encode())


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


def claim_run_name(config: Config) -> str:
    """Return a name for a new run: the configured one, with a number if a run of that name exists. Create its folder.

    Commands that start at the same moment get different names. `forget_unused` removes the folder if the run does not
    start.
    """
    folder, name = config.run_folder.parent, config.run.name
    number = 1
    while True:
        try:
            (folder / name).mkdir(parents=True)
        except FileExistsError:
            number += 1
            name = f"{config.run.name[:56]}-{number}"
        except OSError:  # `check_run_folder` says why
            return name
        else:
            return name


def forget_unused(config: Config) -> None:
    """Remove the run's folder if nothing was written into it."""
    with contextlib.suppress(OSError):
        config.run_folder.rmdir()
