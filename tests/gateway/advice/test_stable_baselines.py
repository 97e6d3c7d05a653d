"""Algorithms of stable-baselines3 on ShepherdEnv-v0: unmodified, and as learners of sessions."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch

from tests.gateway.advice.conftest import EPISODE, Client, MakeAgent
from tests.gateway.advice.test_agent import made
from tmrl_core.errors import CheckpointError, ConfigError, SessionClosedError
from tmrl_core.gateway.advice.combine import Gaussian
from tmrl_core.gateway.advice.saves import Save, read_save
from tmrl_core.gateway.advice.stable_baselines import check_stable_baselines
from tmrl_core.gateway.settings import StableBaselinesSection
from tmrl_core.gateway.shepherd import Channel, Message
from tmrl_core.training.checkpoints.capture import capture_part

SPACES = {"DQN": 2, "SAC": [2, -1, 3], "TD3": [2, -1, 3], "DDPG": [2, -1, 3]}
NET = {"policy_kwargs": {"net_arch": [16]}, "train_freq": 1}


def sb3(make_agent: MakeAgent, algorithm: str = "DQN", settings: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    section = {"algorithm": algorithm, "kwargs": {**NET, **kwargs}}
    return make_agent(action_space=SPACES[algorithm], stable_baselines3=section, **(settings or {}))


def test_dqn_of_stable_baselines3_trains_unmodified() -> None:
    channel = Channel()
    failures: list[BaseException] = []

    def play() -> None:
        rng = np.random.default_rng(0)
        try:
            while True:
                obs = rng.uniform(-1, 1, 2).astype(np.float32)
                action = channel.post(Message(obs, opening=True)).result(60)
                for step in range(1, EPISODE + 1):
                    reward = float((action == 1) == (obs[0] > 0))
                    obs = rng.uniform(-1, 1, 2).astype(np.float32)
                    action = channel.post(Message(obs, reward, terminated=step == EPISODE)).result(60)
        except SessionClosedError:
            pass
        except BaseException as exc:  # handed to the test's thread
            failures.append(exc)

    client = threading.Thread(target=play, daemon=True)
    client.start()
    env = gymnasium.make("ShepherdEnv-v0", observation_space=[2, -1, 1], action_space=2, channel=channel)
    model = stable_baselines3.DQN(
        "MlpPolicy", env, learning_rate=3e-3, gamma=0.5, learning_starts=30, train_freq=1, target_update_interval=50,
        exploration_fraction=0.5, policy_kwargs={"net_arch": [32]}, device="cpu", seed=0,
    )  # fmt: skip
    model.learn(500)
    channel.close()
    client.join(60)
    assert not client.is_alive()
    assert failures == []
    returns = [episode["r"] for episode in model.ep_info_buffer or []]
    assert np.mean(returns[-20:]) > 4.2  # 2.5 by chance


@pytest.mark.parametrize("algorithm", ["DQN", "SAC", "TD3", pytest.param("DDPG", marks=pytest.mark.full)])
def test_every_algorithm_acts_learns_advises_and_saves(make_agent: MakeAgent, algorithm: str) -> None:
    agent = sb3(make_agent, algorithm)
    learners = made(agent)

    async def run() -> None:
        await agent.start()
        first, second = (Client(agent.open(f"s{number}"), number) for number in range(2))
        await first.play(26)
        await second.play(4)
        for action in first.actions + second.actions:
            assert agent.action_space.contains(action)
        await first.player.close()
        newcomer = Client(agent.open("s2"))
        await newcomer.play(1)
        await agent.close()

    asyncio.run(run())
    _, first, second, third = learners
    assert first.model._n_updates > 100
    assert len(agent.saves_folder.iterdir().__next__().read_bytes()) > 1000
    assert second.steps == 4 * EPISODE - 1  # the library records the end of an episode with the next opening message
    assert third.steps == first.steps + EPISODE - 1
    saved = read_save(agent.saves_folder / f"{third.steps:012d}_s2.zip")
    assert saved.algorithm == f"stable_baselines3.{algorithm}"


def test_a_newcomer_has_the_parameters_of_the_newest_save(make_agent: MakeAgent) -> None:
    agent = sb3(make_agent, "SAC")
    learners = made(agent)

    async def run() -> None:
        client = Client(agent.open("s1"))
        await client.play(20)
        await client.player.close()
        await Client(agent.open("s2")).play(1)
        await agent.close()

    asyncio.run(run())
    first, second = (learner.model for learner in learners)
    assert first._n_updates == second._n_updates > 50  # it fills its replay buffer before it updates
    assert torch.equal(first.log_ent_coef, second.log_ent_coef)
    theirs = first.get_parameters()
    for name, state in second.get_parameters().items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, theirs[name][key]), (name, key)
    moments = second.actor.optimizer.state_dict()["state"][0]
    assert torch.equal(moments["exp_avg"], first.actor.optimizer.state_dict()["state"][0]["exp_avg"])


def test_a_save_names_only_parameters_of_the_algorithm(make_agent: MakeAgent) -> None:
    agent = sb3(make_agent)
    learners = made(agent)
    asyncio.run(agent.start())
    captured = capture_part({"parameters": {"policy.q_net": {}}, "steps": 1, "updates": 1}, "state")
    agent._saves.write(Save("stable_baselines3.DQN", 1, "a", {"learner": captured.tree}, captured.arrays))
    with pytest.raises(CheckpointError, match="it holds the parameters"):
        learners[0].load()


def test_a_confident_advisor_decides_for_a_newcomer(make_agent: MakeAgent) -> None:
    agent = sb3(make_agent, settings={"start_training": 10_000})
    agent.board.publish("other", 1, lambda obs: np.array([1e-9, 1.0]) if obs[0, 0] > 0 else np.array([1.0, 1e-9]))

    async def run() -> list[float]:
        client = Client(agent.open("s1"))
        await client.play(10)
        await agent.close()
        return client.returns

    assert asyncio.run(run()) == [EPISODE] * 10


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_continuous_advice_is_scaled_to_the_action_space(make_agent: MakeAgent, algorithm: str) -> None:
    agent = sb3(make_agent, algorithm, settings={"start_training": 10_000}, action_noise=0.1)
    agent.board.publish("other", 1, lambda obs: Gaussian(np.zeros(2), np.full(2, 1e-6)))

    async def run() -> list[Any]:
        client = Client(agent.open("s1"))
        await client.play(2)
        await agent.close()
        return client.actions

    for action in asyncio.run(run()):
        assert np.allclose(action, 1.0, atol=1e-3)


def test_without_learning_a_session_only_acts(make_agent: MakeAgent) -> None:
    agent = sb3(make_agent, settings={"enable_learning": False})

    async def run() -> list[list[Any]]:
        clients = [Client(agent.open(f"s{number}")) for number in range(2)]
        for client in clients:
            client.player._context = agent._context(client.player._context.session_id, Channel())
            await client.play(5)
        await agent.close()
        return [client.actions for client in clients]

    first, second = asyncio.run(run())
    assert first == second
    assert not agent.saves_folder.exists()


def test_weights_that_are_not_finite_are_not_saved(make_agent: MakeAgent) -> None:
    agent = sb3(make_agent)
    learners = made(agent)

    async def run() -> None:
        client = Client(agent.open("s1"))
        await client.play(2)
        with torch.no_grad():
            next(learners[0].model.policy.parameters())[:] = torch.nan
        await agent.close()

    asyncio.run(run())
    assert not agent.saves_folder.exists()


def test_arguments_that_cannot_be_used_are_refused_at_the_start(make_agent: MakeAgent) -> None:
    agent = sb3(make_agent, no_such=1)
    with pytest.raises(ConfigError, match=r"stable_baselines3\.DQN cannot be made: .*no_such"):
        asyncio.run(agent.start())


def test_discrete_actions_from_another_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="numbers actions from 0"):
        check_stable_baselines(StableBaselinesSection(), gymnasium.spaces.Discrete(3, start=1))
