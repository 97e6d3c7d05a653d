"""NumPy backends of policies, found by name: the lookup does not import torch."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.policies.activations import activation_name
from tmrl_core.actor.policies.numpy.mlp import SUPPORTED_ACTIVATIONS
from tmrl_core.actor.policies.numpy.squashed_gaussian import SquashedGaussian
from tmrl_core.config import resolve, resolve_with
from tmrl_core.config.algorithms import POLICIES, actor_of
from tmrl_core.config.references import check_kwargs
from tmrl_core.errors import ConfigError, MissingExtraError

_BACKENDS: dict[str, type[ActorModule]] = {
    policy.name: resolve(f"tmrl_core.actor.{policy.classes[policy.numpy_name]}:{policy.numpy_name}")
    for policy in POLICIES
}
"""NumPy class of each of the project's policies."""

_NO_KEYWORDS = frozenset({"observation_space", "action_space", "seed"})
"""Parameters of a NumPy backend that are not keyword arguments of the policy."""


def numpy_backend_of(actor: Any, kwargs: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
    """Return a callable that makes the policy's NumPy backend, or None where it has none.

    Args:
        actor: the policy's class, a functools.partial of it, or its reference "package.module:Name".
        kwargs: keyword arguments of the policy, the two spaces left out.

    Returns:
        A callable `(observation_space=, action_space=)`. None: a policy of the user's own (a subclass included), or a
        keyword argument, such as another activation, that the NumPy backend does not support.
    """
    cls, _, keywords = _built_in(actor, kwargs)
    if cls is None or not (inspect.signature(cls).parameters.keys() - _NO_KEYWORDS).issuperset(keywords):
        return None
    if activation_name(keywords.get("activation", "relu")) not in SUPPORTED_ACTIVATIONS:
        return None
    return functools.partial(cls, **keywords) if keywords else cls


def _built_in(actor: Any, kwargs: Mapping[str, Any] | None) -> tuple[type[ActorModule] | None, bool, dict[str, Any]]:
    """Return the NumPy backend of a policy that has one, True for a backend itself, and all keyword arguments."""
    keywords, positional = dict(kwargs or {}), False
    while isinstance(actor, functools.partial):
        positional = positional or bool(actor.args)
        keywords = {**actor.keywords, **keywords}
        actor = actor.func
    reference = f"{actor.__module__}:{actor.__qualname__}" if inspect.isclass(actor) else actor
    name = actor_of(reference) if isinstance(reference, str) else None
    is_numpy = name is not None and reference.partition(":")[2].startswith("Numpy")
    return None if name is None or is_numpy or positional else _BACKENDS[name], is_numpy, keywords


def choose_actor(
    actor: Any, kwargs: Mapping[str, Any] | None = None, *, device: Any = "cpu", backend: str = "auto"
) -> Callable[..., Any]:
    """Return a callable that makes the worker's policy with the selected backend.

    Args:
        actor: as for `numpy_backend_of`.
        kwargs: as for `numpy_backend_of`.
        device: device of the policy.
        backend: `auto`: NumPy where the policy has a NumPy backend and the device is the CPU, else torch; `numpy`: the
            NumPy backend; `torch`: the policy itself.

    Raises:
        ConfigError: `numpy` is requested and not available; the reference cannot be resolved; or a keyword argument
            has a wrong type.
    """
    if backend not in ("auto", "numpy", "torch"):
        raise ConfigError(f"worker.backend: found {backend!r}, allowed: auto, numpy, torch")
    on_cpu = str(device) == "cpu"
    if backend == "numpy" and not on_cpu:
        raise ConfigError(f"worker.backend: numpy runs on the CPU, worker.device is {device}")
    make = numpy_backend_of(actor, kwargs) if backend != "torch" and on_cpu else None
    if make is not None:
        if isinstance(make, functools.partial):
            check_kwargs(make.func, make.keywords, "actor.kwargs")
        return make
    same, is_numpy, keywords = _built_in(actor, kwargs)
    if backend == "numpy" and not is_numpy:
        raise ConfigError(
            f"worker.backend: {actor!r} with {dict(kwargs or {})} has no NumPy backend; use auto or torch, or "
            f"one of the policies {', '.join(_BACKENDS)} of tmrl_core.actor with relu or tanh"
        )
    if same is not None and issubclass(same, SquashedGaussian) and "random" not in keywords:
        # Begin with random actions, as its NumPy backend does. The trainer's own actor must not: it receives no
        # weights.
        kwargs = {**(kwargs or {}), "random": None}
    torch_only = same is not None or (backend == "torch" and is_numpy)
    if torch_only and importlib.util.find_spec("torch") is None:
        missing = MissingExtraError("torch", "trainer", f"the policy {actor}")
        accepted = [] if same is None else list(inspect.signature(same).parameters.keys() - _NO_KEYWORDS)
        unknown = sorted(keywords.keys() - accepted) if accepted else []
        if unknown:
            raise ConfigError(
                f"actor.kwargs: {actor} without torch knows {', '.join(sorted(accepted))}, not {', '.join(unknown)}. "
                f"{missing}"
            )
        raise missing
    if isinstance(actor, str):
        return cast(Callable[..., Any], resolve_with(actor, kwargs or {}, "actor.cls"))
    return functools.partial(actor, **kwargs) if kwargs else cast(Callable[..., Any], actor)
