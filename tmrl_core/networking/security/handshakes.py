"""Explanations of failed connections with the next step, and the identity in a peer's certificate.

OpenSSL gives the side that checked a certificate a verify code, and sends the other side an alert of one byte. This
module turns both into sentences. If an alert has several possible reasons, the sentence names all of them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any, Literal

from tmrl_core.networking.security.certificates import parse_identity_uri, parse_weight

Side = Literal["client", "server"]

CREATE = "python -m tmrl_core --credentials create"
BUNDLE = "python -m tmrl_core --credentials bundle"
INSTALL = "python -m tmrl_core --credentials install FILE"
SHOW = "python -m tmrl_core --credentials show"
RENEW = "python -m tmrl_core --credentials renew"

# OpenSSL's X509_V_ERR_* numbers, which `ssl.SSLCertVerificationError.verify_code` carries.
_NOT_YET_VALID = {9}
_EXPIRED = {10}
_UNKNOWN_ISSUER = {2, 18, 19, 20, 21, 24}
_BAD_SIGNATURE = {7}
_WRONG_PURPOSE = {26}
_WRONG_HOST = {62, 64}
_REVOKED = {23}

_NO_TLS_HERE = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
_CUT_SHORT = {"UNEXPECTED_EOF_WHILE_READING", "EOF_OCCURRED"}


def identity_of(peer_certificate: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return `(role, name)` of the peer with this certificate; None: it has no certificate, or one without a role.

    Args:
        peer_certificate: the result of an SSL object's `getpeercert()` after a handshake that verified it.
    """
    if not peer_certificate:
        return None
    for kind, value in peer_certificate.get("subjectAltName", ()):
        if kind == "URI" and (identity := parse_identity_uri(value)) is not None:
            return identity
    return None


def weight_of(peer_certificate: Mapping[str, Any]) -> int:
    """Return the weight of the peer with this certificate, as its CA has signed it.

    Args:
        peer_certificate: as for `identity_of`.
    """
    stated = [value for names in peer_certificate.get("subject", ()) for kind, value in names if kind == "dnQualifier"]
    return parse_weight(stated[0]) if len(stated) == 1 else 1


def explain(exc: ssl.SSLError | OSError, *, host: str, hostname: str | None = None, side: Side = "client") -> str:
    """Explain why the connection failed and name the next step, in two sentences without secrets.

    Args:
        exc: exception of the handshake, of a later read, or of connecting.
        host: the dialled address. The Server's side does not use it: the caller knows the peer's address.
        hostname: the name that the certificate was checked against; None: `host`.
        side: the side that reports the failure.
    """
    name = hostname or host
    host = host if side == "client" else "the peer"
    if isinstance(exc, ssl.SSLCertVerificationError):
        return _explain_server(exc, host, name) if side == "client" else _explain_client(exc)
    if isinstance(exc, ssl.SSLError):
        return _explain_alert(exc, host, name, side)
    if isinstance(exc, socket.gaierror):
        return f"the name {host!r} cannot be resolved to an address. Check server.host, or this machine's network."
    if isinstance(exc, ConnectionRefusedError):
        return f"nothing listens at {host} on that port: the Server is not up yet, or server.port differs."
    if isinstance(exc, TimeoutError):
        return f"{host} does not answer: it is off or unreachable, or a firewall drops the packets."
    if isinstance(exc, ConnectionResetError | BrokenPipeError):
        # The same explanation serves for an old link, because the error does not show the state of the connection.
        return f"{host}, or something on the way there, cut the connection without a message."
    return f"the connection to {host} failed: {exc.strerror or exc}."


def _explain_server(exc: ssl.SSLCertVerificationError, host: str, name: str) -> str:
    """Explain a client's error about the Server's certificate."""
    code = exc.verify_code
    if code in _WRONG_HOST:
        return (
            f"the Server's certificate is not for {name!r}. Make one that is, on the machine that holds the CA "
            f"(`{CREATE} --host {name}`), or set network.hostname to a name that the certificate has (`{SHOW}`)."
        )
    if code in _EXPIRED:
        return (
            "the Server's certificate, or its CA's, has expired. Renew it on the machine that holds the CA "
            f"(`{RENEW}`), which a running Server uses at once; if it has not expired, this machine's clock is wrong."
        )
    if code in _NOT_YET_VALID:
        return "the Server's certificate is not valid yet: this machine's clock is wrong, or the Server's was."
    if code in _UNKNOWN_ISSUER | _BAD_SIGNATURE:
        return (
            f"the Server at {host} has a certificate of another CA than the one in this machine's credentials. Copy "
            f"a bundle of that Server's CA here (`{BUNDLE} worker --name NAME`, or trainer), or check server.host."
        )
    if code in _WRONG_PURPOSE:
        return f"what answers at {host} shows a certificate that is not a Server's. Check server.host and server.port."
    return f"the Server's certificate was not accepted ({exc.verify_message}). `{SHOW}` lists what this machine trusts."


def _explain_client(exc: ssl.SSLCertVerificationError) -> str:
    """Explain the Server's error about a client's certificate."""
    code = exc.verify_code
    renew = f"Make a new one with `{BUNDLE} ROLE --name NAME` and copy it there."
    if code in _EXPIRED:
        return f"the peer's certificate has expired. {renew}"
    if code in _NOT_YET_VALID:
        return "the peer's certificate is not valid yet: this machine's clock is wrong, or the CA's was."
    if code in _UNKNOWN_ISSUER | _BAD_SIGNATURE:
        return f"the peer's certificate is of a foreign CA. {renew}"
    if code in _WRONG_PURPOSE:
        return f"the peer shows a certificate that is not a client's. {renew}"
    if code in _REVOKED:
        return "the peer's certificate was revoked."
    return f"the peer's certificate was not accepted ({exc.verify_message}). {renew}"


def is_too_early(exc: Exception) -> bool:
    """Return True if a certificate was not valid yet, by the clock here or, as far as can be seen, by that there."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return exc.verify_code in _NOT_YET_VALID
    # OpenSSL has no alert of its own for it, and other alerts for a foreign CA, a revocation and a wrong purpose.
    return "ALERT_BAD_CERTIFICATE" in reason_of(exc)


def reason_of(exc: Exception) -> str:
    """Return OpenSSL's name of a failure; empty for the end of a connection, and for other errors."""
    return getattr(exc, "reason", None) or "" if isinstance(exc, ssl.SSLError) else ""


def _explain_alert(exc: ssl.SSLError, host: str, name: str, side: Side) -> str:
    reason = reason_of(exc)
    mine, fix = _own(side, name)
    if "CERTIFICATE_EXPIRED" in reason:
        return f"{host} says that {mine} has expired. {fix}"
    if "UNKNOWN_CA" in reason:
        return f"{host} does not know the CA of {mine}. {fix}"
    if "CERTIFICATE_REQUIRED" in reason or "PEER_DID_NOT_RETURN_A_CERTIFICATE" in reason:
        if side == "server":
            return f"the peer showed no certificate. Give it a bundle: `{BUNDLE} ROLE --name NAME`."
        return f"the Server at {host} asks for a client certificate, and there is none here. {fix}"
    if "CERTIFICATE_REVOKED" in reason:
        return f"{host} says that {mine} was revoked. {fix}"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "ACCESS_DENIED" in reason):
        also = " (it may not be for the name that was dialled)"
        if side == "client":
            also = " (it may not be valid yet by the clock there)"
        return f"{host} does not accept {mine}{also}. {fix}"
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return f"{host} does not speak TLS 1.2 or newer."
    if reason in _NO_TLS_HERE:
        return (
            f"what {host} sent is not TLS: another program uses that port, or one side has network.security null and "
            "the other has not."
        )
    if isinstance(exc, ssl.SSLEOFError) or reason in _CUT_SHORT:
        return f"{host} closed the connection before it was secured."
    return f"{host} could not be reached over TLS ({reason or type(exc).__name__})."


def _own(side: Side, name: str) -> tuple[str, str]:
    """Return the credential that the peer rejects, and the step that fixes it."""
    if side == "server":
        return (
            "this Server's certificate",
            f"Renew it for that name (`{CREATE} --host NAME`), or copy a bundle of this Server's CA to that machine.",
        )
    return (
        "this machine's client certificate",
        f"Make a new bundle on the machine that holds the CA (`{BUNDLE} worker --name NAME`) and install it here.",
    )
