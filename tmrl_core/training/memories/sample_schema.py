"""Sample schema that an environment declares, checked against received samples."""

# Theory of operation
#
# The first samples in a memory fix the format of all later ones, and a network accepts only its own input format: an
# index beyond the outputs of a network stops an update. Without a check, the first worker to arrive with another
# environment could stop or take over a run. If no preprocessor or compressor changes samples on the way to the memory,
# the environment's spaces define the format before the first sample.
#
# Workers check the dtypes of their observations too (`tmrl_core.actor.rollout.step_checks`), with the same rule.
# Actions come from the policy: built-in policies act in the space's dtype, others may act in any. What a preprocessor
# or compressor changes is not checked (`what`), and neither are custom memories.

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from gymnasium import spaces

from tmrl_core.actor.interventions import TAKEOVER_EXTRAS
from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Chunk
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.value_types import Space, Tree

WHAT = frozenset({"observation", "action", "extras", "dtypes"})
"""Properties that are compared with the declaration. "dtypes" are those of actions and extras."""
_ENVIRONMENT, _POLICY, _ANYBODY = "environment", "policy", "anybody"
ADVICE = (
    "Workers and trainer need the same environment. If its samples differ from its spaces, correct the spaces, or set "
    "trainer.check_spaces: false."
)


class DeclaredSamples:
    """Required format of samples.

    Args:
        observation_space, action_space: spaces of the environment. Only Box, Discrete, MultiBinary, MultiDiscrete, and
            Dict or Tuple of these are checked.
        what: the declared properties, members of `WHAT`; the rest is not checked.
        extras: one example value of each of the policy's extra columns; for "extras".
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        what: Collection[str] = WHAT,
        extras: Mapping[str, Tree] | None = None,
    ) -> None:
        self._observation = observation_space if "observation" in what else None
        self._action = action_space if "action" in what else None
        self._exact = "dtypes" in what
        self._extras: dict[str, Tree] | None = None
        if "extras" in what and extras is not None:
            self._extras = {name: np.asarray(value) for name, value in extras.items()}

    def check(self, chunk: Chunk) -> None:
        """Check the format of samples; actions and extras if there are any.

        Raises:
            SampleRefusedError: the format differs. The message names the part, its format and the required one.
        """
        if self._observation is not None:
            _check(self._observation, chunk.observation, "the observation", None, _ENVIRONMENT)
        present = chunk.action_present
        if not present.any():
            return
        if self._action is not None:
            rows = None if present.all() else present
            _check(self._action, chunk.action, "the action", rows, _POLICY if self._exact else _ANYBODY)
        if self._extras is not None:
            of_policy = {name: tree for name, tree in chunk.extras.items() if name not in TAKEOVER_EXTRAS}
            self._check_extras(self._extras, of_policy)

    def _check_extras(self, declared: Mapping[str, Tree], extras: Mapping[str, Tree]) -> None:
        if extras.keys() != declared.keys():
            raise SampleRefusedError(
                f"samples have the extras {_names(extras)}, and the policy's are {_names(declared)}. Workers and "
                "trainer need the same actor.cls."
            )
        for name, one in declared.items():
            found = extras[name]
            same = isinstance(found, np.ndarray) and found.shape[1:] == one.shape
            if not same or (self._exact and found.dtype.newbyteorder("=") != one.dtype.newbyteorder("=")):
                raise SampleRefusedError(
                    f"the extra {name} is {_found(found)}, and the policy's is {_found(one[None])}. "
                    "Workers and trainer need the same actor.cls."
                )


def _check(space: Space, tree: Tree, what: str, rows: Array | None, by: str) -> None:
    """Check that columns match a space.

    Args:
        space: space of one row.
        tree: the columns.
        what: their name, for the error.
        rows: [rows] bool, rows to check; None: all.
        by: who chose the dtypes: `_ENVIRONMENT`, `_POLICY` or `_ANYBODY`.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(tree, dict) or tree.keys() != space.spaces.keys():
            found = f"a dict of {_names(tree)}" if isinstance(tree, dict) else _found(tree)
            _refuse(what, found, f"a dict of {_names(space.spaces)}")
        for key, part in space.spaces.items():
            _check(part, tree[key], f"{what}/{key}", rows, by)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(tree, tuple) or len(tree) != len(space.spaces):
            _refuse(what, _found(tree), f"a tuple of {len(space.spaces)}")
        for index, part in enumerate(space.spaces):
            _check(part, tree[index], f"{what}/{index}", rows, by)
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        if not isinstance(tree, np.ndarray) or tree.shape[1:] != space.shape or not _fits(space, tree.dtype, by):
            _refuse(what, _found(tree), f"{_dtype(space, by)}{[*(space.shape or ())]}")
        _check_values(space, tree if rows is None else tree[rows], what)


def check_space(space: Space, tree: Tree, what: str) -> None:
    """Check structure, shapes and the range of numbered actions of columns; any numeric dtype is accepted.

    Raises:
        SampleRefusedError: the columns are not of this space. The message begins with `what`.
    """
    _check(space, tree, what, None, _ANYBODY)


def _dtype(space: Space, by: str) -> np.dtype:
    """Return the dtype of a space. Built-in policies return numbered actions as int64, of any space."""
    dtype = np.dtype(np.int64 if by == _POLICY and isinstance(space, spaces.Discrete) else space.dtype)
    native: np.dtype = dtype.newbyteorder("=")
    return native


def _fits(space: Space, dtype: np.dtype, by: str) -> bool:
    if by == _ANYBODY:
        return dtype.kind in "biuf"
    if by == _ENVIRONMENT and isinstance(space, spaces.Discrete):
        return dtype.kind in "iu"  # environments return integers of Python or NumPy
    return bool(dtype.newbyteorder("=") == _dtype(space, by))


def _check_values(space: Space, column: Array, what: str) -> None:
    """Accept integers as indices of numbered actions."""
    if isinstance(space, spaces.Discrete):
        first, count = np.asarray(space.start), np.asarray(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        first, count = np.asarray(space.start), space.nvec
    else:
        return
    with np.errstate(all="ignore"):
        fits = (column >= first) & (column <= first + count - 1)  # this form of the comparison refuses NaN too
    if not fits.all():
        _refuse(what, f"{column[~fits][0]}", str(space))


def _refuse(what: str, found: str, declared: str) -> None:
    raise SampleRefusedError(f"{what} of samples is {found}, and the environment declares {declared}. {ADVICE}")


def _found(tree: Tree) -> str:
    if isinstance(tree, np.ndarray):
        return f"{tree.dtype}{list(tree.shape[1:])}"
    if isinstance(tree, dict):
        return f"a dict of {_names(tree)}"
    if isinstance(tree, list) and tree and isinstance(tree[0], bytes):
        return "encoded images (set worker.images for the trainer too)"
    return f"a tuple of {len(tree)}" if isinstance(tree, tuple) else "no array"


def _names(keys: Iterable[object]) -> str:
    names = ", ".join(sorted(str(key) for key in keys))
    return names if len(names) <= 200 else f"{names[:200]}..."
