from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor import SquashedGaussianMLPActor, TorchActorModule
from tmrl_core.errors import WeightsError

OBS = spaces.Dict({"speed": spaces.Box(-1, 1, (2,), np.float64), "gear": spaces.Discrete(4)})
ACT = spaces.Box(-1, 1, (1,), np.float32)


class Probe(TorchActorModule):
    """Remembers what `act` was given."""

    def __init__(self, observation_space: Any = OBS, action_space: Any = ACT, width: int = 3) -> None:
        super().__init__(observation_space, action_space)
        self.layer = torch.nn.Linear(2, width)
        self.register_buffer("count", torch.tensor(0))
        self.seen: list[Any] = []

    def act(self, obs: Any, test: bool = False) -> Any:
        self.seen.append((obs, test, torch.is_grad_enabled()))
        return np.zeros(1, np.float32)


class Tied(Probe):
    """Two names for one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.layer


class WithExtraState(Probe):
    def get_extra_state(self) -> Any:
        return {"a": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_act_gets_a_batch_of_one_without_gradients() -> None:
    actor = Probe()
    actor.act_({"speed": np.array([0.5, 0.25]), "gear": np.int64(2)}, test=True)
    obs, test, gradients = actor.seen[0]
    assert test
    assert not gradients
    assert obs["speed"].shape == (1, 2)
    assert obs["speed"].dtype == torch.float64
    assert obs["gear"].tolist() == [2]
    assert torch.is_grad_enabled()


def test_nested_tuples_read_only_arrays_and_tensors_are_collated() -> None:
    frozen = np.arange(3, dtype=np.float32)
    frozen.flags.writeable = False
    actor = Probe()
    actor.act_((frozen, [np.arange(4)[::-1], torch.ones(2)]))
    first, (second, third) = actor.seen[0][0]
    assert first.tolist() == [[0, 1, 2]]
    assert second.tolist() == [[3, 2, 1, 0]]
    assert third.shape == (1, 2)


def test_weights_survive_files_and_bytes(tmp_path: Path) -> None:
    source, by_file, by_bytes = Probe(), Probe(), Probe()
    source.save(tmp_path / "weights")
    assert by_file.load(tmp_path / "weights", "cpu") is by_file
    assert by_bytes.from_blob(*source.to_blob(), device="cpu") is by_bytes
    for name, value in source.state_dict().items():
        assert torch.equal(by_file.state_dict()[name], value)
        assert torch.equal(by_bytes.state_dict()[name], value)


def test_shared_parameters_survive_saving() -> None:
    source, target = Tied(), Tied()
    target.from_bytes(source.to_bytes(), "cpu")
    assert torch.equal(target.again.weight, source.layer.weight)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Probe(width=5), r"layer\.weight has the shape \(5, 2\), the policy's has \(3, 2\)"),
        (Tied(), r"with again\.bias, again\.weight"),
    ],
)
def test_weights_of_another_architecture_are_refused_whole(source: Probe, message: str) -> None:
    actor = Probe()
    before = actor.to_bytes()
    with pytest.raises(WeightsError, match=message):
        actor.from_bytes(source.to_bytes(), "cpu")
    assert actor.to_bytes() == before


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"garbage", lambda data: b""])
def test_damaged_weights_are_refused_whole(damage: Any) -> None:
    actor = Probe()
    before = actor.to_bytes()
    with pytest.raises(WeightsError, match="weights are not in the safetensors format"):
        actor.from_bytes(damage(Probe().to_bytes()), "cpu")
    assert actor.to_bytes() == before


def test_the_error_names_a_state_entry_that_is_not_a_tensor() -> None:
    with pytest.raises(WeightsError, match=r"_extra_state.*is a dict"):
        WithExtraState().to_bytes()


def test_the_device_is_remembered() -> None:
    actor = Probe()
    assert actor.to("meta") is actor
    assert str(actor.device) == "meta"
    assert actor.to(torch.float64).layer.weight.dtype == torch.float64
    assert str(actor.device) == "meta"


def test_the_device_follows_when_the_parent_module_is_moved() -> None:
    model = torch.nn.Sequential(Probe())
    model.to("meta")
    assert str(model[0].device) == "meta"


class OwnFormat(Probe):
    """Writes its weights as text."""

    def save(self, path: str | Path) -> None:
        lines = [f"{name} {value.tolist()}" for name, value in self.state_dict().items()]
        Path(path).write_text("mine\n" + "\n".join(lines))

    def load(self, path: str | Path, device: Any) -> OwnFormat:
        first, *lines = Path(path).read_text().splitlines()
        if first != "mine":
            raise RuntimeError("not mine")
        pairs = (line.split(" ", 1) for line in lines)
        self.load_state_dict({name: torch.tensor(json.loads(text)) for name, text in pairs})
        return self.to(device)


class Wrapped(SquashedGaussianMLPActor):
    """Adds a line to what its base writes."""

    def save(self, path: str | Path) -> None:
        super().save(path)
        Path(path).write_bytes(b"mine\n" + Path(path).read_bytes())

    def load(self, path: str | Path, device: Any = None) -> Any:
        content = Path(path).read_bytes()
        assert content.startswith(b"mine\n")
        Path(path).write_bytes(content.removeprefix(b"mine\n"))
        return super().load(path, device)


class Both(Probe):
    """Has bytes and files of its own."""

    def to_bytes(self) -> bytes:
        return b"bytes" + super().to_bytes()

    def from_bytes(self, data: bytes, device: Any) -> Any:
        return super().from_bytes(data.removeprefix(b"bytes"), device)

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(b"mine" + self.to_bytes())

    def load(self, path: str | Path, device: Any) -> Any:
        return self.from_bytes(Path(path).read_bytes().removeprefix(b"mine"), device)


@pytest.mark.parametrize(
    ("make", "start", "tag"),
    [
        (OwnFormat, b"mine\ncount 0\n", "file"),
        (lambda: Wrapped(OBS["speed"], ACT, hidden_sizes=(4,)), b"mine\n", "file"),
        (Both, b"bytes", "safetensors"),
    ],
)
def test_a_custom_format_is_used_on_the_wire_and_in_files(make: Any, start: bytes, tag: str, tmp_path: Path) -> None:
    source, by_file, by_bytes = make(), make(), make()
    found, data = source.to_blob()
    assert found == tag
    assert data.startswith(start)
    assert by_bytes.from_blob(found, data, "cpu") is by_bytes
    source.save(tmp_path / "weights")
    assert (tmp_path / "weights").read_bytes().startswith(b"mine")
    by_file.load(tmp_path / "weights", "cpu")
    for name, value in source.state_dict().items():
        assert torch.equal(by_file.state_dict()[name], value)
        assert torch.equal(by_bytes.state_dict()[name], value)


def test_weights_of_another_format_are_refused() -> None:
    with pytest.raises(WeightsError, match="of the format 'safetensors', OwnFormat reads 'file'"):
        OwnFormat().from_blob(*Probe().to_blob(), device="cpu")


def test_a_buffer_may_hold_infinite_numbers_but_no_nan() -> None:
    class Masked(TorchActorModule):
        def __init__(self, mask: float) -> None:
            super().__init__(OBS, ACT)
            self.register_buffer("mask", torch.tensor([0.0, mask]))

        def act(self, obs: Any, test: bool = False) -> Any:
            return obs

    Masked(1.0).from_bytes(Masked(-math.inf).to_bytes(), "cpu")
    with pytest.raises(WeightsError, match="mask holds NaN"):
        Masked(1.0).from_bytes(Masked(math.nan).to_bytes(), "cpu")
