from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.actor.policies.weights import difference, encode_arrays
from tmrl_core.errors import WeightsError
from tmrl_core.networking.protocol.messages import Blob


def test_a_file_holds_all_policies_and_their_exploration(tmp_path: Path) -> None:
    bundle = PolicyBundle({"a": Blob("safetensors", b"\x00weights"), "b": Blob("file", b"")}, {"agent": 0.25})
    bundle.save(tmp_path / "weights.tmod")
    assert PolicyBundle.read(tmp_path / "weights.tmod") == bundle
    assert (tmp_path / "weights.tmod").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"not a bundle", b"\x81\xa1a\x01"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "weights.tmod").write_bytes(content)
    with pytest.raises(WeightsError, match="does not hold several policies"):
        PolicyBundle.read(tmp_path / "weights.tmod")


def test_its_architecture_shows_names_and_shapes() -> None:
    def bundle(agent: str = "north", **shapes: tuple[int, ...]) -> PolicyBundle:
        weights = {name: encode_arrays({"w": np.zeros(shape)}, {}) for name, shape in shapes.items()}
        return PolicyBundle({name: Blob("safetensors", data) for name, data in weights.items()}, {agent: 0.0})

    trainer = bundle(a=(3,), b=(2,)).architecture()
    assert difference(bundle(a=(3,), b=(2,)).architecture(), trainer) == ""
    found = difference(bundle(a=(3,), c=(2,)).architecture(), trainer)
    assert found == "policies: a, c at the worker, a, b at the trainer"
    assert difference(bundle("south", a=(3,), b=(2,)).architecture(), trainer).startswith("agents: south at the worker")
    assert difference(bundle(a=(4,), b=(2,)).architecture(), trainer) == "a.w: [4] at the worker, [3] at the trainer"
    other = PolicyBundle({"a": Blob("own format", b"?"), "b": Blob("own format", b"?")}, {"north": 0.0})
    assert other.architecture()["shapes"] == {}
