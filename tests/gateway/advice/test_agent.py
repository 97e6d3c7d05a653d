"""Agents whose sessions learn by themselves, with clients in the same event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.gateway.advice.conftest import ALGORITHMS, EPISODE, Client, MakeAgent
from tmrl_core.errors import CheckpointError, ConfigError, SessionClosedError, TmrlError
from tmrl_core.gateway.advice import learner as module
from tmrl_core.gateway.advice.agent import AdviceAgent
from tmrl_core.gateway.advice.learner import Learner
from tmrl_core.gateway.advice.saves import read_save
from tmrl_core.gateway.contracts import GatewayAgent, Player

FAMILIES = ("DQNAgent", "DiscreteSacAgent", "SacAgent", "TD3Agent")
"""Algorithms of which one represents each kind of policy and of update; the others derive from them."""


def as_parameter(algorithm: str, quick: Sequence[str]) -> Any:
    """Leave an algorithm to the full form unless it is one of the quick form."""
    return algorithm if algorithm in quick else pytest.param(algorithm, marks=pytest.mark.full)


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


def weights(learner: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.agent.get_actor().parameters()]


def test_it_satisfies_the_contract(make_agent: MakeAgent) -> None:
    agent: GatewayAgent = make_agent()
    player: Player = agent.open("s1")
    assert (agent.name, agent.mode) == ("game", "advice")
    assert agent.saves_folder is not None
    assert agent.saves_folder.parts[-4:] == ("default", "gateway", "game", "saves")
    asyncio.run(player.close())


@pytest.mark.parametrize("algorithm", [as_parameter(name, FAMILIES) for name in ALGORITHMS])
def test_every_algorithm_acts_learns_advises_and_saves(make_agent: MakeAgent, algorithm: str) -> None:
    agent = make_agent(algorithm, updates_per_step=1.0)
    learners = made(agent)

    async def run() -> None:
        await agent.start()
        first, second = (Client(agent.open(f"s{number}"), number) for number in range(2))
        await first.play(24)
        await second.play(4)
        for action in first.actions + second.actions:
            assert agent.action_space.contains(action)
        await first.player.close()
        await second.player.close()
        await agent.close()

    asyncio.run(run())
    first = learners[1]
    assert (first.steps, first.updates) == (24 * EPISODE, 24 * EPISODE - 19)
    assert len(first._memory) == 24 * EPISODE
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


def test_observations_may_be_dicts(make_agent: MakeAgent) -> None:
    agent = make_agent(observation_space={"here": [1, -1, 1], "there": 3}, start_training=5)
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
            "hidden_sizes": [32], "lr": 3e-3, "gamma": 0.5, "epsilon_updates": 200, "target_interval": 20}},
    )  # fmt: skip

    async def run() -> list[float]:
        client = Client(agent.open("s1"))
        await client.play(70)
        await client.player.close()
        return client.returns

    returns = asyncio.run(run())
    assert np.mean(returns[-20:]) > 4.2 > 3.5 > np.mean(returns[:20])


def test_a_newcomer_continues_from_the_newest_save_of_any_session(make_agent: MakeAgent) -> None:
    agent = make_agent(save_every_steps=25, keep_saves=3)
    idle = make_agent(save_every_steps=25, keep_saves=3, start_training=10_000)
    learners, idle_learners = made(agent), made(idle)

    async def run() -> None:
        clients = [Client(agent.open(f"s{number}"), number) for number in range(2)]
        for client in clients:
            await client.play(1)  # both begin before there is a save
        await asyncio.gather(clients[0].play(9), clients[1].play(21))
        for client in clients:
            await client.player.close()
        await Client(idle.open("s2")).play(1)
        await idle.close()

    asyncio.run(run())
    (_, trained), (newcomer,) = learners, idle_learners
    assert trained.steps == 22 * EPISODE
    assert newcomer.steps == 23 * EPISODE
    assert newcomer.updates == trained.updates
    for mine, theirs in zip(weights(newcomer), weights(trained), strict=True):
        assert torch.equal(mine, theirs)
    names = sorted(path.name for path in agent.saves_folder.iterdir())
    assert names == ["000000000100_s1.save", "000000000110_s1.save", "000000000115_s2.save"]
    assert read_save(agent.saves_folder / names[-1]).algorithm == "dqn"


async def play_session(agent: AdviceAgent, episodes: int, seed: int = 0) -> None:
    client = Client(agent.open(f"s{seed}"), seed)
    await client.play(episodes)
    await client.player.close()


def rows(learner: Learner, first: int, stop: int) -> list[np.ndarray]:
    """The transitions from `first` to `stop` of those in a learner's memory, oldest first."""
    memory = learner._memory
    places = np.arange(memory.written - len(memory), memory.written)[first:stop] % memory.memory_size
    return [ring[places] for ring in memory.row_arrays]


def equal(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("algorithm", [as_parameter(name, ("DQNAgent", "SacAgent")) for name in ALGORITHMS])
def test_a_newcomer_learns_from_the_saved_transitions_at_once(make_agent: MakeAgent, algorithm: str) -> None:
    agent = make_agent(algorithm, updates_per_step=1.0)
    learners = made(agent)
    asyncio.run(play_session(agent, 10))
    asyncio.run(play_session(agent, 1, seed=1))
    before, newcomer = learners
    assert newcomer.updates == before.updates + EPISODE
    assert len(newcomer._memory) == 11 * EPISODE
    if before._memory.returns is not None:
        assert (before._memory.returns.count, newcomer._memory.returns.count) == (10 * EPISODE, 11 * EPISODE)
    assert equal(rows(newcomer, 0, 10 * EPISODE), rows(before, 0, 10 * EPISODE))


def test_a_full_memory_is_saved_in_its_order(make_agent: MakeAgent) -> None:
    agent = make_agent(capacity=33)
    learners = made(agent)
    for seed in range(2):
        asyncio.run(play_session(agent, 10, seed))
    asyncio.run(play_session(agent, 1, seed=2))
    before, newcomer = learners[1:]
    assert len(newcomer._memory) == 33
    assert equal(rows(newcomer, 0, 33 - EPISODE), rows(before, EPISODE, 33))


def test_a_save_has_the_newest_transitions_up_to_a_limit(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent()
    learners = made(agent)
    asyncio.run(play_session(agent, 10))
    before = learners[0]
    row_bytes = sum(ring[0].nbytes for ring in before._memory.row_arrays)
    monkeypatch.setattr(module, "SAVED_MEMORY_BYTES", 7 * row_bytes + 1)
    before.save()
    asyncio.run(play_session(agent, 1, seed=1))
    assert len(learners[1]._memory) == 7 + EPISODE
    assert equal(rows(learners[1], 0, 7), rows(before, 10 * EPISODE - 7, 10 * EPISODE))


def test_a_transition_above_the_limit_is_not_saved(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVED_MEMORY_BYTES", 1)
    agent = make_agent()
    learners = made(agent)
    asyncio.run(play_session(agent, 10))
    asyncio.run(play_session(agent, 1, seed=1))
    assert len(learners[1]._memory) == EPISODE


def test_a_smaller_memory_takes_the_newest_saved_transitions(make_agent: MakeAgent) -> None:
    agent, smaller = make_agent(), make_agent(capacity=20)
    learners, again = made(agent), made(smaller)
    asyncio.run(play_session(agent, 10))
    asyncio.run(smaller.start())
    assert equal(rows(again[0], 0, 20), rows(learners[0], 10 * EPISODE - 20, 10 * EPISODE))


def test_after_a_save_without_transitions_updates_wait_for_new_ones(make_agent: MakeAgent) -> None:
    agent = make_agent(updates_per_step=1.0)
    learners = made(agent)
    asyncio.run(play_session(agent, 10))
    saved = agent._saves.newest()
    assert saved is not None
    saved.tree["learner"]["memory"] = None  # as with a learner that has recorded nothing yet
    held = {name: array for name, array in saved.arrays.items() if not name.startswith("memory")}
    agent._saves.write(replace(saved, arrays=held))
    asyncio.run(play_session(agent, 5, seed=1))
    assert len(learners[1]._memory) == 5 * EPISODE
    assert learners[1].updates == learners[0].updates + 5 * EPISODE - 19


def test_saved_transitions_of_another_structure_are_dropped(
    make_agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    first = make_agent(observation_space={"here": [1, -1, 1], "there": 3})
    renamed = make_agent(observation_space={"close": [1, -1, 1], "there": 3})
    learners = made(renamed)

    class Renamed(DictClient):
        def observe(self) -> Any:
            obs = super().observe()
            return {"close": obs["here"], "there": obs["there"]}

    async def run() -> None:
        await DictClient(first.open("s1")).play(10)
        await first.close()
        await Renamed(renamed.open("s2")).play(2)
        await renamed.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "the transitions of its save are dropped" in caplog.text
    assert len(learners[0]._memory) == 2 * EPISODE
    assert learners[0].steps == 12 * EPISODE


def test_saved_transitions_with_which_updates_fail_are_dropped(
    make_agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make_agent(updates_per_step=1.0)
    learners = made(agent)

    async def run() -> None:
        harmful = Client(agent.open("s1"))
        await harmful.player.begin(harmful.observe(), {})
        for _ in range(19):  # too few for an update
            await harmful.player.step(harmful.observe(), 3e38, False, False, {})
        await harmful.player.close()
        client = Client(agent.open("s2"))
        await client.play(10)
        await client.player.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "the transitions of its save are dropped" in caplog.text
    assert learners[1].steps == 19 + 10 * EPISODE
    # The first transition went too, and its last row, to which the second one belongs.
    assert len(learners[1]._memory) == 10 * EPISODE - 2
    assert learners[1].updates > 10


@pytest.mark.parametrize("name", ["memory['rows'][0]", "memory['rows'][1]"])
@pytest.mark.parametrize("wrong", [np.ones((50, 999), np.float32), np.ones((3, 9), np.float32), np.float32(1.0)])
def test_saved_transitions_that_contradict_their_layout_are_refused(
    make_agent: MakeAgent, name: str, wrong: Any
) -> None:
    agent = make_agent()
    asyncio.run(play_session(agent, 10))
    saved = agent._saves.newest()
    assert saved is not None
    assert name in saved.arrays
    saved.arrays[name] = np.asarray(wrong)
    agent._saves.write(saved)
    with pytest.raises(CheckpointError, match="does not fit"):
        asyncio.run(agent.start())


def test_a_damaged_newest_save_falls_back_to_the_one_before(
    make_agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make_agent(save_every_steps=25)
    learners = made(agent)

    asyncio.run(play_session(agent, 10, seed=1))
    (agent.saves_folder / "000000000050_s1.save").write_bytes(b"PK")
    with caplog.at_level(logging.WARNING):
        asyncio.run(play_session(agent, 10, seed=2))
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
    assert [path.name for path in agent.saves_folder.iterdir()] == ["000000000005_s0.save"]


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


@pytest.mark.parametrize("shape", [[], [1], [2, 3]], ids=str)
@pytest.mark.parametrize("algorithm", ["SacAgent", "TD3Agent"])
def test_sessions_act_in_boxes_of_any_shape(make_agent: MakeAgent, algorithm: str, shape: list[int]) -> None:
    agent = make_agent(algorithm, action_space=[shape, -1, 3], start_training=2, batch_size=2)

    async def run() -> None:
        await agent.start()
        client = Client(agent.open("s1"))
        await client.play(2)
        await agent.close()
        assert all(agent.action_space.contains(action) for action in client.actions)

    asyncio.run(run())


def test_a_learner_that_cannot_act_ends_the_start(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(self: Learner, obs: Any) -> Any:
        raise TypeError("no such shape")

    monkeypatch.setattr(Learner, "act", act)
    with pytest.raises(ConfigError, match=r"^gateway.agents.game: its policy cannot act: .* TypeError: no such shape"):
        asyncio.run(make_agent().start())


class Waits(Learner):
    """Answers after it has been released."""

    release = threading.Event()

    def __init__(self, context: Any) -> None:  # without an agent
        self.context = context
        self.steps = self._saved_at = 0

    def _play(self) -> None:
        while True:
            message = self.context.channel.receive()
            assert self.release.wait(60)
            if not message.ends:
                self.context.channel.answer(message.info["answer"])

    def act(self, obs: Any) -> Any:
        return 0

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
    assert [path.name for path in agent.saves_folder.iterdir()] == ["000000000015_good.save"]


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
        assert learners[0].agent.settings.epsilon_final == 0.25
        assert learners[0].steps == 10 * EPISODE

    asyncio.run(run())
