"""Training objects, samples and digests, shared by `record.py` and the tests that read what it recorded.

Everything is made through the public packages, so that moved modules change nothing here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from tmrl_core import training as library
from tmrl_core.samples import Buffer, Chunk

DATA = Path(__file__).parent / "data"
STREAMS = [bytes([number]) * 16 for number in (1, 2)]

VECTOR = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
BOX = (VECTOR, gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
DISCRETE = (VECTOR, gym.spaces.Discrete(3))
STACK = 4
FRAMES = (
    gym.spaces.Dict({"lidar": gym.spaces.Box(-9.0, 9.0, (STACK, 7)), "place": gym.spaces.Box(-10.0, 10.0, (2,))}),
    gym.spaces.Discrete(3),
)
HIDDEN = {"hidden_sizes": (6, 6)}


# --- samples ----------------------------------------------------------------------------------------------------------


def _action(space: Any, rng: np.random.Generator) -> Any:
    return (
        np.int64(rng.integers(space.n))
        if isinstance(space, gym.spaces.Discrete)
        else rng.uniform(-1.0, 1.0, space.shape).astype(np.float32)
    )


def _observations(space: Any, rng: np.random.Generator) -> Iterator[Any]:
    """Observations of one episode; a stack begins with copies of its first frame."""
    frames: deque[Any] = deque(maxlen=STACK)
    while True:
        if isinstance(space, gym.spaces.Box):
            yield rng.uniform(-2.0, 2.0, space.shape).astype(np.float32)
            continue
        frame = rng.uniform(-9.0, 9.0, space["lidar"].shape[1:]).astype(np.float32)
        frames.extend([frame] * (1 if frames else STACK))
        yield {"lidar": np.stack(frames), "place": rng.uniform(-2.0, 2.0, 2).astype(np.float32)}


def message(spaces: Any, stream: int, number: int) -> Chunk:
    """One episode of 12 steps of a stream: the reset, then its steps; the last one is terminal or truncated."""
    rng = np.random.default_rng([stream, number])
    observations = _observations(spaces[0], rng)
    buffer = Buffer(maxlen=None)
    buffer.start_episode(number, (1, 1))
    for step in range(13):
        last = step == 12
        action = _action(spaces[1], rng) if step else None
        reward = float(rng.normal()) if step else 0.0
        buffer.append_sample(
            (action, next(observations), reward, last and number % 2 == 0, last and number % 2 == 1, {})
        )
    (chunk,), _ = buffer.take()
    return dataclasses.replace(chunk, stream=STREAMS[stream])


def messages(spaces: Any, epoch: int) -> Buffer:
    """Four episodes, of both streams in turn, or what is left of one.

    Args:
        spaces: observation space and action space.
        epoch: 0; 1: the last one is cut; 2: its rest.
    """
    chunks = [message(spaces, number % 2, number) for number in range(4 * epoch, 4 * epoch + 4)]
    if epoch == 1:
        chunks[-1] = chunks[-1].slice(0, 8)
    elif epoch == 2:
        chunks = [message(spaces, 1, 7).slice(8, 13)]
    buffer = Buffer(maxlen=None)
    buffer.extend(chunks, [])
    return buffer


class Lockstep(library.LocalInterface):  # type: ignore[misc]
    """Two workers that collect at once what they are asked for, with the policy that was published last."""

    def __init__(self, spaces: Any, counter: int = 0) -> None:
        super().__init__(counter=counter)
        self.spaces = spaces

    def workers(self) -> list[tuple[bytes, str]]:
        return [(stream, f"robot{stream[0]}") for stream in STREAMS]

    def collect(self, what: Any, stream: bytes) -> None:
        if what is None:
            return
        seed = 1000 * what.round + stream[0]
        rng = np.random.default_rng(seed)
        self.actor.seed(seed)
        observations = _observations(self.spaces[0], rng)
        buffer = Buffer(maxlen=None)
        buffer.start_episode(seed, what.version)
        observation = next(observations)
        buffer.append_sample((None, observation, 0.0, False, False, {}))
        for _ in range(what.steps):
            action, extras = self.actor.act_with_extras(observation)
            observation = next(observations)
            buffer.append_sample((action, observation, float(rng.normal()), False, False, {}), extras)
        made = Buffer(maxlen=None)
        made.extend([dataclasses.replace(chunk, stream=stream) for chunk in buffer.take()[0]], [])
        self.put(made)


# --- training objects -------------------------------------------------------------------------------------------------


class Counter:
    """A part of a user's own agent that says itself what a checkpoint holds."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class OwnAgent(library.TrainingAgent):  # type: ignore[misc]
    """An agent of a user's own, with an attribute of every kind that a checkpoint holds."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.net = torch.nn.Linear(3, 1)
        self.same_net = self.net
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.counter = Counter()
        self.generators = (
            random.Random(1), np.random.default_rng(2), np.random.Generator(np.random.PCG64DXSM(3)),
            np.random.Generator(np.random.Philox(4)), np.random.RandomState(5), torch.Generator().manual_seed(6),
        )  # fmt: skip
        self.window: deque[float] = deque(maxlen=3)
        self.numbers = [0.5] * 20
        self.arrays = [np.zeros(2, np.float32) for _ in range(20)]
        self.scale = torch.ones(2, dtype=torch.bfloat16)
        self.array = self.same_array = np.arange(4, dtype=np.int16)
        self.scalars = [np.float32(i) for i in range(20)]
        self.known: dict[Any, Any] = {}
        self.names: set[str] = set()
        self.fixed = frozenset({1, 2})
        self.secret = b""
        self.number = np.float32(0.0)
        self.nothing = None

    def train(self, batch: Any) -> dict[str, Any]:
        self.optimizer.zero_grad()
        noise = (
            self.generators[0].random()
            + sum(float(rng.random()) for rng in self.generators[1:4])
            + float(self.generators[4].random_sample())
            + float(torch.rand((), generator=self.generators[5]))
        )
        loss = (self.net(batch[0]) * noise).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.counter.seen += 1
        self.window.append(noise)
        self.numbers[self.counter.seen % 20] = noise
        self.arrays[self.counter.seen % 20][:] = noise
        self.scale *= 0.5
        self.array += 1
        self.known[(self.counter.seen, "key")] = [self.counter.seen]
        self.names.add(f"update {self.counter.seen}")
        self.secret += b"\0\xff"
        self.number = np.float32(noise)
        return {"loss": loss.detach()}

    def get_actor(self) -> Any:
        return self.net

    def digest(self) -> list[Any]:
        """All attributes but the networks, as JSON values."""
        return [
            self.counter.seen, self.same_net is self.net, self.same_array is self.array,
            self.scheduler.state_dict()["last_epoch"], self.optimizer.param_groups[0]["lr"], list(self.window),
            self.numbers, [array.tolist() for array in self.arrays], self.scale.tolist(), self.array.tolist(),
            [[list(key), value] for key, value in self.known.items()], sorted(self.names), sorted(self.fixed),
            self.secret.hex(), float(self.number), self.nothing, [float(scalar) for scalar in self.scalars],
        ]  # fmt: skip


class OwnMemory(library.GenericTorchMemory):  # type: ignore[misc]
    """A memory of a user's own."""


class OwnTraining(library.TrainingOffline):  # type: ignore[misc]
    """A training loop of a user's own."""


@dataclass(frozen=True)
class Case:
    """One training object.

    Args:
        agent: makes its agent.
        memory: keyword arguments of its memory.
        memory_cls: makes its memory.
        loop: makes the training object.
        spaces: observation space and action space.
        settings: further keyword arguments of the loop.
        disk: its memory lies on disk.
        store: two checkpoints in a `CheckpointStore`, the second one after more samples; otherwise one `save`.
    """

    agent: Callable[..., Any]
    memory: dict[str, Any] = field(default_factory=dict)
    memory_cls: Callable[..., Any] = library.ReplayMemory
    loop: Callable[..., Any] = library.TrainingOffline
    spaces: Any = BOX
    settings: dict[str, Any] = field(default_factory=dict)
    disk: bool = False
    store: bool = False

    @property
    def lockstep(self) -> bool:
        """True: it requests collection from workers."""
        return self.loop is library.TrainingLockstep

    def memory_in(self, folder: Path, nb_steps: int = 1, device: Any = "cpu") -> Any:
        """The memory alone; on disk, in this folder."""
        where = {"storage": "disk", "folder": folder / "memory"} if self.disk else {}
        rows = {"memory_size": 70, "batch_size": 8}
        return self.memory_cls(nb_steps=nb_steps, device=device, **{**rows, **where, **self.memory})

    def make(self, folder: Path) -> Any:
        """The training object, as it is made before a checkpoint is loaded."""
        settings = {"epochs": 4, "rounds": 1, "steps": 6, "update_model_interval": 3, "update_buffer_interval": 2}
        if self.lockstep:
            settings |= {"steps_per_round": 20, "min_workers": 2}
        return self.loop(
            self.spaces,
            partial(self.memory_in, folder),
            partial(self.agent, **({} if self.agent is OwnAgent else HIDDEN)),
            **{**settings, "device": "cpu", "threads": 1, **self.settings},
        )

    def interface(self, training: Any) -> Any:
        """Source of the training object's samples and destination of its policies."""
        counter = training.versions_before
        return Lockstep(self.spaces, counter) if self.lockstep else library.LocalInterface(counter=counter)

    def go_on(self, training: Any) -> None:
        """Train for one more epoch; the first samples that come are the rest of the episode that was open."""
        interface = self.interface(training)
        if not self.lockstep:
            interface.put(messages(self.spaces, 2))
        training.run_epoch(interface)

    def load(self, folder: Path) -> Any:
        """Make the training object, and load its latest checkpoint."""
        if self.store:
            return library.CheckpointStore(folder / "checkpoint").restore(lambda: self.make(folder))
        training = self.make(folder)
        training.load(folder / "checkpoint")
        return training


_PRIORITY = {"alpha": 0.7, "beta_batches": 50}
_STACKS = {"memory_cls": library.FrameStackMemory, "spaces": FRAMES}
_ROUNDS = {"loop": library.TrainingLockstep, "memory": {}}
_MIXED = partial(library.SacAgent, optimizer_actor="sgd", optimizer_critic="adamw", learn_entropy_coef=False)
_NORMALIZED = partial(
    library.PPOAgent, minibatch_size=10, update_epochs=2, normalize_observations=True, normalize_rewards=True
)

CASES: dict[str, Case] = {
    "sac": Case(library.SacAgent, loop=library.TorchTrainingOffline, store=True),
    "sac_n_steps": Case(_MIXED, {"n_step": 3}, settings={"samples_per_insert": 4.0, "error_buffer": 400.0}),
    "sac_rows": Case(library.SacAgent, memory_cls=library.GenericTorchMemory),
    "sac_disk": Case(library.SacAgent, disk=True),
    "spinup_sac": Case(library.SpinupSacAgent, {"max_drawn_lag": 9}, settings={"max_policy_lag": 9}),
    "redq": Case(library.REDQSACAgent, {"priority": _PRIORITY, "n_step": 2}),
    "td3": Case(library.TD3Agent, {"prefetch": 1}),
    "td3_disk": Case(library.TD3Agent, {"priority": _PRIORITY, "n_step": 2}, disk=True, store=True),
    "dqn": Case(library.DQNAgent, {"priority": {**_PRIORITY, "batches_at_once": 4}}, spaces=DISCRETE),
    "dqn_frames": Case(library.DQNAgent, {"frame_stack": STACK}, **_STACKS),
    "dqn_frames_disk": Case(library.DQNAgent, {"frame_stack": STACK, "priority": _PRIORITY}, disk=True, **_STACKS),
    "discrete_sac": Case(library.DiscreteSacAgent, {"priority": _PRIORITY}, spaces=DISCRETE),
    "discrete_sac_rows": Case(library.DiscreteSacAgent, memory_cls=library.GenericTorchMemory, spaces=DISCRETE),
    "discrete_sac_frames": Case(library.DiscreteSacAgent, {"frame_stack": STACK, "priority": {}}, **_STACKS),
    "ppo": Case(_NORMALIZED, **_ROUNDS),
    "ppo_discrete": Case(partial(library.PPOAgent, optimizer="adamw"), spaces=DISCRETE, **_ROUNDS),
    "own": Case(OwnAgent, memory_cls=OwnMemory, loop=OwnTraining),
}

ACTORS = {
    "SquashedGaussianMLPActor": BOX,
    "DeterministicMLPActor": BOX,
    "GaussianMLPActor": BOX,
    "QValueMLPActor": DISCRETE,
    "CategoricalMLPActor": DISCRETE,
}
OBSERVATION = np.array([0.5, -1.0, 2.0], np.float32)


# --- digests ----------------------------------------------------------------------------------------------------------


def _leaves(tree: Any) -> Iterator[bytes]:
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield str(key).encode()
            yield from _leaves(tree[key])
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _leaves(part)
    else:
        array = np.asarray(tree)
        yield f"{array.dtype.str} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes()


def row_digests(memory: Any) -> list[str]:
    """Of each transition in a memory, oldest first: all of its values, their dtypes and shapes."""
    found = []
    for item in range(len(memory)):
        values = memory.get_transition(item)[:6]
        found.append(hashlib.sha256(b"".join(_leaves(values))).hexdigest()[:16])
    return found


def digest(texts: list[str]) -> str:
    """One digest of many."""
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()[:32]


def actor_digest(training: Any) -> str:
    """All parameters of the policy, bit for bit."""
    return digest([parameter.detach().numpy().tobytes().hex() for parameter in training.agent.get_actor().parameters()])


def actor_vector(training: Any) -> np.ndarray[Any, Any]:
    """All parameters of the policy in one row."""
    return torch.nn.utils.parameters_to_vector(training.agent.get_actor().parameters()).detach().numpy()


def facts(training: Any) -> dict[str, Any]:
    """State of a training object that a loaded checkpoint has to reproduce."""
    memory = training.memory
    found = {
        "epoch": training.epoch,
        "updates": training.total_updates,
        "samples": training.total_samples,
        "marks": {stream.hex(): list(offset) for stream, offset in training.delivery["marks"].items()},
        "incarnation": training.delivery["incarnation"],
        "actor": actor_digest(training),
    }
    if hasattr(memory, "get_transition"):
        found |= {"rows": len(memory), "digest": digest(row_digests(memory))}
    if isinstance(training.agent, OwnAgent):
        found["own"] = training.agent.digest()
    return found


# --- archives ---------------------------------------------------------------------------------------------------------


def unpack(name: str, folder: Path) -> Path:
    """Unpack one of the archives of `data/` into a folder of its name."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name
