"""Compatible action spaces, collection modes, loops, memories and policies of each algorithm, by name.

An algorithm declares its row with its settings, in a file `*_settings.py` beside its agent. These files import no
torch, so that a configuration is checked on machines without torch. They are found by listing
`tmrl_core/training/agents`, so that a new algorithm changes no list. A package of others names the class of its
settings by an entry point of the group `tmrl_core.agents`. The entry point has the name of the agent's class, and is
loaded when a configuration names a class of this name.

`tests/config/test_algorithms.py` compares the rows with the classes. For classes without a row, the trainer checks only
`collection` and `action_spaces`, after importing them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from tmrl_core import rooms
from tmrl_core.config.error_messages import near
from tmrl_core.config.sections import Config
from tmrl_core.errors import ConfigError

OFF_POLICY = frozenset({"asynchronous", "synchronous"})
ON_POLICY = frozenset({"lockstep"})
REPLAY = frozenset({"ReplayMemory", "FrameStackMemory"})
SEQUENCES = frozenset({"SequenceMemory"})
BOX, DISCRETE = frozenset({"box"}), frozenset({"discrete"})
CHOICES = DISCRETE | {"multi_discrete"}
_AGENTS = "tmrl_core.training.agents"


class Algorithm(msgspec.Struct, frozen=True):
    """The row of one algorithm, which the class of its settings declares.

    Args:
        cls: reference of the agent's class, `package.module:Name`.
        settings: class of its settings, derived from `tmrl_core.training.agents.settings:Settings`.
        action_spaces: kinds of `action_space_kind`.
        collection: supported values of `worker.collection`.
        actors: supported policies of `tmrl_core.actor`.
        memories: supported memories of `tmrl_core.training`; none: the loop stores a round, for any `memory.cls`.
        aliases: other names of the class in its module.
    """

    cls: str
    settings: Any
    action_spaces: frozenset[str]
    collection: frozenset[str]
    actors: frozenset[str]
    memories: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the agent's class."""
        return self.cls.partition(":")[2]

    @property
    def module(self) -> str:
        """Module of the agent's class."""
        return self.cls.partition(":")[0]

    @property
    def keywords(self) -> frozenset[str]:
        """Names of the keys of `agent.kwargs`."""
        return frozenset({one.name for one in fields(self.settings)} | {self.settings.networks})


@functools.cache
def _files() -> list[str]:
    folder = Path(__file__).resolve().parents[1].joinpath("training", "agents")
    return sorted(file.stem for file in folder.glob("*_settings.py"))


def _rows(file: str) -> list[Algorithm]:
    module = import_module(f"{_AGENTS}.{file}")
    declared = [part for part in vars(module).values() if isinstance(part, type) and part.__module__ == module.__name__]
    return [row for part in declared if (row := vars(part).get("algorithm")) is not None]


@functools.cache
def algorithms() -> Mapping[str, Algorithm]:
    """Return the algorithms of this package by the names of their classes; the first call imports their settings."""
    return {row.name: row for file in _files() for row in _rows(file)}


def _modules_of(row: Algorithm) -> dict[str, str]:
    return dict.fromkeys((row.name, *row.aliases), row.module.removeprefix("tmrl_core.training."))


def agent_modules() -> dict[str, str]:
    """Return the module of each agent's class, relative to `tmrl_core.training`, by name and alias."""
    return {name: module for row in algorithms().values() for name, module in _modules_of(row).items()}


def _own_name(reference: str, package: str, modules: Mapping[str, str]) -> str | None:
    """Return the name of a class of this package that a reference names by one of its paths; None: another class.

    Args:
        reference: as `package.module:Name`.
        package: `actor` or `training`.
        modules: module of each class, relative to the package, by name.
    """
    place, _, name = reference.rpartition(":")
    places = ("tmrl_core", f"tmrl_core.{package}", f"tmrl_core.{package}.{modules.get(name)}")
    return name if name in modules and place in places else None


@functools.cache
def algorithm_of(reference: str) -> Algorithm | None:
    """Return the algorithm that `agent.cls` names; None: a class without a row.

    Raises:
        ConfigError: the settings that another package declares cannot be loaded.
    """
    name = reference.rpartition(":")[2]

    def place(file: str) -> tuple[bool, int]:
        # The file that is named as the class comes first: each import of settings takes 1 ms of the start of a role.
        stem = file.removesuffix("_settings").replace("_", "")
        return stem not in name.lower(), -len(stem)

    for file in sorted(_files(), key=place) if reference.startswith("tmrl_core") else ():
        for row in _rows(file):
            if _own_name(reference, "training", _modules_of(row)):
                return row
    for entry in rooms.added("agents", name):
        row = entry.load().algorithm
        if isinstance(row, Algorithm) and row.cls == reference:
            return row
    return None


class Policy(msgspec.Struct, frozen=True):
    """A built-in policy, with a torch and a NumPy backend.

    Args:
        name: name of its class in `tmrl_core.actor`; the NumPy backend is named `Numpy` and this name.
        action_spaces: kinds of `action_space_kind`.
        file: module of both classes, in `tmrl_core.actor.policies.torch` and `tmrl_core.actor.policies.numpy`.
    """

    name: str
    action_spaces: frozenset[str]
    file: str

    @property
    def numpy_name(self) -> str:
        """Name of the NumPy backend's class."""
        return f"Numpy{self.name}"

    @property
    def classes(self) -> dict[str, str]:
        """Module below `tmrl_core.actor` of each of the two classes, by name."""
        return {self.name: f"policies.torch.{self.file}", self.numpy_name: f"policies.numpy.{self.file}"}


POLICIES = (
    Policy("CategoricalMLPActor", CHOICES, "categorical"),
    Policy("DeterministicMLPActor", BOX, "deterministic"),
    Policy("GaussianMLPActor", BOX, "gaussian"),
    Policy("QValueMLPActor", DISCRETE, "q_value"),
    Policy("SquashedGaussianMLPActor", BOX, "squashed_gaussian"),
    Policy("NormalizedSquashedGaussianMLPActor", BOX, "squashed_gaussian"),
    Policy("SquashedGaussianResidualActor", BOX, "residual"),
    Policy("CategoricalRNNActor", CHOICES, "categorical"),
    Policy("GaussianRNNActor", BOX, "gaussian"),
    Policy("QValueRNNActor", DISCRETE, "q_value"),
    Policy("SquashedGaussianRNNActor", BOX, "squashed_gaussian"),
)

ACTORS = {policy.name: policy.action_spaces for policy in POLICIES}
"""Kinds of action spaces of each built-in policy."""

FRAME_STACK = 4
"""Default number of frames of `FrameStackMemory`."""
ALONE_BYTES = 2_048
"""Size from which that memory stores a part of an observation that is no stack once. For smaller parts, finding a
number costs more than the memory that it saves."""
SEQUENCE_LENGTH = 40
"""Default number of ticks in a sequence of `SequenceMemory`."""
MEMORIES = {
    "FrameStackMemory": "memories.frame_stack_memory",
    "ReplayMemory": "memories.replay",
    "RoundMemory": "loops.round_memory",
    "SequenceMemory": "memories.sequences",
}
LOOPS = {
    "TorchTrainingOffline": "loops.training_loop",
    "TrainingLockstep": "loops.lockstep",
    "TrainingOffline": "loops.training_loop",
}


def actor_of(reference: str) -> str | None:
    """Return the name of the built-in policy that `actor.cls` names, without `Numpy`; None: a custom one."""
    modules = {name: module for policy in POLICIES for name, module in policy.classes.items()}
    name = _own_name(reference, "actor", modules)
    return None if name is None else name.removeprefix("Numpy")


SHAPE_KWARGS = (
    "hidden_sizes", "activation", "convolutions", "cell", "cell_size", "state_interval", "width", "blocks"
)  # fmt: skip
"""Keyword arguments that shape both built-in agents and their policies."""


def policy_kwargs(config: Config) -> dict[str, Any]:
    """Return the policy's keyword arguments: `actor.kwargs`, and those of `agent.kwargs` that shape the policy too."""
    return {**shared_kwargs(config), **config.actor.kwargs}


def shared_kwargs(config: Config) -> dict[str, Any]:
    """Return the entries of `agent.kwargs` that shape both the agent and the policy, if both are built-in."""
    if algorithm_of(config.agent.cls) is None or actor_of(config.actor.cls) is None:
        return {}
    return {name: config.agent.kwargs[name] for name in SHAPE_KWARGS if name in config.agent.kwargs}


def memory_of(reference: str) -> str | None:
    """Return the name of the built-in memory that `memory.cls` names; None: a custom one."""
    return _own_name(reference, "training", MEMORIES)


def loop_of(reference: str) -> str | None:
    """Return the name of the built-in loop that `trainer.loop` names; None: a custom one."""
    return _own_name(reference, "training", LOOPS)


def _kinds(names: Any, prefix: str = "") -> str:
    return " or ".join(f"{prefix}{name}" for name in sorted(names))


TOGETHER = "docs/choosing.md lists what works together"


def mismatches(config: Config) -> Iterator[str]:
    """Yield one line for each key that conflicts with the built-in algorithm, then a reference to what works."""
    algorithm = algorithm_of(config.agent.cls)
    if algorithm is None:
        return
    found = []
    if config.worker.collection not in algorithm.collection:
        found.append(
            f"worker.collection: {config.worker.collection} does not go with agent.cls: {config.agent.cls}; allowed: "
            f"{_kinds(algorithm.collection)}"
        )
    actor = actor_of(config.actor.cls)
    if actor is not None and actor not in algorithm.actors:
        found.append(
            f"actor.cls: {config.actor.cls} (actions: {_kinds(ACTORS[actor])}) does not go with agent.cls: "
            f"{config.agent.cls}; allowed: {_kinds(algorithm.actors, 'tmrl_core.actor:')}, or one of your own"
        )
    memory = memory_of(config.memory.cls)
    if memory is not None and algorithm.memories and memory not in algorithm.memories:
        found.append(
            f"memory.cls: {config.memory.cls} does not go with agent.cls: {config.agent.cls}; allowed: "
            f"{_kinds(algorithm.memories, 'tmrl_core.training:')}, or a replay memory of your own"
        )
    yield from found
    if found:
        yield TOGETHER


def unknown_keywords(config: Config) -> Iterator[str]:
    """Yield two lines if `agent.kwargs` has keys that the built-in agent does not take."""
    algorithm = algorithm_of(config.agent.cls)
    unknown = sorted(config.agent.kwargs.keys() - algorithm.keywords) if algorithm is not None else []
    if algorithm is None or not unknown:
        return
    # An algorithm that others derive from comes first.
    rows = sorted(algorithms().values(), key=lambda one: len(one.settings.__mro__))
    owners = {key: next((one.name for one in rows if key in one.keywords), "") for key in unknown}
    hints = [
        f" {owner} takes {', '.join(key for key in unknown if owners[key] == owner)}."
        for owner in sorted(set(owners.values()) - {""})
    ]
    for key in unknown:
        if key == "device":
            hints.append(" The device is trainer.device.")
        elif not owners[key]:
            hints.append(near(key, algorithm.keywords))
    keys = ", ".join(f"agent.kwargs.{key}" for key in unknown)
    yield f"{keys}: {algorithm.name} takes no such keyword argument{'s' * (len(unknown) > 1)}.{''.join(hints)}"
    yield f"It takes {', '.join(sorted(algorithm.keywords))}; docs/choosing.md explains them."


def out_of_range(config: Config) -> Iterator[str]:
    """Yield one line for each setting of an agent with a row that is out of range, those of `actor.kwargs` included."""
    algorithm = algorithm_of(config.agent.cls)
    if algorithm is None:
        return
    # Workers act with the agent's policy, so the agent gets these too.
    shared = {name: value for name, value in config.actor.kwargs.items() if name not in config.agent.kwargs}
    found = [
        f"{section}.kwargs.{name}: {problem}"
        for section, values in (("agent", config.agent.kwargs), ("actor", shared))
        for name, problem in algorithm.settings.out_of_range(values)
    ]
    yield from found
    if not found:
        names = algorithm.keywords - {algorithm.settings.networks}
        known = {name: value for name, value in (shared | config.agent.kwargs).items() if name in names}
        try:
            algorithm.settings(**known)
        except ConfigError as exc:  # of several settings together
            yield str(exc)
        except TypeError:
            pass  # a value of another type, which the trainer names when it checks the types


def burn_in_problem(config: Config) -> Iterator[str]:
    """Yield one line if the built-in recurrent agent's burn-in leaves no tick of a sequence to learn from."""
    algorithm = algorithm_of(config.agent.cls)
    if algorithm is None or algorithm.memories != SEQUENCES or memory_of(config.memory.cls) != "SequenceMemory":
        return
    length = config.memory.kwargs.get("length", SEQUENCE_LENGTH)
    burn_in = config.agent.kwargs.get("burn_in", algorithm.settings.burn_in)
    if isinstance(length, int | float) and isinstance(burn_in, int | float) and burn_in >= length >= 1:
        yield (
            f"agent.kwargs.burn_in: found {burn_in:g}, allowed: less than memory.kwargs.length = {length:g}, the ticks "
            "of a sequence. Lower the first or raise the second"
        )


def action_space_kind(space: Any) -> str:
    """`box` (of floats), `discrete`, `multi_discrete` (or MultiBinary), or the name of the space's class."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return "discrete"
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return "multi_discrete"
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
        return "box"
    return type(space).__name__


def stacks_problem(config: Config, space: Any) -> str | None:
    """Return the reason why the configured memory of stacked frames cannot store this observation space; None: it can.

    The observations of a preprocessor are not known in advance.
    """
    from tmrl_core.space_tree import space_leaves

    if memory_of(config.memory.cls) != "FrameStackMemory" or config.worker.obs_preprocessor is not None:
        return None
    stack = config.memory.kwargs.get("frame_stack", FRAME_STACK)
    parts: list[Any] = [part for _, part in space_leaves(space)]
    if stack == 1:
        if any(part.shape is None or _stored_bytes(part) >= ALONE_BYTES for part in parts):
            return None
        return (
            f"memory.cls: {config.memory.cls} with memory.kwargs.frame_stack: 1 stores pictures once, and no part of "
            f"the environment's observation space {space} has {ALONE_BYTES} bytes. Take memory.cls: "
            "tmrl_core.training:ReplayMemory."
        )
    if any(part.shape is None or (len(part.shape) > 1 and part.shape[0] == stack) for part in parts):
        return None
    return (
        f"memory.cls: {config.memory.cls} stores stacks of {stack} frames (memory.kwargs.frame_stack), and no part of "
        f"the environment's observation space {space} is {stack} arrays along its first axis. Take memory.cls: "
        "tmrl_core.training:ReplayMemory, set memory.kwargs.frame_stack to the number of frames, or to 1 where each "
        "observation has single pictures, or stack them "
        "(gymnasium.wrappers.FrameStackObservation)."
    )


def _stored_bytes(part: Any) -> int:
    """Return the bytes of a part of an observation in a memory, which stores float64 as float32."""
    itemsize: int = part.dtype.itemsize if part.dtype is not None else 4
    return int(math.prod(part.shape)) * (min(itemsize, 4) if part.dtype is None or part.dtype.kind == "f" else itemsize)


def policy_problem(config: Config, space: Any) -> str | None:
    """Return the reason why the built-in policy cannot act in an action space; None: it can."""
    actor, kind = actor_of(config.actor.cls), action_space_kind(space)
    if actor is None or kind in ACTORS[actor]:
        return None
    algorithm = algorithm_of(config.agent.cls)
    fitting = [name for name in ACTORS if kind in ACTORS[name] and (algorithm is None or name in algorithm.actors)]
    advice = f"{_kinds(fitting, 'tmrl_core.actor:')}, or one of your own" if fitting else "one of your own"
    return (
        f"actor.cls: {config.actor.cls} acts in spaces of the kind {_kinds(ACTORS[actor])}, and the environment's "
        f"action space is {space} ({kind}); for it take actor.cls: {advice}"
    )


def action_space_problem(agent: str, action_spaces: frozenset[str], space: Any) -> str | None:
    """Return the reason why an agent cannot act in an environment, with those that can; None: it can.

    Args:
        agent: the reference `agent.cls`.
        action_spaces: action spaces that its class declares; empty: it declares none.
        space: the environment's action space.
    """
    kind = action_space_kind(space)
    if not action_spaces or kind in action_spaces:
        return None
    fitting = sorted(name for name, one in algorithms().items() if kind in one.action_spaces)
    advice = (
        f"for it take agent.cls: {_kinds(fitting)} of tmrl_core.training" if fitting else "no algorithm here takes it"
    )
    return (
        f"agent.cls: {agent} acts in spaces of the kind {_kinds(action_spaces)}, and the environment's action space is "
        f"{space} ({kind}); {advice}.\n{TOGETHER}."
    )
