"""Videos of LeRobot datasets: frames equal to PyAV's own, in order, and everything wrong with a file is named."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from tests.sessions.lerobot.test_dataset import foreign  # noqa: E402
from tmrl_core.errors import MissingExtraError, StorageError  # noqa: E402
from tmrl_core.sessions.lerobot.dataset import read_lerobot  # noqa: E402
from tmrl_core.sessions.lerobot.videos import Videos  # noqa: E402

FPS, SHAPE, KEY = 10, (16, 32, 3), "observation.images.top"


def encode(
    file: Path, frames: int, *, skipped: int | None = None, b_frames: int = 0, shape: tuple[int, int, int] = SHAPE
) -> np.ndarray:
    """Write a video; return its frames as PyAV decodes them from the first on."""
    pytest.importorskip("av")
    import av

    file.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(frames)
    with av.open(str(file), "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        (stream.height, stream.width, _), stream.pix_fmt = shape, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = 5, b_frames
        for number in range(frames):
            picture = np.full(shape, 10 + 11 * number % 200, np.uint8)
            picture[: shape[0] // 2] = draw.integers(0, 255, 3)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            if number != skipped:
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with av.open(str(file)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def row(begin: float, chunk: int = 0, number: int = 0, key: str = KEY) -> dict[str, Any]:
    prefix = f"videos/{key}/"
    return {f"{prefix}chunk_index": chunk, f"{prefix}file_index": number, f"{prefix}from_timestamp": begin}


def place(folder: Path, chunk: int = 0, number: int = 0) -> Path:
    return folder / "videos" / KEY / f"chunk-{chunk:03d}" / f"file-{number:03d}.mp4"


@pytest.mark.parametrize("b_frames", [0, 2])
def test_frames_are_those_of_a_plain_decoder(tmp_path: Path, b_frames: int) -> None:
    decoded = encode(place(tmp_path), 23, b_frames=b_frames)
    assert len(decoded) == 23
    with Videos(tmp_path, FPS) as videos:
        for begin, length in ((0, 4), (4, 3), (7, 1), (8, 15), (0, 23), (4, 9), (5, 3), (22, 1), (13, 10)):
            times_s = (np.arange(length) / FPS).astype(np.float32)
            found = videos.frames(KEY, row(begin / FPS), times_s, SHAPE)
            np.testing.assert_array_equal(found, decoded[begin : begin + length])
        nearest = videos.frames(KEY, row(0.0), np.array([0.04, 0.17, 0.17, 0.24]), SHAPE)
        np.testing.assert_array_equal(nearest, decoded[[0, 2, 2, 2]])


def with_videos(folder: Path, **changed: Any) -> Path:
    """A dataset of two episodes, of three and two frames, with a video."""
    features = {KEY: {"dtype": "video", "shape": [*SHAPE]}, "timestamp": {"dtype": "float32", "shape": [1]}}
    columns = {KEY: None, "timestamp": np.array([0, 0.1, 0.2, 0, 0.1], np.float32)}
    foreign(folder, columns=columns, features=features)
    rows = [{"episode_index": n, "length": 3 - n, **row(0.3 * n, **changed)} for n in range(2)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "meta/episodes/chunk-000/file-000.parquet")
    return folder


def test_a_dataset_with_videos_is_read(tmp_path: Path) -> None:
    folder = with_videos(tmp_path / "theirs", chunk=1, number=2)
    decoded = encode(place(folder, 1, 2), 5)
    (observation_space, _), found = read_lerobot(folder)
    assert isinstance(observation_space, spaces.Dict)
    assert observation_space["images.top"] == spaces.Box(0, 255, SHAPE, np.uint8)
    trees: list[Any] = [session.observations for session in found]
    np.testing.assert_array_equal(trees[0]["images.top"], decoded[[0, 1, 2, 2]])
    np.testing.assert_array_equal(trees[1]["images.top"], decoded[[3, 4, 4]])


def test_what_is_wrong_with_a_video_is_named(tmp_path: Path) -> None:
    pytest.importorskip("av")
    folder = with_videos(tmp_path / "theirs")
    with pytest.raises(StorageError, match=r"episode 0, cannot be read: .*file-000\.mp4 is missing"):
        read_lerobot(folder)
    file = place(folder)
    encode(file, 4)
    with pytest.raises(StorageError, match=r"episode 1, .* has no frame at 0\.4000 s; the nearest one is at 0\.3000 s"):
        read_lerobot(folder)
    (session,) = read_lerobot(folder, skip_bad=True)[1]
    assert len(session) == 3
    encode(file, 5, skipped=1)
    with pytest.raises(StorageError, match=r"episode 0, .* has no frame at 0\.1000 s"):
        read_lerobot(folder)
    encode(file, 5, shape=(32, 32, 3))
    with pytest.raises(StorageError, match=r"has frames of 32x32; the feature states \[16, 32, 3\]"):
        read_lerobot(folder)
    for content in (b"", b"no video at all", file.read_bytes()[:200]):
        file.write_bytes(content)
        with pytest.raises(StorageError, match=r"file-000\.mp4 (cannot be decoded|has no)"):
            read_lerobot(folder)


@pytest.mark.parametrize("fps", [0, -1, None, "30", float("inf")])
def test_a_wrong_rate_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fps: Any) -> None:
    monkeypatch.setattr("tmrl_core.sessions.lerobot.dataset.require_pyav", lambda: None)
    folder = with_videos(tmp_path / "theirs")
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps({**info, "fps": fps}))
    with pytest.raises(StorageError, match="states the rate fps = "):
        read_lerobot(folder)


def test_given_spaces_without_the_videos_need_no_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    folder = with_videos(tmp_path / "theirs")
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[lerobot-video\]"):
        read_lerobot(folder)
    of = spaces.Dict(state=spaces.Box(-9, 9, (2,), np.float32)), spaces.Box(-9, 9, (2,), np.float32)
    assert [len(session) for session in read_lerobot(folder, of=of)[1]] == [3, 2]


@pytest.mark.parametrize("key", ["../up", "a/b", "..", "a\\b"])
def test_a_feature_s_name_leads_to_no_other_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a folder"):
        Videos(tmp_path, FPS).frames(key, row(0.0, key=key), np.zeros(1), SHAPE)


@pytest.mark.parametrize("times_s", [[0.1, 0.0], [np.nan], [0.0, np.inf]])
def test_times_ascend(tmp_path: Path, times_s: list[float]) -> None:
    place(tmp_path).parent.mkdir(parents=True)
    place(tmp_path).write_bytes(b"")
    with pytest.raises(ValueError, match="do not ascend"):
        Videos(tmp_path, FPS).frames(KEY, row(0.0), np.array(times_s), SHAPE)
