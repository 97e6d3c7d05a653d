"""The structure of the samples that a store holds, which its first samples define."""

from __future__ import annotations

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Chunk
from tmrl_core.training.memories.key_order import KeyOrders
from tmrl_core.training.memories.layout import RowLayout, TreeSpec, tree_spec
from tmrl_core.training.memories.rows import Rows


class RowSchema:
    """Checks samples against the layout of a store, and makes that layout of the first ones.

    Args:
        rows: the store.
        downcast_float64: float64 columns are stored as float32.
    """

    def __init__(self, rows: Rows, downcast_float64: bool) -> None:
        self._rows = rows
        self._downcast_float64 = downcast_float64
        self._orders = KeyOrders()

    def observation(self, chunk: Chunk) -> TreeSpec:
        """Return the spec of a chunk's observation.

        Raises:
            SampleRefusedError: a part of it is not a numeric array.
        """
        return tree_spec(chunk.observation, "the observation", self._downcast_float64)

    def action(self, chunk: Chunk) -> TreeSpec | None:
        """Return the spec of a chunk's action; None: no row has one.

        Raises:
            SampleRefusedError: a part of it is not a numeric array.
        """
        if not chunk.action_present.any():
            return None
        return tree_spec(chunk.action, "the action", self._downcast_float64)

    def check(self, chunk: Chunk, observation: TreeSpec, action: TreeSpec | None) -> None:
        """Compare a chunk of these specs with what the store holds.

        Raises:
            SampleRefusedError: it differs.
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

    def note_orders(self, chunk: Chunk) -> None:
        """Remember the order of the keys of the first samples."""
        layout = self._rows.layout
        if layout is not None:
            self._orders = layout.orders
        new = self._orders.note("observation", chunk.observation)
        if chunk.action_present.any():
            new = self._orders.note("action", chunk.action) or new
        if new and layout is not None:
            self._rows.describe()

    def allocate(self, observation: TreeSpec, action: TreeSpec, extras: list[str]) -> None:
        """Make the layout, unless there is one."""
        if self._rows.layout is None:
            self._rows.allocate(RowLayout(observation, action, extras, self._orders))


def differs(what: str, chunk: Chunk, found: TreeSpec, held: TreeSpec) -> SampleRefusedError:
    """Return the refusal of samples of another structure."""
    return SampleRefusedError(
        f"the {what} of {chunk.rows} samples is {found}, but this memory holds {held}. "
        "Workers and trainer need the same environment, preprocessor and compressor; a memory that changes "
        "its shapes needs a new run.name."
    )
