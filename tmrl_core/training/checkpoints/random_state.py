"""States of random generators: an object's own and the global ones of this process."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch

from tmrl_core.training.value_types import State, Tree

Generator: TypeAlias = np.random.Generator | np.random.RandomState | random.Random | torch.Generator


def generator_state(generator: Generator) -> object:
    """Return the state of a generator."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def set_generator_state(generator: Generator, state: Tree) -> None:
    """Undo `generator_state`."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.set_state(state.cpu())


def global_random_state() -> State:
    """Return the states of Python's, NumPy's and torch's global generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        # Unused CUDA generators have no state to save, and reading their state would initialize CUDA.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
    }


def set_global_random_state(state: Mapping[str, Tree]) -> None:
    """Undo `global_random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        # This machine may have another number of devices than the one that wrote the checkpoint.
        for number, item in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(item.cpu(), number)
