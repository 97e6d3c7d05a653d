"""Control messages: what is declared is what is accepted, and nothing that a peer says can make more of itself."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol import messages
from tmrl_core.networking.protocol.framing import MAX_PAYLOAD_BYTES
from tmrl_core.networking.protocol.messages import (
    MAX_SIGNATURE_BYTES,
    Ack,
    Announce,
    Blob,
    Bye,
    CloseStream,
    Collect,
    Command,
    Control,
    Credit,
    Diagnosis,
    Direct,
    Directive,
    Echo,
    Evaluation,
    Film,
    Forged,
    Halt,
    HandOver,
    Have,
    Hello,
    Incarnation,
    Lacks,
    Lateness,
    Notice,
    OpenStream,
    Place,
    PolicyUpdate,
    Probe,
    Progress,
    Refused,
    Report,
    Resume,
    Revoked,
    Show,
    StatusPage,
    StatusRequest,
    Stored,
    StreamClosed,
    StreamOpened,
    Undelivered,
    Unused,
    Waits,
    Want,
    Watch,
    Watched,
    Welcome,
    control_frame,
    decode_body,
    decode_control,
    encode_body,
    encode_control,
)

EVERY: list[Control] = [
    Hello((1,), "worker", "token", "run", "robot7", b"p" * 16, 3, 0, (3, 9)),
    Hello((1, 2), "trainer", "", "run", "", b"p" * 16, 3, 2, announces=True),
    Hello((1,), "worker", "token", "run", "robot7", b"p" * 16, 3, 0, (3, 9), base=(3, 2)),
    Probe((1, 2), "trainer", "token", "run"),
    Diagnosis(1, (1, 2), 1_700_000_000.5, "full", True, "run", 4 << 20, b"card"),
    Echo(3, 60_000, b"filler"),
    Welcome(1, 4, 1 << 20, 16 << 20, 256 << 20, 3.0),
    Refused("token", "the token is not this Server's"),
    OpenStream(0, b"s" * 16, "robot7", b"signature"),
    CloseStream(0),
    StreamOpened(1, b"s" * 16, "robot7", b"signature"),
    StreamClosed(1, True),
    Resume(1, 7, 2, 65_536),
    Halt(0, "another run"),
    Ack(1, 8, ((3, "shape (3,) where (4,) is held"),)),
    Ack(1, 8, (), b"tag"),
    Announce(4, b"card"),
    Forged(3),
    Forged(3, 4),
    Revoked(b"list"),
    HandOver(0),
    Stored(0, 8, "the Server's spool is full"),
    Unused(0, 2, 5_000),
    Want(0, 2, 1 << 20),
    Credit(0, 2, 1 << 20),
    Have(4, 11),
    Lacks(),
    Waits(0, "for a model"),
    Lateness(0, 1_000, 3, 1_200),
    Place(2),
    Incarnation(5),
    Direct(messages.ALL_CHANNELS, 3, b"body"),
    Report(b"body"),
    Notice(2, 1 << 20, 0),
    StatusRequest(0),
    StatusPage(0, 2, b"body"),
    Watch("run"),
    Show("scene", b"body"),
    Film("video", 2, b"piece"),
    Watched(2, 3),
    Command(1, b"order"),
    Undelivered(1, "no trainer"),
    Bye(),
]

# Two written out by hand: the bytes are what clients in other languages count on.
WIRE: list[tuple[Control, bytes]] = [
    (Bye(), b"\x91\xa3bye"),
    (Resume(1, 7, 2, 255), b"\x95\xa6resume\x01\x07\x02\xcc\xff"),
]


def test_the_table_has_every_message() -> None:
    assert {type(message) for message in EVERY} == set(Control.__subclasses__())


def test_every_message_survives_encoding() -> None:
    for message in EVERY:
        assert decode_control(encode_control(message)) == message


@pytest.mark.parametrize(("message", "wire"), WIRE)
def test_bytes_on_the_wire(message: Control, wire: bytes) -> None:
    assert encode_control(message) == wire
    assert decode_control(wire) == message


def test_a_truncated_or_extended_message_is_refused() -> None:
    for message in EVERY:
        wire = encode_control(message)
        for data in (wire[:-1], wire + b"\0", b""):
            with pytest.raises(RemoteProtocolError, match="could not be decoded"):
                assert not decode_control(data), f"{message} as {data!r}"


def test_further_fields_of_the_first_message_are_ignored() -> None:
    """A client that also speaks another version may have more to say in it."""
    hello = Hello((1, 2), "worker", "", "run", "", b"p" * 16)
    wire = msgspec.msgpack.encode(["hello", *msgspec.structs.astuple(hello), "something newer", [1, 2]])
    assert decode_control(wire) == hello


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    try:
        message = decode_control(data)
    except RemoteProtocolError:
        return
    assert isinstance(message, Control)


@given(st.sampled_from(EVERY), st.integers(0, 300), st.integers(0, 255))
def test_a_message_with_one_wrong_byte_is_a_message_or_a_protocol_error(message: Control, at: int, value: int) -> None:
    wire = bytearray(encode_control(message))
    wire[at % len(wire)] = value
    try:
        decode_control(wire)
    except RemoteProtocolError:
        return


@given(st.sampled_from([PolicyUpdate, Directive, Progress]), st.binary(max_size=300))
def test_any_bytes_are_an_envelope_or_a_protocol_error(kind: type[Any], data: bytes) -> None:
    try:
        body = decode_body(data, kind)
    except RemoteProtocolError:
        return
    assert isinstance(body, kind)


@pytest.mark.parametrize(
    "body",
    [
        PolicyUpdate((1, 2), {"policy": Blob("safetensors", b"weights")}, {"epsilon": 0.1}),
        Directive(3, Evaluation(1, (1000, 1001), (1, 2)), pause=True, collect=b"more"),
        Directive(4, refusal="another policy"),
        Progress(5, 3, 100, "40 samples"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_envelopes_survive_encoding(body: PolicyUpdate | Directive | Progress) -> None:
    assert decode_body(encode_body(body), type(body)) == body


@pytest.mark.parametrize("head", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_a_size_that_is_only_announced_is_not_allocated(head: bytes) -> None:
    wires = [head, b"\x97\xa5hello" + head, b"\x95\xa4open\x00" + head, b"\x93\xa3ack\x00" + head]
    tracemalloc.start()
    try:
        for wire in wires:
            with pytest.raises(RemoteProtocolError):
                decode_control(wire)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_deep_nesting_is_a_protocol_error() -> None:
    for wire in (b"\x91" * 60_000, b"\x98\xa6credit\x00\x00\x00" + b"\x91" * 50_000):
        with pytest.raises(RemoteProtocolError):
            decode_control(wire)


# -- numbers and texts that would not fit where they go next -----------------------------------------------------------

TOO_LARGE = (1 << 64) - 1


def test_numbers_beyond_the_counters_are_refused_in_every_field() -> None:
    """A frame's header has 32 bits for a channel and 16 for an epoch; one past the end would fail where it is used."""
    for message in EVERY:
        values = msgspec.msgpack.decode(encode_control(message))
        for i in (i for i, value in enumerate(values) if type(value) is int):
            for number in (-1, TOO_LARGE, 1 << 63):
                wire = msgspec.msgpack.encode([*values[:i], number, *values[i + 1 :]])
                with pytest.raises(RemoteProtocolError):
                    assert not decode_control(wire), f"field {i} of {message}: {number}"


@pytest.mark.parametrize(
    "message",
    [Resume(1 << 32, 0), Resume(0, 0, 1 << 16), Credit(0, 1 << 16, 0), OpenStream(1 << 32, b"s" * 16, "")],
    ids=repr,
)
def test_channels_have_32_bits_and_epochs_16(message: Control) -> None:
    with pytest.raises(RemoteProtocolError, match="<="):
        decode_control(encode_control(message))


@pytest.mark.parametrize(
    "message",
    [
        Hello((1,), "worker", "", "r" * 201, "", b"p" * 16),
        Hello((1,), "worker", "", "", "n" * 1_001, b"p" * 16),
        Hello((1,), "worker", "t" * 4_097, "", "", b"p" * 16),
        OpenStream(0, b"s" * 16, "n" * 1_001),
        OpenStream(0, b"s" * 16, "", bytes(MAX_SIGNATURE_BYTES + 1)),
        Ack(0, 1, ((0, "r" * 501),)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_texts_have_bounds(message: Control) -> None:
    with pytest.raises(RemoteProtocolError, match="length <="):
        decode_control(encode_control(message))


def test_relayed_forms_of_the_longest_messages_fit_a_frame() -> None:
    """The relay sends `StreamOpened` for `OpenStream`, and names of runs in a `Halt`: never more than a frame."""
    longest = OpenStream(0xFFFF_FFFF, b"s" * 16, "\U0001f916" * 200, bytes(MAX_SIGNATURE_BYTES))
    decode_control(encode_control(longest))
    assert (
        len(control_frame(StreamOpened(0xFFFF_FFFF, b"s" * 16, longest.name, longest.signature))) <= MAX_PAYLOAD_BYTES
    )
    assert len(control_frame(Halt(0xFFFF_FFFF, 2 * repr("\U000e0001" * 200)))) <= MAX_PAYLOAD_BYTES


def test_no_repr_shows_secrets() -> None:
    assert "secret" not in repr(Hello((1,), "worker", "secret", "run", "name", b"p" * 16))


@pytest.mark.parametrize(
    "body",
    [
        Directive(1, Evaluation(1, (-1,))),
        Directive(1, Evaluation(-1, (1,))),
        Collect(1, (1, 1), steps=-1),
        Collect(1, (1, 1), episodes=1 << 63),
        Collect(1, (1, 1), steps=1, seed=-1),
    ],
)
def test_a_trainer_cannot_request_seeds_that_environments_refuse(body: Directive | Collect) -> None:
    with pytest.raises(RemoteProtocolError, match="could not be decoded"):
        decode_body(encode_body(body), type(body))
