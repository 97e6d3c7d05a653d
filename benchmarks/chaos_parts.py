"""What a run of `chaos.py` is made of: an environment that numbers its steps, a policy and an agent that cost nothing,
and the processes of the roles.

    python benchmarks/chaos_parts.py ROLE

imports what the role needs, waits for a line of JSON on standard input, and then is that role until it is killed, or
asked to end by SIGTERM. The end of standard input ends it at once: whoever started it is gone.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from tmrl_core.actor.module import ActorModule
from tmrl_core.training.agent import TrainingAgent

WIDTH = 16
"""Numbers in an observation: life, number, then what follows from the two."""
EPISODE = 40
"""Steps of an episode; the observation of a reset has a number too."""


def observation(life: int, number: int) -> Any:
    """What a worker's life sees at its `number`-th observation; float32 holds these whole numbers exactly."""
    values = (np.arange(WIDTH) * (number % 1000) + life) % 10_000
    values[:2] = life, number
    return values.astype(np.float32)


def is_reset(number: int) -> bool:
    """Whether that observation was of a reset: it ends no transition."""
    return number % (EPISODE + 1) == 0


class NumberedEnv(gymnasium.Env[Any, Any]):
    """An environment whose observations say which worker life they are of, and the how-manieth.

    Args:
        life: number of this process among all workers of the run.
        rate: steps a second.
        scale: factor of all numbers.
    """

    observation_space = gymnasium.spaces.Box(0.0, 2.0**24, (WIDTH,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, life: int = 0, rate: float = 200.0, scale: float = 1.0) -> None:
        self.life = life
        self._scale = np.float32(scale)
        self.number = -1
        self._period_s = 1.0 / rate
        self._due = 0.0

    def _next(self) -> Any:
        self.number += 1
        return observation(self.life, self.number) * self._scale

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        now = time.monotonic()
        self._due = max(self._due + self._period_s, now - 0.1)
        if self._due > now:
            time.sleep(self._due - now)
        seen = self._next()
        return seen, 0.0, False, (self.number + 1) % (EPISODE + 1) == 0, {}


class NumberedActor(ActorModule):
    """Does nothing; its weights are a number."""

    number = 0

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.zeros(1, np.float32)

    def to_bytes(self) -> bytes:
        return self.number.to_bytes(8, "little")

    def from_bytes(self, data: bytes, device: Any) -> NumberedActor:
        self.number = int.from_bytes(data, "little")
        return self

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.to_bytes())

    def load(self, path: str | Path, device: Any) -> NumberedActor:
        return self.from_bytes(Path(path).read_bytes(), device)


class NumberedAgent(TrainingAgent):
    """Learns nothing, and counts how often."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.updates = 0

    def train(self, batch: Any) -> dict[str, Any]:
        self.updates += 1
        return {"loss": 0.0}

    def get_actor(self) -> NumberedActor:
        actor = NumberedActor(self.observation_space, self.action_space)
        actor.number = self.updates
        return actor


# --- a worker's own account -------------------------------------------------------------------------------------------


class Account(NamedTuple):
    """What a worker's life says of itself. Samples; resets count."""

    made: int = 0
    acknowledged: int = 0
    """Or, at the end, taken over by the Server."""
    incarnation: int = 0
    counter: int = 0
    """Of the policy that it acts with."""
    backwards: int = 0
    """How often the policy's version has gone back."""


_ACCOUNT = struct.Struct("<5Q")


def read_account(path: Path) -> Account:
    """The account in a file that its worker may still be writing; all zero before the first."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Account()
    return Account(*_ACCOUNT.unpack(data)) if len(data) == _ACCOUNT.size else Account()


class Accountant:
    """Writes a worker's account every few milliseconds, in one system call, so that it outlives a kill."""

    def __init__(self, worker: Any, path: Path) -> None:
        self._worker = worker
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self._version = (0, 0)
        self._backwards = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.004):
            self._write()

    def _write(self, handed_over: int = 0) -> None:
        # First what is acknowledged: it must not be ahead of what was made.
        counts = self._worker.link.counts
        version = self._worker.policy_version
        self._backwards += version < self._version
        self._version = max(version, self._version)
        made = self._worker.env.unwrapped.number + 1
        safe = counts.samples_acked + handed_over
        os.pwrite(self._file, _ACCOUNT.pack(made, safe, *version, self._backwards), 0)

    def close(self, handed_over: int) -> None:
        self._ended.set()
        self._thread.join()
        self._write(handed_over)


# --- roles ------------------------------------------------------------------------------------------------------------


def _server(config: Any, job: dict[str, Any], shutdown: Any) -> None:
    from tmrl_core.roles import from_config as roles

    with roles.make_server(config) as server:
        while not (shutdown.wait(0.1) or server.wait(0)):
            pass


def _worker(config: Any, job: dict[str, Any], shutdown: Any) -> None:
    from tmrl_core.roles import from_config as roles

    worker = roles.make_worker(config)
    accountant = Accountant(worker, Path(job["account"]))
    report = None
    try:
        shutdown.calls(worker.stop)
        roles.run_worker(worker, config)
    finally:
        report = worker.close()
        accountant.close(report.handed_over if report is not None else 0)


def _trainer(config: Any, job: dict[str, Any], shutdown: Any) -> None:
    from tmrl_core.roles import from_config as roles

    trainer = roles.make_trainer(config)
    try:
        shutdown.calls(trainer.stop)
        roles.run_trainer(trainer, config)
    finally:
        trainer.close()


def _prepare(role: str) -> None:
    """Import what the role will need, so that a restart is not mostly imports."""
    import tmrl_core.roles.from_config
    import tmrl_core.roles.shutdown

    if role == "trainer":
        import torch

        import tmrl_core.roles.trainer
        import tmrl_core.training.checkpoints.checkpoint_store
        import tmrl_core.training.remote.interface

        torch.set_num_threads(1)
    elif role == "worker":
        import tmrl_core.roles.rollout_worker
    else:
        import tmrl_core.roles.server
    assert tmrl_core


def _watch_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(3)


def main() -> int:
    role = sys.argv[1]
    _prepare(role)
    os.write(1, b"ready\n")
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 65_536)
        if not data:
            return 0
        line += data
    job = json.loads(line)
    threading.Thread(target=_watch_input, daemon=True).start()

    from tmrl_core.config import load, use
    from tmrl_core.roles.shutdown import ShutdownSignal

    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    config = load(Path(job["config"]), job["overrides"])
    use(config)
    sys.setswitchinterval(0.0005)
    with ShutdownSignal() as shutdown:
        {"server": _server, "worker": _worker, "trainer": _trainer}[role](config, job, shutdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
