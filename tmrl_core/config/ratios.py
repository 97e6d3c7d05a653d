"""Check that the limits of workers and trainer do not make both sides wait for each other forever.

With S samples received (environment steps, resets included), U updates done and M versions published:

- the trainer's limits allow update U of S samples as `_most_updates` says, from max(1, start_training) samples on. It
  publishes a version at the start and after every `update_model_interval` updates;
- a synchronous worker collects initial_steps, and waits until (n + 1) / (1 + M) <= max_steps_per_update holds for these
  n. Then it counts steps from 0 under the same limit, before each step or, with `end_episodes`, before each episode;
- asynchronous workers begin an episode while S <= start_training + max_env_steps_per_update * (U + 1).

Workers therefore collect at most `_most_samples` between two versions (asynchronous: between two updates), and the
trainer must reach the next one with these. With whole episodes, each worker may collect up to one episode more, twice.
Only a combination that starves with the longest episodes is refused. The roles detect other cases at run time.

If neither the environment's registration nor `worker.max_samples_per_episode` limits an episode: a conflict with
episodes of up to L steps is also a conflict with all shorter episodes. Hence there is a smallest limit N on the length
of episodes that avoids the conflict. A configuration with N above `LONGEST_EPISODE` is refused; any other N gives a
warning with the number.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from fractions import Fraction

from tmrl_core.config.sections import Config
from tmrl_core.rate_limit import RateLimit, default_error, exact

LONGEST_SEARCH = 200_000
"""Number of versions that are checked separately. Of further versions, only the last is checked."""

LONGEST_EPISODE = 10_000
"""Assumed maximum length of unlimited episodes, in steps. The check at run time covers longer episodes."""


def ratios_conflict(config: Config, workers: int = 1, episode_steps: int | None = None) -> str | None:
    """Return a description of why both sides would wait forever, with a remedy; None: they would not.

    Args:
        config: the configuration of all roles.
        workers: number of workers that will collect.
        episode_steps: maximum length of an episode in environment steps, the reset not counted; None: the value of
            `worker.max_samples_per_episode`.
    """
    longest = longest_episode(config, episode_steps)
    return _conflict(config, workers, LONGEST_EPISODE if longest is None else longest)


def longest_episode(config: Config, episode_steps: int | None) -> int | None:
    """Return the limit on the length of an episode, in environment steps; None: no limit."""
    return min((n for n in (episode_steps, config.worker.max_samples_per_episode) if n is not None), default=None)


def ratios_warning(config: Config, workers: int = 1, episode_steps: int | None = None) -> str | None:
    """Return a warning if both sides may wait forever, depending on the length of episodes; None: they cannot.

    The arguments are those of `ratios_conflict`.
    """
    if longest_episode(config, episode_steps) is not None or _conflict(config, workers, LONGEST_EPISODE) is not None:
        return None
    shortest = _conflict(config, workers, 1)
    if shortest is None:
        return None
    lengths = range(1, LONGEST_EPISODE + 1)
    free = lengths[bisect.bisect_left(lengths, True, key=lambda longest: _conflict(config, workers, longest) is None)]
    return (
        f"Unless episodes of {free} steps or more come up, workers and trainer will wait for each other for ever (they "
        "notice it, and end); nothing says how long this environment's episodes may be. With short ones: "
        f"{shortest} Or set worker.max_samples_per_episode, so that it can be told beforehand."
    )


def _conflict(config: Config, workers: int, longest: int) -> str | None:
    if workers < 1:
        return "no worker collects samples, so the trainer would wait for ever; start at least one worker"
    worker, trainer = config.worker, config.trainer
    total = trainer.epochs * trainer.rounds * trainer.steps
    if worker.collection == "asynchronous" and worker.max_env_steps_per_update is not None:
        # The last update is the strictest, because the rest is constant. The last episode of each worker begins just
        # within the limit, and adds its reset and its steps.
        limit = RateLimit(exact(worker.max_env_steps_per_update), trainer.start_training)
        samples = int(limit.most(total)) + workers * (1 + longest)
        return _asynchronous_message(config) if total > _most_updates(config)(samples) else None
    if worker.collection == "synchronous" and worker.max_steps_per_update is not None:
        most_samples, most_updates = _most_samples(config, workers, longest), _most_updates(config)
        first, needed = most_samples(1), max(1, trainer.start_training)
        if first < needed:
            return _start_message(config, workers, first, needed)
        interval = trainer.update_model_interval
        last = -(-total // interval)
        # The initial steps and an episode add a constant, so for large numbers the last version is the strictest.
        for version in (*range(1, min(last, LONGEST_SEARCH)), last):
            updates, samples = min(version * interval, total), most_samples(version)
            if updates > most_updates(samples):
                return _synchronous_message(config, workers, updates, samples)
    return None


def _most_samples(config: Config, workers: int, longest: int) -> Callable[[int], int]:
    """Return the maximum samples of synchronous workers, as a function of the published versions."""
    worker = config.worker
    assert worker.max_steps_per_update is not None
    limit = RateLimit(exact(worker.max_steps_per_update))
    # The last episode begins at most one step below the limit, and adds its reset and its steps.
    beyond = longest if worker.end_episodes else 0
    initial = worker.initial_steps + (beyond if worker.initial_steps else 0)

    def most(versions: int) -> int:
        room = int(limit.most(1 + versions))
        return workers * (initial if worker.initial_steps + 1 > room else initial + room + beyond)

    return most


def _most_updates(config: Config) -> Callable[[int], int]:
    """Return the maximum number of updates as a function of the samples, once training may begin."""
    trainer, batch = config.trainer, config.memory.batch_size
    start, per_insert = max(1, trainer.start_training), trainer.limiter.samples_per_insert
    ratio = RateLimit(exact(trainer.max_training_steps_per_env_step), 1)
    if per_insert is None:
        return lambda samples: int(ratio.most(samples))
    error = trainer.limiter.error_buffer or default_error(per_insert, start, batch)
    band = RateLimit(exact(per_insert), exact(error))
    return lambda samples: int(min(ratio.most(samples), band.most(samples - start) // batch))


def updates_per_sample(config: Config) -> Fraction:
    """Return the long-run number of updates per sample, from the trainer's ratio and its limiter."""
    ratio, per_insert = exact(config.trainer.max_training_steps_per_env_step), config.trainer.limiter.samples_per_insert
    return ratio if per_insert is None else min(ratio, exact(per_insert) / config.memory.batch_size)


def ratio_in_words(config: Config) -> str:
    """Return the key that limits updates for each sample, with its value."""
    trainer = config.trainer
    if updates_per_sample(config) == exact(trainer.max_training_steps_per_env_step):
        return f"trainer.max_training_steps_per_env_step = {trainer.max_training_steps_per_env_step:g}"
    return (
        f"trainer.limiter.samples_per_insert / memory.batch_size = {trainer.limiter.samples_per_insert:g} / "
        f"{config.memory.batch_size}"
    )


def raised_to(config: Config, updates: Fraction) -> str:
    """Return the keys of the trainer, and their values, that allow this number of updates for each sample."""
    keys = []
    if exact(config.trainer.max_training_steps_per_env_step) < updates:
        keys.append(f"trainer.max_training_steps_per_env_step to {rounded_up(updates)}")
    per_insert, batch = config.trainer.limiter.samples_per_insert, config.memory.batch_size
    if per_insert is not None and exact(per_insert) / batch < updates:
        keys.append(f"trainer.limiter.samples_per_insert to {rounded_up(updates * batch)}")
    return " and ".join(keys)


def _asynchronous_message(config: Config) -> str:
    limit = config.worker.max_env_steps_per_update
    assert limit is not None
    ratio, steps_per_update = updates_per_sample(config), exact(limit)
    return (
        f"Workers and trainer would wait for each other for ever: workers make at most worker.max_env_steps_per_update "
        f"= {limit:g} environment steps for each update, and the trainer makes at most {ratio_in_words(config)} "
        f"updates for each environment step. Their product, {float(ratio * steps_per_update):g}, must be at least 1: "
        f"raise worker.max_env_steps_per_update to {rounded_up(1 / ratio)} or more, or "
        f"{raised_to(config, 1 / steps_per_update)}."
    )


def _start_message(config: Config, workers: int, first: int, needed: int) -> str:
    worker = config.worker
    return (
        "Workers and trainer would wait for each other for ever: the trainer begins after "
        f"trainer.start_training = {needed} samples, and before it has published a second model "
        f"{count(workers, 'worker')} collect at most {first} (worker.initial_steps = {worker.initial_steps}, "
        f"worker.max_steps_per_update = {worker.max_steps_per_update:g}). Raise worker.initial_steps to "
        f"{-(-needed // workers)}, or lower trainer.start_training to {first}."
    )


def _synchronous_message(config: Config, workers: int, updates: int, samples: int) -> str:
    worker, trainer = config.worker, config.trainer
    assert worker.max_steps_per_update is not None
    ratio = updates_per_sample(config)
    interval = trainer.update_model_interval
    enough = rounded_up(Fraction(interval) / (ratio * workers))
    return (
        f"Workers and trainer would wait for each other for ever: between two models the trainer makes "
        f"trainer.update_model_interval = {interval} updates and needs {float(interval / ratio):g} samples for them "
        f"({ratio_in_words(config)}), and for each model "
        f"{count(workers, 'worker')} collect {workers * worker.max_steps_per_update:g} "
        f"(worker.max_steps_per_update = {worker.max_steps_per_update:g}). It would stop before update {updates}, with "
        f"{samples} samples. Raise worker.max_steps_per_update to {enough} or more, lower "
        f"trainer.update_model_interval, or raise the trainer's ratio."
    )


def count(number: int, noun: str) -> str:
    """Return `1 worker`, `2 workers`."""
    return f"{number:,} {noun}" + ("s" if number != 1 else "")


def rounded_up(number: Fraction) -> str:
    """Return the number rounded up to three digits after the point."""
    return f"{math.ceil(number * 1000) / 1000:.10g}"
