"""The sections of the configuration: the only place of every key, its type, limits, default and description.

Sections of rooms stand in the rooms; `room_sections.py` adds them. The JSON Schema and `docs/configuration.md` are
generated from these structures and from the text behind each key. They are frozen, contain settings only (no state,
no secrets), and open nothing.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

MIB = 2**20

Reference = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
Port = Annotated[int, Meta(ge=0, le=65535)]
DEFAULT_PORT = 55555
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Ratio = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]
Side = Annotated[int, Meta(ge=16, le=4096)]
Kwargs = dict[str, Any]
NAMES_OF = "names_of"
"""Extra information about a key whose values are names of this kind, see `tmrl_core.rooms`."""


def doc(description: str) -> Meta:
    """Describe a key in its type, for the JSON Schema and the documentation; a text behind the key does the same."""
    return Meta(description=description)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class RunSection(Section, frozen=True, kw_only=True):
    """The run: its name, its files and its labels in wandb."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "default"
    """Name of the run on the network and of its files. Weights and samples of another run are discarded and counted."""
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    """Seed of the trainer's random generators. Together with the worker's name it also seeds the environment and the
    exploration of each worker. With one worker, synchronous collection (with `worker.max_steps_per_update`) and
    lockstep then repeat a run bit for bit on one kind of machine, because trainer and worker take turns. null: seed
    from the operating system."""
    folder: Text = "runs"
    """Folder of all runs. The files of a run are in `<folder>/<name>/`."""
    group: Text | None = None
    """wandb group, for runs that belong together, such as the seeds of one setting."""
    tags: tuple[Text, ...] = ()
    """wandb tags of the run."""
    notes: Text | None = None
    """wandb notes on the run."""


class EnvironmentSection(Section, frozen=True, kw_only=True):
    """The environment. Workers step it; the trainer reads its spaces."""

    cls: Reference = "tmrl_core.envs:GenericGymEnv"
    """Callable that creates the environment, as `package.module:Name`."""
    kwargs: Kwargs = field(default_factory=lambda: {"id": "Pendulum-v1", "to_float32": True})
    """Keyword arguments of `cls`. The default is for the default `cls` only, which accepts `id`, `gym_kwargs`
    (arguments of the Gymnasium environment itself, such as `{g: 9.81}` for Pendulum), `obs_scale` (a factor on
    observations) and `to_float32`."""
    time_limit: Positive | None = None
    """Number of steps after the reset at which the environment ends each episode because of a time limit that it
    reports as an end of the task (`terminated`, or both flags). Such an end becomes a truncation. null: as it is
    reported."""
    probe: bool | None = None
    """Before `--local` and `--worker --workers N` start any role, make the environment in a process of its own, reset
    it once and close it, so that what is wrong with it is found at once. true: any environment. false: none. null:
    environments that the default `cls` makes by their Gymnasium id, without rtgym's, and without the reset if they have
    a rate (`time_step_duration`); another one may be a machine that must not be started twice. Without a trial, the
    other roles start after the first step of one worker."""
    probe_timeout_s: PositiveSeconds = 60.0
    """Maximum seconds of each call of that trial; a call that takes longer ends it, and the command."""
    drop: tuple[Text, ...] = ()
    """Entries of a Dict observation that are left out, for policies, memories and recordings, such as a text
    (`[mission]`)."""


class ActorSection(Section, frozen=True, kw_only=True):
    """The policy that workers act with."""

    cls: Reference = "tmrl_core.actor:SquashedGaussianMLPActor"
    """Callable `(observation_space, action_space, **kwargs)` that creates the ActorModule."""
    kwargs: Kwargs = field(default_factory=dict)
    """Further keyword arguments of `cls`, such as `hidden_sizes`. The agent receives those that it accepts. The policy
    receives `hidden_sizes`, `activation` and `convolutions` of `agent.kwargs`. Both therefore have the same shape."""


class InterventionsSection(Section, frozen=True, kw_only=True):
    """A person, or a rule, that takes over from the policy step by step."""

    cls: Reference
    """Callable that creates the source of interventions: an object with `poll(obs)`, which returns an action or None,
    such as a class derived from `tmrl_core.actor.interventions:InterventionSource`. It gets `action_space` if it has a
    parameter of this name. docs/interventions.md lists the devices.
    `tmrl_core.actor.interventions:EnvironmentTakesOver` is for environments in which the person acts by itself, and
    whose `info` says so (`is_intervention`, `rerecord_episode`)."""
    kwargs: Kwargs = field(default_factory=dict)
    """Keyword arguments of `cls`."""
    executed: Text = "teleop_action"
    """Key of the environment's `info` with the action that was really executed, which is recorded in place of the
    requested one, where a driver clips it or the person acts inside the environment."""
    success_reward: float = 1.0
    """Reward of the step that the person marks as a success."""


class ImagesSection(Section, frozen=True, kw_only=True):
    """Images of observations, resized and encoded at the worker (extra `images`)."""

    # Not `tuple[Side, Side]`: a garbage collection while msgspec 0.22 describes it ends the process.
    size: Side | Annotated[tuple[Side, ...], Meta(min_length=2, max_length=2)] | None = None
    """Height and width in pixels to which larger images are reduced: one number for both, or [height, width]. It
    changes the observation space, of the policy too, so the trainer's file must have it as well. null: as the
    environment returns them."""
    quality: Annotated[int, Meta(ge=1, le=100)] | Literal["lossless"] = 75
    """1 to 100: JPEG of this quality. lossless: PNG."""


class WorkerSection(Section, frozen=True, kw_only=True):
    """RolloutWorkers: collection, storage and waiting."""

    collection: Literal["asynchronous", "synchronous", "lockstep"] = "asynchronous"
    """Collection mode. asynchronous: collect without waiting for weights (except for `max_env_steps_per_update`).
    synchronous: keep `max_steps_per_update`. lockstep: train each policy version on exactly the samples that were
    collected with it, as `trainer.lockstep` defines; for PPO."""
    name: Text | None = None
    """Label in logs and metrics. null: the name in the certificate of this worker, else the host name; further workers
    on this machine get `-2`, `-3`, ..."""
    device: Text = "cpu"
    """Device that computes the policy: `cpu`, `cuda`, `cuda:1`."""
    backend: Literal["auto", "numpy", "torch"] = "auto"
    """Library that computes the policy. auto: NumPy if the policy has a NumPy backend and runs on the CPU, so that the
    worker does not need torch; otherwise torch."""
    envs: Annotated[int, Meta(ge=1, le=256)] = 1
    """Number of environments of one worker, which it steps together, with one call of the policy for all of them. For
    simulators. `environment.cls` makes one environment, or a vector environment of Gymnasium of this size."""
    max_samples_per_episode: Positive | None = None
    """Maximum length of an episode; longer episodes are truncated. null: only the environment's own limit."""
    test_episode_interval: Count = 0
    """Play a test episode (deterministic, not collected) before every n-th episode. 0: no test episodes."""
    send_every: Count = 0
    """Number of steps after which samples are also sent within an episode. 0: only at the end of an episode."""
    update_weights: Literal["episode", "step"] = "episode"
    """episode: load new weights between episodes. step: load new weights as soon as they arrive."""
    buffer_maxlen: Positive = 1_000_000
    """Capacity of a Buffer in samples. A full Buffer drops and counts its oldest samples."""
    queue_bytes: Positive = 64 * MIB
    """Maximum bytes of samples in a worker's memory that wait for acknowledgement."""
    when_full: Literal["auto", "block", "drop_oldest"] = "auto"
    """Action when `queue_bytes` are used. block: wait for free space. drop_oldest: use the disk (`spool_dir`); if that
    is full or too slow too, drop the oldest message and count it. auto: drop_oldest in asynchronous collection, because
    a control loop must not wait; otherwise block."""
    spool_dir: Text | None = None
    """With `drop_oldest`: folder for samples that wait, which any number of workers may share. A worker writes there if
    no trainer has taken samples for 1 s (or none was acknowledged for 10 s), or if half of `queue_bytes` is used, or if
    it ends, and removes what was acknowledged. The next worker of the run that starts with this folder delivers what an
    earlier one has left. null: `<run>/worker/spool`."""
    spool_bytes: Count | None = None
    """Maximum bytes of samples of one worker in `spool_dir`. Beyond it, the worker drops its oldest ones. null: 10 GiB
    (half an hour of 50 Hz with 100 kB a step), at most half of what is free when the worker starts. 0: no spool."""
    drain_timeout_s: Seconds = 10.0
    """Longest wait, in seconds, for acknowledgements when a worker stops cleanly."""
    max_env_steps_per_update: Ratio | None = None
    """Asynchronous collection: all workers together wait while the trainer has more than this many environment steps
    for each of its updates (after `trainer.start_training`). Use it, for example with 2, if the environment does not
    run in real time; otherwise such an environment can flood the trainer. null: never wait, as real-time environments
    require. If no environment is configured, the built-in Pendulum runs with 2."""
    initial_steps: Count = 1
    """Synchronous collection: steps before the ratio applies (whole episodes with `end_episodes`)."""
    max_steps_per_update: Ratio | None = None
    """Synchronous collection: each worker waits for models to keep (steps + 1) / (1 + models received) at or below this
    value. null: no limit."""
    end_episodes: bool = True
    """Synchronous collection: wait for models only between episodes, and allow test episodes."""
    nb_steps: Count | None = None
    """Synchronous collection: stop after this many steps. null: no limit."""
    nb_episodes: Count | None = None
    """Asynchronous collection: stop after this many episodes. null: no limit."""
    sample_compressor: Reference | None = None
    """Callable `(prev_act, obs, rew, terminated, truncated, info)` that returns the same fields, changed, before they
    are sent. The memory reverses the change."""
    obs_preprocessor: Reference | None = None
    """Callable applied to each observation, before the policy and the compressor."""
    images: ImagesSection | None = None
    """Thin links: images of the observation are resized and encoded once, and are sent, spooled and recorded as JPEG or
    PNG files. The policy acts on the decoded image of the same file, so what is stored is what it saw. Images are uint8
    with the bounds 0 and 255 and a shape [height, width], with 1 or 3 channels, or frames of these. The trainer's file
    must have this section too. For one environment (`envs: 1`) without `obs_preprocessor` and `sample_compressor`.
    null: pixels."""
    crc_debug: bool = False
    """Send the original transition with each sample, for the memory to compare with its rebuilt one."""
    model_path: Text | None = None
    """File of the worker's copy of the policy. null: `<run>/worker/policy.tmod`."""
    model_path_history: Text | None = None
    """Prefix of the names of dated copies of the policy. null: `<run>/worker/history/policy_`."""
    model_history: int = 0
    """Number of published models between two dated copies; skipped ones count. 0 or less: no copies."""
    max_failures: Count = 3
    """Maximum number of consecutive failures of the environment; one more stops the worker."""
    info_metrics: tuple[Text, ...] = ()
    """Keys of the environment's `info` whose numbers become metrics of each episode: the last value of the episode, or
    its mean with the suffix `:mean`. `a/b` is the key b of the dict a. `is_success` of the last step is always a
    metric."""
    record: Text | None = None
    """Folder for recorded sessions; the same as the option --record. The worker writes all episodes that it collects to
    the subfolder of its name, besides sending them. null: nothing is recorded."""
    record_bytes: Positive | None = None
    """Maximum size of a worker's recorded sessions. Then it records no more. null: no limit."""
    interventions: InterventionsSection | None = None
    """Takeovers: before each step, a person or a rule may replace the policy's action, within the bounds of its space.
    Samples then hold the executed action, with `is_intervention` and `policy_action`. The events success, failure and
    terminate_episode end the episode; rerecord_episode discards it, as far as it was not sent before (`send_every: 0`).
    A source that fails ends the worker. For one environment (`envs: 1`). null: the policy acts."""
    evaluation_videos: bool = False
    """Record the first episode of each evaluation that this worker plays to `<run>/worker/videos/` (extra `video`). The
    environment is created with `render_mode: rgb_array`."""
    strict_spaces: bool = False
    """true: an observation with another dtype than its space is a failure of the environment. false: the worker casts
    it if all values are preserved (float64 to float32, integers and lists to floats, a number to an array of one
    element), with one warning."""
    safe_action: bool | int | float | list[Any] | dict[str, Any] | None = None
    """Action that the worker executes once when it stops collecting for any reason (end, error, signal), before it
    closes the environment and waits for acknowledgements: a number or nested lists, as the action space requires. The
    second signal and SIGKILL end the process without it. null: no action."""


class ServerSection(Section, frozen=True, kw_only=True):
    """The Server: the only role that listens."""

    host: Text = "127.0.0.1"
    """Name or address at which workers and the trainer reach the Server."""
    bind: Text | None = None
    """Address to listen on. `::`: every interface, IPv6 and IPv4. null: loopback if `host` is a loopback name, `::`
    if it is an address of IPv6, else `0.0.0.0`, every interface in IPv4 alone."""
    port: Port | None = None
    """TCP port. null: 55555; if it is taken, `--local` takes a free port, which the other commands for the run find in
    the run's folder. 0: a free port. A number that is taken is refused."""
    endpoints: tuple[Text, ...] = ()
    """Addresses of several Servers of one run, each as `host:port`, instead of `host` and `port`; see docs/rooms.md. A
    worker belongs to one of them, by its name, for its whole life. The trainer has one rank for each, in this order. A
    Server does not read it: each is started with its own `port`. Empty: one Server."""
    max_workers: Positive | None = None
    """Maximum number of workers. Further workers are refused until one leaves. null: no limit."""
    budget_bytes: Annotated[int, Meta(ge=2 * MIB)] = 64 * MIB
    """Maximum bytes of samples in the Server, of all workers together."""
    spool_bytes: Annotated[int, Meta(ge=0)] | None = None
    """Maximum bytes of the spool: samples of workers that stopped while there was no trainer, stored until a trainer of
    their run has acknowledged them. The workers with one certificate, or with the role's token, use at most four fifths
    of it. It has at most 1,280 streams and 1,048,576 messages. null: 80 MiB in memory, 320 MiB in `spool_dir`. 0: no
    spool."""
    spool_dir: Text | None = None
    """Folder of the spool, for one Server only. The spool then survives the Server. null: in memory."""
    spool_sync: Literal["os", "fsync"] = "os"
    """Durability of the files in `spool_dir`. os: they survive a crash of the Server. fsync: they also survive a crash
    of its machine."""
    greeting_s: PositiveSeconds = 10.0
    """Time limit, in seconds from the first packet of a connection, for its peer to prove its identity."""
    max_unauthenticated: Annotated[int, Meta(ge=2)] = 256
    """Maximum number of unauthenticated connections at a time. One address (IPv6: one /64) may have half of them. At
    the limit, the Server closes the oldest one to accept another."""
    connections_per_s: Annotated[float, Meta(gt=0)] = 20.0
    """New connections per second from one address, after `max_unauthenticated` at once. Authenticated connections do
    not count. The Server closes further connections before the TLS handshake."""

    @property
    def spool_limit_bytes(self) -> int:
        """Return `spool_bytes`, or the default limit for null."""
        if self.spool_bytes is not None:
            return self.spool_bytes
        return 80 * MIB if self.spool_dir is None else 320 * MIB

    @property
    def tcp_port(self) -> int:
        """Return `port`, or the default port for null."""
        return DEFAULT_PORT if self.port is None else self.port

    @property
    def bind_address(self) -> str:
        """Return `bind`, or the default address for null."""
        if self.bind is not None:
            return self.bind
        if not self.is_local:
            return "::" if ":" in self.host else "0.0.0.0"
        return self.host if is_loopback(self.host) else "127.0.0.1"

    @property
    def is_local(self) -> bool:
        """Return True if the Server, or each of several, is on this machine."""
        # The host of an endpoint that has another form is refused elsewhere.
        hosts = [text.rpartition(":")[0].strip("[]") for text in self.endpoints] or [self.host]
        return all(map(is_loopback, hosts))


class NetworkSection(Section, frozen=True, kw_only=True):
    """Connections between the roles."""

    transport: Annotated[Text, Meta(extra_json_schema={NAMES_OF: "transports"})] = "tls"
    """tls: TLS sockets. local: in one process, without sockets. Other packages may add others."""
    security: Literal["TLS"] | UnsetType | None = UNSET
    """`TLS`, or null for plain TCP. Plain TCP stays on this machine unless `allow_insecure_remote` is true. Left out:
    TLS, except to a Server on this machine that the same user runs without TLS."""
    credentials_dir: Text | None = None
    """Folder of keys, certificates and tokens. null: `credentials/` here, else in the data folder."""
    hostname: Text | None = None
    """Name that the Server's certificate is checked against. null: `server.host`."""
    allow_insecure_remote: bool = False
    """With `security: null`: allow connections from other machines. Everybody can then read and send data."""
    end_to_end: Literal["off", "authenticate", "encrypt"] | None = None
    """Protection of samples, acknowledgements, weights and directives against the Server. authenticate: their origin
    signs them, and the other end checks that. encrypt: besides, the Server cannot read them. off: the Server is
    trusted. null: authenticate if this machine has a client certificate (a bundle), or the CA's key with which bundles
    were made; otherwise off. A machine with off works only with others that are off; encrypt hides what the machine
    that sets it sends, so set it on all machines of a run."""
    heartbeat_s: PositiveSeconds = 3.0
    """Seconds after which an idle link sends a heartbeat."""
    silent_s: PositiveSeconds = 10.0
    """Seconds of silence after which a link counts as dead."""
    backoff_min_s: PositiveSeconds = 0.2
    """First wait, in seconds, before another connection attempt."""
    backoff_max_s: PositiveSeconds = 15.0
    """Longest wait, in seconds, between attempts if the Server closes or refuses; 2.5 if nothing answers."""
    max_message_bytes: Annotated[int, Meta(ge=65536)] = 16 * MIB
    """Maximum size of a message of samples. Larger messages are refused before memory is allocated for them. Only a
    single sample of more than 1 MiB needs such a message. `server.budget_bytes` must hold two messages."""
    compression: Literal["auto", "zstd", "none"] = "auto"
    """Compression of samples. auto: zstd if it improves the throughput of the link."""
    weights: Literal["whole", "delta", "bfloat16"] = "whole"
    """Form in which the trainer sends policies. whole: all bytes, every time. delta: compressed, as the difference to
    an earlier policy where the worker has it; the weights are exact. bfloat16: besides, matrices are rounded to
    bfloat16 (8 bits of precision) for workers; the trainer's own stay in float32. The key of the trainer counts. Bytes
    and effects: docs/howto.md, 'Thin links'."""


class PrioritySection(Section, frozen=True, kw_only=True):
    """The effect of priorities on sampling."""

    alpha: Share = 0.6
    """Exponent of priorities: transitions are sampled in proportion to priority ** alpha."""
    beta: Share = 0.4
    """Initial exponent of the importance weights, which correct the bias of the sampling."""
    beta_final: Share = 1.0
    """Final exponent of the importance weights."""
    beta_batches: Positive = 500_000
    """Batches over which beta grows linearly from `beta` to `beta_final`."""
    epsilon: Ratio = 1e-6
    """Constant added to each absolute TD error, so that every transition can be sampled again."""


class SharesSection(Section, frozen=True, kw_only=True):
    """Parts of each batch by the origin of its rows."""

    online: Share = 0.0
    """Samples of workers, with all steps of persons among them."""
    demonstrations: Share = 0.0
    """Recorded sessions, `memory.recorded`."""
    interventions: Share = 0.0
    """Steps that persons took over (`worker.interventions`). Before the first one, batches have fewer rows. With an
    agent that clones behaviour and without `online`, this is HG-DAgger (arXiv:1810.02890)."""


class MemorySection(Section, frozen=True, kw_only=True):
    """The replay memory."""

    cls: Reference = "tmrl_core.training:ReplayMemory"
    """Class of the memory."""
    kwargs: Kwargs = field(default_factory=dict)
    """Further keyword arguments of the memory."""
    capacity: Positive = 1_000_000
    """Maximum number of samples; of sequences in a SequenceMemory. A full memory drops its oldest samples."""
    batch_size: Positive = 256
    """Transitions per batch; sequences with a SequenceMemory."""
    sample_preprocessor: Reference | None = None
    """Callable `(prev_obs, new_act, rew, new_obs, terminated, truncated)` that returns the same fields, changed, for
    each transition of a batch."""
    storage: Literal["ram", "disk"] = "ram"
    """ram: transitions are in RAM. disk: transitions are in `memory.folder` together with the committed offset of each
    worker's stream, and survive a crash of the trainer; RAM holds only indices and the system's cache. disk is for the
    ReplayMemory."""
    folder: str | None = None
    """Folder of a memory on disk. null: memory/ in the run's folder. Only one trainer at a time can use it."""
    take_over: bool = False
    """If `folder` holds transitions of another run: true: train on them, and own the folder. false: refuse it."""
    sync: Literal["os", "fsync"] = "os"
    """Durability of acknowledged samples on disk. os: they survive a crash of the trainer. fsync: they also survive a
    crash of its machine; this costs a flush each time that the trainer takes new samples."""
    max_drawn_lag: Count | None = None
    """Maximum policy lag of sampled transitions, in versions. Older transitions stay stored but are not sampled. If
    none is left, training waits for samples. This many versions (of `trainer.update_model_interval` updates each) must
    therefore take longer than an episode of a worker, and longer than `worker.max_env_steps_per_update` makes workers
    wait. Samples of experts count as those of version 0. null: no limit."""
    prefetch: Count | None = None
    """Blocks of batches that a background thread prepares and copies to the trainer's device. The result of sampling
    does not change. For uniform sampling without a preprocessor. null: 2 on a CUDA device, otherwise 0. On a CPU, small
    batches gain nothing; images gain if a core is free."""
    n_step: Positive = 1
    """Steps per transition; its reward is their sum, discounted by the agent's `gamma`."""
    sampling: Literal["uniform", "prioritized"] = "uniform"
    """uniform, or prioritized: sample transitions with large TD errors more often, with smaller weights."""
    priority: PrioritySection = field(default_factory=PrioritySection)
    """For `sampling: prioritized`."""
    recorded: Text | None = None
    """Folder of recorded sessions (`--record`), or of such folders, to train on besides live samples. They are kept in
    a memory of their own, in RAM, of the same capacity, and never dropped. Checkpoints include them. null: live samples
    only."""
    shares: SharesSection | None = None
    """Parts of each batch by the origin of its rows; their sum is 1. Interventions then have a memory of their own
    besides, in RAM, of the same capacity, which other samples never displace. null: with `recorded`, one half online
    and one half demonstrations, as in RLPD (arXiv:2302.02948)."""
    recorded_actions: Literal["refuse", "clip"] = "refuse"
    """Recorded actions outside the action space, in `recorded` and `trainer.offline`. refuse: the run ends if one is
    beyond its bounds by more than 0.001 of their width; not compared with a `worker.sample_compressor`, which may
    change actions. clip: they are moved to the bounds."""


class AgentSection(Section, frozen=True, kw_only=True):
    """The training agent."""

    cls: Reference = "tmrl_core.training:SacAgent"
    """Class of the TrainingAgent."""
    kwargs: Kwargs = field(default_factory=dict)
    """Keyword arguments of the agent, besides the spaces, the device and the arguments of the actor."""


class EvaluationSection(Section, frozen=True, kw_only=True):
    """Evaluations: deterministic episodes with fixed seeds that the trainer requests from a worker."""

    episodes: Positive = 10
    """Episodes per evaluation, with the seeds first_seed, first_seed + 1, ... `every_updates` sets the interval. If
    that or `time_limit_s` is set, the final policy is evaluated too."""
    first_seed: Count = 1000
    """Seed of the first episode."""
    every_updates: Count = 0
    """Updates between two evaluations. 0: no evaluations during training."""
    target_return: float | None = None
    """Training ends when the mean return of an evaluation reaches this value and a second evaluation, of the policy at
    that time, confirms it. null: no target."""
    time_limit_s: PositiveSeconds | None = None
    """Training ends after this many seconds. null: no limit."""


class LimiterSection(Section, frozen=True, kw_only=True):
    """Rate limiter: keeps the number of times that each sample is trained on within a band."""

    samples_per_insert: Ratio | None = None
    """Transitions sampled (`memory.batch_size` per update) for each sample received after the first
    `trainer.start_training`. Above this value, training waits. Below it, samples wait in the trainer's inbox and then
    in the workers. It cannot exceed `memory.batch_size` times `trainer.max_training_steps_per_env_step`. null: no
    limit."""
    error_buffer: Ratio | None = None
    """Half the width of the band, in sampled transitions. The samples of one retrieval may exceed it. At least
    `memory.batch_size` and `samples_per_insert`. null: a tenth of the transitions that the first
    `trainer.start_training` samples allow, and at least twice that minimum."""


class LockstepSection(Section, frozen=True, kw_only=True):
    """Lockstep collection: the amount that all workers together collect in a round."""

    steps_per_round: Positive | None = 4000
    """Environment steps (without resets) per policy version. null: `episodes_per_round` applies."""
    episodes_per_round: Positive | None = None
    """Whole episodes per round, instead of steps, which it sets to null if they are left out. null: steps."""
    grace_s: PositiveSeconds = 30.0
    """Seconds after which the other workers take over a worker's part of a round: when the worker has left, is silent,
    or is not done this long after the first worker."""
    min_workers: Positive = 1
    """Connected workers before the first round of a trainer process. `--local`: at least all that it starts."""


class TrainerSection(Section, frozen=True, kw_only=True):
    """The trainer's loop."""

    loop: Reference = "tmrl_core.training:TorchTrainingOffline"
    """Class of the training loop."""
    epochs: Positive = 10
    """Number of epochs. A checkpoint is written after each epoch (see `checkpoint.every_s`)."""
    rounds: Positive = 50
    """Rounds per epoch. Each round gives one row of statistics."""
    steps: Positive = 2000
    """Updates per round. Not used in lockstep, where the agent's arguments define the number."""
    update_model_interval: Positive = 100
    """Updates between two published policy versions."""
    update_buffer_interval: Positive = 100
    """Updates between two retrievals of new samples."""
    max_training_steps_per_env_step: Ratio = 1.0
    """Maximum ratio of updates to received samples. Above it, the trainer waits for samples."""
    sleep_between_buffer_retrieval_attempts: PositiveSeconds = 1.0
    """Longest wait, in seconds, between two retrievals of samples. Arriving samples end the wait earlier."""
    start_training: Count = 1000
    """Samples received before the first update."""
    device: Text | None = None
    """`cpu`, `cuda`, `cuda:1`. null: cuda if available, otherwise the CPU; in lockstep always the CPU."""
    threads: Positive | None = None
    """Threads of torch on a CPU. null: the trainer measures the best number during training and adapts it to the load
    of the machine; at most `OMP_NUM_THREADS`. If `run.seed` is set and the collection is synchronous or lockstep, null
    means 1, so that the run can be repeated."""
    inbox_bytes: Annotated[int, Meta(ge=2 * MIB)] = 64 * MIB
    """Maximum bytes of received samples that wait for the training thread."""
    max_policy_lag: Count | None = None
    """Maximum policy lag of arriving samples, in versions. Older samples are discarded, except those of experts. null:
    no limit. `memory.max_drawn_lag` limits the lag when samples are sampled from the memory."""
    max_bad_updates: Positive = 10
    """Training stops after this many consecutive skipped updates. An update is skipped if a number in its samples,
    losses or gradients is NaN or infinite. The log says where it was."""
    check_spaces: bool = True
    """Refuse samples whose observations differ in structure, shapes or dtypes from the environment's spaces, and
    samples with discrete values outside the spaces. The check omits the output of the worker's preprocessor or
    compressor, and custom memories."""
    check_environment: bool = True
    """Refuse the samples of a worker whose environment has another Gymnasium id or other spaces than the trainer's. Ids
    are compared if both environments have one; a class that is not registered has none. false: only log the difference,
    for fleets that mix environments on purpose."""
    offline: Text | None = None
    """Folder of recorded sessions (`--record`), or of such folders, to train on without Server or workers. They are
    appended to the memory before the first update. No limit of updates per sample holds. null: train on the samples of
    workers."""
    profiling: bool = False
    """Log how the time of an epoch was spent."""
    agent_scheduler: Reference | None = None
    """Callable `(agent, epoch)` that is called at the start of each epoch."""
    model_path: Text | None = None
    """File of the trainer's current weights. null: `<run>/policy.tmod`."""
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    limiter: LimiterSection = field(default_factory=LimiterSection)
    lockstep: LockstepSection = field(default_factory=LockstepSection)


class CheckpointSection(Section, frozen=True, kw_only=True):
    """Checkpoints of the training object: weights, optimizers, counters, random states, memory, stream offsets."""

    enabled: bool = True
    """Write checkpoints, and resume from the last one at startup."""
    path: Text | None = None
    """Folder of the checkpoints. null: `<run>/checkpoint`."""
    every_s: PositiveSeconds | None = 300.0
    """Seconds between two checkpoints. They are written between two updates (in lockstep: between two rounds). Further
    checkpoints are written with the first samples, at the end of each epoch, and on SIGUSR1. null: only these."""
    keep_last: Positive = 2
    """Number of recent checkpoints to keep."""
    keep_best: bool = True
    """Keep the checkpoint with the best evaluation too."""
    drop_damaged: bool = False
    """If no checkpoint is complete, resume from a checkpoint in which only older replay rows are damaged, without the
    rows up to the damage. All checkpoints of a memory in RAM share the files of its rows."""


class MetricsSection(Section, frozen=True, kw_only=True):
    """Destinations of metrics. The trainer always writes JSON lines to `<run>/metrics.jsonl`."""

    console: bool = True
    """Print the row of each round."""
    sinks: dict[Text, Kwargs] = field(default_factory=dict)
    """Further sinks: keyword arguments by the name under which an installed package adds the sink."""
    x_axis: Literal["env_steps", "updates", "wall_time"] = "env_steps"
    """Horizontal axis of the learning curve, TensorBoard and wandb: environment steps received, updates, or seconds.
    Every record contains all three."""
    tensorboard: bool = False
    """Write TensorBoard files (extra `tensorboard`)."""
    wandb: bool = False
    """Send metrics to Weights & Biases (extra `wandb`); the same as the option --wandb."""
    wandb_entity: Text | None = None
    """wandb entity. null: the default of the account."""
    wandb_project: Text = "tmrl_core"
    """wandb project."""
    wandb_run_id: Text | None = None
    """wandb run id. null: an id of this run, stored in `<run>/run_id`."""
    wandb_artifacts: bool = True
    """Send files too: videos of evaluations (`worker.evaluation_videos`) that are in the run's folder, and the policy
    after each best evaluation and at the end."""


class RoomSection(Section, frozen=True, kw_only=True):
    """Base of the sections that rooms declare, see `tmrl_core.rooms`."""

    key: ClassVar[str]
    """Name of the section."""
    extends: ClassVar[bool] = False
    """True: the keys stand in the core's section of this name, as those of a transport stand in `network`."""
    parts: ClassVar[str] = ""
    """Module with the counterparts of the functions that make a run, if a configuration with this section is a run of
    another kind: `make_worker`, `training_from_config` and `probe_environment`."""
    fixed: ClassVar[Mapping[str, str]] = {}
    """Keys that must not change when a run resumes, as regular expressions, with the reasons."""
    free_names: ClassVar[tuple[str, ...]] = ()
    """Keys below which the names are the user's."""

    @classmethod
    def of(cls: type[_RoomSection], config: Config) -> _RoomSection | None:
        """Return this section of a configuration; None: it has none."""
        found: Any = getattr(config, cls.key, None)
        return msgspec.convert(found, cls, from_attributes=True) if cls.extends else found

    @classmethod
    def compared(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the section's values in the form in which those of a checkpoint and of this process are compared."""
        return values

    def problems(self, config: Config) -> Iterator[str]:
        """Yield one line for each key of this section that conflicts with another one, of any section."""
        return iter(())

    def refuse_options(self, options: Mapping[str, Any]) -> None:
        """Reject options of the command line that do not go with this section.

        Raises:
            ConfigError: the message names the option, and those to use instead.
        """


_RoomSection = TypeVar("_RoomSection", bound=RoomSection)


class Config(Section, frozen=True, kw_only=True, dict=True):
    """The whole configuration, the same file for all roles.

    Its relative paths mean the folder in which it was made, because environments may change the working folder.
    """

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

    def __post_init__(self) -> None:
        # The folder is no setting: it is neither compared nor written, so that a run's files can be moved.
        try:
            self.__dict__["start_folder"] = Path.cwd()
        except OSError:  # the working folder was removed
            self.__dict__["start_folder"] = Path()

    @property
    def start_folder(self) -> Path:
        """Return the folder that relative paths mean."""
        folder: Path = self.__dict__["start_folder"]
        return folder

    def started_in(self, folder: Path) -> Config:
        """Let relative paths mean this folder. Return this configuration."""
        self.__dict__["start_folder"] = folder
        return self

    def absolute(self, path: str | os.PathLike[str]) -> Path:
        """Return the absolute path that this path in the configuration means."""
        return self.start_folder / path

    @property
    def written_run_folder(self) -> Path:
        """Return the folder of this run's files as the configuration writes it, for commands that users type."""
        return Path(self.run.folder) / self.run.name

    @property
    def run_folder(self) -> Path:
        """Return the folder of this run's files."""
        return self.absolute(self.written_run_folder)

    @property
    def worker_model_path(self) -> Path:
        """Return the file of a worker's copy of the policy."""
        return self.absolute(self.worker.model_path or self.run_folder / "worker" / "policy.tmod")

    @property
    def worker_history_path(self) -> str:
        """Return the prefix of the names of a worker's dated copies of the policy."""
        written = self.worker.model_path_history
        # The prefix may end in a separator, which a Path would drop.
        return os.path.join(self.start_folder, written or self.run_folder / "worker" / "history" / "policy_")

    @property
    def worker_spool_path(self) -> Path:
        """Return the folder for samples that workers could not deliver yet."""
        return self.absolute(self.worker.spool_dir or self.run_folder / "worker" / "spool")

    @property
    def worker_record_path(self) -> Path | None:
        """Return the folder of a worker's recorded sessions; None: nothing is recorded."""
        return None if self.worker.record is None else self.absolute(self.worker.record)

    @property
    def trainer_model_path(self) -> Path:
        """Return the file of the trainer's current weights."""
        return self.absolute(self.trainer.model_path or self.run_folder / "policy.tmod")

    @property
    def memory_path(self) -> Path:
        """Return the folder of a memory on disk."""
        return self.absolute(self.memory.folder or self.run_folder / "memory")

    @property
    def recorded_path(self) -> Path | None:
        """Return the folder of the recorded sessions `memory.recorded`; None: there are none."""
        return None if self.memory.recorded is None else self.absolute(self.memory.recorded)

    @property
    def offline_path(self) -> Path | None:
        """Return the folder of the recorded sessions `trainer.offline`; None: workers collect."""
        return None if self.trainer.offline is None else self.absolute(self.trainer.offline)

    @property
    def checkpoint_path(self) -> Path | None:
        """Return the folder of the checkpoints; None if they are disabled."""
        if not self.checkpoint.enabled:
            return None
        return self.absolute(self.checkpoint.path or self.run_folder / "checkpoint")

    @property
    def metrics_path(self) -> Path:
        """Return the file of the run's metric records."""
        return self.run_folder / "metrics.jsonl"


def is_loopback(host: str) -> bool:
    """Return True for `localhost` and loopback addresses. Names are not resolved."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
