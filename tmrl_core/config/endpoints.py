"""Addresses of several Servers of one run, and the one that a worker belongs to."""

# Theory of operation
#
# With N Servers, each worker belongs to one, chosen by the worker's name alone, so that nobody has to assign workers
# and no Server has to know the others. Rendezvous hashing: for each endpoint, hash endpoint and name together; the
# largest hash wins. An endpoint that is added takes 1 worker in N + 1 from all others together, and moves no worker
# between the others; one that is removed gives away its own workers only. A ring with virtual nodes would do the same
# with more state and less balance.
#
# The choice is made once, when a worker starts (networking/spools/own_server.py). A worker whose Server is down waits
# with its spool and never chooses again: its stream of samples may be half committed by the trainer behind that Server,
# and the other trainers do not know its offset, so they would store the same samples twice.
#
# Example: 3 endpoints, 9,000 workers: about 3,000 each. With a fourth, about 2,250 move to it and none moves elsewhere.

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from tmrl_core.config.sections import Config
from tmrl_core.errors import ConfigError

_FORM = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:\s/]+)):(?P<port>\d{1,5})")


class Endpoint(NamedTuple):
    """Address of a Server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def endpoint_of(text: str) -> Endpoint:
    """Return the endpoint that `host:port` or `[IPv6 address]:port` names.

    Raises:
        ConfigError: the text has another form, or the port is not 1 to 65535.
    """
    found = _FORM.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise ConfigError(
            f"server.endpoints: found {text!r:.200}, allowed: host:port such as relay1.example.org:55555, or "
            "[2001:db8::1]:55555; the port is 1 to 65535"
        )
    return Endpoint((found["six"] or found["host"]).lower(), int(found["port"]))


def endpoints_of(config: Config) -> list[Endpoint]:
    """Return the addresses of the run's Servers: `server.endpoints`, or the one of `server.host` and `server.port`.

    Raises:
        ConfigError: an endpoint has another form.
    """
    server = config.server
    return list(map(endpoint_of, server.endpoints)) or [Endpoint(server.host, server.tcp_port)]


def spool_folder_of(endpoint: Endpoint) -> str:
    """Return the name of the folder with the spool of a Server's workers."""
    return f"{endpoint.host.replace(':', '-').replace('%', '-')}_{endpoint.port}"  # also a name on Windows


def at_endpoint(config: Config, endpoint: Endpoint) -> Config:
    """Return the configuration of a client of one of several Servers.

    A worker's spool is that Server's own: what one Server's trainer has committed in part must not reach another's.
    """
    spool = config.worker_spool_path / spool_folder_of(endpoint)
    changed: Config = msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(config.server, host=endpoint.host, port=endpoint.port, endpoints=()),
        worker=msgspec.structs.replace(config.worker, spool_dir=str(spool)),
    )
    return changed.started_in(config.start_folder)


def only_endpoint(config: Config) -> Endpoint:
    """Return the address of the run's only Server.

    Raises:
        ConfigError: there are several.
    """
    found = endpoints_of(config)
    if len(found) > 1:
        raise ConfigError(
            f"server.endpoints: found {len(found)} Servers, and one process learns from one. Start one rank for each: "
            f"`torchrun --nproc-per-node {len(found)} -m tmrl_core --trainer -c FILE` (docs/rooms.md), or name one "
            "Server here"
        )
    return found[0]


def endpoint_problems(config: Config) -> Iterator[str]:
    """Yield one line for each problem of `server.endpoints`."""
    texts, transport = config.server.endpoints, config.network.transport
    found = []
    for text in texts:
        try:
            found.append(endpoint_of(text))
        except ConfigError as exc:
            yield str(exc)
    for twice in sorted({endpoint for endpoint in found if found.count(endpoint) > 1}):
        yield f"server.endpoints: {twice} is listed {found.count(twice)} times; list each Server once"
    if texts and transport != "tls":
        yield f"server.endpoints: several Servers need network.transport: tls, and it is {transport}"


def chosen_endpoint(name: str, endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint of the worker with this name.

    The order of the endpoints does not matter, and equal lists give equal answers on every machine.

    Args:
        name: label of the worker.
        endpoints: at least one.
    """
    return max(endpoints, key=lambda endpoint: (_weight(name, endpoint), endpoint))


def _weight(name: str, endpoint: Endpoint) -> bytes:
    # The port's decimal digits end the endpoint's text, so that no two pairs give one text.
    return hashlib.blake2b(f"{endpoint}\0{name}".encode(), digest_size=16).digest()
