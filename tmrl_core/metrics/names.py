"""The names of metrics: one vocabulary for `metrics.jsonl`, TensorBoard and wandb, and the table from rows to it.

A metric's name is `group/name`. Names that stable-baselines3 has are its names; the others follow its groups. The
groups of the plumbing (`wire`, `worker`) sort behind those of learning. A name without a slash is a label of the record
(the worker, a seed, a message) and is not plotted.

Rows of `run_epoch` and the console keep the short names of `OF_ROWS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Axes: every record can be placed on each.
SAMPLES_RECEIVED: Final = "time/total_timesteps"
ELAPSED: Final = "time/time_elapsed"
UPDATES: Final = "train/n_updates"

# Episodes, one in a record of its own or the latest; means are of the latest `MEAN_OF` or of a lockstep round.
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

# Workers, and what the network does.
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

# Names of events that displays know; any other is shown as it comes.
EVENT_START: Final = "start"
"""The run begins or goes on: `run_name`, `return_target` if there is one. With step 0 it is a new run."""
EVENT_PHASE: Final = "phase"
"""The run begins another activity, named in `phase`."""
EVENT_WORKER_JOINED: Final = "worker_joined"
EVENT_WORKER_LEFT: Final = "worker_left"
EVENT_CHECKPOINT: Final = "checkpoint"
EVENT_TARGET: Final = "target"
"""An evaluation has reached the target; a second one, of the policy as it is then, confirms that or does not."""
EVENT_LEARNED: Final = "learned"
"""The second evaluation has reached the target too: training ends."""
EVENT_END: Final = "end"

MEAN_OF: Final = 100
"""Episodes in the means of `rollout/`, as in stable-baselines3."""

VOCABULARY: Final[Mapping[str, str]] = {
    SAMPLES_RECEIVED: "environment steps that the trainer has received since the run began (resets count as one)",
    ELAPSED: "seconds since the run began",
    UPDATES: "gradient steps since the run began; of an evaluation: those of its policy",
    RETURN_TRAIN: "return of a training episode (with exploration)",
    EPISODE_LENGTH_TRAIN: "steps of a training episode",
    RETURN_TEST: "return of a worker's test episode (without exploration)",
    EPISODE_LENGTH_TEST: "steps of a test episode",
    RETURN_MEAN: f"mean return of the latest {MEAN_OF} training episodes; in lockstep of the round's",
    RETURN_MIN: "lowest return in a lockstep round",
    RETURN_MAX: "highest return in a lockstep round",
    EPISODE_LENGTH_MEAN: f"mean steps of the latest {MEAN_OF} training episodes; in lockstep of the round's",
    ROUND_EPISODES: "episodes that ended in a lockstep round",
    RETURN_EVALUATION: "mean return of an evaluation's episodes (without exploration, fixed seeds)",
    RETURN_EVALUATION_STD: "standard deviation of an evaluation's returns",
    RETURN_EVALUATION_MIN: "lowest return in an evaluation",
    RETURN_EVALUATION_MAX: "highest return in an evaluation",
    RETURN_TARGET: "the mean return at which an evaluation counts as learned",
    EPISODE_LENGTH_EVALUATION: "mean steps of an evaluation's episodes",
    EPISODES: "episodes of an evaluation",
    EVALUATION_EPISODE_RETURN: "return of one episode of an evaluation",
    EVALUATION_EPISODE_LENGTH: "steps of one episode of an evaluation",
    EPOCH: "number of the epoch, from 0",
    ROUND: "number of the round in its epoch, from 0",
    ROUNDS: "lockstep rounds since the run began",
    ROUND_TIME: "seconds that the round took",
    IDLE_TIME: "seconds of the round that training waited for samples",
    SAMPLING_DURATION: "mean seconds to draw one batch",
    TRAINING_STEP_DURATION: "mean seconds of one update",
    SAMPLES_PER_S: "environment steps received a second",
    UPDATES_PER_S: "updates a second",
    MEMORY_LEN: "samples in the replay memory",
    MEMORY_FILL: "share of the replay memory's capacity that is used",
    LOSS_ACTOR: "mean loss of the policy",
    LOSS_CRITIC: "mean loss of the critics",
    LOSS_ENTROPY: "mean loss of the entropy temperature",
    ENTROPY_COEF: "the entropy temperature (alpha)",
    LEARNING_RATE: "learning rate; `train/learning_rate_<optimizer>` where an optimizer has another",
    Q_MEAN: "mean of the critics' values of the transitions trained on",
    APPROX_KL: "mean KL divergence of the policy from the one that collected",
    DRAWN_LAG_MEAN: "versions that the policies of what was trained on were behind, mean",
    DRAWN_LAG_MAX: "versions that the policies of what was trained on were behind, highest",
    WORKERS: "workers that are connected",
    POLICY_LAG_MEAN: "mean, over the samples that came in, of policy versions published since the one that made them",
    POLICY_LAG_MAX: "highest policy lag of the samples that came in",
    CONNECTED: "1: the trainer's link is up",
    QUEUE_BYTES: "bytes received that wait for the training thread",
    SAMPLES_DROPPED: "samples that never came: workers dropped them, or died with them (counted from gaps)",
    SAMPLES_STALE: "samples discarded because their policy was too old",
    GAPS: "gaps in the numbering of messages, each at least one message",
    DUPLICATES: "messages that arrived again and were only acknowledged again",
    REFUSED: "messages that the memory refused",
    OTHER_RUN: "messages of another run, discarded",
    RECONNECTS: "times that the trainer's link was made anew",
    REDISTRIBUTED: "lockstep shares that were given to other workers",
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
    LACK: "what a trainer that waits is waiting for",
    WAITING: "workers that wait: how many, and what the first of them waits for",
}
"""Every name and what it means. Besides: `train/<name>` for an agent's further metrics, `train/grad_norm_<optimizer>`
(of the round's last update), `worker/<worker>/steps_per_s`; out of the infos of the latest training episodes the means
`rollout/success_rate` and `rollout/info/<key>`, of evaluations the same under `eval/`, of one episode
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
"""Names in rows, in the console and in records of earlier versions, with those of records. Further metrics of a row are
`train/<name>`, and `loss_<name>` is `train/<name>_loss`."""

_OTHERWISE: Final[Mapping[tuple[str, str], str]] = {
    ("evaluation", "episodes"): EPISODES,
    ("episode", "return_evaluation"): EVALUATION_EPISODE_RETURN,
    ("episode", "episode_length_evaluation"): EVALUATION_EPISODE_LENGTH,
}
"""Short names that stand for something else in records of some kinds."""

_SHORT: Final = {name: short for short, name in OF_ROWS.items()}


def of_row(short: str, kind: str = "round") -> str:
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


def of_rows(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under their names in records, without the statistics of episodes that there were none of (NaN)."""
    named = {of_row(str(name), kind): value for name, value in values.items()}
    return {name: value for name, value in named.items() if not (name.startswith("rollout/") and value != value)}
