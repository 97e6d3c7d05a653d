"""Records of training: one line of `metrics.jsonl` each.

Everything that shows or stores a metric (files, TensorBoard, wandb, the console, the live display, the learning curve)
reads these records and nothing else. `names.py` defines their names.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from tmrl_core.metrics import names

Kind = Literal["round", "episode", "network", "evaluation", "event"]
"""Kind of a record.

- `round`: one row for each round of training (`memory_len`, `round_time`, means of the agent's metrics, ...).
- `episode`: one finished episode of one worker.
- `network`: traffic and queues, every few seconds, also while training waits for samples.
- `evaluation`: one finished evaluation: deterministic episodes with fixed seeds.
- `event`: something that happened once (`event` names it): start, phase, worker_joined, checkpoint, end, ...
"""

Axis = Literal["env_steps", "updates", "wall_time"]
"""X axes of curves: environment steps received, gradient steps, or seconds since the run began."""

Value = float | int | bool | str | None
"""Value in a record. None represents a number that is not finite, which JSON cannot store."""


class MetricRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        time_s: time in seconds since 1970 (UTC).
        elapsed_s: time in seconds since the run began, of a clock that nobody sets.
        step: number of updates (gradient steps) so far.
        kind: subject of the record.
        values: values by name; see `names.VOCABULARY`.
        env_steps: environment steps received so far; None: unknown.
    """

    time_s: float
    elapsed_s: float
    step: int
    kind: Kind
    values: dict[str, Value]
    env_steps: int | None = None

    @property
    def is_cut(self) -> bool:
        """True: an episode that its environment or the end of a run cut. Its return is left out of means and curves."""
        return self.kind == "episode" and self.values.get(names.END) == "aborted"

    def at(self, axis: Axis) -> float | None:
        """Return the position on an axis; None: unknown."""
        return {"env_steps": self.env_steps, "updates": self.step, "wall_time": self.elapsed_s}[axis]

    def number(self, name: str) -> float | None:
        """Return the value of this name if it is a finite number, else None."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    def numbers(self) -> dict[str, float]:
        """Return the metrics for a chart, without labels; {} for a cut episode.

        True and False become 1 and 0; values that are not finite are included.
        """
        if self.is_cut:
            return {}
        return {
            name: float(value) for name, value in self.values.items() if "/" in name and isinstance(value, int | float)
        }

    def text(self, name: str) -> str:
        """Return the value of this name as text; "": there is none."""
        value = self.values.get(name)
        return "" if value is None else str(value)


@runtime_checkable
class _Scalar(Protocol):
    """scalar of numpy or torch"""

    def item(self) -> Any: ...


def plain(value: Any) -> Value:
    """Return a value in the form of a record: a scalar of numpy or torch as Python's, another object as its `str`.

    Args:
        value: scalar, array or tensor of one element, text, or None.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    if isinstance(value, _Scalar):
        # an array or tensor with another number of elements than one raises
        try:
            return plain(value.item())
        except (ValueError, RuntimeError, TypeError):
            return str(value)
    if isinstance(value, bool | int | float):
        return float(value) if isinstance(value, float) else int(value)
    return str(value)


def record(
    kind: Kind,
    values: Mapping[str, Any],
    *,
    step: int,
    elapsed_s: float,
    time_s: float | None = None,
) -> MetricRecord:
    """Create a record.

    Args:
        kind: subject of the record.
        values: values by name, also by the names of rows (`names.OF_ROWS`); `plain` converts them. Statistics over no
            episodes (NaN in `rollout/`) are left out.
        step: number of updates so far.
        elapsed_s: seconds since the run began. It is not computed from `time_s`, since the wall clock may be set.
        time_s: seconds since 1970; None: the present time.
    """
    named: dict[str, Value] = {}
    for short, value in values.items():
        name, simple = names.metric_name(str(short), kind), plain(value)
        # A statistic over no episodes is NaN.
        if simple == simple or not name.startswith("rollout/"):
            named[name] = simple
    steps = named.get(names.SAMPLES_RECEIVED)
    return MetricRecord(
        time_s=time.time() if time_s is None else time_s,
        elapsed_s=elapsed_s,
        step=int(step),
        kind=kind,
        values=named,
        env_steps=int(steps) if isinstance(steps, int | float) and math.isfinite(steps) else None,
    )


def episode_values(
    *,
    worker: str,
    mode: Literal["train", "test"],
    episode_return: float,
    length: int,
    samples_received: int,
    agent: str = "",
    end: str = "",
    version: tuple[int, int] = (0, 0),
    seed: int | None = None,
    evaluation: int | None = None,
    metrics: Mapping[str, float] | None = None,
) -> dict[str, Value]:
    """Return the values of an `episode` record under their names.

    An episode of an evaluation does not count as a test episode.
    """
    if mode == "train":
        returns, lengths = names.RETURN_TRAIN, names.EPISODE_LENGTH_TRAIN
    elif evaluation is None:
        returns, lengths = names.RETURN_TEST, names.EPISODE_LENGTH_TEST
    else:
        returns, lengths = names.EVALUATION_EPISODE_RETURN, names.EVALUATION_EPISODE_LENGTH
    values: dict[str, Value] = {
        **{f"{returns.removesuffix('rew')}info/{name}": value for name, value in (metrics or {}).items()},
        names.WORKER: worker,
        names.MODE: mode,
        returns: float(episode_return),
        lengths: int(length),
        names.SAMPLES_RECEIVED: int(samples_received),
        names.VERSION: f"{version[0]}.{version[1]}",
    }
    if agent:
        values[names.AGENT] = agent
    if end:
        values[names.END] = end
    if seed is not None:
        values[names.SEED] = int(seed)
    if evaluation is not None:
        values[names.EVALUATION] = int(evaluation)
    return values


# Made once: their types are compiled when they are made.
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(MetricRecord)


def encode_line(record: MetricRecord) -> bytes:
    r"""Return the record as one line of JSON with its "\n"; a number that is not finite becomes null."""
    return _encoder.encode(record) + b"\n"


def decode_line(line: bytes) -> MetricRecord:
    """Return the record in a line.

    Raises:
        msgspec.DecodeError: the line is incomplete, or not a record.
    """
    try:
        return _decoder.decode(line)
    except RecursionError as exc:  # a line may be anything: a file was damaged, or is somebody else's
        raise msgspec.DecodeError("it is nested too deeply") from exc
