"""Messages of clients, from JSON or MessagePack. Sans-I/O.

Every field is checked while it is decoded. Nested values (`obs`, `info`) have a limited depth and strings as keys, so
that decoding takes time in proportion to a message's length, whatever a client sends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from tmrl_core.errors import TmrlError

if TYPE_CHECKING:
    Value = Any
else:
    _scalar = None | bool | int | float | str
    Value = _scalar
    for _ in range(8):  # levels; the type grows with 2 to the power of them
        Value = _scalar | list[Value] | dict[str, Value]

Flag = bool | float | None


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
        obs: the observation as a JSON value.
        reward: finite.
        terminated: the episode has ended.
        truncated: the episode was cut.
        info: further values of the environment.
        number: the client's count of its messages; None: it does not count.
    """

    session_key: str
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    number: int | None


class EndMessage(msgspec.Struct, frozen=True, gc=False):
    """The end of a session.

    Attributes:
        session_key: of the session; None: the client does not say.
    """

    session_key: str | None


class Fields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a message as a client sent them. Unknown fields are ignored."""

    apikey: str | None = None
    session_key: str | None = None
    obs: Value | UnsetType = UNSET
    reward: float | None = None
    done: Flag = None
    terminated: Flag = None
    truncated: Flag = None
    info: dict[str, Value] | None = None
    step: int | None = None

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
        if obs is None:
            return EndMessage(key)
        if obs is UNSET:
            raise RequestError(400, "obs is missing: the observation is required (null ends the session)")
        if not key:
            raise RequestError(400, "session_key is missing: give the one that the login answered")
        reward = self.reward
        if reward is None:
            raise RequestError(400, "reward is missing: a number is required, 0.0 with the first observation")
        if not math.isfinite(reward):
            raise RequestError(400, f"reward is {reward}: a finite number is required")
        info, terminated = self.info or {}, self.done
        if terminated is False and self.terminated is None and self.truncated is None:
            truncated = False  # most messages
        else:
            terminated, truncated = self._flags(info)
        return StepMessage(key, obs, reward, terminated, truncated, info, self.step)

    def _flags(self, info: dict[str, Any]) -> tuple[bool, bool]:
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
            truncated = done and not terminated and info.get("TimeLimit.truncated") in (True, 1)
        if terminated is None:
            terminated = done and not truncated
        if done != (terminated or truncated):
            raise RequestError(400, f"done is {done}, but terminated is {terminated} and truncated is {truncated}")
        return terminated, truncated

    @staticmethod
    def _flag(name: str, value: Flag) -> bool | None:
        if value is None:
            return None
        if value not in (0, 1):
            raise RequestError(400, f"{name} is {value}: true or false is required")
        return bool(value)


_json = msgspec.json.Decoder(Fields)
_msgpack = msgspec.msgpack.Decoder(Fields)


def fields_from_json(text: bytes | str) -> Fields:
    """Return the fields of a message in JSON.

    Raises:
        RequestError: the text is no JSON object, or a field has a wrong type.
    """
    return _decoded(_json.decode, text, "JSON (without NaN and Infinity)")


def fields_from_msgpack(data: bytes) -> Fields:
    """Return the fields of a message in MessagePack.

    Raises:
        RequestError: the data are no map of MessagePack, or a field has a wrong type.
    """
    return _decoded(_msgpack.decode, data, "MessagePack")


def _decoded(decode: Callable[[Any], Fields], data: bytes | str, form: str) -> Fields:
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise RequestError(400, f"{path.strip('.`') or 'message'}: {problem[:1].lower()}{problem[1:]}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the message is not valid {form}: {error}"[:300]) from error
