"""Changing valid inputs a little, so that they get far before they turn out to be wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

EXTREMES: tuple[int, ...] = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    1 << 16,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
    1 << 32,
    1 << 40,
)
EXTREMES += ((1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
"""Where lengths, counts and positions go wrong."""
MOST_BYTES = 60_000
"""Longer cases are cut: what they would find, shorter ones do."""


class Mutator:
    """A seeded source of changes.

    Args:
        seed: everything follows from it.
    """

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)
        self.random = self._random.random
        self.bytes = self._random.randbytes
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._flip,
            self._flip,
            self._byte,
            self._byte,
            self._number,
            self._number,
            self._step,
            self._cut_out,
            self._double,
            self._insert,
            self._truncate,
            self._swap,
        )

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1."""
        return int(self.random() * n)

    def chance(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.random() * one_in < 1

    def pick(self, items: Sequence[Any]) -> Any:
        """One of them."""
        return items[int(self.random() * len(items))]

    def extreme(self) -> int:
        """A number at or beside a limit."""
        number = EXTREMES[int(self.random() * len(EXTREMES))]
        return number if self.random() < 0.7 else max(0, number + int(self.random() * 5) - 2)

    def few(self) -> int:
        """1, seldom 2, more seldom 3, ..."""
        n = 1
        while n < 8 and self.random() < 0.4:
            n += 1
        return n

    def mutate(self, data: bytes | bytearray, others: Sequence[bytes] = ()) -> bytes:
        """`data` changed in a few places, perhaps joined with a piece of another input."""
        changed = bytearray(data)
        for _ in range(self.few()):
            self._changes[int(self.random() * 13)](changed)
        if others and self.random() < 0.1:
            other = others[int(self.random() * len(others))]
            at = self.below(len(changed) + 1)
            changed[at:] = other[self.below(len(other) + 1) :]
        return bytes(changed[:MOST_BYTES])

    def items(self, given: Sequence[Any]) -> list[Any]:
        """The same items with some left out, doubled or in another order."""
        changed = list(given)
        for _ in range(self.few() - 1):
            if not changed:
                break
            at, kind = self.below(len(changed)), self.below(3)
            if kind == 0:
                del changed[at]
            elif kind == 1:
                changed.insert(self.below(len(changed) + 1), changed[at])
            else:
                other = self.below(len(changed))
                changed[at], changed[other] = changed[other], changed[at]
        return changed

    def value(self, depth: int = 0) -> Any:
        """Something that MessagePack, JSON or YAML can hold, if they can."""
        kind = self.below(9 if depth < 3 else 7)
        if kind == 0:
            return self.extreme()
        if kind == 1:
            return -self.extreme() if self.random() < 0.5 else self.random() * 10.0 ** self.below(300)
        if kind == 2:
            return self.pick((None, True, False, float("inf"), float("-inf"), float("nan"), -0.0, 5e-324))
        if kind == 3:
            return self.bytes(self.below(40))
        if kind == 4:
            return self.pick(
                ("", "a", "worker", "trainer", "x" * 300, "\x00", "\u2028", "é" * 10, "../../etc", "1e999")
            )
        if kind in (5, 6):
            return self.below(300)
        if kind == 7:
            return [self.value(depth + 1) for _ in range(self.below(4))]
        return {self.pick(("a", "b", "type", "", "1")): self.value(depth + 1) for _ in range(self.below(4))}

    # --- one change, in place ---

    def _flip(self, data: bytearray) -> None:
        if data:
            at = int(self.random() * len(data) * 8)
            data[at >> 3] ^= 1 << (at & 7)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self.below(len(data))] = self.below(256)

    def _number(self, data: bytearray) -> None:
        width = (1, 2, 4, 8)[self.below(4)]
        if len(data) >= width:
            at = self.below(len(data) - width + 1)
            number = self.extreme() & ((1 << 8 * width) - 1)
            data[at : at + width] = number.to_bytes(width, "little" if self.random() < 0.6 else "big")

    def _step(self, data: bytearray) -> None:
        if data:
            at = self.below(len(data))
            data[at] = (data[at] + self.below(9) - 4) & 0xFF

    def _piece(self, data: bytearray) -> tuple[int, int]:
        at = self.below(len(data) + 1)
        return at, min(len(data), at + 1 + self.below(1 << self.below(8)))

    def _cut_out(self, data: bytearray) -> None:
        at, end = self._piece(data)
        del data[at:end]

    def _double(self, data: bytearray) -> None:
        at, end = self._piece(data)
        data[at:at] = data[at:end]

    def _insert(self, data: bytearray) -> None:
        at = self.below(len(data) + 1)
        data[at:at] = self.bytes(1 + self.below(16)) if self.random() < 0.7 else bytes([self.below(256)]) * 40

    def _truncate(self, data: bytearray) -> None:
        del data[self.below(len(data) + 1) :]

    def _swap(self, data: bytearray) -> None:
        if len(data) > 1:
            a, b = self.below(len(data)), self.below(len(data))
            data[a], data[b] = data[b], data[a]
