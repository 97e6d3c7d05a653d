"""Several workers on one machine: `--worker --workers N`.

Each worker is a process with a log of its own, `<run>/logs/worker-<n>.log`. A worker that crashes is started again a
few times; one that fails permanently does not end the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tmrl_core.config import Config
from tmrl_core.errors import ConfigError
from tmrl_core.local.probe_process import Probe
from tmrl_core.local.supervision import Fleet, watch
from tmrl_core.roles import from_config as roles
from tmrl_core.roles.environment_probe import is_probed
from tmrl_core.roles.shutdown import ShutdownSignal

logger = logging.getLogger(__name__)


class LogWatcher:
    """Watcher of workers without a display."""

    starving = False

    def __init__(self) -> None:
        self._hindered = False

    def refresh(self) -> None:
        """Do nothing: a worker has no records."""

    def say(self, text: str) -> None:
        """Log a message."""
        logger.info("%s", text)

    def hinder(self, text: str) -> None:
        """Log what hinders the workers when that begins."""
        if text and not self._hindered:
            logger.warning("%s", text)
        self._hindered = bool(text)


def run_fleet(config: Config, arguments: Sequence[str], shutdown: ShutdownSignal, count: int) -> int:
    """Run workers until all have ended or a stop is requested.

    Args:
        config: configuration of the workers.
        arguments: command line of each worker; the first word is its role.
        shutdown: requests the end.
        count: number of workers.

    Returns:
        Exit status 0.

    Raises:
        ConfigError: the transport does not connect processes, or the environment cannot be used.
        TmrlError: a worker failed permanently; the message includes its last log lines.
    """
    if config.network.transport == "local":
        raise ConfigError(
            "network.transport: local connects threads of one process; --workers needs another one, as tls"
        )
    roles.ensure_credentials(config)
    if is_probed(config):
        with Probe(config, arguments[1:]) as probe:
            if not probe.wait(shutdown):
                return 0
    fleet, watcher = Fleet(config, arguments, count), LogWatcher()
    shutdown.kill_on_second(fleet.kill)
    logs = config.run_folder / "logs"
    logger.info("%d workers for run %r; their logs are %s and so on", count, config.run.name, logs / "worker-1.log")
    try:
        fleet.start(watcher)
        watch(fleet, watcher, shutdown)
    finally:
        fleet.end(watcher)
    if fleet.failed is not None:
        raise fleet.failed
    return 0
