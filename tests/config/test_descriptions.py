from __future__ import annotations

from typing import Annotated

import pytest

from tmrl_core.config.descriptions import add_descriptions, described, described_by
from tmrl_core.config.sections import Positive, Section, doc


class Parts(Section, frozen=True, kw_only=True):
    size: Annotated[Positive | None, doc("Number of parts. null: all of them, ...")] = None
    color: Annotated[Positive, doc("color of a part")] = 1
    other: Annotated[int, doc("not a parameter")] = 1
    weight: Positive = 1
    """Weight of a part, in
    grams."""


class HeavyParts(Parts, frozen=True, kw_only=True):
    limit: int | None = None
    """Maximum weight."""


@described_by(Parts)
class Machine:
    """A machine.

    Args:
        color: said here.

    Raises:
        ValueError: never.
    """

    def __init__(self, size: int | None, color: int) -> None:
        self.size, self.color = size, color


def test_parameters_get_the_descriptions_of_keys_unless_they_have_one() -> None:
    text = Machine.__doc__ or ""
    arguments = text[text.index("Args:") : text.index("Raises:")].split("\n    ")
    assert [line.strip() for line in arguments[1:]] == [
        "color: said here.",
        "size: Number of parts. None: all of them, ...",
    ]


def test_the_type_of_a_field_comes_without_its_limits() -> None:
    assert described(Parts)["color"] == (int, "color of a part")


def test_the_text_behind_a_field_describes_it_in_derived_sections_too() -> None:
    found = described(HeavyParts)
    assert found["weight"] == (int, "Weight of a part, in grams.")
    assert found["limit"][1] == "Maximum weight."


@pytest.mark.parametrize(
    ("written", "completed"),
    [
        ("One line.", "One line.\n\nArgs:\n    size: Size in bytes.\n"),
        (
            "One line.\n\n    Args:\n        other: it.\n    ",
            "One line.\n\nArgs:\n    other: it.\n    size: Size in bytes.\n",
        ),
        (
            "One line.\n\n    Raises:\n        ValueError: so.\n    ",
            "One line.\n\nArgs:\n    size: Size in bytes.\n\nRaises:",
        ),
        (
            "As Python 3.13 compiles it.\n\nArgs:\n    other: it.\n",
            "As Python 3.13 compiles it.\n\nArgs:\n    other: it.\n    size: Size in bytes.\n",
        ),
    ],
)
def test_descriptions_are_added_whichever_sections_a_docstring_has(written: str, completed: str) -> None:
    documented = add_descriptions(type("Described", (), {"__doc__": written}), {"size": "Size in bytes."})
    assert documented.__doc__ is not None
    assert f"{documented.__doc__}\n".startswith(completed)
