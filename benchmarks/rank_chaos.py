"""Kills Servers, ranks and workers of one run with SIGKILL, then looks whether the ranks' memories hold every sample.

    python benchmarks/rank_chaos.py --kills 300 --seed 1

Two Servers, two ranks under torchrun and four workers run as processes over TLS, with memories on disk and SAC. Each
kill takes one process, or two at once, at a random moment; one in five comes before the run has recovered from the kill
before. Servers and workers are started again here, ranks by torchrun. Nothing is prepared: the time to flow again
includes starting Python and its imports.

*Flowing again*: from each worker, a sample made after the kill was acknowledged, and a policy made after the kill has
arrived, so both ranks have stored, trained and published.

Each worker keeps its own account of what it has made and what was acknowledged (chaos_parts.py). In the end, both
memories are read and compared with the accounts, as in chaos.py: lost, duplicated, disordered, wrong. The SHA-256 of
the networks must be equal on the ranks. Exit status 1 otherwise; the logs are kept then. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import chaos
from chaos import HERE, Role, Stuck
from chaos_parts import Account, read_account

from tmrl_core.config.endpoints import Endpoint
from tmrl_core.local.supervision import spread_name

SIZE = 2
WORKERS = 4
SCALE = 2.0**-14
"""Of observations, so that SAC learns from numbers near 1. A power of 2: they stay exact."""


def configuration(folder: Path, endpoints: list[Endpoint]) -> dict[str, Any]:
    """Of all roles."""
    common = chaos.configuration(folder, endpoints[0].port, "disk")
    trainer = common["trainer"] | {
        "steps": 40, "start_training": 100, "max_training_steps_per_env_step": 0.2, "update_model_interval": 10,
        "evaluation": {"every_updates": 0},
    }  # fmt: skip
    return common | {
        "run": {"name": "chaos", "folder": str(folder / "runs"), "seed": 1},
        "actor": {"kwargs": {"hidden_sizes": [8, 8]}},
        "agent": {"cls": "tmrl_core.training:SacAgent"},
        "memory": common["memory"] | {"batch_size": 16},
        "trainer": trainer,
        "server": {"endpoints": list(map(str, endpoints))},
        "worker": common["worker"] | {"when_full": "auto"},
    }


class Ranks:
    """Both ranks, under torchrun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, config_file: Path) -> None:
        """Start torchrun."""
        environment = os.environ | {"TMRL_CORE_HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent)])
        options = ["--nproc-per-node", str(SIZE), "--max-restarts", "100000", "--master-port", str(free_port())]
        command = [sys.executable, "-m", "torch.distributed.run", *options]
        with (self.folder / "ranks.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "-m", "tmrl_core", "--trainer", "-c", str(config_file)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=environment,
            )  # fmt: skip

    def pids(self) -> dict[int, int]:
        """Process of each rank that runs."""
        assert self.process is not None
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                try:
                    variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                found.update({int(one[5:]): int(child) for one in variables if one.startswith(b"RANK=")})
        return found

    def check(self) -> None:
        """See that torchrun still runs."""
        if self.process is not None and self.process.poll() is not None:
            raise Stuck(f"torchrun ended by itself, status {self.process.returncode}; see ranks.log")

    def end(self) -> None:
        """Ask one rank to end; all do."""
        assert self.process is not None
        os.kill(self.pids()[1], signal.SIGTERM)
        try:
            status = self.process.wait(chaos.FLOW_S)
        except subprocess.TimeoutExpired as exc:
            raise Stuck("the ranks do not end in order") from exc
        self.process = None
        if status:
            raise Stuck(f"torchrun ended with status {status}; see ranks.log")

    def close(self) -> None:
        """End all processes at once."""
        if self.process is not None:
            for pid in [*self.pids().values(), self.process.pid]:
                os.kill(pid, signal.SIGKILL)
            self.process.wait()


class Run:
    """All processes of the run."""

    def __init__(self, folder: Path, rate: float, limit_s: float) -> None:
        from tmrl_core.networking.security import credentials

        self.folder, self.rate, self.limit_s = folder, rate, limit_s
        self.endpoints = [Endpoint("127.0.0.1", free_port()) for _ in range(SIZE)]
        credentials.create(folder / "credentials", ["localhost", "127.0.0.1"])
        credentials.bundle(folder / "credentials", "worker", "another", folder)  # end-to-end authentication
        self.config_file = folder / "chaos.json"
        self.config_file.write_text(json.dumps(configuration(folder, self.endpoints)))
        self.ranks = Ranks(folder)
        self.roles = {f"server{index}": Role("server", folder) for index in range(SIZE)}
        self.roles |= {f"worker{index}": Role("worker", folder) for index in range(WORKERS)}
        self.lives = 0
        self.life_of: dict[str, int] = {}

    def start(self, name: str) -> None:
        """Start a Server or a worker. Each life of a worker is a stream of its own."""
        job: dict[str, Any] = {"config": str(self.config_file), "overrides": []}
        index = int(name[-1])
        if name.startswith("server"):
            job["overrides"] = [
                "server.endpoints=[]", f"server.port={self.endpoints[index].port}",
                f"server.spool_dir={self.folder}/spool/{index}",
            ]  # fmt: skip
        else:
            life = self.life_of[name] = self.lives
            self.lives += 1
            job["account"] = str(self.account_file(life))
            job["overrides"] = [
                f"worker.name={spread_name(f'w{life}', index, self.endpoints)}",
                f"worker.model_path={self.folder}/policy-{life}.tmod",
                f"environment.kwargs={{life: {life}, rate: {self.rate}, scale: {SCALE}}}",
            ]
        self.roles[name].start(**job)

    def account_file(self, life: int) -> Path:
        """File of a worker's account."""
        return self.folder / f"account-{life}"

    def account(self, life: int) -> Account:
        """Account of a worker."""
        return read_account(self.account_file(life))

    def check(self) -> None:
        """See that all processes run."""
        self.ranks.check()
        for role in self.roles.values():
            role.check()

    def wait_flow(self, what: str) -> float:
        """Wait until samples and policies made from now on have arrived; return the seconds."""
        begun = time.monotonic()
        lives = list(self.life_of.values())
        before = {life: self.account(life) for life in lives}
        # The newest policy anywhere: another rank may have published it already when a worker has an older one.
        newest = max((one.incarnation, one.counter) for one in before.values())
        while True:
            now = {life: self.account(life) for life in lives}
            waits = [
                f"life {life}: {one}"
                for life, one in now.items()
                if one.acknowledged <= before[life].made or (one.incarnation, one.counter) <= newest
            ]
            if not waits:
                return time.monotonic() - begun
            self.check()
            if time.monotonic() - begun > self.limit_s:
                raise Stuck(f"{what}: not within {self.limit_s:g} s: {'; '.join(waits)}")
            time.sleep(0.01)

    def close(self) -> None:
        """End all processes at once."""
        self.ranks.close()
        for role in self.roles.values():
            role.close()


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port


class Kill(NamedTuple):
    """One kill, of one process or two."""

    victims: tuple[str, ...]
    flow_s: float | None
    """None: the next kill came first."""

    @property
    def kind(self) -> str:
        """Kinds of the processes."""
        return " + ".join(sorted(name[:-1] for name in self.victims))


def kills(run: Run, count: int, rng: random.Random) -> Iterator[Kill]:
    """Kill until so many processes are dead; start them again, and wait until samples flow."""
    left = count
    while left:
        both = left > 1 and rng.random() < 0.15
        kinds = [rng.choice(["server", "rank", "worker"]) for _ in range(1 + both)]
        victims: list[str] = []
        for kind in kinds:
            names = [f"{kind}{index}" for index in range(WORKERS if kind == "worker" else SIZE)]
            victims.append(rng.choice([name for name in names if name not in victims]))
        time.sleep(rng.uniform(0.0, 2.0))
        pids = run.ranks.pids()
        for name in victims:
            if not name.startswith("rank"):
                run.roles[name].kill()
            elif int(name[-1]) in pids:
                os.kill(pids[int(name[-1])], signal.SIGKILL)
        killed_at = time.monotonic()
        for name in victims:
            if not name.startswith("rank"):
                run.start(name)
        left -= len(victims)
        if left and rng.random() < 0.2:
            yield Kill((*victims,), None)
            continue
        run.wait_flow(f"flow after the kill of {' and '.join(victims)}, {left} left")
        yield Kill((*victims,), time.monotonic() - killed_at)


class Found(NamedTuple):
    """Answer of a run."""

    kills: list[Kill]
    reckoning: chaos.Reckoning
    digests: list[str]

    @property
    def good(self) -> bool:
        """True: every promise was kept."""
        return self.reckoning.good and len(set(self.digests)) == 1


def read_ranks(config_file: Path) -> tuple[list[tuple[Any, Any]], list[str]]:
    """Transitions (observation before, observation) in the memories of all ranks, and a checksum of each's networks."""
    from tmrl_core.config import load
    from tmrl_core.ranks.place import Place
    from tmrl_core.ranks.shares import share_of
    from tmrl_core.ranks.trainer import digest_of
    from tmrl_core.roles.training_object import training_from_config
    from tmrl_core.training.checkpoints.checkpoint_store import CheckpointStore

    transitions, digests = [], []
    for rank in range(SIZE):
        config = share_of(load(config_file), Place(rank, SIZE, "", 0))
        assert config.checkpoint_path is not None
        training = CheckpointStore(config.checkpoint_path).restore(training_from_config(config))
        assert training is not None, f"rank {rank} left no checkpoint"
        items = map(training.memory.get_transition, range(len(training.memory)))
        transitions += [(item[0] / SCALE, item[3] / SCALE) for item in items]
        digests.append(digest_of(training.agent).hex())
    return transitions, digests


def kill_and_reckon(run: Run, count: int, seed: int) -> Found:
    """Run, kill, end in order, and compare."""
    for name in run.roles:
        if name.startswith("server"):
            run.start(name)
    run.ranks.start(run.config_file)
    for name in run.roles:
        if name.startswith("worker"):
            run.start(name)
    print(f"flowing after {run.wait_flow('the first samples'):.1f} s", flush=True)
    done = []
    begun = time.monotonic()
    for kill in kills(run, count, random.Random(seed)):
        done.append(kill)
        took = "-" if kill.flow_s is None else f"{kill.flow_s:.1f}"
        dead = sum(len(one.victims) for one in done)
        load = f"load {os.getloadavg()[0]:.0f}"
        at = f"{time.monotonic() - begun:.0f} s"
        print(f"{dead} of {count}: {' '.join(kill.victims)}: {took} s ({load}, {at})", flush=True)
    run.wait_flow("the last samples")
    waits = [role.ask_to_end() for name, role in run.roles.items() if name.startswith("worker")]
    for wait in waits:
        wait()
    run.ranks.end()
    for name, role in run.roles.items():
        if name.startswith("server"):
            role.ask_to_end()()
    transitions, digests = read_ranks(run.config_file)
    return Found(done, chaos.reckon(transitions, [run.account(life) for life in range(run.lives)]), digests)


def table(found: Found) -> str:
    """Text of the answer."""
    lines = ["killed              kills   recovering   seconds to flow again: median   95 %   worst"]
    for kind, number in sorted(Counter(kill.kind for kill in found.kills).items()):
        times = sorted(kill.flow_s for kill in found.kills if kill.kind == kind and kill.flow_s is not None)
        row = f"{kind:<18}{number:7}{number - len(times):13}"
        if times:
            late = times[min(len(times) - 1, int(0.95 * len(times)))]
            row += f"{statistics.median(times):32.1f}{late:7.1f}{times[-1]:8.1f}"
        lines.append(row)
    lines.append("")
    lines += [f"{name:<12} {value:9,}" for name, value in zip(chaos.Reckoning._fields, found.reckoning, strict=True)]
    lines += [f"rank {rank}: SHA-256 {digest}" for rank, digest in enumerate(found.digests)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="number of processes that are killed")
    parser.add_argument("--seed", type=int, help="of the choices and moments (default: a random one, printed)")
    parser.add_argument("--rate", type=float, default=25.0, help="steps a second of each worker")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds after which a run that does not flow is stuck"
    )
    parser.add_argument("--logs", type=Path, help="folder for logs and files; default: a temporary one")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    folder = (options.logs or Path(tempfile.mkdtemp(prefix="tmrl_rank_chaos_"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"rank_chaos: {options.kills} kills, seed {seed}", flush=True)
    begun, good = time.monotonic(), False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends all processes
    chaos.FLOW_S = options.limit
    run = Run(folder, options.rate, options.limit)
    try:
        found = kill_and_reckon(run, options.kills, seed)
        print(table(found))
        good = found.good
    except Stuck as exc:
        print(f"stuck: {exc}")
    finally:
        run.close()
    print(f"{'good' if good else 'NOT GOOD'}; {time.monotonic() - begun:.0f} s; seed {seed}")
    if good and options.logs is None:
        shutil.rmtree(folder)
    else:
        print(f"logs in {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
