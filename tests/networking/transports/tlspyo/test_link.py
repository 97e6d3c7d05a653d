"""Numbered pieces: what tlspyo repeats, loses or never says does no harm."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.transports.tlspyo.link import MAX_MESSAGE_BYTES, LinkPieces, PieceKind, piece_bytes, refusal


def pieces_of(link: LinkPieces, buffers: Iterable[bytes]) -> list[bytes]:
    made = [bytes(piece) for piece in link.data(list(buffers))]
    rest = link.rest()
    return made + ([bytes(rest)] if rest is not None else [])


def content(link: LinkPieces, messages: Iterable[bytes]) -> bytes:
    out = b""
    for message in messages:
        piece = link.received(message)
        if piece is not None:
            assert piece[0] == PieceKind.DATA
            out += piece[1]
    return out


@given(st.lists(st.binary(max_size=200), max_size=12), st.integers(min_value=10, max_value=80))
def test_bytes_arrive_unchanged_in_any_pieces(buffers: list[bytes], limit: int) -> None:
    sender, receiver = LinkPieces(limit), LinkPieces(limit)
    messages = pieces_of(sender, buffers)
    assert all(len(message) <= limit for message in messages)
    assert content(receiver, messages) == b"".join(buffers)


def test_data_of_one_loop_iteration_is_sent_in_the_fewest_pieces() -> None:
    link = LinkPieces(1_009)
    full = [piece for _ in range(10) for piece in link.data([bytes(700)])]
    assert [len(piece) for piece in full] == [1_009] * 7
    assert link.rest() is None
    assert link.rest() is None


@pytest.mark.parametrize("password", ["", "p" * 43, "\N{SNOWMAN}" * 300])
@pytest.mark.parametrize("header_size", [6, 12, 256])
def test_a_full_piece_fits_one_message_of_tlspyo(header_size: int, password: str) -> None:
    link = LinkPieces(piece_bytes(header_size, password))
    (piece,) = (bytes(piece) for piece in link.data([bytes(piece_bytes(header_size, password) - 9)]))
    message = msgspec.msgpack.encode((2**63 - 1, "OBJ", {"hub": -1}, piece))
    assert header_size + len(password.encode()) + len(message) <= MAX_MESSAGE_BYTES


def test_repeats_are_discarded() -> None:
    sender, receiver = LinkPieces(100), LinkPieces(100)
    first, second = pieces_of(sender, [b"a" * 91]), pieces_of(sender, [b"b" * 91])
    assert content(receiver, first + first + second + first + second) == b"a" * 91 + b"b" * 91


def test_a_gap_is_an_error() -> None:
    sender, receiver = LinkPieces(100), LinkPieces(100)
    messages = pieces_of(sender, [bytes(91) * 3])
    assert receiver.received(messages[0]) is not None
    with pytest.raises(RemoteProtocolError, match="1 messages of the link were lost"):
        receiver.received(messages[2])


def test_the_window_holds_back_until_the_other_side_has_read() -> None:
    sender, receiver = LinkPieces(1_000, window_bytes=4_000), LinkPieces(1_000, window_bytes=4_000)
    messages = []
    while sender.room:
        messages += pieces_of(sender, [bytes(500)])
    assert len(messages) == 8
    content(receiver, messages[:1])
    early = receiver.report_due
    content(receiver, messages[1:])
    assert (early, receiver.report_due) == (False, True)
    assert sender.received(receiver.read_report()) is not None
    assert len(pieces_of(sender, [bytes(3_999)])) == 5


def test_an_impossible_count_is_an_error() -> None:
    sender, liar = LinkPieces(1_000), LinkPieces(1_000, window_bytes=4)
    other = LinkPieces(1_000)
    content(liar, pieces_of(other, [bytes(100)]))
    with pytest.raises(RemoteProtocolError, match="has read 100 bytes of 0"):
        sender.received(liar.read_report())


@given(st.binary(max_size=64))
def test_any_bytes_are_a_piece_or_the_documented_error(message: bytes) -> None:
    link = LinkPieces(100)
    try:
        piece = link.received(message)
    except RemoteProtocolError:
        return
    assert piece is None or piece[0] in PieceKind


def test_a_refusal_contains_the_reason() -> None:
    piece = LinkPieces(100).received(refusal("password", "it is another"))
    assert piece is not None
    assert (piece[0], bytes(piece[1])) == (PieceKind.REFUSED, b"password\nit is another")
