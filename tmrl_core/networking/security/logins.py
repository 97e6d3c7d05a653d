"""Checks of a peer's login: the role of its certificate, its token, or the shared password. Sans-I/O.

Each function returns None, or the code and the reason of a rejection. The reason includes the next step for the peer's
user.
"""

from __future__ import annotations

import hmac

from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.messages import Hello
from tmrl_core.networking.security.tls_contexts import CLIENT_ROLES, OPERATOR_ROLES, TokenVerifier, with_article

Rejection = tuple[str, str]
"""Code and reason of a rejection."""


def check_login(hello: Hello, identity: Identity, verifier: TokenVerifier) -> Rejection | None:
    """Check the credentials of a peer over TLS against the role that it claims."""
    if hello.role == "observer":
        return check_status_request(hello, identity, verifier)
    if identity.role is None:
        return check_token(hello, verifier)
    if identity.role == hello.role:
        return None
    shown = with_article(identity.role)
    return (
        "role",
        f"these are {shown}'s credentials: this certificate is {shown}'s; it cannot act as "
        f"{hello.role}. Make a bundle for that role: python -m tmrl_core --credentials bundle {hello.role} --name NAME",
    )


def check_token(hello: Hello, verifier: TokenVerifier) -> Rejection | None:
    """Check the token of a peer without a certificate."""
    if not hello.token:
        return (
            "certificate",
            "neither a client certificate nor a token was shown. Copy a bundle to this machine "
            f"(python -m tmrl_core --credentials bundle {hello.role} --name NAME) or set TMRL_CORE_TOKEN.",
        )
    if verifier.check(hello.role, hello.token):
        return None
    for other in CLIENT_ROLES:
        if verifier.check(other, hello.token):
            return (
                "token",
                f"these are a {other}'s credentials (the token), and this is a {hello.role}. Make a bundle for it: "
                f"python -m tmrl_core --credentials bundle {hello.role} --name NAME",
            )
    return (
        "token",
        f"the token is not this Server's token of the role {hello.role}. Copy a new bundle from the machine that holds "
        f"the credentials (python -m tmrl_core --credentials bundle {hello.role} --name NAME), or correct "
        "TMRL_CORE_TOKEN.",
    )


def check_password(hello: Hello, password: str | None) -> Rejection | None:
    """Check the one password of a Server without TLS; None and an empty one: any peer may log in."""
    if password and not hmac.compare_digest(password.encode(), hello.token.encode()):
        return "token", f"the token is not the one that this Server was given for the role {hello.role}"
    return None


def check_status_request(hello: Hello, identity: Identity, verifier: TokenVerifier) -> Rejection | None:
    """Check that a peer may request the Server's status, and watch a run.

    A trainer, an operator and a holder of the Server's own key may do both. Workers may not: their machines may be
    stolen, and the status names every other worker with its address.
    """
    # Both tokens are always checked, so that the duration reveals nothing about them.
    may = verifier.check("observer", hello.token) | verifier.check("trainer", hello.token)
    # A worker's certificate is never one of these.
    if identity.role in OPERATOR_ROLES or (identity.role is None and may):
        return None
    if identity.role is not None or not hello.token:
        return (
            "role",
            "only the trainer's and an operator's credentials and those on the Server's own machine may ask for the "
            "Server's status. Run this there, or make an operator's bundle: python -m tmrl_core --credentials bundle "
            "operator --name NAME",
        )
    return (
        "token",
        "the token is neither this Server's trainer's nor derived from its key: the credentials here are of another "
        "set. Copy a trainer's bundle from the machine that holds the CA (python -m tmrl_core --credentials bundle "
        "trainer --name NAME), or correct TMRL_CORE_TOKEN.",
    )
