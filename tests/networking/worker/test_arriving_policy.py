"""A large encrypted policy is checked and decrypted while it arrives, in pieces of any size."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.networking.end_to_end.ends import Ends
from tmrl_core.errors import ForgedError, UnknownGroupKeyError
from tmrl_core.networking.end_to_end.statements import TRAILER_BYTES

POLICY = os.urandom(5_000)
VERSION = (3, 1)


class Arriving(Ends):
    """Ends that encrypt. The worker has the MAC of version 3.1 and its key."""

    def __init__(self, content: bytes = POLICY) -> None:
        super().__init__("encrypt")
        *parts, trailer = self.trainer.seal_policy(VERSION, content)
        self.opener = self.opened()
        self.opener.prove_policy(VERSION, *parts)
        self.sealed_policy = b"".join((*parts, trailer))
        self.give_letter()

    def give_letter(self) -> None:
        self.worker.open_directive(self.stream, self.opener.letter(3, b""))

    def receive(self, sealed: bytes, sizes: Iterator[int] | int, version: tuple[int, int] = VERSION) -> memoryview:
        """Give the pieces of a policy to the worker, and return its memory."""
        body = memoryview(bytearray(len(sealed)))
        add, start = None, 0
        while start < len(sealed):
            piece = memoryview(sealed)[start : start + (sizes if isinstance(sizes, int) else next(sizes))]
            if start == 0:
                add = self.worker.receive_policy(version, piece, body)
            if add is None:
                body[start : start + len(piece)] = piece
            else:
                add(piece)
            start += len(piece)
        return body

    def taken(self, sealed: bytes, sizes: int) -> bytes | None:
        content = self.worker.open_policy(VERSION, self.receive(sealed, sizes))
        return None if content is None else bytes(content)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 87, 88, 100, 1_000, len(POLICY)])
def test_pieces_of_any_size_give_the_policy(length: int) -> None:
    for size in (100, 101, 104, 128, 1_000, 100_000):
        ends = Arriving(POLICY[:length])
        assert ends.taken(ends.sealed_policy, size) == POLICY[:length]
        assert (ends.worker.forged, ends.worker.accepted) == (0, VERSION)


def test_the_policy_is_decrypted_in_the_given_memory_before_it_is_opened() -> None:
    ends = Arriving()
    assert POLICY in bytes(ends.receive(ends.sealed_policy, 1_000))


@pytest.mark.parametrize("size", [1, 10, 90])
def test_without_its_whole_head_in_the_first_piece_it_is_opened_when_it_is_complete(size: int) -> None:
    ends = Arriving()
    assert POLICY not in bytes(ends.receive(ends.sealed_policy, size))
    assert ends.taken(ends.sealed_policy, size) == POLICY


@pytest.mark.parametrize("size", [100, 1_000, 100_000])
def test_every_altered_byte_is_noticed(size: int) -> None:
    ends = Arriving(POLICY[:300])
    covered = len(ends.sealed_policy) - TRAILER_BYTES
    for place in range(covered):
        altered = bytearray(ends.sealed_policy)
        altered[place] ^= 1 << place % 8
        with pytest.raises(ForgedError):
            ends.taken(bytes(altered), size)
    assert ends.worker.forged == covered
    assert ends.taken(ends.sealed_policy, size) == POLICY[:300]


@pytest.mark.parametrize("length", [0, 10, 88, 100, 130, 200, 4_000])
def test_a_truncated_one_is_refused(length: int) -> None:
    ends = Arriving()
    with pytest.raises(ForgedError):
        ends.worker.open_policy(VERSION, ends.receive(ends.sealed_policy[:length], 1_000))
    shortened = ends.sealed_policy[:length] + ends.sealed_policy[-TRAILER_BYTES:]
    with pytest.raises(ForgedError):
        ends.worker.open_policy(VERSION, ends.receive(shortened, 1_000))
    assert ends.worker.forged == 2
    assert ends.taken(ends.sealed_policy, 1_000) == POLICY


def test_without_a_key_or_a_mac_it_waits() -> None:
    ends = Arriving()
    ends.worker.group_keys = {}
    with pytest.raises(UnknownGroupKeyError):
        ends.taken(ends.sealed_policy, 1_000)
    body = memoryview(bytearray(len(ends.sealed_policy)))
    assert ends.worker.receive_policy((3, 2), memoryview(ends.sealed_policy), body) is None


def test_a_newer_letter_may_come_before_the_last_piece() -> None:
    ends = Arriving()
    body = ends.receive(ends.sealed_policy, 1_000)
    ends.opener.prove_policy((3, 2), b"another")
    ends.give_letter()
    content = ends.worker.open_policy(VERSION, body)
    assert content is not None
    assert content == POLICY


def test_another_body_does_not_profit_from_it() -> None:
    ends = Arriving()
    ends.receive(ends.sealed_policy, 1_000)
    forged = bytearray(ends.sealed_policy)
    forged[500] ^= 1
    with pytest.raises(ForgedError):
        ends.worker.open_policy(VERSION, memoryview(forged))


def test_a_trainer_that_is_not_believed_any_more_proves_nothing() -> None:
    for end in ("forgotten", "replaced"):
        ends = Arriving()
        body = ends.receive(ends.sealed_policy, 1_000)
        if end == "forgotten":
            ends.worker._card = None
            with pytest.raises(ForgedError):
                ends.worker.open_policy(VERSION, body)
        else:
            assert ends.worker.announced(Ends("encrypt", key=bytes(31) + b"\1").trainer.card(4))
            assert ends.worker.open_policy(VERSION, body) is None
            assert ends.worker.outdated == 1


def test_its_version_is_the_one_of_its_head() -> None:
    ends = Arriving()
    with pytest.raises(ForgedError):
        ends.worker.open_policy((3, 2), ends.receive(ends.sealed_policy, 1_000))
