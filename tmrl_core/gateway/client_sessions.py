"""All client sessions: logins, quotas and expiry. Sans-I/O: the caller tells the time."""

# Theory of operation
#
# This file decides which client may open a session, and which session a message belongs to. It knows nothing of HTTP: a
# caller passes decoded messages and the address, and turns a `RequestError` into a status. It knows nothing of policies
# either: a session's `Player` acts.
#
# State. `_clients` has all open sessions by session key, the longest idle first; each `_Usage` has those of its API key
# in the same order. Each message moves its session to the end of both. `expire` therefore looks at the beginning only,
# and the session to end for a login is always the first one. One event loop uses the object; `answer` suspends only
# while a player of mode `advice` waits for its learner.
#
# Keys. A session key is a secret of 256 random bits, made at the login. The id of a session is another random value,
# for logs, records and the owner's pages, so that a log gives nobody a session.
#
# Strangers. A login with a wrong API key costs no memory beyond one bucket of its network, in a table of at most
# `MAX_ADDRESSES`, from which the oldest falls out. A valid key is accepted at once, even from an address whose wrong
# logins are refused with 429: otherwise one guesser behind a shared address would lock all users there out.
#
# Limits, with an example: `max_sessions_per_key` 500. The 501st login of a key looks at the session of this key that is
# idle for the longest time. If it is idle for less than `MAKE_ROOM_S` (60 s), the login is refused, because that
# session is probably in use. Otherwise the new session is opened first and the old one ended then: a login that fails
# ends nothing. At the limit of the whole gateway, the key with the most sessions gives one up.
#
# Failures. The order of the `except` clauses in `answer` matters: a fault of the client (400) is not one of the policy
# (503), a session that ended during its own request is 401 whatever the error was, and a learner that has failed closes
# its own session only. A player that fails while it is closed is logged; the other sessions go on.

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tmrl_core.envs.json_spaces import DECODERS, action_writer, number_count, observation_reader
from tmrl_core.errors import ObservationError, SessionClosedError, TmrlError
from tmrl_core.gateway.api_keys import ApiKeys
from tmrl_core.gateway.client_session import Session
from tmrl_core.gateway.contracts import FinishedEpisode, GatewayAgent, SessionInfo
from tmrl_core.gateway.messages import MAX_INFO_BYTES, MAX_INFO_VALUES, EndMessage, RequestError, StepMessage
from tmrl_core.gateway.settings import GatewaySection
from tmrl_core.networking.security.admission import MAX_ADDRESSES, network_of
from tmrl_core.networking.security.refusal_log import Refusals
from tmrl_core.rate_limited_log import RateLimitedLog
from tmrl_core.token_bucket import TokenBucket

logger = logging.getLogger(__name__)

BODY_BYTES = 65_536
NUMBER_BYTES = 64
"""Default size of a message: so much, and for each number of an observation."""
MAKE_ROOM_S = 60.0
"""Time in seconds without a request after which a session may end for a login."""
WRONG_LOGINS_AT_ONCE = 20
WRONG_LOGINS_PER_S = 0.2
"""Rate of wrong logins of one address after a burst; beyond it, they are refused with 429 instead of 401."""


@dataclass(slots=True, eq=False)
class _Client:
    """A session and what it belongs to."""

    key: str = field(repr=False)
    id: str
    agent: str
    session: Session
    usage: _Usage
    opened_at: float
    last_request: float


@dataclass(slots=True)
class _Usage:
    """Usage of one API key."""

    key_id: str
    steps: TokenBucket | None
    clients: OrderedDict[str, _Client] = field(default_factory=OrderedDict, repr=False)  # by their keys


class _Door:
    """An agent with the conversions of its spaces."""

    def __init__(self, agent: GatewayAgent, max_number: float) -> None:
        self.agent = agent
        self.write = action_writer(agent.action_space)
        self._readers = {
            encoding: observation_reader(
                agent.observation_space, largest=max_number, encoding=encoding, setting="gateway.max_number"
            )
            for encoding in DECODERS
        }
        self._infos_left_out = 0

    def read(self, message: StepMessage) -> tuple[Any, dict[str, Any]]:
        """Return the observation and the info of a message."""
        info = message.read_info()
        if info is None:
            if not self._infos_left_out:
                logger.warning(
                    "agent %s: an info of a client has more than %d bytes or %d values and is left out, as all that "
                    "follow",
                    self.agent.name,
                    MAX_INFO_BYTES,
                    MAX_INFO_VALUES,
                )
            self._infos_left_out += 1
        return self._readers[message.encoding](message.obs), info or {}


class Sessions:
    """The open sessions of all agents. Not thread-safe: one event loop uses it.

    Args:
        agents: of the gateway.
        keys: valid API keys.
        settings: limits.
        note_episode: called with finished episodes. It neither waits for a file nor raises.
        wall_clock: seconds since 1970, for lists and records.

    Raises:
        ConfigError: JSON cannot express a space of an agent.

    Attributes:
        max_body_bytes: maximum size of a message.
    """

    def __init__(
        self,
        agents: Iterable[GatewayAgent],
        keys: ApiKeys,
        settings: GatewaySection,
        note_episode: Callable[[FinishedEpisode], object] = lambda episode: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._doors = {agent.name: _Door(agent, settings.max_number) for agent in agents}
        self.max_body_bytes = settings.max_body_bytes or BODY_BYTES + NUMBER_BYTES * max(
            (number_count(door.agent.observation_space) for door in self._doors.values()), default=0
        )
        self._keys = keys
        self._settings = settings
        self._note_episode = note_episode
        self._wall_clock = wall_clock
        self._clients: OrderedDict[str, _Client] = OrderedDict()  # the longest idle first, here and in each usage
        self._usage: dict[str, _Usage] = {}
        self._wrong: OrderedDict[str, TokenBucket] = OrderedDict()
        self._refusals = Refusals()
        self._line = RateLimitedLog(logger.info, "lines about sessions")
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, key: object) -> bool:
        """Return True for the key of an open session."""
        return key in self._clients

    async def login(self, apikey: str, address: str, now: float) -> str:
        """Open a session and return its key.

        Args:
            apikey: as the client sent it.
            address: `host:port` of the client.
            now: seconds.

        Raises:
            RequestError: the key is not valid, or a limit is reached.
        """
        key = self._keys.check(apikey)
        if key is None:
            raise self._refusal(address, now)
        door = self._doors.get(key.agent)
        if door is None:
            raise RequestError(403, f"the agent {key.agent!r} of this API key is not configured in this gateway")
        usage = self._usage.get(key.id)
        if usage is None:
            rate = self._settings.max_steps_per_key_per_s
            usage = self._usage[key.id] = _Usage(key.id, TokenBucket(rate, max(1.0, rate)) if rate else None)
        evicted = self._evicted(usage, now)
        client = self._open(door, usage, now)
        if evicted is not None:
            self._line(f"session {evicted.id} ends to make room: idle for {now - evicted.last_request:.0f} s", now)
            await self._end(evicted, now)
        return client.key

    def _refusal(self, address: str, now: float) -> RequestError:
        self._refusals(address, "wrong API key")
        network = network_of(address)
        bucket = self._wrong.setdefault(network, TokenBucket(WRONG_LOGINS_PER_S, WRONG_LOGINS_AT_ONCE))
        self._wrong.move_to_end(network)
        if len(self._wrong) > MAX_ADDRESSES:
            self._wrong.popitem(last=False)
        if not bucket.take(now):
            return RequestError(429, "too many logins with a wrong API key from this address: wait some seconds")
        return RequestError(401, "this API key is not valid: ask the gateway's owner for a key")

    def _evicted(self, usage: _Usage, now: float) -> _Client | None:
        """Return the session that must end before another one of this key is opened."""
        settings = self._settings
        if len(usage.clients) >= settings.max_sessions_per_key:
            limit = f"this API key has {len(usage.clients)} open sessions, its maximum (gateway.max_sessions_per_key)"
        elif len(self._clients) >= settings.max_sessions:
            limit = f"the gateway has {len(self._clients)} open sessions, its maximum (gateway.max_sessions)"
            usage = max(self._usage.values(), key=lambda usage: len(usage.clients))
        else:
            return None
        oldest = next(iter(usage.clients.values()))
        if now - oldest.last_request < MAKE_ROOM_S:
            raise RequestError(429, f'{limit}: end sessions that are no longer used with {{"obs": null}}')
        return oldest

    def _open(self, door: _Door, usage: _Usage, now: float) -> _Client:
        name, id_ = door.agent.name, secrets.token_hex(6)
        try:
            player = door.agent.open(id_, usage.key_id)
        except RequestError:
            raise
        except TmrlError as error:
            raise RequestError(503, str(error)) from error

        def finished(steps: int, episode_return: float) -> None:
            self._note_episode(
                FinishedEpisode(
                    ended_at=self._wall_clock(),
                    agent=name,
                    session_id=id_,
                    key_id=usage.key_id,
                    steps=steps,
                    episode_return=episode_return,
                )
            )

        session = Session(player, door.read, door.write, finished)
        client = _Client(secrets.token_urlsafe(32), id_, name, session, usage, self._wall_clock(), now)
        self._clients[client.key] = usage.clients[client.key] = client
        self._line(f"session {id_} of agent {name} opened with {usage.key_id}", now)
        return client

    async def answer(self, message: StepMessage | EndMessage, now: float) -> Any:
        """Return the next action as a JSON value, or None at the end of an episode or session.

        Raises:
            RequestError: the request is refused. The session is as it was.
        """
        if isinstance(message, EndMessage):
            ended = self._clients.get(message.session_key or "")
            if ended is not None:
                await self._end(ended, now)
            return None
        key = message.session_key
        client = self._clients.get(key)
        if client is None:
            raise RequestError(401, "this session_key is not valid, or its session has ended: log in again")
        largest = self._settings.max_number
        if abs(message.reward) > largest:
            raise RequestError(
                400, f"reward is {message.reward:g}: at most {largest:g} is allowed (gateway.max_number); scale rewards"
            )
        usage = client.usage
        client.last_request = now
        self._clients.move_to_end(key)
        usage.clients.move_to_end(key)
        if usage.steps is not None and not usage.steps.take(now):
            rate = self._settings.max_steps_per_key_per_s
            raise RequestError(429, f"this API key made more than {rate:g} steps per second: wait a second")
        try:
            return await client.session.answer(message)
        except RequestError:
            raise
        except ObservationError as error:
            raise RequestError(400, str(error)) from error
        except TmrlError as error:
            if key not in self._clients:
                raise RequestError(401, "the session ended during this request: log in again") from error
            if isinstance(error, SessionClosedError):
                await self._end(client, now)
                raise RequestError(401, str(error)) from error
            raise RequestError(503, str(error)) from error

    def infos(self, now: float) -> list[SessionInfo]:
        """Return the open sessions, the longest idle first."""
        return [
            SessionInfo(
                session_id=client.id,
                agent=client.agent,
                key_id=client.usage.key_id,
                opened_at=client.opened_at,
                idle_s=now - client.last_request,
                steps=client.session.steps,
                episodes=client.session.episodes,
            )
            for client in self._clients.values()
        ]

    def expire(self, now: float) -> None:
        """End sessions that have been idle for too long, and those of revoked API keys.

        Tasks of the running event loop end them, since a learner may take long to save. `close` waits for the tasks.
        """
        ended = []
        for client in self._clients.values():
            if now - client.last_request < self._settings.idle_s:
                break
            ended.append(client)
        for usage in [usage for usage in self._usage.values() if not self._keys.holds(usage.key_id)]:
            del self._usage[usage.key_id]
            ended += usage.clients.values()
        for client in filter(self._remove, ended):
            task = asyncio.create_task(self._close(client, now))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self, now: float) -> None:
        """End all sessions."""
        await asyncio.gather(*(self._end(client, now) for client in list(self._clients.values())), *self._ending)

    async def _end(self, client: _Client, now: float) -> None:
        if self._remove(client):
            await self._close(client, now)

    def _remove(self, client: _Client) -> bool:
        if self._clients.pop(client.key, None) is None:
            return False
        del client.usage.clients[client.key]
        return True

    async def _close(self, client: _Client, now: float) -> None:
        try:
            await client.session.close()
        except Exception:
            logger.exception("session %s of agent %s did not end cleanly", client.id, client.agent)
        else:
            self._line(f"session {client.id} of agent {client.agent} ended", now)
