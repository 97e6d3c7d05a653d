"""Pendulum in one process: Server, Trainer and RolloutWorker in threads, in turns. Only imports differ from tmrl.

Needs the extra `trainer`.

python examples/tmrl/pendulum.py --epochs 10
"""

from __future__ import annotations

from argparse import ArgumentParser
from threading import Thread

from tmrl_core.compat.custom.custom_algorithms import SpinupSacAgent
from tmrl_core.compat.custom.custom_memories import GenericTorchMemory
from tmrl_core.compat.custom.custom_models import MLPActorCritic, SquashedGaussianMLPActor
from tmrl_core.compat.envs import GenericGymEnv
from tmrl_core.compat.networking import RolloutWorker, Server, Trainer
from tmrl_core.compat.training_offline import TorchTrainingOffline
from tmrl_core.compat.util import partial

START = 400
"""Environment steps before the first update."""

env_cls = partial(GenericGymEnv, id="Pendulum-v1", gym_kwargs={"render_mode": None})


def training(epochs: int, rounds: int, steps: int) -> partial[TorchTrainingOffline]:
    """Return what makes the training object: a memory, an agent and a loop."""
    return partial(
        TorchTrainingOffline,
        env_cls=env_cls,
        memory_cls=partial(GenericTorchMemory, memory_size=1e6, batch_size=256),
        training_agent_cls=partial(
            SpinupSacAgent, model_cls=partial(MLPActorCritic, hidden_sizes=(64, 64)), gamma=0.99, lr_actor=3e-3
        ),
        epochs=epochs,
        rounds=rounds,
        steps=steps,
        update_model_interval=1,
        update_buffer_interval=1,
        max_training_steps_per_env_step=1.0,
        start_training=START,
        device="cpu",
    )


def main(arguments: list[str] | None = None) -> None:
    """Train, and show each round's returns."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--steps", type=int, default=100, help="updates per round")
    given = options.parse_args(arguments)
    with (
        Server(port=0) as server,
        Trainer(
            training(given.epochs, given.rounds, given.steps),
            server_port=server.port,
            model_path=None,
            checkpoint_path=None,
        ) as trainer,
        RolloutWorker(
            env_cls,
            partial(SquashedGaussianMLPActor, hidden_sizes=(64, 64)),
            server_port=server.port,
            model_path=None,
            max_samples_per_episode=200,
        ) as worker,
    ):
        learning = Thread(target=trainer.run)
        learning.start()
        # One environment step for each update; the worker returns when the trainer has finished.
        worker.run_synchronous(test_episode_interval=10, initial_steps=START, max_steps_per_update=1.0)
        learning.join()


if __name__ == "__main__":
    main()
