from __future__ import annotations

from pathlib import Path

import pytest

from tmrl_core.actor.policies.bundle import PolicyBundle
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
