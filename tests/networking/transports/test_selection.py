"""Which transport is taken: plaintext only where nobody else listens, or where somebody insisted; and who is let in."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tmrl_core.config import data_folder, from_values
from tmrl_core.errors import ConfigError, CredentialsError, RefusedError
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, WorkerLink
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.messages import Hello, Role
from tmrl_core.networking.relay import Relay
from tmrl_core.networking.security import credentials
from tmrl_core.networking.transports.local import LocalTransport
from tmrl_core.networking.transports.plain import PlainNotice, plain_server
from tmrl_core.networking.transports.selection import client_transport, is_loopback, link_settings, server_transport
from tmrl_core.networking.transports.tls import TlsTransport

DEADLINE_S = 20.0
PORT = 4711

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="owners and mode bits mean nothing on Windows")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


_notices: list[PlainNotice] = []


@pytest.fixture(autouse=True)
def _notices_end() -> Iterator[None]:
    yield
    while _notices:
        _notices.pop().close()


def announce() -> Path:
    """Leave the file, as this process's; it stays until the test ends."""
    _notices.append(PlainNotice(PORT))
    return _notices[-1].path


def plain(settings: LinkSettings) -> bool:
    transport, _ = client_transport(settings, "worker")
    assert isinstance(transport, TlsTransport)
    return transport.context is None


def auto(keys: Path, host: str = "127.0.0.1", port: int = PORT) -> LinkSettings:
    return LinkSettings(host=host, port=port, credentials_dir=str(keys))


# -- the file of a live plaintext Server -------------------------------------------------------------------------------


def test_a_client_without_security_setting_uses_tls(keys: Path) -> None:
    assert not plain(auto(keys))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_plaintext_is_used_for_the_same_users_running_server_on_this_machine(keys: Path, host: str) -> None:
    announce()
    assert plain(auto(keys, host))
    assert not plain(auto(keys, host, port=PORT + 1)), "another port is another Server"


@pytest.mark.parametrize("host", ["192.0.2.1", "robots.example.org", "0.0.0.0", "localhost.example.org", "2001:db8::1"])
def test_the_file_has_no_effect_for_another_machine(keys: Path, host: str) -> None:
    announce()
    assert not plain(auto(keys, host))


def test_an_explicit_tls_setting_overrides_the_file(keys: Path) -> None:
    announce()
    assert not plain(LinkSettings(port=PORT, security="TLS", credentials_dir=str(keys)))


@posix_only
def test_the_file_is_private_from_the_moment_it_exists() -> None:
    path = announce()
    assert path.parent.parent == data_folder()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(path.read_text()) == {"port": PORT, "host": platform.node(), "pid": os.getpid()}


def test_a_file_of_a_dead_process_is_ignored() -> None:
    path = announce()
    assert plain_server(PORT)
    said = path.read_bytes()
    _notices.pop().close()
    path.write_bytes(said)  # as a killed Server leaves it, and with the id of a process that lives: this one
    path.chmod(0o600)
    assert not plain_server(PORT)


def test_a_file_of_another_machine_is_ignored() -> None:
    path = announce()
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere"}))
    assert not plain_server(PORT)


def test_the_check_does_not_disturb_the_servers_lock() -> None:
    announce()
    assert all(plain_server(PORT) for _ in range(3))


def test_a_server_replaces_a_stale_file() -> None:
    path = announce()
    path.write_text("stale")
    assert not plain_server(PORT)
    announce()
    assert plain_server(PORT)


@pytest.mark.parametrize("said", ["[" * 4_000, '{"port":' * 500, "", "[]", '{"port": 1}'])
def test_a_file_with_other_content_is_ignored(said: str) -> None:
    announce().write_text(said)
    assert not plain_server(PORT)


@posix_only
def test_a_pipe_in_place_of_the_file_is_ignored_without_blocking() -> None:
    path = announce()
    path.unlink()
    os.mkfifo(path, 0o600)
    assert not plain_server(PORT)


@posix_only
@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602, 0o777])
def test_a_file_that_others_may_read_or_write_is_ignored(mode: int) -> None:
    path = announce()
    path.chmod(mode)
    assert not plain_server(PORT)


@posix_only
def test_a_file_of_another_user_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    announce()
    assert plain_server(PORT)
    somebody_else = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody_else)
    assert not plain_server(PORT)


@posix_only
def test_a_link_to_a_file_is_ignored(tmp_path: Path) -> None:
    path = announce()
    elsewhere = tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert not plain_server(PORT)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"port": 1}', "\udcff" * 3],
    ids=range(6),
)
def test_a_file_without_a_port_is_ignored(content: str) -> None:
    path = announce()
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert not plain_server(PORT)


def test_a_file_for_another_port_is_ignored() -> None:
    announce().rename(data_folder() / "plain_servers" / f"{PORT + 1}.json")
    assert not plain_server(PORT + 1)


def test_a_plaintext_server_is_found_while_it_runs_and_not_after(keys: Path) -> None:
    server = Server(config=from_values({"network": {"security": None}, "server": {"port": 0}}))
    try:
        assert plain(auto(keys, port=server.port))
        link = WorkerLink(auto(keys, port=server.port), name="a", run="run")
        link.start()
        try:
            assert link.wait_connected(DEADLINE_S)
        finally:
            link.close(drain=False)
    finally:
        server.close()
    assert not plain(auto(keys, port=server.port))


def test_a_server_with_tls_leaves_no_such_file(keys: Path) -> None:
    config = from_values({"network": {"credentials_dir": str(keys)}, "server": {"port": 0}})
    with Server(config=config) as server:
        assert not plain_server(server.port)


# -- where a plaintext Server may listen -------------------------------------------------------------------------------


def server_side(
    host: str, security: Literal["TLS"] | None = None, insecure: bool = False, **changes: Any
) -> TlsTransport:
    settings = LinkSettings(host=host, security=security, allow_insecure_remote=insecure, **changes)
    transport, _ = server_transport(settings, lambda address, reason: None)
    assert isinstance(transport, TlsTransport)
    return transport


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_plaintext_listens_on_this_machine(host: str) -> None:
    assert server_side(host).context is None


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.0.2.1", "robots.example.org"])
def test_plaintext_on_other_interfaces_must_be_allowed(host: str) -> None:
    with pytest.raises(ConfigError, match=r"network\.allow_insecure_remote: true"):
        server_side(host)
    assert server_side(host, insecure=True).context is None


def test_allowing_plaintext_does_not_disable_tls(keys: Path) -> None:
    assert server_side("0.0.0.0", "TLS", True, credentials_dir=str(keys)).context is not None


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *(("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)),
        *(("", False), ("0.0.0.0", False), ("localhost.example.org", False), ("10.0.0.1", False), ("fe80::1", False)),
        ("not a host", False),
    ],
)
def test_which_hosts_are_this_machine(host: str, own: bool) -> None:
    assert is_loopback(host) is own


# -- what there is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["robot..lab", "a" * 64 + ".lab", ".lab"])
def test_the_error_for_an_invalid_name_has_its_key(keys: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.host: .* is not a host name"):
        client_transport(LinkSettings(host=name, credentials_dir=str(keys)), "worker")
    with pytest.raises(ConfigError, match=r"network\.hostname: .* is not a host name"):
        client_transport(LinkSettings(hostname=name, credentials_dir=str(keys)), "worker")


def test_the_transport_local_needs_no_credentials() -> None:
    transport, token = client_transport(LinkSettings(transport="local", token="secret"), "worker")
    assert isinstance(transport, LocalTransport)
    assert token == ""


def test_the_error_names_an_unknown_transport() -> None:
    with pytest.raises(ConfigError, match=r"carrier pigeon.*this version has tls, local, tlspyo"):
        client_transport(LinkSettings(transport="carrier pigeon"), "worker")
    with pytest.raises(ConfigError, match=r"carrier pigeon.*this version has tls, local, tlspyo"):
        server_side("127.0.0.1", transport="carrier pigeon")


def test_the_error_for_missing_credentials_has_the_command(tmp_path: Path) -> None:
    for call in (
        lambda: client_transport(LinkSettings(credentials_dir=str(tmp_path / "none")), "worker"),
        lambda: server_side("127.0.0.1", "TLS", credentials_dir=str(tmp_path / "none")),
    ):
        with pytest.raises(CredentialsError, match="--credentials create"):
            call()


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["worker", "trainer"])
def test_a_client_shows_the_token_of_its_role(keys: Path, role: Role) -> None:
    _, token = client_transport(LinkSettings(credentials_dir=str(keys)), role)
    assert token == (keys / f"{role}.token").read_text().strip()


def test_a_given_token_takes_precedence_over_the_files(keys: Path) -> None:
    _, token = client_transport(LinkSettings(credentials_dir=str(keys), token="given"), "worker")
    assert token == "given"


def test_no_token_is_sent_without_one(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    assert client_transport(LinkSettings(credentials_dir=str(tmp_path)), "worker")[1] == ""


def test_settings_do_not_show_their_token() -> None:
    assert "secret" not in repr(LinkSettings(token="secret"))


def peer(role: str | None = None) -> Connection:
    connection = Relay().connection()
    connection.identity = Identity("192.0.2.7:1", role, "robot7" if role else None)
    return connection


def hello(role: Role, token: str = "") -> Hello:
    return Hello((1,), role, token, "run", "robot7", b"p" * 16)


@pytest.mark.parametrize(
    ("certificate", "role", "token", "code"),
    [
        (None, "worker", "worker", None),
        (None, "trainer", "trainer", None),
        (None, "worker", "trainer", "token"),
        (None, "trainer", "worker", "token"),
        (None, "worker", "nonsense", "token"),
        (None, "worker", "", "certificate"),
        ("worker", "worker", "", None),
        ("trainer", "trainer", "", None),
        ("worker", "worker", "nonsense", None),
        ("worker", "trainer", "", "role"),
        ("worker", "trainer", "trainer", "role"),
        ("trainer", "worker", "worker", "role"),
        ("server", "trainer", "trainer", "role"),
    ],
)
def test_authentication_over_tls(keys: Path, certificate: str | None, role: Role, token: str, code: str | None) -> None:
    _, authenticate = server_transport(
        LinkSettings(host="", security="TLS", credentials_dir=str(keys)), lambda address, reason: None
    )
    secrets = {name: (keys / f"{name}.token").read_text().strip() for name in ("worker", "trainer")}
    verdict = authenticate(hello(role, secrets.get(token, token)), peer(certificate))
    assert (verdict[0] if verdict else None) == code
    if verdict is not None:
        assert f"--credentials bundle {role} --name NAME" in verdict[1]
        assert not any(secret in verdict[1] for secret in secrets.values())
        assert "nonsense" not in verdict[1]
        if token and token != "nonsense":
            assert f"these are a {certificate or token}'s credentials" in verdict[1]


def test_roles_that_may_request_the_status_over_tls(keys: Path, tmp_path: Path) -> None:
    """A trainer, an operator, and who holds the Server's own key; no worker, since robots can be stolen."""
    _, authenticate = server_transport(
        LinkSettings(host="", security="TLS", credentials_dir=str(keys)), lambda address, reason: None
    )
    own = client_transport(LinkSettings(credentials_dir=str(keys)), "observer")[1]
    trainer, worker = ((keys / f"{name}.token").read_text().strip() for name in ("trainer", "worker"))
    assert own not in (trainer, worker)
    assert authenticate(hello("observer", own), peer()) is None
    assert authenticate(hello("observer", trainer), peer()) is None
    assert authenticate(hello("observer"), peer("trainer")) is None
    assert authenticate(hello("observer"), peer("operator")) is None
    for token, certificate, code in (
        (worker, None, "token"),
        *(("", None, "role"), ("", "worker", "role")),
        *((trainer, "worker", "role"), (own, "worker", "role")),
    ):
        verdict = authenticate(hello("observer", token), peer(certificate))
        assert verdict is not None
        assert verdict[0] == code
        assert f"--credentials bundle {'operator' if code == 'role' else 'trainer'} --name NAME" in verdict[1]
        assert worker not in verdict[1]
        assert trainer not in verdict[1]
    for role in ("worker", "trainer"):
        assert authenticate(hello(role, own), peer()) is not None, "who only looks can be nothing else"


def test_an_observer_uses_the_credentials_of_its_machine(keys: Path, tmp_path: Path) -> None:
    def token(folder: Path) -> str:
        return client_transport(LinkSettings(credentials_dir=str(folder)), "observer")[1]

    server, trainer, worker = (
        credentials.bundle(keys, role, "" if role == "server" else "m", tmp_path / f"{role}.bundle")
        for role in ("server", "trainer", "worker")
    )
    assert token(server) == token(keys), "a Server's machine needs nothing but its bundle"
    assert token(trainer) == client_transport(LinkSettings(credentials_dir=str(trainer)), "trainer")[1]
    installed = tmp_path / "installed"
    credentials.install(trainer, installed)
    assert token(installed) == token(trainer)
    alone = tmp_path / "alone"
    credentials.install(worker, alone)
    for folder in (worker, alone):
        with pytest.raises(CredentialsError, match=r"worker's credentials only.*trainer's and an operator's may ask"):
            token(folder)
    of_the_environment = LinkSettings(credentials_dir=str(alone), token="the trainer's")
    assert client_transport(of_the_environment, "observer")[1] == "the trainer's"


@pytest.mark.parametrize(
    ("token", "shown", "admitted"),
    [
        *((None, "", True), (None, "any", True), ("right", "right", True)),
        *(("right", "wrong", False), ("right", "", False), ("right", "right\u00e4", False)),
    ],
)
def test_authentication_without_tls(token: str | None, shown: str, admitted: bool) -> None:
    _, authenticate = server_transport(LinkSettings(security=None, token=token), lambda address, reason: None)
    verdict = authenticate(hello("worker", shown), peer())
    assert (verdict is None) == admitted
    if verdict is not None:
        assert verdict[0] == "token"
        assert token is not None
        assert token not in verdict[1]


def test_a_plaintext_server_rejects_a_wrong_token_with_the_reason(keys: Path) -> None:
    config = from_values({"network": {"security": None}, "server": {"port": 0}})
    with Server(config=config, password="right") as server:
        settings = LinkSettings(port=server.port, security=None, token="wrong")
        link = WorkerLink(settings, name="a", run="run")
        link.start()
        try:
            with pytest.raises(RefusedError, match="token") as caught:
                link.wait_connected(DEADLINE_S)
            assert caught.value.code == "token"
        finally:
            link.close(drain=False)


@pytest.mark.parametrize("security", ["TLS", None])
@pytest.mark.parametrize("from_environment", [False, True])
def test_a_refused_password_is_named_as_the_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, security: Literal["TLS"] | None, from_environment: bool
) -> None:
    config = from_values({"server": {"port": 0}, "network": {"credentials_dir": str(tmp_path), "security": security}})
    monkeypatch.setenv("TMRL_CORE_TOKEN", "of the environment")
    with Server(config=config, password="of the Server") as server:
        password = {} if from_environment else {"password": "of mine"}
        settings = link_settings(config, host="127.0.0.1", port=server.port, **password)  # type: ignore[arg-type]
        link = WorkerLink(settings, name="robot7", run="run")
        link.start()
        with pytest.raises(RefusedError) as caught:
            link.wait_connected(20.0)
        link.close()
    assert str(caught.value).startswith("the argument `password` was refused: ") is not from_environment
    assert ("With TLS, leave out password here" in str(caught.value)) is not from_environment
    assert "mine" not in str(caught.value)
