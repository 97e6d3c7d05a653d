"""Compiled updates against plain ones. What the graph computes is tested without a compiler, which takes a minute."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from tmrl_core import training
from tmrl_core.errors import ConfigError
from tmrl_core.metrics import names
from tmrl_core.training.agents import off_policy
from tmrl_core.training.agents.dqn import DQNAgent
from tmrl_core.training.agents.optimizers import optimizer_metrics
from tmrl_core.training.batches import Transitions, transitions_of
from tmrl_core.training.updates import compiled
from tmrl_core.training.updates.decompositions import product
from tmrl_core.training.updates.rollback import agent_tensors
from tmrl_core.training.updates.skipped_updates import SKIPPED
from tmrl_core.training.updates.update_graph import Backend, Graph

OBSERVATIONS = gym.spaces.Box(-8, 8, (3,), np.float32)
ACTIONS = gym.spaces.Box(-2, 2, (1,), np.float32)
CHOICES = gym.spaces.Discrete(4, start=1)
MASKED = gym.spaces.Dict({"x": OBSERVATIONS, "action_mask": gym.spaces.MultiBinary(4)})
SMALL: dict[str, Any] = {"hidden_sizes": (8,)}
DEEP: dict[str, Any] = {"hidden_sizes": (8, 8)}
WIDE: dict[str, Any] = {"hidden_sizes": (16, 16)}


class NoisyDQN(DQNAgent):
    """The smallest graphs that have all that compiling must keep: random numbers, counters, two kinds of update."""

    def update_kind(self) -> Hashable:
        return super().update_kind()

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        noise = torch.randn_like(transitions.reward_B)
        return super().update(transitions._replace(reward_B=transitions.reward_B + 0.1 * noise))


class ScaledDQN(NoisyDQN):
    """A number among its attributes enters its update."""

    factor = 1.0

    def update_kind(self) -> Hashable:
        return super().update_kind()

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        return super().update(transitions._replace(reward_B=self.factor * transitions.reward_B))


AGENTS: dict[str, Callable[[], Any]] = {
    "sac": lambda: training.SacAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL),
    "sac, fixed temperature": lambda: training.SacAgent(
        OBSERVATIONS, ACTIONS, "cpu", learn_entropy_coef=False, optimizer_actor="adamw", l2_critic=0.01, **SMALL
    ),
    "sac, plain descent": lambda: training.SacAgent(OBSERVATIONS, ACTIONS, "cpu", optimizer_actor="sgd", **SMALL),
    # Wide enough for gradients that are matrix products. Smaller products are written out (decompositions.py).
    "sac, wide, plain descent": lambda: training.SacAgent(
        OBSERVATIONS, ACTIONS, "cpu", optimizer_actor="sgd", optimizer_critic="sgd", lr_actor=1e-3, **WIDE
    ),
    "sac, wide, decay": lambda: training.SacAgent(
        OBSERVATIONS, ACTIONS, "cpu", l2_actor=0.01, l2_critic=0.01, lr_actor=1e-3, **WIDE
    ),
    "redq": lambda: training.REDQSACAgent(OBSERVATIONS, ACTIONS, "cpu", q_updates_per_policy_update=3, n=4, **SMALL),
    "tqc": lambda: training.TQCAgent(OBSERVATIONS, ACTIONS, "cpu", quantiles=5, **SMALL),
    # The bias of a unit that is always on has no gradient but that of rounding, of which Adam makes a whole step.
    "crossq": lambda: training.CrossQAgent(
        OBSERVATIONS, ACTIONS, "cpu", critic_sizes=(16,), optimizer_actor="sgd", optimizer_critic="sgd", **WIDE
    ),
    # Rates that fall at each update, as tensors.
    "flashsac": lambda: training.FlashSACAgent(
        OBSERVATIONS, ACTIONS, "cpu", width=8, critic_width=8, blocks=1, bins=11, lr_horizon=5, optimizer_actor="adamw"
    ),
    "td3": lambda: training.TD3Agent(OBSERVATIONS, ACTIONS, "cpu", **SMALL),
    "ddpg": lambda: training.DDPGAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL),
    "dqn": lambda: training.DQNAgent(OBSERVATIONS, CHOICES, "cpu", target_interval=3, **DEEP),
    "noisy dqn": lambda: NoisyDQN(OBSERVATIONS, CHOICES, "cpu", target_interval=4, optimizer="adamw", l2=0.01, **SMALL),
    "noisy dqn, one kind": lambda: NoisyDQN(OBSERVATIONS, CHOICES, "cpu", target_interval=1000, l2=0.01, **SMALL),
    "discrete sac": lambda: training.DiscreteSacAgent(OBSERVATIONS, CHOICES, "cpu", **SMALL),
    "dqn, action mask": lambda: training.DQNAgent(MASKED, CHOICES, "cpu", target_interval=3, **SMALL),
    "discrete sac, action mask": lambda: training.DiscreteSacAgent(MASKED, CHOICES, "cpu", **SMALL),
}
CHEAP = "noisy dqn, one kind"
"""Shows what holds of any agent: noting one of SAC takes six times as long."""


def is_discrete(name: str) -> bool:
    return "dqn" in name or "discrete sac" in name


def interpreted(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """A backend that runs the graph as it is, operation by operation."""
    return graph


def batch(generator: torch.Generator, discrete: bool, size: int = 16, extras: bool = False) -> tuple[Any, ...]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    action = torch.randint(1, 5, (size,), generator=generator) if discrete else normal(size, 1).clamp(-2, 2)
    terminated = (normal(size) > 1).float()
    rows: tuple[Any, ...] = (normal(size, 3), action, normal(size), normal(size, 3), terminated, torch.zeros(size))
    return (*rows, {"weights": normal(size).abs(), "discount": torch.full((size,), 0.9)}) if extras else rows


def with_masks(rows: tuple[Any, ...], generator: torch.Generator) -> tuple[Any, ...]:
    """The rows with masks, of which some allow no action."""
    masks = (torch.rand(2, len(rows[0]), 4, generator=generator) < 0.5).to(torch.int8)
    obs, next_obs = ({"x": x, "action_mask": mask} for x, mask in zip((rows[0], rows[3]), masks, strict=True))
    return (obs, *rows[1:3], next_obs, *rows[4:])


def train(agent: Any, discrete: bool, updates: int, *, seed: int = 0, extras: bool = False) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    batches = [batch(generator, discrete, extras=extras) for _ in range(updates)]
    if agent.observation_space is MASKED:
        batches = [with_masks(rows, generator) for rows in batches]
    return [agent.train(rows) for rows in batches]


def make(name: str, wanted: bool, backend: Backend = interpreted) -> Any:
    torch.manual_seed(1)
    agent = ScaledDQN(OBSERVATIONS, CHOICES, "cpu", **SMALL) if name == "scaled dqn" else AGENTS[name]()
    agent.settings.compile = wanted
    agent.compiler = compiled.Compiler(agent, backend)
    return agent


def assert_alike(one: Any, other: Any) -> None:
    """Equal but for rounding: what was compiled adds in another order."""
    for a, b in zip(agent_tensors(one), agent_tensors(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


class Given:
    """A backend that keeps what it is given."""

    def __init__(self) -> None:
        self.graphs: list[tuple[torch.fx.GraphModule, list[Tensor]]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        self.graphs.append((graph, list(inputs)))
        return graph


def assert_inputs_are_distinct(graph: torch.fx.GraphModule, inputs: list[Tensor], agent: Any) -> None:
    """A graph gets each of the agent's tensors once, and holds none itself."""
    held = [*graph.parameters(), *graph.buffers(), *(v for v in vars(graph).values() if isinstance(v, Tensor))]
    assert held == []
    kept = [tensor.untyped_storage().data_ptr() for tensor in agent_tensors(agent)]
    places = [tensor.untyped_storage().data_ptr() for tensor in inputs]
    assert all(places.count(place) == 1 for place in kept if place in places)


NO_SQUARES = (training.DQNAgent, training.TQCAgent, training.FlashSACAgent)
"""Agents with Huber losses, or with values between bounds: they take any finite reward."""


def assert_poison_changes_nothing(agent: Any, discrete: bool, extras: bool) -> None:
    """NaN or Inf in any column, or a reward whose square overflows, skips an update of whatever kind."""
    before = [tensor.detach().clone() for tensor in agent_tensors(agent)]
    for update in range(5 * 3):  # TD3 has two kinds of update, REDQ three in a row
        generator = torch.Generator().manual_seed(update)
        poisoned = batch(generator, discrete, extras=extras)
        if (column := update % 5) == 2 and update > 5 and not isinstance(agent, NO_SQUARES):
            poisoned[2][:] = 1e30  # finite, but not its square
        elif column == 1 and discrete:
            continue  # an index
        else:
            poisoned[column][2] = math.nan if update % 2 else math.inf
        rows = with_masks(poisoned, generator) if agent.observation_space is MASKED else poisoned
        assert agent.train(rows) == {SKIPPED: True}, f"column {column}"
        assert all(torch.equal(a, b) for a, b in zip(before, agent_tensors(agent), strict=True)), f"column {column}"
    assert SKIPPED not in train(agent, discrete, 1, seed=3, extras=extras)[0]
    assert not all(torch.equal(a, b) for a, b in zip(before, agent_tensors(agent), strict=True))


UNIFORM = ("noisy dqn",)
# REDQ does all that SAC does.
IN_EACH_CHANGE = ("redq", "td3", "noisy dqn", "discrete sac, action mask")


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        pytest.param(
            name,
            extras,
            id=f"{name}-{'weighted' if extras else 'uniform'}",
            marks=[] if (name in UNIFORM) != extras and name in IN_EACH_CHANGE else pytest.mark.full,
        )
        for name in AGENTS
        for extras in (False, True)
    ],
)
def test_a_compiled_update_equals_an_uncompiled_one_and_poison_changes_no_bit(name: str, extras: bool) -> None:
    given = Given()
    plain, fast = make(name, False), make(name, True, given)
    discrete = is_discrete(name)
    expected = train(plain, discrete, 7, extras=extras)
    drawn = torch.get_rng_state()
    found = train(fast, discrete, 7, extras=extras)
    assert torch.equal(torch.get_rng_state(), drawn), "random numbers have the same order"
    assert not fast.compiler.gave_up
    assert fast.compiler._graphs
    assert_alike(fast, plain)
    assert getattr(fast, "updates", 0) == getattr(plain, "updates", 0)
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert float(a[key]) == pytest.approx(float(b[key]), rel=1e-3, abs=1e-4)
    if extras:
        torch.testing.assert_close(fast.td_error_B, plain.td_error_B, rtol=1e-3, atol=1e-4)
    for graph, inputs in given.graphs:
        assert_inputs_are_distinct(graph, inputs, fast)
    assert_poison_changes_nothing(fast, discrete, extras)
    assert not fast.compiler.gave_up


def test_a_graph_serves_any_number_of_threads() -> None:
    agent = make(CHEAP, True)
    for threads in (1, 2, 1, 3):
        torch.set_num_threads(threads)
        train(agent, True, 2)
    torch.set_num_threads(1)
    assert len(agent.compiler._graphs) == 1


def test_gradients_of_some_updates_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(off_policy, "GRADIENTS_EVERY", 4)
    found = []
    for together in (1, 3):
        agent = make(CHEAP, True)
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        for _ in range(6 // together):
            agent.train_steps([batch(generator, discrete=True) for _ in range(together)])
        found.append(optimizer_metrics(agent))
    assert found[0] == found[1]  # the fourth's, whatever was asked for at once
    assert "grad_norm" in found[0]


def test_noting_an_update_changes_nothing() -> None:
    agent = make("redq", True)
    train(agent, False, 1)
    before = [tensor.clone() for tensor in agent_tensors(agent)]
    random, count = torch.get_rng_state(), agent.updates

    def update(*tensors: Tensor) -> list[Tensor]:
        return list(agent.update_here(transitions_of(tensors, 0.99)).values())

    assert Graph(agent, update, batch(torch.Generator(), False), interpreted)
    assert all(torch.equal(a, b) for a, b in zip(before, agent_tensors(agent), strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert agent.updates == count
    assert all(p.grad is None and p.requires_grad for p in agent.model.parameters())


def test_a_small_product_is_written_out() -> None:
    for m, k, n in [(20, 3, 20), (20, 3, 2), (20, 20, 2), (2, 20, 20), (5, 1, 20)]:
        for transposed in (False, True):
            a, b = torch.randn(m, k), torch.randn(n, k).t() if transposed else torch.randn(k, n)
            torch.testing.assert_close(product(a, b), a @ b)
            a, b = torch.stack([a, a + 1.0]), torch.stack([b.t(), b.t() + 1.0]).transpose(1, 2)
            torch.testing.assert_close(product(a, b), torch.bmm(a, b))


@pytest.mark.parametrize("name", [pytest.param("sac, wide, plain descent", marks=pytest.mark.full), "sac, wide, decay"])
def test_no_sum_with_a_factor_is_left_to_the_compiler(name: str) -> None:
    # Inductor forgets the factor if a term is a matrix product.
    given = Given()
    agent = make(name, True, given)
    train(agent, False, 2)
    nodes = [node for graph, _ in given.graphs for node in graph.graph.nodes]
    assert any(node.target is torch.ops.aten.mm.default for node in nodes)
    sums = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
    assert not [node for node in nodes if node.target in sums and "alpha" in node.kwargs]


def test_a_constantly_changing_rate_is_used_and_ends_compilation(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "MAX_GRAPHS", 2)
    plain, fast = make(CHEAP, False), make(CHEAP, True)
    for number in range(compiled.MAX_GRAPHS + 2):
        for agent in (plain, fast):
            agent.optimizer.param_groups[0]["lr"] = 0.001 * 10**number
            train(agent, True, 2, seed=number)
        assert fast.compiler.gave_up == (number >= compiled.MAX_GRAPHS)
        assert_alike(fast, plain)
    assert "learning rates" in caplog.text


def test_settings_and_numbers_that_a_schedule_changes_are_used() -> None:
    def halve_learning_share(agent: Any) -> None:
        agent.settings.polyak, agent.settings.target_interval = 0.5, 1

    def scale(agent: Any) -> None:
        agent.factor = 3.0

    plain, fast = make("scaled dqn", False), make("scaled dqn", True)
    for number, change in enumerate((lambda agent: None, halve_learning_share, scale)):
        for agent in (plain, fast):
            change(agent)
            train(agent, True, 3, seed=number)
    assert not fast.compiler.gave_up
    assert_alike(fast, plain)


def test_loaded_optimizers_are_used() -> None:
    fast, plain = make(CHEAP, True), make(CHEAP, False)
    for agent in (plain, fast):
        train(agent, True, 3)
        saved = copy.deepcopy(agent.optimizer.state_dict())
        train(agent, True, 3, seed=1)
        agent.optimizer.load_state_dict(saved)
        train(agent, True, 3, seed=2)
    assert_alike(fast, plain)


def test_without_a_compiler_one_line_is_logged_and_results_are_equal(caplog: pytest.LogCaptureFixture) -> None:
    def no_compiler(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Any:
        raise RuntimeError("No working C++ compiler found\nand more")

    plain, fast = make(CHEAP, False), make(CHEAP, True, no_compiler)
    caplog.set_level(logging.WARNING)
    train(plain, True, 5)
    train(fast, True, 5)
    assert [record.message for record in caplog.records] == [
        "updates run uncompiled, which affects their speed only: RuntimeError: No working C++ compiler found"
    ]
    assert all(torch.equal(a, b) for a, b in zip(agent_tensors(fast), agent_tensors(plain), strict=True))


def test_whoever_watches_is_told_that_an_update_is_compiled() -> None:
    agent = make(CHEAP, True)
    told: list[tuple[str, str]] = []
    agent.on_notice = lambda event, message: told.append((event, message))
    train(agent, True, 3)
    assert [event for event, _ in told] == [names.EVENT_COMPILING, names.EVENT_COMPILED]
    assert "no update is made meanwhile" in told[0][1]
    assert told[1][1].startswith("compiled in ")


def test_a_subclass_without_update_kinds_is_not_compiled() -> None:
    class Own(training.SacAgent):  # type: ignore[misc]
        pass

    agent = Own(OBSERVATIONS, ACTIONS, "cpu", compile=True, **SMALL)
    agent.compiler = compiled.Compiler(agent, interpreted)
    train(agent, False, 3)
    assert not agent.compiler._graphs


def test_short_runs_are_not_compiled_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_core.training.agents.off_policy.COMPILE_AFTER", 5)
    agent = make(CHEAP, True)
    agent.settings.compile = "auto"
    train(agent, True, 5)
    assert not agent.compiler._graphs
    train(agent, True, 1)
    assert agent.compiler._graphs


def test_code_is_not_loaded_from_where_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can write"):
        compiled._check_cache()
    tmp_path.chmod(0o700)
    compiled._check_cache()


@pytest.mark.parametrize("setting", [{"compile": "yes"}, {"precision": "float16"}])
def test_an_unknown_compute_mode_is_refused(setting: Any) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        training.SacAgent(OBSERVATIONS, ACTIONS, "cpu", **setting)


def test_bfloat16_applies_to_products_but_not_to_stored_values() -> None:
    agent = make("sac", False)
    agent.settings.precision = "bfloat16"
    metrics = train(agent, False, 3)
    assert all(tensor.dtype == torch.float32 for tensor in agent_tensors(agent))
    assert all(value.dtype == torch.float32 for value in metrics[-1].values())
    exact = make("sac", False)
    train(exact, False, 3)
    assert not torch.equal(agent.critics.net[0].weight, exact.critics.net[0].weight)
    torch.testing.assert_close(agent.critics.net[0].weight, exact.critics.net[0].weight, rtol=0.1, atol=0.02)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_rates_that_change_at_each_update_need_no_further_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain, fast = make("flashsac", False), make("flashsac", True, compiled.inductor)
    train(plain, False, 100)
    train(fast, False, 100)
    assert len(fast.compiler._graphs) == 2, "one for each kind of update"
    for a, b in zip(agent_tensors(fast), agent_tensors(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    rate = optimizer_metrics(fast)["learning_rate"]
    assert rate == optimizer_metrics(plain)["learning_rate"] == pytest.approx(1.5e-4)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["sac", "sac, wide, plain descent", "sac, wide, decay", "redq", "crossq"])
def test_really_compiled_updates_are_equal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain, fast = make(name, False), make(name, True, compiled.inductor)
    train(plain, False, 50)
    train(fast, False, 50)
    assert not fast.compiler.gave_up
    assert_alike(fast, plain)
    before = [tensor.detach().clone() for tensor in agent_tensors(fast)]
    for poison in (math.nan, math.inf, 1e30):
        bad = batch(torch.Generator().manual_seed(1), False)
        bad[2][2] = poison
        assert fast.train(bad) == {SKIPPED: True}
    assert all(torch.equal(a, b) for a, b in zip(before, agent_tensors(fast), strict=True))
