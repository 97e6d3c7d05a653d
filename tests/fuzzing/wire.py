"""Frames and messages: what anybody may send, before anything is known of him."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.fuzzing.mutation import MOST_BYTES, Mutator
from tests.fuzzing.target import Target
from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol import messages
from tmrl_core.networking.protocol.framing import (
    FIRST,
    HEADER,
    LAST,
    MAX_FRAME_BYTES,
    MAX_PAYLOAD_BYTES,
    PING_FRAME,
    FrameReader,
    Kind,
)
from tmrl_core.networking.protocol.messages import (
    SAMPLES_HEAD,
    Blob,
    Directive,
    Evaluation,
    PolicyUpdate,
    Progress,
    decode_body,
    decode_control,
    encode_body,
    encode_control,
    versions_of,
)

ID = b"0123456789abcdef"


def example(kind: type[Any]) -> Any:
    """A message of that kind, with something in each field."""
    values: list[Any] = []
    for field in msgspec.structs.fields(kind):
        text = str(field.type)
        name = field.name
        if name in ("stream", "peer"):
            values.append(ID)
        elif name == "versions":
            values.append((1,))
        elif name in ("version", "have") and "tuple" in text:
            values.append((1, 3))
        elif name == "role":
            values.append("worker")
        elif name == "refused":
            values.append(((1, "shape"),))
        elif text == "<class 'bool'>":
            values.append(True)
        elif text == "<class 'float'>":
            values.append(3.0)
        elif "bytes" in text:
            values.append(b"body")
        elif "str" in text:
            values.append("text")
        else:
            values.append(1)
    return kind(*values)


CONTROLS = [example(kind) for kind in messages.Control.__subclasses__()]
BODIES: list[Any] = [
    PolicyUpdate((1, 2), {"actor": Blob("safetensors", b"weights" * 5)}, {"epsilon": 0.1}),
    Directive(3, Evaluation(1, (1000, 1001), (1, 2)), True, False, b"collect"),
    Progress(1000, 200, 50, "40 samples"),
]
BODY_KINDS = [type(body) for body in BODIES]


def header(mutator: Mutator, length: int) -> bytes:
    """A frame's header, perhaps a wrong one."""
    if mutator.chance(6):
        length = mutator.extreme() & 0xFFFF_FFFF
    kind = mutator.below(4) if mutator.random() < 0.9 else mutator.below(256)
    return HEADER.pack(length, kind, mutator.below(4), mutator.extreme() & 0xFFFF, mutator.extreme() & 0xFFFF_FFFF)


class Frames(Target):
    """Bytes as frames."""

    name = "frames"
    allowed = (RemoteProtocolError,)

    def __init__(self) -> None:
        payloads = [encode_control(message) for message in CONTROLS]
        self._frames = [HEADER.pack(len(p), Kind.CONTROL, 0, 0, 0) + p for p in payloads]
        head = SAMPLES_HEAD.pack(3, 1, 100, 10, 40) + bytes(40)
        self._frames.append(HEADER.pack(len(head), Kind.DATA, FIRST | LAST, 1, 1) + head)
        self._frames.append(HEADER.pack(20_000, Kind.DATA, FIRST, 1, 1) + bytes(20_000))
        self._frames.append(PING_FRAME)

    def make(self, mutator: Mutator) -> bytes:
        seed = mutator.bytes(4)
        if mutator.chance(20):
            return seed + mutator.bytes(mutator.below(200))
        parts = []
        for _ in range(1 + mutator.below(3)):
            if mutator.chance(3):
                length = mutator.below(1 << mutator.below(14))
                parts.append(header(mutator, length) + bytes(length))
            else:
                parts.append(mutator.pick(self._frames))
        whole = b"".join(parts)
        return seed + (mutator.mutate(whole) if mutator.random() < 0.8 else whole[:MOST_BYTES])

    def run(self, case: bytes) -> None:
        reader = FrameReader()
        sizes = case[:4] or b"\xff"
        data = memoryview(case)[4:]
        at = count = 0
        got = 0
        while at < len(data):
            view = reader.get_buffer()
            assert 0 < len(view) <= MAX_FRAME_BYTES
            # Pieces of all sizes, from single bytes to all that fits, as the case itself says.
            size = sizes[count & 3] if count < len(sizes) else 0
            n = min(len(view), len(data) - at, size * size or 1 << 16)
            view[:n] = data[at : at + n]
            at += n
            count += 1
            for frame in reader.received(n):
                assert len(frame.payload) <= MAX_PAYLOAD_BYTES
                assert HEADER.unpack_from(frame.buffer)[0] == len(frame.payload)
                assert frame.buffer == data[got : got + len(frame.buffer)]
                got += len(frame.buffer)
        assert reader.empty == (got == len(data))

    def limit_bytes(self, case: bytes) -> int:
        return 4 * len(case) + 4 * MAX_FRAME_BYTES


class Messages(Target):
    """The payload of a control frame, and application envelopes."""

    name = "messages"
    allowed = (RemoteProtocolError,)

    def __init__(self) -> None:
        self._controls = [encode_control(message) for message in CONTROLS]
        self._control_values = [msgspec.msgpack.decode(data) for data in self._controls]
        self._bodies = [encode_body(body) for body in BODIES]
        self._body_values = [msgspec.msgpack.decode(data) for data in self._bodies]

    def make(self, mutator: Mutator) -> bytes:
        which = mutator.below(4) if mutator.chance(4) else 0
        valid, values = (self._bodies, self._body_values) if which else (self._controls, self._control_values)
        at = which - 1 if which else mutator.below(len(valid))
        kind = mutator.random()
        if kind < 0.05:
            data = mutator.bytes(mutator.below(100))
        elif kind < 0.5:
            data = mutator.mutate(valid[at], valid)
        elif kind < 0.97:
            changed: Any = values[at]
            if isinstance(changed, list):
                changed = list(changed)
                changed[mutator.below(len(changed))] = mutator.value()
                if mutator.chance(8):
                    changed = mutator.items(changed)
            else:
                changed = dict(changed)
                changed[mutator.pick(list(changed))] = mutator.value()
            try:
                data = msgspec.msgpack.encode(changed)
            except (OverflowError, msgspec.MsgspecError):  # numbers beyond 64 bits do not exist there
                data = valid[at]
        else:
            # Many small values, or deeply nested ones: what costs most memory a byte.
            filler = mutator.pick((b"\x90", b"\x91", b"\x80", b"\xa0", b"\xc0", b"\x92\x01\xa0", b"\x81\xa1a", b"\xcc"))
            start = valid[at][: mutator.below(len(valid[at]) + 1)]
            data = (
                start + mutator.pick((b"", b"\xdd\x00\x00\xff\xff", b"\xdc\x40\x00")) + filler * (16_000 // len(filler))
            )
        return bytes([which]) + data

    def run(self, case: bytes) -> None:
        which, data = case[0] & 3 if case else 0, case[1:]
        if which:
            kind = BODY_KINDS[which - 1]
            body = decode_body(data, kind)
            assert type(body) is kind
            assert repr(decode_body(encode_body(body), kind)) == repr(body)
            return
        versions_of(data)
        message = decode_control(data)
        encoded = encode_control(message)
        assert encode_control(decode_control(encoded)) == encoded

    def limit_bytes(self, case: bytes) -> int:
        # MessagePack's shortest values become objects of some 80 bytes; the error's text holds none of them.
        return 200 * len(case) + (1 << 18)
