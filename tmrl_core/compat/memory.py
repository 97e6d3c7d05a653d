"""The memories of `tmrl.memory`: with a `path`, and refusing pickled data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tmrl_core.errors import ConfigError
from tmrl_core.training.memories import memory
from tmrl_core.training.memories.memory import Values
from tmrl_core.training.value_types import Device, Tree

__all__ = ["Memory", "TorchMemory"]

SIZE = 1_000_000
"""Capacity for `memory_size=None`, because a memory is bounded."""


class Memory(memory.Memory):
    """The project's `Memory`, with the data set's folder as `path`.

    Args:
        device: device of the batches.
        nb_steps: batches per iteration.
        sample_preprocessor: changes the six values of each sampled transition.
        memory_size: number of samples; None: `SIZE`.
        batch_size: transitions in a batch.
        dataset_path: folder for derived classes that read a data set.
        crc_debug: compare each transition with the worker's original.

    Raises:
        ConfigError: a size is invalid, or the folder contains a pickled data set.
    """

    transient: ClassVar[frozenset[str]] = frozenset({"path"})

    def __init__(
        self,
        device: Device,
        nb_steps: float,
        sample_preprocessor: Callable[..., Values] | None = None,
        memory_size: float | None = SIZE,
        batch_size: float = 256,
        dataset_path: str | Path = "",
        crc_debug: bool = False,
    ) -> None:
        super().__init__(
            device,
            nb_steps,
            sample_preprocessor,
            SIZE if memory_size is None else memory_size,
            batch_size,
            str(dataset_path),
            crc_debug,
        )
        self.path = Path(dataset_path)
        if (self.path / "data.pkl").is_file():
            raise ConfigError(
                f"{self.path / 'data.pkl'} is a pickle, which can run code when it is read, so it is refused. Name "
                "another dataset_path, or record the samples as sessions (--record) and set memory.recorded."
            )

    def check_original(self, info: dict[Any, Any], transition: Sequence[Tree]) -> None:
        """Compare a transition with the worker's original.

        Raises:
            ConfigError: the worker sent none.
            ValueError: they differ.
        """
        if "crc_sample" not in info:
            raise ConfigError(
                "crc_debug is on in the memory, and the samples have no originals: give crc_debug=True to the "
                "RolloutWorker too, and return the info from the sample compressor"
            )
        super().check_original(info, transition)


class TorchMemory(Memory, memory.TorchMemory):
    """A `Memory` whose batches are tensors."""
