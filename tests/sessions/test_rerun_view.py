"""`--sessions view`: what rerun's own reader finds in the file, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.sessions.made_sessions import make_session
from tmrl_core.cli.main import main
from tmrl_core.errors import MissingExtraError
from tmrl_core.sessions import Session, SessionWriter
from tmrl_core.sessions.rerun_view import view

rerun = pytest.importorskip("rerun")

OF = (
    spaces.Dict(
        {
            "arm/camera": spaces.Box(0, 255, (12, 16, 3), np.uint8),
            "first": spaces.Box(0, 255, (3, 6, 7), np.uint8),
            "frames": spaces.Box(0, 255, (4, 10, 10), np.uint8),
            "grid": spaces.Box(-1, 1, (9, 10), np.float32),
            "inner": spaces.Tuple((spaces.Box(-1, 1, (2, 2), np.float64), spaces.Discrete(3))),
        }
    ),
    spaces.Box(-1, 1, (2,), np.float32),
)


def made() -> list[Session]:
    return [
        make_session(OF, 5, 1, terminated=True, source="robot7"),
        make_session(OF, 3, 2, extras={"logp": np.arange(3, dtype=np.float32)}),
        make_session(OF, 4, 3, truncated=True),
    ]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    with SessionWriter(tmp_path / "recording", *OF) as writer:
        for session in made():
            writer.write(session)
    return tmp_path / "recording"


def columns_of(file: Path) -> tuple[dict[str, dict[int, Any]], dict[str, list[str]]]:
    """Return the value at each tick by entity, and the names of lines."""
    from rerun.chunk import RrdReader

    found: dict[str, dict[int, Any]] = {}
    names: dict[str, list[str]] = {}
    for chunk in RrdReader(file).stream():
        columns = chunk.to_record_batch().to_pydict()
        for name, values in columns.items():
            if name == "SeriesLines:names":
                names[chunk.entity_path] = values[0]
            elif "tick" in columns and name.partition(":")[0] in ("Scalars", "Image", "Tensor", "TextLog"):
                assert {"tick"} == {*chunk.timeline_names}
                ticks = (tick for tick, value in zip(columns["tick"], values, strict=True) if value)
                found.setdefault(chunk.entity_path, {}).update(zip(ticks, filter(bool, values), strict=True))
    return found, names


def test_sessions_follow_each_other_on_one_time_line(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "sessions.rrd"
    assert main(["--sessions", "view", str(recording), "--out", str(out), "--only", "0-1"]) == 0
    assert capsys.readouterr().out == f"{out}: 2 sessions, 8 ticks\n"
    found, names = columns_of(out)
    one, other = made()[:2]
    assert list(found["/reward"]) == [0, 1, 2, 3, 4, 6, 7, 8], "the last observations are at 5 and 9"
    np.testing.assert_array_equal(np.ravel(list(found["/reward"].values())), [*one.rewards, *other.rewards])
    np.testing.assert_allclose(found["/return"][4], one.episode_return)
    np.testing.assert_array_equal(list(found["/action"].values()), np.concatenate([one.actions, other.actions]))
    assert names["/action"] == ["0", "1"]
    assert names["/observation/inner/0"] == ["0,0", "0,1", "1,0", "1,1"]
    inner: Any = one.observations["inner"]  # type: ignore[call-overload]
    np.testing.assert_array_equal(found["/observation/inner/0"][5], inner[0][5].ravel())
    assert found["/observation/inner/1"][5] == [inner[1][5]]
    assert list(found["/observation/grid"]) == list(range(10))
    assert [value for _, [value] in sorted(found["/session"].items())] == [0] * 6 + [1] * 4
    assert list(found["/extras/logp"].values()) == [[0.0], [1.0], [2.0]]
    texts = {tick: text for tick, [text] in found["/sessions"].items()}
    assert texts[0] == f"session 0: 5 ticks, terminated, return {one.episode_return:.6g}, by robot7"
    assert texts[6] == f"session 1: 3 ticks, unfinished, return {other.episode_return:.6g}, by an unknown source"


def test_pictures_have_their_channels_last(recording: Path, tmp_path: Path) -> None:
    view(recording, range(1), 0, tmp_path / "sessions.rrd")
    found, _ = columns_of(tmp_path / "sessions.rrd")
    observations: Any = made()[0].observations
    for entity, pixels in {
        "/observation/arm\\/camera": observations["arm/camera"][2],
        "/observation/first": np.moveaxis(observations["first"][2], 0, -1),
        "/observation/frames": observations["frames"][2, -1],
    }.items():
        assert np.ravel(found[entity][2]).tolist() == pixels.ravel().tolist(), entity


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--only", "x"], 2, "--only: found x, allowed: a number, or a range such as 0-9 or 20-"),
        (["--only", "5-3"], 2, "--only: found 5-3, allowed: a number"),
        (["--only", "3-"], 1, "the recording has none of these sessions; `--sessions list` prints their number"),
    ],
)
def test_a_wrong_choice_leaves_no_file(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, message: str
) -> None:
    assert main(["--sessions", "view", str(recording), "--out", str(tmp_path / "a.rrd"), *words]) == status
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["recording"]


def test_a_file_that_cannot_be_written_is_an_error(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.rrd").mkdir()
    assert main(["--sessions", "view", str(recording), "--out", str(tmp_path / "a.rrd")]) == 1
    assert "a.rrd cannot be written: " in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems always have a display")
def test_without_a_display_the_error_names_the_file(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["--sessions", "view", str(recording)]) == 2
    assert "there is no display here for the viewer: write a file with --out" in capsys.readouterr().err


def test_without_rerun_the_error_names_the_extra(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[rerun\]"):
        view(recording, range(1), 0)
