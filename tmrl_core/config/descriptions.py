"""Docstrings of constructors, completed with the descriptions of settings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Meta

Class = TypeVar("Class", bound=type[Any])


def described(settings: type[Any]) -> dict[str, tuple[Any, str]]:
    """Return the type and the description of each annotated field of a section or of settings, by name."""
    hints = get_type_hints(settings, include_extras=True)
    found = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {
        name: (kind, str(about[-1].description if isinstance(about[-1], Meta) else about[-1]))
        for name, (kind, *about) in found.items()
    }


def described_by(*sections: type[Any]) -> Callable[[Class], Class]:
    """Describe the parameters of a class's constructor that have the names of keys of these sections."""

    def complete(documented: Class) -> Class:
        parameters = inspect.signature(documented).parameters
        meanings = {name: text for one in sections for name, (_, text) in described(one).items()}
        texts = {name: re.sub(r"\bnull\b", "None", meanings[name]) for name in parameters if name in meanings}
        return add_descriptions(documented, texts)

    return complete


def add_descriptions(documented: Class, texts: Mapping[str, str]) -> Class:
    """Add parameters to the end of the `Args:` of a class's docstring, except the documented ones."""
    doc = documented.__doc__
    if doc is not None:  # with -OO, docstrings do not exist
        text = ""
        for name, meaning in texts.items():
            if f"\n        {name}: " not in doc:
                line = f"{name}: {meaning}" if meaning.endswith(".") else f"{name}: {meaning}."
                text += textwrap.fill(line, 120, initial_indent="\n        ", subsequent_indent=" " * 12)
        arguments = re.search(r"\n    Args:(\n {8}.*)*", doc)
        if text and arguments is None:
            text = f"\n\n    Args:{text}"
            arguments = re.search(r"[^\n](?=\n\n    Raises:|\s*\Z)", doc)
        if arguments is not None:
            documented.__doc__ = doc[: arguments.end()] + text + doc[arguments.end() :]
    return documented
