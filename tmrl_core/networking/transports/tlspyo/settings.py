"""Keys of the section `network` for the transport `tlspyo`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from tmrl_core.config.sections import MIB, Config, Port, Positive, RoomSection, doc


class TlspyoKeys(RoomSection, frozen=True, kw_only=True):
    """Keys of the section `network` for the transport `tlspyo`."""

    key: ClassVar[str] = "network"
    extends: ClassVar[bool] = True

    local_port_server: Annotated[
        Port,
        doc(
            "Transport tlspyo only: port on 127.0.0.1 to which the Server's I/O process connects back; it is "
            "reserved until then. 0: a free port."
        ),
    ] = 55556
    local_port_trainer: Annotated[Port, doc("Transport tlspyo only: the same for the trainer's I/O process.")] = 55557
    local_port_worker: Annotated[
        Port,
        doc("Transport tlspyo only: the same for a worker's I/O process. Workers on one machine may share the port."),
    ] = 55558
    header_size: Annotated[
        Positive,
        doc("Transport tlspyo only: bytes of the length header of a message, 6 to 256; the same on all machines."),
    ] = 12
    max_buf_len: Annotated[
        Positive, doc("Transport tlspyo only: bytes per read from the I/O process. Values above 64 kB have no effect.")
    ] = 512 * MIB

    def local_port(self, role: str) -> int:
        """Return the local port of a role; 0, a free one, for observers."""
        ports = {"server": self.local_port_server, "trainer": self.local_port_trainer, "worker": self.local_port_worker}
        return ports.get(role, 0)

    def problems(self, config: Config) -> Iterator[str]:
        """Yield one line if two ports of one machine are equal."""
        ports = [config.server.tcp_port, self.local_port_server, self.local_port_trainer, self.local_port_worker]
        given = [port for port in ports if port]  # 0: each role takes a free port
        if config.network.transport == "tlspyo" and len(set(given)) < len(given):
            yield f"server.port and the three network.local_port_* must differ with tlspyo, found {ports}"
