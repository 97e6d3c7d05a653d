"""A source in memory, and scenes of runs that never ran."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from tmrl_core.dashboard.source import CONNECTED
from tmrl_core.errors import NetworkError
from tmrl_core.networking.protocol.pictures import Kind, Picture
from tmrl_core.networking.protocol.status import BudgetStatus, PeerStatus, ServerStatus
from tmrl_core.networking.protocol.telemetry import (
    History,
    Order,
    OrderOutcome,
    Scene,
    SceneCheckpoint,
    SceneEvent,
    ScenePolicy,
    WorkerScene,
)

NOW = 1_795_000_000.0


class Played:
    """A source whose values the test sets."""

    def __init__(self, may_order: bool = False) -> None:
        self.scene: Scene | None = None
        self.history: History | None = None
        self.status: ServerStatus | None = None
        self.pictures: Mapping[tuple[str, Kind], Picture] = {}
        self.state = CONNECTED
        self.may_order = may_order
        self.changed = 0
        self.orders: list[Order] = []
        self.refusal = ""
        self.closed = False
        self._change = threading.Condition()

    def show(self, **values: Any) -> None:
        """Set attributes, and wake who waits."""
        with self._change:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed += 1
            self._change.notify_all()

    def wait(self, timeout_s: float, after: int | None = None) -> bool:
        with self._change:
            seen = self.changed if after is None else after
            return self._change.wait_for(lambda: self.changed != seen or self.closed, timeout_s)

    def order(self, order: Order) -> str:
        if self.refusal:
            raise NetworkError(self.refusal)
        self.orders.append(order)
        number = f"o{len(self.orders)}"
        if self.scene is not None:
            outcome = OrderOutcome(number, f"{order.kind} {order.worker}".strip(), "done", NOW, "anna")
            state = {"pause": "paused", "resume": "training"}.get(order.kind, self.scene.state)
            self.show(scene=msgspec.structs.replace(self.scene, orders=(*self.scene.orders, outcome), state=state))
        return number

    def close(self) -> None:
        self.show(closed=True)


def worker(index: int, **changes: Any) -> WorkerScene:
    """Return a worker in order."""
    values: dict[str, Any] = {
        "name": f"robot{index + 1}",
        "since_s": 3600.0 + index,
        "last_sample_s": 0.4,
        "steps_per_s": 19.9 + index / 10,
        "lateness": 0.0012,
        "version_lag": 1.2,
        "rtt_ms": 18.0 + index,
    }
    return WorkerScene(**(values | changes))


def scene(workers: int = 3, **changes: Any) -> Scene:
    """Return the scene of a run that learns."""
    values: dict[str, Any] = {
        "run": "pendulum_sac",
        "version": (1, 412),
        "time_s": NOW,
        "elapsed_s": 1834.0,
        "state": "training",
        "env_steps": 41_200,
        "updates": 39_800,
        "target_return": -200.0,
        "values": {
            "rollout/ep_rew_mean": -231.5,
            "eval/mean_reward": -212.4,
            "train/actor_loss": 31.22,
            "train/critic_loss": 0.8711,
            "train/ent_coef": 0.0123,
            "train/memory_len": 41_200.0,
            "time/fps": 58.2,
            "time/updates_per_s": 55.0,
        },
        "workers": tuple(worker(index) for index in range(workers)),
        "events": (
            SceneEvent(NOW - 1834, "start", "the run starts"),
            SceneEvent(NOW - 1800, "worker_joined", "robot1"),
            SceneEvent(NOW - 60, "checkpoint", "39,000 updates"),
        ),
        "checkpoints": (SceneCheckpoint(NOW - 60, 39_000, "checkpoint-39000"),),
        "policies": (
            ScenePolicy((1, 300), NOW - 400, -420.0),
            ScenePolicy((1, 400), NOW - 100, -212.4),
        ),
        "settings": {"run.name": "pendulum_sac", "trainer.start_training": "1000", "worker.record": "sessions"},
        "takes_orders": True,
    }
    return Scene(**(values | changes))


def history(points: int = 300, steps: int = 41_000, seconds: float = 1830.0) -> History:
    """Return curves of a run that learns."""

    def curve(function: Any, count: int = points) -> tuple[tuple[int, float, float], ...]:
        return tuple(
            (round(steps * (i + 1) / count), seconds * (i + 1) / count, function((i + 1) / count)) for i in range(count)
        )

    def noise(x: float) -> float:
        return math.sin(x * 7919.0) * math.cos(x * 104_729.0)

    def learned(x: float) -> float:
        return -1400.0 + 1200.0 / (1.0 + math.exp(-12.0 * (x - 0.35)))

    return History(
        run="pendulum_sac",
        series={
            "rollout/ep_rew": curve(lambda x: learned(x) + 160.0 * noise(x)),
            "eval/mean_reward": curve(lambda x: learned(x) + 20.0, 12),
            "eval/min_reward": curve(lambda x: learned(x) - 110.0, 12),
            "eval/max_reward": curve(lambda x: learned(x) + 90.0, 12),
            "train/actor_loss": curve(lambda x: 80.0 - 50.0 * x + 5.0 * noise(x)),
            "train/critic_loss": curve(lambda x: 0.8 + 3.0 * math.exp(-6.0 * x) + 0.2 * noise(x)),
            "train/memory_len": curve(lambda x: steps * x),
            "time/fps": curve(lambda x: 58.0 + 3.0 * noise(x)),
            "time/updates_per_s": curve(lambda x: 55.0 + 2.0 * noise(x)),
        },
    )


def peer(role: str, name: str, **changes: Any) -> PeerStatus:
    values: dict[str, Any] = {
        "role": role,
        "name": name,
        "address": "192.0.2.7:40000",
        "run": "pendulum_sac",
        "since_s": 1830.0,
        "heard_s": 0.2,
        "bytes_in": 1,
        "bytes_out": 1,
        "unread_bytes": 0,
    }
    return PeerStatus(**(values | changes))


def status(workers: int = 3, trainer: bool = True, **changes: Any) -> ServerStatus:
    """Return the status of a Server in order."""
    peers = [peer("worker", f"robot{index + 1}") for index in range(workers)]
    values: dict[str, Any] = {
        "clock_s": 1900.0,
        "version": "0.1",
        "uptime_s": 1900.0,
        "memory_bytes": 61_000_000,
        "incarnation": 1,
        "workers": workers,
        "trainer": trainer,
        "peers": (*peers, *([peer("trainer", "trainer")] if trainer else [])),
        "budgets": {"samples": BudgetStatus(used_bytes=0, limit_bytes=1 << 28)},
        "relayed_messages": 1,
        "relayed_samples": 1,
        "relayed_bytes": 1,
        "dropped_messages": 0,
        "discarded_messages": 0,
        "refused_peers": 0,
        "protocol_errors": 0,
    }
    return ServerStatus(**(values | changes))
