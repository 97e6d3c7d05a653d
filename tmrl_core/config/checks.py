"""Checks across keys: impossible combinations are refused before a role starts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from tmrl_core import rooms
from tmrl_core.config.algorithms import (
    burn_in_problem,
    loop_of,
    memory_of,
    mismatches,
    out_of_range,
    shared_kwargs,
    unknown_keywords,
)
from tmrl_core.config.endpoints import endpoint_problems
from tmrl_core.config.error_messages import near
from tmrl_core.config.room_sections import kind_of_run, room_sections
from tmrl_core.config.sections import Config, is_loopback
from tmrl_core.errors import ConfigError
from tmrl_core.rate_limit import least_error

MAX_WHOLE = 2**63 - 1


def check_values(config: Config) -> None:
    """Refuse conflicting values, and list all of them in one message.

    Raises:
        ConfigError: the message has the keys' paths, the values found and the allowed values.
    """
    # Integers beyond the range of floats cannot be compared with floats.
    if problems := list(impossible_numbers(msgspec.to_builtins(config), "")) or list(contradictions(config)):
        raise ConfigError("\n".join(problems))


def impossible_numbers(values: Any, path: str) -> Iterator[str]:
    """Yield numbers that JSON cannot represent and no key accepts, and integers that are too large for counters."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from impossible_numbers(value, f"{path}.{key}" if path else str(key))
    elif ".kwargs." in path:
        return
    elif isinstance(values, float) and not math.isfinite(values):
        yield f"{path}: found {values}, allowed: a finite number; where no limit is meant, write null"
    elif isinstance(values, int) and abs(values) > MAX_WHOLE:
        found = f"a number of {len(str(abs(values)))} digits" if abs(values) < 10**1000 else "a number of more digits"
        yield f"{path}: found {found}, allowed: at most {MAX_WHOLE} (2^63 - 1); where no limit is meant, write null"


def unknown_names(config: Config) -> Iterator[str]:
    """Yield one line for each name that neither a room nor an installed package has."""
    named: tuple[tuple[str, rooms.Kind, Collection[str]], ...] = (
        ("network.transport", "transports", (config.network.transport,)),
        ("metrics.sinks", "sinks", config.metrics.sinks),
    )
    for key, kind, names in named:
        for name in names:
            if rooms.find(kind, name) is None:
                known = sorted(rooms.entries(kind))
                yield (
                    f"{key}: found the text {name[:80]!r}, allowed: {', '.join(known)}, or the name of an installed "
                    f"package's entry point tmrl_core.{kind}.{near(name, known)}"
                )


def contradictions(config: Config) -> Iterator[str]:
    """Yield one line for each pair of conflicting keys."""
    yield from unknown_names(config)
    memory, network, worker, trainer = config.memory, config.network, config.worker, config.trainer
    if memory.capacity < memory.batch_size:
        yield (
            f"memory.capacity: {memory.capacity} samples hold no batch of memory.batch_size = {memory.batch_size}; "
            "raise the first or lower the second"
        )
    for name, value in shared_kwargs(config).items():
        of_actor = config.actor.kwargs.get(name, value)
        if value != of_actor:
            yield (
                f"agent.kwargs.{name}: found {value!r:.100}, and actor.kwargs.{name} is {of_actor!r:.100}: workers "
                "could not act with what is trained. Write it under actor.kwargs only; the agent takes it from there"
            )
    if memory.prefetch and (memory.sampling == "prioritized" or memory.sample_preprocessor is not None):
        yield (
            f"memory.prefetch: {memory.prefetch} does not go with "
            + (
                "memory.sampling: prioritized, where each batch follows priorities that the one before has changed"
                if memory.sampling == "prioritized"
                else "memory.sample_preprocessor, whose Python code a thread does not make faster"
            )
            + "; take 0 or null"
        )
    if trainer.start_training > memory.capacity and memory_of(memory.cls) != "SequenceMemory":
        yield (
            f"trainer.start_training: {trainer.start_training} is more than memory.capacity = {memory.capacity} keeps; "
            "lower the first or raise the second"
        )
    if network.heartbeat_s >= network.silent_s:
        yield (
            f"network.heartbeat_s: {network.heartbeat_s:g} must be below network.silent_s = {network.silent_s:g}, "
            "or idle links count as dead"
        )
    if network.backoff_min_s > network.backoff_max_s:
        yield (
            f"network.backoff_min_s: {network.backoff_min_s:g} must not be above "
            f"network.backoff_max_s = {network.backoff_max_s:g}"
        )
    # The headers of a message's frames add about two thousandths to its size.
    if config.server.budget_bytes < 2.01 * network.max_message_bytes:
        yield (
            f"server.budget_bytes: {config.server.budget_bytes} must hold two messages of "
            f"network.max_message_bytes = {network.max_message_bytes}; raise the first or lower the second"
        )
    if network.security is None and not network.allow_insecure_remote:
        hosts = [("endpoints", text.rpartition(":")[0]) for text in config.server.endpoints]
        for key, host in (("bind", config.server.bind), *(hosts or [("host", config.server.host)])):
            if host is not None and not is_loopback(host):
                yield (
                    f"server.{key}: {host!r} is not this machine, and network.security is null; use TLS, or set "
                    "network.allow_insecure_remote: true to let everybody read and send"
                )
    if network.end_to_end in ("authenticate", "encrypt"):
        without = f"network.transport: {network.transport}" if network.transport != "tls" else "network.security: null"
        if network.transport != "tls" or network.security is None:
            yield (
                f"network.end_to_end: {network.end_to_end} signs with client certificates, and {without} has none; use "
                "network.transport: tls with TLS, or network.end_to_end: off"
            )
    if worker.collection != "synchronous" and worker.max_steps_per_update is not None:
        yield (
            f"worker.max_steps_per_update: {worker.max_steps_per_update:g} holds in synchronous collection only, and "
            f"worker.collection is {worker.collection}; for asynchronous workers use worker.max_env_steps_per_update"
        )
    if worker.interventions is not None and worker.envs > 1:
        yield (
            f"worker.interventions: a person takes over one environment, and worker.envs is {worker.envs}; set "
            "worker.envs: 1 and start more workers (--workers), or leave interventions out"
        )
    if worker.images is not None:
        for key, value in (
            ("worker.envs", worker.envs if worker.envs > 1 else None),
            ("worker.obs_preprocessor", worker.obs_preprocessor),
            ("worker.sample_compressor", worker.sample_compressor),
            *((section.key, "a section") for section in [kind_of_run(config)] if section is not None),
        ):
            if value is not None:
                yield (
                    f"worker.images: found with {key}: {value}; allowed: one environment, whose observations nothing "
                    "else changes. Leave one of the two out"
                )
    if worker.when_full == "drop_oldest" and worker.collection == "lockstep":
        yield "worker.when_full: drop_oldest would drop requested samples in lockstep; use block or auto"
    yield from endpoint_problems(config)
    yield from limiter_problems(config)
    yield from lockstep_problems(config)
    for section in room_sections(config):
        yield from section.problems(config)
    yield from recorded_problems(config)
    if kind_of_run(config) is None:
        yield from mismatches(config)
        yield from unknown_keywords(config)
        yield from out_of_range(config)
        yield from burn_in_problem(config)
    evaluation = trainer.evaluation
    if evaluation.target_return is not None and not evaluation.every_updates:
        yield (
            f"trainer.evaluation.target_return: {evaluation.target_return:g} is never compared while "
            "trainer.evaluation.every_updates is 0; set that, for example to 2000"
        )


def limiter_problems(config: Config) -> Iterator[str]:
    """Yield one line for each key that conflicts with the band of samples per insert."""
    limiter, memory, trainer = config.trainer.limiter, config.memory, config.trainer
    per_insert, error = limiter.samples_per_insert, limiter.error_buffer
    if per_insert is None:
        if error is not None:
            yield (
                f"trainer.limiter.error_buffer: {error:g} says nothing without trainer.limiter.samples_per_insert; set "
                "that, or leave both out"
            )
        return
    most = memory.batch_size * trainer.max_training_steps_per_env_step
    if per_insert > most:
        yield (
            f"trainer.limiter.samples_per_insert: {per_insert:g} cannot be reached: memory.batch_size = "
            f"{memory.batch_size} times trainer.max_training_steps_per_env_step = "
            f"{trainer.max_training_steps_per_env_step:g} allows {most:g}; lower the first, or raise "
            f"trainer.max_training_steps_per_env_step to {math.ceil(1000 * per_insert / memory.batch_size) / 1000:g}"
        )
    least = least_error(per_insert, memory.batch_size)
    if error is not None and error < least:
        yield (
            f"trainer.limiter.error_buffer: {error:g} is narrower than a batch (memory.batch_size = "
            f"{memory.batch_size}) or than what one sample allows ({per_insert:g}); take {least:g} or more"
        )


def shares_problems(config: Config) -> Iterator[str]:
    """Yield one line for each share of a batch that nothing can fill, or that is less than a row."""
    memory, worker = config.memory, config.worker
    shares = memory.shares
    imitation = config.agent.kwargs.get("imitation_coef")
    if imitation and memory.recorded is None and (shares is None or not shares.interventions):
        yield (
            f"agent.kwargs.imitation_coef: {imitation!r:.100}, but no row of a batch is a demonstration or an "
            "intervention: set memory.recorded or memory.shares.interventions, or leave it out"
        )
    if shares is None:
        if memory.recorded is not None and memory.batch_size < 2:
            yield f"memory.batch_size: {memory.batch_size} leaves no row for recorded sessions; allowed: 2 or more"
        return
    found = msgspec.structs.asdict(shares)
    total = sum(found.values())
    if abs(total - 1.0) > 1e-6:
        yield f"memory.shares: the sum of {found} is {total:g}; allowed: shares whose sum is 1"
    for name, share in found.items():
        if share and round(share * memory.batch_size) < 1:
            yield (
                f"memory.shares.{name}: {share:g} of memory.batch_size = {memory.batch_size} rows is less than one; "
                "raise one of them, or take 0"
            )
    if bool(shares.demonstrations) != (memory.recorded is not None):
        yield (
            f"memory.shares.demonstrations: {shares.demonstrations:g}, and memory.recorded is {memory.recorded!r}: "
            "set both, or neither. To train on recorded sessions alone, use trainer.offline"
        )
    elif shares.demonstrations == 1:
        yield (
            "memory.shares.demonstrations: 1 leaves no row for samples of workers; use trainer.offline to train on "
            "recorded sessions alone"
        )
    if shares.interventions and worker.interventions is None:
        yield (
            f"memory.shares.interventions: {shares.interventions:g}, but nobody takes over: set worker.interventions, "
            "in the file of the trainer too, or leave the share out"
        )
    if shares.interventions and memory_of(memory.cls) not in ("ReplayMemory", "FrameStackMemory"):
        yield (
            f"memory.shares.interventions: {shares.interventions:g} needs transitions, and memory.cls is {memory.cls}; "
            "take tmrl_core.training:ReplayMemory or FrameStackMemory, or leave the share out"
        )
    if worker.collection == "lockstep":
        yield "memory.shares: lockstep collection has no replay memory; leave it out"


def recorded_problems(config: Config) -> Iterator[str]:
    """Yield one line for each key that does not go with recorded sessions."""
    memory, trainer, worker = config.memory, config.trainer, config.worker
    yield from shares_problems(config)
    for key, path in (("trainer.offline", trainer.offline), ("memory.recorded", memory.recorded)):
        if path is not None and worker.collection == "lockstep":
            yield (
                f"{key}: {path!r} needs a replay memory, and lockstep collection has none; use an off-policy agent "
                "with another worker.collection"
            )
    if trainer.offline is None:
        return
    for key, value, why in (
        ("memory.recorded", memory.recorded, "there are no live samples to mix it with; leave one of the two out"),
        ("memory.max_drawn_lag", memory.max_drawn_lag, "recorded sessions have no policy lag; leave it out"),
        (
            "trainer.limiter.samples_per_insert",
            trainer.limiter.samples_per_insert,
            "no samples are inserted; leave it out",
        ),
    ):
        if value is not None:
            yield f"{key}: {value!r}, but with trainer.offline {why}"


def lockstep_problems(config: Config) -> Iterator[str]:
    """Yield one line for each key that conflicts with lockstep collection, or that requires it."""
    worker, memory, trainer = config.worker, config.memory, config.trainer
    loop = loop_of(trainer.loop)
    if worker.collection != "lockstep":
        if loop == "TrainingLockstep":
            yield (
                f"trainer.loop: {trainer.loop} needs worker.collection: lockstep, found {worker.collection}; "
                "off-policy agents take tmrl_core.training:TorchTrainingOffline"
            )
        return
    if loop not in (None, "TrainingLockstep") and kind_of_run(config) is None:
        yield (
            f"trainer.loop: {trainer.loop} does not train in lockstep, and worker.collection is lockstep; take "
            "tmrl_core.training:TrainingLockstep (with an agent such as tmrl_core.training:PPOAgent), or another "
            "worker.collection"
        )
    lockstep = trainer.lockstep
    if (lockstep.steps_per_round is None) == (lockstep.episodes_per_round is None):
        yield (
            f"trainer.lockstep: set one of steps_per_round ({lockstep.steps_per_round}) and episodes_per_round "
            f"({lockstep.episodes_per_round}), and the other one to null"
        )
    # Without a memory, compressed samples cannot be restored or compared: a round is used for training as it arrived.
    for key, value in (
        ("worker.sample_compressor", worker.sample_compressor),
        ("worker.crc_debug", worker.crc_debug or None),
        ("memory.sample_preprocessor", memory.sample_preprocessor),
        ("memory.storage", memory.storage if memory.storage != "ram" else None),
        ("memory.n_step", memory.n_step if memory.n_step != 1 else None),
        ("memory.sampling", memory.sampling if memory.sampling != "uniform" else None),
        ("memory.max_drawn_lag", memory.max_drawn_lag),
        ("memory.prefetch", memory.prefetch or None),
        ("trainer.limiter.samples_per_insert", trainer.limiter.samples_per_insert),
    ):
        if value is not None:
            yield f"{key}: {value} is for a replay memory, and lockstep collection has none; leave it out"
