"""Conversion of tmrl's `config.json` to the project's configuration.

Each key is converted and checked by itself. A value that is refused here, or has no counterpart, is left out and
reported, so that one of them does not lose the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tmrl_core.compat.config.settings import ALGORITHMS, HISTORY, IMAGE_SIZE, KEYS, SETTINGS
from tmrl_core.config import from_values
from tmrl_core.config.loading import convert, put
from tmrl_core.errors import ConfigError

_INTERFACES = "tmrl.custom.tm.tm_gym_interfaces"
_CUSTOM = "tmrl_core.compat.custom"
_PREPROCESSORS = "tmrl_core.compat.custom.tm.tm_preprocessors"

SECRETS = {
    "PASSWORD": "it is a secret: the Server's credentials have tokens instead (--credentials create)",
    "WANDB_KEY": "it is a secret: run `wandb login`, or set the environment variable WANDB_API_KEY",
}
NO_COUNTERPART = {
    "RESET_TRAINING": "start with another run.name, or with --new, instead",
    "DEBUG_MODE": "use --log-level debug instead",
    "SLEEP_TIME_AT_RESET": "it belongs in the reset of your interface",
    "REWARD_CONFIG": "it belongs to your interface",
    "WINDOW_WIDTH": "it belongs to your interface",
    "WINDOW_HEIGHT": "it belongs to your interface",
}
"""Next step for keys without a counterpart."""


class Converted(NamedTuple):
    """A converted configuration.

    Args:
        values: keys that were set, in nested dicts.
        notes: one line for each key that was left out or needs attention.
    """

    values: dict[str, Any]
    notes: list[str]


def converted(tmrl: Any) -> Converted:
    """Return the project's configuration for tmrl's, with what has no counterpart.

    Args:
        tmrl: the content of `config.json`.

    Raises:
        ConfigError: it is not a mapping with upper-case keys, or the result is contradictory.
    """
    if not isinstance(tmrl, Mapping) or not any(isinstance(key, str) and key.isupper() for key in tmrl):
        raise ConfigError("this is not a configuration of tmrl: found no keys such as RUN_NAME, MAX_EPOCHS and ALG")
    made = _Conversion()
    rest = {str(key): value for key, value in tmrl.items()}
    rest.pop("__VERSION__", None)
    for key in KEYS:
        if key.name in rest:
            made.set(key.name, key.ours, rest.pop(key.name), key.read)
    _host(made, rest)
    if "ALG" in rest:
        _algorithm(made, rest.pop("ALG"))
    _environment(made, rest.pop("ENV", {}), rest.pop("VIRTUAL_GAMEPAD", False))
    for name in rest:
        made.notes.append(f"{name}: left out: {SECRETS.get(name) or NO_COUNTERPART.get(name, 'no counterpart')}")
    from_values(made.values, "the converted configuration")
    return Converted(made.values, made.notes)


class _Conversion:
    """Values that are set so far, and notes on the others."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.notes: list[str] = []

    def set(self, name: str, path: str, value: Any, read: Callable[[Any], Any] = lambda value: value) -> None:
        """Set a key, unless its value is not allowed."""
        try:
            found = read(value)
            alone: dict[str, Any] = {}
            put(alone, path, found, name)
            convert(alone, "tmrl's configuration")
        except (ConfigError, TypeError, ValueError, OverflowError) as exc:
            self.notes.append(f"{name}: {value!r:.100} left out: {exc}")
        else:
            put(self.values, path, found, name)


def _host(made: _Conversion, rest: dict[str, Any]) -> None:
    """Set `server.host`: one name for all roles, where tmrl has an address and two switches."""
    local = [bool(rest.pop(name)) for name in ("LOCALHOST_WORKER", "LOCALHOST_TRAINER") if name in rest]
    public = rest.pop("PUBLIC_IP_SERVER", None)
    if local and all(local):
        made.set("LOCALHOST_WORKER", "server.host", "127.0.0.1")
    elif public is not None:
        made.set("PUBLIC_IP_SERVER", "server.host", public)
        if any(local):
            made.notes.append(
                "LOCALHOST_*: the Server runs beside one role: start the role on that machine with "
                "--set server.host=127.0.0.1"
            )


def _algorithm(made: _Conversion, found: Any) -> None:
    """Set `agent`."""
    settings = dict(found) if isinstance(found, Mapping) else {}
    name = settings.pop("ALGORITHM", "SAC")
    if isinstance(name, str) and name in ALGORITHMS:
        made.set("ALG.ALGORITHM", "agent.cls", ALGORITHMS[name])
    else:
        made.notes.append(f"ALG.ALGORITHM: {name!r:.100} left out: found no algorithm of this name; choose agent.cls")
    kwargs = {}
    for key, value in settings.items():
        if key not in SETTINGS:
            made.notes.append(f"ALG.{key}: left out: no counterpart")
        elif name == "REDQSAC" or not key.startswith("REDQ_"):  # tmrl's SAC ignores these
            kwargs[SETTINGS[key]] = value
    if kwargs:
        made.set("ALG", "agent.kwargs", kwargs)


def _environment(made: _Conversion, found: Any, gamepad: object) -> None:
    """Set `environment`: rtgym's, with the interface of the game that tmrl was made for."""
    if not isinstance(found, Mapping) or not found:
        made.notes.append("ENV: left out: choose environment.cls and environment.kwargs")
        return
    settings = dict(found)
    name = str(settings.pop("RTGYM_INTERFACE", ""))
    interface, preprocessor = _interface(name)
    kwargs = {"img_hist_len": settings.pop("IMG_HIST_LEN", HISTORY), "gamepad": bool(gamepad)}
    size = [settings.pop(key, default) for key, default in zip(("IMG_WIDTH", "IMG_HEIGHT"), IMAGE_SIZE, strict=True)]
    grayscale = bool(settings.pop("IMG_GRAYSCALE", False))
    images = not name.endswith(("LIDAR", "LIDARPROGRESS"))
    if images:
        kwargs |= {"grayscale": grayscale, "resize_to": size}
    made.set("ENV", "environment.cls", "tmrl_core.envs:real_time_env")
    made.set("ENV.RTGYM_INTERFACE", "environment.kwargs.interface", f"{_INTERFACES}:{interface}")
    made.set("ENV", "environment.kwargs.interface_kwargs", kwargs)
    made.set("ENV.RTGYM_CONFIG", "environment.kwargs.config", settings.pop("RTGYM_CONFIG", {}), dict)
    made.set("ENV.RTGYM_INTERFACE", "worker.obs_preprocessor", f"{_PREPROCESSORS}:{preprocessor}")
    made.notes.append(
        f"ENV.RTGYM_INTERFACE: {name!r:.100} is {interface} of the package tmrl, which workers and trainer need for "
        "it; for another robot or game, name your class in environment.kwargs.interface, and change interface_kwargs "
        "and worker.obs_preprocessor"
    )
    if images:
        _images(made, kwargs, grayscale)
    made.notes += list(_left_out(settings))


def _images(made: _Conversion, interface_kwargs: Mapping[str, Any], grayscale: bool) -> None:
    """Set the policy, model and memory of images, and the compressor."""
    kind = "" if grayscale else "Color"
    config = made.values["environment"]["kwargs"].get("config", {})
    for path, value in (
        ("worker.sample_compressor", f"{_CUSTOM}.custom_memories:get_local_buffer_sample_tm20_imgs"),
        ("memory.cls", f"{_CUSTOM}.custom_memories:MemoryTMFull"),
        ("memory.kwargs.imgs_obs", interface_kwargs["img_hist_len"]),
        ("memory.kwargs.act_buf_len", config.get("act_buf_len", 1)),
        ("actor.cls", f"{_CUSTOM}.custom_models:SquashedGaussianVanilla{kind}CNNActor"),
        ("agent.kwargs.model_cls", f"{_CUSTOM}.custom_models:Vanilla{kind}CNNActorCritic"),
    ):
        made.set("ENV.RTGYM_INTERFACE", path, value)


def _interface(name: str) -> tuple[str, str]:
    """Return tmrl's class and the preprocessor of its observations."""
    if name.endswith("LIDARPROGRESS"):
        return "TM2020InterfaceLidarProgress", "obs_preprocessor_tm_lidar_progress_act_in_obs"
    if name.endswith("LIDAR"):
        return "TM2020InterfaceLidar", "obs_preprocessor_tm_lidar_act_in_obs"
    return "TM2020Interface", "obs_preprocessor_tm_act_in_obs"


def _left_out(settings: Mapping[str, Any]) -> Iterator[str]:
    for name in settings:
        yield f"ENV.{name}: left out: {NO_COUNTERPART.get(name, 'no counterpart; it belongs to your interface')}"
