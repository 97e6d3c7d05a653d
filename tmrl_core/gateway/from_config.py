"""The agents of a gateway as the configuration describes them."""

from __future__ import annotations

import logging
import math
import re
from functools import partial

from tmrl_core.actor.policies.numpy.lookup import choose_actor
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.shared_policy import SharedPolicy
from tmrl_core.config import Config, environment_maker, find_credentials_folder, resolve_optional
from tmrl_core.config.algorithms import policy_kwargs
from tmrl_core.errors import ConfigError, MissingExtraError
from tmrl_core.gateway.central import CentralAgent
from tmrl_core.gateway.contracts import GatewayAgent
from tmrl_core.gateway.settings import GatewayAgentSection, gateway_section
from tmrl_core.networking.links import WorkerLink
from tmrl_core.networking.security.tls_contexts import client_name
from tmrl_core.networking.spools.own_server import at_own_server
from tmrl_core.networking.transports.selection import link_settings
from tmrl_core.roles.devices import check_device
from tmrl_core.roles.labels import own_label
from tmrl_core.roles.rollout_worker import join_signature, mixed_seed

logger = logging.getLogger(__name__)

LABEL = "gateway"
"""Label of the first gateway of a machine; further ones get `-2`, `-3`, ..."""


def make_agents(config: Config) -> list[GatewayAgent]:
    """Return the agents of `gateway.agents`; without any, one central agent, `default`.

    Raises:
        ConfigError: the settings of an agent do not go together.
        MissingExtraError: a package that an agent needs is not installed.
    """
    sections = gateway_section(config).agents or {"default": GatewayAgentSection()}
    for name in sections:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise ConfigError(
                f"gateway.agents: found the name {name!r}; allowed: 1 to 64 letters, digits, dots, underscores and "
                "hyphens, a letter or digit first"
            )
    central = [name for name, section in sections.items() if section.mode == "central"]
    if len(central) > 1:
        raise ConfigError(
            f"gateway.agents: {' and '.join(central)} are central, and a gateway serves one run with at most one "
            "central agent. Make the others `mode: advice`, or start a gateway for each with its own run.name."
        )
    # The central one last: it begins to connect, and the settings of the others may be wrong.
    made: dict[str, GatewayAgent] = {name: _advice(config, name) for name in sections if name not in central}
    made |= {name: central_agent(config, name) for name in central}
    return [made[name] for name in sections]


def _advice(config: Config, name: str) -> GatewayAgent:
    try:
        from tmrl_core.gateway.advice.from_config import advice_agent
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        raise MissingExtraError("torch", "trainer", f"gateway.agents.{name}: mode advice") from exc
    return advice_agent(config, name)


def check_central(config: Config) -> None:
    """Refuse settings that need clients to wait for the trainer.

    Raises:
        ConfigError: with the setting and the change to make.
    """
    collection = config.worker.collection
    if collection == "lockstep":
        raise ConfigError(
            "worker.collection: lockstep trains on exactly the steps that it assigns, and clients of the gateway take "
            "steps when they like. Use asynchronous, with an off-policy agent such as DQNAgent or SacAgent instead of "
            "PPOAgent."
        )
    if collection == "synchronous":
        raise ConfigError(
            "worker.collection: synchronous lets workers wait for models, and clients of the gateway do not wait. Use "
            "asynchronous; trainer.max_training_steps_per_env_step limits the updates."
        )
    if config.worker.images is not None:
        raise ConfigError(
            "worker.images: workers encode the images of their environment, and clients of the gateway send "
            "observations as they are. Leave it out, or use workers."
        )
    if config.worker.max_env_steps_per_update is not None:
        logger.warning(
            "worker.max_env_steps_per_update applies to RolloutWorkers only: clients of the gateway do not wait"
        )


def central_agent(config: Config, name: str) -> CentralAgent:
    """Return the central agent of this name. It begins to connect to the Server at once.

    Raises:
        ConfigError, CredentialsError: the settings or the credentials do not serve.
    """
    check_central(config)
    worker = config.worker
    check_device(worker.device, "worker.device")
    section = gateway_section(config).agents.get(name, GatewayAgentSection())
    environment = config.environment
    env = environment_maker(environment.cls, environment.kwargs, environment.drop)()
    env.close()
    label = own_label(_label(config))
    model_path = config.run_folder / "gateway" / name / "policy.tmod"
    own = at_own_server(config, label.text)
    unclaim = label.claim.close if label.claim is not None else lambda: None
    try:
        policy = SharedPolicy(
            choose_actor(config.actor.cls, policy_kwargs(config), device=worker.device, backend=worker.backend),
            env.observation_space,
            env.action_space,
            device=worker.device,
            seed=mixed_seed(config.run.seed, label.seeding),
        )
        link = WorkerLink(
            link_settings(own),
            name=label.text,
            run=config.run.name,
            model_path=model_path,
            signature=join_signature(env, policy.actor),
            queue_bytes=worker.queue_bytes,
            when_full="block" if worker.when_full == "block" else "drop_oldest",
            spool_dir=own.worker_spool_path,
            spool_bytes=worker.spool_bytes,
            drain_timeout_s=worker.drain_timeout_s,
        )
        limit = worker.max_samples_per_episode
        agent = CentralAgent(
            name,
            observation_space=env.observation_space,
            action_space=env.action_space,
            policy=policy,
            link=link,
            label=label.text,
            send_every=gateway_section(config).send_every,
            learning=section.enable_learning,
            obs_preprocessor=resolve_optional(worker.obs_preprocessor, "worker.obs_preprocessor"),
            make_recorder=partial(
                StepRecorder,
                sample_compressor=resolve_optional(worker.sample_compressor, "worker.sample_compressor"),
                crc_debug=worker.crc_debug,
                max_samples_per_episode=math.inf if limit is None else limit,
                info_metrics=worker.info_metrics,
            ),
            unsent_bytes=worker.queue_bytes,
            files=PolicyFiles(model_path),
            drain_timeout_s=worker.drain_timeout_s,
            on_close=unclaim,
        )
        link.start()
    except BaseException:
        unclaim()
        raise
    return agent


def _label(config: Config) -> str:
    """Return the name in the gateway's own certificate, if it has one."""
    if config.network.transport == "local":
        return LABEL
    return client_name(find_credentials_folder(config), "worker") or LABEL
