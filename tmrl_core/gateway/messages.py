"""Messages of clients, from JSON or MessagePack. Sans-I/O."""

# Theory of operation
#
# Every field is checked while it is decoded, into structures without Python objects for unknown content. The
# observation and the info stay encoded until their session is known: passing over them takes 2 to 14 ms per megabyte,
# decoding up to 400 ms, and a stranger must not be able to cause that. The observation is then decoded as the type of
# its space (`envs.json_spaces`), which ends at the first value of another type.
#
# The info is any JSON object, so its size, its number of values and its depth are limited. Each value costs 1 to 4 us
# until its sample is sent, and thousands of lists occupy the garbage collector. The values are counted level by level
# on encoded parts (`_has_few_values`) before any is made: of {"a": [1, 2], "b": 3}, the levels have 2 and 2 values, 4
# in all.
#
# A message says its end in one of two ways, since clients of several libraries exist: `done`, which an info
# `TimeLimit.truncated` makes a truncation, as the old Gym did; or `terminated` and `truncated`. If both are given they
# must agree.
#
# Unknown fields are refused: one may be a misspelt `truncated`, and learning would go wrong silently.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tmrl_core.envs.json_spaces import DECODERS, Encoding
from tmrl_core.errors import TmrlError

if TYPE_CHECKING:
    Value = Any
else:
    _scalar = None | bool | int | float | str
    Value = _scalar
    for _ in range(8):  # levels; the type grows with 2 to the power of them
        Value = _scalar | list[Value] | dict[str, Value]

Flag = bool | float | None
Decoded = TypeVar("Decoded")

MAX_INFO_BYTES = 16_384
"""Maximum size of an encoded info that is decoded."""
MAX_INFO_VALUES = 100
"""Maximum number of values in an info that is decoded. Each takes 1 to 4 us until its sample is sent."""


class RequestError(TmrlError):
    """A refused request. The text is for its client.

    Args:
        status: of HTTP.
        text: what was found, what is allowed, what to do next.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class StepMessage(msgspec.Struct, frozen=True, gc=False):
    """The first observation of an episode, or the result of an action.

    Attributes:
        session_key: of the client's session.
        obs: the encoded observation.
        reward: finite.
        terminated: the episode has ended.
        truncated: the episode was cut.
        info: further values of the environment, encoded; None: there are none.
        number: the client's count of its messages; None: it does not count.
        encoding: of the observation and the info.
    """

    session_key: str
    obs: Raw
    reward: float
    terminated: bool
    truncated: bool
    info: Raw | None
    number: int | None
    encoding: Encoding

    def __repr__(self) -> str:
        return f"StepMessage(number={self.number}, ...)"

    def read_info(self) -> dict[str, Any] | None:
        """Return the decoded info; None if it has more than `MAX_INFO_BYTES` or `MAX_INFO_VALUES`.

        Raises:
            RequestError: it is no object, or nested too deeply.
        """
        if self.info is None or self.info == _EMPTY:
            return {}
        size = memoryview(self.info).nbytes
        if size > MAX_INFO_BYTES or (size > MAX_INFO_VALUES and not self._has_few_values(self.info)):
            return None
        return _decoded(_INFOS[self.encoding].decode, self.info, "info") or {}

    def _has_few_values(self, info: Raw) -> bool:
        """Count values without making them: thousands of lists occupy the garbage collector, too."""
        containers = _CONTAINERS[self.encoding]
        left, waiting = MAX_INFO_VALUES, [info]
        while waiting:
            kind = containers.get(memoryview(encoded := waiting.pop())[0])
            if kind is not None:
                values = _decoded(kind.decode, encoded, "info")
                left -= len(values)
                if left < 0:
                    return False
                waiting += values.values() if isinstance(values, dict) else values
        return True


class EndMessage(msgspec.Struct, frozen=True, gc=False):
    """The end of a session.

    Attributes:
        session_key: of the session; None: the client does not say.
    """

    session_key: str | None

    def __repr__(self) -> str:
        return "EndMessage(...)"


def answer_to(message: StepMessage | EndMessage, action: Any) -> dict[str, Any]:
    """Return the answer to a message, with a note if it should end a session and names none."""
    if isinstance(message, EndMessage) and not message.session_key:
        return {"action": action, "note": "no session was ended: give the session_key that the login answered"}
    return {"action": action}


class Fields(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The fields of a message as a client sent them. Unknown fields are refused: one may be a misspelt `truncated`."""

    encoding: ClassVar[Encoding]
    _null: ClassVar[Raw]

    apikey: str | None = None
    session_key: str | None = None
    obs: Raw | UnsetType = UNSET
    reward: float | None = None
    done: Flag = None
    terminated: Flag = None
    truncated: Flag = None
    info: Raw | UnsetType = UNSET
    step: int | float | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step={self.step}, ...)"

    @property
    def is_end(self) -> bool:
        """True: the message ends its session."""
        return self.obs == self._null

    @property
    def is_login(self) -> bool:
        """True: the message contains an API key."""
        return self.apikey is not None

    def login(self) -> str:
        """Return the API key.

        Raises:
            RequestError: there is none.
        """
        if self.apikey is None:
            raise RequestError(400, 'apikey is missing: log in with {"apikey": KEY}')
        return self.apikey

    def message(self, session_key: str | None = None) -> StepMessage | EndMessage:
        """Return the message to an environment's session.

        Args:
            session_key: of a message that contains none.

        Raises:
            RequestError: a required field is missing or contradicts another one.
        """
        key = self.session_key or session_key
        obs = self.obs
        if obs is UNSET:
            raise RequestError(400, "obs is missing: the observation is required (null ends the session)")
        if obs == self._null:
            return EndMessage(key)
        if not key:
            raise RequestError(400, "session_key is missing: give the one that the login answered")
        reward = self.reward
        if reward is None:
            raise RequestError(400, "reward is missing: a number is required, 0.0 with the first observation")
        if not math.isfinite(reward):
            raise RequestError(400, f"reward is {reward}: a finite number is required")
        info, terminated = None if self.info is UNSET else self.info, self.done
        if terminated is False and self.terminated is None and self.truncated is None:
            truncated = False  # most messages
        else:
            terminated, truncated = self._flags(info)
        number = self.step
        if isinstance(number, float):  # 2.0 is an integer of JSON
            if not number.is_integer():
                raise RequestError(400, f"step is {number}: a whole number is required")
            number = int(number)
        return StepMessage(key, obs, reward, terminated, truncated, info, number, self.encoding)

    def _flags(self, info: Raw | None) -> tuple[bool, bool]:
        done, terminated, truncated = (
            self._flag("done", self.done),
            self._flag("terminated", self.terminated),
            self._flag("truncated", self.truncated),
        )
        if done is None:
            if terminated is None and truncated is None:
                raise RequestError(400, "done is missing: true or false is required, or terminated and truncated")
            return bool(terminated), bool(truncated)
        if truncated is None:
            truncated = done and not terminated and info is not None and self._is_truncated(info)
        if terminated is None:
            terminated = done and not truncated
        if done != (terminated or truncated):
            raise RequestError(400, f"done is {done}, but terminated is {terminated} and truncated is {truncated}")
        return terminated, truncated

    def _is_truncated(self, info: Raw) -> bool:
        mark = _decoded(_MARKS[self.encoding].decode, info, "info")
        return (
            mark is not None
            and memoryview(mark.truncated).nbytes < 10
            and _SMALL[self.encoding].decode(mark.truncated) in (True, 1)
        )

    @staticmethod
    def _flag(name: str, value: Flag) -> bool | None:
        if value is None:
            return None
        if value not in (0, 1):
            raise RequestError(400, f"{name} is {value}: true or false is required")
        return bool(value)


class _JsonFields(Fields, frozen=True, gc=False):
    encoding = "json"
    _null = Raw(b"null")


class _MsgpackFields(Fields, frozen=True, gc=False):
    encoding = "msgpack"
    _null = Raw(b"\xc0")


class _Mark(msgspec.Struct, frozen=True, gc=False):
    """The entry of an info that makes a `done` a truncation."""

    truncated: Raw = msgspec.field(default=Raw(b"0"), name="TimeLimit.truncated")


_json = msgspec.json.Decoder(_JsonFields)
_msgpack = msgspec.msgpack.Decoder(_MsgpackFields)
_INFOS = {encoding: DECODERS[encoding](dict[str, Value] | None) for encoding in DECODERS}
_MARKS = {encoding: DECODERS[encoding](_Mark | None) for encoding in DECODERS}
_EMPTY = Raw(b"{}")
_LISTS = {encoding: DECODERS[encoding](list[Raw]) for encoding in DECODERS}
_MAPS = {encoding: DECODERS[encoding](dict[str, Raw]) for encoding in DECODERS}
_CONTAINERS: dict[Encoding, dict[int, Any]] = {
    "json": {ord("["): _LISTS["json"], ord("{"): _MAPS["json"]},
    "msgpack": dict.fromkeys((*range(0x90, 0xA0), 0xDC, 0xDD), _LISTS["msgpack"])
    | dict.fromkeys((*range(0x80, 0x90), 0xDE, 0xDF), _MAPS["msgpack"]),
}
"""Decoders of containers by the first byte of a value."""
_SMALL = {encoding: DECODERS[encoding]() for encoding in DECODERS}


def fields_from_json(text: bytes | str) -> Fields:
    """Return the fields of a message in JSON.

    Raises:
        RequestError: the text is no JSON object, or a field has a wrong type.
    """
    if text[:1] in (b"\xef", "\ufeff"):  # a byte order mark, which some libraries of Windows write
        text = text.removeprefix("\ufeff") if isinstance(text, str) else text.removeprefix(b"\xef\xbb\xbf")
    return _decoded(_json.decode, text, "message", "JSON (without NaN and Infinity)")


def fields_from_msgpack(data: bytes) -> Fields:
    """Return the fields of a message in MessagePack.

    Raises:
        RequestError: the data are no map of MessagePack, or a field has a wrong type.
    """
    return _decoded(_msgpack.decode, data, "message", "MessagePack")


def _decoded(decode: Callable[[Any], Decoded], data: Any, name: str, form: str = "JSON or MessagePack") -> Decoded:
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        problem = problem[:150]  # it may quote a name of any length
        if "unknown field" in problem:
            problem += f"; the fields are {', '.join(Fields.__struct_fields__)}"
        raise RequestError(400, f"{path.strip('.`') or name}: {problem[:1].lower()}{problem[1:]}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the {name} is not valid {form}: {error}"[:300]) from error
