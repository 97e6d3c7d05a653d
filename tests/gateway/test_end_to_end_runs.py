"""A gateway, a Server and a trainer as processes with bundles of their own, which prove the origin of messages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.command_line import announced, records
from tests.gateway.test_serve import PROCESSES, Client
from tests.hostile.machines import FORGED, Machines
from tmrl_core.gateway.api_keys import make_key


class Site(Machines):
    """The machines, one of them with a gateway."""

    def __init__(self, folder: Path, stack: ExitStack, mode: str) -> None:
        super().__init__(folder, stack, PROCESSES, mode)
        self.fleet.install("worker", "site", weight=20)
        self._key = make_key(folder / "site", "default")[1]
        self._policy = folder / "runs" / "small" / "gateway" / "default" / "policy.tmod"

    def gateway(self) -> tuple[subprocess.Popen[str], Client]:
        """Start a gateway. Return it with a client."""
        made = self.start("site", "--gateway", "--announce")
        return made, Client(announced(made), self._key)

    def learn(self, client: Client, versions: int = 2) -> None:
        """Let the client play until the gateway has stored further policies."""
        for _ in range(versions):
            client.play_until(partial(self._differs, self._kept()))

    def _kept(self) -> bytes:
        return self._policy.read_bytes() if self._policy.exists() else b""

    def _differs(self, before: bytes) -> bool:
        return self._kept() not in (b"", before)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("mode", [pytest.param("authenticate", marks=pytest.mark.full), "encrypt"])
def test_a_client_is_learned_from_after_a_renewal_a_kill_and_a_revocation(
    stack: ExitStack, tmp_path: Path, mode: str
) -> None:
    machines = Site(tmp_path, stack, mode)
    trainer = machines.start("hpc", "--trainer")
    gateway, client = machines.gateway()
    machines.learn(client)
    assert (tmp_path / "runs" / "small" / "gateway" / "default" / "policy.tmod.accepted").exists()

    # Both use their renewed certificates.
    machines.renew("site.worker", "hpc.trainer")
    machines.learn(client, 3)
    trainer.kill()
    trainer.wait(20)
    assert {record.values["wire/forged"] for record in records(tmp_path, "network")} == {0}

    # The spooled samples of a revoked gateway are not used.
    client.episodes(3)
    client.close()
    said = machines.end(gateway)
    assert "handed over" in said
    assert ", 0 lost" in said
    assert FORGED not in said
    machines.revoke("site")
    trainer = machines.start("hpc", "--trainer")
    machines.fleet.install("worker", "site")  # the same name, with a certificate that is not revoked
    gateway, client = machines.gateway()
    machines.learn(client, 3)
    client.close()
    assert FORGED not in machines.end(gateway)
    assert "the certificate of worker site is revoked" in machines.end(trainer)
