"""Many agents between processes with bundles of their own, which prove the origin of what they send."""

from __future__ import annotations

import base64
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.command_line import records
from tests.hostile.machines import FORGED, Machines
from tests.multiagent.test_remote_runs import SMALL, rounds
from tests.waiting import until


@pytest.mark.parametrize("mode", [pytest.param("authenticate", marks=pytest.mark.full), "encrypt"])
def test_two_workers_are_learned_from_until_one_is_revoked(tmp_path: Path, mode: str, full: bool) -> None:
    """With a kill and a renewal in the long form: the gateway's run has both, that of `test_remote_runs.py` a kill."""
    with ExitStack() as stack:
        machines = Machines(tmp_path, stack, SMALL, mode)
        machines.fleet.install("worker", "second")
        workers = [
            machines.start(name, "--worker", "--set", f"worker.name={name}", "--set", "trainer.lockstep.min_workers=2")
            for name in ("robot", "second")
        ]
        endless = ("--trainer", "--set", "trainer.epochs=1000")
        trainer = machines.start("hpc", *endless, "--set", "trainer.lockstep.min_workers=2")
        until(lambda: len(rounds(tmp_path)) >= 3, trainer, *workers, limit_s=60)
        if full:
            trainer.kill()
            trainer.wait()
            before = len(rounds(tmp_path))
            trainer = machines.start("hpc", *endless)
            until(lambda: len(rounds(tmp_path)) >= before + 2, trainer, *workers, limit_s=60)
            machines.renew("robot.worker", "hpc.trainer")
            before = len(rounds(tmp_path))
            until(lambda: len(rounds(tmp_path)) >= before + 2, trainer, *workers, limit_s=60)
        assert {record.values["wire/forged"] for record in records(tmp_path, "network")} == {0}
        machines.revoke("second")
        until(lambda: records(tmp_path, "network")[-1].values["worker/count"] == 1, trainer, *workers, limit_s=60)
        assert "was revoked" in machines.end(workers[1])
        before = len(rounds(tmp_path))
        until(lambda: len(rounds(tmp_path)) >= before + 2, trainer, workers[0], limit_s=60)
        assert FORGED not in machines.end(workers[0])
        machines.end(trainer)
    assert (tmp_path / "runs" / "small" / "worker" / "policy.tmod.accepted").exists()
    (record,) = (tmp_path / "hpc" / "run_keys").glob("*.key")
    key = json.loads(record.read_bytes())["key"].encode()
    stored = [file.read_bytes() for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    assert len(stored) > 3, "checkpoints and records"
    assert not any(key in content or base64.b64decode(key) in content for content in stored)
