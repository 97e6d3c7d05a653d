from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor.interventions import IS_INTERVENTION
from tmrl_core.errors import ConfigError
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training.agents.ppo import PPOAgent, own_rows
from tmrl_core.training.agents.recurrent_ppo import RecurrentPPOAgent
from tmrl_core.training.batches import ENDS, PLACES
from tmrl_core.training.checkpoints.capture import capture
from tmrl_core.training.checkpoints.restore import restore
from tmrl_core.training.updates.skipped_updates import SKIPPED

OBSERVATION = spaces.Box(-1.0, 1.0, (2,), np.float32)
FEW = spaces.Discrete(3, start=4)
BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of so small networks wait for each other longer than they compute, on a busy machine for minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(action_space: Any, seed: int = 0, **kwargs: Any) -> PPOAgent:
    torch.manual_seed(seed)
    return PPOAgent(OBSERVATION, action_space, hidden_sizes=(16,), **{"minibatch_size": 32, **kwargs})


def play(agent: PPOAgent, steps: int, best: Any, seed: int = 0) -> tuple[Any, float]:
    """A round of one-step episodes in which the reward is how near the action is to `best`; and the mean reward."""
    rng = np.random.default_rng(seed)
    actor = agent.get_actor()
    actor.seed(seed)
    obs = rng.uniform(-1.0, 1.0, (steps + 1, 2)).astype(np.float32)
    played = []
    for one in obs[:-1]:
        actor.begin_episode()
        played.append(actor.act_with_extras(one))
    actions = np.array([action for action, _ in played])
    extras = {name: torch.from_numpy(np.stack([np.asarray(more[name]) for _, more in played])) for name in played[0][1]}
    rewards = -np.abs(actions.reshape(steps, -1) - np.ravel(best)).sum(axis=1).astype(np.float32)
    ones = torch.ones(steps)
    batch = (
        torch.from_numpy(obs[:-1]), torch.from_numpy(actions), torch.from_numpy(rewards), torch.from_numpy(obs[1:]),
        ones, 0 * ones, {**extras, ENDS: ones, PLACES: torch.stack([0 * ones, 0 * ones, ones], 1).long()},
    )  # fmt: skip
    return batch, float(rewards.mean())


@pytest.mark.parametrize(("action_space", "best", "enough"), [(FEW, 5.0, -0.05), (BOX, 0.5, -0.35)])
def test_ppo_learns_the_rewarded_action(action_space: Any, best: float, enough: float) -> None:
    agent = make(action_space, lr=2e-2, update_epochs=4)
    for number in range(18):
        batch, reward = play(agent, 128, best, seed=number)
        metrics = agent.train(batch)
        assert metrics["updates"] == 4 * 4
        assert float(metrics["updates_skipped"]) == 0
    assert reward > enough
    assert agent.get_actor().act_(np.zeros(2, np.float32), test=True) == pytest.approx(best, abs=0.2)


@pytest.mark.parametrize(
    ("agent_cls", "action_space"),
    [
        (PPOAgent, spaces.MultiDiscrete([3, 2], start=[4, 0])),
        (RecurrentPPOAgent, spaces.MultiBinary([2, 2])),
    ],
)
def test_ppo_learns_several_choices_at_once(action_space: Any, agent_cls: Any) -> None:
    torch.manual_seed(0)
    agent = agent_cls(OBSERVATION, action_space, hidden_sizes=(16,), minibatch_size=32, lr=2e-2, update_epochs=4)
    best = np.broadcast_to(getattr(action_space, "start", 0), action_space.shape) + 1
    for number in range(12):
        batch, reward = play(agent, 96, best, seed=number)
        assert torch.isfinite(agent.train(batch)["entropy"])
    assert reward > -0.3
    assert agent.get_actor().act_(np.zeros(2, np.float32), test=True).tolist() == best.tolist()


def test_the_same_seed_makes_the_same_weights() -> None:
    found = []
    for _ in range(2):
        agent = make(FEW, seed=3)
        agent.train(play(agent, 100, 5.0)[0])
        found.append([parameter.clone() for parameter in agent.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_the_duration_of_each_update_is_reported() -> None:
    agent = make(FEW, update_epochs=2)
    times: list[float] = []
    agent.after_update = times.append
    metrics = agent.train(play(agent, 100, 5.0)[0])
    assert len(times) == metrics["updates"] == 8
    assert min(times) > 0


def test_the_first_minibatch_sees_the_densities_that_the_workers_saw() -> None:
    agent = make(BOX, update_epochs=1, minibatch_size=1000)
    metrics = agent.train(play(agent, 64, 0.5)[0])
    assert float(metrics["kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(metrics["clip_fraction"]) == 0.0


def test_it_stops_when_the_policy_has_moved_too_far() -> None:
    agent = make(FEW, lr=0.1, target_kl=0.01)
    metrics = agent.train(play(agent, 128, 5.0)[0])
    assert metrics["kl_stopped"] == 1.0
    assert 0 < metrics["updates"] < 40


@pytest.mark.parametrize(("share", "updates"), [(1.6, 1), (1.4, 2)])
def test_it_stops_at_one_and_a_half_of_the_target(share: float, updates: int) -> None:
    once: dict[str, Any] = {"lr": 1e-2, "update_epochs": 1, "minibatch_size": 64}
    agent = make(FEW, **once)
    batch, _ = play(agent, 128, 5.0)
    measured = 2 * agent.train(batch)["kl"]  # the mean of two minibatches, of which the first has none
    agent = make(FEW, **once, target_kl=measured / share)
    assert agent.train(batch)["updates"] == updates


@pytest.mark.parametrize("column", [0, 2, 3], ids=["obs", "reward", "next_obs"])
def test_a_round_that_is_not_finite_changes_nothing(column: int) -> None:
    agent = make(FEW, minibatch_size=64, normalize_observations=True, normalize_rewards=True)
    batch, _ = play(agent, 64, 5.0)
    agent.train(batch)

    def kept() -> list[torch.Tensor]:
        assert agent.observations is not None
        assert agent.returns is not None
        return [*agent.model.state_dict().values(), agent.observations.mean, agent.returns.std]

    before = [tensor.clone() for tensor in kept()]
    batch[column][3] = float("nan")
    assert agent.train(batch) == {"updates": 0, SKIPPED: True}
    assert all(torch.equal(*pair) for pair in zip(before, kept(), strict=True))
    assert agent.train(play(agent, 64, 5.0, seed=1)[0])["updates"] == 10


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    agent = make(FEW, minibatch_size=64)
    before = [parameter.clone() for parameter in agent.model.parameters()]
    batch, _ = play(agent, 64, 5.0)
    batch[2][0] = 1e30  # finite, but not its square
    metrics = agent.train(batch)
    assert metrics["updates"] == 0
    assert metrics["updates_skipped"] == 10
    assert metrics[SKIPPED]
    assert all(torch.equal(*pair) for pair in zip(before, agent.model.parameters(), strict=True))


def test_a_run_bootstraps_from_its_next_observation_unless_terminated() -> None:
    agent = make(FEW, gamma=0.5, gae_lambda=1.0)
    zeros = torch.zeros(3)
    ends = torch.tensor([0.0, 1.0, 1.0])
    terminated = torch.tensor([0.0, 0.0, 1.0])
    advantages, returns = agent._advantages(zeros, zeros + 8.0, torch.full((2,), 8.0), terminated, ends)
    # Truncated after two steps: 0.25 of the value of where it led; terminated: nothing.
    assert returns.tolist() == [2.0, 4.0, 0.0]
    assert advantages.tolist() == [-6.0, -4.0, -8.0]


def test_steps_of_persons_are_left_out() -> None:
    """Trained with rows of a person between, the policy is that of the others alone."""
    once: dict[str, Any] = {"update_epochs": 1, "minibatch_size": 1000, "normalize_advantages": False}
    one, other = make(BOX, **once), make(BOX, **once)
    batch, _ = play(one, 60, 0.5)
    taken_T = torch.zeros(60)
    taken_T[[3, 4, 30, 59]] = 1.0
    action, reward = batch[1].clone(), batch[2].clone()
    action[taken_T > 0], reward[taken_T > 0] = 0.99, 100.0
    metrics = one.train((batch[0], action, reward, *batch[3:6], {**batch[6], IS_INTERVENTION: taken_T}))
    kept = map_leaves(lambda leaf: leaf[taken_T == 0], batch)
    other.train(kept)
    assert metrics["updates"] == 1
    for left, right in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)


def test_a_run_ends_before_a_person_takes_over() -> None:
    own_T, ends_T = own_rows({ENDS: torch.tensor([0.0, 0, 0, 0, 1]), IS_INTERVENTION: torch.tensor([0.0, 0, 1, 1, 0])})
    assert ends_T.tolist() == [0, 1, 1, 0, 1]
    assert own_T is not None
    assert own_T.tolist() == [True, True, False, False, True]
    assert own_rows({ENDS: torch.ones(2)})[0] is None


def test_a_round_of_a_person_alone_changes_nothing() -> None:
    agent = make(FEW)
    batch, _ = play(agent, 40, 5.0)
    metrics = agent.train((*batch[:6], {**batch[6], IS_INTERVENTION: torch.ones(40)}))
    assert metrics["updates"] == 0


def test_the_rate_falls_in_a_straight_line() -> None:
    agent = make(FEW, lr=1.0, lr_final=0.2, lr_rounds=4, update_epochs=1, optimizer="sgd", max_grad_norm=1e-3)
    rates = []
    for _ in range(6):
        agent.train(play(agent, 16, 5.0)[0])
        rates.append(agent.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="acts in a Box of floats"):
        make(spaces.Tuple([FEW]))
    with pytest.raises(ConfigError, match=r"minibatch_size: found 0"):
        make(FEW, minibatch_size=0)
    with pytest.raises(ConfigError, match="lr_rounds"):
        make(FEW, lr_final=0.0)
    agent = make(FEW)
    batch, _ = play(agent, 16, 5.0)
    del batch[6]["logp"]
    with pytest.raises(ConfigError, match="no logp"):
        agent.train(batch)


@pytest.mark.parametrize("action_space", [FEW, BOX])
def test_networks_begin_with_orthogonal_layers_of_their_gains(action_space: Any) -> None:
    """The policy's last layer is small, so that first actions hardly depend on observations."""
    model: Any = make(action_space).model
    last = model.actor.logits if action_space is FEW else model.actor.mu
    for layer, gain in ((model.actor.net[0], 2**0.5), (model.critic[0], 2**0.5), (last, 0.01), (model.critic[-1], 1.0)):
        values = torch.linalg.svdvals(layer.weight.detach())
        torch.testing.assert_close(values, torch.full_like(values, gain))
        assert not layer.bias.any()


def test_the_loss_is_the_sum_of_three_with_their_coefficients() -> None:
    agent = make(FEW, value_coef=0.25, entropy_coef=0.125, normalize_advantages=False)
    log_prob = torch.tensor([0.0, 0.1, 0.3, -0.5])
    evaluated = log_prob, torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, -1.0, 2.0, 0.0])
    zeros, advantage = torch.zeros(4), torch.tensor([1.0, -1.0, 2.0, -2.0])
    loss, metrics = agent._loss(evaluated, zeros, advantage, zeros, zeros)
    ratio = log_prob.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    expected = -float(surrogate) + 0.25 * (1 + 1 + 4) / 4 - 0.125 * 2.5
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    assert float(metrics["clip_fraction"]) == 0.5


def test_a_step_is_no_longer_than_the_clipped_gradient() -> None:
    """With plain gradient descent, a minibatch moves the weights by the learning rate times the clipped norm."""
    for longest in (0.5, 0.05):
        agent = make(FEW, lr=2.0, optimizer="sgd", max_grad_norm=longest, update_epochs=1, minibatch_size=1000)
        before = torch.nn.utils.parameters_to_vector(agent.model.parameters()).detach()
        metrics = agent.train(play(agent, 64, 50.0)[0])
        moved = torch.nn.utils.parameters_to_vector(agent.model.parameters()).detach() - before
        assert float(metrics["grad_norm"]) > longest, "the norm before clipping"
        assert float(moved.norm()) == pytest.approx(2.0 * longest, rel=1e-3)


def test_normalized_rewards_are_cut_at_ten_at_both_ends() -> None:
    agent = make(FEW, normalize_rewards=True)
    ends = torch.ones(2000)
    usual = torch.ones(2000) * torch.tensor([1.0, -1.0]).repeat(1000)
    agent._scaled(usual, ends, None)
    rare = usual.clone()
    rare[0], rare[1], rare[2] = 1e3, -1e3, 3.0
    scaled = agent._scaled(rare, ends, None)
    assert scaled[:2].tolist() == [10.0, -10.0]
    assert 0.0 < float(scaled[2]) < 10.0


def test_a_checkpoint_can_hold_it() -> None:
    agent = make(BOX)
    agent.train(play(agent, 16, 0.0)[0])

    class Training:
        def __init__(self) -> None:
            self.agent = agent

    assert capture(Training()).arrays


def test_observations_count_in_statistics_after_their_round_is_trained() -> None:
    agent = make(FEW, normalize_observations=True, update_epochs=1, minibatch_size=1000)
    actor = agent.get_actor()
    batch, _ = play(agent, 64, 5.0)
    batch[0].mul_(4.0).add_(3.0)
    metrics = agent.train(batch)
    torch.testing.assert_close(actor.obs_mean, batch[0].mean(dim=0))
    torch.testing.assert_close(actor.obs_std, batch[0].std(dim=0, unbiased=False))
    again, _ = play(agent, 64, 5.0, seed=1)
    metrics = agent.train(again)
    assert float(metrics["kl"]) == pytest.approx(0.0, abs=1e-6), "trained on as it was acted on"
    torch.testing.assert_close(actor.obs_mean, torch.cat([batch[0], again[0]]).mean(dim=0))


def test_rewards_are_scaled_by_the_spread_of_their_sums() -> None:
    weights = []
    for factor in (1.0, 1024.0):
        agent = make(BOX, normalize_rewards=True, update_epochs=2)
        for number in range(3):
            batch, _ = play(agent, 64, 0.5, seed=number)
            batch[2].mul_(factor)
            agent.train(batch)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in agent.model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-5)


def in_rounds(sizes: list[int]) -> Iterator[Any]:
    """Transitions of two streams, in rounds that bring so many of each; an episode has seven steps."""
    rng = np.random.default_rng(5)
    total = sum(sizes)
    reward = torch.from_numpy(rng.normal(3.0, 1.0, (2, total)).astype(np.float32))
    step = torch.arange(total)
    done = 0
    for size in sizes:
        rows = torch.arange(done, done + size)
        ended = (step[rows] % 7 == 6).float()
        cut = ended.clone()
        cut[-1] = 1.0
        episode, number = step[rows] // 7, step[rows] % 7 + 1
        places = torch.cat([torch.stack([torch.full((size,), stream), episode, number], 1) for stream in (-3, 8)])
        extras = {"logp": torch.full((2 * size,), -1.1), ENDS: cut.repeat(2), PLACES: places}
        obs = torch.zeros(2 * size, 2)
        action = torch.full((2 * size,), 5)
        yield obs, action, reward[:, rows].reshape(-1), obs, 0 * extras[ENDS], ended.repeat(2), extras
        done += size


@pytest.mark.parametrize("sizes", [[20, 20, 20], [1, 33, 2, 24]])
def test_sums_of_rewards_continue_over_rounds_within_an_episode(sizes: list[int]) -> None:
    found = []
    for cut in ([60], sizes):
        agent = make(FEW, normalize_rewards=True, update_epochs=1, gamma=0.9)
        for batch in in_rounds(cut):
            agent.train(batch)
        assert agent.returns is not None
        found.append((float(agent.returns.count), float(agent.returns.mean), float(agent.returns.std)))
    assert found[1] == pytest.approx(found[0], rel=1e-12)


def test_sums_of_rewards_restart_after_gaps_and_without_places() -> None:
    means = []
    for change in ("nothing", "a gap", "no places"):
        agent = make(FEW, normalize_rewards=True, update_epochs=1, gamma=0.9)
        first, second = in_rounds([3, 2])
        if change == "a gap":
            second[6][PLACES][:, 2] += 1
        elif change == "no places":
            del second[6][PLACES]
        for batch in (first, second):
            agent.train(batch)
        assert agent.returns is not None
        means.append(float(agent.returns.mean))
    assert means[1] == means[2] < means[0]


def test_sums_of_rewards_continue_after_a_checkpoint() -> None:
    class Training:
        def __init__(self, seed: int) -> None:
            self.agent = make(FEW, seed, normalize_rewards=True)

    trained, other = Training(0), Training(1)
    first, second = in_rounds([20, 20])
    trained.agent.train(first)
    captured = capture(trained)
    restore(other, json.loads(json.dumps(captured.tree)), captured.arrays)
    for training in (trained, other):
        torch.manual_seed(0)
        training.agent.train(second)
    pairs = zip(trained.agent.model.parameters(), other.agent.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert trained.agent.returns is not None
    assert other.agent.returns is not None
    assert torch.equal(trained.agent.returns.std, other.agent.returns.std)


def test_normalization_statistics_are_part_of_a_checkpoint() -> None:
    class Training:
        def __init__(self, seed: int) -> None:
            self.agent = make(BOX, seed, normalize_observations=True, normalize_rewards=True)

    trained, other = Training(0), Training(1)
    trained.agent.train(play(trained.agent, 16, 0.0)[0])
    captured = capture(trained)
    restore(other, captured.tree, captured.arrays)
    assert other.agent.observations is not None
    assert other.agent.returns is not None
    assert float(other.agent.observations.count) == 16
    torch.testing.assert_close(other.agent.get_actor().obs_std, trained.agent.get_actor().obs_std, rtol=0, atol=0)
    batch, _ = play(trained.agent, 16, 0.0)
    assert play(other.agent, 16, 0.0)[1] == play(trained.agent, 16, 0.0)[1]
    first, second = trained.agent.train(batch), other.agent.train(batch)
    assert float(first["loss_critic"]) == float(second["loss_critic"])


@pytest.mark.parametrize(("optimizer", "eps"), [("adam", 1e-5), ("adamw", 1e-5), ("sgd", None)])
def test_small_gradients_do_not_become_full_steps(optimizer: str, eps: float | None) -> None:
    assert make(FEW, optimizer=optimizer).optimizer.defaults.get("eps") == eps
    if eps is not None:
        assert make(FEW, optimizer=optimizer, adam_eps=1e-3).optimizer.defaults["eps"] == 1e-3


def test_minibatches_of_one_are_refused_where_advantages_are_normalized() -> None:
    """None of their updates would be made."""
    made_for = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.minibatch_size: found 1, allowed: at least 2"):
        PPOAgent(*made_for, minibatch_size=1)
    PPOAgent(*made_for, minibatch_size=1, normalize_advantages=False)
