"""Environment steps and seconds until Pendulum's mean test return passes -250: our SAC and stable-baselines3's.

    python benchmarks/pendulum_steps.py --peer PYTHON [--tmrl PYTHON]

Ours is a Server, one asynchronous worker and a Trainer as processes over TLS, with `learning/pendulum.yaml`;
stable-baselines3's is one process, with the same settings (`learning/peer_settings.py`): networks, learning rates,
batch, temperature, one update for each step after the first thousand. Both are evaluated every so many updates in ten
deterministic episodes of the same starts, and in turn, seed by seed. Counted are the steps that had been taken when the
first evaluation above the target was over (ours: received by the trainer, resets included), the updates of the policy
that was evaluated, and the seconds from the start of the command, evaluations included.

PYTHON is that of an environment with stable-baselines3, which the project does not depend on; without it only ours
runs. With the Python of an environment with tmrl, its Server, worker and trainer run in turn too (`tmrl_peer.py`), for
the seconds: its worker steps as fast as it can, so that its steps say little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tmrl_peer import answered
from wire_bytes import versions

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "benchmarks" / "learning" / "pendulum.yaml"
TARGET = -250.0
EPISODES = 10
Found = tuple[int, int, float]
"""Steps, updates, seconds."""


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks" / "learning"), str(ROOT / "benchmarks")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def ours(seed: int, every: int) -> Found | None:
    from tmrl_core.metrics import names, read_records

    with tempfile.TemporaryDirectory() as folder:
        changes = [f"run.seed={seed}", f"run.folder={folder}/runs", f"network.credentials_dir={folder}/keys"]
        changes += ["server.port=0", "metrics.console=false", f"trainer.evaluation.episodes={EPISODES}"]
        changes += [f"trainer.evaluation.every_updates={every}", f"trainer.evaluation.target_return={TARGET}"]
        options = [word for change in changes for word in ("--set", change)]
        command = [sys.executable, "-m", "tmrl_core", "--local", "--workers", "1", "-c", str(CONFIG), *options]
        began = time.time()
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        logs = list(Path(folder, "runs").glob("*/metrics.jsonl"))
        if not logs:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        for record in read_records(logs[0]):
            mean = record.number(names.RETURN_EVALUATION) if record.kind == "evaluation" else None
            if mean is not None and mean >= TARGET:
                steps, updates = record.number(names.SAMPLES_RECEIVED), record.number(names.UPDATES)
                return int(steps or 0), int(updates or 0), record.time_s - began
    return None


def peer(python: str, seed: int, every: int) -> Found | None:
    command = [python, str(Path(__file__)), "--child", "--first-seed", str(seed), "--every", str(every)]
    began = time.time()
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return None if found is None else (found[0], found[1], found[2] - began)


def tmrl(python: str, seed: int, every: int) -> Found | None:
    script = str(Path(__file__).with_name("tmrl_peer.py"))
    command = [python, script, "learn", "--seed", str(seed), "--every", str(every)]
    began = time.time()
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        found = answered(process)
        process.communicate()
    return None if found is None else (found[0], found[1], found[2] - began)


def peer_child(seed: int, every: int) -> None:
    """Train stable-baselines3's SAC in this process; print steps, updates and the time of day when it has passed."""
    import stable_baselines3 as sb3
    import torch
    from peer_settings import peer_settings
    from stable_baselines3.common.callbacks import BaseCallback

    from tmrl_core.config import load
    from tmrl_core.envs import GenericGymEnv

    torch.set_num_threads(1)
    config = load(CONFIG, [], {})
    settings = peer_settings(config)
    first = config.trainer.evaluation.first_seed
    env = GenericGymEnv(**config.environment.kwargs)
    found: list[float] = []

    def play(model: Any, start: int) -> float:
        obs, _ = env.reset(seed=start)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        return total

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            updates = self.model._n_updates
            if updates and updates % every == 0:
                mean = statistics.fmean(play(self.model, first + episode) for episode in range(EPISODES))
                if mean >= TARGET:
                    found[:] = [self.num_timesteps, updates, time.time()]
                    return False
            return True

    kwargs = dict(settings.kwargs)
    model = getattr(sb3, settings.algorithm)(
        "MlpPolicy", GenericGymEnv(**config.environment.kwargs), seed=seed, device="cpu", **kwargs
    )
    model.learn(settings.steps, callback=Evaluate())
    print(json.dumps(found or None))


def row(name: str, seed: int, found: Found | None) -> None:
    cells = ("-", "-", "-") if found is None else (f"{found[0]:,}", f"{found[1]:,}", f"{found[2]:.1f}")
    print(f"| {name} | {seed} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="updates between two evaluations")
    parser.add_argument("--peer", metavar="PYTHON", help="Python of an environment with stable-baselines3")
    parser.add_argument("--tmrl", metavar="PYTHON", help="Python of an environment with tmrl")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        peer_child(arguments.first_seed, arguments.every)
        return 0
    print(versions(), "cores:", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    print("| who | seed | steps | updates | seconds |")
    print("| --- | --- | --- | --- | --- |")
    runs: dict[str, list[Found | None]] = {"tmrl_core": [], "stable-baselines3": [], "tmrl": []}
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        runs["tmrl_core"].append(ours(seed, arguments.every))
        row("tmrl_core", seed, runs["tmrl_core"][-1])
        if arguments.peer:
            runs["stable-baselines3"].append(peer(arguments.peer, seed, arguments.every))
            row("stable-baselines3", seed, runs["stable-baselines3"][-1])
        if arguments.tmrl:
            runs["tmrl"].append(tmrl(arguments.tmrl, seed, arguments.every))
            row("tmrl", seed, runs["tmrl"][-1])
    middles = {}
    for name, found in runs.items():
        passed = [one for one in found if one is not None]
        if found and len(passed) == len(found):
            middles[name] = statistics.median(one[0] for one in passed)
            seconds = [one[2] for one in passed]
            print(
                f"{name}: median {middles[name]:,.0f} steps (mean {statistics.fmean(one[0] for one in passed):,.0f}), "
                f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
            )
        elif found:
            print(f"{name}: {len(passed)} of {len(found)} passed {TARGET:g}")
    return 0 if middles.get("tmrl_core", math.inf) <= middles.get("stable-baselines3", 0.0) else 1


if __name__ == "__main__":
    sys.exit(main())
