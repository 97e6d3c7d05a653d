"""Section `multiagent` of the configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import field

from tmrl_core.config.algorithms import loop_of
from tmrl_core.config.sections import (
    MIB,
    Config,
    EnvironmentSection,
    Kwargs,
    Positive,
    Reference,
    RoomSection,
    Section,
    Share,
    Text,
)
from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.agent_patterns import is_pattern, policy_by_agent

_COUNTS = (
    "capacity", "batch_size", "min_experiences", "updates_per_episode", "epochs", "sequence_length", "sequence_stride",
)  # fmt: skip
"""Parameters that are at least 1."""


class AgentParametersSection(Section, frozen=True, kw_only=True):
    """Storage, sampling and training of the agents of a policy: `tmrl_core.multiagent.AgentParameters`."""

    capacity: Positive = 100_000
    """Experiences in the policy's own memory; `memories` have their own number."""
    overwrite: Literal["rolling", "random"] = "rolling"
    """Replaced experiences once that memory is full: the oldest, or random ones."""
    batch_size: Positive = 64
    """Experiences per update."""
    sample_by: Text | None = None
    """Key of the weights by which experiences are sampled. null: uniformly."""
    importance_exponent: Share = 0.5
    """Exponent of the importance weights of experiences that are sampled by weights, 0 to 1; 0: no correction."""
    min_experiences: Positive = 1
    """Experiences in the memory before training starts."""
    updates_per_episode: Positive = 1
    """Updates after each round of episodes."""
    on_policy: bool = False
    """Train once on all experiences of the memory, in batches, then clear it. For A2C and PPO."""
    epochs: Positive = 1
    """Passes over the experiences, with `on_policy` only."""
    sequence_length: Positive = 40
    """Ticks of a sequence. RecurrentDQNAgent and RecurrentSacAgent learn from sequences, which the other keys then
    count."""
    sequence_stride: Positive | None = None
    """Ticks from the beginning of a sequence to that of the next one in its episode. null: half the length."""


class AgentParameters(AgentParametersSection, frozen=True, kw_only=True):
    """Storage, sampling and training strategy of an agent: `multiagent.policies.NAME.parameters`, checked when made.

    Raises:
        ConfigError: a number is out of range, an on-policy agent samples by weights, or the stride exceeds the length.
    """

    @property
    def stride(self) -> int:
        """Ticks from the beginning of a sequence to that of the next one."""
        return max(1, self.sequence_length // 2) if self.sequence_stride is None else self.sequence_stride

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        numbers = {**msgspec.structs.asdict(self), "sequence_stride": self.stride}
        for name in _COUNTS:
            if numbers[name] < 1:
                raise ConfigError(f"{name} must be at least 1, got {numbers[name]}")
        if not 0 <= self.importance_exponent <= 1:
            raise ConfigError(f"importance_exponent must be 0 to 1, got {self.importance_exponent}")
        if self.min_experiences > self.capacity:
            raise ConfigError(
                f"min_experiences is {self.min_experiences}, but the pool holds at most {self.capacity} (capacity)"
            )
        if self.stride > self.sequence_length:
            raise ConfigError(
                f"sequence_stride is {self.stride}, allowed: at most sequence_length = {self.sequence_length}. A "
                "larger one leaves out the ticks between two sequences"
            )
        if self.on_policy and self.sample_by is not None:
            raise ConfigError(f"sample_by is {self.sample_by!r}, but on-policy training takes all: leave it out")


class AgentPolicySection(Section, frozen=True, kw_only=True):
    """A policy of many agents. Agents that name the same policy share it."""

    algorithm: Reference | None = None
    """Callable `(**kwargs)` that makes the algorithm: chooses actions and learns. null: `agent` does."""
    agent: Reference | None = None
    """Class of a TrainingAgent, such as `tmrl_core.training:DQNAgent`, instead of `algorithm`. Its `kwargs` include
    `observation_space` (of the model states) and `action_space` (of the model actions), written as for
    `gateway.agents`."""
    kwargs: Kwargs = field(default_factory=dict)
    """Keyword arguments of `algorithm` and `acting`, or of `agent`."""
    acting: Reference | None = None
    """Callable `(**kwargs)` that workers call instead of `algorithm`, for a policy that only acts, such as one that
    needs no torch. Its model has the same format. null: `algorithm`; with `agent`, its policy."""
    memory: Text | None = None
    """Memory of the experiences; policies that name the same one share it. null: one of its own."""
    parameters: AgentParametersSection = field(default_factory=AgentParametersSection)
    """Storage, sampling and training of its agents."""


class MemorySettings(Section, frozen=True, kw_only=True):
    """A memory that policies may share: `tmrl_core.multiagent.MemorySettings`."""

    capacity: Positive = 100_000
    """Maximum number of experiences."""
    overwrite: Literal["rolling", "random"] = "rolling"
    """Replaced experiences once it is full: the oldest, or random ones."""


class AgentExplorationSection(Section, frozen=True, kw_only=True):
    """Exploration of many agents, from episode to episode."""

    cls: Reference = "tmrl_core.multiagent:Explorer"
    """Callable `(agent_ids, **kwargs)` that makes the Explorer."""
    kwargs: Kwargs = field(default_factory=dict)
    """Keyword arguments of `cls`."""


class MultiAgentSection(RoomSection, frozen=True, kw_only=True):
    """Many agents in one environment, which is then an `EventEnvironment`. null: one agent."""

    key: ClassVar[str] = "multiagent"
    parts: ClassVar[str] = "tmrl_core.multiagent.from_config"
    fixed: ClassVar[Mapping[str, str]] = {
        r"multiagent": "the checkpoint is of one agent, or of many",
        r"multiagent\.agents\..*": "the checkpoint's experiences belong to the earlier policy",
        r"multiagent\.policies\.[^.]*\.(algorithm|memory|parameters\.(capacity|overwrite|sample_by|sequence_length))": (
            "the stored experiences have the earlier value"
        ),
        r"multiagent\.memories\..*": "the stored experiences have the earlier value",
    }
    free_names: ClassVar[tuple[str, ...]] = ("multiagent.agents", "multiagent.policies", "multiagent.memories")

    manager: Reference = "tmrl_core.multiagent:AgentManager"
    """Callable `(mode, agent_ids, *, config, explorer, **kwargs)` that makes the AgentManager of each role."""
    kwargs: Kwargs = field(default_factory=dict)
    """Further keyword arguments of `manager`."""
    agents: dict[Text, Text]
    """Policy by the agent's id, in the order of the ids; or by a pattern of `agent_ids`, such as `port_*`."""
    agent_ids: tuple[Text, ...] = ()
    """Ids of all agents, if `agents` has patterns. Empty: the keys of `agents`."""
    policies: dict[Text, AgentPolicySection]
    """Policies by name."""
    memories: dict[Text, MemorySettings] = field(default_factory=dict)
    """Memories by name."""
    exploration: AgentExplorationSection = field(default_factory=AgentExplorationSection)
    """Exploration of the agents, from episode to episode."""
    test_environment: EnvironmentSection | None = None
    """Environment of evaluations and `--test`. null: a second one of `environment`."""
    max_decisions: Positive = 1_000_000
    """Maximum number of decisions of an episode; a longer one is an error."""
    max_episode_bytes: Positive = 256 * MIB
    """Maximum size of the experiences of one episode. Workers refuse to send more, and the trainer to take it."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of the agents."""
        return self.agent_ids or tuple(self.agents)

    @classmethod
    def compared(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values with the policy of each agent's id instead of patterns."""
        if not values.get("agent_ids"):
            return values
        return {**values, "agents": policy_by_agent(values["agents"], values["agent_ids"])}

    def refuse_options(self, options: Mapping[str, Any]) -> None:
        """Reject options that do not go with many agents."""
        role = options["role"]
        given = {
            "--expert": role == "expert",
            "--benchmark": role == "benchmark",
            "--gateway": role == "gateway" or options.get("gateway"),
            "--render": options["render"],
            "--video": options["video"] is not None,
        }
        for option, is_given in given.items():
            if is_given:
                raise ConfigError(
                    f"{option} does not go with the section multiagent of the configuration; many agents take --local, "
                    "--server, --worker, --trainer and --test"
                )

    def problems(self, config: Config) -> Iterator[str]:
        """Yield one line for each key that names nothing, and for each key that does not go with many agents."""
        return _problems(self, config)


def _problems(many: MultiAgentSection, config: Config) -> Iterator[str]:
    worker, trainer = config.worker, config.trainer
    if not many.agents:
        yield "multiagent.agents: found none; write the policy of each agent, such as {port_1: shared, port_2: shared}"
    yield from _agent_problems(many)
    for agent, policy in many.agents.items():
        if policy not in many.policies:
            yield (
                f"multiagent.agents.{agent}: found the policy {policy!r}, allowed: {_listed(many.policies)}; add it to "
                "multiagent.policies"
            )
    for name, section in many.policies.items():
        if (section.algorithm is None) == (section.agent is None):
            yield (
                f"multiagent.policies.{name}: set one of algorithm ({section.algorithm}) and agent ({section.agent}), "
                "and leave the other one out"
            )
        if name not in many.agents.values():
            yield f"multiagent.policies.{name}: no agent uses it; name it in multiagent.agents, or leave it out"
        if section.memory is not None and many.memories and section.memory not in many.memories:
            yield (
                f"multiagent.policies.{name}.memory: found {section.memory!r}, allowed: {_listed(many.memories)}; add "
                "it to multiagent.memories"
            )
    named = {section.memory for section in many.policies.values()}
    for name in many.memories:
        if name not in named:
            yield f"multiagent.memories.{name}: no policy uses it; name it in a policy's memory, or leave it out"
    if worker.collection != "lockstep":
        yield (
            f"worker.collection: found {worker.collection}, and many agents (the section multiagent) are collected in "
            "rounds; write lockstep"
        )
    elif trainer.lockstep.episodes_per_round is None or trainer.lockstep.steps_per_round is not None:
        yield (
            "trainer.lockstep: many agents (the section multiagent) are collected in whole episodes; write, "
            "for example, episodes_per_round: 2"
        )
    if loop_of(trainer.loop) == "TrainingLockstep":
        yield f"trainer.loop: {trainer.loop} trains one agent, and multiagent has a loop of its own; leave it out"
    if config.environment.drop or (many.test_environment is not None and many.test_environment.drop):
        yield "environment.drop: has no effect with the section multiagent; leave it out"
    found, default = msgspec.to_builtins(config), msgspec.to_builtins(Config())
    for key in ("agent", "actor", "memory"):
        if found[key] != default[key]:
            yield f"{key}: has no effect with the section multiagent; write the settings there, and leave {key} out"
    for key in (
        "max_samples_per_episode",
        "test_episode_interval",
        "send_every",
        "update_weights",
        "sample_compressor",
        "obs_preprocessor",
        "crc_debug",
        "info_metrics",
        "record",
        "evaluation_videos",
        "strict_spaces",
        "safe_action",
    ):
        value = found["worker"][key]
        if value != default["worker"][key]:
            yield f"worker.{key}: found {value!r:.100}, and it has no effect with the section multiagent; leave it out"
    if config.environment.time_limit is not None:
        yield "environment.time_limit: has no effect with the section multiagent; the metrics' `truncated` say it there"
    if trainer.offline is not None:
        yield "trainer.offline: recorded sessions hold one agent, and the section multiagent has many; leave one out"


def _agent_problems(many: MultiAgentSection) -> Iterator[str]:
    """Yield one line for patterns of agents that are unclear, and for ids that are there twice."""
    patterns = [name for name in many.agents if is_pattern(name) and name not in many.agent_ids]
    if patterns and not many.agent_ids:
        yield f"multiagent.agents: found the pattern {patterns[0]!r}; list all ids of agents in multiagent.agent_ids"
        return
    if len(set(many.agent_ids)) < len(many.agent_ids):
        yield f"multiagent.agent_ids: found {', '.join(many.agent_ids)}; allowed: each id once"
    if many.agent_ids and (unknown := [one for one in many.agents if one not in (*patterns, *many.agent_ids)]):
        yield f"multiagent.agents.{unknown[0]}: multiagent.agent_ids does not list it; add it there, or leave it out"
    try:
        policy_by_agent(many.agents, many.ids)
    except ConfigError as exc:
        yield f"multiagent.{exc}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none yet"
