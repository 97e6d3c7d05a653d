"""Lazy exports of a package, imported at their first use. This module imports nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(
    package: str,
    modules: Mapping[str, str],
    homes: Mapping[str, str] | None = None,
    hidden: Mapping[str, str] | None = None,
    further: Callable[[], Mapping[str, str]] = dict,
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__all__`, `__getattr__` and `__dir__` of a package.

    Without torch, the name of a policy gives its NumPy backend, and other names that need torch name the missing extra.

    Args:
        package: its full name.
        modules: names by the module that defines them, relative to the package.
        homes: modules of further names, by name.
        hidden: as `modules`, of names that are not exported to `import *`.
        further: returns more of these, called for names that the others lack. Such a package leaves `__all__` to
            `__getattr__`.
    """
    places = {**(homes or {}), **{name: module for module, names in modules.items() for name in names.split()}}
    exported = sorted(places)
    places |= {name: module for module, names in (hidden or {}).items() for name in names.split()}

    def load(name: str) -> Any:
        from importlib import import_module

        if name == "__all__":
            return names()
        if name not in places:
            places.update(further())
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f".{places[name]}", package), name)
        except ModuleNotFoundError as exc:
            if exc.name != "torch":
                raise
            if f"Numpy{name}" in places:
                return load(f"Numpy{name}")
            from tmrl_core.errors import MissingExtraError

            raise MissingExtraError("torch", "trainer", f"{package}.{name}") from exc

    def names() -> list[str]:
        return sorted({*exported, *further()})

    return exported, load, names
