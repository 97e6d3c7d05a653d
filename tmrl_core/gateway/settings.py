"""Section `gateway` of the configuration."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import field

from tmrl_core.config.sections import (
    ActorSection,
    AgentSection,
    Config,
    Count,
    Port,
    Positive,
    PositiveSeconds,
    Ratio,
    RoomSection,
    Section,
    Text,
)
from tmrl_core.web.pages import Page


class GatewayAgentSection(Section, frozen=True, kw_only=True):
    """One agent of the gateway. API keys name the agent that their sessions train."""

    mode: Literal["central", "advice"] = "central"
    """`central`: all sessions feed the run's Trainer and act with its latest policy, as `environment`, `actor` and
    `agent` configure it; one agent at most. `advice`: each session has its own learner; running sessions advise each
    other and share their saves."""
    enable_learning: bool = True
    """false: sessions only act, without exploration; nothing is recorded."""
    env_id: Text | None = None
    """advice: Gymnasium id of an environment with the spaces of the client's. null: the spaces below."""
    observation_space: Any = None
    """advice: a number n: Discrete(n); `[shape, low, high]`: a Box of float32; a mapping: a Dict space. null: the
    spaces of `environment`."""
    action_space: Any = None
    """advice: likewise."""
    actor: ActorSection | None = None
    """advice: the policy. null: `actor`."""
    agent: AgentSection | None = None
    """advice: the learner. null: `agent`."""
    capacity: Positive = 50_000
    """advice: samples in the memory of a session's learner."""
    batch_size: Positive = 128
    """advice: transitions per batch."""
    start_training: Count = 500
    """advice: samples before the first update of a learner."""
    updates_per_step: Ratio = 0.5
    """advice: updates per step of the session."""
    temperature: PositiveSeconds = 1.0
    """advice: a policy of Q-values advises with softmax(Q / temperature)."""
    max_advisors: Count = 4
    """advice: number of other sessions that advise one session, the most trained first. 0: no advice."""
    save_every_steps: Positive = 1000
    """advice: steps of a session between two saves of its learner."""
    keep_saves: Positive = 5
    """advice: number of recent saves to keep."""


class GatewaySection(RoomSection, frozen=True, kw_only=True):
    """The gateway: environments as HTTP and WebSocket clients (extra `gateway`)."""

    key: ClassVar[str] = "gateway"

    host: Text = "127.0.0.1"
    """Address to listen on. A loopback address: plain HTTP; any other one: HTTPS with the project's credentials."""
    port: Port = 8000
    """TCP port. 0: a free one."""
    origins: tuple[Text, ...] = ()
    """Origins of web pages that may use the gateway from a browser, such as `https://a.org`."""
    hosts: tuple[Text, ...] = ()
    """Names besides `localhost` under which clients reach the gateway over plain HTTP, such as that of a reverse proxy;
    requests to other names are refused (421)."""
    agents: dict[Text, GatewayAgentSection] = field(default_factory=dict)
    """Agents by name. Empty: one central agent, `default`."""
    max_sessions: Positive = 2000
    """Maximum number of open sessions."""
    max_sessions_per_key: Positive = 500
    """Maximum number of open sessions of one API key. Then a session that is idle for a minute makes room."""
    max_steps_per_key_per_s: PositiveSeconds | None = None
    """Maximum steps of one API key per second; more are refused (429). null: no limit."""
    idle_s: PositiveSeconds = 3600.0
    """Seconds without a request after which a session ends."""
    max_body_bytes: Positive | None = None
    """Maximum size of a request. null: 64 KiB, and 64 bytes for each number of the largest observation."""
    max_number: Ratio = 1e6
    """Maximum absolute value of a reward, and of the numbers in a Box observation. Larger ones are refused (400): a few
    of them make all updates of the agent infinite, which ends its trainer."""
    send_every: Positive = 100
    """central: send the samples of a session every n steps, also in an episode."""


def gateway_section(config: Config) -> GatewaySection:
    """Return the section `gateway` of a configuration, or its defaults."""
    return GatewaySection.of(config) or GatewaySection()


def page(config: Config) -> Page:
    """Return the entry of the gateway in the lists of other pages."""
    section = gateway_section(config)
    return Page("Gateway", section.host, section.port)
