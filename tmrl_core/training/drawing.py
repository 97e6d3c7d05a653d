"""Batches out of a memory's rows: what is drawn, and how it becomes tensors.

Batches that are drawn uniformly are drawn in blocks of several: one draw of indices, one gather per dtype and one split
serve up to `MAX_BLOCK_BATCHES` batches. A block is thrown away when something is appended, so that new transitions are
drawn at once; block sizes grow from one after each append, so that not much is ever thrown away. By priorities each
batch is drawn alone, so that it follows the priorities that the batch before it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tmrl_core.training.layout import Array, Column, index_batches
from tmrl_core.training.memory import EpisodeStatistics, collate_to_torch
from tmrl_core.training.prioritized import Priorities
from tmrl_core.training.rows import Rows

MAX_BLOCK_BATCHES = 32
MAX_BLOCK_BYTES = 1 << 20
INDICES = "indices"
WEIGHTS = "weights"
Batch = tuple[Any, ...]


class Block:
    """Batches drawn together, and what is needed to draw them again."""

    def __init__(self, batches: list[Batch], draws: Array, generator_state: dict[str, Any]) -> None:
        self.batches = batches
        self.draws = draws
        self.position = 0
        self.generator_state = generator_state


class Drawing(EpisodeStatistics):
    """The side of a replay memory that batches come from.

    Args:
        device: where batches go; None: the CPU.
        nb_steps: batches per iteration.
        batch_size: transitions in a batch.
        sample_preprocessor: see `ReplayMemory`.
        seed: of the draws.
        priorities: what to draw in proportion to; None: uniformly.
    """

    def __init__(
        self,
        device: torch.device | str | None,
        nb_steps: int,
        batch_size: int,
        sample_preprocessor: Callable[..., tuple[Any, ...]] | None,
        seed: int,
        priorities: Priorities | None,
    ) -> None:
        super().__init__()
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

    def __len__(self) -> int:
        """Valid transitions that can be sampled."""
        return len(self._rows)

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

    def indices_of(self, batch: Any) -> list[int] | None:
        """Absolute indices of the transitions of a batch that was just drawn; None: it is not known any more."""
        block = self._block
        for position, known in enumerate(block.batches if block is not None else ()):
            if known is batch:
                assert block is not None
                draws = block.draws[position * self.batch_size : (position + 1) * self.batch_size]
                return [int(self._rows.index_of(int(draw))) for draw in draws]
        return None

    def _forget_block(self) -> None:
        self._block = None
        self._block_batches = 1

    def _current_block(self) -> Block:
        block = self._block
        if block is None or block.position == len(block.batches):
            block = self._block = self._draw(self._block_batches)
            self._block_batches = min(2 * self._block_batches, self._largest_block())
        return block

    def _largest_block(self) -> int:
        assert self._rows.layout is not None
        if self.sample_preprocessor is not None or self._priorities is not None:
            return 1
        row_bytes = max(1, self._rows.layout.row_bytes)
        return max(1, min(MAX_BLOCK_BATCHES, MAX_BLOCK_BYTES // (row_bytes * self.batch_size)))

    def _draw(self, count: int) -> Block:
        layout = self._rows.layout
        if layout is None or len(self) == 0:
            raise ValueError("the replay memory holds no transition yet")
        state = self._generator.bit_generator.state
        size = count * self.batch_size
        drawn: dict[str, Array] = {}
        if self._priorities is not None:
            indices, weights = self._priorities.draw(self._generator, size, len(self))
            rows = self._rows.draws_of(indices)
            drawn = {INDICES: indices, WEIGHTS: weights}
        else:
            rows = self._generator.integers(0, len(self), size=size)
        if self.sample_preprocessor is not None:
            return Block([self._preprocessed(rows, drawn)], rows, dict(state))
        device = self.device or "cpu"
        on_cpu = self._rows.gather(rows)
        gathered = [group.to(device).view(count, self.batch_size, -1) for group in on_cpu]

        def column(c: Column) -> list[torch.Tensor]:
            if c in self._expanded:
                whole = torch.from_numpy(self._expanded[c](on_cpu[c.group][:, c.start : c.stop].numpy())).to(device)
                return list(whole.view(count, self.batch_size, *whole.shape[1:]).unbind(0))
            block = gathered[c.group]
            if not c.shape:
                return list(block.select(-1, c.start).unbind(0))
            values = block[..., c.start : c.stop]
            return list(values.view(count, self.batch_size, *c.shape).unbind(0))

        batches = [index_batches(field, count) for field in layout.batch(column)]
        if layout.extras or drawn:
            extras: dict[str, Any] = {name: column(c) for name, c in layout.extras.items()}
            for name, values in drawn.items():
                on_device = torch.from_numpy(values) if name == INDICES else torch.from_numpy(values).to(device)
                extras[name] = list(on_device.view(count, self.batch_size).unbind(0))
            batches.append(index_batches(extras, count))
        return Block(list(zip(*batches, strict=True)), rows, dict(state))

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
            batch = (*batch[:6], {**others, **{name: torch.from_numpy(values) for name, values in drawn.items()}})
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


def _numpy(values: torch.Tensor | Array) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
