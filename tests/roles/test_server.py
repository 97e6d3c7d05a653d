"""The Server as an object: it runs from construction on, and nothing of it is left after `close`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from tmrl_core.config import Config, data_folder, from_values, sections
from tmrl_core.errors import ConfigError, NetworkError, PortInUseError
from tmrl_core.networking import Server
from tmrl_core.roles.from_config import make_server


def config(**sections: dict[str, Any]) -> Config:
    sections.setdefault("network", {"security": None})
    return from_values({"server": {"port": 0}, **sections})


def test_it_listens_from_construction_on_and_no_more_after_close() -> None:
    with Server(config=config()) as server:
        socket.create_connection(("127.0.0.1", server.port), 5).close()
        assert server.wait(0) is False
        port = server.port
    assert server.wait(0) is True
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    assert not [thread for thread in threading.enumerate() if thread.name == "tmrl-server"]


def test_close_ends_a_wait_and_may_be_called_again() -> None:
    server = Server(config=config())
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(server.wait(20)))
    thread.start()
    server.close()
    server.close()
    thread.join(20)
    assert ended == [True]


def test_an_argument_overrides_the_configuration() -> None:
    with Server(port=0, max_workers=3, config=config(server={"port": 1, "max_workers": 7})) as server:
        assert server.port > 1
        assert server.relay.settings.max_workers == 3


@pytest.mark.parametrize(("security", "warns"), [("TLS", True), (None, False)])
def test_a_password_that_has_no_effect_is_named(
    security: Literal["TLS"] | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(password="secret", security=security, config=config()):
        assert ("password: no effect with TLS" in caplog.text) is warns
    assert "secret" not in caplog.text


def test_a_port_in_use_is_raised_and_leaves_no_thread() -> None:
    with Server(config=config()) as server:
        with pytest.raises(NetworkError, match=f"{server.port}.*in use.*another server.port"):
            Server(port=server.port, config=config())
        assert len([thread for thread in threading.enumerate() if thread.name == "tmrl-server"]) == 1


def test_a_port_that_is_set_is_kept_and_the_default_one_may_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(config=config()) as first:
        monkeypatch.setattr(sections, "DEFAULT_PORT", first.port)
        default = config(server={})
        with pytest.raises(PortInUseError):
            make_server(default)
        with pytest.raises(PortInUseError, match=f"port {first.port}"):
            make_server(config(server={"port": first.port}), any_port=True)
        with make_server(default, any_port=True) as second:
            assert second.port not in (0, first.port)
    with make_server(default, any_port=True) as third:
        assert third.port == first.port


SCRIPT = """
from tmrl_core.config import from_values
from tmrl_core.networking import Server

server = Server(config=from_values({"server": {"port": 0}, "network": {"security": None}}))
print(server.port, flush=True)
"""


def test_nothing_survives_a_process_that_did_not_close_it(tmp_path: Path) -> None:
    environ = os.environ | {"TMRL_CORE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, timeout=100, check=True
    )
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(done.stdout)), 5)


def test_an_address_of_another_machine_is_refused_with_the_key_to_change() -> None:
    network = {"security": None, "allow_insecure_remote": True}
    with pytest.raises(NetworkError, match=r"cannot listen on .* not an address of this machine: set server\.bind"):
        Server(config=config(server={"port": 0, "bind": "203.0.113.7"}, network=network))


def test_a_budget_below_two_messages_is_refused_with_the_key_to_change() -> None:
    with pytest.raises(
        ConfigError, match=r"server.budget_bytes.*network.max_message_bytes.*raise the first or lower the second"
    ):
        Server(
            config=config(
                server={"port": 0, "budget_bytes": 4 << 20},
                network={"security": None, "max_message_bytes": 16 << 20},
            )
        )


def test_plaintext_is_announced_while_it_runs_and_not_after() -> None:
    with Server(config=config()) as server:
        file = data_folder() / "plain_servers" / f"{server.port}.json"
        assert file.exists()
    assert not file.exists()


def test_plaintext_beyond_this_machine_must_be_allowed() -> None:
    with pytest.raises(ConfigError, match="allow_insecure_remote"):
        Server(config=config(server={"port": 0, "bind": "0.0.0.0"}))
