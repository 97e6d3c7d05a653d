"""Base of the settings of agents, which are the keyword arguments of their constructors (`agent.kwargs`).

Each algorithm declares its settings and its row of the table of algorithms in a file `*_settings.py` beside its agent,
as one class. Types, defaults, limits and descriptions stand there alone: signatures and docstrings of the agents, the
checks of a configuration and the table in `docs/choosing.md` follow from them. These files import no torch, so that
machines without torch check the configuration of every agent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, get_args, get_type_hints

from tmrl_core.config.algorithms import OFF_POLICY, REPLAY, SEQUENCES, Algorithm
from tmrl_core.errors import ConfigError
from tmrl_core.training.checkpointable import StateOwner

SHARE, AT_LEAST_0, AT_LEAST_1, ABOVE_0 = "0 to 1", "0 or more", "at least 1", "more than 0"
SIZES, COMPILATION, PRECISIONS = "widths of at least 1", "auto, true, false", "float32, tf32, bfloat16"

Arguments: TypeAlias = dict[str, Any]


def _number(holds: Callable[[float], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, bool) or not isinstance(value, int | float) or holds(value)


def _sizes(value: object) -> bool:
    return not isinstance(value, list | tuple) or all(not isinstance(size, int) or size >= 1 for size in value)


_HOLDS: dict[str, Callable[[object], bool]] = {
    SHARE: _number(lambda value: 0 <= value <= 1),
    AT_LEAST_0: _number(lambda value: value >= 0),
    AT_LEAST_1: _number(lambda value: value >= 1),
    ABOVE_0: _number(lambda value: value > 0),
    SIZES: _sizes,
    COMPILATION: lambda value: value in (True, False, "auto"),
    PRECISIONS: lambda value: value in ("float32", "tf32", "bfloat16"),
}
"""Checks of values of the right type, by the text of the limit, which an annotation names before the description."""

Polyak: TypeAlias = Annotated[
    float, SHARE, "fraction of the target networks that each Polyak update keeps; 0: copy the networks"
]
PolicyRate: TypeAlias = Annotated[float, "learning rate of the policy"]
CriticRate: TypeAlias = Annotated[float, "learning rate of the critics"]
Optimizer: TypeAlias = Annotated[str, "adam, adamw or sgd"]
Betas: TypeAlias = Annotated[Sequence[float] | None, "Adam's betas; None: torch's default"]
Decay: TypeAlias = Annotated[float | None, "weight decay; None: the optimizer's default"]
ClippedNorm: TypeAlias = Annotated[float | None, ABOVE_0, "gradient-norm clipping threshold; None: no clipping"]
Layers: TypeAlias = Annotated[
    str | Sequence[Sequence[int]] | None,
    "for images: tiny, small, large, none, or [filters, kernel, stride] of each layer; None: by size",
]


class Settings(StateOwner):
    """Settings of one agent, which holds them as `settings`, and the row of its algorithm.

    A derived class is a dataclass by itself. With `agent`, a reference, it declares an algorithm, whose row consists of
    the other keywords of the class and those that its first base has. `Algorithm` describes them.

    Settings are part of checkpoints, because a schedule may change them.

    Raises:
        ConfigError: a value is out of range.
    """

    algorithm: ClassVar[Algorithm | None] = None
    """Row of the algorithm; None: a base of others."""
    networks: ClassVar[str] = "model_cls"
    """Name of the keyword argument with code, which makes the networks."""
    of_model: ClassVar[tuple[str, ...]] = ("hidden_sizes", "activation", "convolutions")
    """Settings that are keyword arguments of the networks."""
    transient: ClassVar[frozenset[str]] = frozenset({"hidden_sizes", "activation", "convolutions", "model_kwargs"})
    type_id: ClassVar[str]
    type_version: ClassVar[int] = 1
    _row: ClassVar[Arguments] = {}

    if TYPE_CHECKING:  # dataclass makes both
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        def __init__(self, *given: object, **named: object) -> None: ...

    def __init_subclass__(cls, *, agent: str = "", aliases: tuple[str, ...] = (), **row: object) -> None:
        dataclass(repr=False, eq=False)(cls)
        cls._row = {**cls._row, **row}
        # A checkpoint names the class by its name alone, so that its file may move.
        cls.type_id = cls.__name__
        # The other entries of a row are inherited; aliases are names in the module of this agent.
        cls.algorithm = Algorithm(agent, cls, aliases=aliases, **cls._row) if agent else None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(self, name, tuple(value))
        for name, problem in self.out_of_range(vars(self)):
            raise ConfigError(f"agent.kwargs.{name}: {problem}")

    @classmethod
    def out_of_range(cls, values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Yield the name and the problem of each value with the right type that is out of range."""
        limits = _limits_of(cls)  # type: ignore[arg-type]  # mypy takes a class for its instances here
        for name, value in values.items():
            if name in limits and not _HOLDS[limits[name]](value):
                yield name, f"found {value!r:.100}, allowed: {limits[name]}"

    def model_arguments(self) -> Arguments:
        """Return the keyword arguments of the networks; None leaves a default to them."""
        return {name: vars(self)[name] for name in self.of_model if vars(self)[name] is not None}


@functools.cache
def _limits_of(settings: type) -> dict[str, str]:
    annotated = {name: get_args(hint)[1:] for name, hint in get_type_hints(settings, include_extras=True).items()}
    return {name: about[0] for name, about in annotated.items() if about and about[0] in _HOLDS}


class OffPolicySettings(Settings, collection=OFF_POLICY, memories=REPLAY):
    """Settings of every agent that learns from a replay memory."""

    gamma: Annotated[float, SHARE, "discount factor per step"] = 0.99
    polyak: Polyak = 0.995
    _: KW_ONLY
    hidden_sizes: Annotated[Sequence[int] | None, SIZES, "width of each hidden layer; None: that of `model_cls`"] = None
    activation: Annotated[object, "class or name of the activation; None: `model_cls`'s default"] = None
    convolutions: Layers = None
    model_kwargs: Annotated[Arguments | None, "further keyword arguments of `model_cls`"] = None
    compile: Annotated[
        bool | str, COMPILATION, "compile each update into one graph; auto: at once on CUDA, else after 20,000 updates"
    ] = "auto"
    random_shifts: Annotated[
        bool | int,
        AT_LEAST_0,
        "for images: move those of each batch by up to so many pixels at random; true: 4, as in DrQ; false: none",
    ] = False
    precision: Annotated[
        str, PRECISIONS, "of the networks' matrix products: float32, bfloat16, or on CUDA tf32 (untried here)"
    ] = "float32"

    def model_arguments(self) -> Arguments:
        """Return `model_kwargs`, overridden by the other settings of the networks that are not None."""
        return {**(self.model_kwargs or {}), **super().model_arguments()}


class EntropySettings(OffPolicySettings):
    """Settings of agents with a learned entropy coefficient."""

    # The coefficient's first value stays in force when a run resumes.
    transient: ClassVar[frozenset[str]] = frozenset({"alpha"})

    alpha: Annotated[float, AT_LEAST_0, "(initial) entropy coefficient, the temperature"] = 0.2
    lr_actor: PolicyRate = 1e-3
    lr_critic: CriticRate = 1e-3
    lr_entropy: Annotated[float, "learning rate of the entropy coefficient"] = 1e-3
    learn_entropy_coef: Annotated[bool, "learn the entropy coefficient"] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learn_entropy_coef and self.alpha == 0:
            raise ConfigError(
                f"agent.kwargs.alpha: found {self.alpha!r}, allowed: more than 0, since each update multiplies a "
                "learned coefficient. Set learn_entropy_coef: false for no entropy term, or begin with a small number."
            )


class RecurrentSettings(OffPolicySettings, memories=SEQUENCES):
    """Settings of agents that learn from sequences."""

    of_model: ClassVar[tuple[str, ...]] = (*OffPolicySettings.of_model, "cell", "cell_size", "state_interval")

    burn_in: Annotated[
        int, AT_LEAST_0, "first ticks of a sequence that only renew the state; not at the beginning of an episode"
    ] = 10
    cell: Annotated[str | None, "gru or lstm; None: that of `model_cls`, gru"] = None
    cell_size: Annotated[int | None, "units of each recurrent layer; None: that of `model_cls`, 128"] = None
    state_interval: Annotated[int | None, "ticks between two stored states; None: that of `model_cls`, 20"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compile is True:
            raise ConfigError("agent.kwargs.compile: found True, allowed for recurrent agents: auto, false")
        if self.precision != "float32":
            raise ConfigError(
                f"agent.kwargs.precision: found {self.precision!r}, allowed for recurrent agents: float32"
            )
        if self.random_shifts:
            raise ConfigError(
                f"agent.kwargs.random_shifts: found {self.random_shifts!r}, allowed for recurrent agents: false"
            )
