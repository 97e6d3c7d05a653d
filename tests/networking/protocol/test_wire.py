"""Each side's messages, byte for byte: what is sent changes with the number of its version only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.networking.protocol import conversations
from tests.networking.protocol.conversations import CONVERSATIONS, Recording, Talk
from tmrl_core.networking.protocol.framing import FIRST, HEADER, HEADER_BYTES, LAST, Kind
from tmrl_core.networking.protocol.messages import (
    AUTHENTICATED,
    POLICY_HEAD,
    PROOF_ENDS,
    PROTOCOL_VERSION,
    Announce,
    Collect,
    Control,
    Direct,
    Directive,
    OpenStream,
    PolicyUpdate,
    Progress,
    Report,
    decode_body,
    decode_control,
    encode_control,
)
from tmrl_core.networking.protocol.packed_policy import is_packed


@pytest.fixture
def recording() -> Recording:
    found = conversations.recorded()
    assert found.version == PROTOCOL_VERSION, f"version {found.version} is recorded: run `{conversations.COMMAND}`"
    return found


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    with conversations.repeatable():
        yield


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_all_sides_together_send_the_recorded_bytes(name: str, recording: Recording) -> None:
    talk = Talk(recording.certificates, recording.conversations[name])
    CONVERSATIONS[name](talk)
    talk.finish()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_clients_understand_a_recorded_server(name: str, recording: Recording) -> None:
    talk = Talk(recording.certificates, recording.conversations[name], server=False)
    CONVERSATIONS[name](talk)
    talk.finish()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_server_understands_recorded_clients(name: str, recording: Recording) -> None:
    conversations.play_server(recording.conversations[name])


def sent(recording: Recording) -> Iterator[Any]:
    """Yield all control messages of the recording, and what the trainer's messages to workers contain, if readable."""
    for events in recording.conversations.values():
        directions: dict[str, list[str]] = {}
        for name, *rest in events:
            if name[-1] in "<>":
                directions.setdefault(name, []).append(rest[0])
        for parts in directions.values():
            for kind, flags, payload in frames(bytes.fromhex("".join(parts))):
                if kind == Kind.CONTROL:
                    message = decode_control(payload)
                    assert encode_control(message) == payload, message
                    yield message
                    yield from contents(message)
                elif kind == Kind.WEIGHTS and flags == FIRST | LAST:
                    body = payload[POLICY_HEAD.size :]
                    if not is_packed(body):
                        yield from readable(body, PolicyUpdate)


def frames(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield kind, flags and payload of each frame. The last one may be incomplete, if the link was lost."""
    while len(data) >= HEADER_BYTES:
        length, kind, flags, _, _ = HEADER.unpack_from(data)
        payload, data = data[HEADER_BYTES : HEADER_BYTES + length], data[HEADER_BYTES + length :]
        if len(payload) == length:
            yield kind, flags, payload


def contents(message: Control) -> Iterator[Any]:
    if isinstance(message, Report):
        yield from readable(message.body, Progress)
    elif isinstance(message, Direct):
        for directive in readable(message.body, Directive):
            yield directive
            if directive.collect is not None:
                yield decode_body(directive.collect, Collect)


def readable(body: bytes, kind: type[Any]) -> Iterator[Any]:
    if PROOF_ENDS not in body and body != b"no report":
        yield decode_body(body, kind)


def test_every_message_and_every_field_occurs(recording: Recording) -> None:
    """A field that always has its default value could change unnoticed."""
    messages = list(sent(recording))
    kinds: list[type[Any]] = [*Control.__subclasses__(), PolicyUpdate, Directive, Collect, Progress]
    assert {type(message) for message in messages} == set(kinds)
    same = {
        f"{kind.__name__}.{field.name}"
        for kind in kinds
        for field in msgspec.structs.fields(kind)
        if not field.required
        and all(getattr(one, field.name) == default(field) for one in messages if type(one) is kind)
    }
    assert same == set()


def default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def test_proofs_occur(recording: Recording) -> None:
    messages = list(sent(recording))
    assert any(isinstance(one, Announce) and one.body.startswith(AUTHENTICATED) for one in messages)
    assert any(isinstance(one, OpenStream) and one.signature.startswith(AUTHENTICATED) for one in messages)
    for kind in (Direct, Report):
        assert any(isinstance(one, kind) and one.body.endswith(PROOF_ENDS) for one in messages)


def test_a_byte_that_differs_is_noticed_with_what_to_do(recording: Recording) -> None:
    changed = [list(event) for event in recording.conversations["hand_over"]]
    at = max(at for at, event in enumerate(changed) if event[0].endswith("<"))
    changed[at][1] = changed[at][1][:-1] + "0"
    todo = "in the recording [^:]*: raise PROTOCOL_VERSION and record anew with"
    with pytest.raises(AssertionError, match=todo):
        CONVERSATIONS["hand_over"](Talk(recording.certificates, changed))
    with pytest.raises(AssertionError, match=todo):
        conversations.play_server(changed)


def test_other_bytes_of_a_recorded_version_are_not_recorded(recording: Recording) -> None:
    changed = {**recording.conversations, "looks": recording.conversations["hand_over"]}
    with pytest.raises(SystemExit, match=r"version \d+ is recorded with other bytes \(looks\): raise PROTOCOL_VERSION"):
        conversations.refuse_changes(recording, recording._replace(conversations=changed))
    with pytest.raises(SystemExit, match="looks"):
        conversations.refuse_changes(recording, recording._replace(conversations={}))
    conversations.refuse_changes(recording, Recording(PROTOCOL_VERSION + 1, recording.certificates, changed))
    more = {**recording.conversations, "another": recording.conversations["hand_over"]}
    conversations.refuse_changes(recording, recording._replace(conversations=more))
