"""A simulated drone in real time: rtgym keeps the rate, the network works beside it. Only imports differ from tmrl.

Needs the extras `trainer` and `realtime` (rtgym).

python examples/tmrl/drone.py --epochs 20
"""

from __future__ import annotations

from argparse import ArgumentParser
from threading import Thread
from typing import Any

import gymnasium
import numpy as np
import rtgym

from tmrl_core.compat.custom.custom_algorithms import SpinupSacAgent
from tmrl_core.compat.custom.custom_memories import GenericTorchMemory
from tmrl_core.compat.custom.custom_models import MLPActorCritic, SquashedGaussianMLPActor
from tmrl_core.compat.envs import GenericGymEnv
from tmrl_core.compat.networking import RolloutWorker, Server, Trainer
from tmrl_core.compat.training_offline import TorchTrainingOffline
from tmrl_core.compat.util import partial


class DroneInterface(rtgym.RealTimeGymInterface):
    """A drone that flies to a target in a square. Its commands and positions arrive with delays."""

    def __init__(self) -> None:
        self.drone = rtgym.DummyRCDrone()
        self.random = np.random.default_rng()
        self.target = np.zeros(2, np.float32)

    def get_observation_space(self) -> gymnasium.Space[Any]:
        """Position and target. rtgym adds the latest actions."""
        return gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)] * 2)

    def get_action_space(self) -> gymnasium.Space[Any]:
        """Velocity."""
        return gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def get_default_action(self) -> np.ndarray:
        """Stand still: the action before the first one."""
        return np.zeros(2, np.float32)

    def send_control(self, control: np.ndarray | None) -> None:
        """Send a velocity; None: nothing."""
        if control is not None:
            self.drone.send_control(*control.tolist())

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Choose another target."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.target = self.random.uniform(-0.5, 0.5, 2).astype(np.float32)
        return [self._position(), self.target], {}

    def wait(self) -> None:
        """Stand still while nobody acts."""
        self.send_control(self.get_default_action())

    def get_obs_rew_terminated_info(self) -> tuple[list[np.ndarray], float, bool, dict[str, Any]]:
        """Return the observation of this time step; the reward is minus the distance."""
        position = self._position()
        distance = float(np.linalg.norm(position - self.target))
        return [position, self.target], -distance, distance < 0.02, {}

    def _position(self) -> np.ndarray:
        return np.array(self.drone.get_observation(), np.float32)


def environment(**changes: Any) -> partial[GenericGymEnv]:
    """Return what makes the environment."""
    config = {
        **rtgym.DEFAULT_CONFIG_DICT,
        "interface": DroneInterface,
        "time_step_duration": 0.05,  # seconds: 20 actions per second
        "start_obs_capture": 0.05,
        "time_step_timeout_factor": 1.0,
        "ep_max_length": 100,  # an episode is truncated after this number of steps
        "act_buf_len": 4,  # actions in the observation: as many as the delays may last
        "reset_act_buf": False,
        **changes,
    }
    return partial(GenericGymEnv, id="real-time-gym-ts-v1", gym_kwargs={"config": config})


def main(arguments: list[str] | None = None, **changes: Any) -> None:
    """Train while the drone flies. `changes`: of rtgym's settings."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=200, help="updates per round")
    given = options.parse_args(arguments)
    env_cls = environment(**changes)
    training_cls = partial(
        TorchTrainingOffline,
        env_cls=env_cls,
        memory_cls=partial(GenericTorchMemory, memory_size=1e6, batch_size=128),
        training_agent_cls=partial(
            SpinupSacAgent, model_cls=partial(MLPActorCritic, hidden_sizes=(64, 64)), lr_actor=1e-3, gamma=0.98
        ),
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
            partial(SquashedGaussianMLPActor, hidden_sizes=(64, 64)),
            server_port=server.port,
            model_path=None,
            send_every=20,  # samples also leave within an episode
        ) as worker,
    ):
        learning = Thread(target=trainer.run)
        learning.start()
        worker.run(test_episode_interval=10)  # never waits; ends when the trainer has finished
        learning.join()


if __name__ == "__main__":
    main()
