"""Kills the workers of a fleet under Ray or Slurm, or lets many run, and counts the samples in the memory at the end.

    pip install ray                                                     # in an environment of its own, with tmrl_core
    python benchmarks/fleet_kills.py ray --python VENV/bin/python --workers 8 --kills 30
    scripts/slurm/one_node.sh start /tmp/slurm                          # as root
    SLURM_CONF=/tmp/slurm/slurm.conf python benchmarks/fleet_kills.py slurm --workers 4 --kills 4
    python benchmarks/fleet_kills.py plain --workers 200 --kills 0 --minutes 60 --rate 4

Server and trainer (memory on disk) are processes of this script; the workers are those of
scripts/fleets/ray_workers.py or scripts/slurm/workers.sbatch. With Ray, a kill is SIGKILL, in turn for a worker and for
the actor that supervises one, both chosen at random. With Slurm, a job of higher priority takes all cores, so that
every task is preempted and requeued at once. `plain` is processes of this script, which are not killed: during
`--minutes` the memory and the processor time of Server and trainer are printed, with the network's default times.
`again` is the time until each worker that was hit has made a second of
samples in a new process, and each other one goes on.

At the end, all workers are asked to end in order, and the memory is compared with what their environments noted:

    lost        made in a life that ended in order and not in the memory; of a killed life, a hole before what is in it
    duplicated  in the memory more than once
    unsent      made in a life that was killed, and not sent yet: allowed, and counted

Exit status 1 when anything is lost, duplicated, disordered or wrong, or when a kill takes longer than `--limit`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import chaos
import psutil
from chaos_parts import Account
from fleet_parts import Life, read_lives

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 180.0
"""A fleet that does not work again within this time, and two seconds for each worker, is stuck."""


class Fleet:
    """Workers that a scheduler keeps.

    Args:
        options: of the command line.
        folder: for logs and accounts.
        config: configuration file of the run.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, config: Path) -> None:
        self.options = options
        self.folder = folder
        self.names: list[str] = []
        self.words = [
            "-c",
            str(config),
            "--set",
            "environment.cls=fleet_parts:CountedEnv",
            "--set",
            f"environment.kwargs={{folder: {folder}, rate: {options.rate}}}",
            "--set",
            f"worker.spool_dir={folder / 'waiting'}",
            "--set",
            "worker.when_full=drop_oldest",
        ]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")]),
            "TMRL_CORE_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
            # Ray runs actors with niceness 15, so that whatever else this machine does would be measured.
            "RAY_worker_niceness": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }

    def start(self) -> None:
        """Submit the workers."""
        raise NotImplementedError

    def kill(self, number: int, rng: random.Random) -> str:
        """Kill; the kind of kill."""
        raise NotImplementedError

    def end(self) -> None:
        """Ask all workers to end in order, and wait."""
        raise NotImplementedError

    def close(self) -> None:
        """End what is left, at once."""

    def lives(self) -> dict[str, Life]:
        """The latest life of each worker."""
        return {life.name: life for life in read_lives(self.folder) if life.name in self.names}


class Ray(Fleet):
    """A driver with a cluster of its own on this machine."""

    driver: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        count = self.options.workers
        self.names = [f"ray-{number}" for number in range(1, count + 1)]
        # The cores that Ray believes in: workers of this environment sleep most of the time.
        ray = str(Path(self.options.python).parent / "ray")
        log = (self.folder / "ray.log").open("wb")
        with log:
            subprocess.run(
                [ray, "start", "--head", "--num-cpus", str(count), "--include-dashboard=false", "--port=26379"],
                check=True,
                stdout=log,
                stderr=log,
                env=self.environment,
            )
            script = str(ROOT / "scripts" / "fleets" / "ray_workers.py")
            self.driver = subprocess.Popen(
                [self.options.python, script, "--workers", str(count), *self.words],
                stdout=log,
                stderr=log,
                env={**self.environment, "RAY_ADDRESS": "127.0.0.1:26379"},
                start_new_session=True,
            )

    def kill(self, number: int, rng: random.Random) -> str:
        life = self.lives()[rng.choice(self.names)]
        if number % 2:
            os.kill(life.pid, signal.SIGKILL)
            return f"worker {life.name}"
        status = Path(f"/proc/{life.pid}/stat").read_text()
        os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
        return f"actor of {life.name}"

    def end(self) -> None:
        assert self.driver is not None
        self.driver.send_signal(signal.SIGTERM)
        status = self.driver.wait(90)
        if status:
            raise chaos.Stuck(f"the driver ended with status {status}")

    def close(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait()
        subprocess.run([str(Path(self.options.python).parent / "ray"), "stop", "--force"], capture_output=True)


class Slurm(Fleet):
    """An array of the cluster of `SLURM_CONF`."""

    job = ""

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.folder)
        if done.returncode:
            raise chaos.Stuck(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def start(self) -> None:
        count = self.options.workers
        self.names = [f"worker-{number}" for number in range(count)]
        # The script takes one file; what else it needs is in the variables of the configuration.
        cores = int(self._run("sinfo", "--noheader", "--format", "%c").split()[0])
        script = (ROOT / "scripts" / "slurm" / "workers.sbatch").read_text()
        words = " ".join(f"'{word}'" for word in self.words[2:])
        script = script.replace('-c "${CONFIG:-my.yaml}"', f'-c "${{CONFIG:-my.yaml}}" {words}')
        (self.folder / "workers.sbatch").write_text(script)
        self.environment["CONFIG"] = self.words[1]
        self.environment["PATH"] = f"{Path(self.options.python).parent}{os.pathsep}{os.environ['PATH']}"
        self.job = self._run("sbatch", "--parsable", f"--array=0-{count - 1}", "workers.sbatch")
        (self.folder / "urgent.sbatch").write_text(
            f"#!/bin/bash\n#SBATCH --partition=high --cpus-per-task={cores} --time=1\nsleep 1\n"
        )

    def kill(self, number: int, rng: random.Random) -> str:
        self._run("sbatch", "--wait", "urgent.sbatch")
        return "all preempted"

    def end(self) -> None:
        self._run("scancel", "--signal=TERM", "--full", self.job)
        deadline = time.monotonic() + 60
        while self._run("squeue", "--noheader", "--job", self.job, "--state=running"):
            if time.monotonic() > deadline:
                raise chaos.Stuck("the tasks do not end")
            time.sleep(0.5)

    def close(self) -> None:
        if self.job:
            subprocess.run(["scancel", self.job], capture_output=True)


class Plain(Fleet):
    """Processes of this script, with one bundle."""

    processes: list[subprocess.Popen[bytes]]

    def __init__(self, options: argparse.Namespace, folder: Path, config: Path) -> None:
        super().__init__(options, folder, config)
        self.processes = []
        described = json.loads(config.read_text())
        described["network"] = {"credentials_dir": described["network"]["credentials_dir"]}
        # A policy every 10 s.
        updates_per_s = options.workers * options.rate * described["trainer"]["max_training_steps_per_env_step"]
        described["trainer"]["update_model_interval"] = max(1, round(10 * updates_per_s))
        config.write_text(json.dumps(described))

    def start(self) -> None:
        self.names = [f"worker-{number}" for number in range(self.options.workers)]
        for name in self.names:
            words = [
                *self.words,
                "--set",
                f"worker.name={name}",
                "--set",
                f"worker.model_path={self.folder}/{name}.tmod",
            ]
            with (self.folder / f"{name}.log").open("wb") as log:
                command = [self.options.python, "-m", "tmrl_core", "--worker", *words]
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))

    def kill(self, number: int, rng: random.Random) -> str:
        raise chaos.Stuck("plain workers are nobody's to start again: --kills 0")

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for name, process in zip(self.names, self.processes, strict=True):
            if status := process.wait(chaos.FLOW_S):
                raise chaos.Stuck(f"{name} ended with status {status}")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def stand(fleet: Fleet, pipeline: chaos.Pipeline, minutes: float) -> None:
    """Let all work, and print what Server and trainer take, each minute."""
    began = time.monotonic()
    used: dict[str, float] = {}
    print(
        "| minute | steps | Server: own MB | % of a core | trainer: own MB | % of a core |",
        "| --- " * 6 + "|",
        sep="\n",
    )
    while (passed := time.monotonic() - began) < 60 * minutes + 1:
        pipeline.check()
        cells = []
        for name in ("server", "trainer"):
            process = pipeline.roles[name].process
            assert process is not None
            seen = psutil.Process(process.pid)
            seconds = sum(seen.cpu_times()[:2])
            cells += [f"{seen.memory_full_info().uss / 1e6:.1f}", f"{(seconds - used.get(name, seconds)) / 0.6:.1f}"]
            used[name] = seconds
        steps = sum(life.made for life in read_lives(fleet.folder))
        print(f"| {passed / 60:.0f} | {steps:,} | {' | '.join(cells)} |", flush=True)
        time.sleep(60.0 - (time.monotonic() - began) % 60.0)


def again(fleet: Fleet, before: dict[str, Life], hit: Sequence[str]) -> float:
    """Wait until all workers make samples, those that were hit in a new life; the seconds."""
    began = time.monotonic()
    made = {name: life.made for name, life in before.items()}

    def flows(name: str) -> bool:
        life = now.get(name)
        if life is None:
            return False
        if name in hit or name not in before:
            # Ten samples are a message.
            return life.number != (before[name].number if name in before else -1) and life.made > 20
        return life.number != before[name].number or life.made > made[name]

    limit_s = LIMIT_S + 2 * len(fleet.names)
    while time.monotonic() - began < limit_s:
        now = fleet.lives()
        if all(map(flows, fleet.names)):
            return time.monotonic() - began
        time.sleep(0.02)
    missing = [name for name in fleet.names if not flows(name)]
    raise chaos.Stuck(f"not within {limit_s:g} s: {', '.join(missing)}")


def kill_and_wait(fleet: Fleet, count: int, rng: random.Random) -> list[float]:
    """The seconds after each kill."""
    took = []
    for number in range(count):
        time.sleep(rng.uniform(0.0, 3.0))
        before = fleet.lives()
        began = time.monotonic()
        kind = fleet.kill(number, rng)
        hit = fleet.names if kind.startswith("all") else [kind.split()[-1]]
        again(fleet, before, hit)
        took.append(time.monotonic() - began)
        print(f"kill {number + 1}: {kind}, again after {took[-1]:.1f} s", flush=True)
    return took


def run(fleet: Fleet, pipeline: chaos.Pipeline, options: argparse.Namespace) -> bool:
    """All of it; True: every figure is good."""
    pipeline.start("server")
    pipeline.start("trainer")
    fleet.start()
    print(f"{len(fleet.names)} workers after {again(fleet, {}, fleet.names):.1f} s", flush=True)
    took = kill_and_wait(fleet, options.kills, random.Random(options.seed)) or [0.0]
    stand(fleet, pipeline, options.minutes)
    time.sleep(1.0)
    pipeline.check()
    fleet.end()
    for name in ("trainer", "server"):
        pipeline.roles[name].ask_to_end()()
    lives = read_lives(fleet.folder)
    accounts = [Account(life.made, life.made if life.ended else 0) for life in lives]
    transitions = chaos.read_memory(pipeline)
    reckoning = chaos.reckon(transitions, accounts)
    unsent = reckoning.made - reckoning.found - reckoning.lost
    print(f"again: median {statistics.median(took):.1f} s, worst {max(took):.1f} s (limit {options.limit:g} s)")
    print(f"lives {len(lives)}, ended in order {sum(life.ended for life in lives)}, unsent of killed ones {unsent}")
    print(", ".join(f"{name} {value:,}" for name, value in zip(reckoning._fields, reckoning, strict=True)))
    return reckoning.good and max(took) <= options.limit


FLEETS: dict[str, Callable[[argparse.Namespace, Path, Path], Fleet]] = {"ray": Ray, "slurm": Slurm, "plain": Plain}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fleet", choices=list(FLEETS))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rate", type=float, default=20.0, help="steps a second of each worker (default: 20)")
    parser.add_argument("--minutes", type=float, default=0.0, help="let all work for so long, after the kills")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds after a kill (default: 10)")
    parser.add_argument("--python", default=sys.executable, help="of the workers (default: this one)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tmrl_fleet_")).resolve()
    pipeline = chaos.Pipeline(folder, "disk", options.rate)
    fleet = FLEETS[options.fleet](options, folder, pipeline.config_file)
    good = False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        good = run(fleet, pipeline, options)
    except chaos.Stuck as exc:
        print(f"stuck: {exc}")
    finally:
        with contextlib.suppress(OSError):
            fleet.close()
        pipeline.close()
    print("good" if good else f"NOT GOOD; logs in {folder}")
    if good:
        shutil.rmtree(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
