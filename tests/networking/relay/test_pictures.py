"""Pictures of workers on their way to viewers. Sans-I/O."""

from __future__ import annotations

import pytest

from tests.networking.relay.test_viewers import Room
from tmrl_core.networking.observer.pictures import MAX_SHOWN, ArrivingPictures
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.messages import Film, encode_body
from tmrl_core.networking.protocol.pictures import (
    MAX_PIECES,
    MAX_VIDEO_BYTES,
    PIECE_BYTES,
    PIECE_S,
    PIECES_AT_ONCE,
    Kind,
    Picture,
    Piece,
    pieces,
)
from tmrl_core.networking.worker import WorkerConnection, WorkerState


def video(number: int, size: int = 2 * PIECE_BYTES + 1) -> Picture:
    return Picture("robot7", "video", number, bytes([number]) * size)


def join(room: Room, name: str = "robot7") -> tuple[WorkerState, WorkerConnection]:
    state = WorkerState(run="run", name=name, peer=name.encode()[-1:] * 16)
    state.add_stream(StreamSender(name.encode()[-1:] * 16, queue_bytes=1 << 20, drop_oldest=False), b"")
    connection = WorkerConnection(state, silent_s=10, heartbeat_s=3)
    room.connect(connection)
    return state, connection


@pytest.fixture
def room() -> Room:
    made = Room()
    made.trained()
    return made


def test_all_viewers_of_the_run_see_a_picture_and_others_none(room: Room) -> None:
    _, worker = join(room)
    viewers = [room.viewer()[0], room.viewer("")[0]]
    other, _ = room.viewer("another run")
    picture = Picture("robot7", "camera", 1, b"a frame", "text")
    worker.show(picture)
    room.run()
    for state in viewers:
        assert state.pictures.shown == {("robot7", "camera"): picture}
    assert not other.pictures.shown


def test_a_video_comes_in_pieces_with_time_for_samples_between_them(room: Room) -> None:
    _, worker = join(room)
    state, _ = room.viewer()
    worker.show(video(1))
    room.run()
    assert not state.pictures.shown
    assert worker.deadline() <= room.now + PIECE_S
    room.wait(2.0)
    assert state.pictures.shown["robot7", "video"] == video(1)
    assert worker.deadline() > room.now + PIECE_S


def test_a_newer_picture_replaces_one_that_waits(room: Room) -> None:
    _, worker = join(room)
    state, _ = room.viewer()
    for number in (1, 2, 3):
        worker.show(video(number))
        worker.show(Picture("robot7", "camera", number, b"frame"))
    room.wait(3.0)
    assert [picture.number for picture in state.pictures.shown.values()] == [3, 3]


def test_a_link_that_ends_sends_nothing_old_in_the_next_one(room: Room) -> None:
    worker_state, worker = join(room)
    worker.show(video(1))
    worker.lost(None, room.now)
    assert worker_state.pictures.due_at == float("inf")
    late = WorkerConnection(worker_state, silent_s=10, heartbeat_s=3)
    late.show(video(2))  # it is not connected
    assert worker_state.pictures.due_at == float("inf")


def test_a_viewer_that_reads_nothing_holds_one_video_and_one_frame(room: Room) -> None:
    workers = [join(room, f"robot{number}")[1] for number in range(3)]
    _, viewer = room.viewer()
    room.pairs.remove(next(pair for pair in room.pairs if pair[0] is viewer))
    (link,) = room.relay.observers
    for number, worker in enumerate(workers):
        for part in range(MAX_PIECES):
            worker.send(Film("video", part, bytes([number]) * 50_000))
        worker.send(Film("camera", 0, bytes([number]) * 50_000))
    room.run()
    held = [message for message in link._slots.values() if isinstance(message, Film)]
    assert len(held) == MAX_PIECES + 1


def test_a_worker_that_floods_is_not_forwarded_beyond_its_rate(room: Room) -> None:
    _, worker = join(room)
    state, _ = room.viewer()
    for number in range(1, 200):
        piece = Piece("run", "robot7", "camera", number, 0, 1, b"frame")
        worker.send(Film("camera", 0, encode_body(piece)))
        room.run()
    assert state.pictures.shown["robot7", "camera"].number == PIECES_AT_ONCE
    assert not worker.closing


def test_what_cannot_be_read_ends_the_viewers_link(room: Room) -> None:
    _, worker = join(room)
    _, viewer = room.viewer()
    worker.send(Film("camera", 0, b"\x00"))
    room.run()
    assert viewer.closing


# --- pieces become pictures ---


def piece(number: int, part: int = 0, parts: int = 1, kind: Kind = "video", worker: str = "robot7") -> Piece:
    return Piece("run", worker, kind, number, part, parts, bytes([number, part]))


def test_pieces_arrive_in_any_order_and_older_ones_change_nothing() -> None:
    arriving = ArrivingPictures()
    assert [arriving.add(piece(5, part, 3)) for part in (2, 0, 0)] == [False] * 3
    assert not arriving.add(piece(4, 1, 3))
    assert arriving.add(piece(5, 1, 3))
    assert arriving.shown["robot7", "video"].content == bytes([5, 0, 5, 1, 5, 2])
    for old in (piece(5, 0, 1), piece(4, 0, 1), piece(6, 3, 3)):
        assert not arriving.add(old)
    assert not arriving.add(piece(7, 0, 2))
    assert arriving.add(piece(8, 0, 1))
    assert not arriving.add(piece(7, 1, 2))


def test_a_number_of_one_certificate_does_not_hide_anothers() -> None:
    arriving = ArrivingPictures()
    assert arriving.add(piece(9, kind="camera"), "liar")
    assert arriving.add(piece(1, kind="camera"), "robot7")
    assert arriving.shown["robot7", "camera"].origin == "robot7"


def test_pictures_of_many_workers_are_bounded() -> None:
    arriving = ArrivingPictures()
    for number in range(200):
        arriving.add(piece(1, worker=f"w{number}"))
        arriving.add(piece(1, 0, 2, worker=f"x{number}"))
    assert len(arriving.shown) == MAX_SHOWN
    assert len(arriving._parts) == MAX_SHOWN
    assert len(arriving._numbers) == 4 * MAX_SHOWN


def test_each_piece_fits_one_message_and_too_large_a_picture_is_refused() -> None:
    found = pieces("r" * 200, Picture("w" * 300, "video", 1, bytes(MAX_VIDEO_BYTES), "t" * 900))
    assert [one.part for one in found] == list(range(MAX_PIECES))
    assert max(len(encode_body(one)) for one in found) + 8_192 + 64 < 60_000
    with pytest.raises(ValueError, match="at most 500000 are shown"):
        pieces("run", Picture("w", "video", 1, bytes(MAX_VIDEO_BYTES + 1)))
