"""Samples reach the trainer only as their worker sent them, in their place of their stream."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.networking.end_to_end.ends import BODY, HEAD, Ends, signer, verifier
from tmrl_core.errors import ForgedError, UnknownRunKeyError
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.stream_keys import ENCRYPTED, MAC, SEAL_BYTES, SIGNED, Sealed
from tmrl_core.networking.protocol.messages import MessageHead
from tmrl_core.networking.trainer.seal import OpenedStream, TrainerSeal
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

MODES: tuple[Mode, ...] = ("authenticate", "encrypt")


def signed() -> Ends:
    """Ends whose worker has no card yet."""
    ends = Ends()
    ends.worker = WorkerSeal("run", signer(), verifier(), mode="authenticate")
    ends.stream = ends.worker.new_stream()
    return ends


MAKERS: dict[int, Callable[[], Ends]] = {MAC: Ends, ENCRYPTED: lambda: Ends("encrypt"), SIGNED: signed}


def join(parts: object) -> memoryview:
    assert isinstance(parts, list)
    return memoryview(bytearray(b"".join(parts)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [0, 1, 1_000, 32_768, 32_769, 1_000_000])
def test_a_sealed_message_opens(mode: Mode, size: int) -> None:
    ends = Ends(mode)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sealed = ends.sealed(body)
    assert len(sealed) == size + ends.worker.seal_bytes
    assert ends.opened().open(HEAD, sealed) == body
    assert ends.trainer.forged == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_body_of_several_buffers_opens(mode: Mode) -> None:
    ends = Ends(mode)
    for size in (10, 100_000):
        parts: list[bytes | memoryview] = [b"a" * size, memoryview(b"b" * size), b""]
        assert ends.opened().open(HEAD, join(ends.worker.seal(ends.stream, HEAD, parts))) == b"".join(parts)


def test_a_mac_does_not_copy_a_large_body() -> None:
    ends = Ends()
    body = bytes(100_000)
    parts = ends.worker.seal(ends.stream, HEAD, [body])
    assert parts is not None
    assert parts[0] is body
    sealed = join(parts)
    assert ends.opened().open(HEAD, sealed).obj is sealed.obj


def test_a_large_body_is_decrypted_in_its_own_memory() -> None:
    ends = Ends("encrypt")
    body = bytes(100_000)
    sealed = ends.sealed(body)
    assert body[:1_000] not in bytes(sealed)
    unchanging = memoryview(bytes(sealed))
    opened = ends.opened().open(HEAD, sealed)
    assert opened == body
    assert opened.obj is sealed.obj
    assert ends.opened().open(HEAD, unchanging) == body


def test_an_encrypted_body_is_unreadable() -> None:
    ends = Ends("encrypt")
    assert BODY not in bytes(ends.sealed())
    assert bytes(ends.sealed())[: len(BODY)] != bytes(ends.sealed())[: len(BODY)]


def test_without_a_card_messages_are_signed() -> None:
    ends = signed()
    sealed = ends.sealed()
    assert (sealed[-1], len(sealed)) == (SIGNED, len(BODY) + ends.worker.seal_bytes)
    assert ends.opened().open(HEAD, sealed) == BODY


def test_without_a_card_a_worker_that_encrypts_keeps_its_messages() -> None:
    worker = WorkerSeal("run", signer(), verifier(), mode="encrypt")
    assert worker.seal(worker.new_stream(), HEAD, [BODY]) is None


@pytest.mark.parametrize("mode", MAKERS)
def test_every_changed_bit_is_noticed(mode: int) -> None:
    ends = MAKERS[mode]()
    opened, sealed = ends.opened(), ends.sealed()
    assert sealed[-1] == mode
    for place in range(len(sealed)):
        for bit in (1, 128):
            altered = memoryview(bytearray(sealed))
            altered[place] ^= bit
            with pytest.raises((ForgedError, UnknownRunKeyError)):
                opened.open(HEAD, altered)
    assert ends.trainer.forged + ends.trainer.unknown_keys == 2 * len(sealed)
    assert opened.open(HEAD, sealed) == BODY


@pytest.mark.parametrize("mode", MAKERS)
def test_every_length_but_the_whole_is_refused(mode: int) -> None:
    ends = MAKERS[mode]()
    opened, sealed = ends.opened(), bytes(ends.sealed())
    others = [sealed[:end] for end in range(len(sealed))] + [sealed[start:] for start in range(1, len(sealed))]
    for other in [*others, sealed + b"\0", b"\0" + sealed, sealed + sealed]:
        with pytest.raises((ForgedError, UnknownRunKeyError)):
            opened.open(HEAD, memoryview(other))


@pytest.mark.parametrize("mode", MAKERS)
def test_another_head_is_refused(mode: int) -> None:
    for field in MessageHead._fields:
        for change in (1, -1):
            ends = MAKERS[mode]()
            head = HEAD._replace(**{field: getattr(HEAD, field) + change})
            with pytest.raises(ForgedError):
                assert not ends.opened().open(head, ends.sealed()), head


@pytest.mark.parametrize("mode", MAKERS)
def test_another_mode_is_refused(mode: int) -> None:
    ends = MAKERS[mode]()
    opened = ends.opened()
    for other in {0, MAC, ENCRYPTED, SIGNED, 4, 255} - {mode}:
        sealed = ends.sealed()
        sealed[-1] = other
        with pytest.raises((ForgedError, UnknownRunKeyError)):
            opened.open(HEAD, sealed)


@pytest.mark.parametrize("mode", MAKERS)
def test_another_stream_of_the_same_worker_is_refused(mode: int) -> None:
    ends = MAKERS[mode]()
    other = ends.worker.new_stream()
    opened = ends.trainer.open_record(other, ends.worker.record(other, b""))
    with pytest.raises(ForgedError):
        opened.open(HEAD, ends.sealed())


@pytest.mark.parametrize("mode", [MAC, ENCRYPTED])
def test_the_trainer_of_another_run_with_the_same_key_refuses_it(mode: int) -> None:
    ends = MAKERS[mode]()
    other = Ends(run="other run")
    opened = ends.opened()
    opened._seal = other.trainer
    opened._keys = {other.trainer.run_key.id: opened._derive(other.trainer.run_key)}
    with pytest.raises(ForgedError):
        opened.open(HEAD, ends.sealed())


def test_a_restarted_trainer_opens_earlier_messages() -> None:
    ends = Ends()
    sealed, record = ends.sealed(), ends.worker.record(ends.stream, b"")
    later = TrainerSeal("run", signer("trainer", "node"), verifier(), RunKey(bytes(32)))
    assert later.open_record(ends.stream, record).open(HEAD, sealed) == BODY


def test_a_message_for_another_run_key_is_kept() -> None:
    ends = Ends()
    sealed, record = ends.sealed(), ends.worker.record(ends.stream, b"")
    other = TrainerSeal("run", signer("trainer", "node"), verifier(), RunKey(bytes(31) + b"1"))
    with pytest.raises(UnknownRunKeyError) as raised:
        other.open_record(ends.stream, record).open(HEAD, sealed)
    assert raised.value.key_id == RunKey(bytes(32)).id
    assert (other.unknown_keys, other.forged) == (1, 0)


def test_an_older_run_key_opens_stored_messages() -> None:
    ends = Ends()
    sealed, record = ends.sealed(), ends.worker.record(ends.stream, b"")
    older = RunKey(bytes(32))
    other = TrainerSeal("run", signer("trainer", "node"), verifier(), RunKey(bytes(31) + b"1"), older=[older])
    assert other.open_record(ends.stream, record).open(HEAD, sealed) == BODY


def test_a_card_with_another_run_key_changes_the_keys() -> None:
    ends = Ends()
    ends.trainer = TrainerSeal("run", signer("trainer", "node"), verifier(), RunKey(bytes(31) + b"1"))
    assert ends.worker.announced(ends.trainer.card(4))
    assert ends.opened().open(HEAD, ends.sealed()) == BODY


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["first", "again", "other stream", "new run key", "restarted trainer"]), max_size=40))
def test_no_nonce_is_used_twice(steps: list[str]) -> None:
    ends = Ends()
    other = ends.worker.new_stream()
    seen: set[tuple[bytes, bytes, int]] = set()
    incarnation, head, key = 3, HEAD, 0
    for step in steps:
        stream = other if step == "other stream" else ends.stream
        if step == "first":
            head = head._replace(number=head.number + 1)
        elif step in ("new run key", "restarted trainer"):
            incarnation += 1
            key = (key + 1) % 2 if step == "new run key" else key
            run_key = RunKey(bytes([key]) * 32)
            trainer = TrainerSeal("run", signer("trainer", "node"), verifier(), run_key)
            assert ends.worker.announced(trainer.card(incarnation))
        sealed = Sealed(join(ends.worker.seal(stream, head, [BODY])))
        used = (stream, sealed.key_id, sealed.counter)
        assert used not in seen
        seen.add(used)


@functools.cache
def ends_for_any_bytes() -> tuple[Ends, OpenedStream]:
    ends = Ends()
    return ends, ends.opened()


@given(st.binary(max_size=200), st.sampled_from([MAC, ENCRYPTED, SIGNED]))
def test_any_bytes_are_refused(data: bytes, mode: int) -> None:
    ends, opened = ends_for_any_bytes()
    before = ends.trainer.forged + ends.trainer.unknown_keys
    for attempt in (data, data.ljust(SEAL_BYTES - 1, b"\0") + bytes((mode,))):
        with pytest.raises((ForgedError, UnknownRunKeyError)):
            opened.open(HEAD, memoryview(attempt))
    assert ends.trainer.forged + ends.trainer.unknown_keys == before + 2
