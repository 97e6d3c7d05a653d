"""Port of the Server of a run on this machine, in the run's folder.

`--local` takes another port if the default one is taken. Other commands for the same run read it here, unless
`server.port` is set.
"""

from __future__ import annotations

import logging

from tmrl_core.config.loading import with_changes
from tmrl_core.config.sections import Config, is_loopback
from tmrl_core.storage.port_record import recorded_port

logger = logging.getLogger(__name__)

FILE = "server_port"
"""Name of the record in the run's folder."""


def with_port_of_run(config: Config) -> Config:
    """Return the configuration with the port in the run's folder, if it names this machine and sets no port."""
    if (
        config.server.port
        or config.server.endpoints
        or config.network.transport == "local"
        or not is_loopback(config.server.host)
    ):
        return config
    file = config.run_folder / FILE
    port = recorded_port(file)
    if port is None and (last := recorded_port(file, ended=True)) not in (None, config.server.tcp_port):
        # That port is not tried: `--server` may serve the run now.
        logger.info(
            "the Server of run %s that listened on port %d has ended; port %d is tried, where another run's may listen",
            config.run.name,
            last,
            config.server.tcp_port,
        )
    if port is None or port == config.server.tcp_port:
        return config
    logger.info("the Server of run %s listens on port %d, as %s says", config.run.name, port, file)
    return with_changes(config, [f"server.port={port}"])
