"""The Server: relays samples from workers to a trainer and weights back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from tmrl_core.config import CFG, Cfg, Config, given
from tmrl_core.config.descriptions import described_by
from tmrl_core.config.loading import expanded
from tmrl_core.config.sections import NetworkSection, ServerSection, is_loopback
from tmrl_core.errors import ConfigError, NetworkError, TmrlError
from tmrl_core.forked import FORKED, end_in_forked_children
from tmrl_core.metrics.console import show_messages
from tmrl_core.networking.protocol.messages import check_update_head
from tmrl_core.networking.relay import MemorySpool, Relay, RelayConnection, RelaySettings, Spool
from tmrl_core.networking.security.admission import AdmissionSettings
from tmrl_core.networking.security.refusal_log import Refusals
from tmrl_core.networking.spools.disk_spool import DiskSpool
from tmrl_core.networking.transports.base import Listener, new_event_loop
from tmrl_core.networking.transports.plain import PlainNotice
from tmrl_core.networking.transports.selection import link_settings, server_transport, transport_kind

logger = logging.getLogger(__name__)


@described_by(ServerSection, NetworkSection)
class Server:
    """Relay between workers and a trainer. It runs in its own thread from construction on.

    Args:
        port: TCP port; 0: a free port, see `port`.
        password: token that clients must show if `security` is None; with TLS, tokens come from the credentials. Other
            transports may have a password of their own.
        security: "TLS" or None.
        config: source of omitted arguments; None: `tmrl_core.config.current()`.

    Raises:
        NetworkError: the port cannot be opened.
        ConfigError, CredentialsError: the settings or the credentials are invalid.
        StorageError: `server.spool_dir` cannot be used, or another Server uses it.
    """

    def __init__(
        self,
        port: int | Cfg = CFG,
        password: str | Cfg | None = CFG,
        security: Literal["TLS"] | Cfg | None = CFG,
        max_workers: int | Cfg | None = CFG,
        *,
        config: Config | None = None,
    ) -> None:
        from tmrl_core.config import current
        from tmrl_core.networking.security import credentials

        show_messages()
        config = config if config is not None else current()
        network, server = config.network, config.server
        listens = self._listens = link_settings(
            config,
            host=server.bind_address,
            port=port,
            security=security,
            password=password,
        )
        if isinstance(password, str) and network.transport == "tls" and listens.security is not None:
            logger.warning(
                "password: no effect with TLS: the Server accepts the certificates and tokens of its credentials. "
                "Leave out password here, and in workers and trainers."
            )
        kind = transport_kind(listens.transport)
        if not kind.in_process and listens.security is not None and is_loopback(listens.host):
            # Credentials for this machine need no host names, so they are created at their first use.
            kind.ensure_credentials(credentials.find(listens.credentials_dir))
        self.refusals = Refusals()
        """Number of connections that were refused, or closed for a violation of the protocol."""
        transport, authenticate = server_transport(
            listens,
            self.refusals,
            AdmissionSettings(server.greeting_s, server.max_unauthenticated, server.connections_per_s),
        )
        try:
            settings = RelaySettings(
                max_workers=given(max_workers, server.max_workers),
                budget_bytes=server.budget_bytes,
                max_message_bytes=network.max_message_bytes,
                silent_s=network.silent_s,
                heartbeat_s=network.heartbeat_s,
                greeting_s=server.greeting_s,
            )
        except ValueError as exc:
            raise ConfigError(f"server.budget_bytes: {exc}") from exc
        self._spool = _spool(config)
        self.relay = Relay(
            settings,
            authenticate,
            self.refusals,
            spool=self._spool,
            say=logger.info,
            check_update=check_update_head,
        )
        self._started = time.monotonic()
        self.relay.process = self._process
        self.relay.signed_revocations = transport.signed_revocations
        self._transport = transport
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._failure: TmrlError | None = None
        self._plain_notice: PlainNotice | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        end_in_forked_children(self)
        self._thread = threading.Thread(target=self._run, name="tmrl-server", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the error that kept the Server from listening, if there is one."""
        if self._failure is not None:
            self._thread.join(timeout=10.0)
            raise self._failure

    @property
    def port(self) -> int:
        """Port that the Server listens on."""
        return self._port

    def _run(self) -> None:
        raise_file_limit()
        loop = new_event_loop()
        try:
            loop.run_until_complete(self._serve())
        except TmrlError as exc:
            self._failure = exc
        except Exception as exc:
            logger.exception("the Server's thread failed")
            self._failure = NetworkError(f"the Server's thread failed: {exc!r}")
        finally:
            self._close_spool()
            self._ready.set()
            self._ended.set()
            loop.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        if isinstance(self._spool, DiskSpool):
            self._spool.post = self._loop.call_soon_threadsafe
        self._listener = await self._transport.serve(self._listens.host, self._listens.port, self._accept)
        self._port = self._listener.port
        if self._listens.security is None and self._listens.transport != "local":
            self._announce_plain()
        logger.info(
            "the Server listens on %s port %d, %s",
            self._listens.host or "every interface",
            self._port,
            "WITHOUT encryption" if self._listens.security is None else "with TLS",
        )
        if self._spool is not None:
            for line in self._spool.summary():
                logger.info("spool: %s", line)
        self._ready.set()
        try:
            await self._stopping.wait()
        finally:
            await self._listener.close()
            self.relay.membership_log.summarize()
            if self._plain_notice is not None:
                self._plain_notice.close()

    def _announce_plain(self) -> None:
        try:
            self._plain_notice = PlainNotice(self._port)
        except (OSError, ConfigError) as exc:
            logger.warning(
                "clients on this machine are not told that this Server speaks plaintext (%s): set network.security: "
                "null there too",
                exc,
            )

    def _close_spool(self) -> None:
        if self._spool is None:
            return
        if not isinstance(self._spool, DiskSpool):
            for line in self._spool.summary():
                logger.warning("spool: %s go with this Server: server.spool_dir would keep them", line)
        self._spool.close()

    def _process(self) -> dict[str, Any]:
        resident, peak = process_memory()
        return {
            "uptime_s": time.monotonic() - self._started,
            "pid": os.getpid(),
            "memory_bytes": resident,
            "memory_peak_bytes": peak,
        }

    def _accept(self) -> RelayConnection:
        return self.relay.connection()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the Server has ended; `close` ends the wait. False: the time is over.

        Raises:
            NetworkError: the Server ended because of a failure.
        """
        ended = self._ended.wait(timeout_s)
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def end_in_child(self) -> None:
        """Fail permanently, in a process that was forked from this Server's."""
        self._loop, self._failure = None, NetworkError(FORKED)
        self._ended = threading.Event()
        self._ended.set()

    def close(self) -> None:
        """Close every connection in order and stop. May be called from any thread, and more than once."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stopping.set)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _spool(config: Config) -> Spool | None:
    """Create the store for samples of workers that end while there is no trainer; None: the spool is off.

    Raises:
        StorageError: the folder cannot be used, or another Server uses it.
    """
    section = config.server
    limit = section.spool_limit_bytes
    if not limit:
        return None
    if section.spool_dir is None:
        return MemorySpool(limit)
    folder = config.absolute(expanded(section.spool_dir))
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"server.spool_dir: {folder} is a file, allowed: a folder, or null to keep samples in memory")
    return DiskSpool(folder, limit, sync=section.spool_sync)


def process_memory() -> tuple[int | None, int | None]:
    """Return the current and the peak memory of this process in bytes; None: the system does not report it."""
    resident = peak = None
    with contextlib.suppress(OSError, ValueError):  # only Linux has this file
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                size = int(value.split()[0]) * 1024
                resident, peak = (size, peak) if name == "VmRSS" else (resident, size)
    if peak is None:
        try:
            import resource
        except ImportError:  # Windows
            return resident, peak
        # The value is in bytes on macOS, in KiB elsewhere.
        scale = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    return resident, peak


def raise_file_limit() -> None:
    """Raise this process's limit of open sockets to the system's maximum."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
