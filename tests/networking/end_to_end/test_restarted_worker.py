"""A worker that starts again with the version that it has accepted before, and a CA that is replaced."""

from __future__ import annotations

import pytest

from tests.networking.end_to_end.ends import Ends, authority, signer, verifier
from tmrl_core.errors import CredentialsError, ForgedError
from tmrl_core.networking.end_to_end.worker import WorkerSeal
from tmrl_core.networking.protocol.messages import Version


def test_it_takes_the_accepted_version_once_and_no_older_one() -> None:
    ends = Ends()
    kept: list[Version] = []
    worker = WorkerSeal("run", signer(), verifier(), mode="authenticate", accepted=(3, 7), on_accepted=kept.append)
    assert worker.announced(ends.trainer.card(3))

    def arrives(version: Version) -> bool:
        body = b"".join(ends.trainer.seal_policy(version, b"weights"))
        return worker.open_policy(version, memoryview(body)) is not None

    assert [arrives(version) for version in ((3, 6), (2, 9), (3, 7), (3, 7), (3, 8))] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert kept == [(3, 7), (3, 8)]
    assert (worker.forged, worker.outdated) == (0, 3)


def test_it_accepts_no_older_trainer() -> None:
    ends = Ends()
    worker = WorkerSeal("run", signer(), verifier(), mode="authenticate", accepted=(4, 0))
    assert not worker.announced(ends.trainer.card(3))
    assert worker.announced(ends.trainer.card(4))


def test_another_ca_replaces_the_first_one() -> None:
    check = verifier()
    theirs = signer(ca="theirs").certificate
    assert check.check(signer().certificate, ["worker"]).name == "robot"
    check.trust(authority("theirs").certificate)
    assert check.check(theirs, ["worker"]).name == "robot"
    with pytest.raises(ForgedError):
        check.check(signer().certificate, ["worker"])
    with pytest.raises(CredentialsError):
        check.trust("no certificate")
    assert check.check(theirs, ["worker"]).name == "robot"
