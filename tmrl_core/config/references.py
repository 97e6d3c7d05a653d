"""Resolution of references `package.module:Name` to objects."""

# Theory of operation
#
# This file turns `package.module:Name` into an object, and the errors of other people's code into sentences. It knows
# nothing of what an environment, an agent or a memory is, apart from the call that makes an environment. It keeps no
# state; Python's own table of modules is the only cache.
#
# There are two ways to follow a reference. `resolve` imports it, which runs its code; roles use it for what they are
# about to call. `locate` finds it by reading files only, for the doctor, which must not run what a configuration of
# somebody else names: it searches the paths as Python would, parses the source, and looks for the name among those that
# the file binds. Where only running would tell (`from x import *`, a module's `__getattr__`, a compiled module), it
# accepts the name.
#
# A failed import has four meanings, and the message must not mix them up. The module does not exist: the reference is
# wrong, and similar names help. The module exists and imports a package that is missing: the package is to be
# installed, in the file and line that are named. It is no valid Python, or it raises: its author has to look there. It
# is this project's own: then it is a defect here, or a missing extra, and the exception stays as it is. An example:
# `my_robot:Env` in a file that says `import serial`. Python raises ModuleNotFoundError in both of the first two cases;
# its `name` is `my_robot` in the first and `serial` in the second, which tells them apart.
#
# Keyword arguments are bound before anything is called, so that a misspelt one is refused with the accepted names while
# the user still looks at the terminal, not in a worker an hour later. For this project's classes the values are
# compared with the annotations too (`annotations.py`); annotations of others may be wrong, so they are not used.
#
# An environment's constructor is the one call of user code made here (`environment_maker`). Gymnasium's own errors keep
# their text, which names the right id; a missing package and a wrong keyword argument are the configuration's fault
# (ConfigError, no restart helps); all else is a failure of the environment (EnvironmentFailedError), which a supervisor
# may try again. The place in a message is the last frame in the user's own file: not in this package, nor in Gymnasium,
# nor in a library, unless there is no other.

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tmrl_core.config.annotations import misfits
from tmrl_core.config.environment_contract import as_environment
from tmrl_core.config.error_messages import near
from tmrl_core.config.registered_ids import prefix_hint
from tmrl_core.errors import ConfigError, EnvironmentFailedError, TmrlError
from tmrl_core.long_calls import in_standard_library, watched

logger = logging.getLogger(__name__)


def resolve(reference: str, key: str = "") -> Any:
    """Return the object that a reference `package.module:Name` names; `Name` may have dots.

    Modules are found as Python finds them; the command line also puts the configuration file's folder on `sys.path`.

    Args:
        reference: the reference.
        key: path of its key, for error messages.

    Raises:
        ConfigError: the module or name does not exist (the message has similar names), the module is not valid Python
            or imports a missing package, or the text is not a reference.
        ImportError: a module of this project imports a missing package.
    """
    label, module_name, name = _parts(reference, key)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        # Only the module itself or a parent package counts: a failed import inside the module is not a wrong reference.
        if exc.name is not None and (module_name == exc.name or module_name.startswith(exc.name + ".")):
            raise ConfigError(_NO_MODULE.format(label=label, name=exc.name)) from exc
        if is_own(reference):
            raise
        frames = [one for one in traceback.extract_tb(exc.__traceback__) if not one.filename.startswith("<")]
        package = _lacking(exc)
        raise ConfigError(
            f"{label}: {frames[-1].filename}, line {frames[-1].lineno}, imports {exc.name!r}, which "
            + (_OTHER_VERSION.format(package=package) if package else "is not installed here. Install it.")
        ) from exc
    except SyntaxError as exc:
        raise ConfigError(f"{label}: {exc.filename}, line {exc.lineno}, is not valid Python: {exc.msg}.") from exc
    # Any exception: a module's code runs when it is imported, and may raise anything.
    except Exception as exc:
        if is_own(reference) or isinstance(exc, TmrlError):
            raise
        logger.debug("the import of %s failed", module_name, exc_info=True)
        raise ConfigError(
            f"{label}: {place_of(exc)}{type(exc).__name__}: {reason_of(exc)}. The module {module_name} cannot be "
            "imported (--log-level debug shows the traceback)."
        ) from exc
    # Step by step, so that the message names the part that is missing.
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            hint = near(part, public_names(found))
            raise ConfigError(f"{label}: {module_name!r} has no {part!r}.{hint}") from exc
    return found


_NO_MODULE = (
    "{label}: module {name!r} was not found. Install it, or run where Python finds it (the current folder and the "
    "configuration file's folder are searched)."
)


def _parts(reference: str, key: str) -> tuple[str, str, str]:
    """Return the label for messages, the module and the name in it."""
    label = f"{key}: {reference!r}" if key else repr(reference)
    module_name, colon, name = reference.partition(":")
    if not colon or not all(module_name.split(".")) or not name:
        raise ConfigError(
            f"{label} is not a reference; write package.module:Name, for example tmrl_core.envs:GenericGymEnv"
        )
    return label, module_name, name


def is_own(reference: str) -> bool:
    """Return True if a reference names an object of this project."""
    return reference.partition(":")[0].partition(".")[0] == "tmrl_core"


def locate(reference: str, key: str = "", folders: Sequence[Path] = ()) -> None:
    """Check that a reference names an object by reading files only. Nothing is imported, so that none of its code runs.

    Args:
        reference: the reference.
        key: path of its key, for error messages.
        folders: searched after `sys.path`.

    Raises:
        ConfigError: the module does not exist, its source lacks the name, or the text is not a reference.
    """
    label, module_name, name = _parts(reference, key)
    # The order in which the command line would search.
    places: Sequence[str] | None = [*sys.path, *map(str, folders)]
    spec = None
    module = ""
    for part in module_name.split("."):
        module = f"{module}.{part}" if module else part
        # Finders of installed (editable) packages know only top-level names. A search for these imports nothing.
        found = importlib.machinery.PathFinder.find_spec(module, places) if places is not None else None
        spec = found or (_find_installed(module) if "." not in module else None)
        if spec is None:
            raise ConfigError(_NO_MODULE.format(label=label, name=module))
        places = spec.submodule_search_locations
    first = name.partition(".")[0]
    # A package's names may be in any of its files, or lazy, so only plain modules are looked into.
    names = _names_in(spec.origin) if spec is not None and spec.has_location and not places else None
    if names is not None and first not in names:
        raise ConfigError(f"{label}: {module_name!r} has no {first!r}.{near(first, names)}")


def _find_installed(module: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except ValueError:  # a module that was created in code
        return None


def _names_in(origin: str | None) -> set[str] | None:
    """Return every name that a source file binds; None: only running the file would show them."""
    if origin is None or not origin.endswith(".py"):
        return None
    try:
        # Names anywhere in the file count, also in functions: too many are harmless, and a missing one would
        # refuse a valid reference.
        nodes = list(ast.walk(ast.parse(Path(origin).read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    aliases = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    return None if names & {"*", "__getattr__"} else names


def public_names(found: Any) -> list[str]:
    """Return the names without a leading underscore, including lazy ones."""
    exported = vars(found).get("__all__", ()) if isinstance(found, ModuleType) else ()
    return sorted({*dir(found), *exported} - {n for n in dir(found) if n.startswith("_")})


def resolve_with(reference: str, kwargs: Mapping[str, Any], key: str = "") -> Any:
    """Return the callable that a reference names, with keyword arguments bound if there are any.

    Raises:
        ConfigError: see `resolve`; or the object cannot be called.
    """
    found = resolve(reference, key)
    if not callable(found):
        raise ConfigError(
            f"{key + ': ' if key else ''}{reference!r} is {found!r:.50} ({type(found).__name__}), which cannot be "
            "called. Allowed: a class or a function"
        )
    check_kwargs(found, kwargs, key.removesuffix("cls") + "kwargs" if key.endswith(".cls") else key)
    return functools.partial(found, **kwargs) if kwargs else found


def check_kwargs(found: Any, kwargs: Mapping[str, Any], key: str = "") -> None:
    """Check that a callable accepts these keyword arguments, if its signature is known.

    For callables of this project the values are checked too.

    Raises:
        ConfigError: it does not accept them; the message has the accepted names.
    """
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return
    defined = found if inspect.isclass(found) or inspect.isroutine(found) else type(found)
    try:
        signature.bind_partial(**kwargs)
    except TypeError as exc:
        name = found.__name__ if defined is found else repr(found)
        inner = ""
        if "gym_kwargs" in signature.parameters:
            entries = ", ".join(f"{unknown}: ..." for unknown in sorted(kwargs.keys() - signature.parameters.keys()))
            inner = f" What the Gymnasium environment takes goes into gym_kwargs: {{{entries}}}."
        raise ConfigError(f"{key}: {exc}. {name} takes {', '.join(signature.parameters) or 'none'}.{inner}") from exc
    # The module of the class, not of the reference: a subclass of others may take what its parent does not.
    if str(defined.__module__).startswith("tmrl_core."):
        problems = [f"{key}.{problem}" for problem in misfits(found, kwargs)]
        if problems:
            raise ConfigError("\n".join(problems))


def resolve_optional(reference: str | None, key: str = "") -> Any:
    """Return the object that a reference names, or None for None.

    Raises:
        ConfigError: see `resolve`.
    """
    return None if reference is None else resolve(reference, key)


def environment_maker(
    reference: str, kwargs: Mapping[str, Any], drop: Sequence[str] = (), *, envs: int = 1
) -> Callable[[], Any]:
    """Return a function that makes the environment.

    The function raises ConfigError for an id that Gymnasium does not know, for a package that is missing on this
    machine, and for a result that is not an environment (ContractError); EnvironmentFailedError for other exceptions.

    Args:
        reference: as `package.module:Name`.
        kwargs: its keyword arguments.
        drop: entries of its Dict observation that are left out.
        envs: `worker.envs`; above 1, the environment may be a vector environment of Gymnasium.

    Raises:
        ConfigError: the reference names nothing or does not accept these keyword arguments.
    """
    make = resolve_with(reference, kwargs, "environment.cls")
    label = f"environment.cls: {reference!r}"

    # Watched, because a constructor that waits for a machine is the usual way in which a start hangs.
    @watched("the environment's constructor")
    def make_environment() -> Any:
        from gymnasium import error as errors
        from gymnasium.vector import VectorEnv

        try:
            with named_failures(label):
                made = make()
                if envs == 1 or not isinstance(made, VectorEnv):
                    made = as_environment(made, label)
                return _without(made, drop) if drop else made
        except (errors.NameNotFound, errors.NamespaceNotFound) as exc:
            raise ConfigError(f"environment.kwargs: {exc}{prefix_hint(kwargs.get('id'))}") from exc
        except errors.Error as exc:
            raise ConfigError(f"environment.kwargs: {reason_of(exc)}") from exc

    return make_environment


_BY_GYMNASIUM = "raised from the environment creator"


@contextlib.contextmanager
def named_failures(label: str) -> Iterator[None]:
    """Name the place of an exception that a user's callable raises. Gymnasium's own errors pass.

    Args:
        label: the callable, for messages.

    Raises:
        ConfigError: a package is missing, or Gymnasium was given a keyword argument that an environment does not take.
        EnvironmentFailedError: any other exception was raised.
    """
    try:
        yield
    except TmrlError:
        raise
    except ImportError as exc:
        # Gymnasium explains a module of `module:Name-v0` that is not found.
        explained = exc.name is None and isinstance(exc.__cause__, ImportError)
        raise ConfigError(
            f"environment.kwargs.id: {reason_of(exc)}"
            if explained
            else f"{label}: {place_of(exc)}{reason_of(exc)}{_install_hint(exc)}"
        ) from exc
    except Exception as exc:
        text = str(exc)
        if type(exc).__module__.partition(".")[0] == "gymnasium":
            raise
        if isinstance(exc, TypeError) and "unexpected keyword argument" in text and _BY_GYMNASIUM in text:
            raise ConfigError(f"environment.kwargs: {exc}") from exc
        logger.debug("%s failed", label, exc_info=True)
        raise EnvironmentFailedError(
            f"{label}: {place_of(exc)}{type(exc).__name__}: {reason_of(exc)}. The environment cannot be used "
            "(--log-level debug shows the traceback)."
        ) from exc


def reason_of(exc: Exception) -> str:
    """Return the text of an exception in up to five lines; if it has none, as that of `assert`, its line of code."""
    lines = str(exc).strip().splitlines()
    if not lines:
        lines = [frame.line or "no reason given" for frame in traceback.extract_tb(exc.__traceback__)[-1:]]
    return "\n".join([*lines[:4], *(["..."] if len(lines) > 4 else [])])


def place_of(exc: Exception, *, is_own: bool = False) -> str:
    """Return the file and line where the user's code raised an exception or called what raised it, as a prefix.

    Args:
        exc: the exception.
        is_own: leave out installed packages and the standard library, which stand in if no other code is in the way.
    """
    package = str(Path(__file__).parents[1])
    frames = [
        one
        for one in traceback.extract_tb(exc.__traceback__)
        if not one.filename.startswith(("<", package)) and f"{os.sep}gymnasium{os.sep}" not in one.filename
    ]
    own = [one for one in frames if "site-packages" not in one.filename and not in_standard_library(one.filename)]
    chosen = (own if is_own else own or frames)[-1:]
    return "".join(f"{frame.filename}, line {frame.lineno}: " for frame in chosen)


def _install_hint(exc: ImportError) -> str:
    if not isinstance(exc, ModuleNotFoundError) or exc.name is None:
        return ""
    if package := _lacking(exc):
        return f", which {_OTHER_VERSION.format(package=package)}"
    return f". Install {exc.name!r}, or what provides it."


_OTHER_VERSION = "the installed {package} does not have. One of the two needs another version."


def _lacking(exc: ImportError) -> str:
    """Return the installed package of which a missing module would be a part; empty: there is none."""
    package, _, part = (exc.name or "").partition(".")
    spec = importlib.util.find_spec(package) if part else None
    return package if spec is not None and spec.has_location else ""


def _without(env: Any, drop: Sequence[str]) -> Any:
    """Return an environment without these entries of its Dict observation.

    Raises:
        ConfigError: it has no such entries, or no others; or the environment cannot be wrapped.
    """
    import gymnasium

    space = env.observation_space
    entries = list(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else []
    kept = [name for name in entries if name not in drop]
    if not isinstance(env, gymnasium.Env) or not kept or not set(entries).issuperset(drop):
        env.close()
        raise ConfigError(
            f"environment.drop: found {list(drop)}, and the environment is a {type(env).__name__} with the observation "
            f"space {space}. Allowed: some of the entries of a Dict, of a gymnasium.Env."
        )
    return gymnasium.wrappers.FilterObservation(env, kept)
