"""Sessions of a central agent over a link in memory: samples, versions, episode ends, failures, bounds."""

from __future__ import annotations

import asyncio
import math
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from tests.actor.conftest import ConstantActor, ScriptedLink
from tests.masked_corridor import MaskedChoices, MaskedCorridor
from tmrl_core.actor.policies.numpy.categorical import NumpyCategoricalMLPActor
from tmrl_core.actor.policies.numpy.lookup import choose_actor
from tmrl_core.actor.policies.numpy.q_value import NumpyQValueMLPActor
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.shared_policy import SharedPolicy
from tmrl_core.config.algorithms import ACTORS
from tmrl_core.envs.json_spaces import action_writer, observation_reader
from tmrl_core.errors import ConfigError, LinkClosedError, ObservationError, PolicyFailedError
from tmrl_core.gateway import central
from tmrl_core.gateway.central import CentralAgent, CentralPlayer
from tmrl_core.gateway.contracts import GatewayAgent
from tmrl_core.networking.protocol.messages import Directive, Evaluation
from tmrl_core.training.memories.replay import ReplayMemory

OBS = spaces.Box(-9, 9, (2,), np.float32)
ACT = spaces.Box(-9, 9, (1,), np.float32)

Scenario = Callable[[CentralAgent, ScriptedLink], Awaitable[None]]


def obs(number: float) -> Any:
    return np.array([number, 0], np.float32)


def agent_of(link: Any, actor: Any = ConstantActor, **kwargs: Any) -> CentralAgent:
    policy = SharedPolicy(actor, OBS, ACT)
    return CentralAgent("default", observation_space=OBS, action_space=ACT, policy=policy, link=link, **kwargs)


def play(scenario: Scenario, **kwargs: Any) -> ScriptedLink:
    """Run a scenario with an agent, close it and return its link."""
    link = ScriptedLink()

    async def run() -> None:
        agent = agent_of(link, **kwargs)
        await agent.start()
        await asyncio.wait_for(scenario(agent, link), 30.0)
        await agent.close()

    asyncio.run(run())
    return link


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def episode(player: CentralPlayer, steps: int, terminated: bool = True) -> None:
    assert await player.begin(obs(0), {}) is not None
    for step in range(1, steps):
        assert await player.step(obs(step), 1.0, False, False, {}) is not None
    assert await player.step(obs(steps), 1.0, terminated, not terminated, {}) is None


def waits_for(event: threading.Event) -> Callable[[ScriptedLink], None]:
    def wait(link: ScriptedLink) -> None:
        event.wait(20.0)

    return wait


def rows(link: ScriptedLink) -> list[tuple[Any, ...]]:
    return [
        (None if action is None else float(action[0]), float(seen[0]), reward, terminated, truncated)
        for action, seen, reward, terminated, truncated, _ in link.samples
    ]


def ends(link: ScriptedLink) -> list[tuple[str, int, float, str]]:
    return [(record.end, record.length, record.episode_return, record.mode) for record in link.records]


def test_it_is_an_agent_of_the_gateway() -> None:
    agent: GatewayAgent = agent_of(ScriptedLink())
    assert (agent.name, agent.mode, agent.saves_folder) == ("default", "central", None)


class Broken(ConstantActor):
    """Expects an action space of another shape."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return super().act(obs, test).reshape(2, 2)


def test_a_policy_that_cannot_act_ends_the_start() -> None:
    with pytest.raises(ConfigError, match=r"^gateway.agents.default: actor.cls: Broken cannot act in .*ValueError"):
        play(lambda agent, link: asyncio.sleep(0), actor=Broken)


def test_episodes_of_a_client_are_recorded_as_it_played_them() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await episode(player, 3)
        await episode(player, 2, terminated=False)

    link = play(scenario)
    assert rows(link) == [
        (None, 0, 0.0, False, False),
        (0.25, 1, 1.0, False, False),
        (0.25, 2, 1.0, False, False),
        (0.25, 3, 1.0, True, False),
        (None, 0, 0.0, False, False),
        (0.25, 1, 1.0, False, False),
        (0.25, 2, 1.0, False, True),
    ]
    assert ends(link) == [("terminated", 3, 3.0, "train"), ("truncated", 2, 2.0, "train")]
    assert {record.worker for record in link.records} == {"gateway/ab12"}
    assert [segment.episode for chunk in link.chunks for segment in chunk.segments] == [0, 1]


@pytest.mark.parametrize("with_info", [(), (5, 6, 30)])
@pytest.mark.parametrize("limit", [math.inf, 21])
def test_steps_that_are_held_arrive_in_order(with_info: tuple[int, ...], limit: float) -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await player.begin(obs(0), {})
        for step in range(1, 41):
            await player.step(obs(step), float(step), False, False, {"n": step} if step in with_info else {})
        await player.close()

    link = play(scenario, max_samples_per_episode=limit)
    found = [(float(seen[0]), reward, truncated, info) for _, seen, reward, _, truncated, info in link.samples]
    expected = [
        (float(step), float(step), step in (limit, 40), {"n": step} if step in with_info else {}) for step in range(41)
    ]
    if limit == 21:
        expected.insert(22, (21.0, 0.0, False, {}))  # the reset of the next episode
    assert found == expected


def test_sessions_have_episodes_with_ids_of_their_own() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        players = [agent.open(str(number)) for number in range(20)]
        for player in players:
            await player.begin(obs(0), {})
        for step in range(1, 4):
            for player in players:
                await player.step(obs(step), 1.0, step == 3, False, {})

    link = play(scenario)
    assert sorted(segment.episode for chunk in link.chunks for segment in chunk.segments) == list(range(20))
    assert all(chunk.rows == 4 for chunk in link.chunks)


def test_samples_leave_within_an_episode_and_join_again() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await player.begin(obs(0), {})
        for step in range(1, 10):
            await player.step(obs(step), 1.0, False, False, {})
        await until(lambda: len(link) >= 5)
        assert not link.records
        for step in range(10, 12):
            await player.step(obs(step), 1.0, step == 11, False, {})

    link = play(scenario, send_every=5)
    assert len(link.chunks) > 1
    assert [row[1] for row in rows(link)] == list(range(12))
    assert [step for chunk in link.chunks for step in chunk.step] == list(range(12))


def test_a_sample_carries_the_version_that_acted() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await player.begin(obs(0), {})
        link.publish(0.5)
        await until(lambda: agent.policy.version == (1, 1))
        assert float((await player.step(obs(1), 1.0, False, False, {}))[0]) == 0.5
        await player.step(obs(2), 1.0, True, False, {})

    link = play(scenario)
    assert [row[0] for row in rows(link)] == [None, 0.25, 0.5]
    assert [(segment.rows, segment.version) for chunk in link.chunks for segment in chunk.segments] == [
        (2, (0, 0)),
        (1, (1, 1)),
    ]


def test_new_weights_act_in_all_sessions() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        players = [agent.open(str(number)) for number in range(3)]
        for player in players:
            await player.begin(obs(0), {})
        link.publish(0.75)
        await until(lambda: agent.policy.version == (1, 1))
        for player in players:
            assert (await player.step(obs(1), 0.0, False, False, {})).tolist() == [0.75]
        late = agent.open("late")
        assert (await late.begin(obs(0), {})).tolist() == [0.75]
        for player in (*players, late):
            await player.close()

    play(scenario)


def test_a_session_that_closes_keeps_its_episode_as_truncated() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await player.begin(obs(0), {})
        await player.step(obs(1), 1.0, False, False, {})
        await player.step(obs(2), 1.0, False, False, {})
        await player.close()

    link = play(scenario)
    assert rows(link)[-1] == (0.25, 2, 1.0, False, True)
    assert ends(link) == [("truncated", 2, 2.0, "train")]


def test_a_session_that_closes_after_a_reset_leaves_no_record() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await player.begin(obs(0), {})
        await player.close()

    assert not play(scenario).records


def test_a_client_that_begins_anew_without_an_end_leaves_an_aborted_episode() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await player.begin(obs(0), {})
        await player.step(obs(1), 1.0, False, False, {})
        await player.begin(obs(5), {})

    link = play(scenario)
    assert ends(link) == [("aborted", 1, 1.0, "train")]
    assert not any(row[4] for row in rows(link))


def test_the_pending_observation_is_the_reset_after_a_step_limit() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await player.begin(obs(0), {"first": 1})
        for step in range(1, 6):
            assert await player.step(obs(step), 1.0, False, False, {}) is not None, "the client does not know"
        assert await player.step(obs(6), 1.0, True, False, {}) is None

    link = play(scenario, max_samples_per_episode=3)
    assert rows(link) == [
        (None, 0, 0.0, False, False),
        (0.25, 1, 1.0, False, False),
        (0.25, 2, 1.0, False, False),
        (0.25, 3, 1.0, False, True),
        (None, 3, 0.0, False, False),
        (0.25, 4, 1.0, False, False),
        (0.25, 5, 1.0, False, False),
        (0.25, 6, 1.0, True, False),
    ]
    assert [record.end for record in link.records] == ["truncated", "terminated"]


class Failing(ConstantActor):
    """Acts with infinity while its weight is negative."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.full(1, np.inf if self.value < 0 else self.value, np.float32)


def test_an_action_that_is_not_finite_is_an_error_and_the_request_can_be_repeated() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        await player.begin(obs(0), {})
        await player.step(obs(1), 1.0, False, False, {})
        link.publish(-1.0)
        await until(lambda: agent.policy.version == (1, 1))
        for _ in range(2):
            with pytest.raises(PolicyFailedError):
                await player.step(obs(2), 1.0, False, False, {})
        with pytest.raises(PolicyFailedError):
            await agent.open("other").begin(obs(0), {})
        link.publish(0.5)
        await until(lambda: agent.policy.version == (1, 2))
        assert (await player.step(obs(2), 1.0, False, False, {})).tolist() == [0.5]
        await player.step(obs(3), 1.0, True, False, {})
        assert agent.policy_failures == 3

    link = play(scenario, actor=Failing)
    assert [row[1] for row in rows(link)] == [0, 1, 2, 3]
    assert ends(link) == [("terminated", 3, 3.0, "train")]


def test_a_client_whose_observation_allows_no_action_gets_an_error_and_the_policy_is_not_to_blame() -> None:
    corridor = MaskedCorridor()
    seen, actions = corridor.observation_space, corridor.action_space
    policy = SharedPolicy(partial(NumpyQValueMLPActor, hidden_sizes=(8,)), seen, actions)
    first = corridor.reset()[0]

    async def run() -> None:
        link: Any = ScriptedLink()
        agent = CentralAgent("default", observation_space=seen, action_space=actions, policy=policy, link=link)
        await agent.start()
        player = agent.open("ab12")
        assert int(await player.begin(first, {})) - 2 in corridor.choices(0)
        with pytest.raises(ObservationError, match="no action is allowed"):
            await player.step(corridor.observation(4), 1.0, False, False, {})
        assert int(await player.step(corridor.observation(1), 1.0, False, False, {})) - 2 in corridor.choices(1)
        assert agent.policy_failures == 0
        await agent.close()

    asyncio.run(run())


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_actions_of_boxes_of_any_shape_are_answered(backend: str, shape: tuple[int, ...]) -> None:
    space = spaces.Box(-2, 3, shape, np.float32)
    written: list[Any] = []

    async def run(name: str) -> None:
        link: Any = ScriptedLink()
        policy = SharedPolicy(choose_actor(f"tmrl_core.actor:{name}", backend=backend), OBS, space)
        agent = CentralAgent("default", observation_space=OBS, action_space=space, policy=policy, link=link)
        await agent.start()
        player = agent.open("ab12")
        for action in (await player.begin(obs(0), {}), await player.step(obs(1), 1.0, False, False, {})):
            assert space.contains(action)
            written.append(action_writer(space)(action))
        await player.step(obs(2), 1.0, True, False, {})
        await agent.close()
        assert len(link) == 3

    for name, kinds in ACTORS.items():
        if "box" in kinds:
            asyncio.run(run(name))
    assert all(np.shape(action) == shape for action in written)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_client_plays_several_choices_with_a_mask_of_each(encoding: Any) -> None:
    env = MaskedChoices()
    policy = SharedPolicy(partial(NumpyCategoricalMLPActor, hidden_sizes=(8,)), env.observation_space, env.action_space)
    read, write = observation_reader(env.observation_space, encoding=encoding), action_writer(env.action_space)

    def encoded(obs: Any) -> Any:
        mask = [part.tolist() for part in obs["action_mask"]]
        return {"json": msgspec.json, "msgpack": msgspec.msgpack}[encoding].encode(
            {"place": obs["place"].tolist(), "action_mask": mask}
        )

    async def run() -> None:
        link: Any = ScriptedLink()
        agent = CentralAgent(
            "default", observation_space=env.observation_space, action_space=env.action_space, policy=policy, link=link
        )
        await agent.start()
        player = agent.open("ab12")
        action, ended = await player.begin(read(encoded(env.reset()[0])), {}), False
        while not ended:
            written = write(action)
            assert [type(number) for number in written] == [int, int]
            obs, reward, terminated, truncated, _ = env.step(np.array(written))  # fails at what the mask forbids
            ended = terminated or truncated
            action = await player.step(read(encoded(obs)), reward, terminated, truncated, {})
        await agent.close()
        assert len(link) > 2
        assert all(row[0] is None or env.action_space.contains(row[0]) for row in link.samples)

    asyncio.run(run())


def test_an_evaluation_is_played_by_the_next_episodes_without_collecting() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        link.publish(0.5)
        await until(lambda: agent.policy.version == (1, 1))
        link.directive = Directive(1, Evaluation(4, (10, 11), (1, 1)))
        player, gone = agent.open("ab12"), agent.open("gone")
        assert (await gone.begin(obs(0), {})).tolist() == [0.25], "half of its weight: deterministic"
        await gone.step(obs(1), 1.0, False, False, {})
        await gone.close()
        for _ in range(3):
            await episode(player, 2)

    link = play(scenario)
    evaluated = [record for record in link.records if record.evaluation == 4 and record.end != "aborted"]
    assert {record.seed for record in evaluated} == {10, 11}
    assert all((record.mode, record.length, record.episode_return) == ("test", 2, 2.0) for record in evaluated)
    assert len(link) == 3, "the third episode is an ordinary one again"


def test_it_goes_on_answering_when_the_trainer_has_finished() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        link.directive = Directive(1, finish=True)
        await episode(player, 2)

    link = play(scenario)
    assert len(link) == 0
    assert not link.records


def test_it_records_again_when_another_trainer_goes_on() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        link.publish(0.5, incarnation=1)
        await until(lambda: agent.policy.version[0] == 1)
        link.directive = Directive(1, finish=True)  # it stays until the next trainer has a directive of its own
        await episode(player, 2)
        link.publish(0.5, incarnation=2)
        await until(lambda: agent.policy.version[0] == 2)
        await episode(player, 2)

    link = play(scenario)
    assert len(link) == 3
    assert {segment.incarnation for chunk in link.chunks for segment in chunk.segments} == {2}


def test_without_learning_it_acts_deterministically_and_records_nothing() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        assert (await player.begin(obs(0), {})).tolist() == [0.125]
        assert (await player.step(obs(1), 1.0, False, False, {})).tolist() == [0.125]
        assert await player.step(obs(2), 1.0, True, False, {}) is None
        await player.close()

    link = play(scenario, learning=False)
    assert len(link) == 0
    assert not link.records


def test_answers_do_not_wait_for_a_link_that_is_full() -> None:
    release = threading.Event()

    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        link.on_send = waits_for(release)
        player = agent.open("ab12")
        for _ in range(50):
            await episode(player, 3)
            await asyncio.sleep(0.002)
        assert len(link.sends) <= 1
        release.set()

    link = play(scenario)
    assert len(link) == 200


def test_samples_that_cannot_leave_are_bounded_for_all_sessions_together() -> None:
    release = threading.Event()

    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        link.on_send = waits_for(release)
        quiet, loud = agent.open("quiet"), agent.open("loud")
        await episode(quiet, 2)
        await until(lambda: link.chunks)
        await episode(quiet, 2)
        await loud.begin(obs(0), {})
        for step in range(1000):
            await loud.step(obs(step % 9), 1.0, False, False, {})
        release.set()
        await loud.close()
        assert agent.samples_dropped > 800

    link = play(scenario, unsent_bytes=10_000)
    assert len(link) < 200
    assert [record.length for record in link.records] == [2, 2, 1000]


@pytest.mark.parametrize("exchange", [2_000, 1 << 20])
def test_api_keys_take_turns_whatever_their_numbers_of_sessions(exchange: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(central, "EXCHANGE_BYTES", exchange)
    release = threading.Event()

    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        link.on_send = waits_for(release)
        await episode(agent.open("first", "other"), 1)
        await until(lambda: link.chunks)
        for key, sessions in (("greedy", 30), ("modest", 4)):
            for number in range(sessions):
                player = agent.open(f"{key}{number}", key)
                await player.begin(obs(len(key)), {})
                for step in range(20):
                    await player.step(obs(5 if key == "modest" else 0), 1.0, step == 19, False, {})
        release.set()

    seen = [row[1] for row in rows(play(scenario)) if row[2]]
    assert len(seen) == 1 + 34 * 20
    assert 60 <= seen[1 : 1 + 8 * 20].count(5) <= 80


def test_the_api_key_with_the_most_unsent_samples_loses_some() -> None:
    release = threading.Event()

    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        link.on_send = waits_for(release)
        await episode(agent.open("first", "other"), 1)
        await until(lambda: link.chunks)
        modest = agent.open("modest", "modest")
        await modest.begin(obs(5), {})
        for _ in range(32):
            await modest.step(obs(5), 1.0, False, False, {})
        for number in range(40):
            await episode(agent.open(f"greedy{number}", "greedy"), 10)
        release.set()
        await modest.close()
        assert agent.samples_dropped > 0

    assert sum(row[1] == 5 for row in rows(play(scenario, unsent_bytes=20_000))) >= 32


def test_transitions_over_steps_are_all_there_and_few_are_shorter_with_several_sessions() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        async def one(number: int) -> None:
            player = agent.open(str(number))
            await player.begin(obs(0), {})
            for step in range(400):
                await player.step(obs(number), 1.0, step == 399, False, {})
                if step % 4 == number:
                    await asyncio.sleep(0.001)

        await asyncio.gather(*map(one, range(4)))

    memory = ReplayMemory("cpu", memory_size=10_000, batch_size=8, n_step=10, gamma=0.5)
    for chunk in play(scenario).chunks:
        memory.append_chunk(chunk)
    assert len(memory) == 4 * 400
    transitions = [memory.get_transition(index) for index in range(len(memory))]
    shorter = [one for one in transitions if not one[4] and one[2] < 2 - 2**-9]
    assert len(shorter) <= 0.1 * len(transitions)


def test_a_policy_from_a_file_does_not_explore_until_a_trainer_sends_another(tmp_path: Path) -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        player = agent.open("ab12")
        assert await player.begin(obs(0), {}) == 1.5
        link.publish(4.0)
        await until(lambda: agent.policy.version == (1, 1))
        assert await player.step(obs(1), 1.0, False, False, {}) == 4.0
        await player.close()

    (tmp_path / "kept").write_text("3")
    assert rows(play(scenario, files=PolicyFiles(tmp_path / "kept")))[1] == (1.5, 1, 1.0, False, True)


def test_a_link_that_has_failed_for_good_does_not_end_the_sessions(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        link.failure = LinkClosedError("refused")
        player = agent.open("ab12")
        for _ in range(3):
            await episode(player, 2)
            await asyncio.sleep(0.1)

    play(scenario)
    assert caplog.text.count("learns nothing") == 1


def test_observations_are_preprocessed_for_the_policy_and_the_recorder() -> None:
    async def scenario(agent: CentralAgent, link: ScriptedLink) -> None:
        await episode(agent.open("ab12"), 1)

    assert [row[1] for row in rows(play(scenario, obs_preprocessor=lambda seen: seen + 1))] == [1, 2]


def test_an_idle_session_is_small() -> None:
    cartpole, actions = spaces.Box(-5, 5, (4,), np.float32), spaces.Discrete(2)
    policy = SharedPolicy(NumpyQValueMLPActor, cartpole, actions)
    link: Any = ScriptedLink()

    async def measure() -> float:
        agent = CentralAgent("default", observation_space=cartpole, action_space=actions, policy=policy, link=link)

        async def opened(number: int) -> CentralPlayer:
            player = agent.open(str(number))
            await player.begin(np.zeros(4, np.float32), {})
            for _ in range(50):
                await player.step(np.zeros(4, np.float32), 1.0, False, False, {})
            return player

        await opened(0)
        before, _ = tracemalloc.get_traced_memory()
        players = [await opened(number) for number in range(1, 51)]
        after, _ = tracemalloc.get_traced_memory()
        await agent.close()
        return (after - before) / len(players)

    tracemalloc.start()
    try:
        assert asyncio.run(measure()) < 100_000
    finally:
        tracemalloc.stop()
