"""The project's transports hold to the promises of a transport."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tmrl_core.networking.security import credentials, handshakes, tls_contexts
from tmrl_core.networking.transports.base import Transport, new_event_loop
from tmrl_core.networking.transports.local import LocalTransport
from tmrl_core.networking.transports.tls import TlsTransport
from tmrl_core.networking.transports.tlspyo import files
from tmrl_core.networking.transports.tlspyo.transport import TlspyoTransport
from tmrl_core.testing.transports import Session, TransportSuite, make_worker

needs_tlspyo = pytest.mark.skipif(importlib.util.find_spec("tlspyo") is None, reason="the extra tlspyo")


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


class OurTransportSuite(TransportSuite):
    """With asyncio's event loop and the fastest that is installed, and what the drivers of `base.Driver` share."""

    @pytest.fixture(autouse=True, params=["asyncio", "fastest"])
    def choose_loop(self, request: pytest.FixtureRequest) -> None:
        self.loop = request.param

    def make_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop() if self.loop == "asyncio" else new_event_loop()

    def test_a_deadline_that_is_past_already_is_met_at_once(self) -> None:
        async def main() -> None:
            async with Session(self) as session:
                connection, driver = await session.worker(make_worker()[0])
                await self.until(lambda: connection.state == "open")
                driver._pump()  # a message that it still had to send would set the deadline anew
                connection._last_out -= 100.0
                driver._pump()
                driver._pump()
                sent = connection.bytes_out
                await self.until(lambda: connection.bytes_out > sent)

        self.run(main())

    def test_a_deadline_that_is_past_already_hides_no_silence(self) -> None:
        async def main() -> None:
            async with Session(self) as session:
                connection, driver = await session.worker(make_worker()[0])
                await self.until(lambda: connection.state == "open")
                since = connection._connected_at
                driver._pump()  # a message that it still had to send would set the deadline anew
                connection._last_out -= 100.0
                driver._pump()
                sent = connection.bytes_out
                await self.until(lambda: connection.bytes_out > sent)
                assert connection._connected_at == since, "nobody stood still"

        self.run(main())


class TestLocalTransport(OurTransportSuite):
    def make_transport(self, role: Any) -> Transport:
        return LocalTransport()


class TestPlaintext(OurTransportSuite):
    def make_transport(self, role: Any) -> Transport:
        return TlsTransport(None)


class TestTlsTransport(OurTransportSuite):
    @pytest.fixture(autouse=True)
    def use(self, keys: Path) -> None:
        self.keys = keys

    def make_transport(self, role: Any) -> Transport:
        if role == "server":
            return TlsTransport(tls_contexts.server_context(self.keys)[0], identity_of=handshakes.identity_of)
        return TlsTransport(tls_contexts.client_context(self.keys, role), server_hostname="localhost")


@needs_tlspyo
class TestTlspyoTransport(OurTransportSuite):
    """Each test starts up to four processes, so tests of code that all drivers share are left to the full form.

    That is also the other event loop: none of our code differs between the two here.
    """

    @pytest.fixture(autouse=True, params=["asyncio", pytest.param("fastest", marks=pytest.mark.full)])
    def choose_loop(self, request: pytest.FixtureRequest) -> None:
        self.loop = request.param

    @pytest.fixture(autouse=True)
    def use(self, keys: Path) -> None:
        part = files.load(keys, server=True)
        self.made = TlspyoTransport(password=part.password, certificate=part.certificate, key=part.key)

    def make_transport(self, role: Any) -> Transport:
        return self.made

    @pytest.mark.full
    def test_a_deadline_that_is_past_already_is_met_at_once(self) -> None:
        super().test_a_deadline_that_is_past_already_is_met_at_once()

    @pytest.mark.full
    def test_a_deadline_that_is_past_already_hides_no_silence(self) -> None:
        super().test_a_deadline_that_is_past_already_hides_no_silence()

    @pytest.mark.full
    def test_a_trainer_that_falls_silent_at_once_is_noticed(self) -> None:
        super().test_a_trainer_that_falls_silent_at_once_is_noticed()

    @pytest.mark.full
    def test_a_paused_process_takes_no_peer_for_silent(self) -> None:
        super().test_a_paused_process_takes_no_peer_for_silent()
