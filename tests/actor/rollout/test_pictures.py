"""A worker's pictures for viewers: when they are made, of what, and why there are none."""

from __future__ import annotations

import io
import subprocess
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from tests.waiting import until
from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment
from tmrl_core.actor.rollout.collector import Collector
from tmrl_core.actor.rollout.loop import EnvironmentLoop
from tmrl_core.actor.rollout.pictures import (
    MOST_PIXELS,
    Frame,
    NoPictureError,
    WorkerPictures,
    jpeg,
    picture_in,
    rendered,
    video_file,
)
from tmrl_core.networking.protocol.pictures import CAMERA_S, FRAME_S, MAX_VIDEO_BYTES, PIECE_BYTES, Picture, Wanted


class Source:
    """A worker with a camera, and perhaps a video."""

    def __init__(self) -> None:
        self.frames = 0
        self.video: Path | None = None
        self.fault: Exception | None = None

    def frame(self) -> Frame:
        self.frames += 1
        if self.fault is not None:
            raise self.fault
        return np.full((40, 60, 3), self.frames, np.uint8)

    def latest_video(self) -> Path:
        if self.video is None:
            raise NoPictureError("no evaluation yet")
        return self.video


class Shown:
    def __init__(self) -> None:
        self.now = 10.0
        self.source = Source()
        self.pictures: list[Picture] = []
        self.made = WorkerPictures(self.source, self.pictures.append, lambda: self.now, lambda: 1.0)

    def _encoded(self) -> bool:
        return self.made._encoding is None or self.made._encoding.done()

    def look(self, wanted: Wanted, seconds: float = 0.0) -> None:
        """Look five times a second, as a worker does."""
        for _ in range(max(1, round(5 * seconds))):
            self.made.look(wanted)
            until(self._encoded)
            self.now += 0.2 if seconds else 0.0


def test_a_camera_is_shown_twice_a_second_for_a_minute_after_the_latest_order() -> None:
    shown = Shown()
    shown.look(Wanted("robot7"), 1.0)
    assert not shown.source.frames
    shown.look(Wanted("robot7", camera=1), CAMERA_S + 5)
    assert 0.8 * CAMERA_S / FRAME_S <= shown.source.frames <= CAMERA_S / FRAME_S + 1
    numbers = [picture.number for picture in shown.pictures]
    assert numbers == sorted(set(numbers))
    before = shown.source.frames
    shown.look(Wanted("robot7", camera=1, video=2), 2.0)
    assert shown.source.frames == before
    shown.look(Wanted("robot7", camera=3, video=2), 1.0)
    assert shown.source.frames > before
    assert Image.open(io.BytesIO(shown.pictures[-1].content)).size == (60, 40)
    shown.made.close()


@pytest.mark.parametrize("fault", [NoPictureError("no camera"), RuntimeError("the display is gone")])
def test_a_camera_that_cannot_be_had_is_told_once(fault: Exception) -> None:
    shown = Shown()
    shown.source.fault = fault
    shown.look(Wanted("robot7", camera=1), 5.0)
    (picture,) = shown.pictures
    assert (picture.content, str(fault) in picture.text, shown.source.frames) == (b"", True, 1)


def test_a_video_is_sent_once_for_each_order(tmp_path: Path) -> None:
    shown = Shown()
    shown.look(Wanted("robot7", video=1), 1.0)
    assert [picture.text for picture in shown.pictures] == ["no evaluation yet"]
    shown.source.video = tmp_path / "evaluation-3.mp4"
    shown.source.video.write_bytes(b"video")
    shown.made.look(Wanted("robot7", video=2))
    until(lambda: len(shown.pictures) == 2)
    assert shown.pictures[1][:2] + shown.pictures[1][3:5] == ("robot7", "video", b"video", "evaluation-3.mp4")
    shown.look(Wanted("robot7", video=2), 1.0)
    assert len(shown.pictures) == 2
    shown.source.video.unlink()
    shown.made.look(Wanted("robot7", video=3))
    until(lambda: len(shown.pictures) == 3)
    assert "FileNotFoundError" in shown.pictures[2].text
    shown.made.close()


def test_the_worker_is_not_kept_alive() -> None:
    shown = Shown()
    gone = weakref.ref(shown.source)
    del shown.source
    assert gone() is None
    shown.made.look(Wanted("robot7", camera=1))
    assert not shown.pictures


NOISE = np.random.default_rng(1).integers(0, 256, (1200, 900, 3), np.uint8)


@pytest.mark.parametrize("frame", [NOISE, NOISE[::-1, ::2], NOISE[:30, :40]])
def test_a_picture_of_any_size_becomes_one_piece(frame: Frame) -> None:
    made = jpeg(frame)
    assert len(made) <= PIECE_BYTES
    assert max(Image.open(io.BytesIO(made)).size) <= MOST_PIXELS


RED = np.zeros((20, 30, 3), np.uint8)
RED[..., 0] = 200
GREY = np.full((20, 30), 90, np.uint8)


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (RED, RED),
        (RED.transpose(2, 0, 1), RED),
        (np.stack([RED * 0, RED]), RED),
        (GREY, np.stack([GREY] * 3, axis=2)),
        (np.stack([GREY * 0, GREY * 0, GREY * 0, GREY]), np.stack([GREY] * 3, axis=2)),
        (np.concatenate([RED * 0, RED], axis=2), RED),
        ({"speed": np.ones(3, np.float32), "cameras": (GREY[:9, :9], RED)}, RED),
    ],
)
def test_the_largest_picture_of_an_observation_is_found(observation: object, expected: Frame) -> None:
    assert np.array_equal(picture_in(observation), expected)


@pytest.mark.parametrize("observation", [np.ones(4, np.float32), np.ones((4, 4), np.uint8), {"a": 1}, (), None, "text"])
def test_an_observation_without_a_picture_says_what_to_set(observation: object) -> None:
    with pytest.raises(NoPictureError, match=r"environment\.kwargs.render_mode: rgb_array"):
        picture_in(observation)


def test_a_renderer_that_returns_no_picture_is_told() -> None:
    assert np.array_equal(rendered(SimpleNamespace(render=lambda: RED)), RED)
    assert np.array_equal(rendered(SimpleNamespace(render=lambda: (RED, 2 * RED))), RED)
    with pytest.raises(NoPictureError, match="returns no picture but list"):
        rendered(SimpleNamespace(render=lambda: []))


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (SimpleNamespace(render_mode="rgb_array", render=lambda: 2 * RED), 2 * RED),
        (SimpleNamespace(render_mode="human"), RED),
        (SimpleNamespace(), RED),
    ],
    ids=["renders", "a window", "not a gymnasium.Env"],
)
def test_a_worker_shows_what_renders_else_what_it_observes(env: Any, expected: Frame) -> None:
    loop = EnvironmentLoop.__new__(EnvironmentLoop)
    loop.environment = cast(CheckedEnvironment, SimpleNamespace(env=env))
    loop._obs = {"camera": RED}
    assert np.array_equal(loop.frame(), expected)


def test_a_collector_of_many_agents_says_that_it_shows_nothing() -> None:
    for call in (Collector.frame, Collector.latest_video):
        with pytest.raises(NoPictureError, match="a worker with many agents"):
            call(cast(Collector, None))


def test_a_worker_without_videos_says_why(tmp_path: Path) -> None:
    loop = EnvironmentLoop.__new__(EnvironmentLoop)
    for folder, why in ((None, "set worker.evaluation_videos: true"), (tmp_path, "has played no evaluation yet")):
        loop.evaluation_videos = folder
        with pytest.raises(NoPictureError, match=why):
            loop.latest_video()
    path = tmp_path / "evaluation-7.mp4"
    path.write_bytes((8).to_bytes(4, "big") + b"moov")
    assert loop.latest_video() == path


def test_a_large_video_is_made_smaller(tmp_path: Path) -> None:
    path, text = tmp_path / "evaluation-1.mp4", tmp_path / "text.mp4"
    writer = imageio_ffmpeg.write_frames(
        str(path), (320, 240), fps=30, quality=None, output_params=["-qp", "0", "-preset", "ultrafast"]
    )
    writer.send(None)
    for frame in range(20):
        writer.send(np.ascontiguousarray(np.roll(NOISE, frame, 0)[:240, :320]))
    writer.close()
    assert path.stat().st_size > MAX_VIDEO_BYTES
    made = video_file(path)
    assert 0 < len(made) <= MAX_VIDEO_BYTES
    (tmp_path / "small.mp4").write_bytes(made)
    found = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(tmp_path / "small.mp4"), "-f", "null", "-"],
        capture_output=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    text.write_bytes(b"no video" * 100_000)
    with pytest.raises(NoPictureError, match=r"text.mp4 on the worker's machine could not be made smaller"):
        video_file(text)
