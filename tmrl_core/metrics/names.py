"""Names of metrics: one vocabulary for `metrics.jsonl`, TensorBoard and wandb, and the table from rows to it.

A metric's name is `group/name`. Names follow stable-baselines3 where it has the metric; the others use its groups. The
groups of the network (`wire`, `worker`) sort after the groups of learning. A name without a slash is a label of the
record (a worker, a seed, a message) and is not plotted.

Rows of `run_epoch` and the console keep the short names of `OF_ROWS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Axes: every record has a value on each.
SAMPLES_RECEIVED: Final = "time/total_timesteps"
ELAPSED: Final = "time/time_elapsed"
UPDATES: Final = "train/n_updates"

# Episodes: a record for each, or the latest. Means are over the latest `MEAN_OF`, or over a lockstep round.
RETURN_TRAIN: Final = "rollout/ep_rew"
EPISODE_LENGTH_TRAIN: Final = "rollout/ep_len"
RETURN_TEST: Final = "rollout/test_ep_rew"
EPISODE_LENGTH_TEST: Final = "rollout/test_ep_len"
RETURN_MEAN: Final = "rollout/ep_rew_mean"
RETURN_MIN: Final = "rollout/ep_rew_min"
RETURN_MAX: Final = "rollout/ep_rew_max"
EPISODE_LENGTH_MEAN: Final = "rollout/ep_len_mean"
ROUND_EPISODES: Final = "rollout/episodes"

# Evaluations.
RETURN_EVALUATION: Final = "eval/mean_reward"
RETURN_EVALUATION_STD: Final = "eval/std_reward"
RETURN_EVALUATION_MIN: Final = "eval/min_reward"
RETURN_EVALUATION_MAX: Final = "eval/max_reward"
RETURN_TARGET: Final = "eval/target_reward"
EPISODE_LENGTH_EVALUATION: Final = "eval/mean_ep_length"
EPISODES: Final = "eval/episodes"
EVALUATION_EPISODE_RETURN: Final = "eval/ep_rew"
EVALUATION_EPISODE_LENGTH: Final = "eval/ep_len"

# A round of training.
EPOCH: Final = "time/epoch"
ROUND: Final = "time/round"
ROUNDS: Final = "time/iterations"
ROUND_TIME: Final = "time/round_time"
IDLE_TIME: Final = "time/idle_time"
SAMPLING_DURATION: Final = "time/sampling_duration"
TRAINING_STEP_DURATION: Final = "time/training_step_duration"
SAMPLES_PER_S: Final = "time/fps"
UPDATES_PER_S: Final = "time/updates_per_s"
MEMORY_LEN: Final = "train/memory_len"
MEMORY_FILL: Final = "train/memory_fill"
LOSS_ACTOR: Final = "train/actor_loss"
LOSS_CRITIC: Final = "train/critic_loss"
LOSS_ENTROPY: Final = "train/ent_coef_loss"
ENTROPY_COEF: Final = "train/ent_coef"
LEARNING_RATE: Final = "train/learning_rate"
Q_MEAN: Final = "train/q_mean"
APPROX_KL: Final = "train/approx_kl"
DRAWN_LAG_MEAN: Final = "train/drawn_lag_mean"
DRAWN_LAG_MAX: Final = "train/drawn_lag_max"

# Workers and the network.
WORKERS: Final = "worker/count"
POLICY_LAG_MEAN: Final = "worker/policy_lag_mean"
POLICY_LAG_MAX: Final = "worker/policy_lag_max"
CONNECTED: Final = "wire/connected"
QUEUE_BYTES: Final = "wire/queue_bytes"
SAMPLES_DROPPED: Final = "wire/samples_dropped"
SAMPLES_STALE: Final = "wire/samples_stale"
GAPS: Final = "wire/gaps"
DUPLICATES: Final = "wire/duplicates"
REFUSED: Final = "wire/refused"
OTHER_RUN: Final = "wire/other_run"
RECONNECTS: Final = "wire/reconnects"
REDISTRIBUTED: Final = "wire/redistributed"

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
LACK: Final = "lack"
WAITING: Final = "waiting"

# Names of events that displays know. Other names are shown unchanged.
EVENT_START: Final = "start"
"""The run starts or resumes: `run_name`, `return_target` if it is set. Step 0 means a new run."""
EVENT_PHASE: Final = "phase"
"""The run enters another phase, named in `phase`."""
EVENT_WORKER_JOINED: Final = "worker_joined"
EVENT_WORKER_LEFT: Final = "worker_left"
EVENT_CHECKPOINT: Final = "checkpoint"
EVENT_TARGET: Final = "target"
"""An evaluation has reached the target. A second one, of the policy at that time, decides."""
EVENT_LEARNED: Final = "learned"
"""The second evaluation has reached the target too. Training ends."""
EVENT_END: Final = "end"

MEAN_OF: Final = 100
"""Number of episodes in the means of `rollout/`, as in stable-baselines3."""

VOCABULARY: Final[Mapping[str, str]] = {
    SAMPLES_RECEIVED: "environment steps received by the trainer since the start of the run (a reset counts as one)",
    ELAPSED: "seconds since the start of the run",
    UPDATES: "updates since the start of the run; for an evaluation: the updates of its policy",
    RETURN_TRAIN: "return of a training episode (with exploration)",
    EPISODE_LENGTH_TRAIN: "length of a training episode, in steps",
    RETURN_TEST: "return of a worker's test episode (without exploration)",
    EPISODE_LENGTH_TEST: "length of a test episode, in steps",
    RETURN_MEAN: f"mean return of the latest {MEAN_OF} training episodes; in lockstep: of the round",
    RETURN_MIN: "lowest return of a lockstep round",
    RETURN_MAX: "highest return of a lockstep round",
    EPISODE_LENGTH_MEAN: f"mean length of the latest {MEAN_OF} training episodes, in steps; in lockstep: of the round",
    ROUND_EPISODES: "number of episodes that ended in a lockstep round",
    RETURN_EVALUATION: "mean return of an evaluation's episodes (without exploration, fixed seeds)",
    RETURN_EVALUATION_STD: "standard deviation of an evaluation's returns",
    RETURN_EVALUATION_MIN: "lowest return in an evaluation",
    RETURN_EVALUATION_MAX: "highest return in an evaluation",
    RETURN_TARGET: "mean return that an evaluation must reach",
    EPISODE_LENGTH_EVALUATION: "mean length of an evaluation's episodes, in steps",
    EPISODES: "number of episodes of an evaluation",
    EVALUATION_EPISODE_RETURN: "return of one episode of an evaluation",
    EVALUATION_EPISODE_LENGTH: "length of one episode of an evaluation, in steps",
    EPOCH: "number of the epoch, from 0",
    ROUND: "number of the round in its epoch, from 0",
    ROUNDS: "lockstep rounds since the start of the run",
    ROUND_TIME: "duration of the round, in seconds",
    IDLE_TIME: "seconds of the round in which training waited for samples",
    SAMPLING_DURATION: "mean seconds to sample one batch",
    TRAINING_STEP_DURATION: "mean duration of one update, in seconds",
    SAMPLES_PER_S: "environment steps received per second",
    UPDATES_PER_S: "updates per second",
    MEMORY_LEN: "samples in the replay memory",
    MEMORY_FILL: "used fraction of the replay memory's capacity",
    LOSS_ACTOR: "mean loss of the policy",
    LOSS_CRITIC: "mean loss of the critics",
    LOSS_ENTROPY: "mean loss of the entropy coefficient",
    ENTROPY_COEF: "entropy coefficient (temperature alpha)",
    LEARNING_RATE: "learning rate; `train/learning_rate_<optimizer>` if an optimizer has a different one",
    Q_MEAN: "mean value of the critics for the transitions trained on",
    APPROX_KL: "mean KL divergence between the policy and the one that collected the samples",
    DRAWN_LAG_MEAN: "mean policy lag of the transitions trained on, in versions",
    DRAWN_LAG_MAX: "highest policy lag of the transitions trained on, in versions",
    WORKERS: "number of connected workers",
    POLICY_LAG_MEAN: "mean policy lag of the received samples, in versions",
    POLICY_LAG_MAX: "highest policy lag of the received samples, in versions",
    CONNECTED: "1: the trainer's link is connected",
    QUEUE_BYTES: "received bytes that wait for the training thread",
    SAMPLES_DROPPED: "samples that never arrived: workers dropped them or crashed (counted from gaps)",
    SAMPLES_STALE: "samples discarded because of their policy lag",
    GAPS: "gaps in the message numbers; each gap is at least one message",
    DUPLICATES: "duplicate messages, which are acknowledged again and not stored",
    REFUSED: "messages that the memory refused",
    OTHER_RUN: "discarded messages of another run",
    RECONNECTS: "reconnections of the trainer's link",
    REDISTRIBUTED: "lockstep assignments that were moved to other workers",
    WORKER: "name of the worker",
    AGENT: "id of the agent whose return it is",
    MODE: "train or test",
    END: "end of the episode: terminated, truncated or aborted",
    SEED: "seed of the episode's reset",
    VERSION: "policy version, incarnation.counter",
    EVALUATION: "number of the evaluation",
    EVENT: "name of the event",
    MESSAGE: "description of the event",
    PHASE: "waiting, collecting, learning, evaluating or done",
    RUN_NAME: "name of the run",
    LACK: "reason why the trainer waits",
    WAITING: "number of waiting workers, and the reason of the first one",
}
"""Every name with its meaning.

Further names: `train/<name>` for other metrics of an agent, `train/grad_norm_<optimizer>` (of the last update of the
round), `worker/<worker>/steps_per_s`. The infos of the latest training episodes give the means `rollout/success_rate`
and `rollout/info/<key>`, those of evaluations the same names under `eval/`, and those of one episode
`rollout/ep_info/<key>`."""

OF_ROWS: Final[Mapping[str, str]] = {
    "samples_received": SAMPLES_RECEIVED,
    "elapsed_s": ELAPSED,
    "updates": UPDATES,
    "return_train": RETURN_TRAIN,
    "episode_length_train": EPISODE_LENGTH_TRAIN,
    "return_test": RETURN_TEST,
    "episode_length_test": EPISODE_LENGTH_TEST,
    "return_mean": RETURN_MEAN,
    "return_min": RETURN_MIN,
    "return_max": RETURN_MAX,
    "episode_length_mean": EPISODE_LENGTH_MEAN,
    "episodes": ROUND_EPISODES,
    "success_rate": "rollout/success_rate",
    "return_evaluation": RETURN_EVALUATION,
    "return_evaluation_std": RETURN_EVALUATION_STD,
    "return_evaluation_min": RETURN_EVALUATION_MIN,
    "return_evaluation_max": RETURN_EVALUATION_MAX,
    "return_target": RETURN_TARGET,
    "episode_length_evaluation": EPISODE_LENGTH_EVALUATION,
    "epoch": EPOCH,
    "round": ROUND,
    "rounds": ROUNDS,
    "round_time": ROUND_TIME,
    "idle_time": IDLE_TIME,
    "sampling_duration": SAMPLING_DURATION,
    "training_step_duration": TRAINING_STEP_DURATION,
    "samples_per_s": SAMPLES_PER_S,
    "updates_per_s": UPDATES_PER_S,
    "memory_len": MEMORY_LEN,
    "loss_entropy": LOSS_ENTROPY,
    "entropy_coef": ENTROPY_COEF,
    "kl": APPROX_KL,
    "workers": WORKERS,
    "policy_lag_mean": POLICY_LAG_MEAN,
    "policy_lag_max": POLICY_LAG_MAX,
    "connected": CONNECTED,
    "queue_bytes": QUEUE_BYTES,
    "samples_dropped": SAMPLES_DROPPED,
    "samples_stale": SAMPLES_STALE,
    "gaps": GAPS,
    "duplicates": DUPLICATES,
    "refused": REFUSED,
    "other_run": OTHER_RUN,
    "reconnects": RECONNECTS,
    "redistributed": REDISTRIBUTED,
}
"""Names in rows, on the console and in records of earlier versions, with the names in records. Further metrics of a row
are `train/<name>`, and `loss_<name>` is `train/<name>_loss`."""

_OTHERWISE: Final[Mapping[tuple[str, str], str]] = {
    ("evaluation", "episodes"): EPISODES,
    ("episode", "return_evaluation"): EVALUATION_EPISODE_RETURN,
    ("episode", "episode_length_evaluation"): EVALUATION_EPISODE_LENGTH,
}
"""Short names that have another meaning in records of some kinds."""

_SHORT: Final = {name: short for short, name in OF_ROWS.items()}


def metric_name(short: str, kind: str = "round") -> str:
    """Return the name in records of a name in rows; names of records and labels stay as they are."""
    if "/" in short or short in VOCABULARY:
        return short
    known = _OTHERWISE.get((kind, short)) or OF_ROWS.get(short)
    if known is not None or kind != "round":
        return known or short
    return f"train/{short.removeprefix('loss_')}_loss" if short.startswith("loss_") else f"train/{short}"


def short(name: str) -> str:
    """Return the name in rows and on the console of a name in records."""
    if name in _SHORT:
        return _SHORT[name]
    if name.startswith("train/"):
        name = name.removeprefix("train/")
        return f"loss_{name.removesuffix('_loss')}" if name.endswith("_loss") else name
    return name


def with_metric_names(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under their names in records, without statistics over no episodes (NaN)."""
    named = {metric_name(str(name), kind): value for name, value in values.items()}
    return {name: value for name, value in named.items() if not (name.startswith("rollout/") and value != value)}
