from __future__ import annotations

import numpy as np

from tmrl_core.training.memories.row_table import RowTable


def test_addresses_equal_a_slow_search_while_records_change() -> None:
    generator = np.random.default_rng(0)
    table = RowTable()
    records: list[tuple[int, int, int]] = []  # first row, rows, address of the first
    row = 0
    for step in range(2000):
        rows = int(generator.integers(1, 6))
        address = int(generator.integers(0, 2**40))
        table.add(row, address - row * 3)
        records.append((row, rows, address))
        row += rows
        if step % 97 == 96:
            cut = records[len(records) // 2][0]
            table.drop_before(cut)
            records = [record for record in records if record[0] >= cut]
        assert len(table) == len(records)
    index = generator.integers(records[0][0], row, 500)
    expected = [
        next(at + 3 * (i - first) for first, rows, at in records if first <= i < first + rows) for i in index.tolist()
    ]
    assert table.addresses(index, 3).tolist() == expected
    table.clear()
    assert len(table) == 0
