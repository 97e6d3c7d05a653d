"""Who may do what with which credentials, over real TLS with hand-made frames; credentials that change meanwhile."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from tests.networking.test_hostile import DEADLINE_S, Place, Stranger, head
from tests.waiting import until
from tmrl_core.config import from_values
from tmrl_core.errors import CredentialsError, HandshakeError
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, WorkerLink
from tmrl_core.networking.links.observer_link import ObserverLink
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.framing import FIRST, LAST, Kind
from tmrl_core.networking.protocol.messages import (
    POLICY_HEAD,
    Ack,
    Control,
    Credit,
    Direct,
    OpenStream,
    Report,
    Resume,
    Role,
    Welcome,
)
from tmrl_core.networking.security import admission, credentials, renewal, tls_contexts
from tmrl_core.networking.security.authentication import WARN_DAYS, ClientAccess, ServerAccess
from tmrl_core.networking.security.certificates import Signed, SignedList, sign_list
from tmrl_core.networking.security.revocations import write_list
from tmrl_core.networking.security.tls_contexts import read_bundle
from tmrl_core.networking.transports import tls


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tls, "_POLL_S", 0.02)
    monkeypatch.setattr(admission, "MAX_DELAY_S", 0.001)
    credentials.create(tmp_path / "keys", ["localhost"])
    return tmp_path / "keys"


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        place = Place(folder, stack)
        place.start_trainer()
        place.goes_on()
        yield place


def machine(keys: Path, role: tls_contexts.BundleRole, name: str, there: str = "") -> Path:
    """Another machine's credentials folder, made of a bundle."""
    folder = keys.parent / (there or name)
    credentials.install(credentials.bundle(keys, role, name, keys.parent), folder)
    return folder


def gateway(keys: Path, name: str, weight: int) -> Path:
    folder = keys.parent / name
    credentials.install(credentials.bundle(keys, "worker", name, keys.parent, weight=weight), folder)
    return folder


def trainer_stranger(place: Place, folder: Path) -> Stranger:
    context = tls_contexts.client_context(folder, "trainer")
    sock = context.wrap_socket(place.connect(), server_hostname="localhost")
    place.stack.callback(sock.close)
    return Stranger(sock, {"worker": "-", "trainer": "-"})


def worker_of(place: Place, folder: Path) -> WorkerLink:
    """A worker that does not wait long before it tries again."""
    settings = LinkSettings(
        port=place.server.port,
        hostname="localhost",
        credentials_dir=str(folder),
        backoff_min_s=0.01,
        backoff_max_s=0.05,
    )
    link = WorkerLink(settings, name="robot7", run="run")
    link.start()
    place.stack.callback(link.close, drain=False)
    assert link.wait_connected(DEADLINE_S)
    return link


def enter(stranger: Stranger, role: Role = "worker", peer: bytes = b"x" * 16) -> None:
    stranger.greet(role, peer=peer, token="")
    assert isinstance(stranger.hear(Welcome), Welcome)


# -- a worker's certificate is for a worker's own streams --------------------------------------------------------------


def test_a_worker_cannot_publish_weights(place: Place) -> None:
    robot = place.stranger(machine(place.keys, "worker", "robot7"))
    enter(robot)
    before = place.relay.policies.latest
    robot.frame(Kind.WEIGHTS, FIRST | LAST, POLICY_HEAD.pack(1, 9, 1) + b"x")
    robot.refused("misuse", "it may not send frames of kind WEIGHTS")
    assert place.relay.policies.latest is before
    place.goes_on()


@pytest.mark.parametrize(
    "message",
    [Resume(1, 0), Ack(1, 100), Credit(0, 0, 1 << 30), Direct(1, 1, b""), Report(b"")],
    ids=lambda message: type(message).__name__,
)
def test_a_worker_cannot_receive_samples_or_act_as_the_trainer(place: Place, message: Control) -> None:
    robot = place.stranger(machine(place.keys, "worker", "robot7"))
    enter(robot)
    robot.tell(message)
    robot.refused("misuse", f"{type(message).__name__} is not allowed in state 'worker'")
    place.goes_on()


def test_a_worker_certificate_never_authenticates_a_trainer(place: Place) -> None:
    folder = machine(place.keys, "worker", "robot7")
    token = str(tls_contexts.token_for(place.keys, "trainer"))
    for shown in ("", token):
        robot = place.stranger(folder)
        robot.greet("trainer", token=shown)
        robot.refused("role", "this certificate is a worker's")
    place.goes_on()


def test_a_worker_cannot_open_another_s_stream(place: Place) -> None:
    mine = place.stranger(machine(place.keys, "worker", "robot7"))
    enter(mine, peer=b"7" * 16)
    mine.tell(OpenStream(0, b"stream of robot7", "robot7"))
    assert isinstance(mine.hear(Resume), Resume)
    for stream in (b"stream of robot7", place.worker.stream):
        thief = place.stranger(machine(place.keys, "worker", "robot8"))
        enter(thief, peer=b"8" * 16)
        thief.tell(OpenStream(0, stream, "robot7"))
        thief.frame(Kind.DATA, FIRST | LAST, head() + b"x")
        thief.refused("name", "first opened with other credentials")
    place.goes_on()
    assert place.relay.streams[b"stream of robot7"].worker is not None


def test_a_stream_belongs_to_its_owner_after_its_link_is_lost(place: Place) -> None:
    folder, other = machine(place.keys, "worker", "robot7"), machine(place.keys, "worker", "robot8")
    mine = place.stranger(folder)
    enter(mine, peer=b"7" * 16)
    mine.tell(OpenStream(0, b"stream of robot7", "robot7"))
    assert isinstance(mine.hear(Resume), Resume)
    mine.sock.close()
    until(lambda: b"stream of robot7" not in place.relay.streams)
    thief = place.stranger(other)
    enter(thief, peer=b"8" * 16)
    thief.tell(OpenStream(0, b"stream of robot7", "robot7"))
    thief.refused("name", "belongs to them")
    again = place.stranger(folder)
    enter(again, peer=b"7" * 16)
    again.tell(OpenStream(0, b"stream of robot7", "robot7"))
    assert isinstance(again.hear(Resume), Resume)


def test_another_s_id_does_not_supersede_its_link(place: Place) -> None:
    mine = place.stranger(machine(place.keys, "worker", "robot7"))
    enter(mine, peer=b"7" * 16)
    link = place.relay.workers[b"7" * 16]
    thief = place.stranger(machine(place.keys, "worker", "robot8"))
    thief.greet(peer=b"7" * 16, token="")
    thief.refused("name", "first used with other credentials")
    assert place.relay.workers[b"7" * 16] is link
    assert not link.closing


def test_two_machines_with_one_bundle_are_two_workers_of_that_name(place: Place) -> None:
    folder = machine(place.keys, "worker", "robot7")
    for number in (1, 2):
        robot = place.stranger(folder)
        enter(robot, peer=bytes([number]) * 16)
        robot.tell(OpenStream(0, bytes([number]) * 16, "robot7"))
        assert isinstance(robot.hear(Resume), Resume)
    assert [link.identity.name for link in place.relay.workers.values()].count("robot7") == 2
    place.goes_on()


def test_the_status_shows_the_certificate_with_a_workers_label(place: Place) -> None:
    for name in ("robot7", "robot8"):
        enter_as = place.stranger(machine(place.keys, "worker", name))
        enter_as.greet(peer=name.encode().ljust(16), name="robot8", token="")
        assert isinstance(enter_as.hear(Welcome), Welcome)
    with ObserverLink(place.settings, run="run", timeout_s=DEADLINE_S) as link:
        status = link.fetch_status()
    assert status is not None
    of_that_name = [peer for peer in status.peers if peer.name == "robot8"]
    assert sorted(peer.certificate for peer in of_that_name) == ["robot7", "robot8"]


def test_the_certificate_states_the_weight_of_a_gateway(place: Place) -> None:
    def weights() -> dict[str, int]:
        return {stream.share.principal: stream.share.weight for stream in list(place.relay.streams.values())}

    for peer, folder in ((b"r", machine(place.keys, "worker", "robot7")), (b"g", gateway(place.keys, "web", 1_000))):
        end = place.stranger(folder)
        enter(end, peer=peer * 16)
        end.tell(OpenStream(0, peer * 16, "s"))
    certificates = {"certificate worker robot7", "certificate worker web"}
    until(lambda: certificates <= weights().keys())
    assert [weights()[one] for one in sorted(certificates)] == [1, 1_000]


@pytest.mark.parametrize("weight", [0, -1, 1_001])
def test_a_weight_out_of_range_is_refused(folder: Path, weight: int) -> None:
    with pytest.raises(CredentialsError, match=f"is {weight}; allowed: 1, and for a worker 1 to 1000"):
        credentials.bundle(folder, "worker", "web", folder.parent, weight=weight)


@pytest.mark.parametrize("poses", ["with another CA", "with a worker's certificate"])
def test_no_token_is_sent_to_an_unauthenticated_server(place: Place, tmp_path: Path, poses: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if poses == "with another CA":
        credentials.create(tmp_path / "other", ["localhost"])
        context.load_cert_chain(tmp_path / "other" / "server.pem", tmp_path / "other" / "server.key")
    else:
        stolen = machine(place.keys, "worker", "robot7")
        context.load_cert_chain(stolen / "worker-robot7.pem", stolen / "worker-robot7.key")
    heard: list[bytes] = []

    def pose() -> None:
        sock, _ = listening.accept()
        with sock, suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
            heard.append(tls.recv(65_536))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=pose, daemon=True)
        thread.start()
        settings = msgspec.structs.replace(place.settings, port=listening.getsockname()[1])
        link = WorkerLink(settings, name="honest", run="run")  # with the token of the folder
        link.start()
        with pytest.raises(HandshakeError):
            link.wait_connected(DEADLINE_S)
        link.close(drain=False)
        thread.join(DEADLINE_S)
    assert b"".join(heard) == b""


@pytest.mark.parametrize("peer", [b"other trainer 16", b"the first's own."])
def test_a_second_trainer_is_refused_while_the_first_s_link_is_alive(folder: Path, peer: bytes) -> None:
    with ExitStack() as stack:
        place = Place(folder, stack)
        first = trainer_stranger(place, machine(folder, "trainer", "hpc"))
        enter(first, "trainer", b"the first's own.")
        second = trainer_stranger(place, machine(folder, "trainer", "thief"))
        second.greet("trainer", peer=peer, token="")
        second.refused(*(("trainer_present", "already has") if peer[:3] != b"the" else ("name", "other credentials")))
        assert place.relay.trainer is not None
        assert place.relay.trainer.identity.name == "hpc"
        assert not place.relay.trainer.closing


def test_a_servers_certificate_is_not_valid_for_a_client(place: Place) -> None:
    context = ssl.create_default_context(cafile=str(place.keys / "ca.pem"))
    context.load_cert_chain(place.keys / "server.pem", place.keys / "server.key")
    sock = context.wrap_socket(place.connect(), server_hostname="localhost")
    place.stack.callback(sock.close)
    with pytest.raises(ssl.SSLError):
        sock.recv(1)
    until(lambda: place.server.refusals.count == 1)
    place.goes_on()


# -- taken back while the Server runs ----------------------------------------------------------------------------------


def test_a_revoked_machine_alone_is_disconnected_and_refused(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = credentials.bundle(place.keys, "worker", "robot7", tmp_path)
    stolen, other = place.stranger(bundle), place.stranger(machine(place.keys, "worker", "robot8"))
    enter(stolen, peer=b"7" * 16)
    enter(other, peer=b"8" * 16)
    renewal.revoke(place.keys, "robot7")
    stolen.refused("certificate", "client certificate (robot7) was revoked")
    again = place.stranger(bundle)
    again.greet(token="", peer=b"7" * 16)
    again.refused("certificate", "was revoked")
    (said,) = [line for line in caplog.messages if "refused" in line]
    assert ": robot7: this machine's client certificate (robot7) was revoked" in said
    other.tell(OpenStream(0, b"stream of robot8", "robot8"))
    assert isinstance(other.hear(Resume), Resume), "robot8 goes on over the link that it had"
    new = place.stranger(credentials.bundle(place.keys, "worker", "robot7", tmp_path / "new.bundle"))
    enter(new, peer=b"7" * 16)
    place.goes_on()


def test_no_part_of_a_revoked_bundle_authenticates(place: Place, tmp_path: Path) -> None:
    bundle = credentials.bundle(place.keys, "worker", "robot7", tmp_path)
    content = read_bundle(bundle)
    holder = place.stranger(bundle)
    enter(holder, peer=b"7" * 16)
    renewal.revoke(place.keys, "robot7")
    holder.refused("certificate", "was revoked")
    for secret in ("", content.key, content.certificate, content.ca, bundle.read_text()):
        for role in ("worker", "trainer"):
            for folder in (None, bundle):
                thief = place.stranger(folder)
                thief.greet(role, token=secret[:4_000], peer=b"7" * 16)
                thief.refused("certificate" if folder or not secret else "token", "")
    assert len(place.relay.workers) == 1


def test_a_damaged_list_keeps_the_last_good_one_and_a_server_does_not_start_with_it(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = credentials.bundle(place.keys, "worker", "robot7", tmp_path)
    stolen = place.stranger(bundle)
    enter(stolen, peer=b"7" * 16)
    renewal.revoke(place.keys, "robot7")
    stolen.refused("certificate", "was revoked")
    file = place.keys / "revoked.json"
    text = file.read_text()
    caplog.clear()
    for damage in ("half", "gone"):
        if damage == "gone":  # with the signed list, it would not be missed
            (place.keys / "revoked.crl").unlink()
        file.write_text(text[: len(text) // 2]) if damage == "half" else file.unlink()
        until(lambda: any("the previous list of revoked certificates" in line for line in caplog.messages))
        caplog.clear()
        stolen = place.stranger(bundle)
        stolen.greet(token="", peer=b"7" * 16)
        stolen.refused("certificate", "was revoked")
        file.write_text("{")
        config = from_values({"network": {"credentials_dir": str(place.keys)}, "server": {"port": 0}})
        with pytest.raises(CredentialsError, match=r"revoked\.json is damaged"):
            Server(config=config)
        file.write_text(text)
    place.goes_on()


def is_refused(access: ServerAccess, serial: str) -> bool:
    return access.check_certificate(Identity("192.0.2.7:1", "worker", "robot7", serial)) is not None


@pytest.mark.parametrize("loss", ["deleted", "empty"])
@pytest.mark.parametrize("form", ["folder", "bundle", "other machine"])
def test_a_server_refuses_whom_the_signed_list_alone_revokes(
    folder: Path, tmp_path: Path, form: str, loss: str
) -> None:
    bundle = credentials.bundle(folder, "server", out=folder)
    place = here = folder
    if form == "other machine":
        place = here = machine(folder, "server", "server")
    elif form == "bundle":
        place = bundle
    credentials.bundle(folder, "worker", "robot7", tmp_path)
    serial = renewal.revoke(folder, "robot7")[0].serial
    if here != folder:
        (here / "revoked.crl").write_bytes((folder / "revoked.crl").read_bytes())
    file = here / "revoked.json"

    def lose() -> None:
        file.unlink(missing_ok=True)
        if loss == "empty":
            write_list(file, ())

    lose()
    access = ServerAccess(place)
    for _ in range(15):
        assert is_refused(access, serial)
        access.refresh()


@pytest.mark.parametrize("form", ["folder", "bundle"])
def test_a_server_sends_no_signed_list_that_is_damaged_or_of_another_ca(
    folder: Path, tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = folder if form == "folder" else credentials.bundle(folder, "server", out=folder)
    credentials.create(tmp_path / "foreign")
    for keys in (folder, tmp_path / "foreign"):
        credentials.bundle(keys, "worker", "robot7", tmp_path)
        renewal.revoke(keys, "robot7")
    file = folder / "revoked.crl"
    own = file.read_bytes()
    access = ServerAccess(place)
    assert access.signed_revocations == own
    file.write_bytes(own[:-40])
    caplog.clear()
    for _ in range(15):
        access.refresh()
    assert access.signed_revocations == own
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "the previous signed list of revoked certificates stays in use"
    ]
    with pytest.raises(CredentialsError, match=r"revoked\.crl: .* damaged\. Copy it"):
        ServerAccess(place)
    file.write_bytes((tmp_path / "foreign" / "revoked.crl").read_bytes())
    caplog.clear()
    for _ in range(15):
        access.refresh()
    assert access.signed_revocations == b""
    assert sum("is of another CA" in line for line in caplog.messages) == 1
    assert ServerAccess(place).signed_revocations == b""


def test_a_server_sends_no_signed_list_that_fits_no_frame(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Signed((folder / "ca.pem").read_text(), (folder / "ca.key").read_text())
    for count in (1_100, 1_200):
        listed = SignedList(count, frozenset(f"{(1 << 158) + number:x}" for number in range(count)))
        (folder / "revoked.crl").write_text(sign_list(authority, listed))
        assert bool(ServerAccess(folder).signed_revocations) == (count == 1_100)
    assert [line for line in caplog.messages if "peers are sent at most 60000" in line]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize("form", ["folder", "bundle"])
def test_a_revocation_takes_effect_once_the_server_has_a_file_descriptor(
    folder: Path, tmp_path: Path, form: str
) -> None:
    import resource

    place = folder if form == "folder" else credentials.bundle(folder, "server", out=folder)
    credentials.bundle(folder, "worker", "robot7", tmp_path)
    access = ServerAccess(place)
    serial = renewal.revoke(folder, "robot7")[0].serial  # also the list beside the bundle
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        for _ in range(5):
            access.refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert access.check_certificate(Identity("192.0.2.7:1", "worker", "robot7", serial)) is None
    for _ in range(11):
        access.refresh()
    assert access.check_certificate(Identity("192.0.2.7:1", "worker", "robot7", serial)) is not None


def test_a_new_ca_begins_with_an_empty_list(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    credentials.bundle(folder, "worker", "robot7", tmp_path)
    renewal.revoke(folder, "robot7")
    access = ServerAccess(folder)
    credentials.create(folder, overwrite=True)
    caplog.clear()
    for _ in range(5):
        access.refresh()
    assert not caplog.messages
    credentials.bundle(folder, "worker", "robot7", tmp_path)
    serial = renewal.revoke(folder, "robot7")[0].serial
    access.refresh()
    assert access.check_certificate(Identity("192.0.2.7:1", "worker", "robot7", serial)) is not None


def test_peers_with_certificates_of_a_replaced_ca_are_disconnected(place: Place) -> None:
    bundle = machine(place.keys, "worker", "forged")  # as whoever has stolen ca.key could make
    stolen = place.stranger(bundle)
    enter(stolen, peer=b"7" * 16)
    late = place.stranger(bundle)  # has shaken hands, and not said who it is
    credentials.create(place.keys, ["localhost"], overwrite=True)
    stolen.refused("certificate", "the CA of this Server was replaced")
    late.greet(token="", peer=b"8" * 16)
    late.refused("certificate", "the CA of this Server was replaced")
    installed = place.stranger(machine(place.keys, "worker", "forged", "anew"))
    enter(installed, peer=b"7" * 16)


def test_a_rotated_token_ends_its_links(place: Place) -> None:
    link = worker_of(place, place.keys)
    stranger = place.stranger()
    stranger.greet()
    assert isinstance(stranger.hear(Welcome), Welcome)
    certified = place.stranger(machine(place.keys, "worker", "robot8"))
    enter(certified, peer=b"8" * 16)
    renewal.rotate_token(place.keys, "worker")
    stranger.refused("token", "is no longer valid")
    again = place.stranger()
    again.tokens["worker"] = stranger.tokens["worker"]
    again.greet()
    again.refused("token", "not this Server's token")
    certified.tell(OpenStream(0, b"stream of robot8", "robot8"))
    assert isinstance(certified.hear(Resume), Resume)
    # A worker that reads its token from that folder is back with the new one, without a restart.
    until(lambda: link.counts.reconnects == 1 and link.connected)


# -- renewed while all run ---------------------------------------------------------------------------------------------


def test_new_connections_get_the_renewed_server_certificate(place: Place) -> None:
    def shown() -> bytes:
        certificate = place.stranger().sock.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate

    before = shown()
    renewal.renew(place.keys)
    after = ssl.PEM_cert_to_DER_cert((place.keys / "server.pem").read_text())
    assert after != before
    until(lambda: shown() == after)
    place.goes_on()


def test_a_certificate_without_its_key_keeps_the_old_one(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    (place.keys / "server.key").write_bytes((place.keys / "ca.key").read_bytes())
    until(lambda: any("the previous certificate and tokens stay in use" in line for line in caplog.messages))
    assert isinstance(place.stranger().sock.version(), str)
    renewal.renew(place.keys)
    place.goes_on()


def test_a_worker_takes_its_renewed_certificate_when_it_connects_again(place: Place, tmp_path: Path) -> None:
    there = machine(place.keys, "worker", "robot7")
    link = worker_of(place, there)
    renewal.revoke(place.keys, "robot7")
    until(lambda: not link.connected)
    credentials.install(credentials.bundle(place.keys, "worker", "robot7", tmp_path), there)
    assert link.wait_connected(DEADLINE_S)


# -- certificates that will expire -------------------------------------------------------------------------------------


def test_expiring_certificates_are_logged_in_time_and_once_a_day(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [datetime.now(timezone.utc)]
    there = machine(folder, "worker", "robot7")
    server = ServerAccess(folder, now=lambda: clock[0])
    client = ClientAccess(there, "worker", now=lambda: clock[0])
    client.refresh()
    assert caplog.messages == []

    def said(days: float, level: int) -> list[str]:
        clock[0] += timedelta(days=days)
        caplog.clear()
        for _ in range(3):
            server.refresh()
            client.refresh()
        assert {record.levelno for record in caplog.records} <= {level}
        return caplog.messages

    assert said(credentials.DAYS - WARN_DAYS - 2, logging.WARNING) == []
    of_server, of_client = said(3, logging.WARNING)
    assert "this Server's certificate expires on" in of_server
    assert "in 28 days. Renew it: `python -m tmrl_core --credentials renew`." in of_server
    assert "this machine's client certificate (robot7) expires on" in of_client
    assert "--credentials renew robot7" in of_client
    assert said(0.5, logging.WARNING) == []
    assert len(said(0.6, logging.WARNING)) == 2
    assert all("expired on" in line for line in said(60, logging.ERROR))
    renewal.renew(folder, days=credentials.DAYS + 300)
    caplog.set_level(logging.INFO)
    caplog.clear()
    server.refresh()
    server.refresh()
    assert [line for line in caplog.messages if "expire" in line] == []
