"""Certificates and keys of simulated machines with end-to-end authentication, and what their disks keep of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.networking.end_to_end.ends import authority, later, verifier
from tmrl_core.networking.end_to_end.identity import Signer
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.protocol.messages import Version
from tmrl_core.networking.security.certificates import make_client_certificate
from tmrl_core.networking.trainer.seal import TrainerSeal
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

BUNDLES = 4
"""Workers' certificates; more workers share them."""
_SIZES = {"worker": 487, "trainer": 487}
"""Bytes of a certificate. They vary by chance, and the simulation must not."""


@functools.cache
def signer(role: str, name: str) -> Signer:
    """The holder of a certificate of the size of its role."""
    for _ in range(1_000):
        made = make_client_certificate(authority("ours"), role, name, later(30))
        if len(x509.load_pem_x509_certificate(made.certificate.encode()).public_bytes(Encoding.DER)) == _SIZES[role]:
            return Signer(made.certificate, made.key)
    raise AssertionError(f"certificates of role {role} have another size now")


class TrainerMachine:
    """A trainer's credentials folder.

    Args:
        number: tells machines apart.
        mode: of authentication.
    """

    def __init__(self, number: int, mode: Mode) -> None:
        self.name = f"node{number}"
        self.mode: Mode = mode
        self.key = RunKey(bytes((number,)) * 32)
        self.highest = 0

    def hold(self, incarnation: int) -> None:
        """Write an incarnation to disk."""
        self.highest = max(self.highest, incarnation)

    def seal(self, run: str, others: Sequence[TrainerMachine]) -> TrainerSeal:
        """A new process's; with the keys of other machines, which somebody has copied."""
        older = [machine.key for machine in others if machine is not self]
        return TrainerSeal(run, signer("trainer", self.name), verifier(), self.key, older=older, mode=self.mode)


class WorkerMachine:
    """A worker's bundle, and the file of the versions that it has accepted.

    Args:
        number: tells bundles apart.
        mode: of authentication.
    """

    def __init__(self, number: int, mode: Mode) -> None:
        self.name = f"robot{number % BUNDLES}"
        self.mode: Mode = mode
        self.accepted: Version = (0, 0)

    def _accept(self, version: Version) -> None:
        self.accepted = max(self.accepted, version)

    def seal(self, run: str) -> WorkerSeal:
        """A new process's."""
        return WorkerSeal(
            run,
            signer("worker", self.name),
            verifier(),
            mode=self.mode,
            accepted=self.accepted,
            on_accepted=self._accept,
        )


__all__ = ["TrainerMachine", "WorkerMachine"]
