"""The example of a transport holds to the promises of a transport."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.networking.transports.unix_sockets import UnixTransport
from tmrl_core.testing.transports import TransportSuite


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no Unix sockets on Windows")
class TestUnixTransport(TransportSuite):
    @pytest.fixture(autouse=True)
    def make_folder(self) -> Iterator[None]:
        # A socket's path has 107 characters at most, which pytest's own folders may exceed.
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            yield

    def make_transport(self, role: Any) -> UnixTransport:
        return UnixTransport(self.folder)
