"""Each step of `--doctor`, failing as it fails in the field: over real sockets, against real Servers."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tmrl_core.cli.main import main
from tmrl_core.config import Config, from_values
from tmrl_core.doctor import Step, examine
from tmrl_core.doctor import checks as examination
from tmrl_core.errors import ConfigError
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.security import credentials
from tmrl_core.networking.security.tls_contexts import ClientRole
from tmrl_core.token_bucket import TokenBucket

ALL = [
    "configuration",
    "code",
    "packages",
    "credentials",
    "name",
    "port",
    "TLS",
    "Server's certificate",
    "accepted",
    "protocol version",
    "end to end",
    "clock",
    "round trip",
    "upload",
    "download",
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[Server]:
    made = Server(config=from_values({"network": {"credentials_dir": str(keys)}, "server": {"port": 0}}))
    yield made
    made.close()


@pytest.fixture
def robot(keys: Path, tmp_path: Path) -> Path:
    """The credentials of a worker's machine."""
    credentials.install(credentials.bundle(keys, "worker", "robot7", tmp_path), tmp_path / "robot")
    return tmp_path / "robot"


def configured(port: int, folder: Path, host: str = "127.0.0.1", **network: Any) -> Config:
    return from_values(
        {
            "run": {"name": "mine"},
            "server": {"host": host, "port": port},
            "network": {"credentials_dir": str(folder), **network},
        }
    )


def look(config: Config, role: ClientRole | None = None, **how: Any) -> dict[str, Step]:
    """Every step by its name; each is there once, and only a failure or another run's trainer says what to do."""
    how = {"timeout_s": 10.0, "measure_s": 0.2, **how}
    steps = list(examine(lambda: config, source="my.yaml", role=role, **how))
    assert sorted(step.name for step in steps) == sorted(ALL)
    for step in steps:
        assert step.found
        other_run = step.name == "accepted" and "its trainer is of run" in step.found
        assert bool(step.todo) == (step.state == "failed" or other_run), step
    return {step.name: step for step in steps}


def only_failed(steps: dict[str, Step], name: str, *words: str) -> Step:
    """The step that failed, alone; what needs it was not tried."""
    assert [step.name for step in steps.values() if step.state == "failed"] == [name]
    for word in words:
        assert word in steps[name].found, steps[name].found
    return steps[name]


# -- all is well -------------------------------------------------------------------------------------------------------


def test_all_checks_succeed_for_a_worker(server: Server, robot: Path) -> None:
    steps = look(configured(server.port, robot))
    assert {step.state for step in steps.values()} == {"ok"}
    assert "as worker" in steps["configuration"].found
    assert "worker 'robot7'" in steps["credentials"].found
    assert "TLSv1.3" in steps["TLS"].found
    assert "localhost" in steps["Server's certificate"].found
    assert steps["round trip"].figures["worst_s"] >= steps["round trip"].figures["median_s"] > 0
    assert steps["upload"].figures["bytes_per_s"] > 1e5
    assert steps["download"].figures["bytes_per_s"] > 1e5
    assert abs(steps["clock"].figures["skew_s"]) < 1


def test_all_checks_succeed_for_an_operator(keys: Path, server: Server, tmp_path: Path) -> None:
    bundle = credentials.bundle(keys, "operator", "anna", tmp_path)
    credentials.install(bundle, tmp_path / "anna")
    for folder in (tmp_path / "anna", bundle):
        steps = look(configured(server.port, folder))
        assert {step.state for step in steps.values()} == {"ok"}
        assert "as operator" in steps["configuration"].found
        assert "operator 'anna'" in steps["credentials"].found
        assert steps["accepted"].found == "the Server accepts this operator"
    only_failed(look(configured(server.port, bundle), "worker"), "credentials", "operator's credentials")


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        (None, None, "authenticate; the trainer of run 'mine' has proved its identity"),
        ("encrypt", "encrypt", "encrypt; the trainer"),
        ("encrypt", "authenticate", "encrypt; the trainer"),
        ("authenticate", "encrypt", "authenticate; the trainer"),
        (None, "off", "authenticate here, and the trainer of run 'mine' has proved nothing"),
        ("off", None, "off here, and the trainer of run 'mine' authenticates"),
        ("off", "off", "off: the Server can change samples and weights"),
    ],
)
def test_both_ends_must_agree_on_end_to_end_authentication(
    keys: Path, robot: Path, tmp_path: Path, here: Any, there: Any, words: str
) -> None:
    server = Server(config=from_values({"network": {"credentials_dir": str(keys)}, "server": {"port": 0}}))
    bundle = credentials.bundle(keys, "trainer", "hpc", tmp_path)
    settings = LinkSettings(
        port=server.port, hostname="localhost", security="TLS", credentials_dir=str(bundle), end_to_end=there
    )
    trainer = TrainerLink(settings, name="hpc", run="mine")
    trainer.start()
    try:
        assert trainer.wait_connected(10.0)
        config = configured(server.port, robot, end_to_end=here)
        steps = look(config)
        if (here == "off") == (there == "off"):
            assert steps["end to end"].state == "ok"
            assert words in steps["end to end"].found
        else:
            assert "network.end_to_end" in only_failed(steps, "end to end", words).todo
        viewer = credentials.bundle(keys, "operator", "anna", tmp_path / "viewer")
        seen = look(configured(server.port, viewer, end_to_end=here))["end to end"]
        assert words in seen.found
        assert ("it shows what the Server knows" in seen.found) == (here == "encrypt")
        own = look(configured(server.port, bundle, end_to_end=there))["end to end"]
        assert own.state == "ok"
        assert own.found.endswith("workers need off too" if there == "off" else "workers need authenticate or encrypt")
    finally:
        trainer.close()
        server.close()


def test_the_doctor_occupies_no_place_and_disturbs_no_peer(
    server: Server, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = TrainerLink(
        LinkSettings(port=server.port, hostname="localhost", credentials_dir=str(keys)), name="hpc", run="theirs"
    )
    trainer.start()
    try:
        assert trainer.wait_connected(10.0)
        peer = server.relay.trainer
        steps = look(configured(server.port, keys), "trainer")
        assert "already has a trainer (hpc of run 'theirs'" in steps["accepted"].found
        assert steps["accepted"].state == "ok"
        steps = look(configured(server.port, keys), "worker")
        assert "its trainer is of run 'theirs'" in steps["accepted"].found
        assert "use the same run.name" in steps["accepted"].todo
        assert main(arguments(server, keys)) == 0
        out = capsys.readouterr().out
        assert "        -> use the same run.name" in out
        assert "All checks passed" not in out
        assert server.relay.trainer is peer
        assert server.relay.incarnation == 1
        assert not server.relay.workers
        assert not server.relay.streams
        assert trainer.connected
    finally:
        trainer.close()


@pytest.mark.parametrize("role", ["worker", "trainer"])
def test_the_role_follows_the_credentials(keys: Path, tmp_path: Path, role: ClientRole) -> None:
    bundle = credentials.bundle(keys, role, "here", tmp_path)
    credentials.install(bundle, tmp_path / "installed")
    for folder in (bundle, tmp_path / "installed"):
        steps = list(examine(lambda folder=folder: configured(1, folder), source="x", timeout_s=1.0))  # type: ignore[misc]
        assert f"as {role}" in steps[0].found
        assert steps[3].state == "ok"
        assert f"{role} 'here'" in steps[3].found


# -- each step fails ---------------------------------------------------------------------------------------------------


def test_a_broken_configuration() -> None:
    def load() -> Config:
        raise ConfigError("server.port: found 'x', allowed: a whole number")

    steps = {step.name: step for step in examine(load, source="my.yaml")}
    assert "server.port" in only_failed(steps, "configuration").found
    assert {step.state for name, step in steps.items() if name not in ("configuration", "packages")} == {"skipped"}


@pytest.mark.parametrize(
    ("section", "key", "reference"),
    [
        ("environment", "cls", "no_such_module:Env"),
        ("actor", "cls", "tmrl_core.actor:NoSuchPolicy"),
        ("environment", "cls", "module_that_fails:Env"),
    ],
)
def test_code_that_cannot_be_imported(
    server: Server, robot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, key: str, reference: str
) -> None:
    (tmp_path / "module_that_fails.py").write_text("raise OSError('the camera is unplugged')")
    monkeypatch.syspath_prepend(str(tmp_path))
    values = {"network": {"credentials_dir": str(robot)}, "server": {"port": server.port}, section: {key: reference}}
    only_failed(look(from_values(values)), "code")


@pytest.mark.parametrize("role", ["worker", "trainer"])
def test_nothing_that_the_configuration_names_is_imported(
    server: Server, keys: Path, tmp_path: Path, role: ClientRole
) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "evil_package").mkdir(parents=True)
    run = f"import pathlib; pathlib.Path({str(tmp_path / 'it_ran')!r}).touch()"
    for file in ("evil.py", "evil_package/__init__.py", "evil_package/deep.py"):
        (theirs / file).write_text(f"{run}\nclass Thing:\n    pass\n")
    named = {
        "environment": {"cls": "evil_package.deep:Thing", "kwargs": {"any": 1}},
        "actor": {"cls": "evil:Thing"},
        "agent": {"cls": "evil:Thing"},
        "memory": {"cls": "evil:Thing", "sample_preprocessor": "evil:Thing"},
        "worker": {"sample_compressor": "evil:Thing", "obs_preprocessor": "evil_package:Thing"},
        "server": {"port": server.port},
        "network": {"credentials_dir": str(keys)},
    }
    steps = look(from_values(named), role, folders=[theirs])
    assert "evil_package.deep:Thing" in steps["code"].found
    assert {step.state for step in steps.values()} <= {"ok", "skipped"}
    for reference in ("evil:Thin", "evil_package.deeper:Thing", "evils:Thing"):
        only_failed(look(from_values({**named, "actor": {"cls": reference}}), role, folders=[theirs]), "code")
    assert not (tmp_path / "it_ran").exists()


def test_no_credentials(server: Server, tmp_path: Path) -> None:
    steps = look(configured(server.port, tmp_path / "none"))
    step = only_failed(steps, "credentials", "ca.pem not found")
    assert "--credentials" in step.todo
    assert "localhost" in steps["Server's certificate"].found
    assert steps["accepted"].state == "skipped"


def test_our_own_certificate_has_expired(server: Server, keys: Path, tmp_path: Path) -> None:
    bundle = credentials.bundle(keys, "worker", "old", tmp_path, days=-2)
    step = only_failed(look(configured(server.port, bundle)), "credentials", "'old' is valid from")
    assert "new bundle" in step.todo


def test_our_own_certificate_is_of_another_ca(server: Server, keys: Path, tmp_path: Path) -> None:
    credentials.create(tmp_path / "other", ["localhost"])
    credentials.install(credentials.bundle(tmp_path / "other", "worker", "w", tmp_path), tmp_path / "w")
    (tmp_path / "w" / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    only_failed(look(configured(server.port, tmp_path / "w")), "credentials", "not of the CA")


def test_a_bundle_of_the_other_role(server: Server, keys: Path, tmp_path: Path) -> None:
    bundle = credentials.bundle(keys, "trainer", "hpc", tmp_path)
    only_failed(
        look(configured(server.port, bundle), "worker"),
        "credentials",
        "these are a trainer's credentials",
        "trainer's bundle",
    )


@pytest.mark.parametrize("host", ["a..b", "no such host"])
def test_a_name_that_cannot_be_resolved(robot: Path, host: str) -> None:
    step = only_failed(look(configured(1, robot, host)), "name", "cannot be resolved")
    assert "server.host" in step.todo


def test_a_closed_port(robot: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    step = only_failed(look(configured(port, robot)), "port", str(port), "127.0.0.1: connection refused")
    assert "start the Server" in step.todo


@contextmanager
def black_hole() -> Iterator[int]:
    """A port whose queue of connections is full: packets to it are dropped."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_port_that_drops_packets(robot: Path) -> None:
    with black_hole() as port:
        step = only_failed(look(configured(port, robot), timeout_s=0.3), "port", "no answer within 0.3 s")
    assert "firewall" in step.todo


@contextmanager
def listener(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port where something else listens; `talk` has each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def serve() -> None:
            while True:
                try:
                    sock, _ = listening.accept()
                except OSError:
                    return
                kept.append(sock)
                talk(sock)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10.0)
    for sock in kept:
        sock.close()


def test_a_listener_that_does_not_answer_the_handshake(robot: Path) -> None:
    with listener(lambda sock: None) as port:
        only_failed(look(configured(port, robot), timeout_s=0.3), "TLS", "did not answer the TLS handshake within 0.3")


def test_a_listener_with_another_protocol(robot: Path) -> None:
    with listener(lambda sock: sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as port:
        step = only_failed(look(configured(port, robot)), "TLS", "not TLS")
    assert "server.port" in step.todo


@pytest.mark.parametrize(
    ("talk", "found"),
    [
        (lambda sock: sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 9), "does not speak our protocol"),
        (lambda sock: (sock.recv(1000), sock.close()), "closed the connection without a message"),
        (lambda sock: None, "did not answer within 1 s"),
    ],
    ids=["other", "closed", "mute"],
)
def test_what_listens_in_plaintext_is_something_else(
    robot: Path, talk: Callable[[socket.socket], object], found: str
) -> None:
    with listener(talk) as port:
        step = only_failed(look(configured(port, robot, security=None), timeout_s=1.0), "accepted", found)
    assert step.todo


@pytest.fixture
def plain() -> Iterator[Server]:
    made = Server(config=from_values({"network": {"security": None}, "server": {"port": 0}}))
    yield made
    made.close()


def test_a_plaintext_server_for_a_tls_client(plain: Server, robot: Path) -> None:
    step = only_failed(look(configured(plain.port, robot, security="TLS")), "TLS")
    assert "network.security" in step.todo + step.found


def test_a_tls_server_for_a_plaintext_client(server: Server, robot: Path) -> None:
    step = only_failed(look(configured(server.port, robot, security=None)), "accepted")
    assert "network.security" in step.todo


def test_plaintext_on_this_machine_is_checked(plain: Server, tmp_path: Path) -> None:
    steps = look(configured(plain.port, tmp_path / "none", security=None))
    assert {name for name, step in steps.items() if step.state == "skipped"} == {
        "credentials",
        "TLS",
        "Server's certificate",
    }
    assert steps["accepted"].state == "ok"
    # Left out, it is found by the private file that the user's own Server leaves.
    assert look(configured(plain.port, tmp_path / "none"))["accepted"].state == "ok"


def test_no_token_leaves_this_machine_in_plaintext(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMRL_CORE_TOKEN", "secret")
    heard: list[bytes] = []
    with listener(lambda sock: heard.append(sock.recv(1000))) as port:
        steps = examine(lambda: configured(port, tmp_path, "192.0.2.1", security=None), source="my.yaml", timeout_s=0.1)
        found = only_failed({step.name: step for step in steps}, "configuration").found
        assert "let everybody read" in found
    assert b"secret" not in b"".join(heard)


def test_a_server_of_another_ca(server: Server, tmp_path: Path) -> None:
    credentials.create(tmp_path / "other", ["localhost"])
    steps = look(configured(server.port, tmp_path / "other"))
    step = only_failed(steps, "Server's certificate", "another CA", "valid ")
    assert "bundle" in step.todo
    assert steps["TLS"].state == "ok"


def test_an_invalid_hostname(server: Server, robot: Path) -> None:
    steps = look(configured(server.port, robot, hostname="robot..lab"))
    assert "network.hostname: 'robot..lab' is not a host name" in only_failed(steps, "configuration").found


def test_texts_in_certificates_are_printed_safely(robot: Path, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a\nok      forged\x1b[2J")])
    begin = datetime.now(timezone.utc) - timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(begin).not_valid_after(begin + timedelta(days=9))
    pem = serialization.Encoding.PEM
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = tmp_path / "server.pem"
    file.write_bytes(key.private_bytes(pem, pkcs8, plain) + builder.sign(key, hashes.SHA256()).public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    def talk(sock: socket.socket) -> None:
        with suppress(OSError):
            context.wrap_socket(sock, server_side=True).close()

    with listener(talk) as port:
        step = only_failed(look(configured(port, robot)), "Server's certificate", "CN=a?ok      forged?[2J")
    assert step.found.isprintable()


def test_a_server_of_another_name(server: Server, robot: Path) -> None:
    config = configured(server.port, robot, hostname="relay.example.org")
    step = only_failed(look(config), "Server's certificate", "not for 'relay.example.org'", "localhost, 127.0.0.1")
    assert "--host relay.example.org" in step.todo


def test_a_servers_certificate_that_has_expired(tmp_path: Path) -> None:
    credentials.create(tmp_path, ["localhost"], days=-2)
    with Server(config=from_values({"network": {"credentials_dir": str(tmp_path)}, "server": {"port": 0}})) as old:
        only_failed(look(configured(old.port, tmp_path)), "Server's certificate", "expired")


def test_a_wrong_token(server: Server, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    monkeypatch.setenv("TMRL_CORE_TOKEN", "wrong")
    before = server.relay.refused_peers
    step = only_failed(look(configured(server.port, tmp_path)), "accepted", "refused (token)")
    assert "TMRL_CORE_TOKEN" in step.todo
    assert server.relay.refused_peers == before + 1  # slowed down and logged as any other wrong token


def test_a_certificate_that_the_server_refuses(keys: Path, robot: Path, tmp_path: Path) -> None:
    """The Server trusts another CA than the one that signed its own certificate and ours."""
    credentials.create(tmp_path / "mixed", ["localhost"])
    for name in ("server.pem", "server.key"):
        (tmp_path / "mixed" / name).write_bytes((keys / name).read_bytes())
    config = from_values({"network": {"credentials_dir": str(tmp_path / "mixed")}, "server": {"port": 0}})
    with Server(config=config) as mixed:
        step = only_failed(look(configured(mixed.port, robot)), "accepted", "does not know the CA")
    assert "new bundle" in step.todo


def test_another_version_of_the_protocol(server: Server, robot: Path) -> None:
    config = configured(server.port, robot)
    step = only_failed(look(config, versions=(8, 9)), "protocol version", "protocol version 1, the peer 8, 9")
    assert "same version" in step.todo + step.found
    assert "1; the Server speaks 1, this machine 1, 9" in look(config, versions=(1, 9))["protocol version"].found


def test_a_clock_that_is_wrong(server: Server, robot: Path) -> None:
    config = configured(server.port, robot)
    step = only_failed(look(config, wall_clock=lambda: 1.0e9), "clock", "behind the Server's", "2001-09-09")
    assert "NTP" in step.todo


def test_a_slow_connection(server: Server, robot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "SLOW_S", 0.0)
    only_failed(look(configured(server.port, robot)), "round trip", "median")


def test_measurements_share_the_servers_allowance(server: Server, robot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.relay.probes, "_bytes", TokenBucket(1e9, 10_000))
    steps = look(configured(server.port, robot))
    assert steps["round trip"].state == "ok"
    assert steps["upload"].state == steps["download"].state == "skipped"


def test_a_transport_without_network(robot: Path) -> None:
    steps = look(configured(1, robot, transport="local"))
    local = ("configuration", "code", "packages")
    assert all(step.state == "skipped" for name, step in steps.items() if name not in local)


# -- the command line --------------------------------------------------------------------------------------------------


def arguments(server: Server, folder: Path) -> list[str]:
    return ["--doctor", "--set", f"server.port={server.port}", "--set", f"network.credentials_dir={folder}"]


def test_the_command_line_reports_success(
    server: Server, robot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("run: {name: mine}")
    assert main([*arguments(server, robot), "-c", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"configuration: {file}: run 'mine'" in out
    assert out.endswith("All checks passed.\n")


def test_the_command_line_reports_the_next_step(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(server, tmp_path / "none"), "--role", "trainer"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  credentials: " in out
    assert "        -> Create credentials with " in out
    assert out.endswith("Failed: credentials.\n")


def test_the_command_line_prints_json(server: Server, robot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(server, robot), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert [step["name"] for step in told["steps"]] == ALL
    assert main(["--doctor", "--json", "--set", "server.port=nonsense"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["steps"][0]["state"]) == (False, "failed")
