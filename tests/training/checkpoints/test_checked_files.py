from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tmrl_core.errors import CheckpointError
from tmrl_core.training.checkpoints.checked_files import (
    parse_safetensors,
    read_file,
    safetensors_bytes,
    write_file,
)

ARRAYS: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(3, np.int64),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 4), np.uint8),
    "by columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


def test_arrays_are_a_safetensors_file_that_others_read(tmp_path: Path) -> None:
    write_file(tmp_path / "x", safetensors_bytes(ARRAYS))
    found = safetensors.numpy.load_file(tmp_path / "x")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_written_data_is_read_back(tmp_path: Path) -> None:
    facts = write_file(tmp_path / "x", safetensors_bytes(ARRAYS))
    found = parse_safetensors(read_file(tmp_path / "x", facts), tmp_path / "x")
    assert all(
        np.array_equal(found[name], array) and found[name].shape == array.shape for name, array in ARRAYS.items()
    )


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    facts = write_file(tmp_path / "x", b"hello")
    for content, said in ((b"hell", "4 of 5 bytes"), (b"hellO", "checksum")):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(CheckpointError, match=said):
            read_file(tmp_path / "x", facts)
    (tmp_path / "x").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_file(tmp_path / "x", facts)


@pytest.mark.parametrize("data", [b"", b"\x05\0\0\0\0\0\0\0hello", b"\x02\0\0\0\0\0\0\0[]"])
def test_invalid_files_of_arrays_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match="manifest says"):
        parse_safetensors(data, Path("x"))


def test_arrays_of_other_kinds_are_refused() -> None:
    with pytest.raises(CheckpointError, match="datetime"):
        safetensors_bytes({"c": np.zeros(2, "datetime64[s]")})
