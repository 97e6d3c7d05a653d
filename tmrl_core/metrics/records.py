"""The record: what training measures, one line of `metrics.jsonl`, and the one vocabulary of names in it.

Everything that wants to show or keep a number (files, TensorBoard, wandb, the console, the live display, the learning
curve) reads these records and nothing else. A name means the same in every kind of record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

Kind = Literal["round", "episode", "network", "evaluation", "event"]
"""What a record is about.

- `round`: one row for each round of training (`memory_len`, `round_time`, means of the agent's metrics, ...).
- `episode`: one finished episode of one worker.
- `network`: what travelled and what waits, every few seconds, also while training waits for samples.
- `evaluation`: one finished evaluation, that is deterministic episodes of fixed seeds.
- `event`: something that happened once (`event` names it): start, phase, worker_joined, checkpoint, end, ...
"""

Value = float | int | bool | str | None
"""What a record can hold. None stands for a number that is not finite, which JSON cannot write."""

# How the run goes: in records of every kind, so that each can be placed on both axes of a curve.
SAMPLES_RECEIVED: Final = "samples_received"
ELAPSED: Final = "elapsed_s"
UPDATES: Final = "updates"

# Returns. In an episode's record they are that episode's, in a round's the latest (of training) or the mean.
RETURN_TRAIN: Final = "return_train"
RETURN_TEST: Final = "return_test"
RETURN_EVALUATION: Final = "return_evaluation"
RETURN_EVALUATION_STD: Final = "return_evaluation_std"
RETURN_EVALUATION_MIN: Final = "return_evaluation_min"
RETURN_EVALUATION_MAX: Final = "return_evaluation_max"
RETURN_TARGET: Final = "return_target"
EPISODE_LENGTH_TRAIN: Final = "episode_length_train"
EPISODE_LENGTH_TEST: Final = "episode_length_test"
EPISODE_LENGTH_EVALUATION: Final = "episode_length_evaluation"
EPISODES: Final = "episodes"

# A round of training.
EPOCH: Final = "epoch"
ROUND: Final = "round"
MEMORY_LEN: Final = "memory_len"
ROUND_TIME: Final = "round_time"
IDLE_TIME: Final = "idle_time"
SAMPLING_DURATION: Final = "sampling_duration"
TRAINING_STEP_DURATION: Final = "training_step_duration"
LOSS_PREFIX: Final = "loss_"
LOSS_ACTOR: Final = "loss_actor"
LOSS_CRITIC: Final = "loss_critic"
LOSS_ENTROPY: Final = "loss_entropy"
ENTROPY_COEF: Final = "entropy_coef"

# Rates and what the network does.
SAMPLES_PER_S: Final = "samples_per_s"
UPDATES_PER_S: Final = "updates_per_s"
POLICY_LAG_MEAN: Final = "policy_lag_mean"
POLICY_LAG_MAX: Final = "policy_lag_max"
DRAWN_LAG_MEAN: Final = "drawn_lag_mean"
DRAWN_LAG_MAX: Final = "drawn_lag_max"
QUEUE_BYTES: Final = "queue_bytes"
SAMPLES_DROPPED: Final = "samples_dropped"
SAMPLES_STALE: Final = "samples_stale"
GAPS: Final = "gaps"
DUPLICATES: Final = "duplicates"
REFUSED: Final = "refused"
OTHER_RUN: Final = "other_run"
RECONNECTS: Final = "reconnects"
WORKERS: Final = "workers"
CONNECTED: Final = "connected"
LACK: Final = "lack"

# Labels.
WORKER: Final = "worker"
AGENT: Final = "agent"
MODE: Final = "mode"
END: Final = "end"
SEED: Final = "seed"
VERSION: Final = "version"
EVALUATION: Final = "evaluation"
EVENT: Final = "event"
MESSAGE: Final = "message"
PHASE: Final = "phase"
RUN_NAME: Final = "run_name"

# Names of events that displays know; any other is shown as it comes.
EVENT_START: Final = "start"
"""The run begins or goes on: `run_name`, `return_target` if there is one. With step 0 it is a new run."""
EVENT_PHASE: Final = "phase"
"""What the run does from now on: `phase`."""
EVENT_WORKER_JOINED: Final = "worker_joined"
EVENT_WORKER_LEFT: Final = "worker_left"
EVENT_CHECKPOINT: Final = "checkpoint"
EVENT_TARGET: Final = "target"
"""An evaluation has reached the target; a second one, of the policy as it is then, confirms that or does not."""
EVENT_LEARNED: Final = "learned"
"""The second evaluation has reached the target too: training ends."""
EVENT_END: Final = "end"

VOCABULARY: Final[Mapping[str, str]] = {
    SAMPLES_RECEIVED: "environment steps that the trainer has received since the run began (resets count as one)",
    ELAPSED: "seconds since the run began",
    UPDATES: "gradient steps since the run began",
    RETURN_TRAIN: "return of a training episode (with exploration)",
    RETURN_TEST: "return of a worker's test episode (without exploration)",
    RETURN_EVALUATION: "mean return of an evaluation's episodes (without exploration, fixed seeds)",
    RETURN_EVALUATION_STD: "standard deviation of an evaluation's returns",
    RETURN_EVALUATION_MIN: "lowest return in an evaluation",
    RETURN_EVALUATION_MAX: "highest return in an evaluation",
    RETURN_TARGET: "the mean return at which an evaluation counts as learned",
    EPISODE_LENGTH_TRAIN: "steps of a training episode",
    EPISODE_LENGTH_TEST: "steps of a test episode",
    EPISODE_LENGTH_EVALUATION: "mean steps of an evaluation's episodes",
    EPISODES: "how many episodes the row stands for",
    EPOCH: "number of the epoch, from 0",
    ROUND: "number of the round in its epoch, from 0",
    MEMORY_LEN: "samples in the replay memory",
    ROUND_TIME: "seconds that the round took",
    IDLE_TIME: "seconds of the round that training waited for samples",
    SAMPLING_DURATION: "mean seconds to draw one batch",
    TRAINING_STEP_DURATION: "mean seconds of one update",
    LOSS_ACTOR: "mean loss of the policy",
    LOSS_CRITIC: "mean loss of the critics",
    LOSS_ENTROPY: "mean loss of the entropy temperature",
    ENTROPY_COEF: "the entropy temperature (alpha)",
    SAMPLES_PER_S: "environment steps received a second",
    UPDATES_PER_S: "updates a second",
    POLICY_LAG_MEAN: "mean, over the samples that came in, of policy versions published since the one that made them",
    POLICY_LAG_MAX: "highest policy lag of the samples that came in",
    DRAWN_LAG_MEAN: "versions that the policies of what was trained on were behind, mean",
    DRAWN_LAG_MAX: "versions that the policies of what was trained on were behind, highest",
    QUEUE_BYTES: "bytes received that wait for the training thread",
    SAMPLES_DROPPED: "samples that never came: workers dropped them, or died with them (counted from gaps)",
    SAMPLES_STALE: "samples discarded because their policy was too old",
    GAPS: "gaps in the numbering of messages, each at least one message",
    DUPLICATES: "messages that arrived again and were only acknowledged again",
    REFUSED: "messages that the memory refused",
    OTHER_RUN: "messages of another run, discarded",
    RECONNECTS: "times that the trainer's link was made anew",
    WORKERS: "workers that are connected",
    CONNECTED: "whether the trainer's link is up",
    LACK: "what a trainer that waits is waiting for",
    WORKER: "name of the worker",
    AGENT: "id of the agent whose return it is",
    MODE: "train or test",
    END: "how the episode ended: terminated, truncated or aborted",
    SEED: "seed of the episode's reset",
    VERSION: "policy version, incarnation.counter",
    EVALUATION: "number of the evaluation",
    EVENT: "name of what happened",
    MESSAGE: "what happened, in words",
    PHASE: "waiting, collecting, learning, evaluating or done",
    RUN_NAME: "name of the run",
}
"""Every name and what it means. Names that begin with `loss_` and further ones from an agent's metrics are welcome."""


class MetricRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Args:
        time_s: when, in seconds since 1970 (UTC).
        elapsed_s: when, in seconds since the run began.
        step: updates (gradient steps) done by then.
        kind: what it is about.
        values: by name; see `VOCABULARY`.
    """

    time_s: float
    elapsed_s: float
    step: int
    kind: Kind
    values: dict[str, Value]

    def number(self, name: str) -> float | None:
        """Return the value of this name if it is a finite number, else None."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    def numbers(self) -> dict[str, float]:
        """Return the values that are numbers, True and False as 1 and 0, those that are not finite included."""
        return {name: float(value) for name, value in self.values.items() if isinstance(value, int | float)}

    def text(self, name: str) -> str:
        """Return the value of this name as text, "" if there is none."""
        value = self.values.get(name)
        return "" if value is None else str(value)


def plain(values: Mapping[str, Any]) -> dict[str, Value]:
    """Return values as a record holds them: scalars of numpy or torch as Python's own, other objects as their `str`.

    Args:
        values: by name; scalars, one-element arrays and tensors, text, None.
    """
    return {str(name): _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Value:
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", 1) != 0:
        # A scalar of numpy or torch: its item() fails where it has several elements. tensor.size is a method: not 0.
        try:
            return _plain(item())
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
    started_s: float,
    now_s: float | None = None,
) -> MetricRecord:
    """Make a record of now.

    Args:
        kind: what it is about.
        values: by name; see `plain` for what becomes of them.
        step: updates done so far.
        started_s: when the run began, in seconds since 1970; over a resume, now minus what had elapsed before.
        now_s: seconds since 1970; None: the clock's.
    """
    now_s = time.time() if now_s is None else now_s
    return MetricRecord(
        time_s=now_s, elapsed_s=max(0.0, now_s - started_s), step=int(step), kind=kind, values=plain(values)
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
) -> dict[str, Value]:
    """Return the values of an `episode` record under their names.

    An episode that belongs to an evaluation counts as one of `return_evaluation`, not of `return_test`.
    """
    if mode == "train":
        returns, lengths = RETURN_TRAIN, EPISODE_LENGTH_TRAIN
    elif evaluation is None:
        returns, lengths = RETURN_TEST, EPISODE_LENGTH_TEST
    else:
        returns, lengths = RETURN_EVALUATION, EPISODE_LENGTH_EVALUATION
    values: dict[str, Value] = {
        WORKER: worker,
        MODE: mode,
        returns: float(episode_return),
        lengths: int(length),
        SAMPLES_RECEIVED: int(samples_received),
        VERSION: f"{version[0]}.{version[1]}",
    }
    if agent:
        values[AGENT] = agent
    if end:
        values[END] = end
    if seed is not None:
        values[SEED] = int(seed)
    if evaluation is not None:
        values[EVALUATION] = int(evaluation)
    return values


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(MetricRecord)


def encode_line(record: MetricRecord) -> bytes:
    r"""Return the record as one line of JSON with its "\n"; a number that is not finite becomes null."""
    return _encoder.encode(record) + b"\n"


def decode_line(line: bytes) -> MetricRecord:
    """Return the record that a line holds.

    Raises:
        msgspec.DecodeError: the line is torn, or is no record.
    """
    return _decoder.decode(line)
