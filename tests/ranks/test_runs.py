"""Ranks as processes with a Server each, over TLS: equal networks, kills, resumes, and a rank that stands still."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import ROOT, Start, announced, records, starting
from tests.waiting import until
from tmrl_core.config.endpoints import Endpoint
from tmrl_core.local.supervision import spread_name
from tmrl_core.training.checkpoints.checked_files import read_file
from tmrl_core.training.checkpoints.checkpoint_store import CheckpointStore
from tmrl_core.training.checkpoints.manifest import read_manifest
from tmrl_core.training.checkpoints.parts import parts_of, updates_in

pytestmark = pytest.mark.timeout(900)  # for busy machines

SAC = """
run: {name: small, seed: 5}
environment: {kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [8, 8]}}
worker: {send_every: 20, drain_timeout_s: 3, max_env_steps_per_update: 8}
memory: {batch_size: 16, capacity: 20000}
agent: {cls: "tmrl_core.training:SacAgent"}
trainer:
  epochs: 2
  rounds: 4
  steps: 50
  update_model_interval: 25
  update_buffer_interval: 25
  start_training: 100
  device: cpu
  evaluation: {episodes: 1, every_updates: 200}
"""
PPO = """
run: {name: small, seed: 5}
environment: {kwargs: {id: CartPole-v1, to_float32: true}}
actor: {cls: "tmrl_core.actor:CategoricalMLPActor", kwargs: {hidden_sizes: [8], normalize_observations: true}}
worker: {collection: lockstep, drain_timeout_s: 3}
agent:
  cls: tmrl_core.training:PPOAgent
  kwargs: {update_epochs: 2, minibatch_size: 64}
trainer:
  loop: tmrl_core.training:TrainingLockstep
  epochs: 2
  rounds: 16
  device: cpu
  lockstep: {steps_per_round: 256, grace_s: 10}
  evaluation: {episodes: 1, every_updates: 0}
"""
FLASHSAC = (
    SAC.replace("epochs: 2", "epochs: 1")
    .replace(
        "actor: {kwargs: {hidden_sizes: [8, 8]}}",
        'actor: {cls: "tmrl_core.actor:SquashedGaussianResidualActor", kwargs: {width: 8, blocks: 1}}',
    )
    .replace('"tmrl_core.training:SacAgent"', '"tmrl_core.training:FlashSACAgent", kwargs: {critic_width: 8, bins: 11}')
)


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    with starting(tmp_path, request.param) as call:
        yield call


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


class Fleet:
    """Two Servers with workers, and ranks that are started as a launcher would."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.ports: list[int] = []
        self.servers = 2
        # As many names as it takes for two workers of each Server; they differ, because the ports do.
        self.workers = [start("--worker", *self.at, "--set", f"worker.name=w{number}") for number in range(6)]

    @property
    def servers(self) -> int:
        """Number of Servers that are listed. A number that grows starts more."""
        return self._servers

    @servers.setter
    def servers(self, number: int) -> None:
        self._servers = number
        while len(self.ports) < number:
            self.ports.append(announced(self._start("--server", "--announce", "--set", "server.port=0")))

    @property
    def at(self) -> tuple[str, str]:
        listed = ", ".join(f'"127.0.0.1:{port}"' for port in self.ports[: self.servers])
        return "--set", f"server.endpoints=[{listed}]"

    def work(self, *names: str) -> None:
        """Start more workers."""
        for name in names:
            self.workers.append(self._start("--worker", *self.at, "--set", f"worker.name={name}"))

    def ranks(self, *more: str, size: int = 2) -> list[subprocess.Popen[str]]:
        """Start all ranks."""
        place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        place["OMP_NUM_THREADS"] = "1"
        return [self._start("--trainer", *self.at, *more, **place, RANK=str(rank)) for rank in range(size)]


def ended(processes: list[subprocess.Popen[str]], limit_s: float = 300) -> list[tuple[int, str]]:
    return [(process.wait(limit_s), process.stdout.read() if process.stdout else "") for process in processes]


def states(folder: Path, size: int = 2) -> list[tuple[int | None, bytes]]:
    """Updates and agent's numbers of the latest checkpoint of each rank."""
    found = []
    for rank in range(size):
        root = folder / "runs" / "small" / "checkpoint" / f"rank-{rank}"
        latest = root / str(max(CheckpointStore(root).counters()))
        manifest = read_manifest(latest)
        found.append((manifest.updates, bytes(read_file(latest / "state.json", manifest.files["state.json"]))))
    return found


@pytest.mark.full
@pytest.mark.parametrize("start", [SAC, FLASHSAC, PPO], indirect=True, ids=["sac", "flashsac", "ppo"])
def test_ranks_train_together_and_rank_0_writes_the_records(start: Start, tmp_path: Path) -> None:
    fleet = Fleet(start)
    for status, out in ended(fleet.ranks()):
        assert status == 0, out
        assert "is not used" not in out  # an incarnation, although both ranks have one credentials folder
    rows = records(tmp_path, "round")
    assert len(rows) in (4, 8, 32)
    last = rows[-1].values
    assert last["train/n_updates"] == states(tmp_path)[0][0] == states(tmp_path)[1][0]
    assert max(record.values["worker/count"] or 0 for record in records(tmp_path, "network")) == 6
    assert len({worker.wait(30) for worker in fleet.workers}) == 1
    assert parts_of(tmp_path / "runs" / "small" / "checkpoint") == 2


@pytest.mark.full
@pytest.mark.parametrize("start", [SAC], indirect=True)
def test_a_killed_rank_ends_the_others_and_all_resume_from_one_update(start: Start, tmp_path: Path) -> None:
    fleet = Fleet(start)
    ranks = fleet.ranks("--set", "checkpoint.every_s=1", "--set", "trainer.epochs=200")
    checkpoints = tmp_path / "runs" / "small" / "checkpoint"
    until(lambda: len(records(tmp_path, "round")) >= 3, *ranks, limit_s=200)
    ranks[1].kill()
    status, out = ended(ranks[:1], 40)[0]
    assert status == 1
    assert "RankLostError: the connection to another rank broke" in out
    assert "learning_curve.png" not in out  # it delays the restart of all ranks
    common = set(updates_in(checkpoints / "rank-0")) & set(updates_in(checkpoints / "rank-1"))
    assert common
    ranks = fleet.ranks("--set", "checkpoint.every_s=1", "--set", "trainer.epochs=200")
    done = len(records(tmp_path, "round"))
    until(lambda: len(records(tmp_path, "round")) >= done + 3, *ranks, limit_s=200)
    # One rank is asked to end; all do, at one update.
    ranks[1].send_signal(signal.SIGTERM)
    for status, out in ended(ranks, 40):
        assert status == 0, out
        assert f"all ranks resume from update {max(common)}" in out
    (first, _), (second, _) = states(tmp_path)
    assert first == second
    # Another number of processes would leave rows and offsets of a rank behind.
    alone = start("--trainer", "--set", f"server.port={fleet.ports[0]}")
    status, out = ended([alone])[0]
    assert status == 1
    assert "holds the checkpoints of 2 processes that trained together, and this is one process" in out


@pytest.mark.full
@pytest.mark.parametrize("start", [PPO], indirect=True)
def test_a_server_is_added_and_removed_with_its_rank_of_ppo(start: Start, tmp_path: Path) -> None:
    fleet = Fleet(start)
    checkpoints = tmp_path / "runs" / "small" / "checkpoint"
    more = ("trainer.epochs=200", "trainer.lockstep.steps_per_round=384", "agent.kwargs.minibatch_size=96")

    def train() -> list[str]:
        before = len(records(tmp_path, "round"))
        changes = (*more, f"memory.capacity={6_000 * fleet.servers}")
        ranks = fleet.ranks(*(part for one in changes for part in ("--set", one)), size=fleet.servers)
        until(lambda: len(records(tmp_path, "round")) >= before + 4, *ranks, limit_s=200)
        ranks[0].send_signal(signal.SIGTERM)
        found = ended(ranks)
        assert [status for status, _ in found] == [0] * len(ranks), found
        assert len({updates for updates, _ in states(tmp_path, fleet.servers)}) == 1
        assert parts_of(checkpoints) == fleet.servers
        return [out for _, out in found]

    train()
    done = max(updates_in(checkpoints / "rank-1"))
    fleet.servers = 3
    endpoints = [Endpoint("127.0.0.1", port) for port in fleet.ports]
    fleet.work(*(spread_name(f"late{number}", number, endpoints) for number in range(3)))
    outs = train()
    assert all(f"all ranks resume from update {done}" in out for out in outs)
    assert "rank 2 is new: it begins with the networks of rank 0 and no sample" in outs[2]
    assert "the run had 2 ranks and has 3 now, with" in outs[0]
    assert max(updates_in(checkpoints / "rank-2")) > done
    fleet.servers = 2
    assert "rank 2 is left out, with the" in train()[0]


@pytest.mark.full
@pytest.mark.parametrize("start", [SAC], indirect=True)
@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_a_server_is_added_and_removed_with_its_rank(start: Start, tmp_path: Path, storage: str) -> None:
    fleet = Fleet(start)
    checkpoints = tmp_path / "runs" / "small" / "checkpoint"
    more = ("--set", f"memory.storage={storage}", "--set", "trainer.epochs=200", "--set", "memory.batch_size=24")

    def train(capacity: int) -> list[str]:
        before = len(records(tmp_path, "round"))
        ranks = fleet.ranks(*more, "--set", f"memory.capacity={capacity}", size=fleet.servers)
        until(lambda: len(records(tmp_path, "round")) >= before + 6, *ranks, limit_s=200)
        ranks[0].send_signal(signal.SIGTERM)
        found = ended(ranks)
        assert [status for status, _ in found] == [0] * len(ranks), found
        return [out for _, out in found]

    train(20_000)
    done = max(updates_in(checkpoints / "rank-1"))
    fleet.servers = 3
    endpoints = [Endpoint("127.0.0.1", port) for port in fleet.ports]
    fleet.work(*(spread_name(f"late{number}", number, endpoints) for number in range(3)))
    # The capacity of a memory that exists cannot change.
    assert "With 3 ranks, set memory.capacity to 30000" in ended(fleet.ranks(*more, size=3))[0][1]
    outs = train(30_000)
    assert all(f"all ranks resume from update {done}" in out for out in outs)
    assert "rank 2 is new: it begins with the networks of rank 0 and no sample" in outs[2]
    assert "the run had 2 ranks and has 3 now, with" in outs[0]
    assert parts_of(checkpoints) == 3
    updates = [one for one, _ in states(tmp_path, 3)]
    assert updates[0] is not None
    assert updates[0] > done
    assert len(set(updates)) == 1
    fleet.servers = 2
    outs = train(20_000)
    manifest = read_manifest(checkpoints / "rank-2" / str(max(CheckpointStore(checkpoints / "rank-2").counters())))
    assert f"rank 2 is left out, with the {manifest.samples} samples that it had received" in outs[0]
    assert parts_of(checkpoints) == 2
    # It has been away: what it holds is of an earlier update.
    fleet.servers = 3
    assert "rank 2 is new, and" in ended(fleet.ranks(*more, size=3))[0][1]


@pytest.mark.full
@pytest.mark.parametrize("start", [SAC], indirect=True)
def test_a_rank_that_stands_still_is_named(start: Start, tmp_path: Path) -> None:
    fleet = Fleet(start)
    ranks = fleet.ranks("--set", "trainer.epochs=200")
    until(lambda: len(records(tmp_path, "round")) >= 1, *ranks, limit_s=200)
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        status, out = ended(ranks[:1], 60)[0]
    finally:
        ranks[1].send_signal(signal.SIGCONT)
    assert status == 1
    assert "rank 0 has waited for 10 s: rank 1 has not come; rank 1 last heard" in out
    assert "RankLostError: rank 1 gave no sign of life for 25 s" in out


@pytest.mark.full
@pytest.mark.parametrize("start", [SAC], indirect=True)
def test_what_cannot_be_shared_is_refused_before_anything_starts(start: Start) -> None:
    place = {"WORLD_SIZE": "3", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    status, out = ended([start("--trainer", "--set", 'server.endpoints=["127.0.0.1:1"]', **place)])[0]
    assert status == 2
    assert "server.endpoints: found 1 Server and 3 ranks, allowed: one Server for each rank" in out
    assert "memory.batch_size: found 16, allowed: a multiple of 3" in out


NO_SERVERS = "--set", 'server.endpoints=["127.0.0.1:1", "127.0.0.1:2"]'


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM ends a process of Windows at once")
@pytest.mark.parametrize("start", [SAC], indirect=True)
def test_a_rank_that_waits_for_the_others_obeys_sigterm(start: Start) -> None:
    place = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    rank = start("--trainer", *NO_SERVERS, **place)
    assert rank.stdout is not None
    assert any("rank 0 of 2 waits for the others" in line for line in rank.stdout)
    rank.send_signal(signal.SIGTERM)
    status, out = ended([rank], 60)[0]
    assert status == 0, out
    assert "end: stopped on request, before all ranks had started" in out


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks of torchrun in /proc")
def test_a_rank_that_is_killed_during_the_start_does_not_delay_the_restart(tmp_path: Path) -> None:
    log, port = tmp_path / "log", free_port()
    (tmp_path / "small.yaml").write_text(SAC, encoding="utf-8")
    options = ["--nproc-per-node", "2", "--max-restarts", "1", "--master-addr", "127.0.0.1", "--master-port", port]
    with log.open("w") as out:
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", *options),
                *("-m", "tmrl_core", "--trainer", "-c", "small.yaml", *NO_SERVERS),
            ],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=out,
            text=True,
        )

    def ranks() -> dict[int, int]:
        """Process of each rank."""
        found = {}
        for task in Path(f"/proc/{launcher.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                    found.update({int(one[5:]): int(child) for one in variables if one.startswith(b"RANK=")})
        return found

    try:
        until(lambda: len(ranks()) == 2, launcher, limit_s=60)
        first = ranks()
        os.kill(first[1], signal.SIGSTOP)  # it never comes
        until(lambda: "rank 0 of 2 waits for the others" in log.read_text(), launcher, limit_s=200)
        os.kill(first[1], signal.SIGKILL)
        until(lambda: "rank 1 of 2, with the Server" in log.read_text(), launcher, limit_s=200)
        assert "forcefully exiting via 9" not in log.read_text()
    finally:
        for pid in (*ranks().values(), launcher.pid):
            os.kill(pid, signal.SIGKILL)
        launcher.wait()
