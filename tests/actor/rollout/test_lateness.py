"""Lateness of steps at a fixed rate: an elastic clock, a count and a percentile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.actor.rollout.composing import compose
from tmrl_core.actor.rollout.lateness import RECENT_STEPS, Lateness, LatenessFigures, lateness_text

STEP_S = 0.02


def noted(*ends: float, elasticity_s: float = STEP_S) -> LatenessFigures:
    """Figures of one episode that begins at 0, whose steps end at these times."""
    lateness = Lateness()
    lateness.begin(0.0, STEP_S, elasticity_s)
    for end in ends:
        lateness.note(end)
    return lateness.figures


def test_steps_on_time_are_not_late() -> None:
    found = noted(*(STEP_S * step for step in range(1, 100)))
    assert found[:2] == (99, 0)
    assert found.p999_s < 1e-6


def test_a_step_is_late_beyond_a_tenth_of_its_time() -> None:
    assert noted(0.0219).late_steps == 0
    assert noted(0.0221).late_steps == 1


def test_later_steps_are_due_at_their_own_time() -> None:
    assert noted(0.035, 0.040, 0.060).late_steps == 1
    assert noted(0.035, 0.055, 0.075).late_steps == 3


def test_the_clock_begins_anew_beyond_the_elasticity() -> None:
    assert noted(1.0, 1.02, 1.04).late_steps == 1
    assert noted(1.0, 1.02, 1.04, elasticity_s=1e6).late_steps == 3


def test_a_step_that_ends_early_moves_the_clock() -> None:
    # The first observation may be returned after the time step has begun.
    assert noted(0.015, 0.035, 0.055, 0.0745, 0.0971).late_steps == 1


def test_an_episode_begins_the_clock_anew() -> None:
    lateness = Lateness()
    for start in (0.0, 100.0):
        lateness.begin(start, STEP_S, STEP_S)
        lateness.note(start + STEP_S)
    assert lateness.figures[:2] == (2, 0)


@pytest.mark.parametrize("scale_s", [1e-4, 1e-3])
def test_the_percentile_is_that_of_the_steps(scale_s: float) -> None:
    delays = np.random.default_rng(0).exponential(scale_s, 20_000)
    found = noted(*(STEP_S * (step + 1) + delay for step, delay in enumerate(delays)), elasticity_s=1.0)
    assert found.steps == 20_000
    assert found.late_steps == pytest.approx(np.count_nonzero(delays > STEP_S / 10), abs=2)
    recent = np.percentile(delays[-RECENT_STEPS:], 99.9)
    assert recent * 0.9 < found.p999_s < recent * 1.2


def test_the_percentile_is_of_recent_steps() -> None:
    late = [STEP_S * step + 0.01 for step in range(1, RECENT_STEPS)]
    on_time = [STEP_S * step for step in range(RECENT_STEPS, 3 * RECENT_STEPS)]
    found = noted(*late, *on_time, elasticity_s=1.0)
    assert found.p999_s < 1e-5


@pytest.mark.parametrize("late_s", [-1e9, 1e-9, 1e9])
def test_any_time_is_counted(late_s: float) -> None:
    assert noted(STEP_S + late_s).steps == 1


def test_one_late_step_among_few_is_the_percentile() -> None:
    assert noted(*(STEP_S * step for step in range(1, 50)), 50 * STEP_S + 0.01).p999_s == pytest.approx(0.01, rel=0.1)


def test_a_worker_measures_environments_with_a_rate(counting_env: Any, constant_actor: Any) -> None:
    assert compose(counting_env, constant_actor).lateness is None

    class AtARate(counting_env):  # type: ignore[misc]
        time_step_duration = 1e6

    worker = compose(AtARate, constant_actor)
    worker.run(nb_episodes=2, verbose=False)
    assert worker.lateness == (10, 0, 0.0)
    worker.reset(collect_samples=False)
    worker.step(np.zeros(3, np.float32), test=True, collect_samples=False)
    assert worker.lateness.steps == 11
    worker.run_env_benchmark(3, verbose=False)
    assert worker.lateness.steps == 14


@pytest.mark.parametrize("duration", [None, 0, "20 ms", lambda: 0.02])
def test_an_attribute_of_that_name_without_a_duration_is_no_rate(
    counting_env: Any, constant_actor: Any, duration: Any
) -> None:
    class Other(counting_env):  # type: ignore[misc]
        time_step_duration = duration

    worker = compose(Other, constant_actor)
    worker.run(nb_episodes=1, verbose=False)
    assert worker.lateness is None


def test_a_subclass_that_steps_itself_is_measured(counting_env: Any, constant_actor: Any) -> None:
    from tmrl_core.actor.rollout.worker import Worker

    class Own(Worker):
        def step(self, *args: Any, **kwargs: Any) -> Any:
            return super().step(*args, **kwargs)

    class AtARate(counting_env):  # type: ignore[misc]
        time_step_duration = 1e-9

    worker = compose(AtARate, constant_actor, kind=Own)
    worker.run(nb_episodes=1, verbose=False)
    assert worker.lateness is not None
    assert worker.lateness[:2] == (5, 5)


def test_the_text_has_the_figures() -> None:
    text = lateness_text(LatenessFigures(9_000, 12, 0.00123))
    assert text == "12 of 9,000 steps late, 99.9th percentile of lateness 1.2 ms"
