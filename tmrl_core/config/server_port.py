"""Port of the Server of a run on this machine, in the run's folder.

`--local` takes another port if the default one is taken. Other commands for the same run read it here, unless
`server.port` is set. The record counts only while its writer holds the lock of the file, which ends with its process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import stat
from pathlib import Path

from tmrl_core.config.loading import with_changes
from tmrl_core.config.sections import Config, is_loopback
from tmrl_core.storage.lock import is_locked, lock_file
from tmrl_core.storage.own_files import open_own

logger = logging.getLogger(__name__)

FILE = "server_port"
_MAX_BYTES = 4_096
_READERS_S = 1.0
"""Maximum wait for processes that test the lock."""


class PortRecord:
    """Record of a Server's port in the folder of its run, from construction until `close` or the end of this process.

    Raises:
        OSError: the file cannot be written or locked (BlockingIOError: another process of the run holds it).
    """

    def __init__(self, folder: Path, port: int) -> None:
        # The file is never removed: two processes could otherwise lock two files of one name.
        self._descriptor = open_own(folder / FILE, os.O_RDWR | os.O_CREAT)
        try:
            lock_file(self._descriptor, wait_s=_READERS_S)
            os.ftruncate(self._descriptor, 0)
            said = {"port": port, "pid": os.getpid(), "host": platform.node()}
            os.write(self._descriptor, json.dumps(said).encode())
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Withdraw the record; further calls do nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)  # which releases the lock
            self._descriptor = -1


def port_of_run(folder: Path) -> int | None:
    """Return the port of the Server that a process on this machine runs for the run; None: there is none."""
    try:
        descriptor = open_own(folder / FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not is_locked(descriptor):
            return None
        os.lseek(descriptor, 0, os.SEEK_SET)
        said = json.loads(os.read(descriptor, _MAX_BYTES))
        port = said["port"]
        # Folders of runs may be shared by machines.
        return port if type(port) is int and 0 < port < 65_536 and said["host"] == platform.node() else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def with_port_of_run(config: Config) -> Config:
    """Return the configuration with the port in the run's folder, if it names this machine and sets no port."""
    if config.server.port or config.network.transport == "local" or not is_loopback(config.server.host):
        return config
    port = port_of_run(config.run_folder)
    if port is None or port == config.server.tcp_port:
        return config
    logger.info("the Server of run %s listens on port %d, as %s says", config.run.name, port, config.run_folder / FILE)
    return with_changes(config, [f"server.port={port}"])
