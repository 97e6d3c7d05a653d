"""`package.module:Name` to the object of that name."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tmrl_core.config.hints import misfits
from tmrl_core.errors import ConfigError


def resolve(reference: str, key: str = "") -> Any:
    """The object that a reference `package.module:Name` names; `Name` may have dots.

    Modules are found as Python finds them; the command line also puts the configuration file's folder on `sys.path`.

    Args:
        reference: the reference.
        key: path of the key that holds it, for error messages.

    Raises:
        ConfigError: no such module or name, with near misses; or the text is no reference.
        ImportError: the module exists, and what it imports does not; or its own code raised.
    """
    label = f"{key}: {reference!r}" if key else repr(reference)
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(
            f"{label} is no reference; write package.module:Name, for example tmrl_core.envs:GenericGymEnv"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        # Only the module itself, or a package on the way to it: what it imports in turn is not a wrong reference.
        if exc.name is not None and (module_name == exc.name or module_name.startswith(exc.name + ".")):
            raise ConfigError(
                f"{label}: there is no module {exc.name!r}. Install it, or run where Python finds it "
                "(the current folder and the configuration file's folder are searched)."
            ) from exc
        raise
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            matches = difflib.get_close_matches(part, public_names(found), n=3)
            hint = f" Did you mean {' or '.join(matches)}?" if matches else ""
            raise ConfigError(f"{label}: {module_name!r} has no {part!r}.{hint}") from exc
    return found


def public_names(found: Any) -> list[str]:
    """Names without a leading underscore, those of lazy packages included."""
    return sorted({*dir(found), *getattr(found, "__all__", ())} - {n for n in dir(found) if n.startswith("_")})


def resolve_with(reference: str, kwargs: Mapping[str, Any], key: str = "") -> Any:
    """The callable that a reference names, with keyword arguments bound when there are any.

    Raises:
        ConfigError: as `resolve`; or the object cannot be called.
    """
    found = resolve(reference, key)
    if not callable(found):
        raise ConfigError(
            f"{key + ': ' if key else ''}{reference!r} is a {type(found).__name__}, which cannot be called"
        )
    check_kwargs(found, kwargs, key.removesuffix("cls") + "kwargs" if key.endswith(".cls") else key)
    return functools.partial(found, **kwargs) if kwargs else found


def check_kwargs(found: Any, kwargs: Mapping[str, Any], key: str = "") -> None:
    """See that a callable takes these keyword arguments, where Python knows what it takes.

    Of the project's own callables the values are looked at too; what others name is for those who read it.

    Raises:
        ConfigError: it does not; names those that it takes.
    """
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return
    try:
        signature.bind_partial(**kwargs)
    except TypeError as exc:
        name = getattr(found, "__name__", repr(found))
        raise ConfigError(f"{key}: {exc}. {name} takes {', '.join(signature.parameters) or 'none'}.") from exc
    if str(getattr(found, "__module__", "")).startswith("tmrl_core."):
        problems = [f"{key}.{problem}" for problem in misfits(found, kwargs)]
        if problems:
            raise ConfigError("\n".join(problems))


def resolve_optional(reference: str | None, key: str = "") -> Any:
    """The object that a reference names, or None for None.

    Raises:
        ConfigError: as `resolve`.
    """
    return None if reference is None else resolve(reference, key)


def _environment(made: Any, reference: str) -> Any:
    """What was made, where it is an environment.

    Raises:
        ConfigError: it lacks what Gymnasium's environments have.
    """
    lacking = [
        name for name in ("action_space", "close", "observation_space", "reset", "step") if not hasattr(made, name)
    ]
    if lacking:
        raise ConfigError(
            f"environment.cls: {reference!r} made a {type(made).__name__}, which is no environment: it lacks "
            f"{', '.join(lacking)}. Allowed: what makes a gymnasium.Env, or has all of these as one has."
        )
    return made


def environment_maker(reference: str, kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes the environment; it raises ConfigError for an id that Gymnasium does not know, or cannot make here.

    Raises:
        ConfigError: the reference names nothing, or does not take these keyword arguments; or, when it is called, what
            it makes is no environment.
    """
    make = resolve_with(reference, kwargs, "environment.cls")

    def make_environment() -> Any:
        import gymnasium

        errors = gymnasium.error
        try:
            return _environment(make(), reference)
        except errors.Error as exc:
            raise ConfigError(f"environment.kwargs: {exc}") from exc
        except TypeError as exc:
            # Gymnasium's own words for keyword arguments that an environment does not take.
            if "unexpected keyword argument" in str(exc) and "raised from the environment creator" in str(exc):
                raise ConfigError(f"environment.kwargs: {exc}") from exc
            raise
        except ModuleNotFoundError as exc:
            # Of `module:Name-v0`; what that module itself lacks is for who wrote it, with its traceback.
            module, colon, _ = str(kwargs.get("id", "")).partition(":")
            missing = getattr(exc.__cause__, "name", None)
            if colon and missing and f"{module}.".startswith(f"{missing}."):
                raise ConfigError(f"environment.kwargs.id: {exc}") from exc
            raise

    return make_environment
