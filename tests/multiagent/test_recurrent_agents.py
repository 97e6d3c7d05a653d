"""Agents that share a recurrent policy: a state of each, and training on sequences and rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.multiagent import (
    ActingPolicy,
    Actor,
    Agent,
    AgentManager,
    AgentParameters,
    Assembly,
    EventEnvironment,
    Explorer,
    KStepExperienceShaper,
    Learner,
    PolicySettings,
    SimpleStore,
)
from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm
from tmrl_core.multiagent.experiences import PlayedEpisode, chunks_of
from tmrl_core.multiagent.manager import Mode
from tmrl_core.multiagent.round_episodes import RoundEpisodes
from tmrl_core.samples import Buffer
from tmrl_core.training.loops.lockstep_round import Round

IDS = ("a", "b")
STATES = gym.spaces.Dict({"seen": gym.spaces.Box(-1, 1, (2,), np.float32), "action_mask": gym.spaces.MultiBinary(3)})
CHOICES = gym.spaces.Discrete(3)
WAIT = 3


class Cues(EventEnvironment):
    """Each agent sees a cue at its first decision only, and its last action must be the cue: 0 or 1, never 2."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def set_seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self) -> None: ...

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        rewards: dict[str, float] = {}
        if action is None:
            self.turn, self.total = -1, 0.0
            self.cues = {agent: int(self.rng.integers(2)) for agent in IDS}
        else:
            assert action != 2, "the mask forbids it"
            agent = IDS[self.turn % 2]
            last = self.turn // 2 == WAIT - 1
            rewards[agent] = float(last and action == self.cues[agent])
            self.total += rewards[agent] / 2
        self.turn += 1
        agent = IDS[self.turn % 2]
        seen = np.zeros(2, np.float32)
        if self.turn < 2:
            seen[self.cues[agent]] = 1
        state = {"seen": seen, "action_mask": np.array([1, 1, 0], np.int8)}
        return {"rewards": rewards}, {"agent": agent, "state": state}, self.turn == 2 * WAIT

    @property
    def snapshot_list(self) -> tuple[()]:
        return ()

    @property
    def metrics(self) -> Any:
        return {"score": self.total}


def made(agent: str, **kwargs: Any) -> TrainingAgentAlgorithm:
    kwargs = {"hidden_sizes": [16], "cell_size": 16, "state_interval": 1, "gamma": 0.9, **kwargs}
    return TrainingAgentAlgorithm(f"tmrl_core.training:{agent}", STATES, CHOICES, **kwargs)


SEQUENCES = AgentParameters(batch_size=32, updates_per_episode=10, sequence_length=WAIT, sequence_stride=1)
LEARNERS: dict[str, tuple[Callable[[], TrainingAgentAlgorithm], AgentParameters]] = {
    "dqn": (lambda: made("RecurrentDQNAgent", burn_in=0, lr=5e-3, target_interval=20), SEQUENCES),
    "ppo": (lambda: made("RecurrentPPOAgent", lr=1e-2, minibatch_size=64), AgentParameters(on_policy=True)),
}


def manager(mode: Mode, make: Callable[[], Any], params: AgentParameters, shared: bool = True) -> AgentManager:
    agents = dict.fromkeys(IDS, "both") if shared else {agent: agent for agent in IDS}
    settings = PolicySettings(algorithm=make, parameters=params)
    return AgentManager(
        mode,
        IDS,
        config=Assembly(agents=agents, policies=dict.fromkeys(agents.values(), settings)),
        experience_shaper=KStepExperienceShaper(gamma=0.9),
        explorer=Explorer(IDS, 0.3),
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", LEARNERS)
def test_agents_that_share_a_policy_have_states_of_their_own(name: str) -> None:
    """As with a policy for each, of the same weights."""
    make, params = LEARNERS[name]
    model = make().get_model()
    found = []
    for shared in (True, False):
        agents = manager("inference", make, params, shared)
        agents.load_models(dict.fromkeys(agents.policies, model))
        actor = Actor(Cues(), agents)
        found.append([actor.roll_out(seed=seed, test=True)[1] for seed in (1, 2)])
    np.testing.assert_equal(found[0], found[1])
    for episode in found[0]:
        for agent in IDS:
            states = np.asarray(episode[agent]["state.h"])
            assert not states[0].any(), "an episode begins with the first state"
            assert states[1:].any(axis=1).all()


def test_an_acting_policy_carries_states_as_the_training_side_does() -> None:
    make, params = LEARNERS["dqn"]
    learner = make()

    def act() -> ActingPolicy:
        return ActingPolicy(
            "tmrl_core.training:RecurrentDQNAgent", STATES, CHOICES, hidden_sizes=[16], cell_size=16, state_interval=1
        )

    found = []
    for kind in (act, make):
        agents = manager("inference", kind, params)
        agents.load_models({"both": learner.get_model()})
        found.append(Actor(Cues(), agents).roll_out(seed=4)[1])
    np.testing.assert_equal(found[0], found[1])


def test_an_episode_that_was_dropped_leaves_no_state() -> None:
    agents = manager("inference", *LEARNERS["dqn"])
    env = Cues()
    for _ in range(3):
        _, event, _ = env.step(None)
        agents.choose_action(event, ())
    agents.discard_trajectory()
    _, experiences = Actor(env, agents).roll_out(seed=1)
    assert not np.asarray(experiences["a"]["state.h"])[0].any()


@pytest.mark.parametrize("name", LEARNERS)
def test_they_learn_to_remember(name: str, one_thread: None) -> None:
    """No policy without memory scores more than 0.5 on average."""
    torch.manual_seed(0)
    make, params = LEARNERS[name]
    trained, acting = manager("training", make, params), manager("inference", make, params)
    env = Cues()
    learner = Learner(trained, Actor(env, acting), seed=lambda episode: episode)
    actor = Actor(env, acting)
    for _ in range(40):
        if name == "dqn":
            learner.train(3)
        else:
            for seed in range(20):  # a round of several episodes, as workers play it
                _, experiences = actor.roll_out(models=trained.get_models(), seed=seed)
                trained.store_experiences(experiences)
            trained.train()
        tests = learner.test(10)
        if all(one["score"] == 1.0 for one in tests):
            break
    assert [one["score"] for one in tests] == [1.0] * 10


def experiences(steps: int, space: Any = None, cell_size: int = 16, **changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(steps)
    seen = rng.random((steps + 1, 2), np.float32)
    mask = np.ones((steps + 1, 3), np.int8)
    return {
        "state": {"seen": seen[:-1], "action_mask": mask[:-1]},
        "action": rng.integers(0, 3, steps),
        "reward": rng.random(steps, np.float32),
        "next_state": {"seen": seen[1:], "action_mask": mask[1:]},
        "discount": np.full(steps, 0.9, np.float32),
        "terminated": np.arange(steps) == steps - 1,
        "truncated": np.zeros(steps, bool),
        "state.h": rng.random((steps, cell_size), np.float32),
        **changed,
    }


def test_the_pool_holds_sequences_with_priorities_of_their_own() -> None:
    params = AgentParameters(batch_size=16, sample_by="weight", sequence_length=4, sequence_stride=2)
    agent = Agent("a", made("RecurrentDQNAgent", burn_in=0), SimpleStore(100, seed=1), params)
    agent.store_experiences(experiences(9))
    assert len(agent.experience_pool) == 4
    rows: Any = agent.experience_pool.get()
    assert rows["reward"].shape == (4, 4)
    assert rows["state.h"].shape == (4, 16)
    assert rows["ticks"].tolist() == [4, 4, 4, 3]
    assert rows["first_tick"].tolist() == [0, 2, 4, 6]
    metrics = agent.train()
    assert metrics["loss_critic"] > 0
    weights: Any = agent.experience_pool.get()["weight"]
    assert len(set(weights.tolist())) == 4


def test_soft_actor_critic_learns_from_sequences() -> None:
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    algorithm = TrainingAgentAlgorithm(
        "tmrl_core.training:RecurrentSacAgent", STATES["seen"], box, hidden_sizes=[8], cell="lstm", cell_size=8,
        state_interval=2, gamma=0.9, burn_in=0,
    )  # fmt: skip
    params = AgentParameters(batch_size=8, sequence_length=4, sequence_stride=2)
    agent = Agent("a", algorithm, SimpleStore(50), params)
    chosen = [agent.choose_action_with_extras(np.zeros(2, np.float32), 0.1) for _ in range(5)]
    assert chosen[0][1].keys() == {"state.h", "state.c"}
    assert all(box.contains(action) for action, _ in chosen)
    rows = experiences(7, cell_size=8)
    rows = {**rows, "state.c": rows["state.h"], "action": np.zeros((7, 2), np.float32)}
    agent.store_experiences({**rows, "state": rows["state"]["seen"], "next_state": rows["next_state"]["seen"]})
    before = algorithm.get_model()
    assert np.isfinite(list(agent.train().values())).all()
    assert algorithm.get_model() != before


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"discount": np.full(5, 0.81)}, "RecurrentDQNAgent computes its own returns, from single steps .*gamma = 0.9"),
        ({"state.h": np.zeros((5, 7), np.float32)}, r"'state.h' has the shape \[7\], this policy's is \[16\]"),
        ({"terminated": np.zeros((5, 2), bool)}, "'terminated' is not one number a row"),
        ({"next_state": experiences(5)["state"]}, "next state of experience 0 is not the state of experience 1"),
    ],
)
def test_experiences_that_are_no_single_steps_of_the_policy_are_refused(changed: dict[str, Any], problem: str) -> None:
    agent = Agent("a", made("RecurrentDQNAgent", burn_in=0), SimpleStore(100), SEQUENCES)
    for refuse in (agent.algorithm.check_experiences, agent.store_experiences):
        refuse(experiences(5))
        with pytest.raises(SampleRefusedError, match=problem):
            refuse({**experiences(5), **changed})
    without = {name: column for name, column in experiences(5).items() if name != "state.h"}
    with pytest.raises(SampleRefusedError, match=r"lacks state\.h"):
        agent.store_experiences(without)


@pytest.mark.parametrize("name", LEARNERS)
def test_an_episode_without_an_end_is_refused_and_rows_of_others_do_not_continue_it(name: str) -> None:
    """In a round, those of another worker follow it: they would be of its run, or end the training of all."""
    make, params = LEARNERS[name]
    trainer, actors = manager("training", make, params), manager("inference", make, params)
    actors.load_models(trainer.get_models())
    good, bad = (Actor(Cues(), actors).roll_out(seed=seed)[1] for seed in (1, 2))
    for columns in bad.values():
        columns["terminated"] = np.zeros(WAIT, np.bool_)
    memory = RoundEpisodes(trainer.agents, trainer.score, clock=lambda: 0.0)
    round_ = Round(1, (1, 1), amount=2, episodes=True, grace_s=10.0)
    memory.begin(round_)
    streams = b"a" * 16, b"b" * 16
    round_.poll([(stream, stream.decode()) for stream in streams], 0.0, lambda stream, what: False)
    reasons = []
    for number, (stream, experiences) in enumerate([(streams[0], bad), (streams[0], good), (streams[1], good)]):
        episode = PlayedEpisode(experiences=experiences, performance=1.0, number=number, version=(1, 1))
        for chunk in chunks_of(episode, max_head_bytes=1 << 20):
            chunk.stream = stream
            arrived = Buffer(maxlen=None)
            arrived.extend([chunk])
            reasons += [str(reason) for _, reason in memory.append(arrived)]
    assert len(reasons) == 1
    assert "the last experience of the episode is neither terminated nor truncated" in reasons[0]
    assert round_.complete
    trainer.store_experiences(memory.joined()[1])
    assert trainer.train()


@pytest.mark.parametrize(
    ("params", "kwargs", "problem"),
    [
        (
            {"sequence_length": 8},
            {"state_interval": 3, "burn_in": 0},
            "sequence_stride is 4, allowed: multiples of .*3",
        ),
        ({"sequence_length": 4}, {"burn_in": 4}, "burn_in is 4, allowed: less than sequence_length = 4"),
    ],
)
def test_parameters_that_do_not_fit_the_policy_are_refused(
    params: dict[str, Any], kwargs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"agent 'a' has the algorithm TrainingAgentAlgorithm: {problem}"):
        Agent("a", made("RecurrentDQNAgent", **kwargs), SimpleStore(), AgentParameters(**params))
