from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.actor import ActorModule
from tmrl_core.errors import WeightsError


class Constant(ActorModule):
    """Acts with one number, kept in a file of digits."""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        super().__init__(observation_space, action_space)
        self.value = 1.5
        self.modes: list[int] = []

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.full(1, self.value, np.float32)

    def save(self, path: str | Path) -> None:
        self.modes.append(stat.S_IMODE(Path(path).parent.stat().st_mode))
        Path(path).write_text(str(self.value))

    def load(self, path: str | Path, device: Any) -> ActorModule:
        text = Path(path).read_text()
        try:
            value = float(text)
        except ValueError as exc:
            raise WeightsError(f"{text!r} is no number") from exc
        self.value = value
        return self


class Mute(ActorModule):
    def act(self, obs: Any, test: bool = False) -> Any:
        return None


def test_to_bytes_and_from_bytes_use_save_and_load() -> None:
    source, target = Constant(), Constant()
    source.value = -3.25
    assert target.from_bytes(source.to_bytes(), "cpu") is target
    assert target.value == -3.25


def test_the_file_on_the_way_is_private() -> None:
    actor = Constant()
    actor.to_bytes()
    assert actor.modes == [0o700]


def test_a_blob_carries_the_tag_of_its_format() -> None:
    actor = Constant()
    tag, data = actor.to_blob()
    assert tag == "file"
    assert data == b"1.5"


def test_a_blob_of_another_format_is_refused_and_changes_nothing() -> None:
    actor = Constant()
    with pytest.raises(WeightsError, match=r"'safetensors'.*Constant reads 'file'"):
        actor.from_blob("safetensors", b"2.0", "cpu")
    assert actor.value == 1.5


def test_weights_that_a_custom_load_cannot_read_are_refused() -> None:
    class Careless(Constant):
        def load(self, path: str | Path, device: Any) -> ActorModule:
            self.value = [1.5][len(Path(path).read_bytes())]
            return self

    with pytest.raises(WeightsError, match="Careless cannot load the weights: IndexError"):
        Careless().from_blob("file", b"anything", "cpu")


@pytest.mark.parametrize("call", ["save", "load", "to_bytes", "from_bytes"])
def test_without_save_and_load_the_error_names_what_to_implement(call: str, tmp_path: Path) -> None:
    actor = Mute(None, None)
    calls: dict[str, Any] = {
        "save": lambda: actor.save(tmp_path / "weights"),
        "load": lambda: actor.load(tmp_path / "weights", "cpu"),
        "to_bytes": actor.to_bytes,
        "from_bytes": lambda: actor.from_bytes(b"", "cpu"),
    }
    with pytest.raises(NotImplementedError, match=r"Mute has no .*Implement save\(path\) and load\(path, device\)"):
        calls[call]()


def test_act_and_to_device_have_defaults() -> None:
    actor = Constant()
    assert actor.act_(None, test=True) == pytest.approx(1.5)
    assert actor.to_device("cpu") is actor


def test_an_actor_without_act_cannot_be_made() -> None:
    class Nothing(ActorModule):
        pass

    with pytest.raises(TypeError, match="act"):
        Nothing(None, None)  # type: ignore[abstract]
