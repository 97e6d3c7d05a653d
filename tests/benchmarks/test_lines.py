"""The count of lines: the kind of each line, and the rooms."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from lines import Lines, count, is_in, rows

MODULE = '''
d|"""A module.
b|
d|    Its second paragraph.
d|"""
b|
m|# Alone in a line.
c|limit = 3  # beside code
c|"""An attribute.
c|
c|It is code with the line above.
c|"""
b|
c|class Class:
d|    """A class."""
b|
c|    text = f"""
c|{limit}
c|
c|"""
b|
d|    def one(self): "No other statement."
b|
c|    async def two(self):
m|        # Before the docstring.
d|        """A function."""
c|        return (
c|            1,
b|
c|            2,
c|        )
'''.strip()
"""Each line after its kind: code, docstring, comMent or blank."""


def test_each_line_is_of_one_kind() -> None:
    kinds, lines = zip(*(line.split("|", 1) for line in MODULE.splitlines()), strict=True)
    assert count("\n".join(lines) + "\n") == Lines(*(kinds.count(kind) for kind in "cdmb"))


@pytest.mark.parametrize(
    ("module", "room", "expected"),
    [
        ("gateway/advice/app.py", "gateway", True),
        ("envs/replay.py", "envs/replay*", True),
        ("envs/replay/recorded.py", "envs/replay*", True),
        ("envs/example.py", "envs/replay*", False),
        ("sessions/lerobot/dataset.py", "sessions/lerobot*", True),
        ("training/memories/replay.py", "envs/replay*", False),
        ("gateway_client.py", "gateway", False),
    ],
)
def test_a_room_is_a_folder_or_a_module(module: str, room: str, expected: bool) -> None:
    assert is_in(module, room) is expected


def test_core_and_rooms_add_up_to_the_package() -> None:
    found = {
        name: Lines(code=1)
        for name in ("errors.py", "gateway/app.py", "envs/replay.py", "envs/example.py", "sessions/session.py")
    }
    table = {name: len(parts) for name, parts in rows(found).items() if parts}
    assert table == {
        "the package": 5,
        "the core": 3,
        "all rooms": 2,
        "envs": 2,
        "room gateway": 1,
        "sessions": 1,
        "modules at the top": 1,
        "room envs/replay*": 1,
    }
