"""`--doctor` over the transport `tlspyo`: the same steps, against a real Server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.test_doctor import configured, look, only_failed
from tmrl_core.config import from_values
from tmrl_core.networking import Server
from tmrl_core.networking.security import credentials
from tmrl_core.networking.transports.tlspyo import files

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tlspyo") is None, reason="the extra tlspyo")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


def serve(keys: Path, **network: Any) -> Server:
    network = {"transport": "tlspyo", "credentials_dir": str(keys), "local_port_server": 0, **network}
    return Server(config=from_values({"network": network, "server": {"port": 0}}))


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[Server]:
    with serve(keys) as made:
        yield made


def test_all_checks_succeed(server: Server, keys: Path) -> None:
    steps = look(configured(server.port, keys, transport="tlspyo"), role="trainer")
    assert {step.state for step in steps.values()} == {"ok"}
    assert "the Server's certificate for " in steps["credentials"].found
    assert steps["round trip"].figures["median_s"] > 0
    assert steps["upload"].figures["bytes_per_s"] > 0
    assert steps["download"].figures["bytes_per_s"] > 0
    assert not server.relay.workers
    assert server.relay.trainer is None, "it takes nobody's place"


def test_without_encryption(keys: Path) -> None:
    with serve(keys, security=None) as plain:
        steps = look(configured(plain.port, keys, transport="tlspyo", security=None), role="worker")
    skipped = [name for name, step in steps.items() if step.state == "skipped"]
    assert skipped == ["TLS", "Server's certificate"]
    assert not [step for step in steps.values() if step.state == "failed"]


def test_another_password(server: Server, keys: Path, tmp_path: Path) -> None:
    (tmp_path / "certificate.pem").write_bytes((keys / "certificate.pem").read_bytes())
    (tmp_path / files.PASSWORD).write_text("x" * 43)
    steps = look(configured(server.port, tmp_path, transport="tlspyo"), role="worker")
    only_failed(steps, "accepted", "refuses this connection: the password is not this Server's")
    assert steps["Server's certificate"].state == "ok"


def test_another_certificate(server: Server, keys: Path, tmp_path: Path) -> None:
    credentials.create(tmp_path, ["localhost"])
    (tmp_path / files.PASSWORD).write_bytes((keys / files.PASSWORD).read_bytes())
    steps = look(configured(server.port, tmp_path, transport="tlspyo"), role="worker")
    only_failed(steps, "Server's certificate", "has another certificate than certificate.pem here")
    assert steps["TLS"].state == "ok"
    assert steps["accepted"].state == "skipped"


def test_another_name(server: Server, keys: Path) -> None:
    steps = look(configured(server.port, keys, transport="tlspyo", hostname="other.example"), role="worker")
    failed = only_failed(steps, "Server's certificate", "is for another name than 'other.example'")
    assert "network.hostname" in failed.todo


def test_no_credentials(server: Server, tmp_path: Path) -> None:
    steps = look(configured(server.port, tmp_path / "none", transport="tlspyo"), role="worker")
    only_failed(steps, "credentials", "not found")
    assert steps["port"].state == "ok"
    assert steps["TLS"].state == "skipped"


def test_another_version_of_the_protocol(server: Server, keys: Path) -> None:
    steps = look(configured(server.port, keys, transport="tlspyo"), role="worker", versions=(99,))
    only_failed(steps, "protocol version", "the Server speaks protocol version")


def test_a_server_of_transport_tls(keys: Path) -> None:
    with Server(config=from_values({"network": {"credentials_dir": str(keys)}, "server": {"port": 0}})) as other:
        steps = look(configured(other.port, keys, transport="tlspyo"), role="worker", timeout_s=5.0)
    assert "network.transport is tls," in only_failed(steps, "Server's certificate").todo


def test_a_client_of_transport_tls(server: Server, keys: Path) -> None:
    steps = look(configured(server.port, keys), role="worker", timeout_s=5.0)
    assert "network.transport is tlspyo," in only_failed(steps, "Server's certificate", "another CA").todo


def test_another_header_size(server: Server, keys: Path) -> None:
    steps = look(configured(server.port, keys, transport="tlspyo", header_size=14), role="worker", timeout_s=5.0)
    assert "network.header_size" in only_failed(steps, "TLS").todo
