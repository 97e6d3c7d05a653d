"""Whether each algorithm learns its task: a Server, workers and a Trainer as processes over TLS, several seeds.

    python benchmarks/algorithms.py                       # all of them, three seeds each
    python benchmarks/algorithms.py dqn td3 --seeds 1

Each run is what `python -m tmrl_core --local` makes of the algorithm's file in `config/`, in a folder of its own with
credentials of its own; only the seed differs, how many workers there are, and that SAC collects and begins as REDQ
does, which it is compared with. A run ends when an evaluation (as many deterministic episodes as the file says, of
fixed seeds) reaches the target and the policy of the moment does so too, or when the file's time or updates are over,
which counts as not learned. *Steps* are those that the trainer had received when the first evaluation above the target
came in, *seconds* run from the trainer's start until then, and *total* from the command until everything has ended.
*Score* is the mean of further deterministic episodes, of other starts, with the weights that the run leaves behind.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wire_bytes import versions

from tmrl_core.config import load
from tmrl_core.metrics import names, read_records

ROOT = Path(__file__).resolve().parent.parent

CONFIGS = {
    "dqn": "cartpole_dqn",
    "discrete_sac": "cartpole_discrete_sac",
    "ppo": "cartpole_ppo",
    "td3": "pendulum_td3",
    "sac": "pendulum_sac",
    "redq": "pendulum_redq",
    "r2d2": "delayed_cue_r2d2",
    "recurrent_sac": "pendulum_hidden_velocity_rsac",
    "recurrent_ppo": "delayed_cue_ppo",
}
AS_REDQ = (
    "actor.kwargs.hidden_sizes=[256, 256]",
    "agent.kwargs={gamma: 0.99, lr_actor: 1.0e-3, lr_critic: 1.0e-3, lr_entropy: 1.0e-3}",
    "trainer.start_training=500",
    "trainer.threads=1",
    "worker.max_env_steps_per_update=1.0",
    "worker.send_every=10",
    "worker.update_weights=step",
    "trainer.update_model_interval=10",
    "trainer.update_buffer_interval=10",
    "trainer.evaluation.every_updates=200",
)
"""So that SAC and REDQ differ in their updates only, and are evaluated after the same numbers of steps."""


@dataclass(frozen=True)
class Result:
    """Of one run.

    Args:
        reached: steps, updates and seconds at the first evaluation above the target; None: there was none.
        best: mean return of the best evaluation.
        score: mean return of further episodes with the final weights.
        learned: the run says so.
        steps: received in all.
        total_s: of the whole command.
    """

    reached: tuple[int, int, float] | None
    best: float
    score: float
    learned: bool
    steps: int
    total_s: float


def play(config: Path, folder: str, episodes: int) -> float:
    """Mean return of deterministic episodes with the weights that a run has left behind."""
    command = [sys.executable, "-m", "tmrl_core", "--test", "-c", str(config), "--episodes", str(episodes)]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    found = re.search(r"mean return of \d+ episodes: (-?[\d.,]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1].replace(",", "").rstrip("."))


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(algorithm: str, seed: int, workers: int, episodes: int, settings: Sequence[str], log: Path | None) -> Result:
    """One run in a folder that goes with it."""
    path = ROOT / "config" / f"{CONFIGS[algorithm]}.yaml"
    with tempfile.TemporaryDirectory() as folder:
        changes = [f"run.seed={seed}", f"run.folder={folder}/runs", f"network.credentials_dir={folder}/keys"]
        changes += ["server.port=0", "metrics.tensorboard=false", *(AS_REDQ if algorithm == "sac" else ()), *settings]
        options = [word for change in changes for word in ("--set", change)]
        command = [sys.executable, "-m", "tmrl_core", "--local", "--workers", str(workers), "-c", str(path), *options]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        total_s = time.perf_counter() - began
        made = load(path, changes, {}).run_folder
        if not (made / "metrics.jsonl").exists():
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        records = read_records(made / "metrics.jsonl")
        if log is not None:
            log.mkdir(parents=True, exist_ok=True)
            (log / f"{algorithm}_{seed}.jsonl").write_bytes((made / "metrics.jsonl").read_bytes())
        target = load(path, changes, {}).trainer.evaluation.target_return
        assert target is not None, f"{path} has no trainer.evaluation.target_return"
        reached, best = None, float("-inf")
        for record in records:
            mean = record.number(names.RETURN_EVALUATION) if record.kind == "evaluation" else None
            if mean is None:
                continue
            best = max(best, mean)
            if mean >= target and reached is None:
                steps = int(record.number(names.SAMPLES_RECEIVED) or 0)
                reached = steps, int(record.number(names.UPDATES) or 0), record.elapsed_s
        received = [record.number(names.SAMPLES_RECEIVED) for record in records]
        steps = int(max((number for number in received if number is not None), default=0))
        score = play(made / "config.yaml", folder, episodes)
    return Result(reached, best, score, done.returncode == 0 and reached is not None, steps, total_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help=f"of {', '.join(CONFIGS)}; none: all")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="of each run")
    parser.add_argument("--episodes", type=int, default=20, help="further episodes with the final weights")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a change of all files")
    parser.add_argument("--log", type=Path, default=None, help="folder for every run's metrics")
    arguments = parser.parse_args()
    chosen = arguments.algorithms or list(CONFIGS)
    unknown = [name for name in chosen if name not in CONFIGS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: none of {', '.join(CONFIGS)}")
    print(versions(), "cores:", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    print("| algorithm | seed | learned | steps | updates | seconds | best evaluation | score | all steps | total |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    steps: dict[str, list[int]] = {}
    learned = True
    for algorithm in chosen:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            found = run(algorithm, seed, arguments.workers, arguments.episodes, arguments.set, arguments.log)
            learned = learned and found.learned
            reached = ("-", "-", "-")
            if found.reached is not None:
                reached = (f"{found.reached[0]:,}", f"{found.reached[1]:,}", f"{found.reached[2]:.0f}")
                steps.setdefault(algorithm, []).append(found.reached[0])
            print(
                f"| {algorithm} | {seed} | {'yes' if found.learned else 'no'} | {' | '.join(reached)} | "
                f"{found.best:.1f} | {found.score:.1f} | {found.steps:,} | {found.total_s:.0f} |",
                flush=True,
            )
    for algorithm, counts in steps.items():
        print(f"{algorithm}: {len(counts)} of {arguments.seeds} learned, median steps {statistics.median(counts):,.0f}")
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
