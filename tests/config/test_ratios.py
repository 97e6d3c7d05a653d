"""The check of the ratios against a slow, obvious simulation of the rules that it judges."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

from tmrl_core.config import Config, from_values, ratios_conflict, ratios_warning
from tmrl_core.rate_limit import exact


def synchronous(**keys: float | bool) -> Config:
    """A configuration with synchronous collection and a short training."""
    worker_keys = {k: keys[k] for k in ("initial_steps", "max_steps_per_update", "end_episodes") if k in keys}
    trainer_keys = {
        k: keys[k] for k in ("start_training", "update_model_interval", "max_training_steps_per_env_step") if k in keys
    }
    return from_values(
        {
            "worker": {"collection": "synchronous", **worker_keys},
            "trainer": {"epochs": 1, "rounds": 1, "steps": keys.get("steps", 40), **trainer_keys},
        }
    )


def finishes(config: Config, workers: int, lengths: random.Random | None = None, longest: int = 0) -> bool:
    """Play both rules, one move at a time, until the trainer has ended or nobody can move.

    Args:
        config: the configuration.
        workers: how many workers collect.
        lengths: draws the lengths of episodes; None: every step is asked for alone.
        longest: longest episode, the reset not counted.
    """
    trainer = config.trainer
    ratio = exact(trainer.max_training_steps_per_env_step)
    total = trainer.epochs * trainer.rounds * trainer.steps
    workers_moves = [Worker(config) for _ in range(workers)]
    updates, versions = 0, 1
    while updates < total:
        moved = False
        for one in workers_moves:
            samples = sum(other.sent for other in workers_moves)
            if one.may_begin(samples, updates, versions):
                one.collect(1 if lengths is None else 1 + lengths.randint(1, longest))
                moved = True
        samples = sum(other.sent for other in workers_moves)
        if (
            samples >= max(1, trainer.start_training)
            and updates <= ratio * samples
            and in_band(config, samples, updates)
        ):
            updates += 1
            versions += updates % trainer.update_model_interval == 0
            moved = True
        if not moved:
            return False
    return True


def in_band(config: Config, samples: int, updates: int) -> bool:
    """Whether the limiter lets one more update pass."""
    limiter, start = config.trainer.limiter, max(1, config.trainer.start_training)
    if limiter.samples_per_insert is None:
        return True
    assert limiter.error_buffer is not None
    due = exact(limiter.samples_per_insert) * (samples - start)
    return (updates + 1) * config.memory.batch_size - due <= exact(limiter.error_buffer)


class Worker:
    """The rules of one worker, asked before each step, or before each episode."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.sent = 0
        self.counted = 0
        self.initial = True

    def may_begin(self, samples: int, updates: int, versions: int) -> bool:
        worker = self.config.worker
        if worker.collection == "asynchronous":
            assert worker.max_env_steps_per_update is not None
            rate = exact(worker.max_env_steps_per_update)
            return samples <= self.config.trainer.start_training + rate * (updates + 1)
        assert worker.max_steps_per_update is not None
        if self.initial and self.counted < worker.initial_steps:
            return True
        allowed = Fraction(self.counted + 1, 1 + versions) <= exact(worker.max_steps_per_update)
        if self.initial and allowed:
            self.initial, self.counted = False, 0
            return self.may_begin(samples, updates, versions)
        return allowed

    def collect(self, steps: int) -> None:
        self.sent += steps
        self.counted += steps


GRID = list(
    itertools.product(
        (1, 3),  # workers
        (1, 20),  # initial_steps
        (0.3, 1.0, 2.5, 5.0),  # max_steps_per_update
        (0, 21),  # start_training
        (1, 3, 5),  # update_model_interval
        (0.5, 1.0, 2.0),  # max_training_steps_per_env_step
    )
)


def test_for_single_steps_the_check_agrees_with_the_simulation() -> None:
    seen = set()
    for workers, initial, per_update, start, interval, ratio in GRID:
        config = synchronous(
            initial_steps=initial,
            max_steps_per_update=per_update,
            end_episodes=False,
            start_training=start,
            update_model_interval=interval,
            max_training_steps_per_env_step=ratio,
        )
        expected = finishes(config, workers)
        seen.add(expected)
        found = ratios_conflict(config, workers)
        assert (found is None) == expected, (workers, initial, per_update, start, interval, ratio, found)
    assert seen == {True, False}


def test_refused_combinations_with_whole_episodes_never_finish() -> None:
    generator = random.Random(1)
    refused = 0
    for workers, initial, per_update, start, interval, ratio in GRID:
        config = synchronous(
            initial_steps=initial,
            max_steps_per_update=per_update,
            end_episodes=True,
            start_training=start,
            update_model_interval=interval,
            max_training_steps_per_env_step=ratio,
            steps=120,
        )
        if ratios_conflict(config, workers, episode_steps=6) is not None:
            refused += 1
            assert not finishes(config, workers, generator, longest=6)
    assert refused > 40


def test_whole_episodes_of_unknown_length_are_refused_by_their_rates() -> None:
    keys: dict[str, float | bool] = {"max_steps_per_update": 10.0, "update_model_interval": 100, "start_training": 0}
    assert ratios_conflict(synchronous(**keys, steps=1_000_000)) is not None
    assert ratios_conflict(synchronous(**{**keys, "max_steps_per_update": 100.0}, steps=1_000_000)) is None


def test_the_rate_limit_against_the_simulation() -> None:
    for given in itertools.product([0.1, 0.5, 0.9, 1.0, 2.0], [0.5, 1.0, 1.5, 2.0, 10.0], [0, 3, 1000]):
        rate, ratio, start = given
        config = from_values(
            {
                "worker": {"max_env_steps_per_update": rate},
                "trainer": {
                    "epochs": 1,
                    "rounds": 1,
                    "steps": 100,
                    "start_training": start,
                    "max_training_steps_per_env_step": ratio,
                },
            }
        )
        assert (ratios_conflict(config, episode_steps=0) is None) == finishes(config, 1), given
        if ratios_conflict(config, workers=2, episode_steps=5) is not None:
            assert not finishes(config, 2, random.Random(3), longest=5), given


def test_the_band_against_the_simulation() -> None:
    for given in itertools.product([0.5, 1.0, 2.0, 4.0], [2.0, 4.0, 8.0], [8.0, 40.0], [0, 30]):
        rate, per_insert, error, start = given
        trainer = {
            "epochs": 1,
            "rounds": 1,
            "steps": 100,
            "start_training": start,
            "update_model_interval": 2,
            "limiter": {"samples_per_insert": per_insert, "error_buffer": error},
        }
        memory = {"batch_size": 8, "capacity": 1000}
        limited = from_values({"worker": {"max_env_steps_per_update": rate}, "trainer": trainer, "memory": memory})
        assert (ratios_conflict(limited, episode_steps=0) is None) == finishes(limited, 1), given
        worker = {"collection": "synchronous", "max_steps_per_update": rate, "initial_steps": 30, "end_episodes": False}
        stepwise = from_values({"worker": worker, "trainer": trainer, "memory": memory})
        assert (ratios_conflict(stepwise) is None) == finishes(stepwise, 1), given


def test_messages_about_the_band_name_its_key() -> None:
    found = ratios_conflict(
        from_values({"trainer": {"limiter": {"samples_per_insert": 32.0}}, "worker": {"max_env_steps_per_update": 2.0}})
    )
    assert found is not None
    assert "trainer.limiter.samples_per_insert / memory.batch_size = 32 / 256" in found
    assert "worker.max_env_steps_per_update to 8 or more, or trainer.limiter.samples_per_insert to 128." in found


LOCKSTEP = {
    "worker": {"collection": "lockstep"},
    "trainer": {"loop": "tmrl_core.training:TrainingLockstep"},
    "agent": {"cls": "tmrl_core.training:PPOAgent"},
    "actor": {"cls": "tmrl_core.actor:GaussianMLPActor"},
}


def test_no_rate_limit_and_no_ratio_never_starve() -> None:
    assert ratios_conflict(from_values({"worker": {"max_env_steps_per_update": None}})) is None
    assert ratios_conflict(from_values({"worker": {"collection": "synchronous"}})) is None
    assert ratios_conflict(from_values(LOCKSTEP)) is None


def endless(**keys: float | bool) -> Config:
    """Starves with short episodes: each model calls for more samples than the ratio of the workers brings."""
    return synchronous(
        **(
            {
                "end_episodes": True,
                "start_training": 0,
                "max_steps_per_update": 1.0,
                "update_model_interval": 4,
                "steps": 40,
            }
            | keys
        )
    )


def test_step_by_step_no_length_is_needed() -> None:
    config = endless(end_episodes=False)
    assert ratios_conflict(config, 1) == ratios_conflict(config, 1, 10)
    assert ratios_conflict(config, 1) is not None
    assert ratios_warning(config, 1) is None, "it is refused"


def test_the_warning_names_the_longest_safe_episode() -> None:
    config = endless()
    assert ratios_conflict(config, 1) is None
    warning = ratios_warning(config, 1)
    assert warning is not None
    saves = int(warning.split("episodes of ")[1].split()[0])
    assert 1 < saves < 100
    assert ratios_conflict(config, 1, saves) is None
    assert ratios_conflict(config, 1, saves - 1) is not None
    assert "worker.max_steps_per_update = 1" in warning


def test_there_is_no_warning_for_a_known_length() -> None:
    config = endless()
    assert ratios_warning(config, 1, 5) is None
    limited = from_values({"worker": {"max_samples_per_episode": 100}})
    assert ratios_warning(limited) is None
    assert ratios_warning(from_values({})) is None


def test_a_rate_limit_that_starves_short_episodes_is_warned_of() -> None:
    config = from_values(
        {
            "worker": {"max_env_steps_per_update": 0.5},
            "trainer": {"epochs": 1, "rounds": 1, "steps": 100, "start_training": 0},
        }
    )
    assert ratios_conflict(config) is None
    warning = ratios_warning(config)
    assert warning is not None
    assert "episodes of 48 steps or more" in warning
    assert "raise worker.max_env_steps_per_update to 1 or more" in warning


def test_without_workers_nothing_is_collected() -> None:
    assert "at least one worker" in str(ratios_conflict(from_values({}), workers=0))


def test_the_messages_name_the_numbers_and_the_change() -> None:
    late = ratios_conflict(
        synchronous(max_steps_per_update=10.0, initial_steps=5, end_episodes=False, start_training=500), workers=2
    )
    assert late is not None
    for part in ("trainer.start_training = 500", "collect at most 50", "worker.initial_steps to 250"):
        assert part in late
    slow = ratios_conflict(
        synchronous(max_steps_per_update=2.0, end_episodes=False, update_model_interval=5, start_training=0), workers=2
    )
    assert slow is not None
    for part in ("update_model_interval = 5", "max_steps_per_update = 2", "to 2.5 or more"):
        assert part in slow
    rate = ratios_conflict(from_values({"worker": {"max_env_steps_per_update": 0.5}}))
    assert rate is not None
    assert "Their product, 0.5, must be at least 1" in rate


def test_the_advised_change_is_sufficient() -> None:
    for per_update, interval, ratio, workers in itertools.product((0.3, 1.0, 2.5), (3, 5, 7), (0.5, 1.0), (1, 3)):
        keys: dict[str, float | bool] = {
            "end_episodes": False,
            "update_model_interval": interval,
            "max_training_steps_per_env_step": ratio,
            "start_training": 0,
        }
        found = ratios_conflict(synchronous(max_steps_per_update=per_update, **keys), workers)
        if found is None:
            continue
        advised = float(found.rpartition("max_steps_per_update to ")[2].split(" ")[0])
        assert ratios_conflict(synchronous(max_steps_per_update=advised, **keys), workers) is None
