"""A worker composed of its parts, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmrl_core.actor.rollout.collector import Collector
from tmrl_core.actor.rollout.link import RolloutLink
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.recording import Recording
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.actor.rollout.worker import Worker, make_loop
from tmrl_core.samples import Buffer

SCHEDULES = ("send_every", "update_weights", "max_env_steps_per_update", "send_pause_s")


def compose(
    env_cls: Callable[[], Any],
    make_actor: Callable[..., Any],
    *,
    kind: type[Worker] = Worker,
    link: RolloutLink | None = None,
    files: PolicyFiles | None = None,
    drain_timeout_s: float = 10.0,
    needs_policy: bool = False,
    recording: Recording | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> Worker:
    """Return a worker with a Buffer that keeps everything; `kwargs` are of `make_loop` and of the worker."""
    schedules = {name: kwargs.pop(name) for name in SCHEDULES if name in kwargs}
    loop = make_loop(env_cls, make_actor, **{"buffer": Buffer(None), "seed": seed, **kwargs})
    uplink = Uplink(
        link,
        loop.recorder,
        loop.runner,
        files=files,
        drain_timeout_s=drain_timeout_s,
        needs_policy=needs_policy,
        recording=recording,
    )
    return kind(Collector(loop, uplink, seed=seed), **schedules)
