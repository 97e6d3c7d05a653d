"""The restricted reader of torch's format, and the conversion of tmrl's policies."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.actor.policies.weights import decode_arrays
from tmrl_core.compat.policy_files import has_torch_format, policy_weights, read_torch_format
from tmrl_core.errors import WeightsError


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def state(hidden: int = 8) -> dict[str, torch.Tensor]:
    shapes = {"net.0": (hidden, 3), "mu_layer": (2, hidden), "log_std_layer": (2, hidden)}
    weights = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    return weights | {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}


WHOLE = saved(state())


def test_named_tensors_are_read() -> None:
    expected = state()
    found = read_torch_format(saved(expected))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_layers_get_the_projects_names() -> None:
    expected = state()
    arrays, metadata = decode_arrays(policy_weights(expected))
    assert sorted(arrays) == sorted(
        ["net.0.weight", "net.0.bias", "mu.weight", "mu.bias", "log_std.weight", "log_std.bias"]
    )
    assert (arrays["mu.bias"] == expected["mu_layer.bias"].numpy()).all()
    assert metadata == {}


class Bad:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("how", ["torch.save", "pickle", "legacy"])
def test_nothing_in_a_file_is_run(tmp_path: Path, how: str) -> None:
    ran, value = tmp_path / "ran", {"net.0.weight": Bad(tmp_path / "ran")}
    file = io.BytesIO()
    if how == "pickle":
        pickle.dump(value, file)
    else:
        torch.save(value, file, _use_new_zipfile_serialization=how == "torch.save")
    with pytest.raises(WeightsError, match="Nothing of it was run"):
        read_torch_format(file.getvalue())
    assert not ran.exists()


def test_compressed_members_are_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(WeightsError, match="compressed"):
        read_torch_format(packed.getvalue())


@pytest.mark.parametrize("value", [torch.ones(2), [torch.ones(2)], {"a": 1}, {1: torch.ones(2)}])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(WeightsError, match="state_dict"):
        read_torch_format(saved(value))


@pytest.mark.parametrize(
    "change",
    [
        {"q1.q.0.weight": torch.ones(1)},
        {"net.0.weight": None},
        {"mu_layer.weight": torch.ones(2, 8, dtype=torch.int64)},
    ],
)
def test_weights_of_other_models_are_refused(change: dict[str, Any]) -> None:
    changed = {name: tensor for name, tensor in {**state(), **change}.items() if tensor is not None}
    with pytest.raises(WeightsError, match="weights"):
        policy_weights(changed)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.booleans())
def test_damaged_files_give_tensors_or_an_error(position: int, byte: int, cut: bool) -> None:
    data = WHOLE[:position] if cut else WHOLE[:position] + bytes([byte]) + WHOLE[position + 1 :]
    try:
        found = read_torch_format(data)
    except WeightsError:
        return
    assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())


def test_the_format_is_told_by_the_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "policy.tmod"
    assert not has_torch_format(path)
    path.write_bytes(policy_weights(state()))
    assert not has_torch_format(path)
    path.write_bytes(WHOLE)
    assert has_torch_format(path)
    assert not has_torch_format(tmp_path)
