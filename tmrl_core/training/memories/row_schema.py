"""The structure of a store's samples, which its first samples define."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from tmrl_core.actor.interventions import TAKEOVER_EXTRAS
from tmrl_core.actor.module import STATE_COLUMN
from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Chunk
from tmrl_core.training.batches import FIRST_TICK, TICKS
from tmrl_core.training.memories.key_order import KeyOrders
from tmrl_core.training.memories.layout import Array, RowLayout, TreeSpec, tree_spec
from tmrl_core.training.memories.n_steps import DISCOUNT
from tmrl_core.training.memories.prioritized import INDICES, WEIGHTS
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.trees import leaves_of

logger = logging.getLogger(__name__)

RESERVED = frozenset({DISCOUNT, FIRST_TICK, INDICES, TICKS, WEIGHTS})
"""Names of extras that memories add to batches."""

MAX_WARNINGS = 100
"""Maximum number of extras that are logged because they are not stored."""


class RowSchema:
    """Check samples against the layout of a store, and derive the layout from the first samples.

    Args:
        rows: the store.
        downcast_float64: float64 columns are stored as float32.
        keep_extras: the samples' own extras are stored.
        sequence: length and stride of the sequences that rows hold, with recurrent states as their only extras; None:
            rows hold transitions.

    Attributes:
        expected_extras: extras of a layout that is made from now on; empty: the first samples define them.
    """

    def __init__(
        self, rows: Rows, downcast_float64: bool, keep_extras: bool, sequence: tuple[int, int] | None = None
    ) -> None:
        self._rows = rows
        self._sequence = sequence
        self._keep_extras = keep_extras
        self.expected_extras: Mapping[str, TreeSpec] = {}
        self._warned: set[str] = set()
        self._downcast_float64 = downcast_float64
        self._orders = KeyOrders()

    def specs(self, chunk: Chunk) -> tuple[TreeSpec, TreeSpec | None]:
        """Return the specs of a chunk's observation and action; None: no row has an action.

        Raises:
            SampleRefusedError: a part of them is not a numeric array.
        """
        observation = tree_spec(chunk.observation, "the observation", self._downcast_float64)
        if not chunk.action_present.any():
            return observation, None
        return observation, tree_spec(chunk.action, "the action", self._downcast_float64)

    def check(self, chunk: Chunk, observation: TreeSpec, action: TreeSpec | None) -> None:
        """Compare a chunk of these specs with the layout of the store.

        Raises:
            SampleRefusedError: the chunk differs.
        """
        if chunk.reward.shape != (chunk.rows,) or chunk.reward.dtype.kind not in "biuf":
            raise SampleRefusedError(
                f"the reward is {chunk.reward.dtype}{list(chunk.reward.shape[1:])} per sample; "
                "this memory takes one number per sample."
            )
        layout = self._rows.layout
        if layout is None:
            return
        for what, found, held in (
            ("observation", observation, layout.observation),
            ("action", action, layout.action),
        ):
            if found is not None and found != held:
                raise differs(what, chunk, found, held)
            if found is not None:
                self._orders.check(what, found, held)

    def extras(self, chunk: Chunk) -> tuple[dict[str, TreeSpec], dict[str, list[Array]]]:
        """Return the extras that are stored with a chunk's samples: specs, and leaves [rows, *shape].

        If there is a layout, its extras are stored, or else the expected ones. Samples without one of them get zeros.

        Raises:
            SampleRefusedError: an extra differs from that of the layout.
        """
        layout = self._rows.layout
        held = self.expected_extras if layout is None else layout.sample_extras
        if not held and not (self._keep_extras and chunk.extras):
            return {}, {}
        is_fixed = layout is not None or bool(held)
        specs: dict[str, TreeSpec] = {}
        columns = {}
        for name, tree in chunk.extras.items() if chunk.action_present.any() else ():
            if self._sequence is not None and not name.startswith(STATE_COLUMN):
                continue
            if name in TAKEOVER_EXTRAS:
                continue
            if name in RESERVED:
                self._warn(name, "has the name of an extra of the memory")
            elif is_fixed and name not in held:
                self._warn(name, "is unknown to the policy, or to the samples that the memory already holds")
            else:
                try:
                    specs[name] = tree_spec(tree, f"the extra {name}", self._downcast_float64)
                except SampleRefusedError:
                    if is_fixed:
                        raise
                    self._warn(name, "is not made of numeric arrays")
                else:
                    columns[name] = leaves_of(tree)
        if not is_fixed:
            return specs, columns
        for name, spec in specs.items():
            if layout is None and held[name] != spec:
                raise SampleRefusedError(
                    f"the extra {name} of {chunk.rows} samples is {spec}, and the policy's is {held[name]}. "
                    "Workers and trainer need the same actor.cls and actor.kwargs."
                )
            if held[name] != spec:
                raise differs(f"extra {name}", chunk, spec, held[name])
        missing = {name: spec for name, spec in held.items() if name not in specs}
        return dict(held), columns | zero_extras(missing, chunk.rows)

    def _warn(self, name: str, why: str) -> None:
        if name not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(name)
            logger.warning("the extra %.100r of the samples %s: it is not stored", name, why)

    def allocate(
        self, observation: TreeSpec, action: TreeSpec, extras: list[str], sample_extras: Mapping[str, TreeSpec]
    ) -> None:
        """Make the layout, unless there is one."""
        if self._rows.layout is None:
            self._rows.allocate(RowLayout(observation, action, extras, sample_extras, self._sequence))


def zero_extras(specs: Mapping[str, TreeSpec], rows: int) -> dict[str, list[Array]]:
    """Return the extras of samples that have none: zeros."""
    return {name: [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in spec.leaves] for name, spec in specs.items()}


def differs(what: str, chunk: Chunk, found: TreeSpec, held: TreeSpec) -> SampleRefusedError:
    """Return the refusal of samples of another structure."""
    return SampleRefusedError(
        f"the {what} of {chunk.rows} samples is {found}, but this memory holds {held}. "
        "Workers and trainer need the same environment, preprocessor and compressor; a memory that changes "
        "its shapes needs a new run.name."
    )
