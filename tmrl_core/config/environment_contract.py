"""Contract of an environment, as far as the object itself shows it: methods, spaces, and one environment only."""

# Theory of operation
#
# A breach of contract is what each further attempt would repeat: a vector environment, a space of another package, a
# reset that returns one thing, a vector of rewards. This file finds what the object shows by itself, and
# `actor/rollout/checked_environment.py` what the first results of `reset` and `step` show. A breach is a
# `ContractError`, hence a `ConfigError`: the role ends with exit status 2, and no supervisor starts it again, because
# it would fail again. After a first valid result the same problem is a failure, such as a camera's without a picture,
# and a fresh reset follows; NaN and exceptions are failures from the start.

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

from tmrl_core.config.room_sections import section_types
from tmrl_core.errors import ContractError


@runtime_checkable
class Batch(Protocol):
    """Several environments in one, as vector environments of any package are."""

    num_envs: int


@runtime_checkable
class _VectorRewarded(Protocol):
    """An environment of several objectives, as MO-Gymnasium's are."""

    reward_space: Any


def as_environment(made: Any, maker: str) -> Any:
    """Return the result of `maker`, if it is an environment that a worker can step.

    Raises:
        ContractError: it is not one, and the message names the cause.
    """
    lacking = [
        name for name in ("action_space", "close", "observation_space", "reset", "step") if not hasattr(made, name)
    ]
    if lacking:
        raise ContractError(
            f"{maker} made a {type(made).__name__}, which is not an environment: it lacks "
            f"{', '.join(lacking)}. Allowed: a callable that makes a gymnasium.Env, or an object with these attributes."
        )
    problem = _batch_problem(made) or _spaces_problem(made) or _reward_problem(made)
    if problem is not None:
        raise ContractError(f"{maker} made a {type(made).__name__}: {problem}")
    return made


class Row:
    """One environment of a vector environment, as far as whoever asks for its spaces needs it."""

    def __init__(self, vector: Any) -> None:
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self.close = vector.close


def one_of(made: Any) -> Any:
    """Return an environment, or a `Row` of a vector environment."""
    import gymnasium

    return Row(made) if isinstance(made, gymnasium.vector.VectorEnv) else made


def _batch_problem(made: Any) -> str | None:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    vector = isinstance(made, gymnasium.vector.VectorEnv)
    one = f"Workers of a run take it with worker.envs: {made.num_envs}. Else make it" if vector else "Make it"
    one += " without a vector wrapper, and start more workers (--workers)."
    if vector or (isinstance(made, Batch) and isinstance(made.num_envs, int) and made.num_envs > 1):
        return f"it is a vector environment, a batch of {made.num_envs} environments. {one}"
    # Adapters of other packages, such as Jumanji's, have an `unwrapped` that is not Gymnasium's.
    inner: object = made.unwrapped if isinstance(made, gymnasium.Env) else None
    spec: object = inner.spec if isinstance(inner, gymnasium.Env) else None
    if spec is None or isinstance(spec, EnvSpec):
        return None
    return (
        f"its `spec` is a {type(spec).__module__}.{type(spec).__name__}, and a gymnasium.Env has an EnvSpec of "
        "Gymnasium's registry there, or None. EnvPool's environments have their own: they are batches, also with "
        "num_envs=1, and need a wrapper that adds and removes the first axis of actions and results and sets `spec` "
        "to None."
    )


def _spaces_problem(made: Any) -> str | None:
    from gymnasium import Space, spaces

    from tmrl_core.space_tree import space_leaves

    for name, space in (("observation_space", made.observation_space), ("action_space", made.action_space)):
        if callable(space):
            sections = " or ".join(kind.key for kind in section_types() if kind.parts)
            return f"its {name} is a method, as PettingZoo's environments have" + (
                f". Environments of other kinds need a section of their own: {sections}." if sections else "."
            )
        if not isinstance(space, Space):
            kind = type(space)
            old = kind.__module__.partition(".")[0] == "gym"
            return (
                f"its {name}, {space!r:.100}, is a {kind.__module__}.{kind.__name__}"
                + (" of the old package gym" if old else "")
                + ", and a space of gymnasium.spaces is wanted"
                + (": environment.cls: tmrl_core.envs:OldGym makes both." if old else ".")
            )
        parts = [leaf for _, leaf in space_leaves(space)]
        if parts and all(isinstance(leaf, spaces.Box) and 0 in leaf.shape for leaf in parts):
            return f"its {name} {space} has no element (its size is zero): nothing can be {_USED[name]} it."
    return None


_USED = {"observation_space": "observed in", "action_space": "chosen in"}


def _reward_problem(made: Any) -> str | None:
    import gymnasium

    inner = made
    while isinstance(inner, gymnasium.Wrapper):
        known = type(inner).__module__.partition(".")[0] in ("gymnasium", "tmrl_core")
        if not known or isinstance(inner, gymnasium.RewardWrapper):
            return None  # it may make one number of the rewards
        inner = inner.env
    if not isinstance(inner, _VectorRewarded) or math.prod(inner.reward_space.shape or ()) == 1:
        return None
    return (
        f"its rewards are vectors ({inner.reward_space}), and one number is wanted. Weight them in a callable that "
        "environment.cls names, such as with mo_gymnasium.wrappers.LinearReward."
    )
