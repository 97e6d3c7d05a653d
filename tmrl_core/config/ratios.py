"""Will the worker's ratio and the trainer's ratio make both sides wait for each other for ever?

The rules, with S samples received (environment steps, resets included) and U updates done:

- the trainer does update U when S >= max(1, start_training) and U / S <= max_training_steps_per_env_step. It publishes
  a version at the start and after every `update_model_interval` updates, and ends after epochs * rounds * steps;
- with `trainer.limiter.samples_per_insert` = I and an error buffer E it also needs batch_size * U <=
  I * (S - max(1, start_training)) + E;
- a synchronous worker collects initial_steps, and waits until these, n of them, and the M versions that it received
  satisfy (n + 1) / (1 + M) <= max_steps_per_update. Then it counts steps anew and takes the next one while the same
  holds for them; with `end_episodes` it collects whole episodes and asks between them only;
- asynchronous workers with a brake begin an episode while S <= start_training + max_env_steps_per_update * (U + 1).

So a step-wise synchronous worker stops, with M versions out, at initial_steps + floor(max_steps_per_update * (1 + M))
steps, or at initial_steps if these alone are too many; and with what all workers bring, the trainer must reach the next
multiple of its interval. With whole episodes each worker may come further by less than one episode, twice: only what
starves with the longest episodes is called a conflict here, and the rest is left to the roles, which notice at run time
that both wait.

Where nothing says how long an episode may be (neither the environment's registration nor
`worker.max_samples_per_episode`), this can still be said. Step by step (`end_episodes: false`) the length does not
matter: the verdict is exact. Otherwise a conflict with episodes of up to L steps is one with all shorter ones too, so
there is a shortest longest episode N that would set both sides free. N above `LONGEST_EPISODE` is refused; any other N
is a warning with the number: whether some episode gets that long is the environment's to say.
"""

from __future__ import annotations

import math
from fractions import Fraction

from tmrl_core.config.sections import Config

LONGEST_SEARCH = 200_000
"""Versions that are looked at one by one; of those beyond only the last is looked at."""

LONGEST_EPISODE = 10_000
"""Steps of an episode when nothing limits it: longer ones are left to the check at run time."""


def ratios_conflict(config: Config, workers: int = 1, episode_steps: int | None = None) -> str | None:
    """Why both sides would wait for ever, with the numbers and what to change; None when they would not.

    Args:
        config: the configuration of all roles.
        workers: how many workers will collect.
        episode_steps: longest episode in environment steps, the reset not counted; None: what
            `worker.max_samples_per_episode` says.
    """
    longest = longest_episode(config, episode_steps)
    return _conflict(config, workers, LONGEST_EPISODE if longest is None else longest)


def longest_episode(config: Config, episode_steps: int | None) -> int | None:
    """What limits an episode, in environment steps; None: nothing does."""
    return min((n for n in (episode_steps, config.worker.max_samples_per_episode) if n is not None), default=None)


def ratios_warning(config: Config, workers: int = 1, episode_steps: int | None = None) -> str | None:
    """What may make both sides wait for ever although it is no conflict for sure; None: nothing does.

    The arguments are those of `ratios_conflict`.
    """
    if longest_episode(config, episode_steps) is not None or _conflict(config, workers, LONGEST_EPISODE) is not None:
        return None
    shortest = _conflict(config, workers, 1)
    if shortest is None:
        return None
    starves, free = 1, LONGEST_EPISODE
    while free - starves > 1:
        middle = (starves + free) // 2
        if _conflict(config, workers, middle) is None:
            free = middle
        else:
            starves = middle
    return (
        f"Unless episodes of {free} steps or more come up, workers and trainer will wait for each other for ever (they "
        "notice it, and end); nothing says how long this environment's episodes may be. With short ones: "
        f"{shortest} Or set worker.max_samples_per_episode, so that it can be told beforehand."
    )


def _conflict(config: Config, workers: int, longest: int) -> str | None:
    if workers < 1:
        return "no worker collects samples, so the trainer would wait for ever; start at least one worker"
    if config.worker.collection == "asynchronous":
        return brake_conflict(config, workers, longest)
    if config.worker.collection == "synchronous" and config.worker.max_steps_per_update is not None:
        return synchronous_conflict(config, workers, longest)
    return None


def exact(number: float) -> Fraction:
    """The number as people wrote it: 0.1 is a tenth."""
    return Fraction(str(number))


def least_error(samples_per_insert: float, batch_size: int) -> float:
    """The narrowest error buffer of the limiter: a batch, or what one sample more allows."""
    return max(batch_size, samples_per_insert)


def default_error(samples_per_insert: float, start_training: int, batch_size: int) -> float:
    """The error buffer where none is set: a tenth of what the first samples allow, at least two of the narrowest."""
    return max(0.1 * samples_per_insert * max(1, start_training), 2 * least_error(samples_per_insert, batch_size))


def updates_per_sample(config: Config) -> Fraction:
    """Updates for each sample in the long run, by the trainer's ratio and its limiter."""
    ratio, per_insert = exact(config.trainer.max_training_steps_per_env_step), config.trainer.limiter.samples_per_insert
    return ratio if per_insert is None else min(ratio, exact(per_insert) / config.memory.batch_size)


def most_updates(config: Config, samples: int) -> int:
    """How many updates the trainer makes of so many samples, once there are enough for the first."""
    trainer, batch = config.trainer, config.memory.batch_size
    most = math.floor(exact(trainer.max_training_steps_per_env_step) * samples) + 1
    per_insert = trainer.limiter.samples_per_insert
    if per_insert is None:
        return most
    error = trainer.limiter.error_buffer
    if error is None:
        error = default_error(per_insert, trainer.start_training, batch)
    allowed = exact(per_insert) * (samples - max(1, trainer.start_training)) + exact(error)
    return min(most, math.floor(allowed / batch))


def ratio_in_words(config: Config) -> str:
    """The key that limits updates for each sample, with its value."""
    trainer = config.trainer
    if updates_per_sample(config) == exact(trainer.max_training_steps_per_env_step):
        return f"trainer.max_training_steps_per_env_step = {trainer.max_training_steps_per_env_step:g}"
    return (
        f"trainer.limiter.samples_per_insert / memory.batch_size = {trainer.limiter.samples_per_insert:g} / "
        f"{config.memory.batch_size}"
    )


def raised_to(config: Config, updates: Fraction) -> str:
    """The keys of the trainer that allow so many updates for each sample, with the values that do."""
    keys = []
    if exact(config.trainer.max_training_steps_per_env_step) < updates:
        keys.append(f"trainer.max_training_steps_per_env_step to {rounded_up(updates)}")
    per_insert, batch = config.trainer.limiter.samples_per_insert, config.memory.batch_size
    if per_insert is not None and exact(per_insert) / batch < updates:
        keys.append(f"trainer.limiter.samples_per_insert to {rounded_up(updates * batch)}")
    return " and ".join(keys)


def brake_conflict(config: Config, workers: int, longest: int) -> str | None:
    """The asynchronous brake against the trainer's ratio."""
    trainer, brake = config.trainer, config.worker.max_env_steps_per_update
    if brake is None:
        return None
    ratio, steps_per_update = updates_per_sample(config), exact(brake)
    if ratio * steps_per_update >= 1:
        return None
    total = trainer.epochs * trainer.rounds * trainer.steps
    # Each worker's last episode begins when the brake just does not hold, and adds its reset and its steps.
    samples = math.floor(trainer.start_training + steps_per_update * total) + workers * (1 + longest)
    if total <= most_updates(config, samples):
        return None
    return (
        f"Workers and trainer would wait for each other for ever: workers make at most worker.max_env_steps_per_update "
        f"= {brake:g} environment steps for each update, and the trainer makes at most {ratio_in_words(config)} "
        f"updates for each environment step. Their product, {float(ratio * steps_per_update):g}, must be at least 1: "
        f"raise worker.max_env_steps_per_update to {rounded_up(1 / ratio)} or more, or "
        f"{raised_to(config, 1 / steps_per_update)}."
    )


def synchronous_conflict(config: Config, workers: int, longest: int) -> str | None:
    """Synchronous workers against the trainer's ratio and its `start_training`."""
    worker, trainer = config.worker, config.trainer
    assert worker.max_steps_per_update is not None
    per_model = exact(worker.max_steps_per_update)
    interval = trainer.update_model_interval
    total = trainer.epochs * trainer.rounds * trainer.steps
    last_version = -(-total // interval)
    # The last episode begins one step below at most, and adds its reset and its steps.
    beyond = longest if worker.end_episodes else 0
    initial = worker.initial_steps + (beyond if worker.initial_steps else 0)

    def samples(version: int) -> int:
        """Most samples that arrive while `version` versions are out."""
        room = math.floor(per_model * (1 + version))
        return workers * (initial if worker.initial_steps + 1 > room else initial + room + beyond)

    first, needed = samples(1), max(1, trainer.start_training)
    if first < needed:
        return (
            "Workers and trainer would wait for each other for ever: the trainer begins after "
            f"trainer.start_training = {needed} samples, and before it has published a second model "
            f"{count(workers, 'worker')} collect at most {first} (worker.initial_steps = {worker.initial_steps}, "
            f"worker.max_steps_per_update = {worker.max_steps_per_update:g}). Raise worker.initial_steps to "
            f"{-(-needed // workers)}, or lower trainer.start_training to {first}."
        )
    # What `initial_steps` and an episode add is a constant, so far out the last version is the tightest.
    for version in (*range(1, min(last_version, LONGEST_SEARCH)), last_version):
        updates = min(version * interval, total)
        if updates > most_updates(config, samples(version)):
            return starved(config, workers, updates, samples(version))
    return None


def starved(config: Config, workers: int, updates: int, samples: int) -> str:
    """The message: what each side gives the other, where it ends, and what to change."""
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
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}" + ("s" if number != 1 else "")


def rounded_up(number: Fraction) -> str:
    """A number of at most three digits after the point, not below `number`."""
    return f"{math.ceil(number * 1000) / 1000:.10g}"
