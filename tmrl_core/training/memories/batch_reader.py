"""Read batches of tensors from a memory's rows. A sampler chooses the rows (sampler.py)."""

# Theory of operation
#
# The reader turns positions of rows into tensors on a device. It knows the layout of a row, not how rows were built,
# and not which rule chose them.
#
# Batches are sampled in *blocks*: one call of the sampler, one gather per dtype and one split serve several batches,
# since a batch of small observations costs more in calls than in copying. The batches of a block are views of the
# gathered rows, so a block is freed when the last of its batches is.
#
# A block is discarded when rows are added, so that new transitions can be sampled immediately. Blocks are therefore
# planned: after an insertion they hold as many batches as were taken between the two insertions before, and double from
# there on. A loop that inserts every 50 updates takes blocks of 32 and 18 batches and discards none; if the next
# insertion comes after 80, it takes 30 of another 32. At most 1 MB of rows are in a block (`MAX_BLOCK_BYTES`): from
# there on, the calls cost little beside the copying. Batches of a sampler that depends on updates (priorities) are
# sampled one at a time: a later batch of the block would use priorities from before the earlier one's update.
#
# Who changes what: `batches` alone takes from the block; `discard_block` alone throws it away; only the generator's
# state and the plan outlive a block. With prefetching (prefetch.py), `_next_block` runs in another thread, which is
# then the only one that uses the generator, the rows and the plan; `stop` ends that before anyone else may.
#
# `stop` undoes prefetching: blocks that nobody has taken are dropped, and the generator gets the state from before the
# first of them. Without this, the sampled transitions would depend on how far the thread had got. Example: blocks 5, 6
# and 7 are prepared, and training is in block 4 when samples arrive. All three are dropped, the generator stands where
# it stood before block 5, and block 5 is drawn anew from a memory that holds the new rows, exactly as without a thread.
#
# Checkpoints hold the plan, the generator's state from before the current block, the block's number of batches, and how
# many of them were used. A resume samples the block again and skips those, so a run that resumes sees the same batches.
# That needs the same rows; if some are missing, the next block is drawn anew. A prioritized batch is never left over,
# since it is used before a checkpoint can be taken.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tmrl_core.errors import ConfigError
from tmrl_core.training.memories.layout import Array, Column, RowLayout, index_batches
from tmrl_core.training.memories.memory import collate_to_torch
from tmrl_core.training.memories.prefetch import Prefetch
from tmrl_core.training.memories.prioritized import INDICES
from tmrl_core.training.memories.return_scale import ReturnScale
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.sampler import Sampler
from tmrl_core.training.memories.staleness import SampledLag
from tmrl_core.training.value_types import Batch, State, Tree

MAX_BLOCK_BYTES = 1 << 20
CUDA_PREFETCH = 2
"""Default number of prefetched blocks for a CUDA device."""
LAG_ROWS = 32
"""Number of transitions per block whose policy versions are read to measure the policy lag."""


@dataclass
class Plan:
    """Sizes of blocks between two insertions.

    Args:
        expected: number of batches that were taken between the two insertions before.
        sampled: number of batches that were sampled since the latest one.
        beyond: size of the next block once more are sampled than were expected.
    """

    expected: int = 0
    sampled: int = 0
    beyond: int = 1

    def size(self, most: int) -> int:
        """Return the number of batches of the next block, at most `most`."""
        return min(most, self.expected - self.sampled if self.sampled < self.expected else self.beyond)

    def note(self, size: int) -> None:
        """Count a sampled block of so many batches."""
        self.beyond = 2 * size
        self.sampled += size

    def undo(self, sizes: list[int]) -> None:
        """Take back the latest sampled blocks, oldest first."""
        self.sampled -= sum(sizes)
        if sizes:
            self.beyond = sizes[0]

    def end(self, unused: int) -> None:
        """Rows were added, and so many batches of the latest block were not taken."""
        # A message of several chunks is several insertions, between which nothing is taken.
        self.expected = self.sampled - unused or self.expected
        self.sampled, self.beyond = 0, 1


@dataclass(eq=False)
class Block:
    """Batches sampled together, and the values needed to sample them again.

    Args:
        batches: the batches.
        generator_state: state of the generator before they were sampled.
        counters: policy versions of some rows of the first batch; None: unknown.
        position: number of batches that were taken.
    """

    batches: list[Batch]
    generator_state: State
    counters: Array | None = None
    position: int = 0


class BatchReader:
    """Read batches from the rows of a memory.

    Args:
        rows: store of the transitions.
        sampler: chooses rows.
        expanded: columns [n, width] that are stored in place of larger columns [n, *shape], each with the function that
            restores the larger one; shared with the part that fills it.
        device: device of the batches; None: the CPU.
        batch_size: transitions in a batch.
        sample_preprocessor: see `ReplayMemory`.
        seed: seed of the generator.
        prefetch: blocks that a thread prepares in advance; None: 2 for a CUDA device, otherwise 0.

    Raises:
        ConfigError: prefetching is set, but batches depend on updates or on a `sample_preprocessor`.

    Attributes:
        lag: ages of the sampled transitions.
        returns: scale of the rewards of batches; None: they stay as they are.
    """

    def __init__(
        self,
        rows: Rows,
        sampler: Sampler,
        expanded: dict[Column, Callable[[Array], Array]],
        device: torch.device | str | None,
        batch_size: int,
        sample_preprocessor: Callable[..., Batch] | None,
        seed: int,
        prefetch: int | None,
    ) -> None:
        alone = not sampler.repeatable or sample_preprocessor is not None
        if prefetch and alone:
            raise ConfigError(
                f"memory.prefetch: {prefetch}, but batches "
                + (
                    "drawn by priorities follow those that the batch before has changed"
                    if not sampler.repeatable
                    else "of a sample_preprocessor are made by Python code, which a thread does not make faster"
                )
                + "; take memory.prefetch: 0 or null."
            )
        if prefetch is None:
            prefetch = CUDA_PREFETCH if not alone and _is_cuda(device) else 0
        self.rows = rows
        self.sampler = sampler
        self.lag = SampledLag()
        self.returns: ReturnScale | None = None
        self._expanded = expanded
        self._device = device or "cpu"
        self._batch_size = batch_size
        self._preprocessor = sample_preprocessor
        self._generator = np.random.default_rng(seed)
        self._prefetch: Prefetch[Block] = Prefetch(prefetch)
        self._block: Block | None = None
        self._plan = Plan()

    @property
    def sampled_ahead(self) -> int:
        """Number of batches that are already sampled; they come next unless rows are added."""
        block = self._block
        return 0 if block is None or not self.sampler.repeatable else len(block.batches) - block.position

    @property
    def prefetch(self) -> int:
        """Number of blocks that are prepared in advance."""
        return self._prefetch.depth

    def batches(self, count: int) -> Iterator[Batch]:
        """Yield batches, each sampled from the rows at that moment.

        Raises:
            ValueError: there is no row that may be sampled.
        """
        remaining = count
        while remaining > 0:
            block = self._current_block()
            batches = block.batches
            while block.position < len(batches) and remaining > 0:
                batch = batches[block.position]
                if self.returns is not None:
                    # Here, and not with the block, which may be made long before and again after a resume.
                    scaled = batch[2] / self.returns.scale
                    batch = batches[block.position] = (*batch[:2], scaled, *batch[3:])
                block.position += 1
                remaining -= 1
                yield batch
                # The consumer has appended samples: the rest of this block would not contain them.
                if self._block is not block:
                    break

    def sample(self) -> Batch:
        """Return one batch.

        Raises:
            ValueError: there is no row that may be sampled.
        """
        return next(self.batches(1))

    def discard_block(self) -> None:
        """Discard prepared batches; the next batch is sampled again."""
        block, self._block = self._block, None
        self._plan.end(len(block.batches) - block.position if block else 0)

    def _current_block(self) -> Block:
        block = self._block
        if block is None or block.position == len(block.batches):
            block = self._block = self._prefetch.take(self._next_block)
            self._note_lag(block)
        return block

    def set_version(self, counter: int) -> None:
        """Set the number of the latest policy. Batches that are already sampled are older from now on."""
        self.lag.counter = counter
        if self.sampled_ahead:
            assert self._block is not None
            self._note_lag(self._block)

    def _note_lag(self, block: Block) -> None:
        if block.counters is not None:
            self.lag.note(block.counters)

    def _next_block(self) -> Block:
        """Sample a block.

        While the prefetching thread samples, no other thread uses the generator or the rows.
        """
        # Batches that depend on updates are never sampled again.
        state = self._generator.bit_generator.state if self.sampler.repeatable else {}
        try:
            block = self._sample_block(self._plan.size(self._max_block_batches()), dict(state))
        except BaseException:
            if state:
                self._generator.bit_generator.state = state
            raise
        self._plan.note(len(block.batches))
        return block

    def stop(self) -> None:
        """Undo prefetching completely, before rows change or the state is saved."""
        blocks = self._prefetch.stop()
        if blocks:
            self._generator.bit_generator.state = blocks[0].generator_state
            self._plan.undo([len(block.batches) for block in blocks])

    def close(self) -> None:
        """End prefetching."""
        self.stop()
        self._prefetch.close()

    def _max_block_batches(self) -> int:
        if self.rows.layout is None or self._preprocessor is not None or self._expanded:
            return 1
        row_bytes = max(1, self.rows.layout.row_bytes)
        return max(1, min(self.sampler.max_block_batches, MAX_BLOCK_BYTES // (row_bytes * self._batch_size)))

    def _sample_block(self, count: int, state: State) -> Block:
        """Sample `count` batches; `state` is the generator's."""
        rows, size = self.rows, self._batch_size
        if len(rows) == 0:
            raise ValueError("the replay memory holds no transition yet")
        positions, extras = self.sampler.sample(rows, self._generator, size, count)
        layout = rows.layout
        assert layout is not None
        # A preprocessor sees single transitions, so nothing is gathered for it, and blocks hold one batch.
        if self._preprocessor is not None:
            return Block([self._preprocessed(self._preprocessor, positions, extras)], state)
        on_cpu, counters = rows.gather(positions, min(LAG_ROWS, size))
        groups = [_to(group, self._device) for group in on_cpu]
        tensors = self._tensors(extras)
        if count == 1:
            return Block([self._one_batch(layout, on_cpu, groups, tensors)], state, counters)
        blocks = [group.view(count, size, -1) for group in groups]

        def column(c: Column) -> list[torch.Tensor]:
            if not c.shape:
                return list(blocks[c.group].select(-1, c.start).unbind(0))
            values = blocks[c.group][..., c.start : c.stop]
            return list(values.view(count, size, *c.shape).unbind(0))

        batches = [index_batches(field, count) for field in layout.batch(column)]
        if layout.has_extras or tensors:
            of_sampler = {name: list(values.view(count, -1).unbind(0)) for name, values in tensors.items()}
            batches.append(index_batches({**layout.batch_extras(column), **of_sampler}, count))
        return Block(list(zip(*batches, strict=True)), state, counters)

    def _tensors(self, extras: dict[str, Array]) -> State:
        """Return a sampler's extras as tensors; indices stay on the CPU."""
        if not extras:
            return {}
        found = {name: torch.from_numpy(values) for name, values in extras.items()}
        return {name: values if name == INDICES else _to(values, self._device) for name, values in found.items()}

    def _one_batch(
        self, layout: RowLayout, on_cpu: list[torch.Tensor], groups: list[torch.Tensor], extras: dict[str, Tree]
    ) -> Batch:
        """Return the batch of the gathered rows.

        One call of `split` per group costs less than one per column.
        """
        # `torch.split` is not used, because it spends half of its time on checking the types of its arguments.
        pieces = [group.split_with_sizes(sizes, 1) for group, sizes in zip(groups, layout.sizes, strict=True)]

        def column(c: Column) -> torch.Tensor:
            if self._expanded and c in self._expanded:
                whole = self._expanded[c](on_cpu[c.group][:, c.start : c.stop].numpy())
                return _to(torch.from_numpy(whole), groups[c.group].device)
            piece = pieces[c.group][c.number]
            if not c.shape:
                return piece.squeeze(1)
            return piece if len(c.shape) == 1 else piece.view(self._batch_size, *c.shape)

        batch = layout.batch(column)
        if not (layout.has_extras or extras):
            return batch
        return *batch, {**layout.batch_extras(column), **extras}

    def _preprocessed(self, preprocessor: Callable[..., Batch], positions: Array, extras: dict[str, Array]) -> Batch:
        samples = []
        for position in positions.tolist():
            *transition, own = self.transition_at(self.rows.index_of(position))
            prev_obs, act, rew, obs, terminated, truncated = preprocessor(*transition)
            sample = (prev_obs, act, rew, obs, np.float32(terminated), np.float32(truncated))
            samples.append((*sample, own) if own else sample)
        batch: Batch = collate_to_torch(samples, self._device)
        if extras:
            batch = (*batch[:6], {**(batch[6] if len(batch) > 6 else {}), **self._tensors(extras)})
        return batch

    def transition_at(self, index: int) -> tuple[Tree, Tree, Tree, Tree, bool, bool, State]:
        """Return the transition of an absolute index."""
        groups = self.rows.row(index)

        def column(c: Column) -> Tree:
            values = groups[c.group][c.start : c.stop]
            if c in self._expanded:
                return self._expanded[c](values[None])[0]
            return values.reshape(c.shape) if c.shape else values[0]

        layout = self.rows.layout
        assert layout is not None
        prev_obs, act, rew, obs, terminated, truncated = layout.batch(column)
        extras = layout.batch_extras(column)
        if layout.sequence is not None:
            return prev_obs, act, rew, obs, terminated.astype(bool), truncated.astype(bool), extras
        return prev_obs, act, rew, obs, bool(terminated), bool(truncated), extras

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the state of the generator and of the current block."""
        self.stop()
        # Batches that depend on updates cannot be sampled again: the priorities have changed.
        block = self._block if self.sampler.repeatable else None
        return {
            "generator": block.generator_state if block else self._generator.bit_generator.state,
            "block": [len(block.batches), block.position] if block else None,
            "next_block": [self._plan.expected, self._plan.sampled, self._plan.beyond],
            "version": self.lag.counter,
        }

    def load_state_dict(self, state: State, complete: bool) -> None:
        """Undo `state_dict`.

        Args:
            state: the result of `state_dict`.
            complete: True: the rows are the same as when the state was saved. False: the next block is sampled again.

        Raises:
            ValueError: the state is invalid.
        """
        self._generator.bit_generator.state = state["generator"]
        self.discard_block()
        most = self._max_block_batches()
        if not complete:
            return
        if state["block"] is not None and state["block"][0] <= most:
            # With the same rows, the same state of the generator gives the same block.
            count, position = state["block"]
            self._block = self._sample_block(count, dict(self._generator.bit_generator.state))
            self._block.position = position
        expected, sampled, beyond = state["next_block"]
        self._plan = Plan(max(0, int(expected)), max(0, int(sampled)), max(1, int(beyond)))


def _is_cuda(device: torch.device | str | None) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _to(values: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy `values` to a device, without waiting for a GPU.

    The copy precedes its uses, since all threads here use the device's default stream.
    """
    if device == "cpu":
        return values
    if _is_cuda(device) and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
