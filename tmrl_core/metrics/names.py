"""Names of metrics: one vocabulary for `metrics.jsonl`, TensorBoard and wandb, and the table from rows to it.

A metric's name is `group/name`. Names follow stable-baselines3 where it has the metric; other names use its groups. The
groups of the network (`wire`, `worker`) sort after the groups of learning. A name without a slash is a label of the
record (a worker, a seed, a message) and is not plotted.

Rows of `run_epoch` and the console keep the short names of `OF_ROWS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEAN_OF: Final = 100
"""Number of episodes in the means of `rollout/`, as in stable-baselines3."""

VOCABULARY: Final[dict[str, str]] = {}
"""Every name with its meaning.

Further names: `train/<name>` for other metrics of an agent, `train/grad_norm_<optimizer>` (of the last update of the
round), `worker/<worker>/steps_per_s`; for environments with a rate `worker/<worker>/late_steps` (since the worker's
start) and `worker/<worker>/lateness_p999` (99.9th percentile of recent steps, in seconds); beside a person
`worker/<worker>/intervention_rate` (share of the steps since the latest record that the person acted),
`rollout/intervention_rate` (mean over the latest episodes) and `rollout/takeovers` (mean number in an episode); with
many agents `train/<policy>/<name>` and `rollout/experiences/<agent>`, the number of an agent's experiences in the
round (of more than 100 `train/<name>`, their mean, and `rollout/experiences`, their sum). The infos of the latest
training episodes give the means `rollout/success_rate` and `rollout/info/<key>`, those of evaluations the same names
under `eval/`, and those of one episode `rollout/ep_info/<key>`."""

OF_ROWS: Final[dict[str, str]] = {
    "success_rate": "rollout/success_rate",
    "intervention_rate": "rollout/intervention_rate",
    "takeovers": "rollout/takeovers",
}
"""Map from names in rows and on the console to names in records. Further metrics of a row become `train/<name>`, and
`loss_<name>` becomes `train/<name>_loss`."""


def _name(name: str, meaning: str, *, row: str | None = None) -> str:
    """Declare a name in records with its meaning, and its name in rows if that is another one."""
    VOCABULARY[name] = meaning
    if row is not None:
        OF_ROWS[row] = name
    return name


# Axes. Every record has a value on each axis.
SAMPLES_RECEIVED: Final = _name(
    "time/total_timesteps",
    "environment steps received by the trainer since the start of the run (a reset counts as one)",
    row="samples_received",
)
ELAPSED: Final = _name("time/time_elapsed", "seconds since the start of the run", row="elapsed_s")
UPDATES: Final = _name(
    "train/n_updates", "updates since the start of the run; for an evaluation: the updates of its policy", row="updates"
)

# Episodes: one record for each. Means are over the latest `MEAN_OF` episodes, or over a lockstep round.
RETURN_TRAIN: Final = _name("rollout/ep_rew", "return of a training episode (with exploration)", row="return_train")
EPISODE_LENGTH_TRAIN: Final = _name(
    "rollout/ep_len", "length of a training episode, in steps", row="episode_length_train"
)
RETURN_TEST: Final = _name(
    "rollout/test_ep_rew", "return of a worker's test episode (without exploration)", row="return_test"
)
EPISODE_LENGTH_TEST: Final = _name(
    "rollout/test_ep_len", "length of a test episode, in steps", row="episode_length_test"
)
RETURN_MEAN: Final = _name(
    "rollout/ep_rew_mean",
    f"mean return of the latest {MEAN_OF} training episodes; in lockstep: of the round",
    row="return_mean",
)
RETURN_MIN: Final = _name("rollout/ep_rew_min", "lowest return of a lockstep round", row="return_min")
RETURN_MAX: Final = _name("rollout/ep_rew_max", "highest return of a lockstep round", row="return_max")
EPISODE_LENGTH_MEAN: Final = _name(
    "rollout/ep_len_mean",
    f"mean length of the latest {MEAN_OF} training episodes, in steps; in lockstep: of the round",
    row="episode_length_mean",
)
ROUND_EPISODES: Final = _name("rollout/episodes", "number of episodes that ended in a lockstep round", row="episodes")

EXPLORATION_RATE: Final = _name(
    "rollout/exploration_rate", "mean exploration parameter of many agents in the round", row="epsilon"
)

# Evaluations.
RETURN_EVALUATION: Final = _name(
    "eval/mean_reward",
    "mean return of an evaluation's episodes (without exploration, fixed seeds)",
    row="return_evaluation",
)
RETURN_EVALUATION_STD: Final = _name(
    "eval/std_reward", "standard deviation of an evaluation's returns", row="return_evaluation_std"
)
RETURN_EVALUATION_MIN: Final = _name("eval/min_reward", "lowest return in an evaluation", row="return_evaluation_min")
RETURN_EVALUATION_MAX: Final = _name("eval/max_reward", "highest return in an evaluation", row="return_evaluation_max")
RETURN_TARGET: Final = _name("eval/target_reward", "mean return that an evaluation must reach", row="return_target")
EPISODE_LENGTH_EVALUATION: Final = _name(
    "eval/mean_ep_length", "mean length of an evaluation's episodes, in steps", row="episode_length_evaluation"
)
EPISODES: Final = _name("eval/episodes", "number of episodes of an evaluation")
EVALUATION_EPISODE_RETURN: Final = _name("eval/ep_rew", "return of one episode of an evaluation")
EVALUATION_EPISODE_LENGTH: Final = _name("eval/ep_len", "length of one episode of an evaluation, in steps")

# A round of training.
EPOCH: Final = _name("time/epoch", "number of the epoch, from 0", row="epoch")
ROUND: Final = _name("time/round", "number of the round in its epoch, from 0", row="round")
ROUNDS: Final = _name("time/iterations", "lockstep rounds since the start of the run", row="rounds")
ROUND_TIME: Final = _name("time/round_time", "duration of the round, in seconds", row="round_time")
IDLE_TIME: Final = _name("time/idle_time", "seconds of the round in which training waited for samples", row="idle_time")
SAMPLING_DURATION: Final = _name("time/sampling_duration", "mean seconds to sample one batch", row="sampling_duration")
TRAINING_STEP_DURATION: Final = _name(
    "time/training_step_duration",
    "mean duration of one update, in seconds; on CUDA, where the processor does not wait, of its launch",
    row="training_step_duration",
)
SAMPLES_PER_S: Final = _name("time/fps", "environment steps received per second", row="samples_per_s")
UPDATES_PER_S: Final = _name("time/updates_per_s", "updates per second", row="updates_per_s")
MEMORY_LEN: Final = _name("train/memory_len", "samples in the replay memory", row="memory_len")
MEMORY_FILL: Final = _name("train/memory_fill", "used fraction of the replay memory's capacity")
LOSS_ACTOR: Final = _name("train/actor_loss", "mean loss of the policy")
LOSS_CRITIC: Final = _name("train/critic_loss", "mean loss of the critics")
LOSS_ENTROPY: Final = _name("train/ent_coef_loss", "mean loss of the entropy coefficient", row="loss_entropy")
ENTROPY_COEF: Final = _name("train/ent_coef", "entropy coefficient (temperature alpha)", row="entropy_coef")
LEARNING_RATE: Final = _name(
    "train/learning_rate", "learning rate; `train/learning_rate_<optimizer>` if an optimizer has a different one"
)
Q_MEAN: Final = _name("train/q_mean", "mean value of the critics for the transitions trained on")
APPROX_KL: Final = _name(
    "train/approx_kl", "mean KL divergence between the policy and the one that collected the samples", row="kl"
)
DRAWN_LAG_MEAN: Final = _name("train/drawn_lag_mean", "mean policy lag of the transitions trained on, in versions")
DRAWN_LAG_MAX: Final = _name("train/drawn_lag_max", "highest policy lag of the transitions trained on, in versions")

# Workers and the network.
WORKERS: Final = _name("worker/count", "number of connected workers", row="workers")
POLICY_LAG_MEAN: Final = _name(
    "worker/policy_lag_mean", "mean policy lag of the received samples, in versions", row="policy_lag_mean"
)
POLICY_LAG_MAX: Final = _name(
    "worker/policy_lag_max", "highest policy lag of the received samples, in versions", row="policy_lag_max"
)
CONNECTED: Final = _name("wire/connected", "1: the trainer's link is connected", row="connected")
QUEUE_BYTES: Final = _name("wire/queue_bytes", "received bytes that wait for the training thread", row="queue_bytes")
SAMPLES_ARRIVED: Final = _name(
    "wire/samples_arrived",
    "environment steps that have arrived since the start of the run: those that wait for the training thread too, "
    "without refused ones",
)
SAMPLES_DROPPED: Final = _name(
    "wire/samples_dropped",
    "samples that never arrived: workers dropped them or crashed (counted from gaps)",
    row="samples_dropped",
)
SAMPLES_STALE: Final = _name("wire/samples_stale", "samples discarded because of their policy lag", row="samples_stale")
GAPS: Final = _name("wire/gaps", "gaps in the message numbers; each gap is at least one message", row="gaps")
DUPLICATES: Final = _name(
    "wire/duplicates", "duplicate messages, which are acknowledged again and not stored", row="duplicates"
)
REFUSED: Final = _name("wire/refused", "messages that the memory refused", row="refused")
FORGED: Final = _name(
    "wire/forged", "messages without a valid proof of their origin, which the trainer ignored", row="forged"
)
UNKNOWN_KEYS: Final = _name(
    "wire/unknown_keys",
    "messages for a run key that the trainer does not have, which it requests again",
    row="unknown_keys",
)
OTHER_RUN: Final = _name("wire/other_run", "discarded messages of another run", row="other_run")
RECONNECTS: Final = _name("wire/reconnects", "reconnections of the trainer's link", row="reconnects")
REDISTRIBUTED: Final = _name(
    "wire/redistributed", "lockstep assignments that were moved to other workers", row="redistributed"
)
CUT_RECORDS: Final = _name(
    "time/cut_records", "records of a killed trainer that its resume moved to metrics.cut.jsonl", row="cut_records"
)

# Labels.
WORKER: Final = _name("worker", "name of the worker")
AGENT: Final = _name("agent", "id of the agent whose return it is")
MODE: Final = _name("mode", "train or test")
END: Final = _name("end", "end of the episode: terminated, truncated or aborted")
SEED: Final = _name("seed", "seed of the episode's reset")
VERSION: Final = _name("version", "policy version, incarnation.counter")
EVALUATION: Final = _name("evaluation", "number of the evaluation")
EVENT: Final = _name("event", "name of the event")
MESSAGE: Final = _name("message", "description of the event")
PHASE: Final = _name("phase", "waiting, collecting, learning, evaluating or done")
CHECKPOINT: Final = _name("checkpoint", "name of the checkpoint's folder")
RUN_NAME: Final = _name("run_name", "name of the run")
LAYOUT: Final = _name("layout", "uint8 in the policy's observations: image or values, and bounds")
LACK: Final = _name("lack", "reason why the trainer waits")
WAITING: Final = _name("waiting", "number of waiting workers, and the reason of the first one")

# Names of events that displays know. Other names are shown unchanged.
EVENT_START: Final = "start"
"""The run starts or resumes: `run_name`, `return_target` if it is set, `layout` if there is one. Step 0: a new run."""
EVENT_PHASE: Final = "phase"
"""The run enters the phase named in `phase`."""
EVENT_WORKER_JOINED: Final = "worker_joined"
EVENT_WORKER_LEFT: Final = "worker_left"
EVENT_CHECKPOINT: Final = "checkpoint"
EVENT_TARGET: Final = "target"
"""An evaluation has reached the target. A second evaluation, of the policy at that time, decides."""
EVENT_EVALUATION_WAITS: Final = "evaluation_waits"
"""The worker that was asked for an evaluation runs no episode."""
EVENT_LEARNED: Final = "learned"
"""The second evaluation has reached the target too. Training ends."""
EVENT_COMPILING: Final = "compiling"
"""An update is compiled, and none is made until then."""
EVENT_COMPILED: Final = "compiled"
"""Updates go on, compiled or, as `message` then says, not."""
EVENT_CUT: Final = "cut"
"""A resumed trainer has moved records of its killed predecessor to `metrics.cut.jsonl`."""
EVENT_ORDER: Final = "order"
"""An operator's order: its operator, the order, and its outcome in `message`."""
EVENT_END: Final = "end"

_OTHERWISE: Final[Mapping[tuple[str, str], str]] = {
    ("evaluation", "episodes"): EPISODES,
    ("episode", "return_evaluation"): EVALUATION_EPISODE_RETURN,
    ("episode", "episode_length_evaluation"): EVALUATION_EPISODE_LENGTH,
}
"""Short names with another meaning in records of some kinds."""

_SHORT: Final = {name: short for short, name in OF_ROWS.items()}


def metric_name(short: str, kind: str = "round") -> str:
    """Return the name in records of a name in rows. Names of records and labels are returned unchanged."""
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
