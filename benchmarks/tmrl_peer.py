"""tmrl itself, for the benchmarks beside it: its SAC updates in this process, or its Server, worker and Trainer.

    PYTHON benchmarks/tmrl_peer.py updates --threads N [--batch N]
    PYTHON benchmarks/tmrl_peer.py learn --seed N [--every N]
    PYTHON benchmarks/tmrl_peer.py collect --seconds S

PYTHON is that of an environment with tmrl, which needs nothing of ours; `sac_updates.py`, `pendulum_steps.py` and
`collection.py` start this. `updates` makes as many updates as each line of its input says, with their sampling, and
answers with a line: seconds, and seconds of processor time. `learn` trains with the settings of
`learning/pendulum.yaml`, beside a worker that steps as fast as it can, as tmrl's do, until the mean return of ten
deterministic episodes passes a target; it answers with environment steps, updates and the time of day. `collect`
answers with the environment steps per second that its trainer appends to its memory; it trains hardly ever. Links are
not encrypted, which is tmrl's default.

tmrl reads a configuration in the user's home when it is imported; this makes one in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROWS = 20_000
TARGET = -250.0
EPISODES = 10
FIRST_SEED = 1000
WARM_UP = 2000
"""Environment steps before the clock of `collect` starts."""


@contextlib.contextmanager
def home() -> Iterator[None]:
    """A home folder with a configuration of tmrl; only within it is tmrl to be imported."""
    learning = {
        "ALGORITHM": "SAC",
        "LEARN_ENTROPY_COEF": True,
        "LR_ACTOR": 1e-3,
        "LR_CRITIC": 1e-3,
        "LR_ENTROPY": 1e-3,
        "GAMMA": 0.99,
        "POLYAK": 0.995,
        "TARGET_ENTROPY": None,
        "ALPHA": 1.0,
        "OPTIMIZER_ACTOR": "adam",
        "OPTIMIZER_CRITIC": "adam",
    }
    environment = {
        "RTGYM_INTERFACE": "TM20LIDAR",
        "WINDOW_WIDTH": 958,
        "WINDOW_HEIGHT": 488,
        "SLEEP_TIME_AT_RESET": 1.5,
        "IMG_HIST_LEN": 4,
        "RTGYM_CONFIG": {"act_buf_len": 2},
        "REWARD_CONFIG": {},
    }
    values = {
        "__VERSION__": "0.6.0",
        "RUN_NAME": "peer",
        "BUFFERS_MAXLEN": 500_000,
        "RW_MAX_SAMPLES_PER_EPISODE": 1000,
        "CUDA_TRAINING": False,
        "CUDA_INFERENCE": False,
        "VIRTUAL_GAMEPAD": False,
        "LOCALHOST_WORKER": True,
        "LOCALHOST_TRAINER": True,
        "PUBLIC_IP_SERVER": "127.0.0.1",
        "SAVE_MODEL_EVERY": 0,
        "MEMORY_SIZE": 1_000_000,
        "BATCH_SIZE": 256,
        "MAX_EPOCHS": 1,
        "ROUNDS_PER_EPOCH": 1,
        "TRAINING_STEPS_PER_ROUND": 1,
        "UPDATE_MODEL_INTERVAL": 1,
        "UPDATE_BUFFER_INTERVAL": 1,
        "MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP": 1.0,
        "ENVIRONMENT_STEPS_BEFORE_TRAINING": 1000,
        "WANDB_PROJECT": "",
        "WANDB_ENTITY": "",
        "WANDB_KEY": "",
        "PORT": 0,
        "LOCAL_PORT_SERVER": 0,
        "LOCAL_PORT_TRAINER": 0,
        "LOCAL_PORT_WORKER": 0,
        "PASSWORD": "a password",
        "TLS": False,
        "TLS_CREDENTIALS_DIRECTORY": "",
        "TLS_HOSTNAME": "default",
        "NB_WORKERS": -1,
        "BUFFER_SIZE": 536_870_912,
        "HEADER_SIZE": 12,
        "ALG": learning,
        "ENV": environment,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in ("checkpoints", "dataset", "reward", "weights", "config"):
            Path(folder, "TmrlData", name).mkdir(parents=True)
        Path(folder, "TmrlData", "config", "config.json").write_text(json.dumps(values))
        os.environ["HOME"] = os.environ["USERPROFILE"] = folder
        yield


def of_tmrl(module: str, name: str) -> Any:
    """Something of tmrl, imported when it is wanted."""
    return getattr(import_module(f"tmrl.{module}" if module else "tmrl"), name)


# --- updates ----------------------------------------------------------------------------------------------------------


def updates(threads: int, batch_size: int) -> None:
    """Make updates as standard input says, until it ends."""
    import numpy as np
    import torch
    from gymnasium import spaces

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    observations, actions = spaces.Box(-8, 8, (3,), np.float32), spaces.Box(-2, 2, (1,), np.float32)
    agent = of_tmrl("custom.custom_algorithms", "SpinupSacAgent")(observations, actions, device="cpu")
    memory = of_tmrl("custom.custom_memories", "GenericTorchMemory")(memory_size=ROWS, batch_size=batch_size)
    generator = np.random.default_rng(0)
    buffer = of_tmrl("networking", "Buffer")()
    for _ in range(ROWS + 1):
        obs = generator.standard_normal(3).astype(np.float32)
        action = generator.uniform(-2, 2, 1).astype(np.float32)
        buffer.append_sample((action, obs, np.float32(generator.standard_normal()), False, False, {}))
    memory.append(buffer)
    for line in sys.stdin:
        count = int(line)
        started, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            agent.train(memory.sample())
        answer([time.perf_counter() - started, time.process_time() - used])


def answer(values: Any) -> None:
    """One line for who has started this, beside what tmrl logs."""
    sys.stdout.write(f"\n> {json.dumps(values)}\n")
    sys.stdout.flush()


class Peer:
    """tmrl's updates in a process of their own; what they take is asked of it.

    Args:
        python: of an environment with tmrl.
        threads: torch's.
        batch_size: rows of a batch.
    """

    def __init__(self, python: str, threads: int, batch_size: int) -> None:
        command = [python, __file__, "updates", "--threads", str(threads), "--batch", str(batch_size)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, count: int) -> tuple[float, float]:
        """Seconds, and seconds of processor time, of so many updates.

        Raises:
            SystemExit: the process has ended; it has said why.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
        values = answered(self._process)
        return float(values[0]), float(values[1])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def answered(process: subprocess.Popen[str]) -> Any:
    """What a process of this script answers next.

    Raises:
        SystemExit: it has ended without.
    """
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("> "):
            return json.loads(line[2:])
    raise SystemExit(f"tmrl's process has ended with {process.wait()} and no answer")


# --- learning ---------------------------------------------------------------------------------------------------------


def as_float32(act: Any, obs: Any, rew: Any, terminated: Any, truncated: Any, info: Any) -> tuple[Any, ...]:
    """A sample whose reward is no double, so that all of its updates are computed in float32; and without its infos."""
    import numpy as np

    return act, obs, np.float32(rew), terminated, truncated, {}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def pendulum() -> Any:
    return partial(of_tmrl("", "GenericGymEnv"), id="Pendulum-v1", to_float32=True)


def worker(port: int) -> None:
    """tmrl's worker: steps as fast as it can, and looks for new weights between episodes."""
    import torch

    torch.set_num_threads(1)
    rollout = of_tmrl("networking", "RolloutWorker")(
        env_cls=pendulum(),
        actor_module_cls=of_tmrl("custom.custom_models", "SquashedGaussianMLPActor"),
        sample_compressor=as_float32,
        server_ip="127.0.0.1",
        server_port=port,
        local_port=free_port(),
        model_path=str(Path.home() / "worker.tmod"),
        model_history=0,
    )
    rollout.run(test_episode_interval=0, verbose=False)


class Passed(Exception):
    """Ends tmrl's training loop."""


def run_roles(trainer: Callable[[], Any]) -> None:
    """Run tmrl's Server and trainer here, and its worker in another process, until `Passed` is raised."""
    port = free_port()
    server = of_tmrl("networking", "Server")(port=port, local_port=free_port())
    command = [sys.executable, __file__, "worker", "--port", str(port)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        of_tmrl("networking", "Trainer")(
            training_cls=trainer,
            server_ip="127.0.0.1",
            server_port=port,
            local_com_port=free_port(),
            model_path=str(Path.home() / "trainer.tmod"),
            checkpoint_path=None,
            dump_run_instance_fn=lambda *_: None,
        ).run()
        answer(None)
    except Passed:
        pass
    finally:
        # Links of tmrl are processes of their own, which would go on.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        del server
        for link in multiprocessing.active_children():
            link.kill()
            link.join()


def training(loop: Any, agent: Any, **kwargs: Any) -> Any:
    """A training object of tmrl."""
    memory = of_tmrl("custom.custom_memories", "GenericTorchMemory")
    return loop(
        env_cls=pendulum(),
        memory_cls=partial(memory, memory_size=1_000_000, batch_size=256),
        training_agent_cls=partial(agent, alpha=1.0),
        epochs=1,
        rounds=1,
        steps=6000,
        sleep_between_buffer_retrieval_attempts=0.01,
        start_training=1000,
        device="cpu",
        **kwargs,
    )


def collect(seconds: float) -> None:
    """Count the environment steps that arrive in tmrl's memory within some seconds."""
    import torch

    torch.set_num_threads(1)
    base = of_tmrl("training_offline", "TorchTrainingOffline")

    class Counting(base):  # type: ignore[misc, valid-type]
        def __post_init__(self) -> None:
            super().__post_init__()
            self.first: tuple[float, int] | None = None

        def update_buffer(self, interface: Any) -> None:
            super().update_buffer(interface)
            now = time.monotonic()
            if self.first is None:
                if self.total_samples >= WARM_UP:
                    self.first = now, self.total_samples
            elif now - self.first[0] >= seconds:
                answer((self.total_samples - self.first[1]) / (now - self.first[0]))
                raise Passed

    few = {"update_model_interval": 1, "update_buffer_interval": 1, "max_training_steps_per_env_step": 1e-5}
    run_roles(lambda: training(Counting, of_tmrl("custom.custom_algorithms", "SpinupSacAgent"), **few))


def learn(seed: int, every: int) -> None:
    """Train until the target is passed."""
    import gymnasium
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    base = of_tmrl("custom.custom_algorithms", "SpinupSacAgent")
    env = gymnasium.make("Pendulum-v1")
    made: list[Any] = []

    def play(actor: Any, start: int) -> float:
        obs, _ = env.reset(seed=start)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(actor.act_(np.asarray(obs, np.float32), test=True))
            total += float(reward)
            over = terminated or truncated
        return total

    class Evaluated(base):  # type: ignore[misc, valid-type]
        updates = 0

        def train(self, batch: Any) -> Any:
            stats = super().train(batch)
            self.updates += 1
            if self.updates % every == 0:
                actor = self.get_actor()
                if np.mean([play(actor, FIRST_SEED + n) for n in range(EPISODES)]) >= TARGET:
                    answer([made[0].total_samples, self.updates, time.time()])
                    raise Passed
            return stats

    def trainer() -> Any:
        made[:] = [
            training(
                of_tmrl("training_offline", "TorchTrainingOffline"),
                Evaluated,
                update_model_interval=10,
                update_buffer_interval=10,
                max_training_steps_per_env_step=1.0,
            )
        ]
        return made[0]

    run_roles(trainer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("updates", "learn", "collect", "worker"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=200, help="updates between two evaluations")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of collect")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "worker":  # in the home that its starter has made
        worker(arguments.port)
        return
    with home():
        if arguments.what == "updates":
            updates(arguments.threads, arguments.batch)
        elif arguments.what == "collect":
            collect(arguments.seconds)
        else:
            learn(arguments.seed, arguments.every)
    sys.stdout.flush()
    os._exit(0)  # threads of tmrl's links do not end


if __name__ == "__main__":
    main()
