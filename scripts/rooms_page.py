"""Write docs/rooms.md, the index of the pages that live with their rooms.

    python scripts/rooms_page.py            write it
    python scripts/rooms_page.py --check    check that it is up to date (exit status 1: it is not)

A room is a part of the package that can be deleted, and its pages are the `*.md` in its folder. Other documents link
to this index and never into a room, so that deleting a room and running this script leaves no dead link. Needs only the
standard library.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rooms.md"

HEAD = """\
# Rooms

<!-- Written by scripts/rooms_page.py from the pages of the rooms. Change those, not this page. -->

A *room* is a part of the package that can be deleted: the rest still works, and a configuration that names a missing
room gets an error that says so. The code, the configuration keys and the pages of a room are in its folder. This page
lists the rooms of this copy.

| page | folder | content |
| --- | --- | --- |
"""


def room_pages() -> list[Path]:
    """Return the pages of rooms, in order of their paths."""
    return sorted((ROOT / "tmrl_core").rglob("*.md"))


def page() -> str:
    """Return the index."""
    return HEAD + "".join(map(row, room_pages()))


def row(path: Path) -> str:
    """Return the row of a room's page: its heading, and the first sentence below."""
    text = path.read_text(encoding="utf-8")
    found = re.match(r"# ([^\n]+)\n\n(.+?)(?:\n\n|\Z)", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"error: {path} does not begin with a heading and a paragraph")
    title, paragraph = found.groups()
    # Links of the page are relative to its folder, and this index needs their texts only.
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    sentence = re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(":")
    folder, name = path.parent.relative_to(ROOT).as_posix(), path.name
    return f"| [{title}](../{folder}/{name}) | `{folder}/` | {sentence.rstrip('.')} |\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="check that the page is up to date")
    options = parser.parse_args(arguments)
    text = page()
    if not options.check:
        PAGE.write_text(text, encoding="utf-8", newline="\n")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is not up to date; run python scripts/rooms_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
