"""With encryption, the relay cannot read policies, directives and reports, and workers with a letter can."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.networking.end_to_end.ends import Ends, signer, verifier
from tmrl_core.errors import ForgedError, UnknownGroupKeyError
from tmrl_core.networking.end_to_end.group_key import GroupKey, decrypted
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.statements import TRAILER_BYTES
from tmrl_core.networking.protocol.messages import Blob, PolicyUpdate, check_update_head, decode_body, encode_body
from tmrl_core.networking.trainer.seal import TrainerSeal
from tmrl_core.networking.worker.seal import WorkerSeal

SECRET = b"the plain text that nobody else may read"
SUBJECTS = ("policy", "directive", "report")


class Secret(Ends):
    """Ends that encrypt. The worker has no letter yet."""

    def __init__(self) -> None:
        super().__init__("encrypt")
        self.counter = 0

    def give_letter(self) -> bytes | None:
        return self.worker.open_directive(self.stream, self.opened().letter(3, b""))

    def made(self, subject: str, content: bytes = SECRET) -> bytes:
        if subject == "policy":
            self.counter += 1
            return b"".join(self.trainer.seal_policy((3, self.counter), content))
        seal = self.trainer.seal_directive if subject == "directive" else self.trainer.seal_report
        return seal(3, content)

    def open(self, subject: str, body: bytes) -> bytes | None:
        if subject == "policy":
            content = self.worker.open_policy((3, self.counter), memoryview(bytearray(body)))
            return None if content is None else bytes(content)
        if subject == "directive":
            return self.worker.open_directive(None, body)
        return self.worker.open_report(body)


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("content", [SECRET, b"x", bytes(100_000)])
def test_it_is_unreadable_and_opens_with_the_key_of_a_letter(subject: str, content: bytes) -> None:
    ends = Secret()
    body = ends.made(subject, content)
    assert len(content) < 10 or content not in body
    assert ends.give_letter() is None, "it contains no directive"
    assert ends.open(subject, body) == content
    assert ends.worker.forged == ends.worker.outdated == 0


@pytest.mark.parametrize("subject", SUBJECTS)
def test_without_a_letter_it_waits_for_its_key(subject: str) -> None:
    ends = Secret()
    body = ends.made(subject)
    for _ in range(2):
        with pytest.raises(UnknownGroupKeyError):
            ends.open(subject, body)
    ends.give_letter()
    assert ends.open(subject, body) == SECRET
    assert ends.worker.forged == ends.worker.outdated == 0


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_changed_bit_is_noticed_before_it_is_decrypted(subject: str) -> None:
    ends = Secret()
    ends.give_letter()
    body = ends.made(subject)
    for place in range(len(body)):
        altered = bytearray(body)
        altered[place] ^= 1 << place % 8
        with pytest.raises(ForgedError):
            ends.open(subject, bytes(altered))
    assert ends.worker.forged == len(body)
    assert ends.open(subject, body) == SECRET


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_group_key_alone_forges_nothing(subject: str) -> None:
    ends = Secret()
    ends.give_letter()
    stolen = GroupKey(ends.trainer.group_keys[0])
    trailer = ends.made(subject)[-88:]
    with pytest.raises(ForgedError):
        ends.open(subject, b"".join(stolen.encrypt("run", subject, b"harm")) + trailer)


def test_a_policy_is_a_policy_update_to_the_relay() -> None:
    for size in (0, 10, 100_000):
        body = b"".join(GroupKey().encrypt("run", "policy", bytes(size)))
        check_update_head(body)
        update = decode_body(body, PolicyUpdate)
        assert (update.version, update.exploration, update.policies[""].format) == ((0, 0), {}, "encrypted")
        again = encode_body(PolicyUpdate((0, 0), {"": Blob("encrypted", update.policies[""].data)}))
        assert decode_body(again, PolicyUpdate) == update


def test_a_readable_message_of_a_trainer_that_does_not_encrypt_is_read() -> None:
    ends = Ends()
    ends.worker.mode = "encrypt"
    assert ends.worker.open_report(ends.trainer.seal_report(3, b"report")) == b"report"


def test_a_worker_that_only_authenticates_follows_a_trainer_that_encrypts() -> None:
    ends = Secret()
    ends.worker.mode = "authenticate"
    ends.give_letter()
    assert ends.open("policy", ends.made("policy")) == SECRET


def test_a_finish_is_readable_for_workers_that_come_later() -> None:
    ends = Secret()
    assert ends.worker.open_directive(None, ends.trainer.seal_directive(3, b"finish", readable=True)) == b"finish"


def test_a_renewed_key_hides_everything_later_and_letters_keep_the_key_of_the_last_policy() -> None:
    ends = Secret()
    body = b"".join(ends.trainer.seal_policy((3, 1), (content := bytes(SECRET))))
    ends.give_letter()
    revoked = dict(ends.worker.group_keys)
    ends.trainer.renew_group_key()
    assert b"".join(ends.trainer.seal_policy((3, 1), content))[:-88] == body[:-88], "one version has one content"
    report = ends.made("report")
    with pytest.raises(UnknownGroupKeyError):
        decrypted(revoked, "run", "report", memoryview(report)[:-88])
    with pytest.raises(UnknownGroupKeyError):
        ends.open("report", report)
    ends.give_letter()
    assert ends.open("report", report) == SECRET
    opened = ends.worker.open_policy((3, 1), memoryview(body))
    assert opened is not None
    assert opened == SECRET
    ends.trainer.seal_policy((3, 2), b"another")
    assert len(ends.trainer.group_keys) == 1


def test_a_key_that_is_renewed_while_a_policy_is_sealed_stays_with_that_policy() -> None:
    trainer = Secret().trainer
    ended = threading.Event()

    def renew() -> None:
        while not ended.is_set():
            trainer.renew_group_key()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(renew)
        try:
            for number in range(300):
                content = bytes(200_000)
                body = memoryview(b"".join(trainer.seal_policy((3, number), content)))
                keys = {key.id: key for key in map(GroupKey, trainer.group_keys)}
                assert decrypted(keys, "run", "policy", body[:-TRAILER_BYTES]) == content
        finally:
            ended.set()


def test_a_trainer_that_authenticates_has_no_group_key() -> None:
    ends = Ends()
    ends.trainer.renew_group_key()
    assert ends.trainer.group_keys == ()


def test_each_trainer_process_has_its_own_key_and_no_nonce_is_used_twice() -> None:
    seen = set()
    for _ in range(5):
        trainer = TrainerSeal("run", signer("trainer", "node"), verifier(), RunKey(bytes(32)), mode="encrypt")
        for number in range(5):
            body = b"".join(trainer.seal_policy((3, 1), bytes((number,)) * 100))
            start = body.index(b"\xc1secret1")
            seen.add(body[start + 8 : start + 28])
            seen.add(trainer.seal_report(3, b"report")[8:28])
    assert len(seen) == 50


def test_a_truncated_one_is_refused() -> None:
    key = GroupKey()
    body = b"".join(key.encrypt("run", "report", b"content"))
    for length in range(8, len(body)):
        with pytest.raises(ForgedError):
            assert not decrypted({key.id: key}, "run", "report", memoryview(body)[:length]), f"{length} bytes"


def test_it_is_for_one_run_and_one_subject() -> None:
    key = GroupKey()
    body = memoryview(b"".join(key.encrypt("run", "report", b"content")))
    for run, subject in (("run", "directive"), ("other", "report")):
        with pytest.raises(ForgedError):
            decrypted({key.id: key}, run, subject, body)
    assert bytes(decrypted({key.id: key}, "run", "report", body)) == b"content"


def test_a_worker_forgets_keys_that_letters_do_not_repeat() -> None:
    worker: WorkerSeal = Secret().worker
    ends = Secret()
    ends.worker = worker
    ends.stream = worker.new_stream()
    assert worker.announced(ends.trainer.card(3))
    ends.give_letter()
    first = list(worker.group_keys)
    ends.trainer.seal_policy((3, 1), b"old")
    ends.trainer.renew_group_key()
    ends.trainer.seal_policy((3, 2), b"new")
    ends.give_letter()
    assert len(worker.group_keys) == 1
    assert list(worker.group_keys) != first
