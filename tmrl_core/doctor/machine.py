"""Checks on this machine only: the code that the configuration names, and the credentials."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tmrl_core.config import Config, is_own, locate, resolve_with
from tmrl_core.doctor.steps import FailedStepError, from_text
from tmrl_core.errors import CredentialsError, TmrlError
from tmrl_core.networking.security import tls_contexts
from tmrl_core.networking.security.certificates import is_issued, read_facts
from tmrl_core.networking.security.handshakes import BUNDLE, identity_of
from tmrl_core.networking.security.secret_files import need, read_file
from tmrl_core.networking.security.tls_contexts import (
    CERTIFIED_ROLES,
    CertifiedRole,
    ContextRole,
    read_bundle,
)

_SOON_DAYS = 30


def link_role(role: CertifiedRole) -> ContextRole:
    """Return the role in which the holder of a certificate connects."""
    return "observer" if role == "operator" else role


def code(config: Config, role: CertifiedRole, folders: Sequence[Path] = ()) -> str:
    """Check that the modules and names of the configuration exist for this role; only built-in ones are imported.

    Args:
        config: the configuration, which may come from another user.
        role: role to check.
        folders: folders with modules besides `sys.path`.

    Raises:
        FailedStepError: a module or name is missing.
    """
    from tmrl_core.actor import choose_actor
    from tmrl_core.config.algorithms import policy_kwargs
    from tmrl_core.roles.devices import check_device

    if role == "operator":
        return "none is needed to watch a run"
    environment, worker, actor = config.environment, config.worker, config.actor
    named: list[tuple[str, Mapping[str, Any], str]] = [(environment.cls, environment.kwargs, "environment.cls")]
    if role == "worker":
        optional: dict[str, str | None] = {"worker.sample_compressor": worker.sample_compressor}
        optional["worker.obs_preprocessor"] = worker.obs_preprocessor
    else:
        named += [(config.agent.cls, config.agent.kwargs, "agent.cls")]
        named += [(config.memory.cls, config.memory.kwargs, "memory.cls")]
        optional = {"memory.sample_preprocessor": config.memory.sample_preprocessor}
    own_policy = role == "worker" and is_own(actor.cls)
    if not own_policy:
        named.append((actor.cls, actor.kwargs, "actor.cls"))
    try:
        for reference, kwargs, at in named:
            if is_own(reference):
                resolve_with(reference, kwargs, at)
            else:
                locate(reference, at, folders)
        for at, maybe in optional.items():
            if maybe is not None:
                locate(maybe, at, folders)
        if role == "worker":
            check_device(worker.device, "worker.device")
        else:
            check_device(config.trainer.device, "trainer.device")
        if own_policy:
            choose_actor(actor.cls, policy_kwargs(config), device=worker.device, backend=worker.backend)
    except TmrlError as exc:
        raise from_text(str(exc), "Correct that key of the configuration.") from exc
    found = ", ".join(reference for reference, _, _ in named)
    return f"{found}{f', {actor.cls}' if own_policy else ''} exist; only tmrl_core's own was imported"


def role_of(folder: Path) -> CertifiedRole:
    """Return the role of the credentials; of several, the first of worker, trainer and operator."""
    with contextlib.suppress(CredentialsError):
        if folder.is_file():
            found = read_bundle(folder).role
            return "worker" if found == "server" else found
    roles = (
        role for role in CERTIFIED_ROLES if list(folder.glob(f"{role}-*.pem")) or (folder / f"{role}.token").exists()
    )
    return next(roles, "worker")


def proof(folder: Path, role: CertifiedRole, token: str | None) -> str:
    """Describe the proof of identity for the Server: a certificate of this role, a token, or both.

    Args:
        folder: the credentials folder or bundle file.
        role: role to check.
        token: token from the environment.

    Raises:
        FailedStepError: there is neither, or the certificate has expired, is for another role, or is from another CA.
    """
    now = datetime.now(timezone.utc)
    try:
        tls_contexts.client_context(
            folder, link_role(role), has_token=token is not None
        )  # raises every error that a role would raise
        from_folder = tls_contexts.token_for(folder, link_role(role))
        ca, own = _certificates(folder, role)
        authority = read_facts(ca)
        facts = None if own is None else read_facts(own)
    except CredentialsError as exc:
        raise from_text(str(exc), f"Make a new bundle (`{BUNDLE} {role} --name NAME`) and install it here.") from exc
    renew = f"Make a new bundle on the machine that holds the CA (`{BUNDLE} {role} --name NAME`) and install it here."
    if authority.not_after <= now:
        raise FailedStepError(
            f"the CA's certificate in {folder} expired on {authority.not_after:%Y-%m-%d}",
            "Make a new CA on the machine that holds it (`python -m tmrl_core --credentials create --overwrite`) and "
            "new bundles.",
        )
    if facts is None or own is None:
        if token is None and from_folder is None:
            raise FailedStepError(f"{folder} has neither a certificate nor a token of a {role}", renew)
        where = "TMRL_CORE_TOKEN" if token is not None else str(folder)
        return f"no certificate of its own; the {role}'s token from {where}"
    identity = identity_of({"subjectAltName": [("URI", name) for name in facts.names]})
    if identity is None or identity[0] != role:
        raise FailedStepError(f"the certificate in {folder} is not a {role}'s: {facts.subject}", renew)
    name = identity[1]
    if not facts.not_before <= now < facts.not_after:
        raise FailedStepError(
            f"the certificate of {role} {name!r} is valid from {facts.not_before:%Y-%m-%d %H:%M} to "
            f"{facts.not_after:%Y-%m-%d %H:%M} UTC; this machine's clock says {now:%Y-%m-%d %H:%M}",
            f"{renew} If the clock is wrong, set it.",
        )
    if not is_issued(own, ca):
        raise FailedStepError(f"the certificate of {role} {name!r} is not of the CA in {folder}", renew)
    left = (facts.not_after - now).days
    soon = f": renew it soon (`{BUNDLE} {role} --name {name}`)" if left < _SOON_DAYS else ""
    return f"certificate of {role} {name!r}, of the CA here, {left} days left{soon}"


def _certificates(folder: Path, role: CertifiedRole) -> tuple[str, str | None]:
    """Return the CA's certificate and the certificate that would be sent."""
    if folder.is_file():
        content = read_bundle(folder)
        return content.ca, content.certificate
    own = sorted(folder.glob(f"{role}-*.pem"))
    return need(folder / "ca.pem"), read_file(own[0]) if len(own) == 1 else None
