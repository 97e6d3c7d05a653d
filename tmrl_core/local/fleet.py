"""Several workers on one machine: `--worker --workers N`.

Each worker is a process with a log of its own, `<run>/logs/worker-<n>.log`. A worker that crashes is started again a
few times; one that fails permanently does not end the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tmrl_core.config import Config
from tmrl_core.errors import ConfigError
from tmrl_core.local.supervision import Fleet, watch
from tmrl_core.roles import from_config as roles
from tmrl_core.roles.shutdown import ShutdownSignal


class Lines:
    """Messages to the user, line by line."""

    starving = False

    def refresh(self) -> None:
        """Do nothing: there is no display."""

    def say(self, text: str) -> None:
        """Print a message."""
        with contextlib.suppress(OSError):
            print(text, flush=True)


def run_fleet(config: Config, arguments: Sequence[str], shutdown: ShutdownSignal, count: int) -> int:
    """Run workers until all have ended or a stop is requested.

    Args:
        config: configuration of the workers.
        arguments: command line of each worker.
        shutdown: requests the end.
        count: number of workers.

    Returns:
        Exit status 0.

    Raises:
        ConfigError: the transport does not connect processes.
        TmrlError: a worker failed permanently; the message includes its last log lines.
    """
    if config.network.transport == "local":
        raise ConfigError("network.transport: local connects threads of one process; --workers needs tls or tlspyo")
    roles.ensure_credentials(config)
    fleet, lines = Fleet(config, arguments, count), Lines()
    shutdown.kill_on_second(fleet.kill)
    logs = config.run_folder / "logs"
    lines.say(f"{count} workers for run {config.run.name!r}; their logs are {logs / 'worker-1.log'} and so on")
    try:
        fleet.start(lines)
        watch(fleet, lines, shutdown)
    finally:
        fleet.end(lines)
    if fleet.failed is not None:
        raise fleet.failed
    return 0
