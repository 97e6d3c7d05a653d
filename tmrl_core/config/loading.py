"""Loading of one checked `Config` from file, environment and command line.

Precedence, later wins: defaults, file, environment (`TMRL_CORE_*`, for secrets and hosts), `--set` overrides.
"""

# Theory of operation
#
# This file makes one checked `Config` from four layers: the built-in defaults, a file, environment variables and
# `--set`; a later one wins. It knows no key by name except where a layer needs one (`ENVIRONMENT_KEYS`); keys, types
# and limits are in `sections.py` and in the rooms, rules between keys in `checks.py`, messages in `error_messages.py`.
#
# Layers are merged as plain dicts, not as structs: a struct always has every key, so a layer could not say which ones
# it sets. Every layer is converted to a `Config` by itself, and the result thrown away, so that an error names its
# source. An example: the file sets `server.port: 70000` and `--set server.port=5` repairs it. The file is refused
# nevertheless, by its own name: whoever runs it without `--set` would meet the error.
#
#     read_document -> convert (file) -> merge_environment (each variable) -> put, convert (each --set) -> check_values
#
# Checks between keys come last and once, because a layer alone may contradict what another one completes.
#
# Speed. Every role starts with this. msgspec converts in microseconds, but its description of all keys takes 20 ms, so
# it is asked for only after a failure: then the same values are converted again, with 1e6 as an integer where a key
# wants one, or the message is made. Both conversions go through one lock, since msgspec completes a type at its first
# use, and two threads that do so at once have crashed; `decodable`, which the other modules use, would complete it on
# import.
#
# `current()` is the configuration of omitted arguments in scripts. It is read when it is needed, never on import, and
# again only if the file, the environment or the working folder has changed. `use` fixes it, for the command line and
# for tests.
#
# What fails: everything is a ConfigError with the source, the key's path, the value found and those allowed. An
# override's source is named by its path alone, because its value may be a secret that somebody put there by mistake.

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from tmrl_core.config.checks import check_values
from tmrl_core.config.documents import format_yaml, parse_yaml, read_document
from tmrl_core.config.error_messages import explain, field_type, inner_types, type_info
from tmrl_core.config.room_sections import config_type
from tmrl_core.config.sections import Config, EnvironmentSection
from tmrl_core.config.unknown_keys import refuse_unknown_keys
from tmrl_core.errors import ConfigError

logger = logging.getLogger(__name__)

BUILT_IN = EnvironmentSection()
"""Environment of a configuration that names none."""
BUILT_IN_STEPS = 2.0
"""Default of `worker.max_env_steps_per_update` for the built-in environment."""
PREFIX = "TMRL_CORE_"
MAX_TOKEN_CHARACTERS = 4_096
"""Maximum length of a token, limited by the protocol's messages."""

ENVIRONMENT_KEYS: dict[str, tuple[str, str]] = {
    "TMRL_CORE_RUN_NAME": ("run", "name"),
    "TMRL_CORE_RUN_FOLDER": ("run", "folder"),
    "TMRL_CORE_WORKER_NAME": ("worker", "name"),
    "TMRL_CORE_SERVER_HOST": ("server", "host"),
    "TMRL_CORE_SERVER_BIND": ("server", "bind"),
    "TMRL_CORE_SERVER_PORT": ("server", "port"),
    "TMRL_CORE_CREDENTIALS_DIR": ("network", "credentials_dir"),
    "TMRL_CORE_HOSTNAME": ("network", "hostname"),
}
"""Environment variables that set a key."""

OTHER_VARIABLES: dict[str, str] = {
    "TMRL_CORE_CONFIG": "the configuration file, without `-c`",
    "TMRL_CORE_HOME": "the data folder (default: the platform's folder for user data)",
    "TMRL_CORE_TOKEN": "this role's token",
    "TMRL_CORE_TOKEN_FILE": "a file that holds this role's token",
}
"""Environment variables that set no key."""


def data_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of this user's tmrl_core files, without creating it.

    `TMRL_CORE_HOME`, else the platform's folder for user data.

    Raises:
        ConfigError: this user has no home folder, as a container's user may have none.
    """
    # An empty variable counts as one that is not set, as in most programs.
    environ = os.environ if environ is None else environ
    if environ.get("TMRL_CORE_HOME"):
        return expanded(environ["TMRL_CORE_HOME"])
    if sys.platform == "win32":
        base = environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return expanded(base) / "tmrl_core"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with its `~` replaced by the home folder.

    Raises:
        ConfigError: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{path} cannot be found, because this user id has no home folder. Set TMRL_CORE_HOME to a folder that it "
            "may write, and give paths without `~`."
        ) from None


def find_config_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the default configuration file.

    `$TMRL_CORE_CONFIG` (which must exist), else `tmrl_core.yaml` in the current folder, else `config.yaml` in the data
    folder, else None: the built-in defaults.
    """
    environ = os.environ if environ is None else environ
    if environ.get("TMRL_CORE_CONFIG"):
        return expanded(environ["TMRL_CORE_CONFIG"])
    here = Path("tmrl_core.yaml")
    if here.is_file():
        return here
    try:
        own = data_folder(environ) / "config.yaml"
    except ConfigError:  # without a data folder, there is no file in it
        return None
    return own if own.is_file() else None


def find_credentials_folder(config: Config, environ: Mapping[str, str] | None = None) -> Path:
    """Return the credentials folder: `network.credentials_dir`, `credentials/` here, or the data folder's.

    `credentials/` in the current folder counts if it holds more than a README. The returned folder need not exist.
    """
    if config.network.credentials_dir is not None:
        return config.absolute(expanded(config.network.credentials_dir))
    # A checkout has this folder with a README only; it must not hide the credentials in the data folder.
    here = config.absolute("credentials")
    if here.is_dir() and any(p.name not in ("README.md", ".gitignore") for p in here.iterdir()):
        return here
    return data_folder(environ) / "credentials"


def token_from_environment(environ: Mapping[str, str]) -> str | None:
    """Return the token in `TMRL_CORE_TOKEN`, or in the file `TMRL_CORE_TOKEN_FILE`; None: neither is set.

    Raises:
        ConfigError: the file cannot be read or is empty, or its content cannot be a token.
    """
    if token := environ.get("TMRL_CORE_TOKEN"):
        return _as_token(token, "TMRL_CORE_TOKEN")
    name = environ.get("TMRL_CORE_TOKEN_FILE")
    if not name:
        return None
    try:
        token = expanded(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"TMRL_CORE_TOKEN_FILE: {name} cannot be read ({type(exc).__name__})") from exc
    if not token:
        raise ConfigError(f"TMRL_CORE_TOKEN_FILE: {name} is empty; it should hold the token of this role")
    return _as_token(token, "TMRL_CORE_TOKEN_FILE")


def _as_token(text: str, source: str) -> str:
    # Python decodes invalid bytes in the environment as lone surrogates, which cannot be sent.
    if len(text) > MAX_TOKEN_CHARACTERS or any("\ud800" <= one <= "\udfff" for one in text):
        most = MAX_TOKEN_CHARACTERS
        raise ConfigError(f"{source}: this is not a token: a token is one line of text of at most {most} characters")
    return text


def load(
    path: str | os.PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    built_in: bool = False,
) -> Config:
    """Return the checked configuration from defaults, a file, the environment and overrides.

    Args:
        path: JSON or YAML by extension; None: found by `find_config_file`, else the built-in defaults.
        overrides: `section.key=value`, with the value as YAML; later ones win.
        environ: the environment; None: this process's.
        built_in: True: without an environment in the configuration, the built-in one is used. It does not run in real
            time, so `worker.max_env_steps_per_update` is then `BUILT_IN_STEPS`, unless it is set.

    Raises:
        ConfigError: a value is invalid; the message has the key's path, the value found and the allowed values.
    """
    environ = os.environ if environ is None else environ
    found = find_config_file(environ) if path is None else expanded(path)
    values = read_document(found) if found is not None else {}
    source = str(found) if found is not None else "built-in defaults"
    # Each layer is checked separately, so that an error names its source.
    convert(values, source)
    overrides = list(overrides)
    # Without a file, somebody tries the command out. The built-in Pendulum then floods the trainer, unless workers
    # wait for it; a real environment must never wait because a setting was overlooked.
    if built_in and "environment" not in values and not any(one.startswith("environment.") for one in overrides):
        values.setdefault("worker", {}).setdefault("max_env_steps_per_update", BUILT_IN_STEPS)
    merge_environment(values, environ)
    for override in overrides:
        path_text, value = parse_override(override)
        # The message leaves out the value, which may be a secret.
        label = f"--set {path_text}"
        put(values, path_text, value, label)
        convert(values, label)
    config = convert(values, source)
    check_values(config)
    return config


def from_values(values: Mapping[str, Any], source: str = "configuration") -> Config:
    """Return a checked configuration of primitive values, without file and environment.

    Raises:
        ConfigError: see `load`.
    """
    config = convert(values, source)
    check_values(config)
    return config


def with_changes(config: Config, changes: Iterable[str]) -> Config:
    """Return the configuration with changes `section.key=value`, in the form of `--set`, and the same start folder.

    Raises:
        ConfigError: a change is invalid.
    """
    values = msgspec.to_builtins(config)
    for change in changes:
        path, value = parse_override(change)
        put(values, path, value, f"--set {path}")
    return from_values(values, "changed configuration").started_in(config.start_folder)


_CONVERTING = threading.Lock()
"""Instead of `decodable`, which would add 15 ms to each import of the package."""


def convert(values: Mapping[str, Any], source: str) -> Config:
    """Check types and limits of each key, but not their combinations.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or is out of range.
    """
    values = one_amount(own_kwargs(values))
    with _CONVERTING:
        # The description of all keys, which a value such as 1e6 or an error needs, takes 20 ms of a role's start.
        with contextlib.suppress(msgspec.ValidationError):
            # The ordinary case ends here.
            return msgspec.convert(values, config_type())
        refuse_unknown_keys(values, source)
        try:
            return msgspec.convert(whole_numbers(values, type_info(config_type())), config_type())
        except msgspec.ValidationError as exc:
            raise ConfigError(explain(exc, values, source)) from exc


def own_kwargs(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `values` without the built-in environment's keyword arguments if they name another environment."""
    environment = values.get("environment")
    if not isinstance(environment, Mapping) or "kwargs" in environment:
        return values
    if environment.get("cls", BUILT_IN.cls) == BUILT_IN.cls:
        return values
    return {**values, "environment": {**environment, "kwargs": {}}}


def one_amount(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `values` without the default amount of a lockstep round in steps if they name one in episodes."""
    trainer = values.get("trainer")
    lockstep = trainer.get("lockstep") if isinstance(trainer, Mapping) else None
    if not isinstance(trainer, Mapping) or not isinstance(lockstep, Mapping):
        return values
    if lockstep.get("episodes_per_round") is None or "steps_per_round" in lockstep:
        return values
    return {**values, "trainer": {**trainer, "lockstep": {**lockstep, "steps_per_round": None}}}


def whole_numbers(values: Any, kind: Any) -> Any:
    """Return `values` with floats such as 1e6 as integers where a key allows only integers."""
    if isinstance(values, Mapping):
        return {key: whole_numbers(value, field_type(kind, key)) for key, value in values.items()}
    # A key that also takes floats keeps the float: 1e6 seconds are no integer.
    if isinstance(values, float) and values.is_integer():
        parts = inner_types(kind)
        if inspect.IntType in parts and inspect.FloatType not in parts:
            return int(values)
    return values


def merge_environment(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Copy the values of `TMRL_CORE_*` variables into `values`; log unknown ones.

    Raises:
        ConfigError: a variable's value is invalid for its key.
    """
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
            continue
        if name not in ENVIRONMENT_KEYS:
            known = ", ".join(sorted([*ENVIRONMENT_KEYS, *OTHER_VARIABLES]))
            logger.warning("The environment variable %s is unknown and is ignored. Known: %s.", name, known)
            continue
        if not environ[name]:
            continue
        section, key = ENVIRONMENT_KEYS[name]
        # A run called 007, or a worker called true, keeps its name.
        # Names stay texts; only the port is a number.
        value: Any = parse_yaml(environ[name], name) if key == "port" else environ[name]
        convert({section: {key: value}}, name)
        put(values, f"{section}.{key}", value, name)


def parse_override(override: str) -> tuple[str, Any]:
    """Return path and value of `section.key=value`; the value is YAML.

    Raises:
        ConfigError: there is no `=`, an empty part, or invalid YAML.
    """
    path, equals, text = override.partition("=")
    path = path.strip()
    if not equals or not all(path.split(".")):
        raise ConfigError(f"--set {path}: write it as section.key=value, for example --set server.port=55555")
    return path, parse_yaml(text, f"--set {path}")


def put(values: dict[str, Any], path: str, value: Any, source: str) -> None:
    """Set `values[a][b]...` for the path `a.b...`, and create missing mappings.

    Raises:
        ConfigError: a part of the path is not a mapping.
    """
    *folders, last = path.split(".")
    for name in folders:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{source}: {name} is {inner!r}, not a mapping, so nothing can be set inside it")
        values = inner
    values[last] = value


class _Current:
    """The configuration that `current` supplies; `lock` guards both attributes."""

    lock = threading.Lock()
    in_use: Config | None = None
    cached: tuple[tuple[Any, ...], Config] | None = None


def current() -> Config:
    """Return the configuration for omitted arguments.

    This is the argument of `use`. Without it, the configuration is loaded as without `-c`, and loaded again only if the
    file or the environment has changed.

    Raises:
        ConfigError: see `load`.
    """
    with _Current.lock:
        if _Current.in_use is not None:
            return _Current.in_use
        path = find_config_file()
        stamp = None
        if path is not None and path.is_file():
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
        environ = tuple(sorted(item for item in os.environ.items() if item[0] in ENVIRONMENT_KEYS))
        # A file that is edited in place keeps its name; size and time of change show it.
        key = (os.getcwd(), path, stamp, environ)
        if _Current.cached is None or _Current.cached[0] != key:
            _Current.cached = (key, load(path))
        return _Current.cached[1]


def use(config: Config | None) -> None:
    """Make `current` return this configuration in this process; None: search again."""
    with _Current.lock:
        _Current.in_use = config


def resolved(config: Config) -> str:
    """Return the whole configuration as YAML, with every key. It contains no secret."""
    return format_yaml(msgspec.to_builtins(config, enc_hook=str))
