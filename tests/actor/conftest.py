"""A link in memory that does what a test's script says, and a small environment that counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor.module import ActorModule
from tmrl_core.errors import LinkClosedError, WeightsError
from tmrl_core.networking.protocol.messages import Blob, Directive, PolicyUpdate, Progress
from tmrl_core.samples import Chunk, EpisodeRecord


class Counts(NamedTuple):
    samples_refused: int = 0
    samples_dropped: int = 0
    queued_samples: int = 0


class ScriptedLink:
    """Keeps what is sent; `on_wait` is called instead of waiting and may publish, finish and so on."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.records: list[EpisodeRecord] = []
        self.sends: list[int] = []
        self.expert = False
        self.waits = 0
        self.on_wait: Callable[[ScriptedLink], None] = lambda link: None
        self.on_send: Callable[[ScriptedLink], None] = lambda link: None
        self.versions_published = 0
        self.directive = Directive()
        self.progress = Progress()
        self.counts = Counts()
        self.closed = False
        self.failure: Exception | None = None
        self.policy: PolicyUpdate | None = None
        self.waits_for = ""
        self.place = 0
        self.said: list[str] = []

    @property
    def finished(self) -> bool:
        return self.directive.finish

    def publish(self, value: float = 0.0, incarnation: int = 1, data: bytes | None = None) -> None:
        self.versions_published += 1
        blob = Blob("file", str(value).encode() if data is None else data)
        self.policy = PolicyUpdate((incarnation, self.versions_published), {"policy": blob})

    def send(self, chunks: list[Chunk], records: list[EpisodeRecord], timeout_s: float | None = None) -> None:
        if self.closed:
            raise LinkClosedError("closed")
        self.chunks += chunks
        self.records += records
        self.sends.append(sum(chunk.rows for chunk in chunks))
        self.on_send(self)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def take_policy(self) -> PolicyUpdate | None:
        policy, self.policy = self.policy, None
        return policy

    def wait_change(self, timeout_s: float) -> bool:
        self.waits += 1
        if self.waits > 1000:
            raise AssertionError("the worker waits for ever")
        self.on_wait(self)
        return True

    def wake(self) -> None:
        """Do nothing, because `wait_change` does not wait."""

    def say_waits(self, text: str) -> None:
        if text != self.waits_for:
            self.waits_for = text
            self.said.append(text)

    def close_soon(self) -> None:
        """Do nothing, because the workers of a test share this link."""

    def close(self, drain: bool = True) -> tuple[int, int, int]:
        self.closed = True
        return len(self), 0, 0

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def samples(self) -> list[tuple[Any, ...]]:
        return [chunk.sample(row) for chunk in self.chunks for row in range(chunk.rows)]


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes (episode, step, last action); the reward is the step's number. Fails as `script` says.

    `script` maps (episode, step) to what happens there: an exception to raise, or an observation to return.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length: int = 5, end: str = "truncated", script: dict[tuple[int, int], Any] | None = None):
        self.length = length
        self.end = end
        self.script = script if script is not None else {}
        self.episode = -1
        self.steps = 0
        self.seeds: list[int | None] = []
        self.actions: list[float] = []
        self.thread: int | None = None
        self.on_step: Callable[[], None] = lambda: None
        self.is_closed = False

    def _obs(self, action: float) -> Any:
        scripted = self.script.get((self.episode, self.steps))
        if isinstance(scripted, BaseException):
            raise scripted
        if scripted is not None:
            return scripted
        return np.array([self.episode, self.steps, action], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode += 1
        self.steps = 0
        self.seeds.append(seed)
        return self._obs(0.0), {"fresh": self.episode}

    def step(self, action: Any) -> Any:
        self.thread = threading.get_ident()
        self.steps += 1
        self.actions.append(float(action[0]))
        self.on_step()
        obs = self._obs(float(action[0]))
        done = self.steps >= self.length
        flags = (done and self.end == "terminated", done and self.end == "truncated")
        return obs, float(self.steps), *flags, {}

    def close(self) -> None:
        self.is_closed = True


class ConstantActor(ActorModule):
    """Acts with its weight; half of it when tested."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.value = 0.25
        self.seen: list[Any] = []

    def act(self, obs: Any, test: bool = False) -> Any:
        self.seen.append(obs)
        return np.full(1, self.value / 2 if test else self.value, np.float32)

    def save(self, path: Any) -> None:
        with open(path, "w") as file:
            file.write(str(self.value))

    def load(self, path: Any, device: Any) -> ActorModule:
        with open(path) as file:
            text = file.read()
        try:
            self.value = float(text)
        except ValueError as exc:
            raise WeightsError(f"{text!r} is no number") from exc
        return self


@pytest.fixture
def link() -> ScriptedLink:
    return ScriptedLink()


@pytest.fixture
def counting_env() -> type[CountingEnv]:
    return CountingEnv


@pytest.fixture
def constant_actor() -> type[ConstantActor]:
    return ConstantActor
