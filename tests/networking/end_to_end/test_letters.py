"""Letters: a large policy is proved to each worker by a MAC, which only the trainer and that worker can compute."""

from __future__ import annotations

import pytest

from tests.networking.end_to_end.ends import Ends
from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.statements import TRAILER_BYTES, Letter
from tmrl_core.networking.end_to_end.stream_keys import NONCE_BYTES

POLICY = bytes(range(256)) * 400


class Proven(Ends):
    """Ends whose trainer has sent a policy's MAC to the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.opener = self.opened()
        self.opener.prove_policy((3, 1), memoryview(POLICY))
        self.give(self.letter())

    def letter(self, directive: bytes = b"") -> bytes:
        return self.opener.letter(3, directive)

    def give(self, letter: bytes) -> bytes | None:
        return self.worker.open_directive(self.stream, letter)

    def unsigned(self, content: bytes = POLICY, version: tuple[int, int] = (3, 1)) -> memoryview:
        """A policy without a valid signature."""
        trailer = bytearray(self.trainer.seal_policy(version, content)[1])
        trailer[TRAILER_BYTES - 20] ^= 1
        return memoryview(bytearray(content + bytes(trailer)))


def test_a_mac_replaces_the_check_of_a_signature() -> None:
    ends = Proven()
    content = ends.worker.open_policy((3, 1), ends.unsigned())
    assert content is not None
    assert content == POLICY
    assert ends.worker.forged == 0


def test_without_a_mac_the_signature_counts() -> None:
    ends = Ends()
    body = memoryview(b"".join(ends.trainer.seal_policy((3, 1), POLICY)))
    content = ends.worker.open_policy((3, 1), body)
    assert content is not None
    assert content == POLICY


@pytest.mark.parametrize("place", [0, 1, len(POLICY) // 2, len(POLICY) - 1])
def test_an_altered_policy_is_refused(place: int) -> None:
    ends = Proven()
    altered = ends.unsigned()
    altered[place] ^= 1
    with pytest.raises(ForgedError):
        ends.worker.open_policy((3, 1), altered)


@pytest.mark.parametrize("content", [POLICY[:-1], POLICY + b"\0", b"", b"another policy"])
def test_another_policy_is_refused(content: bytes) -> None:
    ends = Proven()
    with pytest.raises(ForgedError):
        ends.worker.open_policy((3, 1), ends.unsigned(content))


def test_another_version_is_refused() -> None:
    ends = Proven()
    for version in ((3, 2), (4, 1)):
        with pytest.raises(ForgedError):
            ends.worker.open_policy(version, ends.unsigned(version=version))
    with pytest.raises(ForgedError, match="another version"):
        ends.worker.open_policy((3, 2), ends.unsigned())


def test_the_keys_of_another_worker_make_no_valid_mac() -> None:
    ends = Proven()
    thief = Ends()  # a stolen bundle, with a stream of its own, and its keys
    forged = b"harm" * 10_000
    proof = ends.worker._streams[ends.stream].policy
    assert proof is not None
    stolen = thief.worker._keys(thief.worker._streams[thief.stream], thief.worker._card)  # type: ignore[arg-type]
    stolen._stream = ends.stream
    tag = stolen.policy_tag(proof.nonce, (3, 1), memoryview(forged))
    ends.worker._streams[ends.stream].policy = type(proof)((3, 1), proof.nonce, tag)
    with pytest.raises(ForgedError):
        ends.worker.open_policy((3, 1), ends.unsigned(forged))


def test_a_letter_contains_the_directive_unreadably() -> None:
    ends = Proven()
    letter = ends.letter(b"order")
    assert b"order" not in letter
    assert ends.give(letter) == b"order"
    assert ends.give(ends.letter()) is None, "there is no directive"
    assert ends.worker.forged == 0


def test_there_is_no_letter_without_content() -> None:
    opener = Ends().opened()
    assert opener.letter(3, b"") == b""
    assert opener.letter(3, b"order")


def test_an_older_letter_changes_nothing() -> None:
    ends = Proven()
    older = ends.letter(b"older")
    ends.opener.prove_policy((3, 2), memoryview(POLICY))
    newer = ends.letter(b"newer")
    assert ends.give(newer) == b"newer"
    assert ends.give(older) is None
    assert ends.give(newer) == b"newer", "a reconnection repeats it"
    proof = ends.worker._streams[ends.stream].policy
    assert proof is not None
    assert proof.version == (3, 2)
    assert (ends.worker.outdated, ends.worker.forged) == (1, 0)


def test_a_letter_of_an_earlier_incarnation_is_outdated() -> None:
    ends = Proven()
    older = ends.letter(b"older")
    assert ends.worker.announced(ends.trainer.card(4))
    assert ends.give(older) is None
    assert ends.worker.outdated == 1


def test_a_letter_of_another_stream_or_run_is_refused() -> None:
    ends = Proven()
    other = ends.worker.new_stream()
    elsewhere = ends.trainer.open_record(other, ends.worker.record(other, b""))
    for letter in (elsewhere.letter(3, b"order"), Ends(run="other run").opened().letter(3, b"order")):
        with pytest.raises(ForgedError):
            ends.give(letter)


def test_no_nonce_is_used_twice() -> None:
    # A restarted trainer has the same keys again, and remembers no counter.
    letters, tags = [], []
    worker = Proven()
    for _ in range(5):
        opener = worker.opened()
        for number in range(5):
            opener.prove_policy((3, number), memoryview(POLICY))
            letters.append(opener.letter(3, b"")[:NONCE_BYTES])
            assert opener._policy is not None
            tags.append(opener._policy.nonce)
    assert len(set(letters)) == len(set(tags)) == 25


def test_a_trainer_that_is_not_believed_any_more_proves_nothing() -> None:
    ends = Proven()
    ends.worker._card = None
    with pytest.raises(ForgedError):
        ends.worker.open_policy((3, 1), ends.unsigned())


def test_the_group_keys_of_a_letter_are_in_no_repr() -> None:
    assert repr(Letter((3, 1), b"directive", None, (b"secret",))) == "Letter(version=(3, 1), ...)"
