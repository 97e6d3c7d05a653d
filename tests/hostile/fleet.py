"""A Server, a robot and a trainer with bundles of their own, over TLS: nobody shares a credentials folder."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tests.networking.test_hostile import DEADLINE_S, episode
from tests.waiting import until
from tmrl_core.config import from_values
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink
from tmrl_core.networking.security import credentials
from tmrl_core.networking.security.tls_contexts import BundleRole
from tmrl_core.samples import decode_message


def steal(keys: Path, folder: Path, role: BundleRole, name: str, weight: int = 1) -> Path:
    """Return the credentials folder of a machine that was stolen."""
    there = folder / "stolen" / name
    credentials.install(credentials.bundle(keys, role, name, folder, weight=weight), there)
    return there


class Fleet:
    """The machines of a run, and what has arrived at its trainer."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.authority = folder / "authority"
        credentials.create(self.authority, ["localhost"])
        members: list[tuple[BundleRole, str]] = [("server", ""), ("worker", "robot"), ("trainer", "hpc")]
        for role, name in members:
            self.install(role, name)
        self.port = 0
        self.arrived: list[float] = []
        self.sent = 0

    def install(self, role: BundleRole, name: str, weight: int = 1) -> Path:
        """Make a machine with a bundle of its own; return its credentials folder."""
        there = self.folder / (name or role)
        made = credentials.bundle(self.authority, role, name, self.folder, weight=weight)
        credentials.install(made, there, overwrite=True)
        return there

    def server(self, **server: Any) -> Server:
        made = Server(
            config=from_values(
                {
                    "network": {"credentials_dir": str(self.folder / "server"), "security": "TLS"},
                    "server": {"port": self.port, **server},
                }
            )
        )
        self.stack.callback(made.close)
        self.port = made.port
        return made

    def settings(self, name: str, **changes: Any) -> LinkSettings:
        values = {"backoff_min_s": 0.01, "backoff_max_s": 0.05, **changes}
        return LinkSettings(
            port=self.port, hostname="localhost", credentials_dir=str(self.folder / name), security="TLS", **values
        )

    def worker(self, name: str = "robot", *, settings: Any = None, **more: Any) -> WorkerLink:
        made = WorkerLink(
            self.settings(name, **(settings or {})), name=name, run="run", **{"drain_timeout_s": DEADLINE_S, **more}
        )
        made.start()
        self.stack.callback(made.close, drain=False)
        assert made.wait_connected(DEADLINE_S)
        return made

    def trainer(self, name: str = "hpc", *, settings: Any = None, **more: Any) -> TrainerLink:
        made = TrainerLink(self.settings(name, **(settings or {})), name=name, run="run", **more)
        made.start()
        self.stack.callback(made.close)
        assert made.wait_connected(DEADLINE_S)
        return made

    def send(self, worker: WorkerLink, rows: int = 10) -> None:
        worker.send(episode(self.sent, rows), [])
        self.sent += rows

    def take(self, trainer: TrainerLink) -> None:
        """Insert and acknowledge what has arrived."""
        received = trainer.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=1 << 24).chunk
            assert chunk is not None
            self.arrived += np.asarray(chunk.observation)[:, 0].tolist()
        trainer.acknowledge(received)

    def goes_on(self, worker: WorkerLink, trainer: TrainerLink) -> None:
        """Everything that was sent arrives once and in order, and is acknowledged; so are further samples."""
        self.send(worker)

        def done() -> bool:
            self.take(trainer)
            return len(self.arrived) >= self.sent and not worker.counts.queued_samples

        until(done)
        assert self.arrived == [float(number) for number in range(self.sent)]
