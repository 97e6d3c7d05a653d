"""The memories of `tmrl.custom.custom_memories`, in its positional order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tmrl_core.compat.custom.histories import MemoryTM as MemoryTM
from tmrl_core.compat.custom.histories import MemoryTMFull as MemoryTMFull
from tmrl_core.compat.custom.histories import MemoryTMLidar as MemoryTMLidar
from tmrl_core.compat.custom.histories import MemoryTMLidarProgress as MemoryTMLidarProgress
from tmrl_core.compat.custom.histories import get_local_buffer_sample_lidar as get_local_buffer_sample_lidar
from tmrl_core.compat.custom.histories import (
    get_local_buffer_sample_lidar_progress as get_local_buffer_sample_lidar_progress,
)
from tmrl_core.compat.custom.histories import get_local_buffer_sample_tm20_imgs as get_local_buffer_sample_tm20_imgs
from tmrl_core.compat.memory import SIZE, TorchMemory
from tmrl_core.training.memories import generic
from tmrl_core.training.memories.memory import Values
from tmrl_core.training.value_types import Device

__all__ = [
    "GenericTorchMemory",
    "MemoryTM",
    "MemoryTMFull",
    "MemoryTMLidar",
    "MemoryTMLidarProgress",
    "get_local_buffer_sample_lidar",
    "get_local_buffer_sample_lidar_progress",
    "get_local_buffer_sample_tm20_imgs",
]


class GenericTorchMemory(TorchMemory, generic.GenericTorchMemory):
    """The project's `GenericTorchMemory`, with the order and defaults of tmrl's arguments.

    The arguments are those of `tmrl_core.compat.memory.Memory`.
    """

    def __init__(
        self,
        memory_size: float | None = SIZE,
        batch_size: float = 1,
        dataset_path: str | Path = "",
        nb_steps: float = 1,
        sample_preprocessor: Callable[..., Values] | None = None,
        crc_debug: bool = False,
        device: Device = "cpu",
    ) -> None:
        super().__init__(device, nb_steps, sample_preprocessor, memory_size, batch_size, dataset_path, crc_debug)
