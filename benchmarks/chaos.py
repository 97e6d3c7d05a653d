"""Kills roles with SIGKILL again and again while samples flow over TLS, then looks whether the memory holds them all.

    python benchmarks/chaos.py --cycles 20 --role all --seed 1

A Server, two RolloutWorkers and a Trainer run as processes. The environment numbers its observations; the learning
costs nothing. In each cycle one role is killed - at a random moment, while its files are seen to be growing (a
checkpoint, a segment of the memory), or in the middle of coming back from the kill before - and started again. In a
cycle of "handover" the trainer is killed, and a worker asked to end meanwhile, so that the Server has to keep what is
not acknowledged; often the Server is killed too.

Processes wait ready with their imports done, so that the time to flow again is that of the product and not of
`import torch`.

Each worker keeps its own account on disk of what it has made and what was acknowledged to it. In the end everybody is
asked to end in order, the memory is read, and compared with the accounts:

    lost        acknowledged to the worker, or taken over by the Server from one that ended in order, and not in the
                memory as a transition; or a hole before what is in it
    duplicated  in the memory more than once
    disordered  in the memory before an earlier one of the same worker
    wrong       with other content than the environment gave

Exit status 1 when there was any of these, or when samples did not flow again within a minute; the logs are kept then.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import chaos_parts
import numpy as np
from chaos_parts import Account, read_account

FLOW_S = 60.0
"""Samples that do not flow again within this time are stuck."""
WORKERS = 2
KINDS = ("server", "trainer", "worker", "handover")
HERE = Path(__file__).resolve().parent


class Stuck(Exception):
    """Samples do not flow, or a role has ended by itself."""


# --- the processes ----------------------------------------------------------------------------------------------------


class Role:
    """One role's process, and a spare one that waits with its imports done."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self._spare: subprocess.Popen[bytes] | None = None
        self.spare_is_ready = False

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TMRL_CORE_HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1"}
        log = (self.folder / f"{self.kind}.log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "chaos_parts.py"), self.kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
                env=environment,
            )

    def start(self, **job: Any) -> None:
        """Have the spare process be the role from now on."""
        process = self._spare or self._spawn()
        assert process.stdin is not None
        self.process = process
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        self._spare = None
        self.spare_is_ready = False

    def prepare(self) -> None:
        """Start a spare process."""
        if self._spare is None:
            self._spare = self._spawn()

    def wait_prepared(self) -> None:
        """Wait until the spare process has imported everything."""
        self.prepare()
        assert self._spare is not None
        assert self._spare.stdout is not None
        if self.spare_is_ready:
            return
        ready, _, _ = select.select([self._spare.stdout], [], [], FLOW_S)
        if not ready or os.read(self._spare.stdout.fileno(), 6) != b"ready\n":
            raise Stuck(f"a {self.kind} process cannot be started; see {self.kind}.log")
        self.spare_is_ready = True

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        _close_pipes(self.process)
        self.process = None

    def ask_to_end(self) -> Callable[[], None]:
        """SIGTERM. What is returned waits for the end in order."""
        process = self.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        self.process = None

        def wait() -> None:
            try:
                status = process.wait(FLOW_S)
            except subprocess.TimeoutExpired as exc:
                process.kill()
                raise Stuck(f"the {self.kind} does not end in order") from exc
            finally:
                _close_pipes(process)
            if status != 0:
                raise Stuck(f"the {self.kind} ended with status {status}; see {self.kind}.log")

        return wait

    def check(self) -> None:
        """See that it still runs."""
        if self.process is not None and self.process.poll() is not None:
            raise Stuck(f"the {self.kind} ended by itself, status {self.process.returncode}; see {self.kind}.log")

    def close(self) -> None:
        """End both processes at once."""
        for process in (self.process, self._spare):
            if process is not None:
                process.kill()
                process.wait()
                _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


class Pipeline:
    """All roles of the run."""

    def __init__(self, folder: Path, memory: str, rate: float) -> None:
        from tmrl_core.networking.security import credentials

        self.folder = folder
        self.rate = rate
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        credentials.create(folder / "credentials", ["localhost"])
        # A CA with bundles switches end-to-end authentication on.
        credentials.bundle(folder / "credentials", "worker", "another", folder)
        self.config_file = folder / "chaos.json"
        self.config_file.write_text(json.dumps(configuration(folder, port, memory)))
        self.run_folder = folder / "runs" / "chaos"
        self.lives = 0
        self.roles: dict[str, Role] = {"server": Role("server", folder), "trainer": Role("trainer", folder)}
        for index in range(WORKERS):
            self.roles[f"worker{index}"] = Role("worker", folder)
        self.life_of: dict[str, int] = {}

    def start(self, name: str) -> None:
        job: dict[str, Any] = {"config": str(self.config_file), "overrides": []}
        if name.startswith("worker"):
            life = self.lives
            self.lives += 1
            self.life_of[name] = life
            job["account"] = str(self.account_file(life))
            job["overrides"] = [
                f"worker.name={name}-{life}",
                f"worker.model_path={self.folder}/policy-{life}.tmod",
                f"environment.kwargs={{life: {life}, rate: {self.rate}}}",
            ]
        self.roles[name].start(**job)

    def account_file(self, life: int) -> Path:
        return self.folder / f"account-{life}"

    def account(self, life: int) -> Account:
        return read_account(self.account_file(life))

    def workers(self) -> list[str]:
        return [name for name in self.roles if name.startswith("worker")]

    def check(self) -> None:
        for role in self.roles.values():
            role.check()

    def close(self) -> None:
        for role in self.roles.values():
            role.close()

    def wait(self, condition: Callable[[], bool], what: str) -> float:
        """Wait for a condition; the seconds that it took."""
        begun = time.monotonic()
        while not condition():
            self.check()
            if time.monotonic() - begun > FLOW_S:
                raise Stuck(f"{what}: not within {FLOW_S:g} s")
            time.sleep(0.002)
        return time.monotonic() - begun

    def flow(self) -> Callable[[], bool]:
        """A condition: of each worker, something that is made from now on has been acknowledged."""
        lives = dict(self.life_of)
        made = {life: self.account(life).made for life in lives.values()}
        return lambda: all(self.account(life).acknowledged > made[life] for life in lives.values())

    def size(self) -> int:
        """Bytes of the run's files, and of the Server's spool."""
        total = 0
        for top in ("runs", "spool"):
            for root, _, files in os.walk(self.folder / top):
                for file in files:
                    with contextlib.suppress(FileNotFoundError):
                        total += os.stat(os.path.join(root, file)).st_size
        return total


def configuration(folder: Path, port: int, memory: str) -> dict[str, Any]:
    """Of all roles."""
    return {
        "run": {"name": "chaos", "folder": str(folder / "runs")},
        "environment": {"cls": "chaos_parts:NumberedEnv", "kwargs": {}},
        "actor": {"cls": "chaos_parts:NumberedActor"},
        "agent": {"cls": "chaos_parts:NumberedAgent"},
        "memory": {"capacity": 4_000_000, "batch_size": 1, **({"storage": "disk"} if memory == "disk" else {})},
        "trainer": {
            "loop": "tmrl_core.training:TrainingOffline",
            "epochs": 10**9,
            "rounds": 1,
            "steps": 20,
            "start_training": 1,
            "max_training_steps_per_env_step": 0.2,
            "update_model_interval": 5,
            "update_buffer_interval": 1,
            "sleep_between_buffer_retrieval_attempts": 0.05,
            "device": "cpu",
            "threads": 1,
        },
        "worker": {"send_every": 10, "when_full": "block", "max_env_steps_per_update": None, "drain_timeout_s": 30},
        "server": {"port": port, "spool_dir": str(folder / "spool")},
        "network": {
            "credentials_dir": str(folder / "credentials"),
            "heartbeat_s": 0.5,
            "silent_s": 3.0,
            "backoff_min_s": 0.05,
            "backoff_max_s": 0.5,
        },
        "metrics": {"console": False},
    }


# --- the kills --------------------------------------------------------------------------------------------------------


class Kill(NamedTuple):
    """One cycle."""

    role: str
    how: str
    """random, writing (files were seen to grow), recovering (before samples flowed again)."""
    flow_s: float | None
    """None: the next kill came first."""


def chosen(roles: str) -> list[str]:
    """Return the kinds that `--role` names."""
    return list(KINDS) if roles == "all" else roles.split(",")


def cycles(pipeline: Pipeline, count: int, roles: str, rng: random.Random) -> Iterator[Kill]:
    """Kill, start again, wait until samples flow; `count` times for each role."""
    kinds = chosen(roles) * count
    rng.shuffle(kinds)
    recovering = False
    for cycle, kind in enumerate(kinds):
        names = [kind] if kind in pipeline.roles else [rng.choice(pipeline.workers())]
        if kind == "handover":
            names = [names[0], "trainer", "server"]
        for name in names:
            pipeline.roles[name].wait_prepared()
        how = "recovering" if recovering else "random"
        time.sleep(rng.uniform(0.0, 0.3 if recovering else 0.6))
        if kind == "handover":
            began = _hand_over(pipeline, names[0], rng)
        else:
            if kind == "trainer" and rng.random() < 0.5 and _until_it_grows(pipeline, rng):
                how = "writing"
            pipeline.roles[names[0]].kill()
            began = time.monotonic()
            pipeline.start(names[0])
        condition = pipeline.flow()
        recovering = cycle < len(kinds) - 1 and rng.random() < 0.2
        if recovering:
            yield Kill(kind, how, None)
            continue
        pipeline.wait(condition, f"flow after kill {cycle + 1} ({kind}, {how})")
        yield Kill(kind, how, time.monotonic() - began)


def _hand_over(pipeline: Pipeline, worker: str, rng: random.Random) -> float:
    """A worker ends in order while there is no trainer, so that the Server has to keep its samples; and is killed."""
    pipeline.roles["trainer"].kill()
    time.sleep(rng.uniform(0.0, 0.2))
    ending = pipeline.roles[worker].ask_to_end()
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.0, 0.3))
        pipeline.roles["server"].kill()
        pipeline.start("server")
    ending()
    if pipeline.roles["server"].spare_is_ready and rng.random() < 0.5:
        pipeline.roles["server"].kill()
        pipeline.start("server")
    pipeline.start(worker)
    pipeline.start("trainer")
    return time.monotonic()


def _until_it_grows(pipeline: Pipeline, rng: random.Random) -> bool:
    """Wait until a file of the run changes its size, and a moment more; False: none does within a second."""
    size = pipeline.size()
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        if pipeline.size() != size:
            time.sleep(rng.choice([0.0, 0.0005, 0.002, 0.005]))
            return True
    return False


# --- the reckoning ----------------------------------------------------------------------------------------------------


class Reckoning(NamedTuple):
    """Samples of all lives together; those of resets are not in the memory by themselves and not counted."""

    made: int
    acknowledged: int
    found: int
    lost: int
    duplicated: int
    disordered: int
    wrong: int
    backwards: int
    """How often a worker's policy went back to an earlier version."""

    @property
    def good(self) -> bool:
        return not any(self[3:])


def reckon(transitions: list[tuple[Any, Any]], accounts: list[Account]) -> Reckoning:
    """Compare the memory with the workers' accounts.

    Args:
        transitions: (observation before, observation) as they are in the memory, in its order.
        accounts: of each life, by its number.
    """
    found: dict[int, list[int]] = {}
    wrong = 0
    for previous, seen in transitions:
        life, number = int(seen[0]), int(seen[1])
        found.setdefault(life, []).append(number)
        wrong += not (
            life < len(accounts)
            and np.array_equal(seen, chaos_parts.observation(life, number))
            and np.array_equal(previous, chaos_parts.observation(life, number - 1))
        )
    made = acknowledged = lost = duplicated = disordered = backwards = 0
    for life, account in enumerate(accounts):
        numbers = found.get(life, [])
        times = Counter(numbers)
        upto = max(account.acknowledged, max(numbers, default=-1) + 1)
        made += _steps(max(account.made, upto))
        acknowledged += _steps(account.acknowledged)
        lost += sum(1 for number in range(upto) if not chaos_parts.is_reset(number) and number not in times)
        duplicated += sum(count - 1 for count in times.values())
        disordered += sum(later < earlier for earlier, later in itertools.pairwise(numbers))
        backwards += account.backwards
    return Reckoning(made, acknowledged, len(transitions), lost, duplicated, disordered, wrong, backwards)


def _steps(observations: int) -> int:
    """How many of the first so many observations end a transition."""
    return observations - -(-observations // (chaos_parts.EPISODE + 1))


def read_memory(pipeline: Pipeline) -> list[tuple[Any, Any]]:
    """(observation before, observation) of all transitions in the trainer's memory, in their order."""
    from tmrl_core.config import load
    from tmrl_core.roles.training_object import training_from_config
    from tmrl_core.training.checkpoints.checkpoint_store import CheckpointStore

    config = load(pipeline.config_file)
    assert config.checkpoint_path is not None
    training = CheckpointStore(config.checkpoint_path).restore(training_from_config(config))
    assert training is not None, "the trainer left no checkpoint"
    memory = training.memory
    return [(item[0], item[3]) for item in map(memory.get_transition, range(len(memory)))]


# --- the run ----------------------------------------------------------------------------------------------------------


def run(pipeline: Pipeline, options: argparse.Namespace, seed: int) -> tuple[list[Kill], Reckoning]:
    """All of it."""
    for name in pipeline.roles:
        pipeline.start(name)
    pipeline.wait(pipeline.flow(), "the first samples")
    for role in pipeline.roles.values():
        if {"handover", role.kind} & {*chosen(options.role)}:
            role.prepare()
    kills = []
    begun = time.monotonic()
    for number, kill in enumerate(cycles(pipeline, options.cycles, options.role, random.Random(seed)), 1):
        kills.append(kill)
        if number % 50 == 0:
            print(f"{number} cycles, {time.monotonic() - begun:.0f} s", flush=True)
    pipeline.wait(pipeline.flow(), "the last samples")
    for name in (*pipeline.workers(), "trainer", "server"):
        pipeline.roles[name].ask_to_end()()
    return kills, reckon(read_memory(pipeline), [pipeline.account(life) for life in range(pipeline.lives)])


def table(kills: list[Kill], reckoning: Reckoning) -> str:
    lines = ["role      cycles   random  writing  recovering   seconds to flow again: median   worst"]
    for role in KINDS:
        some = [kill for kill in kills if kill.role == role]
        if not some:
            continue
        how = Counter(kill.how for kill in some)
        times = [kill.flow_s for kill in some if kill.flow_s is not None]
        flow = f"{statistics.median(times):36.2f}{max(times):8.2f}" if times else f"{'-':>36}{'-':>8}"
        lines.append(
            f"{role:<10}{len(some):6}{how['random']:9}{how['writing']:9}{how['recovering']:12}{flow}",
        )
    lines.append("")
    lines += [f"{name:<12} {value:9,}" for name, value in zip(Reckoning._fields, reckoning, strict=True)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=20, help="how often each role is killed")
    parser.add_argument("--role", default="all", help=f"who is killed, in any order: all, or some of {','.join(KINDS)}")
    parser.add_argument("--seed", type=int, help="of the choices and moments (default: a random one, printed)")
    parser.add_argument("--memory", choices=["disk", "ram"], default="disk", help="the trainer's")
    parser.add_argument("--rate", type=float, default=200.0, help="steps a second of each worker")
    parser.add_argument("--logs", type=Path, help="folder for logs and files; default: a temporary one")
    options = parser.parse_args()
    if unknown := {*chosen(options.role)}.difference(KINDS):
        parser.error(f"--role: unknown {', '.join(sorted(unknown))}; allowed: all, or some of {','.join(KINDS)}")
    if options.memory == "ram" and not {*chosen(options.role)} <= {"server", "worker"}:
        parser.error("a memory in RAM goes with its trainer: --memory disk, or --role server or worker")
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    folder = (options.logs or Path(tempfile.mkdtemp(prefix="tmrl_chaos_"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"chaos: {options.cycles} cycles each, role {options.role}, memory {options.memory}, seed {seed}", flush=True)
    begun = time.monotonic()
    good = False
    pipeline = Pipeline(folder, options.memory, options.rate)
    try:
        kills, reckoning = run(pipeline, options, seed)
        print(table(kills, reckoning))
        good = reckoning.good
    except Stuck as exc:
        print(f"stuck: {exc}")
    finally:
        pipeline.close()
    print(f"{'good' if good else 'NOT GOOD'}; {time.monotonic() - begun:.0f} s; seed {seed}")
    if good and options.logs is None:
        shutil.rmtree(folder)
    else:
        print(f"logs in {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
