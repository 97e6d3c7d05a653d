"""Texts that others choose."""

from __future__ import annotations

from tmrl_core.bounded_texts import BoundedTexts


def test_one_source_leaves_room_for_others() -> None:
    texts = BoundedTexts(most=10, most_each=4)
    assert sum(texts.keep(f"thief {number}", "thief") is not None for number in range(100)) == 4
    assert texts.keep("thief 3", "thief") == "thief 3"
    assert texts.keep("cost", "honest") == "cost"
    assert texts.keep("cost", "thief") == "cost", "all may use what is kept"
    assert sum(texts.keep(f"text {number}", f"source {number}") is not None for number in range(100)) == 5


def test_equal_texts_are_one_object() -> None:
    texts = BoundedTexts(most=10, most_each=4)
    first, second = ("".join(["a", "b"]) for _ in range(2))
    assert texts.keep(first, "a") is texts.keep(second, "b")
