"""Construction of the roles from the configuration: resolve references, create the public classes, run them.

Nothing here imports torch: a worker whose policy does not need it, and the Server, run without.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_core import rooms
from tmrl_core.config import CFG, Cfg, Config, environment_maker, resolve_optional
from tmrl_core.config.algorithms import policy_kwargs
from tmrl_core.config.room_sections import kind_of_run
from tmrl_core.errors import ConfigError, PortInUseError
from tmrl_core.roles.devices import check_device
from tmrl_core.roles.kinds_of_run import RunWorker, parts_of

if TYPE_CHECKING:
    from tmrl_core.envs.sent_images import ImageEncoder
    from tmrl_core.roles.rollout_worker import RolloutWorker
    from tmrl_core.roles.server import Server
    from tmrl_core.roles.trainer import Trainer

logger = logging.getLogger(__name__)


GYMNASIUM_ENVIRONMENTS = frozenset({"tmrl_core:GenericGymEnv", "tmrl_core.envs:GenericGymEnv"})
"""References that only wrap Gymnasium's environments."""


def ensure_credentials(config: Config) -> bool:
    """Create missing credentials for a Server on this machine. Return True if they were created.

    For a Server on another machine, the roles explain the commands to run.
    """
    network = config.network
    if network.security is None or not config.server.is_local:
        return False
    from tmrl_core.networking.security import credentials
    from tmrl_core.networking.transports.selection import transport_kind

    kind = transport_kind(network.transport)
    return not kind.in_process and kind.ensure_credentials(credentials.find(network.credentials_dir))


def make_server(config: Config, *, any_port: bool = False) -> Server:
    """Return the Server, which listens already.

    Args:
        config: the configuration.
        any_port: True: if `server.port` is not set and the default port is taken, take a free one.

    Raises:
        ConfigError, CredentialsError: the settings or the credentials are invalid.
        NetworkError: the port cannot be opened (PortInUseError: another process holds it).
    """
    from tmrl_core.roles.server import Server

    try:
        return Server(config=config)
    except PortInUseError:
        if not any_port or config.server.port is not None:
            raise
    # The Server itself tries: a port that was found free beforehand may be taken when the Server starts.
    return Server(port=0, config=config)


def make_worker(
    config: Config,
    *,
    name: str | None = None,
    standalone: bool = False,
    model_path: Path | Cfg = CFG,
    render_mode: str | None = None,
) -> RolloutWorker:
    """Return a RolloutWorker, which does not collect yet.

    Args:
        config: the configuration; it must be the one in use (`tmrl_core.config.use`), which the worker reads too.
        name: label in logs and metrics; None: `worker.name`.
        standalone: True: without a Server.
        model_path: file of the local copy of the policy; left out: the configuration's.
        render_mode: mode of the environment: `human`, or `rgb_array` for recording a video.

    Raises:
        ConfigError, CredentialsError: the settings or the credentials are invalid.
    """
    from tmrl_core.actor import choose_actor
    from tmrl_core.actor.rollout.worker import one_environment_only
    from tmrl_core.envs.filmed import check_encoder
    from tmrl_core.envs.sent_images import encoder_of
    from tmrl_core.roles.rollout_worker import RolloutWorker

    worker = config.worker
    check_device(worker.device, "worker.device")
    limit = worker.max_samples_per_episode
    films = worker.evaluation_videos and not standalone
    if films:
        if worker.envs > 1:
            raise one_environment_only("evaluation_videos", worker.envs)
        check_encoder("worker.evaluation_videos")
        render_mode = "rgb_array"
    images = encoder_of(worker.images)
    compressor = resolve_optional(worker.sample_compressor, "worker.sample_compressor")
    made = RolloutWorker(
        env_cls=environment_of(config, render_mode, images),
        # The reference stays unresolved: with a NumPy backend, neither the policy's module nor torch is imported.
        actor_module_cls=choose_actor(
            config.actor.cls, policy_kwargs(config), device=worker.device, backend=worker.backend
        ),
        sample_compressor=compressor if images is None else images.compress,
        device=worker.device,
        max_samples_per_episode=math.inf if limit is None else limit,
        obs_preprocessor=resolve_optional(worker.obs_preprocessor, "worker.obs_preprocessor"),
        model_path=model_path,
        crc_debug=worker.crc_debug,
        standalone=standalone,
        server_ip=CFG,
        name=name if name is not None else worker.name,
        backend="torch" if worker.backend == "torch" else "auto",
        envs=1 if standalone else worker.envs,
    )
    if films:
        made.loop.evaluation_videos = config.run_folder / "worker" / "videos"
    return made


def environment_of(
    config: Config, render_mode: str | None = None, images: ImageEncoder | None = None
) -> Callable[[], Any]:
    """Return a function that makes the configured environment, see `environment_maker`.

    Args:
        config: the configuration.
        render_mode: mode of the environment; `rgb_array`: it can be filmed. None: the environment's own.
        images: encodes its images; None: one that `worker.images` describes.
    """
    from tmrl_core.envs.sent_images import encoder_of, sending_images

    section = config.environment
    reference, kwargs, limit = section.cls, section.kwargs, section.time_limit
    if render_mode is not None:
        from tmrl_core.envs.filmed import rendering

        kwargs = rendering(reference, kwargs, render_mode, wraps_gymnasium=reference in GYMNASIUM_ENVIRONMENTS)
    make = environment_maker(reference, kwargs, section.drop, envs=config.worker.envs)
    make = sending_images(make, images or encoder_of(config.worker.images))

    def wrapped() -> Any:
        from tmrl_core.envs.filmed import Filmed
        from tmrl_core.envs.time_limit import TimeLimitAsTruncation

        made = make()
        if limit is not None:
            made = TimeLimitAsTruncation(made, limit)
        return Filmed(made) if render_mode == "rgb_array" else made

    return wrapped


def saved_policy(config: Config, file: Path | None = None) -> Path:
    """Return the run's saved policy: the trainer's or the worker's copy, whichever is newer.

    Args:
        config: the configuration.
        file: its file. If the run's folder has no policy, one beside this file is taken: a run's folder may have been
            copied elsewhere, with its `config.yaml` in it.

    Raises:
        ConfigError: there is no saved policy.
    """
    places = [config.trainer_model_path, config.worker_model_path]
    found = [path for path in places if path.is_file()]
    if not found and file is not None:
        found = [path for path in [file.absolute().parent / "policy.tmod"] if path.is_file()]
    if not found:
        checkpoint = config.run_folder / "checkpoint"
        copied = f"Beside {checkpoint}, copy the run's policy.tmod too. " if checkpoint.is_dir() else ""
        raise ConfigError(
            f"run {config.run.name!r} has no saved policy: neither {places[0]} nor {places[1]} is a file. {copied}"
            "Train it first, run this in the folder where it was trained, name the config.yaml in a run's folder (-c), "
            "or set trainer.model_path or run.name."
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def worker_of_run(
    config: Config,
    *,
    name: str | None = None,
    expert: bool = False,
    in_use: Callable[[], object] = lambda: None,
) -> tuple[RunWorker, Callable[[], None]]:
    """Return a worker of a run of any kind, and the function that collects with it.

    Args:
        config: the configuration.
        name: label in logs and metrics; None: `worker.name`.
        expert: True: its policy never changes.
        in_use: called when the environment has been made, or stepped if the worker steps without waiting for a policy.

    Raises:
        ConfigError, CredentialsError: the settings or the credentials are invalid.
    """
    if (kind := kind_of_run(config)) is not None:
        if config.worker.envs > 1:
            raise ConfigError(
                f"worker.envs: found {config.worker.envs}, allowed with a section {kind.key}: 1. Start more workers "
                "(--workers)"
            )
        made = parts_of(kind).make_worker(config, name=name)
        in_use()
        return made, made.run
    worker = make_worker(config, name=name)
    if config.worker.collection == "asynchronous":
        worker.loop.environment.when_stepped = in_use
    else:
        in_use()  # it waits for the trainer before it steps
    return worker, functools.partial(run_worker, worker, config, expert=expert)


def run_worker(worker: RolloutWorker, config: Config, *, expert: bool = False) -> None:
    """Collect in the mode `worker.collection` until the trainer finishes, a limit is reached, or `worker.stop()`.

    Raises:
        TmrlError: the environment failed too often, the link failed permanently, or both sides wait for each other.
    """
    settings = config.worker
    nb_steps = math.inf if settings.nb_steps is None else settings.nb_steps
    nb_episodes = math.inf if settings.nb_episodes is None else settings.nb_episodes
    if expert and settings.collection == "lockstep":
        raise ConfigError(
            "worker.collection: lockstep trains on what its own policy has done, so an expert's samples are of no use; "
            "use asynchronous collection with experts"
        )
    if expert or settings.collection == "asynchronous":
        worker.run(
            test_episode_interval=settings.test_episode_interval,
            nb_episodes=nb_episodes,
            verbose=False,
            expert=expert,
        )
    elif settings.collection == "synchronous":
        per_update = settings.max_steps_per_update
        worker.run_synchronous(
            test_episode_interval=settings.test_episode_interval,
            nb_steps=nb_steps,
            initial_steps=settings.initial_steps,
            max_steps_per_update=math.inf if per_update is None else per_update,
            end_episodes=settings.end_episodes,
            verbose=False,
        )
    else:
        worker.run_lockstep()


def make_trainer(config: Config) -> Trainer:
    """Return the Trainer, which trains when `run` is called.

    Raises:
        ConfigError, CredentialsError: the settings or the credentials are invalid.
        MissingExtraError: torch is not installed.
    """
    from tmrl_core.roles.trainer import Trainer

    check_device(config.trainer.device, "trainer.device")
    for entry in rooms.entries("trainers").values():
        make: Callable[[Config], Trainer | None] = entry.load()
        if (made := make(config)) is not None:
            return made
    return Trainer(config=config)


def run_trainer(trainer: Trainer, config: Config) -> None:
    """Train until the epochs are done, the target is reached, the time is over, or `trainer.stop()`."""
    if config.metrics.wandb:
        trainer.run_with_wandb()
    else:
        trainer.run()


def longest_episode(config: Config) -> int | None:
    """Return the step limit of the configured environment, if Gymnasium's registry knows its id."""
    name = config.environment.kwargs.get("id")
    if not isinstance(name, str):
        return None
    import gymnasium

    try:
        steps: Any = gymnasium.spec(name).max_episode_steps
    except (gymnasium.error.Error, ImportError):
        return None
    return steps if isinstance(steps, int) else None
