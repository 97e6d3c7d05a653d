"""Processor instructions per environment step of a RolloutWorker, counted with valgrind.

    python benchmarks/step_instructions.py

Instructions repeat within a fraction of a percent where times on a busy machine do not. Each run is a Python of its own
under `valgrind --tool=callgrind`, which counts each thread by itself. A run of `--steps` steps, less one of
`--fewer-steps`, leaves out the start: (instructions of the long run - of the short run) / (the steps between).

- worker's loop, its own thread: policy, environment, the checked step, the recorder, and handing over each episode of
  200 steps;
- worker, all threads: with the I/O thread, which encodes the samples. Timers and attempts to connect belong to it, so
  that this number varies more;
- policy and environment alone: the same two in a plain loop; the rest of the worker's loop is ours.

The environment returns the same array in each step. The policy is the NumPy backend with two hidden layers of 64, its
weights come from a file, and it explores as in training. The link (transport `local`) finds no Server: the samples stay
in its queue. Seeds and the hash seed are fixed. The exit status is 1 if two runs of the worker's loop, or of the plain
loop, differ by more than 0.5 %, and 2 without valgrind. Linux only.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MAIN = Path(__file__).resolve()
LENGTH = 200
AGREE = 0.005
SIDES = ("worker", "plain")
INSTALL = "valgrind is missing: apt install valgrind (Debian, Ubuntu), dnf install valgrind (Fedora), or valgrind.org"


class Still(gymnasium.Env[Any, Any]):
    """An environment whose step costs next to nothing."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    steps = 0
    observation = np.full(3, 0.5, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation, 0.0, False, self.steps % LENGTH == 0, {}


def make_actor() -> Any:
    from tmrl_core.actor import NumpySquashedGaussianMLPActor

    # Random actions, until the trainer says another share, would leave the network out.
    return functools.partial(NumpySquashedGaussianMLPActor, hidden_sizes=(64, 64), seed=0, random=0.0)


def run(side: str, steps: int, folder: Path) -> None:
    """Make so many steps, in the process whose instructions are counted, and end it at once."""
    from tmrl_core.config import from_values
    from tmrl_core.networking import RolloutWorker

    policy = folder / "policy.tmod"
    make_actor()(Still.observation_space, Still.action_space).save(policy)
    values = {"network": {"transport": "local"}, "run": {"seed": 0, "folder": str(folder)}}
    worker = RolloutWorker(
        Still,
        make_actor(),
        model_path=policy,
        model_path_history=None,
        server_ip="127.0.0.1",
        server_port=1,  # the transport `local` has no listener there
        max_env_steps_per_update=None,
        config=from_values(values),
    )
    assert worker.actor.exploration() == {"random": 0.0}, "the network has to act"
    if side == "plain":
        env = Still()
        act, step, reset = worker.actor.act, env.step, env.reset
        obs, _ = reset()
        for _ in range(steps):
            obs, _, terminated, truncated, _ = step(act(obs))
            if terminated or truncated:
                obs, _ = reset()
    else:
        worker.run(nb_episodes=steps // LENGTH, verbose=False)
        assert worker.steps_collected == steps + steps // LENGTH, worker.steps_collected
    os._exit(0)  # the link would wait for a Server


def counted(side: str, steps: int) -> list[int]:
    """Return the instructions of each thread of a run, the main thread first."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(MAIN.parent.parent)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        valgrind = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={out}"]
        command = [*valgrind, sys.executable, str(MAIN), "--run", side, str(steps), folder]
        done = subprocess.run(
            command, cwd=folder, env=os.environ | threads | own, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
        return [
            int(total)
            for file in sorted(Path(folder).glob("callgrind-*"))
            for total in re.findall(r"^totals: (\d+)", file.read_text(), re.MULTILINE)
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8000, help=f"a multiple of {LENGTH}")
    parser.add_argument("--fewer-steps", type=int, default=800, help="likewise")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        side, steps, folder = options.run
        run(side, int(steps), Path(folder))
    if not shutil.which("valgrind"):
        print(INSTALL, file=sys.stderr)
        return 2
    if options.steps % LENGTH or options.fewer_steps % LENGTH or options.steps <= options.fewer_steps:
        parser.error(f"steps come in episodes of {LENGTH}, and --fewer-steps are fewer")
    between = options.steps - options.fewer_steps
    found: dict[str, list[float]] = {}
    for _ in range(options.repetitions):
        for side in SIDES:
            fewer, more = (counted(side, steps) for steps in (options.fewer_steps, options.steps))
            name = "worker's loop, its own thread" if side == "worker" else "policy and environment alone"
            found.setdefault(name, []).append((more[0] - fewer[0]) / between)
            if side == "worker":
                found.setdefault("worker, all threads", []).append((sum(more) - sum(fewer)) / between)
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(
        f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, gymnasium "
        f"{gymnasium.__version__}, {version}; {options.steps:,} steps less {options.fewer_steps:,}\n"
    )
    print("| instructions per environment step | mean | each run | largest difference |\n| --- | --- | --- | --- |")
    apart = {name: max(numbers) / min(numbers) - 1 for name, numbers in found.items()}
    for name, numbers in found.items():
        each = ", ".join(f"{number:,.0f}" for number in numbers)
        print(f"| {name} | {sum(numbers) / len(numbers):,.0f} | {each} | {100 * apart[name]:.2f} % |")
    return 0 if all(share <= AGREE for name, share in apart.items() if "all threads" not in name) else 1


if __name__ == "__main__":
    raise SystemExit(main())
