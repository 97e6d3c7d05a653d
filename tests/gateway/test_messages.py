from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tmrl_core.gateway.messages import (
    MAX_INFO_BYTES,
    MAX_INFO_VALUES,
    EndMessage,
    RequestError,
    StepMessage,
    fields_from_json,
    fields_from_msgpack,
)

FIRST = {"obs": [1.0, 2.0], "reward": 0.0, "done": False, "info": {}, "session_key": "S"}


def step(**changes: Any) -> StepMessage:
    message = fields_from_json(json.dumps({**FIRST, **changes})).message()
    assert isinstance(message, StepMessage)
    return message


def without(*names: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**FIRST, **changes}.items() if key not in names}


def test_a_step_has_its_fields() -> None:
    assert (
        step(step=3) == step(step=3.0) == StepMessage("S", Raw(b"[1.0, 2.0]"), 0.0, False, False, Raw(b"{}"), 3, "json")
    )
    assert step(reward=2).reward == 2.0
    for message in (fields_from_json(json.dumps(without("info"))).message(), step(), step(info=None)):
        assert isinstance(message, StepMessage)
        assert message.read_info() == {}
    assert step(info={"a": [1, {"b": None}]}).read_info() == {"a": [1, {"b": None}]}


def test_messagepack_gives_the_same() -> None:
    message = fields_from_msgpack(msgspec.msgpack.encode({**FIRST, "info": {"a": 1}})).message()
    assert isinstance(message, StepMessage)
    assert msgspec.msgpack.decode(message.obs) == [1.0, 2.0]
    assert message.read_info() == {"a": 1}
    assert (message.session_key, message.reward, message.terminated, message.truncated) == ("S", 0.0, False, False)
    assert fields_from_msgpack(msgspec.msgpack.encode({**FIRST, "obs": None})).message() == EndMessage("S")
    assert fields_from_msgpack(msgspec.msgpack.encode({"apikey": "K"})).login() == "K"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"done": True}, (True, False)),
        ({"done": 1}, (True, False)),
        ({"done": 0}, (False, False)),
        ({"done": 1.0}, (True, False)),
        ({"done": True, "info": {"TimeLimit.truncated": True}}, (False, True)),
        ({"done": True, "info": {"TimeLimit.truncated": False}}, (True, False)),
        ({"done": False, "info": {"TimeLimit.truncated": True}}, (False, False)),
        ({"done": None, "terminated": False, "truncated": True}, (False, True)),
        ({"done": None, "terminated": 1, "truncated": 0}, (True, False)),
        ({"done": None, "terminated": True, "truncated": True}, (True, True)),
        ({"done": None, "truncated": True}, (False, True)),
        ({"done": True, "truncated": True}, (False, True)),
        ({"done": True, "truncated": False}, (True, False)),
        ({"done": True, "terminated": True, "info": {"TimeLimit.truncated": True}}, (True, False)),
        ({"done": True, "terminated": False, "truncated": True}, (False, True)),
    ],
)
def test_flags(flags: dict[str, Any], expected: tuple[bool, bool]) -> None:
    message = step(**flags)
    assert (message.terminated, message.truncated) == expected
    assert type(message.terminated) is bool
    assert type(message.truncated) is bool


@pytest.mark.parametrize("body", [{"obs": None}, {"obs": None, "reward": None, "done": None}])
def test_a_null_observation_ends_the_session(body: dict[str, Any]) -> None:
    assert fields_from_json(json.dumps(body)).message() == EndMessage(None)
    assert fields_from_json(json.dumps(body)).message("C") == EndMessage("C")
    assert fields_from_json(json.dumps({**body, "session_key": "S"})).message("C") == EndMessage("S")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(without("obs")), "obs is missing"),
        (json.dumps(without("reward")), "reward is missing"),
        (json.dumps(without(reward=None)), "reward is missing"),
        (json.dumps(without("done")), "done is missing"),
        (json.dumps(without("session_key")), "session_key is missing"),
        (json.dumps(without(session_key="")), "session_key is missing"),
        (json.dumps(without(reward="1")), "reward: expected .*got `str`"),
        (json.dumps(without(reward=True)), "reward: expected .*got `bool`"),
        (json.dumps(without(reward=[1.0])), "reward: expected .*got `array`"),
        (json.dumps(without(reward=10**400)), "out of range"),
        (json.dumps(without(reward=float("nan"))), "not valid JSON"),
        (json.dumps(without(obs=float("inf"))), "not valid JSON"),
        (json.dumps(without(done="false")), "done: expected"),
        (json.dumps(without(done=2)), "done is 2"),
        (json.dumps(without(done=False, terminated=True)), "done is False, but terminated is True"),
        (json.dumps(without(done=True, terminated=False, truncated=False)), "done is True, but"),
        (json.dumps(without(session_key=5)), "session_key: expected"),
        (json.dumps(without(step=1.5)), r"step is 1\.5: a whole number"),
        (json.dumps(without(step="1")), "step: expected"),
        (json.dumps(without(truncted=True)), "unknown field `truncted`; the fields are .* truncated"),
        (json.dumps({"x" * 100_000: 1}), "unknown field `xxx"),
        ("[]", "message: expected `object`"),
        ("null", "message: expected"),
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("{} {}", "not valid JSON"),
        ('{"obs":' + "[" * 100_000, "not valid JSON"),
        ('{"obs":' + '{"a":' * 100_000, "not valid JSON"),
        ('{"x":' + "[" * 100_000, "unknown field `x`"),
    ],
)
def test_a_bad_message_is_refused_with_its_field(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        fields_from_json(text.encode()).message()
    assert caught.value.status == 400
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81\xa3obs" + b"\x91" * 100_000,
        b"\x81\xa1x" + b"\x91" * 100_000,
        b"\x81\xa3obs\x81\x01\x02",  # keys that are no strings
        b"\x81\xa3obs\x81\x92\x01\x02\x02",
        b"\x81\xa3obs\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\x81\xa3obs\xd4\x05a",  # an extension
        b"\x81\xa3obs\xc4\x01a",  # bytes
        b"\x81\xa3obs\xa1\xff",  # invalid UTF-8
        msgspec.msgpack.encode({**FIRST, "reward": float("nan")}),
        msgspec.msgpack.encode({**FIRST, "reward": float("-inf")}),
        msgspec.msgpack.encode({**FIRST, "done": float("nan")}),
    ],
)
def test_bad_messagepack_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        fields_from_msgpack(data).message()
    assert caught.value.status == 400


@pytest.mark.parametrize("info", [[1], 5, {"a": [[[[[[[[[1]]]]]]]]]}])
def test_a_bad_info_is_refused_when_it_is_read(info: Any) -> None:
    for message in (
        fields_from_json(json.dumps({**FIRST, "info": info})).message(),
        fields_from_msgpack(msgspec.msgpack.encode({**FIRST, "info": info})).message(),
    ):
        assert isinstance(message, StepMessage)
        with pytest.raises(RequestError, match=r"info|a"):
            message.read_info()


def test_a_large_info_is_not_decoded_but_its_truncation_counts() -> None:
    large = {"large": "x" * MAX_INFO_BYTES}
    for more, truncated in (({}, False), ({"TimeLimit.truncated": True}, True), ({"TimeLimit.truncated": [1]}, False)):
        message = step(done=True, info={**large, **more})
        assert message.read_info() is None
        assert message.truncated is truncated
    packed = fields_from_msgpack(msgspec.msgpack.encode({**FIRST, "done": 1, "info": {"TimeLimit.truncated": 1.0}}))
    ended = packed.message()
    assert isinstance(ended, StepMessage)
    assert ended.truncated


@pytest.mark.parametrize("packed", [False, True])
def test_an_info_of_many_values_is_left_out(packed: bool) -> None:
    def read(info: Any) -> Any:
        if not packed:
            return step(info=info).read_info()
        message = fields_from_msgpack(msgspec.msgpack.encode({**FIRST, "info": info})).message()
        assert isinstance(message, StepMessage)
        return message.read_info()

    for few in ({"a": [1.5] * (MAX_INFO_VALUES - 1)}, {"text": "[{,}]" * 100}, {"n": {"b": [{"c": None}] * 32}}):
        assert read(few) == few
    for many in ({"a": [1.5] * MAX_INFO_VALUES}, {"a": [{"b": [0]}] * 40}, {str(key): 0 for key in range(101)}):
        assert read(many) is None


@pytest.mark.parametrize("data", [b"\x93\x01\x02", b"\x81\x05\x01", b"\x81\xa1a\xd6\xff\0\0\0\0", b"\x81\xa1a\xa1\xff"])
def test_an_info_of_messagepack_has_only_json_values(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        StepMessage("S", Raw(b"\x00"), 0.0, False, False, Raw(data), None, "msgpack").read_info()
    assert caught.value.status == 400


def test_a_login_has_a_key() -> None:
    assert fields_from_json('{"apikey": "K"}').login() == "K"
    assert fields_from_json('{"apikey": "K"}').is_login
    assert not fields_from_json(json.dumps(FIRST)).is_login
    for text in ("{}", '{"apikey": null}'):
        with pytest.raises(RequestError, match="apikey is missing"):
            fields_from_json(text).login()
    with pytest.raises(RequestError, match="unknown field `key`; the fields are apikey"):
        fields_from_json('{"key": "K"}')


def test_a_byte_order_mark_is_left_out() -> None:
    for text in ("\ufeff" + json.dumps(FIRST), ("\ufeff" + json.dumps(FIRST)).encode()):
        assert fields_from_json(text).message() == step()
    with pytest.raises(RequestError, match="not valid JSON"):
        fields_from_json(b"\xef\xbb{}")


@pytest.mark.parametrize("given", [FIRST, {"obs": None}])
def test_no_key_is_in_a_repr(given: dict[str, Any]) -> None:
    fields = fields_from_json(json.dumps({**given, "session_key": "secret", "apikey": "secret"}))
    assert "secret" not in f"{fields!r} {fields.message()!r}"
