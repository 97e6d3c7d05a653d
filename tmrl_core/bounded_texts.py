"""Texts that others choose, in a bounded number. Nothing is forgotten, because what they name lasts as long."""

from __future__ import annotations

from collections import Counter


class BoundedTexts:
    """Keep the first different texts of each source, and leave room for those of others.

    Args:
        most: maximum number of texts in all.
        most_each: maximum number of texts that one source introduces. All sources may use texts that are kept.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._texts: dict[str, str] = {}
        self._introduced: Counter[str] = Counter()

    def keep(self, text: str, source: str) -> str | None:
        """Return the kept text that equals `text`; None: there is no room for it."""
        if text not in self._texts:
            if len(self._texts) >= self._most or self._introduced[source] >= self._most_each:
                return None
            self._introduced[source] += 1
        return self._texts.setdefault(text, text)
