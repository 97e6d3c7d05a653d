"""The helpers of tmrl.util."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.compat import util
from tmrl_core.errors import CodecError, StorageError


class Model:
    def __init__(self, size: int = 4, activation: Any = abs) -> None:
        self.size, self.activation = size, activation


class Agent:
    def __init__(self, lr: float = 0.1, model_cls: Any = Model) -> None:
        self.lr, self.model_cls = lr, model_cls


def test_dump_and_load_keep_values_types_and_structure(tmp_path: Path) -> None:
    value = {"a": (1, 2.5, None, "x"), "b": [np.arange(3, dtype=np.uint8), True], "c": torch.ones(2)}
    util.dump(value, tmp_path / "value.bin")
    found = util.load(tmp_path / "value.bin")
    assert found["a"] == (1, 2.5, None, "x")
    assert found["b"][0].dtype == np.uint8
    found["b"][0][0] = 9  # arrays may be changed
    assert found["b"][0].tolist() == [9, 1, 2]
    assert found["c"].tolist() == [1.0, 1.0]


def test_a_pickle_is_refused_with_the_reason_and_nothing_of_it_runs(tmp_path: Path) -> None:
    path, ran = tmp_path / "data.pkl", tmp_path / "ran"

    class Bad:
        def __reduce__(self) -> Any:
            return Path.touch, (ran,)

    path.write_bytes(pickle.dumps([1, Bad()]))
    with pytest.raises(StorageError, match="pickle, which can run code"):
        util.load(path)
    assert not ran.exists()


def test_other_bytes_and_objects_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    with pytest.raises(StorageError, match="not written by"):
        util.load(tmp_path / "x")
    with pytest.raises(CodecError, match="Model"):
        util.dump({"model": Model()}, tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_json_is_written_and_read(tmp_path: Path) -> None:
    util.save_json({"ä": [1, None]}, tmp_path / "a.json")
    assert util.load_json(tmp_path / "a.json") == {"ä": [1, None]}


def test_batches_are_stacked_with_their_structure() -> None:
    batch = util.collate_torch([(np.ones(2), {"a": 1}), (np.zeros(2), {"a": 2})])
    assert batch[0].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert batch[1]["a"].tolist() == [1, 2]


def test_a_cached_property_may_be_assigned_instead() -> None:
    class One:
        made = util.cached_property(lambda self: [self])
        given: Any = util.cached_property()

    one: Any = One()
    assert one.made is one.made
    with pytest.raises(AttributeError):
        one.given  # noqa: B018
    one.given = 3
    assert one.given == 3
