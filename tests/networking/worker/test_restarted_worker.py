"""A worker that starts again with the version that it has accepted before, or with a stream; a CA that is replaced."""

from __future__ import annotations

import pytest

from tests.networking.end_to_end.ends import BODY, HEAD, Ends, authority, signer, verifier
from tmrl_core.errors import CredentialsError, ForgedError
from tmrl_core.networking.end_to_end.stream_keys import Sealed
from tmrl_core.networking.protocol.messages import Version
from tmrl_core.networking.worker.seal import Mode, WorkerSeal


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


@pytest.mark.parametrize("mode", ["authenticate", "encrypt"])
def test_a_later_process_continues_a_stream_and_repeats_no_nonce(mode: Mode) -> None:
    ends = Ends(mode)
    opened = ends.opened()
    secret = ends.worker.stream_secret(ends.stream)
    first = [ends.sealed() for _ in range(3)]
    nonces = {Sealed(message).counter for message in first}
    for _ in range(3):
        ends.worker = WorkerSeal("run", signer(), verifier(), mode=mode)
        assert ends.worker.announced(ends.trainer.card(3))
        assert ends.worker.continue_stream(ends.stream, secret)
        again = [ends.sealed() for _ in range(3)]
        found = {Sealed(message).counter for message in again}
        assert nonces.isdisjoint(found)
        nonces |= found
        assert [bytes(opened.open(HEAD, message)) for message in again] == [BODY] * 3
    # Its record is signed anew, and its acknowledgements are believed.
    assert ends.opened().name == "robot"
    assert ends.worker.check_ack(ends.stream, 5, (), opened.ack_tag(5, ()))


def test_a_stream_of_another_certificate_run_or_key_is_not_continued() -> None:
    ends = Ends()
    secret = ends.worker.stream_secret(ends.stream)
    for run, holder, changed in (
        ("other", signer(), secret),
        ("run", signer(name="robot2"), secret),
        ("run", signer(), secret._replace(key=bytes(32))),
        ("run", signer(), secret._replace(key=b"short")),
        ("run", signer(), secret._replace(started_s=secret.started_s + 1)),
    ):
        worker = WorkerSeal(run, holder, verifier(), mode="authenticate")
        assert not worker.continue_stream(ends.stream, changed)
