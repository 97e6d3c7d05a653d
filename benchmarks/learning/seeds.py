"""The seeds of every learning curve, fixed before the first run of a comparison.

Both sides play all of them for each task, and a table has all of them. Seeds are never added after a result was seen:
choosing how many to play by how the row looks favours one side. A comparison with other seeds changes this file first,
in a commit of its own, and writes into a new folder.
"""

from __future__ import annotations

SEEDS = tuple(range(10))
"""Of each side and task."""
