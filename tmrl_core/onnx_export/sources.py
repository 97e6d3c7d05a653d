"""The policy to export, from a run's folder, a checkpoint or a file of weights."""

# Theory of operation
#
# Weights alone do not say which policy they belong to: its class and sizes are in the configuration, its spaces in the
# environment. So a source is looked at in this order: which configuration, which spaces, a new policy of both, and then
# the weights, which are checked against it as when a worker loads them.
#
#     runs/ant/config.yaml -> actor.cls, actor.kwargs      environment (or --spaces FILE) -> spaces
#     runs/ant/policy.tmod -> weights                      policy(spaces, kwargs).from_bytes(weights)
#
# Of a checkpoint, the agent alone is restored, without its memory, which may be larger than this machine's. The agent
# then publishes its weights, so that what an agent changes when it publishes (a folded normalization) is in the file.
#
# The environment is made for its spaces, as a trainer makes it. Where it is a machine, or is not installed, `--spaces`
# names the file that recorded sessions have.

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.policies.numpy.lookup import choose_actor
from tmrl_core.config import Config
from tmrl_core.config.algorithms import ACTORS, actor_of, policy_kwargs
from tmrl_core.config.room_sections import kind_of_run
from tmrl_core.config.run_folder import kept_id
from tmrl_core.errors import CheckpointError, ConfigError, MissingExtraError, StorageError
from tmrl_core.storage import read_whole

CONFIGURATION, MANIFEST, CHECKPOINTS, WEIGHTS = "config.yaml", "manifest.json", "checkpoint", "policy.tmod"
_LEVELS = 3
"""Number of folders above a source in which the run's configuration is looked for."""


class Exported(NamedTuple):
    """A policy with its weights.

    Args:
        policy: the policy.
        origin: file or folder of its weights.
        metadata: of the run, for the file.
    """

    policy: ActorModule
    origin: Path
    metadata: Mapping[str, str]


def configuration_of(source: Path) -> Path:
    """Return the configuration of the run that a source belongs to.

    Raises:
        ConfigError: there is none.
    """
    for folder in [source, *source.absolute().parents][: 1 + _LEVELS]:
        if (folder / CONFIGURATION).is_file():
            return folder / CONFIGURATION
    raise ConfigError(
        f"{source} does not lie in the folder of a run, so the policy's class and sizes are not known. Name the run's "
        "configuration with -c FILE."
    )


def weights_of(source: Path, config: Config, checkpoint: str | None) -> Path:
    """Return the file of weights, or the folder of the checkpoint, that a source stands for.

    Args:
        source: a run's folder, a checkpoint's folder, or a file of weights.
        config: of the run.
        checkpoint: of a run: a number, `last` or `best`; None: the run's file of weights.

    Raises:
        ConfigError: the source is none of these, or there is no such checkpoint.
    """
    if source.is_file() or (source / MANIFEST).is_file():
        if checkpoint is not None:
            raise ConfigError(f"--checkpoint: only with the folder of a run, and {source} is none")
        return source
    if not (source / CONFIGURATION).is_file():
        raise ConfigError(
            f"{source} is neither the folder of a run (with {CONFIGURATION}), nor of a checkpoint (with {MANIFEST}, "
            f"such as {CHECKPOINTS}/12 in a run), nor a file of weights (such as {WEIGHTS} in a run)"
        )
    if checkpoint is not None:
        return _checkpoint(config.absolute(config.checkpoint.path or source / CHECKPOINTS), checkpoint)
    # By the folder that is named and not by run.folder: a run may have been moved.
    places = [
        config.absolute(config.trainer.model_path or source / WEIGHTS),
        config.absolute(config.worker.model_path or source / "worker" / WEIGHTS),
    ]
    found = [path for path in places if path.is_file()]
    if not found:
        raise ConfigError(
            f"{source} has no saved policy: neither {places[0]} nor {places[1]} is there. Train the run first, or take "
            "the policy of a checkpoint: --checkpoint last"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def _checkpoint(folder: Path, wanted: str) -> Path:
    numbers = sorted(int(each.name) for each in folder.glob("*") if each.name.isdecimal())
    if not numbers:
        raise ConfigError(f"{folder} has no checkpoint. Leave out --checkpoint for the run's file of weights")
    if wanted == "best":
        from tmrl_core.training.checkpoints.manifest import read_manifest

        scores = {number: read_manifest(folder / str(number)).score for number in numbers}
        scored = {number: score for number, score in scores.items() if score is not None}
        if not scored:
            raise ConfigError(
                f"--checkpoint: found best, and no checkpoint in {folder} has an evaluation "
                "(trainer.evaluation.every_updates). Allowed: last, " + ", ".join(map(str, numbers))
            )
        return folder / str(max(scored, key=lambda number: (scored[number], number)))
    if wanted != "last" and (not wanted.isdecimal() or int(wanted) not in numbers):
        raise ConfigError(f"--checkpoint: found {wanted}, allowed: best, last, {', '.join(map(str, numbers))}")
    return folder / str(numbers[-1] if wanted == "last" else int(wanted))


def exported(config: Config, origin: Path, spaces_file: Path | None) -> Exported:
    """Return the policy of a configuration with the weights of a file or a checkpoint.

    Args:
        config: of the run.
        origin: the file of weights, or the folder of the checkpoint.
        spaces_file: `spaces.json` of recorded sessions; None: the environment's spaces.

    Raises:
        ConfigError: the policy is a class of the user's own, or the run is of another kind; the environment does not
            exist.
        CheckpointError, WeightsError: they do not fit the configuration, or are damaged.
        MissingExtraError: a checkpoint needs torch.
    """
    if (kind := kind_of_run(config)) is not None:
        raise ConfigError(
            f"{kind.key}: such a run has policies of its own kind, which --export does not know. It writes the policy "
            "of a run with one agent in one environment"
        )
    if actor_of(config.actor.cls) is None:
        raise ConfigError(
            f"actor.cls: {config.actor.cls} is a policy of your own, so its computation is known to its code alone. "
            f"Allowed for an export: {', '.join(ACTORS)} of tmrl_core.actor. Write yours with torch.onnx.export"
        )
    observation_space, action_space = _spaces(config, spaces_file)
    make = choose_actor(config.actor.cls, policy_kwargs(config))
    policy: ActorModule = make(observation_space=observation_space, action_space=action_space)
    metadata = {"tmrl_core.weights": f"{origin.parent.name}/{origin.name}" if origin.is_dir() else origin.name}
    if (run := kept_id(configuration_folder(origin))) is not None:
        metadata["tmrl_core.run"] = run
    if origin.is_dir():
        tag, data, progress = _published(config, origin, observation_space, action_space)
        return Exported(policy.from_blob(tag, data, "cpu"), origin, metadata | progress)
    return Exported(policy.from_blob(policy.weights_format, read_whole(origin), "cpu"), origin, metadata)


def configuration_folder(source: Path) -> Path:
    """Return the folder of the run that a source belongs to; the source's own folder if that is not known."""
    with contextlib.suppress(ConfigError):
        return configuration_of(source).parent
    return source.parent


def _spaces(config: Config, file: Path | None) -> tuple[Any, Any]:
    from tmrl_core.sessions.session_files import read_spaces, read_spaces_file

    if file is not None:
        return read_spaces_file(file)
    recorded = config.offline_path or config.recorded_path
    if recorded is not None:
        with contextlib.suppress(StorageError):
            return read_spaces(recorded)
    from tmrl_core.config.environment_contract import one_of
    from tmrl_core.roles.from_config import environment_of

    environment = one_of(environment_of(config)())
    try:
        return environment.observation_space, environment.action_space
    finally:
        environment.close()


def _published(
    config: Config, folder: Path, observation_space: Any, action_space: Any
) -> tuple[str, bytes, dict[str, str]]:
    """Return the weights that the agent of a checkpoint publishes, with the tag of their format, and its progress."""
    # Not as a trainer prepares torch: its device may be on another machine.
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", "trainer", "the policy of a checkpoint")
    from tmrl_core.roles.training_object import agent_from_config
    from tmrl_core.training.checkpoints.checked_files import parse_safetensors, parse_state, read_file
    from tmrl_core.training.checkpoints.manifest import read_manifest
    from tmrl_core.training.checkpoints.restore import decoded, restore_part

    manifest = read_manifest(folder)
    state, arrays = folder / "state.json", folder / "arrays.safetensors"
    tree = parse_state(read_file(state, manifest.files["state.json"]), state)
    numbers = parse_safetensors(read_file(arrays, manifest.files["arrays.safetensors"]), arrays)
    agent = agent_from_config(config)(observation_space=observation_space, action_space=action_space, device="cpu")
    try:
        node = tree["training"]["v"]["agent"]
        restore_part(agent, "agent", node, numbers, decoded(tree["constructed"], numbers))
    except (LookupError, TypeError) as exc:
        raise CheckpointError(f"{folder} holds no agent of {config.agent.cls}: {exc}") from exc
    tag, data = agent.get_actor().to_blob()
    return tag, data, dict(_progress(manifest.updates, manifest.samples, manifest.score))


def _progress(updates: int | None, samples: int | None, score: float | None) -> Iterator[tuple[str, str]]:
    for name, value in (("updates", updates), ("samples", samples), ("return", score)):
        if value is not None:
            yield f"tmrl_core.{name}", str(value)
