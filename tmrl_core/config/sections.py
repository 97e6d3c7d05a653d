"""The sections of the configuration: every key, its type, its limits, its default and its meaning, in this one place.

The JSON Schema and `docs/configuration.md` are made from these structures. They are frozen, hold settings only (no
state, no secret), and open nothing.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

MIB = 2**20

Reference = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Ratio = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]
Kwargs = dict[str, Any]


def doc(description: str) -> Meta:
    """The meaning of a key, for the JSON Schema and the documentation."""
    return Meta(description=description)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class RunSection(Section, frozen=True, kw_only=True):
    """What this run is called and where it leaves its files."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            description="Names every file of the run, and the run itself on the network: weights and samples of "
            "another run are discarded, counted.",
        ),
    ] = "default"
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**32 - 1)] | None,
        doc(
            "Seed of the trainer's generators and, mixed with each worker's name, of its environment and exploration. "
            "With one worker, synchronous collection (with `worker.max_steps_per_update`) and lockstep then give the "
            "same run bit for bit on one kind of machine: trainer and worker take turns. "
            "null: from the operating system."
        ),
    ] = None
    folder: Annotated[Text, doc("Folder of all runs; a run's own files are in `<folder>/<name>/`.")] = "runs"
    group: Annotated[Text | None, doc("Group of runs that wandb shows together, such as the seeds of one setting.")] = (
        None
    )
    tags: Annotated[tuple[Text, ...], doc("Tags of the run in wandb.")] = ()
    notes: Annotated[Text | None, doc("Notes on the run in wandb.")] = None


class EnvironmentSection(Section, frozen=True, kw_only=True):
    """The environment; workers step it, the trainer asks it for its spaces."""

    cls: Annotated[Reference, doc("Callable that makes the environment, as `package.module:Name`.")] = (
        "tmrl_core.envs:GenericGymEnv"
    )
    kwargs: Annotated[
        Kwargs,
        doc(
            "Its keyword arguments. The default is for the default `cls` only, which takes `id`, `gym_kwargs` (what "
            "the Gymnasium environment itself takes, such as `{g: 9.81}` for Pendulum), `obs_scale` (a factor on "
            "observations) and `to_float32`."
        ),
    ] = field(default_factory=lambda: {"id": "Pendulum-v1", "to_float32": True})


class ActorSection(Section, frozen=True, kw_only=True):
    """The policy that workers act with."""

    cls: Annotated[
        Reference, doc("Callable `(observation_space, action_space, **kwargs)` that makes the ActorModule.")
    ] = "tmrl_core.actor:SquashedGaussianMLPActor"
    kwargs: Annotated[
        Kwargs,
        doc(
            "Its further keyword arguments, such as `hidden_sizes`. The agent gets those that it knows, and the "
            "policy `hidden_sizes` and `activation` of `agent.kwargs`, so that both fit."
        ),
    ] = field(default_factory=dict)


class WorkerSection(Section, frozen=True, kw_only=True):
    """RolloutWorkers: how they collect, what they keep, when they wait."""

    collection: Annotated[
        Literal["asynchronous", "synchronous", "lockstep"],
        doc(
            "asynchronous: collect without waiting for weights (but for `max_env_steps_per_update`). synchronous: keep "
            "`max_steps_per_update`. lockstep: each version of the policy is trained on exactly what was collected "
            "with it, as `trainer.lockstep` says; for PPO."
        ),
    ] = "asynchronous"
    name: Annotated[
        Text | None,
        doc(
            "Label in logs and metrics. null: the name in this worker's certificate, else the host's; further workers "
            "on this machine get `-2`, `-3`, ..."
        ),
    ] = None
    device: Annotated[Text, doc("Where the policy runs: `cpu`, `cuda`, `cuda:1`.")] = "cpu"
    backend: Annotated[
        Literal["auto", "numpy", "torch"],
        doc(
            "What the policy computes with. auto: NumPy where the policy has a NumPy twin and runs on the CPU, "
            "so that the worker needs no torch; otherwise torch."
        ),
    ] = "auto"
    max_samples_per_episode: Annotated[
        Positive | None, doc("Longer episodes are cut: truncated. null: no limit but the environment's own.")
    ] = None
    test_episode_interval: Annotated[
        Count, doc("A test episode (deterministic, not collected) before every n-th episode. 0: none.")
    ] = 0
    send_every: Annotated[
        Count, doc("Send what was collected every n steps also within an episode. 0: at episode ends only.")
    ] = 0
    update_weights: Annotated[
        Literal["episode", "step"], doc("Take new weights between episodes, or as soon as they are there.")
    ] = "episode"
    buffer_maxlen: Annotated[Positive, doc("Samples that a Buffer holds; past it the oldest go, counted.")] = 1_000_000
    queue_bytes: Annotated[Positive, doc("Bytes of samples that wait in a worker for their acknowledgement.")] = (
        64 * MIB
    )
    when_full: Annotated[
        Literal["auto", "block", "drop_oldest"],
        doc(
            "When `queue_bytes` are used: wait for room, or drop the oldest message (counted). auto: drop_oldest in "
            "asynchronous collection, for control loops that may not wait; block otherwise."
        ),
    ] = "auto"
    drain_timeout_s: Annotated[
        Seconds, doc("Longest wait, in seconds, for acknowledgements when a worker ends in order.")
    ] = 10.0
    max_env_steps_per_update: Annotated[
        Ratio | None,
        doc(
            "Asynchronous collection: all workers together wait when the trainer has more than this many environment "
            "steps for each of its updates (after `trainer.start_training`). Keeps environments that are not bound to "
            "real time from flooding the trainer: set it there, for example to 2. null: never wait, as real-time "
            "environments must not. Where no environment is named, the built-in Pendulum is run with 2."
        ),
    ] = None
    initial_steps: Annotated[
        Count, doc("Synchronous collection: steps collected before the ratio holds (whole episodes with end_episodes).")
    ] = 1
    max_steps_per_update: Annotated[
        Ratio | None,
        doc(
            "Synchronous collection: keep (steps + 1) / (1 + models received) at or below this, by waiting for models. "
            "Per worker. null: no limit."
        ),
    ] = None
    end_episodes: Annotated[
        bool, doc("Synchronous collection: wait for models between episodes only, and allow test episodes.")
    ] = True
    nb_steps: Annotated[Count | None, doc("Synchronous collection: end after so many steps. null: no limit.")] = None
    nb_episodes: Annotated[Count | None, doc("Asynchronous: end after so many episodes. null: no limit.")] = None
    sample_compressor: Annotated[
        Reference | None,
        doc(
            "Callable `(prev_act, obs, rew, terminated, truncated, info)` that returns these, changed, before they "
            "travel; the memory undoes it."
        ),
    ] = None
    obs_preprocessor: Annotated[
        Reference | None, doc("Callable applied to each observation from the environment, before act and compressor.")
    ] = None
    crc_debug: Annotated[
        bool, doc("Each sample carries the original transition, and the memory compares it with what it rebuilds.")
    ] = False
    model_path: Annotated[
        Text | None, doc("File of the worker's own copy of the policy. null: `<run>/worker/policy.tmod`.")
    ] = None
    model_path_history: Annotated[
        Text | None, doc("How the names of dated copies begin. null: `<run>/worker/history/policy_`.")
    ] = None
    model_history: Annotated[int, doc("A dated copy every n updates that brought a model. 0 or less: never.")] = 0
    max_failures: Annotated[Count, doc("How often in a row the environment may fail before the worker gives up.")] = 3
    info_metrics: Annotated[
        tuple[Text, ...],
        doc(
            "Keys of the environment's `info` whose numbers become metrics of each episode: the last value, or with "
            "the suffix `:mean` the mean over the episode's steps; `a/b` is the key b of the dict a. `is_success` of "
            "the last step always is one."
        ),
    ] = ()
    evaluation_videos: Annotated[
        bool,
        doc(
            "Film the first episode of each evaluation that this worker plays, into `<run>/worker/videos/` (extra "
            "`video`); the environment is made with `render_mode: rgb_array`."
        ),
    ] = False
    strict_spaces: Annotated[
        bool,
        doc(
            "true: an observation of another dtype than its space's is a failure of the environment. false: it is cast "
            "where its values survive (float64 to float32, integers and lists to floats), warned of once."
        ),
    ] = False


class ServerSection(Section, frozen=True, kw_only=True):
    """The Server: the only role that listens."""

    host: Annotated[Text, doc("Name or address at which workers and the trainer find the Server.")] = "127.0.0.1"
    bind: Annotated[
        Text | None,
        doc(
            "Address that the Server listens on. null: this machine only while `server.host` is a loopback name, "
            "every interface otherwise."
        ),
    ] = None
    port: Annotated[Port, doc("TCP port. 0: the Server picks a free one (`--local` passes it on).")] = 55555
    max_workers: Annotated[Positive | None, doc("More workers are refused until a place is free. null: no limit.")] = (
        None
    )
    budget_bytes: Annotated[
        Annotated[int, Meta(ge=2 * MIB)], doc("Bytes of samples that may wait in the Server, all workers together.")
    ] = 64 * MIB
    spool_bytes: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc(
            "Bytes of samples that the Server keeps for workers that end while there is no trainer, until a trainer of "
            "their run has acknowledged them. null: 64 MiB in memory, 256 MiB in `spool_dir`. 0: it keeps none."
        ),
    ] = None
    spool_dir: Annotated[
        Text | None,
        doc("Folder of one Server in which it keeps them, so that they outlive it. null: in memory."),
    ] = None
    spool_sync: Annotated[
        Literal["os", "fsync"],
        doc("What the files in `spool_dir` survive: os: the Server's end, however sudden. fsync: the machine's too."),
    ] = "os"
    greeting_s: Annotated[
        PositiveSeconds,
        doc("Seconds from a connection's first packet within which its peer must have proved who it is."),
    ] = 10.0
    max_unauthenticated: Annotated[
        Annotated[int, Meta(ge=2)],
        doc(
            "Most connections at a time whose peers have not proved who they are; half of it from one address (IPv6: "
            "one /64). Past it the longest waiting makes room."
        ),
    ] = 256
    connections_per_s: Annotated[
        Annotated[float, Meta(gt=0)],
        doc(
            "New connections a second from one address, after `max_unauthenticated` at once; those whose peers are let "
            "in do not count. Others are closed before the TLS handshake."
        ),
    ] = 20.0

    @property
    def spool_limit_bytes(self) -> int:
        """`spool_bytes`, or what null means."""
        if self.spool_bytes is not None:
            return self.spool_bytes
        return 64 * MIB if self.spool_dir is None else 256 * MIB

    @property
    def bind_address(self) -> str:
        """`bind`, or what null means."""
        if self.bind is not None:
            return self.bind
        return self.host if is_loopback(self.host) else "0.0.0.0"


class NetworkSection(Section, frozen=True, kw_only=True):
    """How the roles talk."""

    transport: Annotated[
        Literal["tls", "local", "tlspyo"],
        doc("tls: TLS sockets. local: in one process, without sockets. tlspyo: for those who run it (extra `tlspyo`)."),
    ] = "tls"
    security_setting: Annotated[
        Literal["TLS"] | UnsetType | None,
        doc(
            '"TLS", or null for plain TCP, which stays on this machine unless `allow_insecure_remote`. Left out: TLS, '
            "except towards a Server on this machine that the same user runs without it."
        ),
    ] = field(name="security", default=UNSET)
    credentials_dir: Annotated[
        Text | None, doc("Folder of keys, certificates and tokens. null: `credentials/` here, else the data folder's.")
    ] = None
    hostname: Annotated[
        Text | None, doc("Name that the Server's certificate is checked against. null: `server.host`.")
    ] = None
    allow_insecure_remote: Annotated[
        bool, doc("With `security: null`: listen beyond this machine all the same. Everybody can read and send then.")
    ] = False
    heartbeat_s: Annotated[PositiveSeconds, doc("Seconds after which an idle link sends a sign of life.")] = 3.0
    silent_s: Annotated[PositiveSeconds, doc("Seconds of silence after which a link is dead.")] = 10.0
    backoff_min_s: Annotated[PositiveSeconds, doc("First wait, in seconds, before a new connection is tried.")] = 0.2
    backoff_max_s: Annotated[
        PositiveSeconds,
        doc("Longest wait, in seconds, between two tries at a Server that drops or refuses; 2.5 while none answers."),
    ] = 15.0
    max_message_bytes: Annotated[
        Annotated[int, Meta(ge=65536)],
        doc(
            "Longer messages of samples are refused before memory is allocated for them; only a single sample "
            "of more than 1 MiB makes such. `server.budget_bytes` must hold two."
        ),
    ] = 16 * MIB
    compression: Annotated[
        Literal["auto", "zstd", "none"], doc("Of samples. auto: zstd where it pays on the link at hand.")
    ] = "auto"
    local_port_server: Annotated[
        Port,
        doc(
            "Transport tlspyo only: port on 127.0.0.1 where the Server's I/O process calls back, held until it has. "
            "0: a free one."
        ),
    ] = 55556
    local_port_trainer: Annotated[Port, doc("Transport tlspyo only: the same for the trainer's I/O process.")] = 55557
    local_port_worker: Annotated[
        Port, doc("Transport tlspyo only: the same for a worker's; workers on one machine may share it.")
    ] = 55558
    header_size: Annotated[
        Positive,
        doc("Transport tlspyo only: bytes before a message that say its length, 6 to 256; the same on all machines."),
    ] = 12
    max_buf_len: Annotated[
        Positive, doc("Transport tlspyo only: bytes read at once from the I/O process; above 64 kB it changes nothing.")
    ] = 512 * MIB

    @property
    def security(self) -> Literal["TLS"] | None:
        """`"TLS"` (also when left out) or None."""
        return None if self.security_setting is None else "TLS"

    @property
    def security_left_out(self) -> bool:
        """True when neither `"TLS"` nor null was asked for: a client may then look for its user's live plain file."""
        return self.security_setting is UNSET

    @property
    def token(self) -> str | None:
        """The token from the environment (`TMRL_CORE_TOKEN`, or the file that `TMRL_CORE_TOKEN_FILE` names).

        None when neither is set: tokens and certificates in the credentials folder are used then. Read at each call
        and kept nowhere, so that it shows in no repr and no file.

        Raises:
            ConfigError: the file cannot be read or is empty.
        """
        from tmrl_core.config.loading import token_from_environment

        return token_from_environment(os.environ)


class PrioritySection(Section, frozen=True, kw_only=True):
    """How much priorities count."""

    alpha: Annotated[Share, doc("Transitions are drawn in proportion to their priority to this power.")] = 0.6
    beta: Annotated[Share, doc("How far importance weights make up for that, at first.")] = 0.4
    beta_final: Annotated[Share, doc("The same in the end.")] = 1.0
    beta_batches: Annotated[Positive, doc("Batches until then; in between it grows linearly.")] = 500_000
    epsilon: Annotated[Ratio, doc("Added to each absolute TD error: none is never drawn again.")] = 1e-6
    batches_at_once: Annotated[
        Positive,
        doc(
            "Most batches that are drawn by the same priorities. 1: each batch follows what the one before has "
            "changed. 8: each costs a third to a half less."
        ),
    ] = 1


class MemorySection(Section, frozen=True, kw_only=True):
    """The replay memory."""

    cls: Annotated[Reference, doc("The memory's class.")] = "tmrl_core.training:ReplayMemory"
    kwargs: Annotated[Kwargs, doc("Further keyword arguments of the memory.")] = field(default_factory=dict)
    capacity: Annotated[Positive, doc("Samples kept; past it the oldest go.")] = 1_000_000
    batch_size: Annotated[Positive, doc("Transitions in a batch.")] = 256
    sample_preprocessor: Annotated[
        Reference | None,
        doc(
            "Callable `(prev_obs, new_act, rew, new_obs, terminated, truncated)` that returns these, changed, for "
            "each transition of a batch."
        ),
    ] = None
    storage: Annotated[
        Literal["ram", "disk"],
        doc(
            "disk: transitions lie in `memory.folder` and survive the trainer's death, with how far each worker's "
            "samples are; only indices and what the system caches take RAM. For the ReplayMemory."
        ),
    ] = "ram"
    folder: Annotated[
        str | None, doc("Folder of a memory on disk. null: memory/ in the run's folder. One trainer at a time uses it.")
    ] = None
    sync: Annotated[
        Literal["os", "fsync"],
        doc(
            "What samples on disk survive once they are acknowledged. os: the sudden end of the trainer; fsync: that "
            "of its machine too, at the cost of a flush for each look at new samples."
        ),
    ] = "os"
    max_drawn_lag: Annotated[
        Count | None,
        doc(
            "Only transitions of a policy that is at most so many versions behind the latest are drawn; the others "
            "stay stored. Where none is left, training waits for samples: so many versions (of "
            "`trainer.update_model_interval` updates each) must be longer than workers need for an episode, and than "
            "`worker.max_env_steps_per_update` makes them wait. null: any."
        ),
    ] = None
    prefetch: Annotated[
        Count | None,
        doc(
            "Blocks of batches that a thread prepares, and sends to the trainer's device, beside training, without "
            "changing what is drawn; for uniform sampling without a preprocessor. null: 2 where that is a CUDA device, "
            "otherwise 0: small batches gain nothing on a CPU; images do where a core is free."
        ),
    ] = None
    n_step: Annotated[
        Positive,
        doc("Steps in a transition: its reward is their discounted sum. The discount is the agent's `gamma`."),
    ] = 1
    sampling: Annotated[
        Literal["uniform", "prioritized"],
        doc("prioritized: transitions with large TD errors are drawn more often, and weighted less."),
    ] = "uniform"
    priority: Annotated[PrioritySection, doc("For `sampling: prioritized`.")] = field(default_factory=PrioritySection)


class AgentSection(Section, frozen=True, kw_only=True):
    """The training agent."""

    cls: Annotated[Reference, doc("The TrainingAgent's class.")] = "tmrl_core.training:SacAgent"
    kwargs: Annotated[Kwargs, doc("Its keyword arguments beyond the spaces, the device and the actor's.")] = field(
        default_factory=dict
    )


class EvaluationSection(Section, frozen=True, kw_only=True):
    """Deterministic episodes of fixed seeds that the trainer asks a worker for."""

    episodes: Annotated[
        Positive,
        doc(
            "Episodes of one evaluation, with the seeds first_seed, first_seed + 1, ... When there is one, "
            "`every_updates` says; with that or `time_limit_s` also the final policy is evaluated."
        ),
    ] = 10
    first_seed: Annotated[Count, doc("Seed of the first episode.")] = 1000
    every_updates: Annotated[Count, doc("An evaluation every n updates. 0: none during training.")] = 0
    target_return: Annotated[
        float | None,
        doc(
            "Training ends when an evaluation's mean return is at least this and a second evaluation, of the policy as "
            "it is by then, confirms it. null: it goes on."
        ),
    ] = None
    time_limit_s: Annotated[PositiveSeconds | None, doc("Training ends after so many seconds. null: no limit.")] = None


class LimiterSection(Section, frozen=True, kw_only=True):
    """How often samples are trained on, held within a band from both sides."""

    samples_per_insert: Annotated[
        Ratio | None,
        doc(
            "Transitions drawn (`memory.batch_size` an update) for each sample received after the first "
            "`trainer.start_training`: training waits while more were drawn, and samples wait in the trainer's inbox, "
            "then in their workers, while fewer were. It cannot be above `memory.batch_size` times "
            "`trainer.max_training_steps_per_env_step`. null: no band."
        ),
    ] = None
    error_buffer: Annotated[
        Ratio | None,
        doc(
            "Transitions drawn that this may be off by, either way; what one look for samples brings comes on top. At "
            "least `memory.batch_size` and `samples_per_insert`. null: a tenth of what the first "
            "`trainer.start_training` samples allow, at least twice that."
        ),
    ] = None


class LockstepSection(Section, frozen=True, kw_only=True):
    """Lockstep collection: what the workers collect in a round, all together."""

    steps_per_round: Annotated[
        Positive | None,
        doc(
            "Environment steps (without resets) that each version of the policy is trained on. null: "
            "`episodes_per_round`."
        ),
    ] = 4000
    episodes_per_round: Annotated[Positive | None, doc("Whole episodes instead of steps. null: steps.")] = None
    grace_s: Annotated[
        PositiveSeconds,
        doc(
            "Seconds after which a worker's share of a round is given to the others: when it has gone, says nothing, "
            "or is not done so long after the first that is."
        ),
    ] = 30.0
    min_workers: Annotated[
        Positive,
        doc(
            "Workers that must be there before the first round of a trainer's process begins. `--local`: at least all "
            "that it starts."
        ),
    ] = 1


class TrainerSection(Section, frozen=True, kw_only=True):
    """The Trainer's loop."""

    loop: Annotated[Reference, doc("The training loop's class.")] = "tmrl_core.training:TorchTrainingOffline"
    epochs: Annotated[Positive, doc("Epochs; a checkpoint is written after each (see `checkpoint.every_s`).")] = 10
    rounds: Annotated[Positive, doc("Rounds in an epoch; each gives one row of statistics.")] = 50
    steps: Annotated[Positive, doc("Updates in a round. Not in lockstep, where the agent's arguments say it.")] = 2000
    update_model_interval: Annotated[Positive, doc("Updates between two published versions of the policy.")] = 100
    update_buffer_interval: Annotated[Positive, doc("Updates between two looks for new samples.")] = 100
    max_training_steps_per_env_step: Annotated[
        Ratio, doc("The trainer waits for samples while updates / samples received is above this.")
    ] = 1.0
    sleep_between_buffer_retrieval_attempts: Annotated[
        PositiveSeconds, doc("Longest wait in seconds before it looks again; arriving samples wake it earlier.")
    ] = 1.0
    start_training: Annotated[Count, doc("Samples received before the first update.")] = 1000
    device: Annotated[
        Text | None, doc("`cpu`, `cuda`, `cuda:1`. null: cuda where there is one; in lockstep the CPU.")
    ] = None
    threads: Annotated[
        Positive | None,
        doc(
            "Threads that torch computes with on a CPU. null: the number is measured while training, and follows what "
            "else this machine does; at most `OMP_NUM_THREADS`. 1 where `run.seed` is set and the collection is "
            "synchronous or in lockstep, so that such a run can be repeated."
        ),
    ] = None
    inbox_bytes: Annotated[
        Annotated[int, Meta(ge=2 * MIB)], doc("Bytes of received samples that wait for the training thread.")
    ] = 64 * MIB
    max_policy_lag: Annotated[
        Count | None,
        doc(
            "Samples of a policy that is more versions behind than this when they arrive are discarded. null: none "
            "are. `memory.max_drawn_lag` looks when they are drawn."
        ),
    ] = None
    max_bad_updates: Annotated[
        Positive,
        doc(
            "Training stops after so many updates in a row that were skipped, as a number in their samples, losses or "
            "gradients was NaN or infinite. What they were to learn from is described in `<run>/bad_updates/`."
        ),
    ] = 10
    check_spaces: Annotated[
        bool,
        doc(
            "Refuse samples whose structure, shapes or dtypes of observations are not those of the environment's "
            "spaces, or whose discrete values are not theirs. Not looked at: what a preprocessor or compressor of the "
            "worker changes, and what a memory of your own takes."
        ),
    ] = True
    profiling: Annotated[bool, doc("Report where an epoch's time went.")] = False
    agent_scheduler: Annotated[Reference | None, doc("Callable `(agent, epoch)`, called at each epoch's start.")] = None
    model_path: Annotated[Text | None, doc("File of the trainer's current weights. null: `<run>/policy.tmod`.")] = None
    evaluation: Annotated[
        EvaluationSection, doc("Deterministic episodes of fixed seeds that the trainer asks a worker for.")
    ] = field(default_factory=EvaluationSection)
    limiter: Annotated[LimiterSection, doc("How often samples are trained on, held within a band from both sides.")] = (
        field(default_factory=LimiterSection)
    )
    lockstep: Annotated[
        LockstepSection, doc("Lockstep collection: what the workers collect in a round, all together.")
    ] = field(default_factory=LockstepSection)


class CheckpointSection(Section, frozen=True, kw_only=True):
    """Checkpoints of the training object: weights, optimizers, counters, random states, memory, delivery state."""

    enabled: Annotated[bool, doc("Write checkpoints, and go on from the last one at start.")] = True
    path: Annotated[Text | None, doc("Their folder. null: `<run>/checkpoint`.")] = None
    every_s: Annotated[
        PositiveSeconds | None,
        doc(
            "Seconds after which another one is written, between two updates (in lockstep: two rounds), besides those "
            "with the first samples, at the end of each epoch, and on SIGUSR1. null: none."
        ),
    ] = 300.0
    keep_last: Annotated[Positive, doc("How many of the latest are kept.")] = 2
    keep_best: Annotated[bool, doc("Also keep the one with the best evaluation.")] = True
    drop_damaged: Annotated[
        bool,
        doc(
            "Where no checkpoint is whole, go on from one of which only older replay rows are damaged, without the "
            "rows up to these. All checkpoints of a memory in RAM share the files of its rows."
        ),
    ] = False


class MetricsSection(Section, frozen=True, kw_only=True):
    """Where training numbers go; JSON lines in `<run>/metrics.jsonl` are always written."""

    console: Annotated[bool, doc("Print each round's row.")] = True
    x_axis: Annotated[
        Literal["env_steps", "updates", "wall_time"],
        doc(
            "What the learning curve, TensorBoard and wandb are drawn over: environment steps received, updates, or "
            "seconds. Every record holds all three."
        ),
    ] = "env_steps"
    tensorboard: Annotated[bool, doc("Write TensorBoard files (extra `tensorboard`).")] = False
    wandb: Annotated[bool, doc("Send to Weights & Biases (extra `wandb`); also the option --wandb.")] = False
    wandb_entity: Annotated[Text | None, doc("wandb entity. null: the account's default.")] = None
    wandb_project: Annotated[Text, doc("wandb project.")] = "tmrl_core"
    wandb_run_id: Annotated[Text | None, doc("wandb run id. null: one of this run, kept in `<run>/wandb_id`.")] = None


class GatewaySection(Section, frozen=True, kw_only=True):
    """Reserved for environments that are HTTP clients."""

    enabled: Annotated[bool, doc("Reserved.")] = False
    port: Annotated[Port, doc("Reserved: TCP port of the gateway.")] = 8443


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration, the same file for all roles."""

    run: RunSection = field(default_factory=RunSection)
    environment: EnvironmentSection = field(default_factory=EnvironmentSection)
    actor: ActorSection = field(default_factory=ActorSection)
    worker: WorkerSection = field(default_factory=WorkerSection)
    server: ServerSection = field(default_factory=ServerSection)
    network: NetworkSection = field(default_factory=NetworkSection)
    memory: MemorySection = field(default_factory=MemorySection)
    agent: AgentSection = field(default_factory=AgentSection)
    trainer: TrainerSection = field(default_factory=TrainerSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    gateway: GatewaySection = field(default_factory=GatewaySection)

    @property
    def run_folder(self) -> Path:
        """Folder of this run's files."""
        return Path(self.run.folder) / self.run.name

    @property
    def worker_model_path(self) -> Path:
        """File of a worker's own copy of the policy."""
        return Path(self.worker.model_path or self.run_folder / "worker" / "policy.tmod")

    @property
    def worker_history_path(self) -> str:
        """How the names of a worker's dated copies of the policy begin."""
        return self.worker.model_path_history or str(self.run_folder / "worker" / "history" / "policy_")

    @property
    def trainer_model_path(self) -> Path:
        """File of the trainer's current weights."""
        return Path(self.trainer.model_path or self.run_folder / "policy.tmod")

    @property
    def memory_path(self) -> Path:
        """Folder of a memory on disk."""
        return Path(self.memory.folder or self.run_folder / "memory")

    @property
    def checkpoint_path(self) -> Path | None:
        """Folder of the checkpoints; None when they are turned off."""
        if not self.checkpoint.enabled:
            return None
        return Path(self.checkpoint.path or self.run_folder / "checkpoint")

    @property
    def metrics_path(self) -> Path:
        """The run's stream of metric records."""
        return self.run_folder / "metrics.jsonl"


def is_loopback(host: str) -> bool:
    """True for `localhost` and loopback addresses; names are not looked up."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
