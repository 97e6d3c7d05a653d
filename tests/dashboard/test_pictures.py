"""Pictures on the page: of workers, of the run's folder, and orders that go on while somebody looks."""

from __future__ import annotations

import os
from pathlib import Path

from tests.dashboard.played import Played
from tmrl_core.dashboard.pictures import MAX_FILE_BYTES, Pictures, Shown
from tmrl_core.networking.protocol.pictures import CAMERA_S, Picture
from tmrl_core.networking.protocol.telemetry import Order

WALL = 1_795_000_000.0


def box(kind: bytes, size: int = 0) -> bytes:
    return (8 + size).to_bytes(4, "big") + kind + bytes(size)


START = box(b"ftyp", 24)
LONG = (1).to_bytes(4, "big") + b"mdat" + (16 + 70).to_bytes(8, "big") + bytes(70)


class Place:
    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.source = Played(may_order=True)
        self.videos = folder / "worker" / "videos"
        self.pictures = Pictures(self.source, folder, lambda: self.now)

    def film(self, number: int, content: bytes, age_s: float) -> None:
        self.videos.mkdir(parents=True, exist_ok=True)
        path = self.videos / f"evaluation-{number}.mp4"
        path.write_bytes(content)
        os.utime(path, (WALL - age_s, WALL - age_s))


def test_the_latest_complete_video_of_the_folder_is_shown(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.pictures.list() == []
    ten = START + LONG + box(b"moov", 9)
    place.film(9, START + box(b"moov"), 100.0)
    place.film(10, ten, 50.0)
    for number, written in enumerate(
        (b"", START, START + LONG, START + LONG[:-1], START + LONG + box(b"moov", 9)[:-1])
    ):
        place.film(11 + number, written, 0.5)
    place.now = 1.0
    assert place.pictures.list() == [Shown("", "video", int(1e6 * (WALL - 50)), len(ten), "evaluation-10.mp4", "")]
    assert place.pictures.content("", "video") == ten
    assert place.pictures.content("", "camera") == b""
    place.film(11, START + box(b"moov") + LONG, 0.0)
    assert place.pictures.list()[0].text == "evaluation-10.mp4"
    place.now = 3.0
    assert place.pictures.list()[0].text == "evaluation-11.mp4"


def test_a_large_video_of_the_folder_is_named_only(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.film(1, START + box(b"moov"), 50.0)
    os.truncate(place.videos / "evaluation-1.mp4", MAX_FILE_BYTES + 1)
    os.utime(place.videos / "evaluation-1.mp4", (WALL - 50, WALL - 50))
    (shown,) = place.pictures.list()
    assert (shown.size, "has 34 MB; open it there" in shown.text) == (0, True)
    assert place.pictures.content("", "video") == b""


def test_the_order_for_a_camera_is_repeated_while_its_pictures_are_taken(tmp_path: Path) -> None:
    place = Place(tmp_path)
    order = Order(kind="camera", worker="robot1")
    place.source.show(pictures={("robot1", "camera"): Picture("robot1", "camera", 1, b"frame")})
    place.pictures.repeat("robot1", "camera")  # ordered by somebody else
    place.pictures.ordered(order)
    for _ in range(20):
        place.now += CAMERA_S / 20
        place.pictures.repeat("robot1", "camera")
    assert place.source.orders == [order] * 2
    place.pictures.ordered(Order(kind="video", worker="robot2"))
    place.now += CAMERA_S
    place.pictures.repeat("robot2", "video")
    assert len(place.source.orders) == 2
