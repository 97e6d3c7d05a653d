"""Parameters after 200 updates, and the batches that led to them, compared with recorded ones.

They prove that a change of the code leaves the results of a fixed seed identical.

Every agent is trained with every kind of memory (the quick form: see `_is_quick`), through public interfaces, on
synthetic samples that are exact on any machine: two workers' streams that take turns, episodes that are cut between
messages, that terminate, are truncated or given up, and messages that are lost.

`parameters.json` holds for each case:

- the digest of the first batches, without importance weights: exact on every platform;
- numbers that sum up the parameters and the last round's losses: equal within `TOLERANCE` on every platform;
- the digest of all parameters, for each platform where it was recorded: exact there, not compared elsewhere.

`pytest tests/training/test_parameters.py -m "full or not full"` compares every case.
`RECORD_PARAMETERS=1 pytest tests/training/test_parameters.py` records every case, in one process. Where batches and
numbers agree with the recorded ones, it only adds this platform's digests. Otherwise it replaces a case and drops its
digests of other platforms: only a deliberate change of an algorithm justifies that, and its commit says why.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.samples import Buffer
from tmrl_core.training import (
    CrossQAgent,
    DiscreteSacAgent,
    DQNAgent,
    FlashSACAgent,
    FrameStackMemory,
    GenericTorchMemory,
    LocalInterface,
    PPOAgent,
    REDQSACAgent,
    ReplayMemory,
    SacAgent,
    TD3Agent,
    TQCAgent,
    TrainingLockstep,
    TrainingOffline,
)

Scheduler = Callable[[Any, int], None]

RECORDED = Path(__file__).with_name("parameters.json")
RECORDING = os.environ.get("RECORD_PARAMETERS") == "1"
UPDATES, BATCH, HASHED_BATCHES = 200, 16, 20
TOLERANCE = 1e-4
"""Relative and absolute. Moving the first weight by 1e-7 at the start changes no number by more than 1e-6, relative
noise of 1e-6 on the whole policy by at most 3e-5, instructions of an older processor (AVX2) by less than 1e-6."""
STACK = 3
NAMES = ["a", "b"]

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
FRAMES = spaces.Dict({"frames": spaces.MultiBinary([STACK, 5]), "place": spaces.Box(-1.0, 1.0, (2,), np.float32)})
ACTIONS = {"box": spaces.Box(-1.0, 1.0, (2,), np.float32), "discrete": spaces.Discrete(3)}

SMALL: dict[str, Any] = {"hidden_sizes": (16, 16)}
AGENTS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "sac": ("box", SacAgent, SMALL),
    "td3": ("box", TD3Agent, SMALL),
    "tqc": ("box", TQCAgent, {**SMALL, "quantiles": 5}),
    "crossq": ("box", CrossQAgent, {**SMALL, "critic_sizes": (32,)}),
    "flashsac": ("box", FlashSACAgent, {"width": 8, "critic_width": 12, "bins": 11, "lr_horizon": 100}),
    "redq": ("box", REDQSACAgent, {**SMALL, "n": 4, "q_updates_per_policy_update": 5}),
    "dqn": ("discrete", DQNAgent, {**SMALL, "target_interval": 20, "epsilon_updates": 100}),
    "discrete_sac": ("discrete", DiscreteSacAgent, SMALL),
}
PPO: dict[str, Any] = {**SMALL, "update_epochs": 5, "minibatch_size": 32, "entropy_coef": 0.01}
NORMALIZED: dict[str, Any] = {"normalize_observations": True, "normalize_rewards": True, "value_clip": 0.2}
ON_POLICY: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "box": ("box", {"steps_per_round": 64}, {}),
    "discrete": ("discrete", {"steps_per_round": 64}, {}),
    "normalized": ("box", {"steps_per_round": 64}, NORMALIZED),
    "episodes": ("discrete", {"episodes_per_round": 6}, {}),
}

# A discount of n steps that has no rounding errors.
N_STEP: dict[str, Any] = {"n_step": 3, "gamma": 0.9375}
PRIORITY: dict[str, Any] = {"priority": {"beta_batches": UPDATES}}
MEMORIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "uniform": (ReplayMemory, {}),
    "prioritized": (ReplayMemory, PRIORITY),
    "n_step": (ReplayMemory, N_STEP),
    "fresh": (ReplayMemory, {"max_drawn_lag": 2}),
    "frames": (FrameStackMemory, {"frame_stack": STACK}),
    "frames_n_step_prioritized": (FrameStackMemory, {"frame_stack": STACK, **N_STEP, **PRIORITY}),
}
OFF_POLICY = [(agent, f"{kind}-{where}") for agent in AGENTS for kind in MEMORIES for where in ("ram", "disk")]
OFF_POLICY += [(agent, "row_by_row") for agent in AGENTS]


class Worker:
    """Samples of one stream. All numbers are multiples of 1/64, so that they are exact everywhere."""

    def __init__(self, number: int, actions: str, stacked: bool, extras: bool = False) -> None:
        self.stream = bytes([number]) * 16
        self._random = np.random.default_rng([number, len(actions), stacked])
        self._discrete, self._stacked, self._extras = actions == "discrete", stacked, extras
        self._buffer = Buffer(maxlen=None)
        self._episode = -1
        self._left = 0
        self._frames: list[Any] = []

    def step(self) -> str:
        """Append one sample; "reset", "step" or "end"."""
        if not self._left:
            self._episode += 1
            self._left = self._integer(4, 25)
            self._buffer.start_episode(self._episode)
            self._append(None, 0.0, False, False, reset=True)
            return "reset"
        self._left -= 1
        # One of four episodes is given up: the next one begins without an end of this one.
        end = "" if self._left else ["terminated", "terminated", "truncated", "given up"][self._episode % 4]
        action = np.int64(self._integer(0, 3)) if self._discrete else self._fractions(2)
        self._append(action, self._integer(-32, 33) / 16, end == "terminated", end == "truncated", reset=False)
        return "end" if end in ("terminated", "truncated") else "step"

    def take(self, version: tuple[int, int], amount: int, *, in_episodes: bool = False) -> Buffer:
        """A message of that many steps with this version, or of steps until that many episodes have ended."""
        self._buffer.set_version(version)
        done = 0
        while done < amount:
            made = self.step()
            done += made == "end" if in_episodes else made != "reset"
        chunks, records = self._buffer.take()
        message = Buffer(maxlen=None)
        message.extend([replace(chunk, stream=self.stream) for chunk in chunks], records)
        return message

    def _append(self, action: Any, reward: float, terminated: bool, truncated: bool, *, reset: bool) -> None:
        extras = None
        if self._extras:
            extras = {"logp": np.float32(0.0 if reset else -self._integer(32, 128) / 64)}
            if not self._discrete:
                extras["drawn"] = np.zeros(2, np.float32) if reset else action
        sample: Any = (action, self._observation(reset), reward, terminated, truncated, {})
        self._buffer.append_sample(sample, extras)

    def _observation(self, reset: bool) -> Any:
        if not self._stacked:
            return self._fractions(4)
        frame = self._random.integers(0, 2, 5, dtype=np.int8)
        self._frames = [frame] * STACK if reset else [*self._frames[1:], frame]
        return {"frames": np.stack(self._frames), "place": self._fractions(2)}

    def _fractions(self, size: int) -> Any:
        return (self._random.integers(-63, 64, size) / 64).astype(np.float32)

    def _integer(self, low: int, high: int) -> int:
        return int(self._random.integers(low, high))


class Feed(LocalInterface):  # type: ignore[misc]
    """Brings samples after each published policy, or in lockstep those that it is asked for."""

    def __init__(self, actions: str, stacked: bool, lockstep: bool, counter: int = 0) -> None:
        super().__init__(on_publish=None if lockstep else self._feed, counter=counter)
        streams = {name: Worker(number, actions, stacked, lockstep) for number, name in enumerate(NAMES, 1)}
        self._workers = streams
        self._messages = 0

    def _feed(self, actor: Any, version: tuple[int, int]) -> None:
        for number in range(8 if version[1] == 1 else 4):
            rows = 5 + number % 3
            message = self._workers[NAMES[number % 2]].take(version, rows)
            self._messages += 1
            if self._messages % 11:  # the others are lost
                self.put(message)

    def workers(self) -> list[tuple[bytes, str]]:
        return [(worker.stream, name) for name, worker in self._workers.items()]

    def collect(self, what: Any, stream: bytes) -> None:
        if what is not None:
            worker = next(worker for worker in self._workers.values() if worker.stream == stream)
            for amount in (what.amount // 2, what.amount - what.amount // 2):
                self.put(worker.take(what.version, amount, in_episodes=what.episodes is not None))


class Batches:
    """A digest of the first batches that an agent is given."""

    def __init__(self) -> None:
        self.number = 0
        self._hash = hashlib.sha256()

    def note(self, batch: Any) -> None:
        if self.number < HASHED_BATCHES:
            for value in batch[:6]:
                self._add(value)
            extras = batch[6] if len(batch) > 6 else {}
            for name in ("discount", "ends", "places", "logp", "drawn"):
                if name in extras:
                    self._add(extras[name])
        self.number += 1

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def _add(self, value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                self._hash.update(key.encode())
                self._add(value[key])
        else:
            self._hash.update(f"{value.dtype} {list(value.shape)}".encode())
            self._hash.update(value.numpy().tobytes())


def recording(agent_cls: Any, batches: Batches) -> Any:
    """The class, with its batches noted."""

    class Recording(agent_cls):  # type: ignore[misc]
        def train(self, batch: Any) -> dict[str, Any]:
            batches.note(batch)
            metrics: dict[str, Any] = super().train(batch)
            return metrics

    return Recording


def parameters_of(agent: Any) -> list[Any]:
    """All that an agent learns, its target networks included, as arrays."""
    found: dict[int, torch.Tensor] = {}
    for value in vars(agent).values():
        if isinstance(value, torch.nn.Module):
            found.update({id(parameter): parameter for parameter in value.parameters()})
        elif isinstance(value, torch.Tensor) and value.requires_grad:
            found[id(value)] = value
    return [tensor.detach().numpy() for tensor in found.values()]


def digest_of(arrays: list[Any]) -> str:
    """A digest that does not depend on the order."""
    parts = {hashlib.sha256(f"{a.dtype} {a.shape}".encode() + a.tobytes()).digest() for a in arrays}
    return hashlib.sha256(b"".join(sorted(parts))).hexdigest()


def numbers_of(agent: Any, arrays: list[Any], row: dict[str, Any]) -> dict[str, float]:
    """Numbers that sum up parameters and the losses of a round."""
    flat = np.concatenate([array.ravel() for array in arrays]).astype(np.float64)
    policy = torch.nn.utils.parameters_to_vector(agent.get_actor().parameters()).detach().double().numpy()
    signs = np.random.default_rng(0).integers(0, 2, len(policy)) * 2 - 1
    return {
        "sum": float(flat.sum()),
        "norm": float(np.sqrt(np.square(flat).sum())),
        "policy": float((policy * signs).sum()),
        **{name: float(row[name]) for name in ("loss_actor", "loss_critic") if name in row},
    }


def train_off_policy(
    agent: str, memory: str, folder: Path, seed: int, scheduler: Scheduler | None, changed: dict[str, Any]
) -> dict[str, Any]:
    """Train an agent with a memory."""
    actions, agent_cls, settings = AGENTS[agent]
    kind, _, where = memory.partition("-")
    memory_cls, arguments = (GenericTorchMemory, {}) if kind == "row_by_row" else MEMORIES[kind]
    if memory_cls is not GenericTorchMemory:
        arguments = {**arguments, "seed": seed, "storage": where}
    if where == "disk":
        arguments = {**arguments, "folder": folder}
    stacked = memory_cls is FrameStackMemory
    batches = Batches()
    training = TrainingOffline(
        (FRAMES if stacked else VECTOR, ACTIONS[actions]),
        functools.partial(memory_cls, memory_size=150, batch_size=BATCH, **arguments),
        functools.partial(recording(agent_cls, batches), **{**settings, **changed}),
        epochs=1,
        rounds=4,
        steps=UPDATES // 4,
        update_model_interval=20,
        update_buffer_interval=10,
        start_training=40,
        agent_scheduler=scheduler,
        device="cpu",
        threads=1,
    )
    try:
        return outcome(training, training.run_epoch(Feed(actions, stacked, lockstep=False)), batches)
    finally:
        if where == "disk":
            training.memory.close()


def train_on_policy(case: str, scheduler: Scheduler | None, changed: dict[str, Any]) -> dict[str, Any]:
    """Train PPO in lockstep."""
    actions, amount, settings = ON_POLICY[case]
    batches = Batches()
    training = TrainingLockstep(
        (VECTOR, ACTIONS[actions]),
        training_agent_cls=functools.partial(recording(PPOAgent, batches), **{**PPO, **settings, **changed}),
        epochs=1,
        rounds=UPDATES // 10,
        min_workers=len(NAMES),
        agent_scheduler=scheduler,
        device="cpu",
        threads=1,
        **amount,
    )
    return outcome(training, training.run_epoch(Feed(actions, stacked=False, lockstep=True)), batches)


def outcome(training: Any, rows: list[dict[str, Any]], batches: Batches) -> dict[str, Any]:
    assert batches.number >= HASHED_BATCHES
    assert training.total_updates >= UPDATES
    assert not training.updates_skipped
    parameters = parameters_of(training.agent)
    return {
        "batches": batches.digest,
        "numbers": numbers_of(training.agent, parameters, rows[-1]),
        "parameters": digest_of(parameters),
    }


def run(case: str, folder: Path, seed: int = 3, scheduler: Scheduler | None = None, **changed: Any) -> dict[str, Any]:
    """Train as a case says; `seed` is the memory's, `changed` are arguments of the agent."""
    torch.manual_seed(7)
    agent, _, memory = case.partition("-")
    if agent == "ppo":
        return train_on_policy(memory, scheduler, changed)
    return train_off_policy(agent, memory, folder, seed, scheduler, changed)


def this_platform() -> str:
    """All that decides about the last digits."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    processor = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {capability}, {platform.system()} {platform.machine()}, {processor}"


def same_numbers(found: dict[str, float], expected: dict[str, float]) -> bool:
    return found.keys() == expected.keys() and all(
        math.isclose(value, expected[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE) for name, value in found.items()
    )


def read() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return recorded


def record(case: str, found: dict[str, Any]) -> None:
    cases = read() if RECORDED.exists() else {}
    known = cases.get(case, {})
    kept = known and known["batches"] == found["batches"] and same_numbers(found["numbers"], known["numbers"])
    if not kept:
        known = {"batches": found["batches"], "numbers": found["numbers"], "parameters": {}}
    known["parameters"][this_platform()] = found["parameters"]
    cases[case] = known
    RECORDED.write_text(json.dumps(cases, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CASES = [f"{agent}-{memory}" for agent, memory in OFF_POLICY] + [f"ppo-{case}" for case in ON_POLICY]


def _is_quick(case: str) -> bool:
    """Return True for what the quick suite trains: all kinds of memory with DQN, and all agents with two kinds.

    A memory sees nothing of an agent but the shape of its actions and TD errors; an agent sees nothing of a memory but
    batches. The two kinds bring everything that a batch may hold: vectors and pictures, weights, discounts of n steps.
    """
    agent, _, memory = case.partition("-")
    return agent in ("ppo", "dqn") or memory in ("uniform-disk", "frames_n_step_prioritized-ram")


def _marked(case: str) -> Any:
    return case if RECORDING or _is_quick(case) else pytest.param(case, marks=pytest.mark.full)


@pytest.mark.parametrize("case", [_marked(case) for case in CASES])
def test_batches_and_parameters_are_those_recorded(case: str, tmp_path: Path) -> None:
    found = run(case, tmp_path / "memory")
    if RECORDING:
        record(case, found)
    expected = read()[case]
    assert found["batches"] == expected["batches"], "other transitions are sampled, or in another order"
    assert same_numbers(found["numbers"], expected["numbers"]), (
        f"found {found['numbers']}, recorded {expected['numbers']}"
    )
    recorded = expected["parameters"].get(this_platform())
    assert recorded in (found["parameters"], None), "same numbers, within rounding, but other bits on this platform"


def test_memories_on_disk_train_as_those_in_ram() -> None:
    cases = read()
    for case in CASES:
        if case.endswith("-ram"):
            assert cases[case] == cases[f"{case.removesuffix('ram')}disk"]


SENSITIVE = [pytest.param("sac-n_step-ram", marks=pytest.mark.full), "dqn-uniform-ram", "ppo-box"]


@pytest.mark.parametrize("case", SENSITIVE)
def test_rounding_errors_are_tolerated(case: str, tmp_path: Path) -> None:
    @torch.no_grad()
    def move_a_weight(agent: Any, epoch: int) -> None:
        next(agent.get_actor().parameters()).view(-1)[0] += 1e-7

    found, expected = run(case, tmp_path, scheduler=move_a_weight), read()[case]
    assert found["batches"] == expected["batches"]
    assert found["parameters"] not in expected["parameters"].values()
    assert same_numbers(found["numbers"], expected["numbers"])


@pytest.mark.parametrize("case", SENSITIVE)
def test_a_learning_rate_that_is_a_little_different_is_noticed(case: str, tmp_path: Path) -> None:
    name = "lr_critic" if case.startswith("sac") else "lr"
    default = {"sac": 1e-3, "dqn": 5e-4, "ppo": 3e-4}[case.partition("-")[0]]
    changed: dict[str, Any] = {name: 1.01 * default}
    found, expected = run(case, tmp_path, **changed), read()[case]
    assert found["batches"] == expected["batches"]
    assert not same_numbers(found["numbers"], expected["numbers"])


def test_a_discount_that_is_a_little_different_is_noticed(tmp_path: Path) -> None:
    found, expected = run("td3-uniform-ram", tmp_path, gamma=0.989), read()["td3-uniform-ram"]
    assert found["batches"] == expected["batches"]
    assert not same_numbers(found["numbers"], expected["numbers"])


def test_another_order_of_sampling_is_noticed(tmp_path: Path) -> None:
    found, expected = run("dqn-uniform-ram", tmp_path, seed=4), read()["dqn-uniform-ram"]
    assert found["batches"] != expected["batches"]
    assert not same_numbers(found["numbers"], expected["numbers"])
