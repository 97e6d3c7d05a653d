"""Identity of an environment as text, which the trainer compares when a worker joins."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from tmrl_core.envs.real_time import ONE_THREAD, THREAD_PER_STEP

_SAME = {ONE_THREAD: THREAD_PER_STEP}
"""Ids of one environment: a robot on Windows has rtgym's other one."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Part of the text of a custom space without `__repr__`. It differs in each process."""
_MOST_CHARACTERS = 70


def identity_of(env: Any) -> dict[str, str]:
    """Return the Gymnasium id of an environment, if it has one, and its spaces as text.

    An environment that was created by its class has no id.
    """
    inner = unwrapped(env)
    spec: object = inner.spec if isinstance(inner, gymnasium.Env) else None
    spaces = identity_of_spaces(env.observation_space, env.action_space)
    # Environments of other packages may have something else by that name.
    return {"environment_id": _SAME.get(spec.id, spec.id), **spaces} if isinstance(spec, EnvSpec) else spaces


def unwrapped(env: Any) -> Any:
    """Return the environment inside of all wrappers. One that does not derive from Gymnasium's has none."""
    return env.unwrapped if isinstance(env, gymnasium.Env) else env


def identity_of_spaces(observation_space: Any, action_space: Any) -> dict[str, str]:
    """Return the spaces as text, whatever NumPy's print options are in this process."""
    # All options, because a script may have set any, and each of them would make two equal spaces differ.
    with np.printoptions(
        precision=8, threshold=1_000, edgeitems=3, linewidth=75, suppress=False, nanstr="nan", infstr="inf",
        sign="-", floatmode="maxprec", formatter=None, legacy=False,
    ):  # fmt: skip
        return {"observation_space": repr(observation_space), "action_space": repr(action_space)}


def differences(found: Mapping[str, object], expected: Mapping[str, str]) -> str:
    """Return the entries of a worker's identity that differ from the trainer's, both sides in it; empty: none.

    An entry is compared if both sides have it as text.
    """
    # A worker's side may lack an entry: an environment that was made by its class has no id.
    return "; ".join(
        f"{name} {_excerpt(theirs, ours)} at the worker, {_excerpt(ours, theirs)} at the trainer"
        for name, ours in expected.items()
        if isinstance(theirs := found.get(name), str) and _ADDRESS.sub("", theirs) != _ADDRESS.sub("", ours)
    )


def _excerpt(text: str, other: str) -> str:
    """Return a text, or its part around the first difference from another one if it is long."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
    first = max(0, same - _MOST_CHARACTERS // 2)
    part = text[first : first + _MOST_CHARACTERS]
    return f"{'...' if first else ''}{part}{'...' if first + _MOST_CHARACTERS < len(text) else ''}"
