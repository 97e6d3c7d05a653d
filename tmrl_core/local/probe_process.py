"""The environment's trial before roles start, in a child process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tmrl_core.config import Config
from tmrl_core.errors import ConfigError, EnvironmentFailedError
from tmrl_core.local.supervision import ERROR_LINES, WRONG_CONFIGURATION, Child, last_error
from tmrl_core.roles.environment_probe import PROBED
from tmrl_core.roles.shutdown import ShutdownSignal

logger = logging.getLogger(__name__)

POLL_S = 0.02
GRACE_S = 5.0
"""Seconds that the child gets to report a call that takes too long, or to start."""
CALLS = 3
"""Calls of the trial that have a limit each: constructor, reset, close."""


class Probe:
    """A child process that makes the environment and resets it once. A context manager, which ends it.

    Args:
        config: configuration of the environment.
        passed: command line that gives the child the same configuration.
    """

    def __init__(self, config: Config, passed: Sequence[str]) -> None:
        self._limit_s = config.environment.probe_timeout_s
        self._what = f"environment.cls: {config.environment.cls!r}"
        self._folder = tempfile.TemporaryDirectory(prefix="tmrl_core_probe_")
        log = Path(self._folder.name) / "probe.log"
        self._child = Child("environment's trial", ["--probe", *passed], log, 1, config.start_folder)
        self._deadline = time.monotonic() + CALLS * self._limit_s + GRACE_S
        self._child.start()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *exc_info: object) -> None:
        child = self._child
        child.end_now()
        child.release()
        if sys.platform != "win32" and child.process is not None:
            # Processes that the environment has started and left behind. The child led a group of its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
        self._folder.cleanup()

    def wait(self, shutdown: ShutdownSignal) -> bool:
        """Wait for the end of the trial. False: a request to end came first.

        Raises:
            ConfigError: the environment cannot be used; the message names the cause.
            EnvironmentFailedError: its constructor or its reset failed or lasted too long, or its process crashed.
        """
        while self._child.running:
            if shutdown.wait(POLL_S):
                return False
            if time.monotonic() > self._deadline:
                raise EnvironmentFailedError(f"{self._what}: its trial has not ended in time. {_SETTINGS}")
        lines = self._child.last_lines(ERROR_LINES)
        if PROBED in lines:
            return True
        logger.debug("the environment's trial has printed:\n%s", "\n".join(lines))
        status = self._child.status
        error = last_error(lines)
        if not error:
            said = "; it printed last: " + " | ".join(line.strip() for line in lines[-3:]) if lines else ""
            raise EnvironmentFailedError(
                f"{self._what}: its process ended with exit status {status} while it was made and reset{said[:600]}. "
                f"{_SETTINGS}"
            )
        kind, _, first = error[0].partition(": ")
        own = status == WRONG_CONFIGURATION or kind == EnvironmentFailedError.__name__
        text = "\n".join([first if own else error[0], *error[1:]])
        if status == WRONG_CONFIGURATION:
            raise ConfigError(text)
        raise EnvironmentFailedError(f"{text}\n{_SETTINGS}")


_SETTINGS = (
    "It was tried before the roles start (environment.probe: false leaves that out, environment.probe_timeout_s gives "
    "each call more time)."
)
