"""Which policies have a twin that needs no torch; found by name, so that looking does not import torch either."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tmrl_core.actor.activations import activation_name
from tmrl_core.actor.numpy_policies import SUPPORTED_ACTIVATIONS, NumpySquashedGaussianMLPActor

_TWINS: dict[str, type[NumpySquashedGaussianMLPActor]] = {
    "tmrl_core:SquashedGaussianMLPActor": NumpySquashedGaussianMLPActor,
    "tmrl_core.actor:SquashedGaussianMLPActor": NumpySquashedGaussianMLPActor,
    "tmrl_core.actor.torch_policies:SquashedGaussianMLPActor": NumpySquashedGaussianMLPActor,
}

_KEYWORDS = frozenset({"hidden_sizes", "activation"})


def numpy_twin(actor: Any, kwargs: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
    """What makes the same policy without torch, or None where there is no such twin.

    Args:
        actor: the policy's class, a functools.partial of it, or its reference "package.module:Name".
        kwargs: keyword arguments that the policy is made with, besides the two spaces.

    Returns:
        A callable `(observation_space=, action_space=)`. None: a policy of the user's own (a subclass included), or a
        keyword argument, such as another activation, that the twin does not know.
    """
    keywords = dict(kwargs or {})
    while isinstance(actor, functools.partial):
        if actor.args:
            return None
        keywords = {**actor.keywords, **keywords}
        actor = actor.func
    reference = (
        actor if isinstance(actor, str) else f"{_attribute(actor, '__module__')}:{_attribute(actor, '__qualname__')}"
    )
    twin = _TWINS.get(reference)
    if twin is None or not _KEYWORDS.issuperset(keywords):
        return None
    if activation_name(keywords.get("activation", "relu")) not in SUPPORTED_ACTIVATIONS:
        return None
    return functools.partial(twin, **keywords) if keywords else twin


def _attribute(value: Any, name: str) -> str:
    return str(getattr(value, name, ""))
