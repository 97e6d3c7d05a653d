"""The memories of tmrl: positional orders, paths and pickled data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core import training
from tmrl_core.compat import memory
from tmrl_core.compat.custom.custom_memories import GenericTorchMemory
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Buffer


def filled(crc: bool = False) -> Buffer:
    buffer = Buffer()
    buffer.append_sample((None, np.zeros(2), 0.0, False, False, {}))
    for step in range(1, 5):
        info: dict[str, Any] = {"step": step}
        if crc:
            original = (np.full(2, step - 1.0), np.ones(1), np.full(2, float(step)), 1.0, False, False)
            info = {"crc_sample": original, "crc_sample_ts": (step, step)}
        buffer.append_sample((np.ones(1), np.full(2, float(step)), 1.0, False, False, info))
    return buffer


def test_the_generic_memory_has_tmrls_order_and_defaults() -> None:
    made = GenericTorchMemory(1e3, 8, "", 5, None, False, "cpu")
    assert (made.memory_size, made.batch_size, made.nb_steps, made.device) == (1000, 8, 5, "cpu")
    made = GenericTorchMemory()
    assert (made.memory_size, made.batch_size, made.nb_steps, made.device) == (1_000_000, 1, 1, "cpu")
    assert isinstance(made, memory.TorchMemory)
    assert isinstance(made, training.GenericTorchMemory)


def test_the_generic_memory_samples_tensors() -> None:
    made = GenericTorchMemory(batch_size=3)
    made.append(filled())
    prev_obs, _, _, obs, _, _ = made.sample()
    assert (obs - prev_obs).tolist() == [[1.0, 1.0]] * 3


def test_the_folder_of_the_data_set_is_a_path(tmp_path: Path) -> None:
    assert GenericTorchMemory(dataset_path=tmp_path).path == tmp_path
    assert GenericTorchMemory().path == Path()


def test_a_size_of_none_is_a_million() -> None:
    assert GenericTorchMemory(memory_size=None).memory_size == 1_000_000


def test_a_pickled_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.pkl").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match="can run code"):
        GenericTorchMemory(dataset_path=str(tmp_path))


def test_a_comparison_without_originals_is_an_error() -> None:
    made = GenericTorchMemory(batch_size=2, crc_debug=True)
    made.append(filled())
    with pytest.raises(ConfigError, match="give crc_debug=True to the RolloutWorker"):
        made.sample()


def test_a_comparison_passes_with_the_originals() -> None:
    made = GenericTorchMemory(batch_size=2, crc_debug=True)
    made.append(filled(crc=True))
    assert len(made.sample()) == 6
