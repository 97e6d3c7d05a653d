"""Batches out of a memory's rows: what is drawn, and how it becomes tensors.

Batches that are drawn uniformly are drawn in blocks of several: one draw of indices, one gather per dtype and one split
serve up to `MAX_BLOCK_BATCHES` batches. A block is thrown away when something is appended, so that new transitions are
drawn at once; block sizes grow from one after each append, so that not much is ever thrown away. By priorities each
batch is drawn alone, so that it follows the priorities that the batch before it has changed, unless blocks are asked
for. Blocks may be prepared by a thread beside training (prefetch.py), and drawn of what is recent only (staleness.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tmrl_core.errors import ConfigError
from tmrl_core.training.memories.layout import Array, Column, RowLayout, index_batches
from tmrl_core.training.memories.memory import EpisodeStatistics, collate_to_torch
from tmrl_core.training.memories.prefetch import Prefetch
from tmrl_core.training.memories.prioritized import Priorities
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.staleness import DrawnLag, FreshRows

logger = logging.getLogger(__name__)

MAX_BLOCK_BATCHES = 32
MAX_BLOCK_BYTES = 1 << 20
CUDA_PREFETCH = 2
"""Blocks that are prepared ahead for a CUDA device, where nothing else is said."""
LOOKED_AT = 32
"""Transitions of each block whose policies' versions are looked at, to measure how far behind they are."""
INDICES = "indices"
WEIGHTS = "weights"
Batch = tuple[Any, ...]


class Block:
    """Batches drawn together, and what is needed to draw them again."""

    def __init__(
        self, batches: list[Batch], draws: Array, generator_state: dict[str, Any], counters: Array | None = None
    ) -> None:
        self.batches = batches
        self.draws = draws
        self.position = 0
        self.generator_state = generator_state
        self.counters = counters
        """Of some of the first batch: counters of the policies' versions; None: not known."""


class Drawing(EpisodeStatistics):
    """The side of a replay memory that batches come from.

    Args:
        device: where batches go; None: the CPU.
        nb_steps: batches per iteration.
        batch_size: transitions in a batch.
        sample_preprocessor: see `ReplayMemory`.
        seed: of the draws.
        priorities: what to draw in proportion to; None: uniformly.
        max_drawn_lag: draw only transitions of a policy at most so many versions behind the latest; None: any.
        prefetch: blocks that a thread prepares ahead; None: 2 where batches go to a CUDA device, otherwise 0.

    Raises:
        ConfigError: batches that depend on the one before, or on the caller's code, were to be prepared ahead.
    """

    def __init__(
        self,
        device: torch.device | str | None,
        nb_steps: int,
        batch_size: int,
        sample_preprocessor: Callable[..., tuple[Any, ...]] | None,
        seed: int,
        priorities: Priorities | None,
        max_drawn_lag: int | None = None,
        prefetch: int | None = None,
    ) -> None:
        super().__init__()
        alone = priorities is not None or sample_preprocessor is not None
        if prefetch and alone:
            raise ConfigError(
                f"memory.prefetch: {prefetch}, but batches "
                + (
                    "drawn by priorities follow those that the batch before has changed"
                    if priorities is not None
                    else "of a sample_preprocessor are made by Python code, which a thread does not make faster"
                )
                + "; take memory.prefetch: 0 or null."
            )
        if max_drawn_lag is not None and max_drawn_lag < 0:
            raise ConfigError(f"memory.max_drawn_lag must be 0 or more, got {max_drawn_lag!r}")
        if prefetch is None:
            prefetch = CUDA_PREFETCH if not alone and _is_cuda(device) else 0
        self._ahead: Prefetch[Block] = Prefetch(prefetch)
        self._fresh = None if max_drawn_lag is None else FreshRows(max_drawn_lag)
        self._lag = DrawnLag()
        self.device = device
        self.nb_steps = nb_steps
        self.batch_size = batch_size
        self.sample_preprocessor = sample_preprocessor
        self._generator = np.random.default_rng(seed)
        self._priorities = priorities
        self._block: Block | None = None
        self._block_batches = 1
        self._expanded: dict[Column, Callable[[Array], Array]] = {}
        """Columns [n, width] that stand for something larger, [n, *shape], and what makes it of them."""
        self._rows: Rows
        self._unchecked = 0
        """Rows below this index were stored by an earlier process, which may have accepted non-finite values."""
        self._bad_said = False

    def __len__(self) -> int:
        """Valid transitions that can be sampled."""
        return len(self._rows)

    @property
    def drawable(self) -> int:
        """Transitions that may be drawn: all, or those of `max_drawn_lag`."""
        if self._fresh is None:
            return len(self)
        return self._fresh.count(self._rows.readable - len(self), self._rows.readable)

    @property
    def drawn_ahead(self) -> int:
        """Batches that are drawn already and come next, whatever else happens but for an append."""
        block = self._block
        return 0 if block is None or self._priorities is not None else len(block.batches) - block.position

    @property
    def prefetch(self) -> int:
        """Blocks that are prepared ahead."""
        return self._ahead.depth

    def note_version(self, counter: int) -> None:
        """The latest policy has this number from now on: by it transitions are told to be too old, and lags counted."""
        self._lag.counter = counter
        if self._fresh is not None and counter != self._fresh.counter:
            self._stop_ahead()
            self._fresh.counter = counter
            self._expire()

    def take_drawn_lag(self) -> tuple[float, int] | None:
        """By how many versions the policies of what was drawn since the last call were behind: mean and maximum.

        Of each block of batches a few transitions are looked at. None: nothing is known.
        """
        return self._lag.take()

    def _expire(self) -> None:
        """Have what is too old by now not drawn any more."""
        if self._fresh is None:
            return
        old = self._fresh.expire(self._rows.readable - len(self), self._rows.readable)
        if self._priorities is not None:
            for start, stop in old:
                self._priorities.remove(start, stop)
        if old:
            self._forget_block()

    def __iter__(self) -> Iterator[Batch]:
        """Yield `nb_steps` batches, each drawn from what is here at that moment.

        Raises:
            ValueError: the memory is empty.
        """
        remaining = self.nb_steps
        while remaining > 0:
            block = self._current_block()
            batches = block.batches
            while block.position < len(batches) and remaining > 0:
                batch = batches[block.position]
                block.position += 1
                remaining -= 1
                yield batch
                if self._block is not block:
                    break

    def sample(self) -> Batch:
        """One batch.

        Raises:
            ValueError: the memory is empty.
        """
        block = self._current_block()
        block.position += 1
        return block.batches[block.position - 1]

    def indices_of(self, batch: Any) -> Array | None:
        """Absolute indices of the transitions of a batch that was just drawn; None: it is not known any more."""
        block = self._block
        for position, known in enumerate(block.batches if block is not None else ()):
            if known is batch:
                assert block is not None
                draws = block.draws[position * self.batch_size : (position + 1) * self.batch_size]
                return self._rows.indices_of(draws)
        return None

    def _forget_block(self) -> None:
        self._block = None
        self._block_batches = 1

    def _current_block(self) -> Block:
        block = self._block
        if block is None or block.position == len(block.batches):
            block = self._block = self._ahead.take(self._next_block)
            if block.counters is not None:
                self._lag.note(block.counters)
        return block

    def _next_block(self) -> Block:
        """Draw it. In the thread of prefetching, nobody else touches the generator or the rows meanwhile."""
        # A batch drawn by priorities is never drawn again.
        state = self._generator.bit_generator.state if self._priorities is None else {}
        try:
            block = self._draw(self._block_batches, dict(state))
        except BaseException:
            if state:
                self._generator.bit_generator.state = state
            raise
        self._block_batches = min(2 * self._block_batches, self._largest_block())
        return block

    def _stop_ahead(self) -> None:
        """Take back what was prepared ahead, as if it had not been, before anything changes or is saved."""
        blocks = self._ahead.stop()
        if blocks:
            self._generator.bit_generator.state = blocks[0].generator_state
            self._block_batches = len(blocks[0].batches)

    def _largest_block(self) -> int:
        assert self._rows.layout is not None
        if self.sample_preprocessor is not None:
            return 1
        row_bytes = max(1, self._rows.layout.row_bytes)
        most = MAX_BLOCK_BATCHES if self._priorities is None else self._priorities.settings.batches_at_once
        return max(1, min(most, MAX_BLOCK_BYTES // (row_bytes * self.batch_size)))

    def _draw(self, count: int, state: dict[str, Any]) -> Block:
        """`count` batches; `state` is the generator's."""
        if len(self) == 0:
            raise ValueError("the replay memory holds no transition yet")
        drawable = self.drawable
        if drawable == 0:
            assert self._fresh is not None
            raise ValueError(f"no transition is of a policy at most {self._fresh.max_lag} versions behind")
        size = count * self.batch_size
        drawn: dict[str, Array] = {}
        if self._priorities is not None:
            indices, weights = self._priorities.draw(self._generator, self.batch_size, count)
            rows = self._rows.draws_of(indices)
            drawn = {INDICES: indices, WEIGHTS: weights}
        elif self._fresh is not None:
            readable = self._rows.readable
            rows = self._rows.draws_of(self._fresh.draw(self._generator, size, readable - len(self), readable))
        else:
            rows = self._generator.integers(0, len(self), size=size)
        return self._block_of(rows, drawn, state)

    def _block_of(self, rows: Array, drawn: dict[str, Array], state: dict[str, Any]) -> Block:
        """The batches of the rows that were drawn; `drawn` is what is known of each besides."""
        layout, count = self._rows.layout, len(rows) // self.batch_size
        assert layout is not None
        unchecked = self._rows.readable - len(self) < self._unchecked
        if self.sample_preprocessor is not None:
            if unchecked:
                self._replace_bad(rows, drawn, self._rows.gather(rows)[0])
            return Block([self._preprocessed(rows, drawn)], rows, state)
        device = self.device or "cpu"
        on_cpu, counters = self._rows.gather(rows, min(LOOKED_AT, self.batch_size))
        if unchecked:
            self._replace_bad(rows, drawn, on_cpu)
        groups = [_to(group, device) for group in on_cpu]
        extras: dict[str, Any] = {name: torch.from_numpy(values) for name, values in drawn.items()}
        if WEIGHTS in extras:
            extras[WEIGHTS] = _to(extras[WEIGHTS], device)
        if count == 1:
            return Block([self._one_batch(layout, on_cpu, groups, extras)], rows, state, counters)
        blocks = [group.view(count, self.batch_size, -1) for group in groups]

        def column(c: Column) -> list[torch.Tensor]:
            if not c.shape:
                return list(blocks[c.group].select(-1, c.start).unbind(0))
            values = blocks[c.group][..., c.start : c.stop]
            return list(values.view(count, self.batch_size, *c.shape).unbind(0))

        batches = [index_batches(field, count) for field in layout.batch(column)]
        if layout.extras or extras:
            of_rows = {name: column(c) for name, c in layout.extras.items()}
            besides = {name: list(values.view(count, -1).unbind(0)) for name, values in extras.items()}
            batches.append(index_batches({**of_rows, **besides}, count))
        return Block(list(zip(*batches, strict=True)), rows, state, counters)

    def _replace_bad(self, rows: Array, drawn: dict[str, Array], groups: list[torch.Tensor]) -> None:
        """Replace non-finite rows of a batch, in place, with finite rows of the same batch."""
        totals = [group.sum(1) for group in groups if group.is_floating_point()]
        if not totals or bool(torch.stack([total.sum() for total in totals]).isfinite().all()):
            return
        finite = torch.stack([group.isfinite().all(1) for group in groups if group.is_floating_point()]).all(0).numpy()
        bad, good = np.flatnonzero(~finite), np.flatnonzero(finite)
        if not len(bad) or not len(good):
            return
        if self._priorities is not None:
            for index in drawn[INDICES][bad].tolist():
                self._priorities.remove(index, index + 1)
        if not self._bad_said:
            self._bad_said = True
            logger.warning("the memory holds transitions that are not finite, of an earlier version: none is sampled")
        source = good[np.arange(len(bad)) % len(good)]
        for values in (rows, *drawn.values()):
            values[bad] = values[source]
        for group in groups:
            group[bad] = group[source]

    def _one_batch(
        self, layout: RowLayout, on_cpu: list[torch.Tensor], groups: list[torch.Tensor], extras: dict[str, Any]
    ) -> Batch:
        """The batch of rows that were gathered; one call of `split` a group costs less than one a column."""
        # Not `torch.split`, which finds out first what it was given: half of its time.
        pieces = [group.split_with_sizes(sizes, 1) for group, sizes in zip(groups, layout.sizes, strict=True)]

        def column(c: Column) -> torch.Tensor:
            if self._expanded and c in self._expanded:
                whole = self._expanded[c](on_cpu[c.group][:, c.start : c.stop].numpy())
                return _to(torch.from_numpy(whole), groups[c.group].device)
            piece = pieces[c.group][c.number]
            if not c.shape:
                return piece.squeeze(1)
            return piece if len(c.shape) == 1 else piece.view(self.batch_size, *c.shape)

        batch = layout.batch(column)
        if not (layout.extras or extras):
            return batch
        return *batch, {**{name: column(c) for name, c in layout.extras.items()}, **extras}

    def _left_over(self) -> dict[str, Array] | None:
        """What was drawn by priorities, which have changed since, and not handed out: for a checkpoint."""
        block = self._block
        if self._priorities is None or block is None or block.position == len(block.batches):
            return None
        extras = [batch[6] for batch in block.batches[block.position :]]
        return {name: np.concatenate([_numpy(batch[name]) for batch in extras]) for name in (INDICES, WEIGHTS)}

    def _left_over_block(self, drawn: dict[str, Array]) -> Block:
        """Undo `_left_over`.

        Raises:
            ValueError: it holds what cannot be.
        """
        indices, weights = np.asarray(drawn[INDICES]), np.asarray(drawn[WEIGHTS])
        if (
            (indices.dtype.str, weights.dtype.str) != ("<i8", "<f4")
            or indices.shape != weights.shape
            or indices.ndim != 1
            or not len(indices)
            or len(indices) % self.batch_size
            or indices.min() < self._rows.readable - len(self)
            or indices.max() >= self._rows.readable
        ):
            raise ValueError(f"the {len(indices)} transitions drawn already are not among those held")
        return self._block_of(self._rows.draws_of(indices), {INDICES: indices, WEIGHTS: weights}, {})

    def _preprocessed(self, rows: Array, drawn: dict[str, Array]) -> Batch:
        assert self.sample_preprocessor is not None
        samples = []
        for draw in rows.tolist():
            *transition, extras = self._transition_at(self._rows.index_of(draw))
            prev_obs, act, rew, obs, terminated, truncated = self.sample_preprocessor(*transition)
            sample = (prev_obs, act, rew, obs, np.float32(terminated), np.float32(truncated))
            samples.append((*sample, extras) if extras else sample)
        batch: Batch = collate_to_torch(samples, self.device)
        if drawn:
            others = batch[6] if len(batch) > 6 else {}
            more: dict[str, Any] = {name: torch.from_numpy(values) for name, values in drawn.items()}
            more[WEIGHTS] = _to(more[WEIGHTS], self.device or "cpu")
            batch = (*batch[:6], {**others, **more})
        return batch

    def _transition_at(self, index: int) -> tuple[Any, Any, Any, Any, bool, bool, dict[str, Any]]:
        groups = self._rows.row(index)

        def column(c: Column) -> Any:
            values = groups[c.group][c.start : c.stop]
            if c in self._expanded:
                return self._expanded[c](values[None])[0]
            return values.reshape(c.shape) if c.shape else values[0]

        layout = self._rows.layout
        assert layout is not None
        prev_obs, act, rew, obs, terminated, truncated = layout.batch(column)
        extras = {name: column(c) for name, c in layout.extras.items()}
        return prev_obs, act, rew, obs, bool(terminated), bool(truncated), extras

    def update_priorities(self, indices: torch.Tensor | Array, td_errors: torch.Tensor | Array) -> None:
        """What the transitions of a batch have surprised by. Without priorities there is nothing to do.

        Args:
            indices: [n], the batch's extra `indices`.
            td_errors: [n], of any device.
        """
        if self._priorities is not None:
            self._priorities.update(_numpy(indices), _numpy(td_errors))


def _is_cuda(device: torch.device | str | None) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _to(values: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """`values` on a device, without waiting for it where that is a GPU.

    The copy comes before what uses it, since all threads here use the device's default stream.
    """
    if device == "cpu":
        return values
    if _is_cuda(device) and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def _numpy(values: torch.Tensor | Array) -> Array:
    return values.numpy(force=True) if isinstance(values, torch.Tensor) else values
