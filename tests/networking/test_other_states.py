"""Workers that store other recurrent states than the policy's, before and beside an honest one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.actor import QValueRNNActor
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.config import from_values
from tmrl_core.envs import DelayedCue
from tmrl_core.networking import RolloutWorker, Server
from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink
from tmrl_core.networking.security import credentials
from tmrl_core.samples import Buffer
from tmrl_core.training.agents.recurrent_dqn import RecurrentDQNAgent
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.sequences import SequenceMemory
from tmrl_core.training.remote.interface import RemoteInterface

UNITS, TICKS, EPISODES = 8, 10, 12
POLICY: dict[str, Any] = {"hidden_sizes": (8,), "cell": "lstm", "cell_size": UNITS, "state_interval": 5}
GOOD = np.zeros(UNITS, np.float32)

REFUSED: dict[str, dict[str, Any]] = {
    "another shape": {"state.h": np.zeros(UNITS + 1, np.float32), "state.c": GOOD},
    "a number": {"state.h": np.float32(1), "state.c": GOOD},
    "another dtype": {"state.h": GOOD.astype(np.int16), "state.c": GOOD},
    "huge": {"state.h": np.zeros(1 << 14, np.float32), "state.c": GOOD},
    "not finite": {"state.h": np.full(UNITS, np.nan, np.float32), "state.c": GOOD},
    "infinite as float32": {"state.h": np.full(UNITS, 1e300), "state.c": GOOD},
    "a text": {"state.h": "state", "state.c": GOOD},
    "a long name": {"state.h": {"h" * 100_000: GOOD}, "state.c": GOOD},
}
ZEROS: dict[str, dict[str, Any]] = {
    "only one of two": {"state.h": GOOD},
    "other names": {f"state.{number}": GOOD for number in range(200)},
    "none": {},
}


def send(link: WorkerLink, extras: dict[str, Any]) -> None:
    """Send an episode whose rewards are 7."""
    recorder = StepRecorder(Buffer(), name="wolf")
    recorder.begin(1, {}, extras=extras)
    for tick in range(1, TICKS + 1):
        recorder.step(np.int64(0), 0, 7.0, tick == TICKS, False, {}, extras=extras)
    link.send(*recorder.take())


def take_until(training: TrainingOffline, interface: RemoteInterface, condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        interface.wait(0.1)
        training.update_buffer(interface)
    raise AssertionError(f"{training.total_samples} samples have arrived")


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_other_states_are_refused_and_an_honest_worker_is_trained_on(
    tmp_path: Path, storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    keys = tmp_path / "keys"
    credentials.ensure(keys)
    values: dict[str, Any] = {"network": {"credentials_dir": str(keys)}, "run": {"folder": str(tmp_path)}}
    folder = {"storage": storage, "folder": tmp_path / "memory"} if storage == "disk" else {}
    memory = partial(SequenceMemory, memory_size=100, batch_size=8, length=TICKS, stride=TICKS, priority={}, **folder)
    training = TrainingOffline(
        DelayedCue,
        memory,
        partial(RecurrentDQNAgent, **POLICY, burn_in=0),
        epochs=1,
        rounds=1,
        steps=20,
        start_training=EPISODES * (TICKS + 1),
        device="cpu",
    )
    with ExitStack() as stack:
        server = stack.enter_context(Server(port=0, config=from_values(values)))
        settings = LinkSettings(port=server.port, hostname="localhost", credentials_dir=str(keys))
        trainer = TrainerLink(settings, name="trainer", run="default")
        trainer.start()
        stack.callback(trainer.close)
        interface = RemoteInterface(trainer)
        wolf = WorkerLink(settings, name="wolf", run="default")
        wolf.start()
        stack.callback(wolf.close, drain=False)
        for extras in REFUSED.values():
            send(wolf, extras)
        refused = len(REFUSED) * (TICKS + 1)
        take_until(training, interface, lambda: wolf.counts.samples_refused == refused)
        assert (training.total_samples, len(training.memory)) == (0, 0)
        for extras in ZEROS.values():
            send(wolf, extras)
        take_until(training, interface, lambda: len(training.memory) == len(ZEROS))
        config = from_values({**values, "server": {"port": server.port}})
        worker = stack.enter_context(
            RolloutWorker(DelayedCue, partial(QValueRNNActor, **POLICY), model_path=None, name="honest", config=config)
        )
        worker.run(nb_episodes=EPISODES)
        send(wolf, REFUSED["another shape"])
        take_until(training, interface, lambda: wolf.counts.samples_refused > refused)
        training.run_epoch(interface)
        assert worker.link is not None
        assert worker.link.counts.samples_refused == 0
    assert training.total_updates == 20
    rows = [training.memory.get_transition(item) for item in range(len(training.memory))]
    assert [row[2].max() == 7 for row in rows] == [True] * len(ZEROS) + [False] * EPISODES
    assert all(row[6]["state.h"].shape == row[6]["state.c"].shape == (UNITS,) for row in rows)
    reasons = [line for line in caplog.messages if line.startswith("samples of worker wolf are refused")]
    assert all("the extra state.h" in line for line in reasons)
    assert len(reasons) >= len(REFUSED) - 1, "NaN and a number beyond float32 have one reason"
    assert max(map(len, caplog.messages)) < 1000
    training.memory.close()
