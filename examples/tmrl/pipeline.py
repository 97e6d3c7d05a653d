"""A pipeline of one's own: actor, memory, sample compressor, observation preprocessor and agent, with a check.

Observations hold the latest actions, which the memory already has: the compressor leaves them out, and the memory puts
them back. `--check` compares rebuilt transitions with those that the worker saw. It flies the drone of drone.py, which
needs the extras `trainer` and `realtime` (rtgym).

python examples/tmrl/pipeline.py --check
python examples/tmrl/pipeline.py --epochs 20
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from drone import environment
from torch import Tensor, nn
from torch.distributions import Normal

from tmrl_core.compat.actor import TorchActorModule
from tmrl_core.compat.custom.utils.nn import copy_shared, exponential_moving_average, no_grad
from tmrl_core.compat.memory import TorchMemory
from tmrl_core.compat.networking import Buffer, RolloutWorker, Server, Trainer
from tmrl_core.compat.training import TrainingAgent
from tmrl_core.compat.training_offline import TorchTrainingOffline
from tmrl_core.compat.util import cached_property, partial

ACTIONS = 4
"""Number of actions in an observation."""

# --- observations and samples -----------------------------------------------------------------------------------------


def preprocess(obs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Replace position and target by the way to the target."""
    position, target, *actions = obs
    return (target - position, *actions)


def compress(prev_act: Any, obs: tuple[np.ndarray, ...], *rest: Any) -> tuple[Any, ...]:
    """Leave the actions out of the observation."""
    return (prev_act, obs[:1], *rest)


class DroneMemory(TorchMemory):
    """Samples with a link to the one before, from which the latest actions of an observation are put back.

    Samples of several workers arrive in any order, and some may be missing. `depth` is the number of known samples
    before each one in its episode, and more than enough for all of an episode that is complete.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data: list[list[Any]] = [[] for _ in range(6)]
        self.before: list[int] = []
        self.depth: list[int] = []
        self.latest: dict[bytes, tuple[int, int, int]] = {}
        self.transitions: list[int] = []

    def append_buffer(self, buffer: Any) -> None:
        """Append a buffer's samples."""
        for chunk in buffer.chunks:
            for row in range(chunk.rows):
                self._append(chunk.sample(row), chunk.stream, int(chunk.episode[row]), int(chunk.step[row]))
        if len(self.before) > self.memory_size:
            self._forget(len(self.before) - self.memory_size * 15 // 16)

    def _append(self, sample: tuple[Any, ...], stream: bytes, episode: int, step: int) -> None:
        number, last = len(self.before), self.latest.get(stream)
        before = last[0] if last is not None and last[1:] == (episode, step - 1) else -1
        for values, value in zip(self.data, sample, strict=True):
            values.append(value)
        self.before.append(before)
        self.depth.append(ACTIONS if step == 0 else 0 if before < 0 else min(ACTIONS, self.depth[before] + 1))
        self.latest[stream] = number, episode, step
        if before >= 0 and self.depth[before] >= ACTIONS - 1:
            self.transitions.append(number)

    def _forget(self, count: int) -> None:
        """Drop the oldest samples, and the transitions that need them."""
        kept = [number for number in self.transitions if self._history(self.before[number])[-1] >= count]
        self.transitions = [number - count for number in kept]
        self.data = [values[count:] for values in self.data]
        self.before = [max(-1, number - count) for number in self.before[count:]]
        self.depth = self.depth[count:]
        latest = {stream: (number - count, *rest) for stream, (number, *rest) in self.latest.items()}
        self.latest = {stream: last for stream, last in latest.items() if last[0] >= 0}

    def _history(self, number: int) -> list[int]:
        """Return the samples of the latest actions, newest first; the reset's repeats."""
        numbers = [number]
        while len(numbers) < ACTIONS:
            numbers.append(self.before[numbers[-1]] if self.before[numbers[-1]] >= 0 else numbers[-1])
        return numbers

    def _observation(self, number: int) -> tuple[np.ndarray, ...]:
        return (*self.data[1][number], *[self.data[0][one] for one in reversed(self._history(number))])

    def __len__(self) -> int:
        return len(self.transitions)

    def get_transition(self, item: int) -> tuple[Any, ...]:
        """Return transition `item` with its actions."""
        now = self.transitions[item]
        act, _, rew, terminated, truncated, info = (values[now] for values in self.data)
        before = self._observation(self.before[now])
        return before, act, np.float32(rew), self._observation(now), terminated, truncated, info


# --- model and agent --------------------------------------------------------------------------------------------------


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class DroneActor(TorchActorModule):
    """A squashed Gaussian policy that is saved as JSON."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.actions = int(np.prod(action_space.shape))
        self.limit = float(action_space.high[0])
        self.net = layers(2 + ACTIONS * self.actions, 2 * self.actions)

    def forward(self, obs: Sequence[Tensor], test: bool = False) -> tuple[Tensor, Tensor]:
        """Return actions of a batch and their log-densities."""
        mean, log_std = self.net(torch.cat(list(obs), -1)).chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp())
        sample = mean if test else normal.rsample()
        squashing = 2.0 * (np.log(2.0) - sample - nn.functional.softplus(-2.0 * sample))
        return self.limit * sample.tanh(), (normal.log_prob(sample) - squashing).sum(-1)

    def act(self, obs: Sequence[Tensor], test: bool = False) -> np.ndarray:
        """Return the action for one observation."""
        action: np.ndarray = self(obs, test=test)[0][0].cpu().numpy()
        return action

    def save(self, path: str | Path) -> None:
        """Write the weights as JSON."""
        Path(path).write_text(json.dumps({name: value.tolist() for name, value in self.state_dict().items()}))

    def load(self, path: str | Path, device: Any) -> DroneActor:
        """Read the weights."""
        weights = json.loads(Path(path).read_text())
        self.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
        return self.to(device)


class DroneModel(nn.Module):
    """A policy and two critics."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.actor = DroneActor(observation_space, action_space)
        inputs = 2 + (ACTIONS + 1) * self.actor.actions
        self.q1, self.q2 = layers(inputs, 1), layers(inputs, 1)

    def values(self, obs: Sequence[Tensor], act: Tensor) -> Tensor:
        """[2, B] values of both critics."""
        x = torch.cat([*obs, act], -1)
        return torch.stack([self.q1(x), self.q2(x)]).squeeze(-1)


class DroneAgent(TrainingAgent):
    """Soft actor-critic with a fixed entropy coefficient."""

    # The same weights without gradients; not part of checkpoints.
    model_nograd = cached_property(lambda self: no_grad(copy_shared(self.model)))

    def __init__(
        self, observation_space: Any, action_space: Any, device: Any = None, gamma: float = 0.98, alpha: float = 0.02
    ) -> None:
        super().__init__(observation_space, action_space, device)
        self.gamma, self.alpha = gamma, alpha
        self.model = DroneModel(observation_space, action_space).to(device)
        self.target = no_grad(deepcopy(self.model))
        self.actor_optimizer = torch.optim.Adam(self.model.actor.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.Adam([*self.model.q1.parameters(), *self.model.q2.parameters()], lr=1e-3)

    def get_actor(self) -> DroneActor:
        """Return the policy to publish."""
        return self.model_nograd.actor

    def train(self, batch: Any) -> dict[str, float]:
        """Update the critics, then the policy."""
        obs, act, rew, new_obs, terminated, _ = batch
        with torch.no_grad():
            new_act, logp = self.model.actor(new_obs)
            value = self.target.values(new_obs, new_act).amin(0) - self.alpha * logp
            target = rew + self.gamma * (1.0 - terminated) * value
        loss_critic = (self.model.values(obs, act) - target).square().mean()
        self.critic_optimizer.zero_grad()
        loss_critic.backward()
        self.critic_optimizer.step()
        new_act, logp = self.model.actor(obs)
        loss_actor = (self.alpha * logp - self.model.values(obs, new_act).amin(0)).mean()
        self.actor_optimizer.zero_grad()
        loss_actor.backward()
        self.actor_optimizer.step()
        exponential_moving_average(self.target.parameters(), self.model.parameters(), 0.005)
        return {"loss_actor": loss_actor.item(), "loss_critic": loss_critic.item()}


# --- running ----------------------------------------------------------------------------------------------------------


def check(steps: int = 100, **changes: Any) -> int:
    """Compare rebuilt transitions with those that a worker saw. Return their number.

    Raises:
        ValueError: they differ; the message names the place.
    """
    memory = DroneMemory(device="cpu", nb_steps=1, crc_debug=True)
    with RolloutWorker(
        environment(act_buf_len=ACTIONS, reset_act_buf=True, **changes),
        DroneActor,
        sample_compressor=compress,
        obs_preprocessor=preprocess,
        crc_debug=True,
        model_path=None,
        standalone=True,
    ) as worker:
        while len(worker.buffer) < steps:
            worker.collect_train_episode(max_samples=40)
        received = Buffer(None)
        received += worker.buffer
    memory.append(received)
    for item in range(len(memory)):
        memory[item]
    return len(memory)


def main(arguments: list[str] | None = None, **changes: Any) -> None:
    """Check the pipeline, or train. `changes`: of rtgym's settings."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="compare rebuilt transitions only")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=200, help="updates per round")
    given = options.parse_args(arguments)
    if given.check:
        print(f"{check(**changes)} rebuilt transitions equal the worker's")
        return
    env_cls = environment(act_buf_len=ACTIONS, reset_act_buf=True, **changes)
    training_cls = partial(
        TorchTrainingOffline,
        env_cls=env_cls,
        memory_cls=partial(DroneMemory, memory_size=100_000, batch_size=128),
        training_agent_cls=DroneAgent,
        epochs=given.epochs,
        rounds=given.rounds,
        steps=given.steps,
        update_model_interval=10,
        update_buffer_interval=10,
        max_training_steps_per_env_step=2.0,
        start_training=100,
        device="cpu",
    )
    with (
        Server(port=0) as server,
        Trainer(training_cls, server_port=server.port, model_path=None, checkpoint_path=None) as trainer,
        RolloutWorker(
            env_cls,
            DroneActor,
            sample_compressor=compress,
            obs_preprocessor=preprocess,
            server_port=server.port,
            model_path=None,
            send_every=20,
        ) as worker,
    ):
        learning = Thread(target=trainer.run)
        learning.start()
        worker.run(test_episode_interval=10)
        learning.join()


if __name__ == "__main__":
    main()
