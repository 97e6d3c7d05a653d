"""A worker composed of its parts, for tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tmrl_core.actor.rollout.link import RolloutLink
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.recording import Recording
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.actor.rollout.vector_recorder import VectorRecorder
from tmrl_core.actor.rollout.worker import Worker, make_loop
from tmrl_core.samples import Buffer

SCHEDULES = ("send_every", "update_weights", "max_env_steps_per_update", "send_pause_s")
RECORDED = ("buffer", "name", "sample_compressor", "crc_debug", "max_samples_per_episode", "info_metrics")


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
    rows: int = 1,
    **kwargs: Any,
) -> Worker:
    """Return a worker with a Buffer that keeps everything; `kwargs` are of recorder, `make_loop` and worker."""
    schedules = {name: kwargs.pop(name) for name in SCHEDULES if name in kwargs}
    recorded = {name: kwargs.pop(name) for name in RECORDED if name in kwargs}
    recorded = {"buffer": Buffer(None), **recorded}
    if rows > 1:
        kwargs["max_samples_per_episode"] = recorded.pop("max_samples_per_episode", math.inf)
    recorder = VectorRecorder(rows=rows, **recorded) if rows > 1 else StepRecorder(**recorded)
    loop = make_loop(env_cls, make_actor, recorder, seed=seed, **kwargs)
    loop.uplink = Uplink(
        link,
        recorder,
        loop.runner,
        files=files,
        drain_timeout_s=drain_timeout_s,
        needs_policy=needs_policy,
        recording=recording,
    )
    return kind(loop, **schedules)
