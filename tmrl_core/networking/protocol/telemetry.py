"""Telemetry of a run for viewers: the latest values, short histories, and the orders of operators. Sans-I/O."""

# Theory of operation
#
# A viewer is an observer that also watches a run: it sees what the trainer says of itself, which the Server does not
# know. The trainer makes two envelopes, and the relay keeps the latest of each for a run, unread, as it does with
# policies:
#
#     Scene     at most 8 kB    everything that has a present value; each second while somebody watches
#     History   at most 56 kB   each curve in a few hundred points, all settings; when a viewer joins, and every 30 s
#
# Both are complete in themselves. A viewer that joins, or has missed some, needs nothing but the latest of each, so
# nobody counts, repeats or queues them, and a slow viewer holds one of each.
#
# An order goes the other way: viewer -> relay -> trainer. It is signed by its operator (`end_to_end/signed.py`), since
# the relay need not be trusted, and answered in the next Scene, which all viewers see: whoever watches a run sees who
# has paused it.
#
# What a trainer tells was measured by the trainer or said by workers. Texts are of any length there, and shortened
# where they enter a Scene (`metrics/telemetry.py`).

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from tmrl_core.decodable import decodable

MAX_SCENE_BYTES = 8_192
"""Maximum size of an encoded `Scene` without its proof."""
MAX_HISTORY_BYTES = 57_344
"""Maximum size of an encoded `History` without its proof; the message then always fits one frame."""
MAX_ORDER_BYTES = 16_384
"""Maximum size of an order with its proof, which has a certificate."""

State = Literal["collecting", "training", "waiting", "evaluating", "paused", "ended"]
"""State of a trainer.

- `collecting`: samples arrive, and the first update waits for more of them.
- `training`: it makes updates.
- `waiting`: it could train and waits for samples; `Scene.waits` says for which.
- `evaluating`: the final evaluation.
- `paused`: by an order.
- `ended`: the run has ended in order, or by an error, which the last event says.
"""

OrderKind = Literal["pause", "resume", "pause_worker", "resume_worker", "checkpoint", "ratio", "camera", "video"]
"""Kind of an order.

- `pause`, `resume`: no further updates, until resumed. Samples are still received.
- `pause_worker`, `resume_worker`: the worker named in `Order.worker` stops at the end of its episode, until resumed.
- `checkpoint`: write a checkpoint now.
- `ratio`: at most `Order.value` updates for each environment step from now on.
- `camera`: the worker named in `Order.worker` shows its camera for a minute (`pictures.py`).
- `video`: that worker sends the video of its latest evaluation, once.
"""

Point: TypeAlias = tuple[int, float, float]
"""Point of a curve: environment steps, seconds since the run began, and the value."""


class WorkerScene(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One linked worker, as the trainer sees it.

    Args:
        name: its label, as in `PeerStatus.name`.
        since_s: seconds since it joined.
        last_sample_s: seconds since its latest message of samples; None: there was none.
        steps_per_s: environment steps received per second; None: not measured.
        lateness: 99.9th percentile of the lateness of recent steps, in seconds; None: its environment has no rate.
        late_steps: number of late steps since the worker's start.
        version_lag: policy lag of its latest samples, in versions; None: unknown.
        rtt_ms: round-trip time between the worker and the Server, in milliseconds, as the Server measures it; None:
            unknown. The trainer does not know it: the viewer's link adds it.
        drops: number of samples of this worker that never arrived.
        waits: its wait reason; empty: it collects.
        refused: reason why its samples are refused; empty: they are not.
        paused: True: paused by an order.
    """

    name: str
    since_s: float = 0.0
    last_sample_s: float | None = None
    steps_per_s: float | None = None
    lateness: float | None = None
    late_steps: int = 0
    version_lag: float | None = None
    rtt_ms: float | None = None
    drops: int = 0
    waits: str = ""
    refused: str = ""
    paused: bool = False


class SceneEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event of the run: seconds since 1970, its name (`metrics.names`), and a text."""

    time_s: float
    name: str
    message: str


class SceneCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint: seconds since 1970, updates, and the name of its folder."""

    time_s: float
    updates: int
    name: str


class ScenePolicy(msgspec.Struct, frozen=True, array_like=True):
    """An evaluated policy: its version, seconds since 1970, and its mean return; None: unknown."""

    version: tuple[int, int]
    time_s: float
    mean_return: float | None


class OrderOutcome(msgspec.Struct, frozen=True, array_like=True):
    """An order that the trainer has received.

    Args:
        id: as `ViewerLink.order` returns it.
        text: the order in words.
        outcome: `done`, or the reason for which it was refused.
        time_s: seconds since 1970.
        by: name in the operator's certificate.
        done: True: it was carried out.
    """

    id: str
    text: str
    outcome: str
    time_s: float
    by: str = ""
    done: bool = True


@decodable
class Scene(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Latest values of a run.

    Args:
        run: name of the run.
        version: version of the latest policy.
        time_s: time at which the scene was made, in seconds since 1970, by the trainer's clock.
        elapsed_s: seconds since the run began.
        state: see `State`.
        waits: reason why the trainer waits, or the operator that has paused it; empty: it does not.
        env_steps: environment steps received.
        updates: gradient steps.
        target_return: mean return that an evaluation must reach; None: there is none.
        values: latest metrics by their names (`metrics.names`), without those of single workers.
        workers: linked workers, as many as fit; the earliest first.
        workers_left_out: number of workers left out.
        events: latest events, the oldest first, at most 20.
        checkpoints: latest checkpoints, the oldest first, at most 20.
        policies: latest evaluated policies, the oldest first, at most 20.
        settings: settings that differ from the defaults, by their keys, as text.
        orders: latest orders, the oldest first, at most 8.
        takes_orders: True: the trainer checks and obeys orders.
        hidden: reason why values are left out (the run encrypts what its trainer sends); empty: none are.
    """

    run: str
    version: tuple[int, int] = (0, 0)
    time_s: float = 0.0
    elapsed_s: float = 0.0
    state: State = "collecting"
    waits: str = ""
    env_steps: int = 0
    updates: int = 0
    target_return: float | None = None
    values: dict[str, float] = {}
    workers: tuple[WorkerScene, ...] = ()
    workers_left_out: int = 0
    events: tuple[SceneEvent, ...] = ()
    checkpoints: tuple[SceneCheckpoint, ...] = ()
    policies: tuple[ScenePolicy, ...] = ()
    settings: dict[str, str] = {}
    orders: tuple[OrderOutcome, ...] = ()
    takes_orders: bool = False
    hidden: str = ""


@decodable
class History(msgspec.Struct, frozen=True, kw_only=True):
    """Curves of a run.

    Args:
        run: name of the run.
        series: points by the name of the metric (`metrics.names`), the oldest first. `rollout/ep_rew` has the returns
            of training episodes, `eval/mean_reward`, `eval/min_reward` and `eval/max_reward` the evaluations. Where a
            curve has become long, a point is the mean (the lowest, the highest) of neighbouring ones.
        settings: all settings, by their keys, as text; empty: they do not fit.
    """

    run: str
    series: dict[str, tuple[Point, ...]] = {}
    settings: dict[str, str] = {}


@decodable
class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Order of an operator to a trainer.

    Args:
        kind: see `OrderKind`.
        worker: label of the worker, for `pause_worker`, `resume_worker`, `camera` and `video`.
        value: updates for each environment step, for `ratio`.
    """

    kind: OrderKind
    worker: Annotated[str, msgspec.Meta(max_length=300)] = ""
    value: float | None = None

    @property
    def text(self) -> str:
        """The order in words."""
        match self.kind:
            case "pause":
                return "pause training"
            case "resume":
                return "resume training"
            case "pause_worker":
                return f"pause worker {self.worker}"
            case "resume_worker":
                return f"resume worker {self.worker}"
            case "checkpoint":
                return "write a checkpoint"
            case "camera":
                return f"show the camera of {self.worker}"
            case "video":
                return f"show the video of {self.worker}"
            case "ratio":
                return f"at most {self.value:g} updates for each environment step" if self.value else "change the ratio"


@decodable
class OrderEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """An order on its way, with the proof of its origin; see `end_to_end/signed.py`.

    Args:
        run: name of the run.
        id: chosen by the viewer, different for each order.
        scene_s: `Scene.time_s` of the scene that the operator was looking at.
        order: the encoded `Order`.
        by: label of the operator, where nothing proves another name.
        certificate: the operator's, DER; empty: the order is not signed.
        proof: signature by the certificate's key.
    """

    run: Annotated[str, msgspec.Meta(max_length=200)]
    id: Annotated[str, msgspec.Meta(max_length=64)]
    scene_s: float
    order: Annotated[bytes, msgspec.Meta(max_length=2_048)]
    by: Annotated[str, msgspec.Meta(max_length=100)] = ""
    certificate: Annotated[bytes, msgspec.Meta(max_length=8_192)] = b""
    proof: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
