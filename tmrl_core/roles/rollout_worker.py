"""RolloutWorker: a worker with a link to the Server, with the public API's constructor."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import os
import socket
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast
from urllib.parse import quote

import numpy as np

from tmrl_core.actor.interventions import KEY, InterventionSource, as_source
from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.policies.numpy.lookup import choose_actor
from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment
from tmrl_core.actor.rollout.loop import EnvironmentLoop
from tmrl_core.actor.rollout.pictures import WorkerPictures
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.recording import Recording
from tmrl_core.actor.rollout.takeover import Takeover
from tmrl_core.actor.rollout.uplink import Uplink, close_unreferenced
from tmrl_core.actor.rollout.vector_recorder import VectorRecorder
from tmrl_core.actor.rollout.worker import Worker, make_loop, one_environment_only
from tmrl_core.config import CFG, Cfg, Config, current, find_credentials_folder, given, resolve_with
from tmrl_core.config.descriptions import described_by
from tmrl_core.config.devices import hold_device
from tmrl_core.config.sections import InterventionsSection, NetworkSection, WorkerSection
from tmrl_core.envs.identity import identity_of
from tmrl_core.errors import ConfigError, FolderLockedError, StorageError, TmrlError
from tmrl_core.metrics.console import show_messages
from tmrl_core.networking.links import WorkerLink
from tmrl_core.networking.protocol.delivery import CloseReport
from tmrl_core.networking.protocol.messages import MAX_SIGNATURE_BYTES
from tmrl_core.networking.security.tls_contexts import client_name
from tmrl_core.networking.spools.own_server import at_own_server
from tmrl_core.networking.transports.selection import link_settings
from tmrl_core.roles.buffer import Buffer
from tmrl_core.roles.labels import Label, own_label
from tmrl_core.samples import encode_value
from tmrl_core.sessions.session_files import SessionWriter
from tmrl_core.space_tree import space_leaves
from tmrl_core.storage import FolderLock

logger = logging.getLogger(__name__)


@described_by(WorkerSection, NetworkSection)
class RolloutWorker(Worker):
    """Collect samples in an environment, send them to the Server, and act with the received policies.

    Omitted arguments come from the configuration at construction; an explicit None means none. The worker begins to
    connect immediately, in the background, and collects when one of the `run` methods is called. Close it, or use it as
    a context manager.

    Args:
        env_cls: creates the environment.
        actor_module_cls: `(observation_space=, action_space=)` creates the ActorModule; or its reference
            "package.module:Name". A built-in policy is replaced by its NumPy backend, see `backend`.
        model_path: file of the local copy of the policy; loaded at construction if it exists.
        standalone: True: work without a Server.
        server_ip: address of the Server; None: this machine.
        server_port: port of the Server.
        password: the token of workers.
        security: "TLS" or None.
        seed: seed of the environment's first reset and of exploration; None: from the operating system.
        run_name: name of the run; samples and weights of other runs are separate.
        interventions: lets a person act in place of the policy; closed with the worker. None: only the policy acts.
        config: source of omitted arguments; None: `tmrl_core.config.current()`.

    Raises:
        ConfigError: arguments or the configuration contradict each other.
        CredentialsError: there are no credentials.

    Attributes:
        env, actor, buffer, model_path: parts of the worker.
        server: section `server` of the configuration, with several Servers at the worker's own.
    """

    buffer_cls: ClassVar[type[Buffer]] = Buffer
    """Class of the Buffer."""

    def __init__(
        self,
        env_cls: Callable[[], Any],
        actor_module_cls: Callable[..., Any] | str,
        sample_compressor: Callable[..., Any] | None = None,
        device: Any = "cpu",
        max_samples_per_episode: float = math.inf,
        model_path: str | Path | Cfg | None = CFG,
        obs_preprocessor: Callable[[Any], Any] | None = None,
        crc_debug: bool = False,
        model_path_history: str | Path | Cfg | None = CFG,
        model_history: int | Cfg = CFG,
        standalone: bool = False,
        server_ip: str | Cfg | None = None,
        server_port: int | Cfg = CFG,
        password: str | Cfg | None = CFG,
        security: Literal["TLS"] | Cfg | None = CFG,
        hostname: str | Cfg | None = CFG,
        *,
        name: str | Cfg | None = CFG,
        seed: int | Cfg | None = CFG,
        run_name: str | Cfg = CFG,
        backend: str | Cfg = CFG,
        collection: str | Cfg = CFG,
        when_full: str | Cfg = CFG,
        queue_bytes: int | Cfg = CFG,
        spool_dir: str | Path | Cfg | None = CFG,
        spool_bytes: int | Cfg | None = CFG,
        send_every: int | Cfg = CFG,
        update_weights: str | Cfg = CFG,
        max_env_steps_per_update: float | Cfg | None = CFG,
        max_failures: int | Cfg = CFG,
        strict_spaces: bool | Cfg = CFG,
        safe_action: Any = CFG,
        info_metrics: Sequence[str] | Cfg = CFG,
        drain_timeout_s: float | Cfg = CFG,
        buffer_maxlen: float | Cfg | None = CFG,
        transport: str | Cfg = CFG,
        record: str | Path | Cfg | None = CFG,
        record_bytes: int | Cfg | None = CFG,
        envs: int | Cfg = CFG,
        interventions: InterventionSource | Cfg | None = CFG,
        config: Config | None = None,
    ) -> None:
        show_messages()
        if config is None:
            config = current()
        settings = config.worker
        kind = given(transport, config.network.transport)
        label = worker_label(
            given(name, settings.name),
            standalone=standalone,
            credentials=None if kind == "local" else find_credentials_folder(config),
        )
        if isinstance(server_ip, Cfg):
            config = at_own_server(config, label.text)
        self.server = config.server
        # The label is released even if the rest fails.
        self._unclaim = weakref.finalize(self, label.claim.close) if label.claim is not None else None
        of_name = partial(mixed_seed, config.run.seed, label.seeding)
        chosen_seed, seed_of = (of_name(), of_name) if isinstance(seed, Cfg) else (seed, None)
        drain_s = given(drain_timeout_s, settings.drain_timeout_s)
        # Files and credentials are found before the environment is made, which may change the working folder.
        copy = given(model_path, config.worker_model_path)
        copy = None if copy is None else Path(copy).absolute()
        history = given(model_path_history, config.worker_history_path)
        if history is not None and not os.path.isabs(history):
            history = os.path.join(os.getcwd(), history)  # may end in a separator, which a Path would drop
        spool = given(spool_dir, config.worker_spool_path)
        spool = None if spool is None else Path(spool).absolute()
        record_into = given(record, config.worker_record_path)
        record_into = None if record_into is None else Path(record_into).absolute()
        connection = None
        if not standalone:
            connection = link_settings(
                config,
                host=server_ip,
                port=server_port,
                transport=kind,
                security=security,
                hostname=hostname,
                password=password,
            )
        rows = given(envs, settings.envs)
        buffer, metrics = (
            self.buffer_cls(given(buffer_maxlen, settings.buffer_maxlen)),
            given(info_metrics, settings.info_metrics),
        )
        if rows > 1:
            for setting, value in (("sample_compressor", sample_compressor), ("crc_debug", crc_debug)):
                if value:
                    raise one_environment_only(setting, rows)
            recorder: StepRecorder = VectorRecorder(buffer, rows, name=label.text, info_metrics=metrics)
        else:
            recorder = StepRecorder(
                buffer,
                name=label.text,
                sample_compressor=sample_compressor,
                crc_debug=crc_debug,
                max_samples_per_episode=max_samples_per_episode,
                info_metrics=metrics,
            )
        loop = make_loop(
            env_cls,
            choose_actor(actor_module_cls, device=device, backend=given(backend, settings.backend)),
            recorder,
            device=device,
            seed=chosen_seed,
            seed_of=seed_of,
            obs_preprocessor=obs_preprocessor,
            max_failures=given(max_failures, settings.max_failures),
            strict_spaces=given(strict_spaces, settings.strict_spaces),
            safe_action=given(safe_action, settings.safe_action),
            max_samples_per_episode=max_samples_per_episode,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(loop.close)
            source = interventions
            if isinstance(source, Cfg):
                source = source_of(settings, loop.environment.env)
            if source is not None:
                let_take_over(loop, source, settings.interventions, given(send_every, settings.send_every))
            link: WorkerLink | None = None
            if connection is not None:
                full = given(when_full, settings.when_full)
                if full == "auto":
                    full = "drop_oldest" if given(collection, settings.collection) == "asynchronous" else "block"
                link = WorkerLink(
                    connection,
                    name=label.text,
                    run=given(run_name, config.run.name),
                    model_path=copy,
                    signature=join_signature(loop.environment.one, loop.runner.actor),
                    queue_bytes=given(queue_bytes, settings.queue_bytes),
                    when_full=cast(Literal["block", "drop_oldest"], full),
                    spool_dir=spool,
                    spool_bytes=given(spool_bytes, settings.spool_bytes),
                    drain_timeout_s=drain_s,
                    lateness=loop.lateness.report if loop.lateness is not None else None,
                )
            recording = None
            if record_into is not None:
                limit = given(record_bytes, settings.record_bytes)
                compressed = recorder.sample_compressor is not None
                recording = open_recording(record_into, label.text, loop.environment.one, limit, compressed)
                undo.callback(recording.close)
            loop.uplink = Uplink(
                link,
                recorder,
                loop.runner,
                files=PolicyFiles(
                    copy,
                    str(history) if history is not None else None,
                    given(model_history, settings.model_history),
                ),
                drain_timeout_s=drain_s,
                needs_policy=standalone,
                recording=recording,
            )
            if link is not None:
                loop.uplink.pictures = WorkerPictures(loop, link.show)
            super().__init__(
                loop,
                send_every=given(send_every, settings.send_every),
                update_weights=given(update_weights, settings.update_weights),
                max_env_steps_per_update=given(max_env_steps_per_update, settings.max_env_steps_per_update),
            )
            if link is not None:
                link.start()
            # The loop may refer to this object, which would then never be unreferenced.
            close_unreferenced(self, partial(_close_all, loop.environment, loop.takeover), loop.uplink)
            undo.pop_all()

    def close(self) -> CloseReport | None:
        """Close the worker, and release its label for other workers."""
        report = super().close()
        if self._unclaim is not None:
            self._unclaim()
        return report


def _close_all(environment: CheckedEnvironment, takeover: Takeover | None) -> None:
    environment.close()
    if takeover is not None:
        takeover.close()


def source_of(settings: WorkerSection, env: Any) -> InterventionSource | None:
    """Return the configured source of interventions; None: there is none.

    Raises:
        ConfigError: it cannot be made; the message begins with its key.
    """
    section = settings.interventions
    if section is None:
        return None
    make = resolve_with(section.cls, section.kwargs, f"{KEY}.cls")
    try:
        wants_space = "action_space" in inspect.signature(make).parameters
    except (TypeError, ValueError):
        wants_space = False
    try:
        made = make(action_space=env.action_space) if wants_space else make()
        return as_source(made, section.cls)
    except TmrlError:
        raise
    except Exception as exc:
        raise ConfigError(
            f"{KEY}.cls: {section.cls} cannot be made: {type(exc).__name__}: {exc}. Correct {KEY}.kwargs or the "
            f"device, or set {KEY}: null on this machine"
        ) from exc


def let_take_over(
    loop: EnvironmentLoop, source: InterventionSource, section: InterventionsSection | None, send_every: int
) -> None:
    """Let a source of interventions act in place of a loop's policy.

    Raises:
        ConfigError: there are several environments, the action space is not supported, or another worker has the
            device.
    """
    if loop.recorder.rows > 1:
        source.close()
        raise one_environment_only("interventions", loop.recorder.rows)
    section = section or InterventionsSection(cls="script:source")  # a script's source has the defaults
    held: FolderLock | None = None
    try:
        if source.device:
            held = hold_device(
                source.device,
                KEY,
                f"One worker can have it: start the others with --set {KEY}=null, or --local with --workers 1",
            )
        takeover = Takeover(
            source,
            loop.environment.env.action_space,
            loop.recorder,
            executed=section.executed,
            success_reward=section.success_reward,
            held=held,
        )
    except ConfigError:
        source.close()
        if held is not None:
            held.close()
        raise
    loop.let_take_over(takeover)
    if send_every:
        logger.warning(
            "worker.send_every: %d sends parts of episodes before the person can discard them; these stay in the "
            "memory. Set it to 0 to send episodes at their end",
            send_every,
        )


def worker_label(name: str | None, *, standalone: bool, credentials: Path | None) -> Label:
    """Return a worker's label.

    Args:
        name: chosen name; None or empty: from the certificate or the machine.
        standalone: True: without a Server, so that no other worker needs a different label.
        credentials: folder of the credentials; None: there is no certificate.
    """
    if name:
        return Label(name, name)
    if standalone:
        return Label(socket.gethostname(), socket.gethostname())
    return own_label(None if credentials is None else client_name(credentials, "worker"))


def open_recording(folder: Path, name: str, env: Any, max_bytes: int | None, compressed: bool) -> Recording:
    """Begin to record into the subfolder of a worker's name.

    Raises:
        ConfigError: it cannot be recorded there, or the spaces cannot be recorded.
    """
    own = folder / (quote(name, safe="").lstrip(".") or "worker")
    try:
        spaces = env.observation_space, env.action_space
        writer = SessionWriter(own, *spaces, max_bytes=max_bytes, compressed=compressed)
    except FolderLockedError as exc:  # two experts without a Server have the same name
        raise ConfigError(
            f"worker.record: {own} is in use by {exc.holder}. Give this worker a name of its own, such as --set "
            "worker.name=second: it then records beside the other one, in a folder of that name"
        ) from exc
    except StorageError as exc:
        raise ConfigError(f"worker.record: {exc}") from exc
    logger.info("sessions are recorded into %s", own)
    return Recording(writer)


def mixed_seed(seed: int | None, name: str, place: int = 1) -> int | None:
    """Return the run's seed mixed with the worker's name, so that workers of one run have different episodes.

    It has 31 bits: simulators in C, such as SUMO, refuse larger ones.

    Args:
        seed: seed of the run; None: there is none.
        name: name of the worker.
        place: number of the worker among those of this name, from 1.
    """
    if seed is None:
        return None
    mixed = [seed, zlib.crc32(name.encode())] + [place] * (place > 1)
    return int(np.random.SeedSequence(mixed).generate_state(1)[0] >> 1)


def join_signature(env: Any, actor: ActorModule) -> dict[str, Any]:
    """Return the description that the trainer checks when this worker joins, without the policy if it is too long."""
    of_env = env_signature(env)
    whole = {**of_env, "policy": actor.architecture()}
    return whole if len(encode_value(whole)) <= MAX_SIGNATURE_BYTES else of_env


def env_signature(env: Any) -> dict[str, Any]:
    """Return the environment's identity and the arrays in its spaces, so that the trainer can check them."""
    return {
        **identity_of(env),
        "observation": _arrays(env.observation_space),
        "action": _arrays(env.action_space),
    }


def _arrays(space: Any) -> list[dict[str, Any]]:
    return [
        {
            "path": "".join(f"/{key}" for key in path),
            "shape": [int(size) for size in leaf.shape] if leaf.shape is not None else None,
            "dtype": str(leaf.dtype) if leaf.dtype is not None else None,
        }
        for path, leaf in space_leaves(space)
    ]
