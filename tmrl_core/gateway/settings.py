"""Section `gateway` of the configuration."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

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
    doc,
)
from tmrl_core.web.pages import Page


class GatewayAgentSection(Section, frozen=True, kw_only=True):
    """One agent of the gateway. API keys name the agent that their sessions train."""

    mode: Annotated[
        Literal["central", "advice"],
        doc(
            "`central`: all sessions feed the run's Trainer and act with its latest policy, as `environment`, `actor` "
            "and `agent` configure it; one agent at most. `advice`: each session has its own learner; running "
            "sessions advise each other and share their saves."
        ),
    ] = "central"
    enable_learning: Annotated[bool, doc("false: sessions only act, without exploration; nothing is recorded.")] = True
    env_id: Annotated[
        Text | None,
        doc("advice: Gymnasium id of an environment with the spaces of the client's. null: the spaces below."),
    ] = None
    observation_space: Annotated[
        Any,
        doc(
            "advice: a number n: Discrete(n); `[shape, low, high]`: a Box of float32; a mapping: a Dict space. null: "
            "the spaces of `environment`."
        ),
    ] = None
    action_space: Annotated[Any, doc("advice: likewise.")] = None
    actor: Annotated[ActorSection | None, doc("advice: the policy. null: `actor`.")] = None
    agent: Annotated[AgentSection | None, doc("advice: the learner. null: `agent`.")] = None
    capacity: Annotated[Positive, doc("advice: samples in the memory of a session's learner.")] = 50_000
    batch_size: Annotated[Positive, doc("advice: transitions per batch.")] = 128
    start_training: Annotated[Count, doc("advice: samples before the first update of a learner.")] = 500
    updates_per_step: Annotated[Ratio, doc("advice: updates per step of the session.")] = 0.5
    temperature: Annotated[
        PositiveSeconds, doc("advice: a policy of Q-values advises with softmax(Q / temperature).")
    ] = 1.0
    max_advisors: Annotated[
        Count, doc("advice: number of other sessions that advise one session, the most trained first. 0: no advice.")
    ] = 4
    save_every_steps: Annotated[Positive, doc("advice: steps of a session between two saves of its learner.")] = 1000
    keep_saves: Annotated[Positive, doc("advice: number of recent saves to keep.")] = 5


class GatewaySection(RoomSection, frozen=True, kw_only=True):
    """The gateway: environments as HTTP and WebSocket clients (extra `gateway`)."""

    key: ClassVar[str] = "gateway"

    host: Annotated[
        Text,
        doc(
            "Address to listen on. A loopback address: plain HTTP; any other one: HTTPS with the project's credentials."
        ),
    ] = "127.0.0.1"
    port: Annotated[Port, doc("TCP port. 0: a free one.")] = 8000
    origins: Annotated[
        tuple[Text, ...], doc("Origins of web pages that may use the gateway from a browser, such as `https://a.org`.")
    ] = ()
    hosts: Annotated[
        tuple[Text, ...],
        doc(
            "Names besides `localhost` under which clients reach the gateway over plain HTTP, such as that of a "
            "reverse proxy; requests to other names are refused (421)."
        ),
    ] = ()
    agents: Annotated[dict[Text, GatewayAgentSection], doc("Agents by name. Empty: one central agent, `default`.")] = (
        field(default_factory=dict)
    )
    max_sessions: Annotated[Positive, doc("Maximum number of open sessions.")] = 2000
    max_sessions_per_key: Annotated[
        Positive,
        doc("Maximum number of open sessions of one API key. Then a session that is idle for a minute makes room."),
    ] = 500
    max_steps_per_key_per_s: Annotated[
        PositiveSeconds | None, doc("Maximum steps of one API key per second; more are refused (429). null: no limit.")
    ] = None
    idle_s: Annotated[PositiveSeconds, doc("Seconds without a request after which a session ends.")] = 3600.0
    max_body_bytes: Annotated[
        Positive | None,
        doc("Maximum size of a request. null: 64 KiB, and 64 bytes for each number of the largest observation."),
    ] = None
    max_number: Annotated[
        Ratio,
        doc(
            "Maximum absolute value of a reward, and of the numbers in a Box observation. Larger ones are refused "
            "(400): a few of them make all updates of the agent infinite, which ends its trainer."
        ),
    ] = 1e6
    send_every: Annotated[
        Positive, doc("central: send the samples of a session every n steps, also in an episode.")
    ] = 100


def gateway_section(config: Config) -> GatewaySection:
    """Return the section `gateway` of a configuration, or its defaults."""
    return GatewaySection.of(config) or GatewaySection()


def page(config: Config) -> Page:
    """Return the entry of the gateway in the lists of other pages."""
    section = gateway_section(config)
    return Page("Gateway", section.host, section.port)
