"""The Server that a worker belongs to, and samples of earlier processes that wait for another one."""

# Theory of operation
#
# Several Servers have a spool each in `worker.spool_dir`, named by their addresses. What lies there is of streams that
# the trainer behind that Server may have stored in part, so it is delivered there and nowhere else. When
# `server.endpoints` has changed between two starts of a worker, there are two cases, and each is logged with numbers.
#
# - The worker now belongs to another Server, and the earlier one is still listed: it stays with the earlier one for
#   this life, whose link delivers what waits, and moves at the first start that finds nothing.
# - The earlier Server is not listed any more: nobody will deliver, unless a worker is started with it.
#
# Streams of other names in a shared folder do not count: a worker of theirs delivers them.

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from tmrl_core.config import Config
from tmrl_core.config.endpoints import at_endpoint, chosen_endpoint, endpoints_of, spool_folder_of
from tmrl_core.networking.spools.stream_files import left_streams

logger = logging.getLogger(__name__)


class Waiting(NamedTuple):
    """Samples of ended processes that wait in a spool, and their bytes."""

    samples: int = 0
    bytes: int = 0


def waiting_in(folder: Path, name: str | None = None) -> Waiting:
    """Return what ended workers of this name have left in a Server's spool; None: of any name."""
    samples = size = 0
    for files, messages in left_streams(folder):
        if name is None or files.info.name == name:
            samples += sum(message.samples for message in messages)
            size += sum(message.body_bytes for message in messages)
        files.close()
    return Waiting(samples, size)


def left_behind(spool: Path, listed: set[str]) -> dict[str, Waiting]:
    """Return what waits for Servers that are not listed, by the names of their folders.

    Args:
        spool: `worker.spool_dir`.
        listed: names of the folders of those that are.
    """
    try:
        folders = sorted(path for path in spool.iterdir() if path.is_dir() and path.name not in listed)
    except OSError:
        return {}  # there is no spool
    found = {folder.name: waiting_in(folder) for folder in folders}
    return {name: waits for name, waits in found.items() if waits.bytes}


def at_own_server(config: Config, name: str) -> Config:
    """Return the configuration of the worker with this name: with several Servers, at the one that it belongs to.

    Raises:
        ConfigError: an endpoint has another form.
    """
    if not config.server.endpoints:
        return config
    servers, spool = endpoints_of(config), config.worker_spool_path
    own = chosen = chosen_endpoint(name, servers)
    for server in servers:
        waits = Waiting() if server == chosen else waiting_in(spool / spool_folder_of(server), name)
        if waits.bytes:
            own = server
            logger.warning(
                "worker %s belongs to the Server %s by server.endpoints, and goes to %s first: %d of its samples (%d "
                "bytes) in %s wait for that one. Start it again when they are delivered",
                name, chosen, server, waits.samples, waits.bytes, spool,
            )  # fmt: skip
            break
    for folder, waits in left_behind(spool, set(map(spool_folder_of, servers))).items():
        logger.warning(
            "%d samples (%d bytes) in %s wait for a Server that server.endpoints does not list: to deliver them, start "
            "a worker here with that Server as the only one in the list",
            waits.samples, waits.bytes, spool / folder,
        )  # fmt: skip
    if len(servers) > 1:
        logger.info("worker %s belongs to the Server %s, of %d", name, own, len(servers))
    return at_endpoint(config, own)
