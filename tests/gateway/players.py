"""An agent for tests of the gateway: it records everything and answers counted actions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from tmrl_core.errors import NetworkError, TmrlError
from tmrl_core.gateway.messages import StepMessage


def step_message(
    obs: Any = (0.0, 0.0),
    reward: float = 0.0,
    terminated: bool = False,
    truncated: bool = False,
    number: int | None = None,
    info: dict[str, Any] | None = None,
    session_key: str = "S",
) -> StepMessage:
    """A message in MessagePack."""
    encoded = [msgspec.Raw(msgspec.msgpack.encode(value)) for value in (obs, info)]
    return StepMessage(session_key, encoded[0], reward, terminated, truncated, encoded[1], number, "msgpack")


BOX = spaces.Box(-100, 100, (2,), np.float32)


class RecordingPlayer:
    """Check the order of calls and record transitions.

    Attributes:
        transitions: (obs, action, next obs, reward, terminated, truncated) of all episodes.
        fails: error of the next call.
        gate: calls wait until it is set.
        saves: `close` waits until it is set.
        waiting: number of calls that wait.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self._space = space
        self._last: tuple[Any, Any] | None = None
        self._count = 0
        self.transitions: list[tuple[Any, ...]] = []
        self.infos: list[dict[str, Any]] = []
        self.begun = 0
        self.waiting = 0
        self.closed = False
        self.fails: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.saves = asyncio.Event()
        self.saves.set()

    async def begin(self, obs: Any, info: dict[str, Any]) -> Any:
        await self._called(obs)
        assert self._last is None
        self.begun += 1
        return self._act(obs)

    async def step(self, obs: Any, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        await self._called(obs)
        assert self._last is not None
        self.transitions.append((*self._last, obs, reward, terminated, truncated))
        self.infos.append(info)
        self._last = None
        return None if terminated or truncated else self._act(obs)

    async def close(self) -> None:
        assert not self.closed
        await self.saves.wait()
        self.closed = True
        self.gate.set()

    async def _called(self, obs: Any) -> None:
        assert self._space.contains(obs)
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if self.closed:
            raise NetworkError("the learner has stopped")
        error, self.fails = self.fails, None
        if error is not None:
            raise error

    def _act(self, obs: Any) -> Any:
        self._count += 1
        self._last = (obs, self._count)
        return np.int64(self._count)


class RecordingAgent:
    """Agent of recording players."""

    mode = "central"
    action_space = spaces.Discrete(2**31)
    saves_folder: Path | None = None

    def __init__(self, name: str = "default", observation_space: gymnasium.Space[Any] = BOX) -> None:
        self.name = name
        self.observation_space = observation_space
        self.players: dict[str, RecordingPlayer] = {}
        self.full = False

    async def start(self) -> None:
        pass

    def open(self, session_id: str, key_id: str = "") -> RecordingPlayer:
        if self.full:
            raise TmrlError("no learner is free")
        player = self.players[session_id] = RecordingPlayer(self.observation_space)
        return player

    async def close(self) -> None:
        pass
