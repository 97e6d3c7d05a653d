"""ShepherdEnv-v0 with a thread that plays the client."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit

from tmrl_core.config import from_values
from tmrl_core.envs import ShepherdEnv
from tmrl_core.errors import ConfigError, LocalProtocolError, SessionClosedError
from tmrl_core.gateway.shepherd import Channel, Message
from tmrl_core.roles.training_object import training_from_config

WAIT_S = 60.0
BOX = [3, -10, 10]


class Client:
    """A thread that runs `play`, joined at the end of a test."""

    def __init__(self, channel: Channel, play: Callable[[Channel], None]) -> None:
        self.channel = channel
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(play,), daemon=True)
        self._thread.start()

    def _run(self, play: Callable[[Channel], None]) -> None:
        try:
            play(self.channel)
        except BaseException as exc:  # handed to the test's thread
            self.failure = exc

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    made.close()


def make(channel: Channel, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("ShepherdEnv-v0", observation_space=BOX, action_space=2, channel=channel, **kwargs)


def obs(value: float) -> np.ndarray:
    return np.full(3, value, np.float32)


def ask(channel: Channel, message: Message) -> Any:
    return channel.post(message).result(WAIT_S)


def test_steps_are_the_messages_of_the_client(channel: Channel) -> None:
    answers: list[Any] = []

    def play(channel: Channel) -> None:
        for episode in range(2):
            answers.append(ask(channel, Message(obs(0), opening=True, info={"episode": episode})))
            answers.append(ask(channel, Message(obs(1), reward=0.5, info={"left": 1})))
            answers.append(ask(channel, Message(obs(2), reward=1.5, terminated=True)))

    client = Client(channel, play)
    env = make(channel)
    for episode in range(2):
        first, info = env.reset()
        assert (first == 0).all()
        assert info == {"episode": episode}
        second, reward, terminated, truncated, info = env.step(1)
        assert (second == 1).all()
        assert (reward, terminated, truncated, info) == (0.5, False, False, {"left": 1})
        last, reward, terminated, truncated, _ = env.step(0)
        assert (last == 2).all()
        assert (reward, terminated, truncated) == (1.5, True, False)
    client.join()
    assert answers == [1, 0, None] * 2


def test_the_end_of_an_episode_is_answered_while_the_learner_is_busy(channel: Channel) -> None:
    first = channel.post(Message(obs(0), opening=True))
    env = make(channel)
    env.reset()
    channel.answer(1)  # the learner now updates
    assert first.result(WAIT_S) == 1
    assert channel.post(Message(obs(1), truncated=True)).result(0) is None
    opening = channel.post(Message(obs(5), opening=True))
    assert not opening.done()
    assert channel.receive().truncated
    assert channel.receive().opening


def test_the_pending_observation_is_the_reset_of_a_learner_that_truncates(channel: Channel) -> None:
    def play(channel: Channel) -> None:
        ask(channel, Message(obs(0), opening=True))
        for number in range(1, 7):
            ask(channel, Message(obs(number), reward=1.0))
        channel.close()

    client = Client(channel, play)
    env = TimeLimit(make(channel), 3)
    env.reset()
    for reset in (3, 6):
        truncated = False
        while not truncated:
            _, reward, terminated, truncated, _ = env.step(0)
            assert reward == 1.0
            assert not terminated
        again, _ = env.reset()
        assert (again == reset).all()
    with pytest.raises(SessionClosedError):
        env.step(0)
    client.join()


@pytest.mark.parametrize("waiting_in", ["reset", "step"])
def test_closing_ends_a_wait(channel: Channel, waiting_in: str) -> None:
    env = make(channel)
    if waiting_in == "step":
        channel.post(Message(obs(0), opening=True))
        env.reset()
    begun = threading.Event()

    def close(channel: Channel) -> None:
        begun.wait(WAIT_S)
        channel.close("the client has gone")

    client = Client(channel, close)
    begun.set()
    with pytest.raises(SessionClosedError, match="the client has gone"):
        env.reset() if waiting_in == "reset" else env.step(0)
    client.join()


def test_closing_ends_the_wait_of_the_client_and_keeps_its_messages(channel: Channel) -> None:
    channel.post(Message(obs(0), truncated=True))
    opening = channel.post(Message(obs(1), opening=True))
    channel.close()
    with pytest.raises(SessionClosedError):
        opening.result(WAIT_S)
    assert channel.receive().truncated
    assert channel.receive().opening
    for call in (channel.receive, lambda: channel.answer(0), lambda: channel.post(Message(obs(0)))):
        with pytest.raises(SessionClosedError):
            call()


def test_the_queue_is_bounded(channel: Channel) -> None:
    channel.post(Message(obs(0), truncated=True))
    channel.post(Message(obs(0), opening=True))
    with pytest.raises(LocalProtocolError, match="one message at a time"):
        channel.post(Message(obs(0)))
    channel.receive()
    with pytest.raises(LocalProtocolError, match="receive one first"):
        channel.answer(0)


def test_a_future_cannot_be_cancelled(channel: Channel) -> None:
    pending = channel.post(Message(obs(0), opening=True))
    channel.receive()
    assert not pending.cancel()
    channel.answer(1)
    assert pending.result(0) == 1


def test_steps_need_an_open_episode(channel: Channel) -> None:
    env = ShepherdEnv(BOX, 2, channel=channel)
    with pytest.raises(LocalProtocolError, match="call reset first"):
        env.step(0)


def test_gymnasiums_checker_accepts_it(channel: Channel) -> None:
    def play(channel: Channel) -> None:
        ask(channel, Message(obs(1), opening=True))
        with contextlib.suppress(SessionClosedError):
            while True:
                ask(channel, Message(obs(1), reward=1.0))

    client = Client(channel, play)
    check_env(ShepherdEnv(BOX, 2, channel=channel), skip_render_check=True)
    channel.close()
    client.join()


def test_spaces_are_json_spaces_or_those_of_an_id() -> None:
    as_json = ShepherdEnv(BOX, {"go": 2})
    assert as_json.observation_space == spaces.Box(-10, 10, (3,))
    assert as_json.action_space == spaces.Dict({"go": spaces.Discrete(2)})
    as_spaces = ShepherdEnv(spaces.Discrete(3), spaces.Discrete(2))
    assert as_spaces.observation_space == spaces.Discrete(3)
    by_id = ShepherdEnv(env_id="CartPole-v1")
    cartpole = gymnasium.make("CartPole-v1")
    assert (by_id.observation_space, by_id.action_space) == (cartpole.observation_space, cartpole.action_space)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({}, "spaces are missing"),
        ({"observation_space": 2}, "spaces are missing"),
        ({"observation_space": 2, "action_space": 2, "env_id": "CartPole-v1"}, "give either"),
        ({"env_id": "NoSuch-v0"}, "env_id: .*NoSuch"),
        ({"observation_space": [1], "action_space": 2}, "observation_space is"),
    ],
)
def test_wrong_spaces_are_refused(kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ShepherdEnv(**kwargs)


def test_a_trainer_takes_its_spaces_and_steps_are_refused() -> None:
    config = from_values(
        {
            "environment": {
                "cls": "tmrl_core.envs:ShepherdEnv",
                "kwargs": {"observation_space": BOX, "action_space": 2},
            },
            "actor": {"cls": "tmrl_core.actor:QValueMLPActor"},
            "agent": {"cls": "tmrl_core.training:DQNAgent"},
        }
    )
    training = training_from_config(config)()
    assert training.agent.action_space == spaces.Discrete(2)
    env = ShepherdEnv(BOX, 2)
    for call in (env.reset, lambda: env.step(0)):
        with pytest.raises(ConfigError, match="only offers its spaces"):
            call()
