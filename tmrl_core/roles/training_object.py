"""The training object that a configuration describes."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from tmrl_core.config import Config, environment_maker, resolve, resolve_optional, resolve_with
from tmrl_core.config.algorithms import (
    action_space_problem,
    actor_of,
    algorithm_of,
    memory_of,
    policy_problem,
    stacks_problem,
)
from tmrl_core.config.environment_contract import one_of
from tmrl_core.config.references import check_kwargs
from tmrl_core.config.room_sections import kind_of_run
from tmrl_core.envs.sent_images import encoder_of, sending_images
from tmrl_core.errors import ConfigError, MissingExtraError, StorageError
from tmrl_core.roles.devices import check_device
from tmrl_core.roles.kinds_of_run import parts_of
from tmrl_core.training.contracts import declarations_of
from tmrl_core.training.loops.threads import available_cores

logger = logging.getLogger(__name__)


def import_torch() -> None:
    """Import all of torch that training needs.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as exc:
        raise MissingExtraError("torch", "trainer", "the Trainer") from exc
    # Optimizers load this with their first step. Its import fails in a folder that an environment has left and removed.
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("torch._dynamo")


def prepare_torch(config: Config) -> None:
    """Set torch's number of threads from the configuration, and check that it can use its device.

    Raises:
        ConfigError: torch cannot use the device.
        MissingExtraError: torch is not installed.
    """
    import_torch()
    import torch

    check_device(config.trainer.device, "trainer.device", compute=True)
    threads = config.trainer.threads
    if threads is not None:
        torch.set_num_threads(threads)
    logger.info(
        "threads of torch: %s%d (trainer.threads), cores: %d",
        "" if threads is not None else "measured while training, at most ",
        torch.get_num_threads(),
        available_cores(),
    )


def _storage(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of a memory on disk.

    Raises:
        ConfigError: the memory stores samples in RAM only.
    """
    memory = config.memory
    if memory.storage == "ram":
        return {}
    found = resolve(memory.cls, "memory.cls")
    try:
        accepted = inspect.signature(found).parameters
    except (TypeError, ValueError):
        accepted = inspect.signature(lambda: None).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    if not takes_any and not {"storage", "folder", "sync"} <= accepted.keys():
        raise ConfigError(
            f"memory.storage: disk, but {memory.cls} keeps its samples in RAM. Take memory.cls: "
            "tmrl_core.training:ReplayMemory (numeric arrays of fixed shapes), or memory.storage: ram."
        )
    return {"storage": memory.storage, "folder": config.memory_path, "sync": memory.sync}


def _sampling_kwargs(config: Config, agent_cls: Any, agent_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the memory's keyword arguments for n-step returns, prioritized sampling, policy lag and prefetching.

    Raises:
        ConfigError: the agent does not use the extra columns.
    """
    memory = config.memory
    wanted: dict[str, Any] = {}
    if memory.n_step > 1:
        parameter = inspect.signature(agent_cls).parameters.get("gamma")
        gamma = agent_kwargs.get("gamma", None if parameter is None else parameter.default)
        if not isinstance(gamma, int | float):
            raise ConfigError(f"memory.n_step: {memory.n_step} needs the discount: set agent.kwargs.gamma.")
        wanted |= {"n_step": memory.n_step, "gamma": gamma}
    if memory.sampling == "prioritized":
        wanted["priority"] = msgspec.structs.asdict(memory.priority)
    wanted_extras = bool(wanted)
    wanted |= {
        name: value
        for name, value in (("max_drawn_lag", memory.max_drawn_lag), ("prefetch", memory.prefetch))
        if value is not None
    }
    if wanted_extras and not declarations_of(agent_cls).wants_extras:
        raise ConfigError(
            f"memory.n_step: {memory.n_step} and memory.sampling: {memory.sampling} give batches with further columns "
            f"(discounts, weights), which {config.agent.cls} does not look at. Take an agent whose class says "
            "wants_extras = True (SAC, REDQ, TD3, DQN, discrete SAC here), or n_step: 1 and sampling: uniform."
        )
    return wanted


def _extras(config: Config, agent_cls: Any) -> dict[str, Any]:
    """Return keyword arguments of a columnar memory that stores the policy's extras, if the agent takes them."""
    columnar = memory_of(config.memory.cls) is not None
    return {"keep_extras": True} if columnar and declarations_of(agent_cls).wants_extras else {}


def agent_from_config(config: Config) -> partial[Any]:
    """Return `make_agent`, bound to the agent's settings in the configuration.

    Raises:
        ConfigError: a reference cannot be resolved, or the class does not accept the keyword arguments or this
            collection mode.
    """
    agent_cls = resolve(config.agent.cls, "agent.cls")
    agent_kwargs = {
        key: resolve(value, f"agent.kwargs.{key}") if key.endswith("_cls") and isinstance(value, str) else value
        for key, value in config.agent.kwargs.items()
    }
    check_kwargs(agent_cls, agent_kwargs, "agent.kwargs")
    check_collection(agent_cls, config)
    if actor_of(config.actor.cls) is not None:  # a misspelled size would otherwise be left out in silence
        resolve_with(config.actor.cls, config.actor.kwargs, "actor.cls")
    # Workers act with the agent's policy, so one set of settings describes both.
    accepted = inspect.signature(agent_cls).parameters
    shared = {key: value for key, value in config.actor.kwargs.items() if key in accepted and key not in agent_kwargs}
    check_kwargs(agent_cls, shared, "actor.kwargs")
    agent_kwargs |= shared
    return partial(make_agent, config, agent_cls, agent_kwargs)


def training_from_config(config: Config) -> Callable[[], Any]:
    """Return a function that makes the training object that the configuration describes.

    Raises:
        ConfigError: a reference names nothing, or the memory cannot be on disk.
    """
    if (kind := kind_of_run(config)) is not None:
        return parts_of(kind).training_from_config(config)
    trainer, memory = config.trainer, config.memory
    agent = agent_from_config(config)
    agent_cls = agent.args[1]
    memory_kwargs = {
        "memory_size": memory.capacity,
        "batch_size": memory.batch_size,
        "sample_preprocessor": resolve_optional(memory.sample_preprocessor, "memory.sample_preprocessor"),
        "crc_debug": config.worker.crc_debug,
        **_storage(config),
        **_sampling_kwargs(config, agent_cls, agent.args[2]),
        **_extras(config, agent_cls),
        **memory.kwargs,
    }
    memory_cls = resolve_with(memory.cls, memory_kwargs, "memory.cls")
    if memory.recorded is not None or (memory.shares is not None and memory.shares.interventions):
        marked = declarations_of(agent_cls).wants_extras
        memory_cls = _mixed(config, memory_cls, memory_kwargs, marked)
    loop = resolve_with(trainer.loop, {}, "trainer.loop")
    made = partial(
        loop,
        env_cls=_environment(config),
        memory_cls=memory_cls,
        training_agent_cls=agent,
        **loop_settings(config, loop),
        **_declared(config, loop),
        **lockstep_settings(config),
    )
    _check_loop(made, trainer.loop)
    return made


def _mixed(config: Config, live: Callable[..., Any], kwargs: Mapping[str, Any], marked: bool) -> Callable[..., Any]:
    """Return a function that makes the memory of live samples, recorded sessions and interventions."""
    from tmrl_core.training.memories.interventions import InterventionMemory
    from tmrl_core.training.memories.mixed import HALF_AND_HALF, INTERVENTIONS, MixedMemory
    from tmrl_core.training.memories.replay import ReplayMemory

    # Recorded sessions come from their folder again, or from a checkpoint; they belong to no policy of this run. A
    # person's action does not depend on the policy's age either.
    of_live = {"storage", "folder", "sync", "max_drawn_lag", "crc_debug"}
    others = {name: value for name, value in kwargs.items() if name not in of_live}
    memory = config.memory
    shares = HALF_AND_HALF if memory.shares is None else msgspec.structs.asdict(memory.shares)
    recorded = None if memory.recorded is None else resolve_with(memory.cls, others, "memory.cls")
    interventions = None
    if shares.get(INTERVENTIONS):
        if kwargs.get("newest_only"):
            raise ConfigError(
                "memory.shares.interventions: memory.kwargs.newest_only sends a stack's newest frame only, and the "
                "memory of interventions needs whole stacks; send whole stacks, or give interventions no share"
            )
        # It keeps pictures whole, whatever the other memories do: takeovers are few.
        accepted = inspect.signature(ReplayMemory).parameters
        interventions = partial(
            InterventionMemory, **{name: value for name, value in others.items() if name in accepted}
        )
    return partial(
        MixedMemory,
        live,
        recorded,
        make_interventions=interventions,
        batch_size=memory.batch_size,
        shares=shares,
        marked=marked,
    )


def _environment(config: Config) -> Any:
    """Return a function that makes the environment, which must have the spaces of recorded sessions; or their spaces.

    A trainer without workers does not need the environment, so it may lack it.

    Raises:
        ConfigError: `environment.cls` names nothing, or there are no recorded sessions.
    """
    images = encoder_of(config.worker.images)
    offline = config.offline_path
    key, path = ("trainer.offline", offline) if offline is not None else ("memory.recorded", config.recorded_path)
    if path is None:
        return sending_images(_maker(config), images)
    from tmrl_core.sessions.session_files import read_spaces, spaces_problem

    try:
        spaces = read_spaces(path)
    except StorageError as exc:
        raise ConfigError(f"{key}: {exc}") from exc
    try:
        make = sending_images(_maker(config), images)
    except ConfigError as exc:
        if offline is None:
            raise
        logger.warning("%s. The spaces of %s are taken instead.", str(exc).rstrip("."), path)
        return spaces

    def make_environment() -> Any:
        made = make()
        problem = spaces_problem(spaces, (made.observation_space, made.action_space))
        if problem:
            made.close()
            raise ConfigError(
                f"{key}: {path} was recorded in another environment: {problem}. Name the environment of the recording "
                "in `environment`, or another recording."
            )
        return made

    return make_environment


def _maker(config: Config) -> Callable[[], Any]:
    environment = config.environment
    make = environment_maker(environment.cls, environment.kwargs, environment.drop, envs=config.worker.envs)
    return lambda: one_of(make())


def _check_loop(made: partial[Any], reference: str) -> None:
    """Check that a training loop accepts its arguments, if its signature is known.

    Raises:
        ConfigError: the class does not accept them, so it is not a training loop.
    """
    try:
        signature = inspect.signature(made.func)
    except (TypeError, ValueError):
        return
    try:
        signature.bind_partial(**made.keywords)
    except TypeError as exc:
        raise ConfigError(
            f"trainer.loop: {reference!r} is not a training loop: {exc}. Take tmrl_core.training:TorchTrainingOffline "
            "(in lockstep TrainingLockstep), or a custom class with the same arguments."
        ) from exc


OF_OUR_LOOPS = frozenset({"max_bad_updates", "threads", "recorded_actions"})
"""Parameters that are not passed to custom training loops."""


def loop_settings(config: Config, loop: Any) -> dict[str, Any]:
    """Return the settings of `trainer` and `trainer.limiter` that `TrainingOffline` has a parameter for.

    A custom training loop gets the parameters of tmrl's loops, and those of the others that are set.
    """
    from tmrl_core.training.loops.training_loop import TrainingOffline

    trainer = config.trainer
    threads = trainer.threads
    if threads is None and config.run.seed is not None and config.worker.collection != "asynchronous":
        threads = 1  # such a run is repeatable if rounding is the same
    compressed, outside = config.worker.sample_compressor is not None, config.memory.recorded_actions
    values = {
        **msgspec.structs.asdict(trainer),
        **msgspec.structs.asdict(trainer.limiter),
        "agent_scheduler": resolve_optional(trainer.agent_scheduler, "trainer.agent_scheduler"),
        "threads": threads,
        "offline": config.offline_path,
        "recorded": config.recorded_path,
        # A compressor may give actions other units, so the space says nothing about them.
        "recorded_actions": None if compressed and outside == "refuse" else outside,
    }
    ours = isinstance(loop, type) and issubclass(loop, TrainingOffline)
    return {
        name: values[name]
        for name, parameter in inspect.signature(TrainingOffline.__init__).parameters.items()
        if name in values
        and (
            ours
            or parameter.kind is not parameter.KEYWORD_ONLY
            or (name not in OF_OUR_LOOPS and values[name] is not None)
        )
    }


def _declared(config: Config, loop: Any) -> dict[str, Any]:
    """Return the declared fields that reach the memory unchanged, for a loop that checks them."""
    try:
        accepted = inspect.signature(loop).parameters.values()
    except (TypeError, ValueError):
        return {}
    if not config.trainer.check_spaces or not any(p.name == "declared" or p.kind is p.VAR_KEYWORD for p in accepted):
        return {}
    if config.worker.collection == "lockstep":
        known = {"extras"}
    elif memory_of(config.memory.cls) is not None:
        known = set()
    else:
        return {}  # a custom memory may change its samples
    if config.worker.sample_compressor is None:
        known |= {"action"} if config.worker.obs_preprocessor is not None else {"observation", "action"}
        known |= {"dtypes"} if actor_of(config.actor.cls) is not None else set()
    return {"declared": frozenset(known)}


def lockstep_settings(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of a loop for lockstep collection."""
    if config.worker.collection != "lockstep":
        return {}
    return {**msgspec.structs.asdict(config.trainer.lockstep), "seed": config.run.seed}


def make_agent(
    config: Config,
    agent_cls: Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    observation_space: Any,
    action_space: Any,
    **more: Any,
) -> Any:
    """Return the agent, if its class supports this action space or declares none.

    Raises:
        ConfigError: the class does not support the action space (the message lists the pairs that work), the workers'
            policy cannot act in it, the memory cannot store the observations, or a built-in agent rejects these values.
    """
    problem = action_space_problem(config.agent.cls, declarations_of(agent_cls).action_spaces, action_space)
    if algorithm_of(config.agent.cls) is not None:
        # With a custom agent, workers may act with a policy that the configuration does not name.
        problem = problem or policy_problem(config, action_space)
    problem = problem or stacks_problem(config, observation_space)
    if problem is not None:
        raise ConfigError(problem)
    try:
        return agent_cls(observation_space=observation_space, action_space=action_space, **more, **kwargs)
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError) as exc:
        # For custom code, a traceback is more useful.
        if (
            isinstance(exc, ConfigError)
            or algorithm_of(config.agent.cls) is None
            or any(map(callable, kwargs.values()))
        ):
            raise
        given = ", ".join(f"{key}: {value!r:.100}" for key, value in kwargs.items())
        raise ConfigError(
            f"agent.kwargs: {config.agent.cls} cannot be made with {{{given}}} (those of actor.kwargs included): {exc}"
        ) from exc


def check_collection(agent_cls: Any, config: Config) -> None:
    """Check that the agent's class supports this collection mode, if it declares any.

    Raises:
        ConfigError: the class does not support it.
    """
    modes = declarations_of(agent_cls).collection
    collection = config.worker.collection
    if collection in modes:
        return
    raise ConfigError(
        f"agent.cls: {config.agent.cls} does not learn from worker.collection: {collection}; it works with "
        f"{' and '.join(sorted(modes))}"
    )
