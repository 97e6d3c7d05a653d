"""Keys of the section `network` for the transport `tlspyo`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tmrl_core.config.sections import MIB, Positive, RoomSection, doc


class TlspyoKeys(RoomSection, frozen=True, kw_only=True):
    """Keys of the section `network` for the transport `tlspyo`."""

    key: ClassVar[str] = "network"
    extends: ClassVar[bool] = True

    header_size: Annotated[
        Positive,
        doc("Transport tlspyo only: bytes of the length header of a message, 6 to 256; the same on all machines."),
    ] = 12
    max_buf_len: Annotated[
        Positive, doc("Transport tlspyo only: bytes per read from the I/O process. Values above 64 kB have no effect.")
    ] = 512 * MIB
