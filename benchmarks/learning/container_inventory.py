"""Many agents: ports of examples/containers that learn with two workers over TLS, against hand-written policies.

    python benchmarks/learning/container_inventory.py
    python benchmarks/learning/container_inventory.py --jobs 2
    python benchmarks/learning/container_inventory.py --seeds 3 --assemblies independent --set trainer.epochs=2

The first command repeats the nine runs of the results, one after another; the second one, two at a time. Each run is
`--local` with one of the example's configurations in a new folder. Its final policies then play episodes with seeds
that no run trained or was evaluated on, and each hand-written policy plays the same ones.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run import ROOT

from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.config import load
from tmrl_core.multiagent import Actor
from tmrl_core.multiagent.from_config import environment_maker, make_manager

EXAMPLE = ROOT / "examples" / "containers"
ASSEMBLIES = ("independent", "shared_model", "shared_memory")
CUT = 0.7
"""Largest shortage of learned policies, as a share of that of doing nothing."""
FIRST_SEED = 1_000_000


def learn(assembly: str, seed: int, changes: list[str], folder: Path) -> None:
    """Train in a folder, with two workers over TLS."""
    settings = [f"run.seed={seed}", f"run.name={assembly}", "server.port=0", *changes]
    command = [sys.executable, "-m", "tmrl_core", "--local", "--workers", "2", "-c", str(EXAMPLE / f"{assembly}.yaml")]
    environ = os.environ | {"TMRL_CORE_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(folder / "output", "w+b") as output:
        command += [word for one in settings for word in ("--set", one)]
        if subprocess.run(command, cwd=folder, env=environ, stdout=output, stderr=output, check=False).returncode:
            raise RuntimeError((folder / "output").read_text(encoding="utf-8"))


def learned_shortage(assembly: str, policies: Path, seeds: range) -> list[int]:
    """Return the shortage of each episode with the policies of a file."""
    config = load(EXAMPLE / f"{assembly}.yaml", [], {})
    actor = Actor(environment_maker(config)(), make_manager(config, "inference"))
    models = PolicyBundle.read(policies).policies
    played = (actor.roll_out(models=models, seed=seed, test=True)[0]["local"] for seed in seeds)
    return [performance["shortage"] for performance in played]


def written_shortage(seeds: range) -> dict[str, list[int]]:
    """Return the shortage of each episode with the hand-written policies, by name."""
    from container_baselines import at_random, nothing, play, rule  # type: ignore[import-not-found,unused-ignore]
    from containers import ContainerInventory  # type: ignore[import-not-found,unused-ignore]

    env = ContainerInventory()
    policies: dict[str, Callable[[int], object]] = {
        "doing nothing": lambda _: nothing,
        "random": at_random,
        "rule": lambda _: rule,
    }
    return {name: [play(env, make(seed), seed)["shortage"] for seed in seeds] for name, make in policies.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--assemblies", nargs="+", choices=ASSEMBLIES, default=list(ASSEMBLIES))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--episodes", type=int, default=100, help="episodes that the final policies play")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    sys.path.append(str(EXAMPLE))
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.episodes)
    written = written_shortage(seeds)
    nothing, random, rule = (statistics.fmean(lost) for lost in written.values())
    print("| policy | shortage, mean and standard deviation | against doing nothing | against the rule, paired | s |")
    print("| --- | --- | --- | --- | --- |", flush=True)

    def report(name: str, lost: list[int], seconds: float | None = None) -> bool:
        """Print a row. Return True if learned policies are as good as they shall be."""
        mean = statistics.fmean(lost)
        differences = [one - other for one, other in zip(lost, written["rule"], strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        against = f"{statistics.fmean(differences):+,.0f} ± {error:,.0f}" if any(differences) else "0"
        print(
            f"| {name} | {mean:,.0f} ± {statistics.stdev(lost):,.0f} | {mean / nothing - 1:+.0%} | {against} | "
            f"{'' if seconds is None else format(seconds, '.0f')} |",
            flush=True,
        )
        return mean <= CUT * nothing and mean < random and mean <= rule

    for name, lost in written.items():
        report(name, lost)

    def run(assembly: str, seed: int) -> tuple[list[int], float]:
        """Return the shortage of each episode with the policies of a run, and the seconds of learning."""
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            learn(assembly, seed, arguments.changes, Path(folder))
            seconds = time.perf_counter() - began
            return learned_shortage(assembly, Path(folder) / "runs" / assembly / "policy.tmod", seeds), seconds

    good = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {
            f"{assembly}, seed {seed}": pool.submit(run, assembly, seed)
            for assembly in arguments.assemblies
            for seed in arguments.seeds
        }
        for name, one in runs.items():
            good.append(report(name, *one.result()))
    print(
        f"\n{sum(good)} of {len(good)} runs lose at most {CUT:.0%} of the orders that doing nothing loses, and no more "
        "than random actions and the rule"
    )
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
