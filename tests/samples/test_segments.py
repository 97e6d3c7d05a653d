"""Segments and episode records as MessagePack."""

from __future__ import annotations

import msgspec
import pytest

from tmrl_core.samples.segments import EpisodeRecord, Segment

RECORD = EpisodeRecord("left", -12.5, 200, "train", "truncated", 3, (1, 7), 42, 5, "robot7")


def test_a_record_comes_back() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(RECORD), type=EpisodeRecord) == RECORD


def test_a_record_without_its_newer_fields_is_understood() -> None:
    short = msgspec.msgpack.encode(["", 1.0, 2, "test", "terminated"])
    assert msgspec.msgpack.decode(short, type=EpisodeRecord) == EpisodeRecord("", 1.0, 2, "test", "terminated")


@pytest.mark.parametrize(
    "fields",
    [
        ["", 1.0, -1, "train", "terminated"],
        ["", 1.0, 1, "play", "terminated"],
        ["", 1.0, 1, "train", "finished"],
        ["", "1.0", 1, "train", "terminated"],
        ["", 1.0, 1, "train", "terminated", 0, [0, -1]],
        ["", 1.0, 2**63, "train", "terminated"],
    ],
)
def test_records_that_cannot_be_are_refused(fields: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=EpisodeRecord)


def test_a_segment_knows_its_version() -> None:
    segment = Segment(3, 1, 0, 2, 9)
    assert segment.version == (2, 9)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(segment), type=Segment) == segment


def test_records_of_peers_without_metrics_are_read_and_too_many_are_refused() -> None:
    record = msgspec.structs.replace(RECORD, metrics={"is_success": 1.0})
    encoded = msgspec.msgpack.encode(record)
    assert msgspec.msgpack.decode(encoded, type=EpisodeRecord) == record
    before = msgspec.msgpack.decode(encoded)[:-1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=EpisodeRecord) == RECORD
    for metrics in ({str(number): 0.0 for number in range(33)}, {"x" * 101: 0.0}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode([*before, metrics]), type=EpisodeRecord)
