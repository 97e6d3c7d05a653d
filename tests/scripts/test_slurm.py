"""scripts/slurm/workers.sbatch: each signal of Slurm ends the worker once, in order, and the right ones requeue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm" / "workers.sbatch"


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="bash and POSIX signals")
@pytest.mark.parametrize("signals", ["USR1", "TERM", "USR1 TERM"])
def test_the_worker_ends_once_in_order(tmp_path: Path, signals: str) -> None:
    # A worker that says which signals it received, as many as come.
    program(
        tmp_path / "bin" / "python",
        'trap "echo TERM received; ended=yes" TERM; echo "$@"; while [ -z "$ended" ]; do sleep 0.05; done; sleep 0.3',
    )
    program(tmp_path / "bin" / "scontrol", 'echo "scontrol $@"')
    environment = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SLURM_ARRAY_JOB_ID": "17",
        "SLURM_ARRAY_TASK_ID": "3",
    }
    with subprocess.Popen(
        ["bash", str(SCRIPT)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        # A worker that is never told to end would keep the pipe open, and this test waiting.
        limit = threading.Timer(20.0, os.killpg, (job.pid, signal.SIGKILL))
        limit.start()
        assert job.stdout is not None
        assert job.stdout.readline() == "-m tmrl_core --worker -c my.yaml --set worker.name=worker-3\n"
        if "USR1" in signals:
            job.send_signal(signal.SIGUSR1)
        if "TERM" in signals:
            os.killpg(job.pid, signal.SIGTERM)  # Slurm signals all processes of the task
        said = job.stdout.read().splitlines()
        limit.cancel()
        assert job.wait(20) == 0
    assert said[0] == "TERM received"  # once: a second one would end a worker immediately
    if signals == "USR1 TERM":  # the shell may miss one of two at once; Slurm itself requeues at a preemption
        assert said[1].startswith("worker 3 ended with status 0")
    else:
        requeued = ["scontrol requeue 17_3"] if signals == "USR1" else []
        assert said[1:] == [f"worker 3 ended with status 0{', requeued' if requeued else ''}", *requeued]
