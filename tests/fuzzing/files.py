"""What is read from a disk that somebody else may have written to: records, replay rows, checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target
from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.samples import encode_value
from tmrl_core.storage import RecordLog
from tmrl_core.storage.format import head_bytes, parse_head, record_buffers, scan
from tmrl_core.training.checkpoints.checked_files import parse_safetensors, safetensors_bytes
from tmrl_core.training.memories.row_files import FORMAT_NAME, RowFormat, parse_rows_note, read_segment, rows_note

_RECORD = struct.Struct("<4sIQII")
_HEAD = struct.Struct("<8sII")


def scratch() -> Path:
    """A folder of this process, in memory where there is such a file system."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None))


def mend(data: bytes) -> bytes:
    """The same file of records with checksums that are right, as far as its lengths can be followed.

    Without it, a checksum would end nearly every case before it has begun.
    """
    mended = bytearray(data)
    if len(mended) < _HEAD.size:
        return data
    magic, length, _ = _HEAD.unpack_from(mended)
    end = _HEAD.size + length
    if end > len(mended):
        return data
    _HEAD.pack_into(mended, 0, magic, length, zlib.crc32(mended[_HEAD.size : end]))
    at = end + -end % 8
    while at + _RECORD.size <= len(mended):
        magic4, note_bytes, payload_bytes, _, _ = _RECORD.unpack_from(mended, at)
        note_end = at + _RECORD.size + note_bytes
        payload = note_end + -note_bytes % 8
        end = payload + payload_bytes
        if magic4 != b"REC1" or end > len(mended):
            break
        _RECORD.pack_into(mended, at, magic4, note_bytes, payload_bytes, zlib.crc32(mended[payload:end]), 0)
        fields = bytes(mended[at : at + _RECORD.size - 4])
        crc = zlib.crc32(mended[at + _RECORD.size : note_end], zlib.crc32(fields))
        struct.pack_into("<I", mended, at + _RECORD.size - 4, crc)
        at = end + -end % 8
    return bytes(mended)


def file_of(description: Any, records: list[tuple[bytes, bytes]], name: str = FORMAT_NAME) -> bytes:
    """A file of records."""
    parts: list[Any] = [head_bytes(name, description)]
    for note, payload in records:
        parts += record_buffers(note, [payload])[0]
    return b"".join(parts)


ROWS = RowFormat(("<f4", "|u1", "<i8"), (3, 1, 2))


def _seeds() -> list[bytes]:
    size = ROWS.row_bytes
    note = encode_value({"marks": {b"s" * 16: [3, 100]}})
    whole = [(rows_note(4 * i, 4, note if i == 2 else b""), bytes(range(256))[:size] * 4) for i in range(3)]
    return [
        file_of(ROWS.describe(), whole),
        file_of(ROWS.describe(), [(rows_note(0, 0), b"")]),
        file_of({"dtypes": [], "widths": []}, [(rows_note(0, 5), b"")]),
        file_of({"version": 1}, [(b"first", b""), (b"note", b"payload" * 9)], "spool"),
    ]


def _description(mutator: Mutator) -> Any:
    """Of rows that cannot be, mostly."""
    dtypes = [
        "<f4",
        "|u1",
        "<i8",
        "|O",
        "<M8[s]",
        "<U9999",
        "|S0",
        "|V7",
        "<f2",
        "f4,f4",
        ">f8",
        "(3,)<f4",
        "|b1",
        "<c16",
    ]
    made: dict[str, Any] = {
        "dtypes": [mutator.pick(dtypes) for _ in range(mutator.below(4))],
        "widths": [mutator.pick((0, 1, 3, -1, 1 << 31, 1 << 62, 1.5, "2")) for _ in range(mutator.below(4))],
    }
    if mutator.chance(3):
        made[mutator.pick(("dtypes", "widths"))] = mutator.pick((None, 3, "f4", {"a": 1}, [[1]], [None], [{}]))
    return made if mutator.random() < 0.9 else mutator.pick((None, [], 3, "text", {"dtypes": ["<f4"]}))


class Segments(Target):
    """Files of records: as bytes, as replay rows, and as a log that is opened."""

    name = "segments"
    allowed = (CheckpointError, StorageError)

    def __init__(self) -> None:
        self._seeds = _seeds()
        self._folder = scratch()

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def make(self, mutator: Mutator) -> bytes:
        how = bytes([mutator.below(256)])
        kind = mutator.random()
        if kind < 0.03:
            return how + mutator.bytes(mutator.below(300))
        if kind < 0.2:
            return how + mutator.mutate(mutator.pick(self._seeds), self._seeds)
        if kind < 0.35:
            note, payload = rows_note(mutator.extreme() & (1 << 64) - 1, mutator.below(6)), bytes(32 * mutator.below(6))
            return how + file_of(_description(mutator), [(note, payload), (mutator.bytes(5), b"")])
        if kind < 0.4:
            depth = "[" * mutator.below(4000)
            text = json.dumps({"format": FORMAT_NAME, "description": 0})[:-2].encode() + depth.encode()
            return how + mend(_HEAD.pack(b"TMRLREC1", len(text), 0) + text + bytes(-len(text) % 8))
        return how + mend(mutator.mutate(mutator.pick(self._seeds), self._seeds))

    def run(self, case: bytes) -> None:
        how, data = case[0] if case else 0, case[1:]
        if how < 8:
            self._open_log(data)
        elif how < 32:
            path = self._folder / "rows.seg"
            path.write_bytes(data)
            segment = read_segment(path, limit_bytes=None if how & 1 else len(data) // 2)
            assert segment.good_bytes + segment.torn_bytes <= len(data)
            for record in segment.records:
                for array in record.arrays:
                    assert len(array) == record.rows
                    array.tobytes()
        else:
            view = memoryview(data)
            name, description, start = parse_head(view, "case")
            end = start
            for found in scan(view, start, bool(how & 1)):
                assert start <= found.offset == end < found.end <= len(data)
                end = found.end
            if name == FORMAT_NAME:
                self._rows(RowFormat.from_description(description, "case"), view, start)

    def _rows(self, row_format: RowFormat, view: memoryview, start: int) -> None:
        for record in scan(view, start, True):
            _, rows, _ = parse_rows_note(record.note)
            if len(record.payload) == rows * row_format.row_bytes:
                values = np.frombuffer(record.payload, np.uint8).reshape(rows, row_format.row_bytes)
                for array in row_format.columns(values):
                    array.tobytes()

    def _open_log(self, data: bytes) -> None:
        folder = self._folder / "log"
        folder.mkdir()
        try:
            (folder / "000000000001.seg").write_bytes(data)
            log = RecordLog(folder, FORMAT_NAME, {"version": 1})
            before = [(bytes(record.note), bytes(record.payload)) for _, record in log.records()]
            log.append(b"one more", [b"payload"])
            log.close()
            again = RecordLog(folder, FORMAT_NAME)
            assert again.torn_bytes == 0
            after = [(bytes(record.note), bytes(record.payload)) for _, record in again.records()]
            again.close()
            assert after == [*before, (b"one more", b"payload")]
        finally:
            shutil.rmtree(folder)

    def limit_bytes(self, case: bytes) -> int:
        return 100 * len(case) + (1 << 20)


class _Small:
    """As little of a training object as a checkpoint needs."""

    def __init__(self) -> None:
        self.epoch = 3
        self.weights = np.arange(6, dtype=np.float32).reshape(2, 3)
        self.delivery = {"incarnation": 1, "marks": {b"s" * 16: (3, 100)}}
        self.names = ["a", "b"]


class Checkpoints(Target):
    """Folders of checkpoints: arrays, state, manifest and rows."""

    name = "checkpoints"
    allowed = (CheckpointError,)

    def __init__(self) -> None:
        from tmrl_core.training.checkpoints.checkpoint_folder import load_training, save_training

        pass
        self._load = load_training
        arrays: dict[str, Any] = {
            "a": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.zeros(0, np.int64),
            "c": np.array(True),
        }
        self._arrays = [safetensors_bytes(arrays)]
        self._folder = scratch()
        folder = self._folder / "checkpoint"
        save_training(_Small(), folder)
        body = json.loads((folder / "manifest.json").read_bytes())["body"]
        rows = _seeds()[0]
        entry = {"file": "rows.seg", "bytes": len(rows), "stop": 12}
        body["rows"] = {"memory": {"start": 2, "stop": 12, **ROWS.describe(), "segments": [entry]}}
        self._body = json.dumps(body).encode()
        self._state = (folder / "state.json").read_bytes()
        self._saved = (folder / "arrays.safetensors").read_bytes()
        (folder / "rows.seg").write_bytes(rows)
        self._files = {"1": self._body, "2": self._state, "3": self._saved, "4": rows}
        self._path = folder

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def make(self, mutator: Mutator) -> bytes:
        if mutator.random() < 0.85:
            if mutator.chance(30):
                return b"0" + mutator.bytes(mutator.below(200))
            if mutator.chance(2):
                return b"0" + self._header(mutator)
            return b"0" + mutator.mutate(self._arrays[0])
        which = mutator.pick("1234")
        changed = mutator.mutate(self._files[which])
        if which in "12" and mutator.random() < 0.8:
            changed = json.dumps(_changed(json.loads(self._files[which]), mutator)).encode()
        return bytes(which.encode()) + (mend(changed) if which == "4" else changed)

    def _header(self, mutator: Mutator) -> bytes:
        """Arrays whose sizes contradict each other."""
        entry: Any = {
            "dtype": mutator.pick(("F32", "I64", "BOOL", "F64", "U8", "BF16", 3)),
            "shape": [mutator.pick((0, 1, 2, 3, -1, 1 << 31, 1 << 62, 1.5)) for _ in range(mutator.below(4))],
            "data_offsets": [mutator.extreme() if mutator.chance(3) else mutator.below(40) for _ in range(2)],
        }
        if mutator.chance(4):
            entry[mutator.pick(list(entry))] = mutator.pick((None, "x", [], [1], [0, -8], {}, 1e300))
        text = json.dumps({"a": entry} if mutator.random() < 0.9 else mutator.pick(([], 3, {"a": 3}, None))).encode()
        if mutator.chance(10):
            text = b"[" * mutator.below(5000)
        length = mutator.extreme() & (1 << 64) - 1 if mutator.chance(10) else len(text)
        return length.to_bytes(8, "little") + text + bytes(mutator.below(64))

    def run(self, case: bytes) -> None:
        which, data = case[:1], case[1:]
        if which not in (b"1", b"2", b"3", b"4"):
            for array in parse_safetensors(data, Path("case")).values():
                assert array.nbytes <= len(data)
                array.tobytes()
            return
        files = {**self._files, which.decode(): data}
        body = files["1"]
        if which in (b"2", b"3"):
            described = json.loads(body)
            name = "state.json" if which == b"2" else "arrays.safetensors"
            described["files"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
            body = json.dumps(described).encode()
        try:
            # As `write_manifest` does, for a body that may be no JSON.
            crc = zlib.crc32(json.dumps(json.loads(body), sort_keys=True).encode())
        except (ValueError, RecursionError):
            crc = 0
        (self._path / "manifest.json").write_bytes(b'{"body": %s, "crc32": %d}' % (body, crc))
        (self._path / "state.json").write_bytes(files["2"])
        (self._path / "arrays.safetensors").write_bytes(files["3"])
        (self._path / "rows.seg").write_bytes(files["4"])
        self._load(_Small(), self._path)

    def limit_bytes(self, case: bytes) -> int:
        return 100 * len(case) + (1 << 20)


def _changed(value: Any, mutator: Mutator) -> Any:
    """A JSON value with something in it replaced."""
    if not value or not isinstance(value, dict | list) or mutator.chance(6):
        return mutator.pick((None, True, -1, 0, 1 << 63, 1 << 70, 1.5, "x", "../../etc/passwd", [], {}, [[]], [None]))
    if isinstance(value, list):
        at = mutator.below(len(value))
        return [_changed(item, mutator) if i == at else item for i, item in enumerate(value)]
    key = mutator.pick(list(value))
    if mutator.chance(8):
        return {name: item for name, item in value.items() if name != key}
    return {name: _changed(item, mutator) if name == key else item for name, item in value.items()}
