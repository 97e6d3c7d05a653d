"""Real-time environments of rtgym, made from plain values of a configuration."""

# Theory of operation
#
# For: a robot or game that rtgym steps in real time, named in a configuration by plain values. This file knows rtgym
# and the class of the user's interface. It knows nothing of workers; how late the steps of an environment are is
# measured beside the loop (`actor/rollout`), for every environment with a rate.
#
# rtgym's environment calls the interface from a thread of its own, once in each time step, while `step` waits for the
# result. An exception of the interface would end that thread, where nobody sees it, and the next `step` would wait for
# ever. Hence the guard: rtgym is given a `_Guard` in place of the interface, and the wrapper `_Guarded` around its
# environment.
#
# An exception then goes this way: the guard catches it in rtgym's thread, keeps the first one and returns a value that
# rtgym can go on with (no observation, reward 0). rtgym's thread lives, `step` returns, and `_Guarded` raises the
# exception in the thread that called it, once. The values in between are seen by nobody.
#
# A result of another form is such an exception too: rtgym unpacks it in its thread. The constructor of the interface is
# guarded likewise, since rtgym calls it before there is an environment that could be closed.
#
# The end: rtgym ends its thread in `__del__` only, and that thread itself refers to the environment, so it is never
# collected. `close` calls it. Afterwards the interface is closed, if it can be: rtgym knows no such method, but a
# camera or a serial port wants one.
#
# On Windows, rtgym starts a thread for each time step, elsewhere one for all; the two have different Gymnasium ids.
# `identity.py` takes them for one environment, since a robot on Windows and a trainer on Linux have one task.
#
# Rejected: a copy of rtgym's environment with the exceptions handled (its timing is what people trust); a limit for the
# wait in `step` (it would end slow robots, and tell nobody why).

from __future__ import annotations

import importlib
import logging
import platform
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import gymnasium

from tmrl_core.config import resolve
from tmrl_core.errors import ConfigError, MissingExtraError

logger = logging.getLogger(__name__)

THREAD_PER_STEP, ONE_THREAD = "real-time-gym-v1", "real-time-gym-ts-v1"
"""Gymnasium ids of rtgym's environment, which differ in its threads only."""
RTGYM_ID = THREAD_PER_STEP if platform.system() == "Windows" else ONE_THREAD
"""Gymnasium id of rtgym's environment on this system."""


def real_time_env(
    interface: str | Callable[..., Any],
    interface_kwargs: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> gymnasium.Env[Any, Any]:
    """Return rtgym's environment of a robot or game.

    An exception of the interface is raised by `reset` or `step`. `close` ends rtgym's thread, and calls the interface's
    `close` if it has one.

    Args:
        interface: class of a `rtgym.RealTimeGymInterface`, or its reference "package.module:Name".
        interface_kwargs: keyword arguments of `interface`.
        config: entries of rtgym's configuration that differ from its defaults, such as `time_step_duration` (seconds),
            `ep_max_length` (steps; an episode is truncated there) and `act_buf_len` (actions in the observation).

    Raises:
        ConfigError: rtgym knows no such entry, or `interface` names nothing.
        MissingExtraError: rtgym is not installed.
    """
    try:
        rtgym = importlib.import_module("rtgym")
    except ModuleNotFoundError as exc:
        raise MissingExtraError("rtgym", "realtime", "a real-time environment") from exc
    # rtgym ignores entries that it does not know, so a misspelt rate would be the default one.
    known = rtgym.DEFAULT_CONFIG_DICT
    unknown = sorted((config or {}).keys() - known.keys())
    if unknown:
        raise ConfigError(f"environment.kwargs.config: found {', '.join(unknown)}, allowed: {', '.join(sorted(known))}")
    make = resolve(interface, "environment.kwargs.interface") if isinstance(interface, str) else interface
    guards: list[_Guard] = []

    def guarded(**kwargs: Any) -> _Guard:
        guards.append(_Guard(make, kwargs))
        return guards[-1]

    env = gymnasium.make(
        RTGYM_ID,
        config={**known, **(config or {}), "interface": guarded, "interface_kwargs": dict(interface_kwargs or {})},
        disable_env_checker=True,
    )
    (guard,) = guards  # rtgym makes its interface once, in the constructor of its environment
    made = _Guarded(env, guard)
    try:
        guard.raise_failure()
    except Exception:
        made.close()
        raise
    return made


@runtime_checkable
class _Closable(Protocol):
    """An interface with a `close`, which rtgym does not know."""

    def close(self) -> None: ...


class _Guard:
    """An interface whose exceptions are kept.

    In rtgym, they would end the thread of the time steps, and the next `step` would wait for it forever.
    """

    def __init__(self, make: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        self._interface: Any = None
        self._failure: Exception | None = None
        self._interface = self._try(lambda: make(**kwargs), None)

    def _try(self, call: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return call()
        except Exception as exc:
            self._failure = self._failure or exc  # the first: later ones often follow from it
            return otherwise

    def raise_failure(self) -> None:
        """Raise the exception that has occurred, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def get_default_action(self) -> Any:
        return self._try(lambda: self._interface.get_default_action(), None)

    def get_action_space(self) -> Any:
        return self._try(lambda: self._interface.get_action_space(), gymnasium.spaces.Discrete(1))

    def get_observation_space(self) -> Any:
        return self._try(lambda: self._interface.get_observation_space(), gymnasium.spaces.Tuple(()))

    def send_control(self, control: Any) -> None:
        self._try(lambda: self._interface.send_control(control), None)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self._try(lambda: self._interface.reset(seed=seed, options=options), ([], {}))

    def get_obs_rew_terminated_info(self) -> Any:
        return self._try(self._observe, ([], 0.0, False, {}))

    def _observe(self) -> Any:
        result = self._interface.get_obs_rew_terminated_info()
        try:
            observation, _, _, _ = result
            iter(observation)
        except (TypeError, ValueError):
            raise TypeError(
                f"get_obs_rew_terminated_info of {type(self._interface).__name__} returned {result!r:.200}; it returns "
                "a list of the parts of the observation, the reward, terminated and a dict"
            ) from None
        return result

    def wait(self) -> None:
        try:
            self._interface.wait()
        except Exception:  # the episode is over, so no step follows that could raise it
            logger.exception("wait of %s failed", type(self._interface).__name__)

    def render(self) -> Any:
        return self._interface.render()

    def close(self) -> None:
        if isinstance(self._interface, _Closable):
            self._interface.close()


class _Guarded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """rtgym's environment, which raises the exceptions of its interface."""

    def __init__(self, env: gymnasium.Env[Any, Any], guard: _Guard) -> None:
        super().__init__(env)
        self._guard = guard

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self._guard.raise_failure()
        return result

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._guard.raise_failure()
        return result

    def close(self) -> None:
        super().close()
        if RTGYM_ID == ONE_THREAD:
            inner: Any = self.unwrapped
            inner.__del__()  # ends the thread, which keeps the environment referenced
        self._guard.close()
