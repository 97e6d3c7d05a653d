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
@pytest.mark.parametrize("preempted", [False, True])
def test_the_worker_ends_once_in_order(tmp_path: Path, preempted: bool) -> None:
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
        if preempted:
            os.killpg(job.pid, signal.SIGTERM)  # Slurm signals all processes of the task
        else:
            job.send_signal(signal.SIGUSR1)
        said = job.stdout.read().splitlines()
        limit.cancel()
        assert job.wait(20) == 0
    requeued = [] if preempted else ["scontrol requeue 17_3"]
    ended = f"worker 3 ended with status 0{'' if preempted else ', requeued'}"
    assert said == ["TERM received", ended, *requeued]
