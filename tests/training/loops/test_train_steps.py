"""Several updates at once: the same numbers as one by one, in agents, in recordings of them and in the loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch

from tests.training.loops.test_training_loop import Fed
from tests.training.updates.test_compiled import (
    ACTIONS,
    AGENTS,
    CHEAP,
    OBSERVATIONS,
    batch,
    is_discrete,
    make,
    with_masks,
)
from tests.training.updates.test_cuda_graphs import capture_here, make_replayed, other_numbers, stale
from tmrl_core.training import ReplayMemory
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents import off_policy
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.loops import update_batching as at_once
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.loops.update_batching import UpdatesAtOnce
from tmrl_core.training.updates import compiled
from tmrl_core.training.updates.rollback import agent_tensors
from tmrl_core.training.updates.skipped_updates import SKIPPED


def batches(name: str, count: int, *, extras: bool = False) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    found = [batch(generator, is_discrete(name), extras=extras) for _ in range(count)]
    return [with_masks(rows, generator) for rows in found] if "mask" in name else found


def in_groups(agent: Any, given: list[Any], size: int) -> list[dict[str, float]]:
    torch.manual_seed(0)
    made: list[dict[str, Any]] = []
    for start in range(0, len(given), size):
        made += agent.train_steps(given[start : start + size])
    return [{name: float(value) for name, value in metrics.items()} for metrics in made]


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(agent_tensors(one), agent_tensors(other), strict=True))


@pytest.mark.parametrize(
    ("name", "fast"),
    [
        *((name, False) for name in AGENTS),
        # As one recording: `test_several_updates_are_captured_as_one`.
        *(pytest.param(name, True, marks=pytest.mark.full) for name in ("noisy dqn", "sac", "redq", "dqn")),
    ],
)
def test_batched_updates_equal_single_ones(name: str, fast: bool) -> None:
    one, several = make(name, fast), make(name, fast)
    given = batches(name, 11, extras=True)
    given[6][2][3] = math.nan
    expected = in_groups(one, given, 1)
    assert in_groups(several, given, 5) == expected
    assert [SKIPPED in metrics for metrics in expected] == [number == 6 for number in range(11)]
    assert same(one, several)
    assert torch.equal(one.td_error_B, several.td_error_B)
    assert one.updates_asked == several.updates_asked == 11
    assert getattr(one, "updates", 0) == getattr(several, "updates", 0)
    assert bool(several.compiler._graphs) == fast


def test_compilation_and_changed_learning_rates_take_effect_at_the_same_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(off_policy, "COMPILE_AFTER", 4)
    one, several = make(CHEAP, True), make(CHEAP, True)
    ran: dict[int, list[int]] = {}
    for agent in (one, several):
        agent.settings.compile = "auto"

        def noting(given: Any, agent: Any = agent, inner: Any = agent.compiler.updates) -> Any:
            made = inner(given)
            ran.setdefault(id(agent), []).append(len(made))
            return made

        agent.compiler.updates = noting
    given = batches(CHEAP, 13)
    assert in_groups(one, given[:9], 1) == in_groups(several, given[:9], 9)
    assert (ran[id(one)], ran[id(several)]) == ([1] * 5, [5])
    assert same(one, several)
    for agent in (one, several):
        agent.optimizer.param_groups[0]["lr"] = 0.1
    assert in_groups(one, given[9:], 1) == in_groups(several, given[9:], 4)
    assert same(one, several)


def test_an_agent_with_a_custom_train_is_called_for_each_update() -> None:
    class Own(SacAgent):
        def train(self, batch: Any) -> dict[str, Any]:
            return {**super().train(batch), "mine": 1.0}

    agent = Own(OBSERVATIONS, ACTIONS, "cpu", compile=False, hidden_sizes=(8, 8))
    assert [metrics["mine"] for metrics in agent.train_steps(batches("sac", 3))] == [1.0] * 3


# --- recordings of several --------------------------------------------------------------------------------------------


class Counted:
    """A recorder that counts how often what it has recorded is replayed, by how many results that has."""

    def __init__(self) -> None:
        self.replays: dict[int, int] = {}

    def __call__(self, work: Any, device: torch.device) -> Any:
        replay, results = capture_here(work, device)

        def counted() -> None:
            self.replays[len(results)] = self.replays.get(len(results), 0) + 1
            replay()

        return counted, results


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("noisy dqn", True),
        *(
            pytest.param(name, extras, marks=pytest.mark.full)
            for name, extras in (("sac", False), ("redq", True), ("td3", False), ("dqn", True))
        ),
    ],
)
def test_several_updates_are_captured_as_one(name: str, extras: bool) -> None:
    recorder = Counted()
    one, several = make_replayed(name), make_replayed(name, recorder)
    given = batches(name, 3 + 3 * compiled.AT_ONCE, extras=extras)
    given[3 + compiled.AT_ONCE][2][0] = math.inf
    expected = in_groups(one, given, 1)
    torch.manual_seed(0)
    made = several.train_steps(given[:3])
    recorder.replays.clear()
    made += several.train_steps(given[3:])
    found = [{key: float(value) for key, value in metrics.items()} for metrics in made]
    assert found == expected
    assert SKIPPED in found[3 + compiled.AT_ONCE]
    assert same(one, several)
    if extras:
        assert torch.equal(one.td_error_B, several.td_error_B)
    runs = [run for run in several.compiler._runs.values() if run is not None]
    assert runs
    # Each is replayed once to be compared, and then for what it was made for.
    replays = sum(count for results, count in recorder.replays.items() if results > compiled.AT_ONCE)
    assert replays == len(runs) + 3


@pytest.mark.parametrize("record", [pytest.param(stale, marks=pytest.mark.full), other_numbers])
def test_an_invalid_capture_of_several_updates_is_not_used(record: Any) -> None:
    calls = []

    def right_once(work: Any, device: torch.device) -> Any:
        calls.append(work)
        return capture_here(work, device) if len(calls) == 1 else record(work, device)

    one, several = make(CHEAP, True), make_replayed(CHEAP, right_once)
    given = batches(CHEAP, 2 + 2 * compiled.AT_ONCE)
    assert in_groups(several, given, 2 + 2 * compiled.AT_ONCE) == in_groups(one, given, 1)
    assert len(calls) == 2
    assert list(several.compiler._runs.values()) == [None]
    assert same(one, several)


# --- the loop ---------------------------------------------------------------------------------------------------------


class Watched(SacAgent):
    """Notes how many updates were asked for at once."""

    def __init__(self, **spaces: Any) -> None:
        super().__init__(**{**spaces, "device": "cpu"}, compile=False, hidden_sizes=(8, 8))
        self.groups: list[int] = []

    @property
    def updates(self) -> int:
        """For `Fed`."""
        return self.updates_asked

    def train(self, batch: Any) -> dict[str, Any]:
        self.groups.append(1)
        return self._train_steps([batch])[0]

    def train_steps(self, batches: Sequence[Any]) -> list[dict[str, Any]]:
        self.groups.append(len(batches))
        return self._train_steps(batches)


def run(
    make_rows: Any, monkeypatch: pytest.MonkeyPatch, most: int, memory: Any = None, **settings: Any
) -> tuple[Any, Fed]:
    monkeypatch.setattr(at_once, "MAX_AT_ONCE", most)
    monkeypatch.setattr(at_once, "AT_ONCE_S", 1e9)
    torch.manual_seed(0)
    interface = Fed(make_rows, 30)
    defaults: dict[str, Any] = {
        "epochs": 1,
        "rounds": 2,
        "steps": 30,
        "update_model_interval": 24,
        "update_buffer_interval": 40,
        "max_training_steps_per_env_step": 1e9,
        "start_training": 20,
        "sleep_between_buffer_retrieval_attempts": 0.0,
    }
    looped = TrainingOffline(
        (OBSERVATIONS, ACTIONS),
        memory or (lambda nb_steps, device: ReplayMemory(device, nb_steps, memory_size=10_000, batch_size=4, seed=3)),
        Watched,
        **{**defaults, **settings},
    )
    interface.agent = looped.agent
    torch.manual_seed(0)
    looped.run_epoch(interface)
    return looped, interface


CASES: dict[str, dict[str, Any]] = {
    "free": {},
    "ratio": {"max_training_steps_per_env_step": 1.3},
    "samples per insert": {"samples_per_insert": 6.0, "error_buffer": 60.0},
    "often": {"update_model_interval": 11, "update_buffer_interval": 7},
}


@pytest.mark.parametrize(
    "case", [case if case in ("ratio", "often") else pytest.param(case, marks=pytest.mark.full) for case in CASES]
)
def test_the_loop_does_not_depend_on_the_batching_of_updates(
    make_rows: Any, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    one, one_interface = run(make_rows, monkeypatch, 1, **CASES[case])
    several, interface = run(make_rows, monkeypatch, 16, **CASES[case])
    assert set(one.agent.groups) == {1}
    assert max(several.agent.groups) > (1 if case == "often" else 7)
    assert sum(several.agent.groups) == several.total_updates == 60
    assert interface.asked == one_interface.asked
    assert [p.updates for p in interface.reports] == [p.updates for p in one_interface.reports]
    assert same(several.agent, one.agent)
    assert several.limiter.state_dict() == one.limiter.state_dict()
    clocks = ("time", "duration", "per_s")
    for row, expected in zip(interface.rows, one_interface.rows, strict=True):
        assert row.keys() == expected.keys()
        assert all(row[name] == pytest.approx(expected[name], nan_ok=True) for name in row if not name.endswith(clocks))


def test_updates_that_the_ratio_allows_are_batched(make_rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looped, _ = run(make_rows, monkeypatch, 16, max_training_steps_per_env_step=0.2, update_buffer_interval=1000)
    # Sixty samples allow twelve updates and, strictly, one more; blocks have 1, 1, 2, 4 and 8 batches.
    assert looped.agent.groups[:5] == [1, 1, 2, 4, 5]
    assert looped.total_updates / looped.total_samples <= 0.2 + 1 / looped.total_samples


def test_priorities_are_updated_after_each_update(make_rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def prioritized(nb_steps: int, device: Any) -> ReplayMemory:
        return ReplayMemory(device, nb_steps, memory_size=10_000, batch_size=4, seed=3, priority={})

    looped, _ = run(make_rows, monkeypatch, 16, prioritized)
    assert set(looped.agent.groups) == {1}


def test_long_updates_are_made_separately(make_rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looped, _ = run(make_rows, monkeypatch, 16)
    monkeypatch.setattr(at_once, "AT_ONCE_S", 0.0)
    looped.agent.groups.clear()
    looped.epochs = 2
    interface = Fed(make_rows, 30)
    interface.agent = looped.agent
    looped._at_once = UpdatesAtOnce(looped.agent)
    looped.run_epoch(interface)
    assert set(looped.agent.groups) == {1}


def test_an_agent_without_train_steps_makes_single_updates() -> None:
    class Plain(TrainingAgent):
        def train(self, batch: Any) -> dict[str, Any]:
            return {"loss": float(batch)}

        def get_actor(self) -> None:
            return None

    agent = Plain(OBSERVATIONS, ACTIONS, "cpu")
    assert agent.train_steps([1, 2]) == [{"loss": 1.0}, {"loss": 2.0}]
    asked = UpdatesAtOnce(agent)
    asked.note(1, 1e-5)
    assert asked.most(ReplayMemory()) == 1


def test_a_skipped_update_in_a_batch_is_described_by_its_columns(
    make_rows: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    described = []
    for most in (1, 16):

        def poisoned(nb_steps: int, device: Any) -> ReplayMemory:
            memory = ReplayMemory(device, nb_steps, memory_size=10_000, batch_size=2, seed=3)
            rows = make_rows(1, 999, 0, 5)
            rows.reward[:] = math.nan
            memory.append_chunk(rows)
            return memory

        caplog.clear()
        looped, _ = run(make_rows, monkeypatch, most, poisoned, max_bad_updates=1000)
        described.append([record.message for record in caplog.records if "was skipped" in record.message])
        assert looped.updates_skipped == len(described[-1]) > 1
    assert described[0] == described[1]


def test_an_agent_can_tell_whoever_watches(make_rows: Any) -> None:
    class Telling(Watched):
        def train(self, batch: Any) -> Any:
            assert self.on_notice is not None
            self.on_notice("compiling", "no update is made meanwhile")
            return super().train(batch)

    class Hearing(Fed):
        heard: ClassVar[list[tuple[str, str]]] = []

        def event(self, event: str, message: str = "") -> None:
            self.heard.append((event, message))

    interface = Hearing(make_rows, 30)
    looped = TrainingOffline(
        (OBSERVATIONS, ACTIONS),
        lambda nb_steps, device: ReplayMemory(device, nb_steps, memory_size=100, batch_size=4, seed=3),
        Telling,
        epochs=1,
        rounds=1,
        steps=2,
        start_training=1,
    )
    interface.agent = looped.agent
    looped.run_epoch(interface)
    assert interface.heard[0] == ("compiling", "no update is made meanwhile")
