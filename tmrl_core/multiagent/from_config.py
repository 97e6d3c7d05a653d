"""Parts of many agents, as the section `multiagent` of the configuration names them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.actor.rollout.pictures import WorkerPictures
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.config import Config, find_credentials_folder
from tmrl_core.config.references import named_failures, resolve_with
from tmrl_core.errors import ConfigError
from tmrl_core.long_calls import watched
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.assembly import Assembly, PolicySettings
from tmrl_core.multiagent.collector import MultiAgentCollector, MultiAgentWorker, RestartedEnvironment, Stage
from tmrl_core.multiagent.environment import EventEnvironment
from tmrl_core.multiagent.exploration import Explorer
from tmrl_core.multiagent.manager import AgentManager, Mode
from tmrl_core.multiagent.settings import AgentParameters, AgentPolicySection, MultiAgentSection
from tmrl_core.networking.links import WorkerLink
from tmrl_core.networking.protocol.messages import MAX_SIGNATURE_BYTES
from tmrl_core.networking.spools.own_server import at_own_server
from tmrl_core.networking.transports.selection import link_settings
from tmrl_core.roles.rollout_worker import mixed_seed, worker_label
from tmrl_core.samples import encode_value

OF_AGENTS = "tmrl_core.multiagent:TrainingAgentAlgorithm"
OF_ACTING_AGENTS = "tmrl_core.multiagent:ActingPolicy"
"""Algorithms of a TrainingAgent, for the trainer and for workers. They are references, because the first needs torch.
"""
HEAD_RESERVE_BYTES = 4096
"""Bytes of a message that the head of an episode leaves for the rest of its row."""


def section_of(config: Config) -> MultiAgentSection:
    """Return the section of many agents.

    Raises:
        ConfigError: the configuration has none.
    """
    if (section := MultiAgentSection.of(config)) is None:
        raise ConfigError(
            "multiagent: found null; write the agents and their policies there, see tmrl_core/multiagent/README.md"
        )
    return section


def make_manager(config: Config, mode: Mode) -> AgentManager:
    """Return the manager of a role: `inference` in workers, `training` in the trainer.

    Raises:
        ConfigError: a reference names nothing, or something of another kind.
    """
    section = section_of(config)
    ids = section.ids
    assembly = Assembly(
        agents=section.agents,
        policies={name: _policy(name, policy, mode) for name, policy in section.policies.items()},
        memories=section.memories,
    )
    exploration = section.exploration
    key = "multiagent.exploration.cls"
    explorer = resolve_with(exploration.cls, exploration.kwargs, key)(ids)
    _check_kind(explorer, Explorer, f"{key}: {exploration.cls!r}")
    key = "multiagent.manager"
    manager = resolve_with(section.manager, {**section.kwargs, "config": assembly, "explorer": explorer}, key)(
        mode, ids
    )
    _check_kind(manager, AgentManager, f"{key}: {section.manager!r}")
    made: AgentManager = manager
    return made


def _policy(name: str, policy: AgentPolicySection, mode: Mode) -> PolicySettings:
    key = f"multiagent.policies.{name}"
    try:
        parameters = AgentParameters(**msgspec.structs.asdict(policy.parameters))
    except ConfigError as exc:
        raise ConfigError(f"{key}.parameters: {exc}") from None
    return PolicySettings(
        algorithm=partial(_make_algorithm, key, policy, mode), memory=policy.memory, parameters=parameters
    )


def _make_algorithm(key: str, policy: AgentPolicySection, mode: Mode) -> AgentAlgorithm:
    reference, kwargs = policy.algorithm, policy.kwargs
    part = "algorithm"
    if policy.agent is not None:
        part = "agent"
        reference = OF_AGENTS if mode == "training" else OF_ACTING_AGENTS
        kwargs = {"agent": policy.agent, **kwargs}
    if mode == "inference" and policy.acting is not None:
        part, reference, kwargs = "acting", policy.acting, policy.kwargs
    assert reference is not None, "the configuration was checked"
    algorithm = resolve_with(reference, kwargs, f"{key}.{part}")()
    _check_kind(algorithm, AgentAlgorithm, f"{key}.{part}: {reference!r}")
    made: AgentAlgorithm = algorithm
    return made


def training_from_config(config: Config) -> Callable[[], Any]:
    """Return a function that makes the training object of the section `multiagent`.

    Raises:
        ConfigError: a reference names nothing.
    """
    # Workers use this module too, without torch.
    from tmrl_core.roles.training_object import lockstep_settings, loop_settings
    from tmrl_core.training.loops.lockstep import TrainingLockstep

    section, reference = section_of(config), config.trainer.loop
    if reference == Config().trainer.loop:
        reference = "tmrl_core.multiagent:MultiAgentTraining"
    return partial(
        resolve_with(reference, {}, "trainer.loop"),
        partial(make_manager, config, "training"),
        max_episode_bytes=section.max_episode_bytes,
        **loop_settings(config, TrainingLockstep),
        **lockstep_settings(config),
    )


def environment_maker(config: Config, *, test: bool = False) -> Callable[[], EventEnvironment]:
    """Return a function that makes the environment.

    The function raises ConfigError if the result is of another kind.

    Args:
        config: the configuration.
        test: True: the environment of evaluations and tests.

    Raises:
        ConfigError: the reference names nothing, or does not accept the keyword arguments.
    """
    wanted = section_of(config).test_environment if test else None
    key = "environment.cls" if wanted is None else "multiagent.test_environment.cls"
    environment = wanted or config.environment
    make = resolve_with(environment.cls, environment.kwargs, key)

    @watched("the environment's constructor")
    def make_environment() -> EventEnvironment:
        label = f"{key}: {environment.cls!r}"
        with named_failures(label):
            made: EventEnvironment = make()
        _check_kind(made, EventEnvironment, label)
        return made

    return make_environment


def probe_environment(config: Config) -> None:
    """Make the environment, begin an episode, and close it.

    Raises:
        ConfigError: see `environment_maker`.
        Exception: exceptions of the environment propagate.
    """
    environment = RestartedEnvironment(environment_maker(config))
    environment.reset()
    environment.step(None)
    environment.close()


def _check_kind(made: Any, kind: type, label: str) -> None:
    if not isinstance(made, kind):
        raise ConfigError(
            f"{label} made a {type(made).__name__}; the section multiagent needs an object of a class derived from "
            f"tmrl_core.multiagent.{kind.__name__}"
        )


def make_worker(
    config: Config, *, name: str | None = None, standalone: bool = False, model_path: Path | None = None
) -> MultiAgentWorker:
    """Return a worker, which does not collect yet. With a Server it begins to connect in the background.

    Args:
        config: the configuration.
        name: label in logs and metrics; None: `worker.name`.
        standalone: True: without a Server.
        model_path: file of the policies; None: the worker's own copy.

    Raises:
        ConfigError, CredentialsError: the settings or the credentials are invalid.
        WeightsError: without a Server: the policies in the file do not fit.
    """
    section, settings, network = section_of(config), config.worker, config.network
    label = worker_label(
        name or settings.name,
        standalone=standalone,
        credentials=None if network.transport == "local" else find_credentials_folder(config),
    )
    release = label.claim.close if label.claim is not None else None
    # Files and credentials are found before the environment is made, which may change the working folder.
    copy = config.worker_model_path if model_path is None else model_path.absolute()
    connection = None if standalone else link_settings(at_own_server(config, label.text))
    with contextlib.ExitStack() as undo:
        if release is not None:
            undo.callback(release)

        def make_stage(test: bool) -> Stage:
            make_environment = environment_maker(config, test=test)
            return Stage(make_manager(config, "inference"), make_environment, section.max_decisions)

        collector = MultiAgentCollector(
            make_stage,
            name=label.text,
            max_failures=settings.max_failures,
            max_episode_bytes=section.max_episode_bytes,
            max_head_bytes=network.max_message_bytes - HEAD_RESERVE_BYTES,
            seed_of=partial(mixed_seed, config.run.seed, label.seeding),
        )
        undo.callback(collector.close)
        link: WorkerLink | None = None
        if connection is not None:
            link = WorkerLink(
                connection,
                name=label.text,
                run=config.run.name,
                model_path=copy,
                signature=signature_of(collector.stage.manager),
                queue_bytes=settings.queue_bytes,
                when_full="block",
                drain_timeout_s=settings.drain_timeout_s,
            )
        collector.uplink = Uplink(
            link,
            collector.recorder,
            collector,
            files=PolicyFiles(copy, config.worker_history_path, settings.model_history),
            drain_timeout_s=settings.drain_timeout_s,
            needs_policy=standalone,
        )
        if link is not None:
            collector.uplink.pictures = WorkerPictures(collector, link.show)  # which says that there are none
            link.start()
        undo.pop_all()
    return MultiAgentWorker(collector, release)


def signature_of(manager: AgentManager) -> dict[str, Any]:
    """Return the description that the trainer checks when this worker joins, without shapes if it is too long."""
    models = {name: algorithm.get_model() for name, algorithm in manager.policies.items()}
    policy = PolicyBundle(models, manager.explorer.epsilons).architecture()
    for signature in ({"policy": policy}, {"policy": {"metadata": policy["metadata"]}}):
        if len(encode_value(signature)) <= MAX_SIGNATURE_BYTES:
            return signature
    return {}
