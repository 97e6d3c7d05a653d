"""Agents whose sessions learn by themselves, with clients in the same event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch

from tests.gateway.advice.conftest import ALGORITHMS, EPISODE, Client, MakeAgent
from tmrl_core.errors import CheckpointError, SessionClosedError, TmrlError
from tmrl_core.gateway.advice.agent import AdviceAgent
from tmrl_core.gateway.advice.learner import Learner, OwnLearner
from tmrl_core.gateway.advice.saves import read_save
from tmrl_core.gateway.contracts import GatewayAgent, Player


def learner_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("learner")]


def made(agent: AdviceAgent) -> list[Any]:
    """The learners that the agent makes from now on."""
    learners: list[Any] = []
    make = agent._make_learner

    def remember(context: Any) -> Learner:
        learner = make(context)
        learners.append(learner)
        return learner

    agent._make_learner = remember
    return learners


def weights(learner: OwnLearner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.agent.get_actor().parameters()]


def test_it_satisfies_the_contract(make_agent: MakeAgent) -> None:
    agent: GatewayAgent = make_agent()
    player: Player = agent.open("s1")
    assert (agent.name, agent.mode) == ("game", "advice")
    assert agent.saves_folder is not None
    assert agent.saves_folder.parts[-4:] == ("default", "gateway", "game", "saves")
    asyncio.run(player.close())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_acts_learns_advises_and_saves(make_agent: MakeAgent, algorithm: str) -> None:
    agent = make_agent(algorithm, updates_per_step=1.0)
    learners = made(agent)

    async def run() -> None:
        await agent.start()
        first, second = (Client(agent.open(f"s{number}"), number) for number in range(2))
        await first.play(30)
        await second.play(10)
        for action in first.actions + second.actions:
            assert agent.action_space.contains(action)
        await first.player.close()
        await second.player.close()
        await agent.close()

    asyncio.run(run())
    first = learners[1]
    assert (first.steps, first.updates) == (30 * EPISODE, 30 * EPISODE - 19)
    assert len(first._memory) == 30 * EPISODE
    assert first._published >= 100
    assert [path.name for path in make_agent(algorithm).saves_folder.iterdir()] != []


class DictClient(Client):
    """Its observations have two parts."""

    def observe(self) -> Any:
        return {"here": super().observe()[:1], "there": np.int64(self._rng.integers(3))}

    async def play(self, episodes: int) -> None:
        for _ in range(episodes):
            action = await self.player.begin(self.observe(), {})
            for step in range(EPISODE):
                self.actions.append(action)
                action = await self.player.step(self.observe(), 1.0, step == EPISODE - 1, False, {})


@pytest.mark.parametrize("own", [True, False], ids=["own", "stable_baselines3"])
def test_observations_may_be_dicts(make_agent: MakeAgent, own: bool) -> None:
    algorithm = {} if own else {"stable_baselines3": {"policy": "MultiInputPolicy", "kwargs": {"train_freq": 1}}}
    agent = make_agent(observation_space={"here": [1, -1, 1], "there": 3}, start_training=5, **algorithm)
    learners = made(agent)

    async def run() -> None:
        clients = [DictClient(agent.open(f"s{number}"), number) for number in range(2)]
        await clients[0].play(45)
        await clients[1].play(3)
        await agent.close()

    asyncio.run(run())
    assert learners[0].steps >= 45 * EPISODE - 1
    assert agent.saves_folder.exists()


def test_a_session_learns(make_agent: MakeAgent) -> None:
    agent = make_agent(
        updates_per_step=2.0, agent={"cls": "tmrl_core.training:DQNAgent", "kwargs": {
            "hidden_sizes": [32], "lr": 3e-3, "gamma": 0.5, "epsilon_updates": 400, "target_interval": 20}},
    )  # fmt: skip

    async def run() -> list[float]:
        client = Client(agent.open("s1"))
        await client.play(120)
        await client.player.close()
        return client.returns

    returns = asyncio.run(run())
    assert np.mean(returns[-20:]) > 4.2 > 3.5 > np.mean(returns[:20])


def test_a_newcomer_continues_from_the_newest_save_of_any_session(make_agent: MakeAgent) -> None:
    agent = make_agent(save_every_steps=25, keep_saves=3)
    learners = made(agent)

    async def run() -> None:
        clients = [Client(agent.open(f"s{number}"), number) for number in range(2)]
        for client in clients:
            await client.play(1)  # both begin before there is a save
        await asyncio.gather(clients[0].play(9), clients[1].play(21))
        for client in clients:
            await client.player.close()
        await Client(agent.open("s2")).play(1)
        await agent.close()

    asyncio.run(run())
    _, trained, newcomer = learners
    assert trained.steps == 22 * EPISODE
    assert newcomer.steps == 23 * EPISODE
    assert newcomer.updates == trained.updates
    for mine, theirs in zip(weights(newcomer), weights(trained), strict=True):
        assert torch.equal(mine, theirs)
    names = sorted(path.name for path in agent.saves_folder.iterdir())
    assert names == ["000000000100_s1.zip", "000000000110_s1.zip", "000000000115_s2.zip"]
    assert read_save(agent.saves_folder / names[-1]).algorithm == "dqn"


def test_a_damaged_newest_save_falls_back_to_the_one_before(
    make_agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make_agent(save_every_steps=25)
    learners = made(agent)

    async def play(session_id: str) -> None:
        client = Client(agent.open(session_id))
        await client.play(10)
        await client.player.close()

    asyncio.run(play("s1"))
    (agent.saves_folder / "000000000050_s1.zip").write_bytes(b"PK")
    with caplog.at_level(logging.WARNING):
        asyncio.run(play("s2"))
    assert learners[1].steps == 25 + 10 * EPISODE
    assert "a save is skipped" in caplog.text


def test_a_uniform_advisor_changes_nothing(make_agent: MakeAgent) -> None:
    def uniform(obs: Any) -> np.ndarray:
        return np.full(2, 0.5)

    async def run(advised: bool) -> tuple[list[Any], list[torch.Tensor]]:
        torch.manual_seed(0)
        agent = make_agent()
        agent._saves.keep = 1
        learners = made(agent)
        if advised:
            agent.board.publish("other", 10**6, uniform)
        client = Client(agent.open("s1"))
        await client.play(30)
        await client.player.close()
        for path in agent._saves.paths():
            path.unlink()
        return client.actions, weights(learners[0])

    plain, advised = asyncio.run(run(False)), asyncio.run(run(True))
    assert plain[0] == advised[0]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(plain[1], advised[1], strict=True))


def test_a_confident_advisor_decides_for_a_newcomer(make_agent: MakeAgent) -> None:
    def knows(obs: Any) -> np.ndarray:
        return np.array([1e-9, 1.0]) if obs[0] > 0 else np.array([1.0, 1e-9])

    agent = make_agent(start_training=10_000)
    agent.board.publish("other", 1, knows)

    async def run() -> list[float]:
        client = Client(agent.open("s1"))
        await client.play(10)
        await client.player.close()
        return client.returns

    assert asyncio.run(run()) == [EPISODE] * 10
    assert len(agent.board.advisors("another", 9)) == 1  # an untrained session advises nobody


def test_without_learning_a_session_only_acts(make_agent: MakeAgent) -> None:
    agent = make_agent(enable_learning=False)
    agent.board.publish("other", 1, lambda obs: np.array([0.0, 1.0]))

    async def run() -> list[list[Any]]:
        clients = [Client(agent.open(f"s{number}")) for number in range(2)]
        for client in clients:
            torch.manual_seed(0)  # of the initial weights
            await client.play(10)
            await client.player.close()
        return [client.actions for client in clients]

    first, second = asyncio.run(run())
    assert first == second
    assert not agent.saves_folder.exists()
    assert len(agent.board.advisors("", 9)) == 1


def test_closing_a_session_ends_its_thread_and_saves(make_agent: MakeAgent) -> None:
    agent = make_agent()

    async def run() -> None:
        clients = [Client(agent.open(f"s{number}")) for number in range(3)]
        await clients[0].play(1)
        await clients[1].player.begin(clients[1].observe(), {})
        assert learner_threads() == ["learner s0", "learner s1"]  # without a message there is no learner
        await clients[0].player.close()
        assert learner_threads() == ["learner s1"]
        await agent.close()
        assert learner_threads() == []
        with pytest.raises(SessionClosedError):
            await clients[1].player.step(clients[1].observe(), 0.0, False, False, {})

    asyncio.run(run())
    assert [path.name for path in agent.saves_folder.iterdir()] == ["000000000005_s0.zip"]


def test_an_open_episode_is_kept_at_the_end(make_agent: MakeAgent) -> None:
    agent = make_agent()
    learners = made(agent)

    async def run() -> None:
        client = Client(agent.open("s1"))
        await client.player.begin(client.observe(), {})
        await client.player.step(client.observe(), 1.0, False, False, {})
        await client.player.close()

    asyncio.run(run())
    assert len(learners[0]._memory) == 1
    assert learners[0].steps == 1


class Waits(Learner):
    """Answers after it has been released."""

    algorithm = "waits"
    release = threading.Event()

    def _play(self) -> None:
        while True:
            message = self.context.channel.receive()
            assert self.release.wait(60)
            if not message.ends:
                self.context.channel.answer(message.info["answer"])

    def _capture(self) -> Any:
        raise AssertionError("it has made no steps")

    def _restore(self, tree: Any, arrays: Any) -> None:
        raise AssertionError("there is no save")


def test_the_event_loop_never_waits_for_a_learner(make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent._make_learner = Waits
    Waits.release = threading.Event()

    async def run() -> None:
        first, second = (Client(agent.open(f"s{number}")) for number in range(2))
        waiting = [
            asyncio.ensure_future(client.player.begin(client.observe(), {"answer": number}))
            for number, client in enumerate((first, second))
        ]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        Waits.release.set()
        assert await asyncio.gather(*waiting) == [0, 1]
        await agent.close()

    asyncio.run(run())


def test_closing_ends_the_wait_of_a_client(make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent._make_learner = Waits
    Waits.release = threading.Event()

    async def run() -> None:
        client = Client(agent.open("s1"))
        waiting = asyncio.ensure_future(client.player.begin(client.observe(), {"answer": 1}))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(client.player.close())
        with pytest.raises(SessionClosedError):
            await waiting
        Waits.release.set()
        await closing

    asyncio.run(run())


def test_a_thread_that_cannot_be_started_closes_its_session(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    agent = make_agent()

    async def run() -> None:
        client = Client(agent.open("s1"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", full)
            with pytest.raises(SessionClosedError, match="can't start new thread"):
                await client.player.begin(client.observe(), {})
        await agent.close()

    asyncio.run(run())


class Fails(Waits):
    def _play(self) -> None:
        message = self.context.channel.receive()
        if "answer" in message.info:
            self.context.channel.answer(message.info["answer"])
        raise ZeroDivisionError("secret")


@pytest.mark.parametrize("answer", [{}, {"answer": math.nan}])
def test_a_failing_learner_closes_its_own_session_alone(
    make_agent: MakeAgent, answer: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    agent = make_agent()
    make = agent._make_learner

    async def run() -> None:
        good = Client(agent.open("good"))
        await good.play(1)
        agent._make_learner = Fails
        bad = Client(agent.open("bad"))
        agent._make_learner = make
        for call in (bad.player.begin(bad.observe(), answer), bad.player.begin(bad.observe(), {})):
            with pytest.raises(SessionClosedError, match="Log in again") as caught:
                await call
            assert "secret" not in str(caught.value)
        await good.play(2)
        await agent.close()

    asyncio.run(run())
    assert "secret" in caplog.text
    assert [path.name for path in agent.saves_folder.iterdir()] == ["000000000015_good.zip"]


def test_too_many_bad_updates_close_the_session(make_agent: MakeAgent) -> None:
    agent = make_agent(start_training=1, updates_per_step=1.0)

    async def run() -> None:
        client = Client(agent.open("s1"))
        await client.player.begin(client.observe(), {})

        async def play_on() -> None:
            while True:
                await client.player.step(client.observe(), 3e38, False, False, {})

        with pytest.raises(TmrlError, match="updates in a row were not finite"):
            await play_on()
        await agent.close()

    asyncio.run(run())
    assert not agent.saves_folder.exists()


def test_saves_of_other_settings_are_refused_at_the_start(make_agent: MakeAgent) -> None:
    async def run() -> None:
        agent = make_agent()
        client = Client(agent.open("s1"))
        await client.play(1)
        await agent.close()
        other = make_agent(agent={"cls": "tmrl_core.training:DQNAgent", "kwargs": {"hidden_sizes": [8]}})
        with pytest.raises(CheckpointError, match=r"does not fit.*\[16, 2\] and is \[8, 2\].*Restore the settings"):
            await other.start()
        with pytest.raises(CheckpointError, match="it is of dqn"):
            await make_agent("DiscreteSacAgent").start()

    asyncio.run(run())


def test_changed_settings_take_effect_after_a_save(make_agent: MakeAgent) -> None:
    async def run() -> None:
        agent = make_agent()
        client = Client(agent.open("s1"))
        await client.play(10)
        await agent.close()
        kwargs = {"hidden_sizes": [16], "lr": 0.5, "epsilon_final": 0.25}
        again = make_agent(agent={"cls": "tmrl_core.training:DQNAgent", "kwargs": kwargs})
        learners = made(again)
        await again.start()
        assert learners[0].agent.optimizer.param_groups[0]["lr"] == 0.5
        assert learners[0].agent.epsilon_final == 0.25
        assert learners[0].steps == 10 * EPISODE

    asyncio.run(run())
