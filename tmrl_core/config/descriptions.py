"""Descriptions of settings: the text behind each key in the source, and docstrings that are completed with them.

Texts behind assignments exist in the source only, and parsing it takes 20 ms. So it is parsed when somebody asks for a
description: for `help()`, the JSON Schema or the documentation, and never at the start of a role.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

Class = TypeVar("Class", bound=type[Any])


@functools.cache
def _texts_in(module: str) -> dict[str, dict[str, str]]:
    """Return the texts behind the annotated fields of a module's classes; empty where the source is not installed."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for kind in (one for one in tree.body if isinstance(one, ast.ClassDef)):
        for field, text in itertools.pairwise(kind.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found.setdefault(kind.name, {})[name] = " ".join(words.split())
    return found


def texts_of(section: type[Any]) -> dict[str, str]:
    """Return the texts behind the keys of a section and of its base classes, by key."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        found |= _texts_in(kind.__module__).get(kind.__name__, {})
    return found


def described(settings: type[Any]) -> dict[str, tuple[Any, str]]:
    """Return the type and the description of each field of a section or of settings that has one, by name.

    The description is the last entry of an annotation; in sections it may stand behind the field instead.
    """
    texts = texts_of(settings) if issubclass(settings, msgspec.Struct) else {}
    found = {}
    for name, hint in get_type_hints(settings, include_extras=True).items():
        kind, *about = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        last = about[-1] if about else None
        text = texts.get(name) or (last.description if isinstance(last, Meta) else last)
        if text is not None:
            found[name] = kind, str(text)
    return found


class _CompletedDoc:
    """A class's docstring that is completed when it is read."""

    def __init__(self, complete: Callable[[], str]) -> None:
        self._complete = functools.cache(complete)

    def __get__(self, instance: object, owner: type[Any]) -> str:
        return self._complete()


def described_by(*sections: type[Any]) -> Callable[[Class], Class]:
    """Describe the parameters of a class's constructor that have the names of keys of these sections."""

    def complete(documented: Class) -> Class:
        doc = documented.__doc__

        def completed() -> str:
            parameters = inspect.signature(documented).parameters
            meanings = {name: text for one in sections for name, (_, text) in described(one).items()}
            texts = {name: re.sub(r"\bnull\b", "None", meanings[name]) for name in parameters if name in meanings}
            return with_descriptions(str(doc), texts)

        if doc is not None:  # with -OO, docstrings do not exist
            documented.__doc__ = _CompletedDoc(completed)  # type: ignore[assignment]  # a descriptor, read as a text
        return documented

    return complete


def add_descriptions(documented: Class, texts: Mapping[str, str]) -> Class:
    """Add parameters to the end of the `Args:` of a class's docstring, except the documented ones."""
    if documented.__doc__ is not None:  # with -OO, docstrings do not exist
        documented.__doc__ = with_descriptions(documented.__doc__, texts)
    return documented


def with_descriptions(doc: str, texts: Mapping[str, str]) -> str:
    """Return a docstring with further parameters at the end of its `Args:`, except those that it has.

    Its lines lose the indentation that they share, as Python 3.13 and newer do with each docstring.
    """
    doc, text = inspect.cleandoc(doc), ""
    for name, meaning in texts.items():
        if f"\n    {name}: " not in doc:
            line = f"{name}: {meaning}" if meaning.endswith(".") else f"{name}: {meaning}."
            text += textwrap.fill(line, 116, initial_indent="\n    ", subsequent_indent=" " * 8)
    arguments = re.search(r"\nArgs:(\n {4}.*)*", doc)
    if text and arguments is None:
        text = f"\n\nArgs:{text}"
        arguments = re.search(r"[^\n](?=\n\nRaises:|\s*\Z)", doc)
    return doc if arguments is None else doc[: arguments.end()] + text + doc[arguments.end() :]
