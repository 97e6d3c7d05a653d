"""Sequence of the diagnosis's steps, and the result of each."""

# Theory of operation
#
# The diagnosis answers one question: what does a worker, trainer or operator of this machine lack in order to work with
# the Server? It takes the steps that the role itself would take, in the same order (configuration, code, credentials,
# name, port, TLS, certificate, admission, version, clock, speed), one at a time and with plain sockets, so that the
# first one that fails is named with its remedy. Later steps that depend on it are "skipped" with the reason, and not
# "failed": one fault must not look like five.
#
# It must be safe to run anywhere and at any time. Only tmrl_core's own code is imported, because the configuration may
# be another user's; other names are only searched for. The Server admits a probe without giving it a place of a worker,
# limits what it may measure, and other machines keep their connections. Without valid credentials the Server's
# certificate is shown and not trusted, and nothing secret is sent on that connection.
#
# What a failure means is written where it is found: each `Step` has the finding and the next action. Errors of the
# package are divided at their first sentence, which is the finding; the rest is the remedy (`from_text`).

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tmrl_core.config import Config
from tmrl_core.doctor import connection as way
from tmrl_core.doctor import machine
from tmrl_core.doctor.conversation import REFUSED_TODO, Conversation, rate, round_trips
from tmrl_core.doctor.packages import packages
from tmrl_core.doctor.steps import FailedStepError, Step, from_text
from tmrl_core.errors import HandshakeError, NetworkError, TmrlError
from tmrl_core.networking.links.sealing import card_problem, mode_of
from tmrl_core.networking.protocol.messages import SUPPORTED_VERSIONS, Diagnosis, Probe, plain
from tmrl_core.networking.security import credentials, tls_contexts
from tmrl_core.networking.security.added_files import room_of_certificate
from tmrl_core.networking.security.certificates import CertificateFacts, read_facts
from tmrl_core.networking.security.handshakes import explain
from tmrl_core.networking.security.tls_contexts import CertifiedRole
from tmrl_core.networking.transports.base import Transport, TransportKind
from tmrl_core.networking.transports.selection import (
    LinkSettings,
    check_host,
    client_transport,
    link_settings,
    transport_kind,
    uses_plaintext,
)

_OTHER_TRANSPORT = " If its network.transport is {theirs}, set that here too: each has a certificate of its own."
_SAME_MODE = (
    "Use the same network.end_to_end, and the same version of tmrl_core, on all machines of the run. Where it is null, "
    "it is on if the machine has a bundle installed; start a role again after that."
)
_SAME_CA = (
    "Look at both machines' clocks, and make the bundles of both on one machine. If the log of a worker says the same, "
    "and nobody has changed credentials, somebody else may control the Server (docs/security.md)."
)
MAX_SKEW_S = 300.0
"""Maximum difference between two clocks in seconds. Beyond it, statements about expiry are unreliable."""
SLOW_S = 1.0
"""Maximum duration of a round trip; a longer one is a fault."""

_NETWORK_STEPS = (
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
)


def examine(
    load: Callable[[], Config],
    *,
    source: str,
    folders: Sequence[Path] = (),
    role: CertifiedRole | None = None,
    timeout_s: float = 5.0,
    measure_s: float = 2.0,
    versions: tuple[int, ...] = SUPPORTED_VERSIONS,
    wall_clock: Callable[[], float] = time.time,
) -> Iterator[Step]:
    """Run all checks in the order in which a worker, trainer or operator of this configuration depends on them.

    Args:
        load: loads the configuration.
        source: name of the file, for display.
        folders: folders searched for the names in the configuration, besides `sys.path`; nothing found is imported.
        role: role to check; None: the role of the credentials.
        timeout_s: maximum wait of each step.
        measure_s: approximate duration of the measurement of each direction.
        versions: offered versions of the protocol.
        wall_clock: this machine's clock, seconds since 1970.
    """
    try:
        config = load()
        settings = link_settings(config)
        check_host(config.network.hostname or "", "network.hostname")
        kind = transport_kind(config.network.transport)
    except TmrlError as exc:
        label = str(exc)
        yield Step("configuration", "failed", label, f"Correct {source}; docs/configuration.md lists every key.")
        yield packages()
        yield from _skipped(("code", "credentials", *_NETWORK_STEPS), "without a configuration")
        return
    network, server = config.network, config.server
    folder = credentials.find(network.credentials_dir)
    role = role or machine.role_of(folder)
    yield Step(
        "configuration",
        "ok",
        f"{source}: run {config.run.name!r}, Server {server.host} port {server.tcp_port}, "
        f"transport {network.transport}, as {role}",
    )
    try:
        yield Step("code", "ok", machine.code(config, role, folders))
    except FailedStepError as exc:
        yield Step("code", "failed", exc.found, exc.todo)
    yield packages()
    if kind.in_process:
        yield from _skipped(("credentials", *_NETWORK_STEPS), f"transport {network.transport} uses no network")
        return
    plaintext = uses_plaintext(settings)
    proven = True
    transport: Transport | None = None
    if plaintext and not kind.advice:
        yield Step("credentials", "skipped", "network.security is null: no side proves its identity")
    else:
        try:
            if kind.advice:
                transport, words = kind.examined(settings, machine.link_role(role), tls=not plaintext)
            else:
                words = machine.proof(folder, role, settings.token)
            yield Step("credentials", "ok", words)
        except (FailedStepError, TmrlError) as exc:
            proven = False
            failed = from_text(str(exc), "Copy the Server's credentials to this machine.")
            failed = exc if isinstance(exc, FailedStepError) else failed
            yield Step("credentials", "failed", failed.found, failed.todo)
    examiner = _Examiner(
        config, role, settings, not plaintext, kind, transport, timeout_s, measure_s, versions, wall_clock
    )
    done: set[str] = set()
    with contextlib.closing(examiner):
        for step in examiner.steps(proven):
            done.add(step.name)
            yield step
    rest = [name for name in _NETWORK_STEPS if name not in done]
    yield from _skipped(rest, examiner.why_not)


def _skipped(names: tuple[str, ...] | list[str], why: str) -> Iterator[Step]:
    for name in names:
        yield Step(name, "skipped", why)


@dataclass
class _Examiner:
    """Steps of the connection to the Server. After a failed step, the steps that depend on it are skipped."""

    config: Config
    role: CertifiedRole
    settings: LinkSettings
    tls: bool
    kind: TransportKind
    transport: Transport | None
    timeout_s: float
    measure_s: float
    versions: tuple[int, ...]
    wall_clock: Callable[[], float]
    why_not: str = "a step before it failed"

    def __post_init__(self) -> None:
        self.host = self.config.server.host
        self.hostname = self.config.network.hostname or self.host
        self._sock: socket.socket | None = None
        self._conversation: Conversation | None = None
        self._asked_s = (0.0, 0.0)

    def close(self) -> None:
        """Close the connection to the Server."""
        if self._conversation is not None:
            self._conversation.end()
        if self._sock is not None:
            self._sock.close()

    def steps(self, proven: bool) -> Iterator[Step]:
        """Yield the steps in order, up to the first failure that the rest depends on."""
        name = "name"
        try:
            addresses = way.resolve(self.host, self.config.server.tcp_port)
            yield Step(name, "ok", f"{self.host} is {', '.join(map(str, addresses))}")
            name = "port"
            self._sock, address, seconds = way.connect(addresses, self.timeout_s)
            port = self.config.server.tcp_port
            yield Step(name, "ok", f"{address} port {port} answers in {1000 * seconds:.1f} ms")
            name = "TLS"
            if self.kind.advice:
                self._sock.close()
                yield from self._over_transport()
            elif not self.tls:
                yield from self._plain()
            elif not proven:
                yield from self._seen_without_trust(addresses)
                return
            else:
                yield from self._secured(addresses)
            name = "accepted"
            diagnosis = self._ask()
            yield Step(name, "ok", self._accepted(diagnosis), self._other_run(diagnosis))
            yield self._protocol(diagnosis)
            name = "end to end"
            yield self._end_to_end(diagnosis)
            name = "clock"
            yield self._clock(diagnosis)
            for name in ("round trip", "upload", "download"):
                yield self._measure(name, diagnosis.allowance_bytes)
        except _Stop:
            return
        except FailedStepError as exc:
            if name == "accepted" and exc.found.startswith("refused (protocol)"):
                self.why_not = "the two sides have no protocol version in common"
                name = "protocol version"
            yield Step(name, "failed", exc.found, exc.todo)

    def _over_transport(self) -> Iterator[Step]:
        name_of_transport = self.config.network.transport
        if self.transport is None:
            self.why_not = f"without what {name_of_transport} needs"
            raise _Stop
        server = self.config.server
        self._conversation = link = Conversation(self.transport, server.host, server.tcp_port, self.timeout_s)
        failed: Step | None = None
        try:
            link.dial()
        except NetworkError as exc:
            about = exc.about if isinstance(exc, HandshakeError) else None
            name = {"certificate": "Server's certificate", "password": "accepted", None: "TLS"}[about]
            text = from_text(str(exc), self.kind.advice)
            other = _OTHER_TRANSPORT.format(theirs="tls") if about == "certificate" else ""
            failed = Step(name, "failed", text.found, text.todo + other)
        for name, words in (
            ("TLS", f"as {name_of_transport} speaks it"),
            ("Server's certificate", "it is the one that is here"),
        ):
            if failed is not None and failed.name == name:
                break
            skipped = Step(name, "skipped", "network.security is null: nothing is encrypted")
            yield Step(name, "ok", words) if self.tls else skipped
        if failed is not None:
            yield failed
            raise _Stop

    def _plain(self) -> Iterator[Step]:
        # Beyond this machine, this requires `allow_insecure_remote`: otherwise the configuration was refused.
        yield Step("TLS", "skipped", "network.security is null: nothing is encrypted")
        yield Step("Server's certificate", "skipped", "network.security is null")

    def _seen_without_trust(self, addresses: list[way.Address]) -> Iterator[Step]:
        """Yield the steps that work without credentials: the Server's TLS and certificate."""
        facts = way.certificate_of(addresses, self.timeout_s)
        if facts is None:
            found = f"{self.host} speaks no TLS there, or shows no certificate that can be read"
            yield Step("TLS", "failed", found, "Check server.port and network.security.")
        else:
            yield Step("TLS", "ok", "the Server speaks TLS")
            self.why_not = "without credentials of our own"
            yield Step(
                "Server's certificate",
                "skipped",
                f"{_about(facts)}; not checked, since the credentials of this machine are not valid",
            )

    def _secured(self, addresses: list[way.Address]) -> Iterator[Step]:
        assert self._sock is not None
        try:
            folder = credentials.find(self.config.network.credentials_dir)
            context = tls_contexts.client_context(
                folder, machine.link_role(self.role), has_token=True
            )  # the token was checked before
        except TmrlError as exc:
            raise from_text(str(exc), "Make new credentials, or a new bundle.") from exc
        try:
            secured, words = way.secure(self._sock, context, self.hostname, self.host, self.timeout_s)
        except ssl.SSLCertVerificationError as exc:
            yield Step("TLS", "ok", "the Server speaks TLS")
            text = from_text(
                explain(exc, host=self.host, hostname=self.hostname),
                "Look at this machine's clock and at the Server's.",
            )
            facts = way.certificate_of(addresses, self.timeout_s)
            shown = "" if facts is None else f". It is {_about(facts)}."
            self.why_not = "the Server's certificate is not accepted"
            room = room_of_certificate(facts.names) if facts else None
            other = _OTHER_TRANSPORT.format(theirs=room) if room else ""
            yield Step("Server's certificate", "failed", text.found.rstrip(".") + shown, text.todo + other)
            raise _Stop from exc
        self._sock = secured
        yield Step("TLS", "ok", words)
        shown_der = secured.getpeercert(binary_form=True)
        assert shown_der is not None  # the certificate was verified
        facts = read_facts(ssl.DER_cert_to_PEM_cert(shown_der))
        yield Step("Server's certificate", "ok", f"for {self.hostname}: {_about(facts)}, of the CA here")

    def _ask(self) -> Diagnosis:
        token = ""  # a transport that connects by itself checks a password of its own
        if self._conversation is None:
            assert self._sock is not None
            self._sock.close()
            try:
                transport, token = client_transport(self.settings, machine.link_role(self.role))
                self._conversation = Conversation(transport, self.host, self.settings.port, self.timeout_s)
                self._conversation.dial()
            except TmrlError as exc:
                raise from_text(str(exc), "Check the Server's log for the reason.") from exc
        before = self.wall_clock()
        diagnosis = self._conversation.ask(
            Probe(self.versions, machine.link_role(self.role), token, self.config.run.name)
        )
        self._asked_s = (before, self.wall_clock())
        return diagnosis

    def _accepted(self, diagnosis: Diagnosis) -> str:
        words = f"the Server accepts this {self.role}"
        if diagnosis.no_place:
            words += f"; but not now: {plain(diagnosis.no_place)}"
        elif self.role == "worker" and not diagnosis.trainer:
            words += "; there is no trainer yet, so samples wait with their workers"
        elif self.role == "worker" and diagnosis.trainer_run != self.config.run.name:
            words += (
                f"; but its trainer is of run {diagnosis.trainer_run!r}, and this configuration of run "
                f"{self.config.run.name!r}"
            )
        return words

    def _other_run(self, diagnosis: Diagnosis) -> str:
        if self.role != "worker" or diagnosis.no_place or not diagnosis.trainer:
            return ""
        if diagnosis.trainer_run == self.config.run.name:
            return ""
        return "use the same run.name on both machines: until then, nothing is sent"

    def _protocol(self, diagnosis: Diagnosis) -> Step:
        if diagnosis.version not in self.versions:
            return Step(
                "protocol version",
                "failed",
                f"the Server chose version {diagnosis.version}, which was not offered ({_list(self.versions)})",
                REFUSED_TODO["protocol"],
            )
        return Step(
            "protocol version",
            "ok",
            f"{diagnosis.version}; the Server speaks {_list(diagnosis.versions)}, this machine {_list(self.versions)}",
        )

    def _end_to_end(self, diagnosis: Diagnosis) -> Step:
        """Compare the mode of this machine with that of the trainer, whose card the Server keeps."""
        name = "end to end"
        try:
            mode = mode_of(self.settings, self.role)
            said = "off: the Server can change samples and weights" if mode == "off" else mode
            if self.role == "trainer":
                workers = "off too" if mode == "off" else "authenticate or encrypt"
                return Step(name, "ok", f"{said}; workers need {workers}")
            run = self.config.run.name
            there = diagnosis.trainer and diagnosis.trainer_run == run
            if mode == "off":
                if not diagnosis.card:
                    return Step(name, "ok", said)
                return Step(name, "failed", f"off here, and the trainer of run {run!r} authenticates", _SAME_MODE)
            if not diagnosis.card:
                if not there:
                    return Step(name, "ok", f"{said}; there is no trainer of run {run!r} to compare with")
                found = f"{said} here, and the trainer of run {run!r} has proved nothing"
                return Step(name, "failed", found, _SAME_MODE)
            problem = card_problem(self.settings, run, diagnosis.card, self.role)
        except TmrlError as exc:
            text = from_text(str(exc), "See docs/security.md.")
            return Step(name, "failed", text.found, text.todo)
        if problem:
            return Step(name, "failed", f"the proof of the trainer is not valid: {problem}", _SAME_CA)
        proved = f"the trainer of run {run!r} has proved its identity"
        if self.role == "operator" and mode == "encrypt":
            proved += ". A viewer has no key of the run: it shows what the Server knows, and its orders are obeyed"
        return Step(name, "ok", f"{said}; {proved}")

    def _clock(self, diagnosis: Diagnosis) -> Step:
        before, after = self._asked_s
        skew = (before + after) / 2 - diagnosis.time_s
        figures = {"skew_s": skew, "uncertain_s": (after - before) / 2}
        words = f"this machine's is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the Server's"
        if abs(skew) < 0.1:
            words = "this machine's and the Server's agree"
        if abs(skew) <= MAX_SKEW_S:
            return Step("clock", "ok", words, figures=figures)
        return Step(
            "clock",
            "failed",
            f"{words}: here it is {_date(after)}, there {_date(diagnosis.time_s)}",
            "Set the clock that is wrong (turn on NTP). Certificates are checked against it: they count as expired, or "
            "as not valid yet, on the machine whose clock is off.",
            figures=figures,
        )

    def _measure(self, name: str, allowance: int) -> Step:
        assert self._conversation is not None
        if name == "round trip":
            median_s, worst_s = round_trips(self._conversation)
            figures = {"median_s": median_s, "worst_s": worst_s}
            words = f"median {1000 * median_s:.1f} ms, worst of 10 {1000 * worst_s:.1f} ms"
            if median_s < SLOW_S:
                return Step(name, "ok", words, figures=figures)
            return Step(
                name,
                "failed",
                words,
                "A part of the network path is overloaded: check for other traffic on this link. Acknowledgements and "
                f"weights are delayed too. After {self.config.network.silent_s:g} s of silence a link counts as dead.",
                figures=figures,
            )
        # One direction uses at most half of the allowance, because small messages in the other direction count too.
        most = allowance // 2
        if most < 1 << 16:
            return Step(name, "skipped", "the Server allows no measurement now, because others have just measured")
        speed, spent = rate(
            self._conversation, up=name == "upload", most_bytes=min(most, 1 << 21), most_s=self.measure_s
        )
        return Step(
            name,
            "ok",
            f"{8e-6 * speed:.1f} Mbit/s ({speed / 1e6:.2f} MB/s, measured with {spent / 1e6:.1f} MB)",
            figures={"bytes_per_s": speed, "bytes": float(spent)},
        )


class _Stop(FailedStepError):
    """Signal that the failed step was already reported."""

    def __init__(self) -> None:
        super().__init__("")


def _about(facts: CertificateFacts) -> str:
    names = ", ".join(facts.names) or facts.subject
    return f"{plain(names)}, valid {facts.not_before:%Y-%m-%d} to {facts.not_after:%Y-%m-%d %H:%M} UTC"


def _list(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions))


def _date(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s since 1970"
