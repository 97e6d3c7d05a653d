from __future__ import annotations

from pathlib import Path

import numpy as np

from tmrl_core.storage import RecordLog
from tmrl_core.training.memories.mapped_files import MappedFiles, Segment, address
from tmrl_core.training.memories.row_table import RowTable


def test_elements_of_two_sizes_are_read_from_growing_files(tmp_path: Path) -> None:
    log = RecordLog(tmp_path, "things", segment_bytes=300)
    files = MappedFiles(log)
    tables = {8: RowTable(), 24: RowTable()}
    written = {8: 0, 24: 0}
    generator = np.random.default_rng(0)
    for _ in range(40):
        parts = []
        for size in tables:
            count = int(generator.integers(0, 4))
            numbers = np.arange(written[size], written[size] + count, dtype=np.int64)
            parts.append((size, np.repeat(numbers[:, None], size // 8, axis=1)))
        place = log.append(b"note", [values.data for _, values in parts])
        files.segments.setdefault(place.number, Segment(0)).end = place.end
        offset = place.payload_offset
        for size, values in parts:
            if len(values):
                first = written[size]
                tables[size].add(first, address(place.number, offset) - first * (size // 8))
                written[size] += len(values)
            offset += values.nbytes
        for size, table in tables.items():
            if written[size]:
                sought = generator.integers(0, written[size], 30)
                found = files.elements(table, size, sought)
                assert found.shape == (30, size)
                assert (found.view(np.int64) == sought[:, None]).all()
    assert len(files.segments) > 3
    for segment in files.segments.values():
        segment.close()
        assert segment.reader is None
    log.close()
