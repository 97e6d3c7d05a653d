"""Write `data/`: what the code of one day leaves on a disk, for later code to read.

    python -m tests.compatibility.record checkpoints policies spool credentials run wire

was run once for each archive, with the code of commit fe8f9ce. Archives are never recorded again to make a test pass:
data of users that looks like them would stay unreadable.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.compatibility import conversations, parts
from tmrl_core import actor as actors
from tmrl_core.samples import encode_message
from tmrl_core.training import CheckpointStore

EARLY = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
DAYS = 36_500.0

RUN = """
run: {name: small, seed: 3}
environment: {cls: "tmrl_core.envs:GenericGymEnv", kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [6, 6]}}
worker: {max_env_steps_per_update: 8, max_samples_per_episode: 30}
server: {port: 0}
memory: {batch_size: 16, capacity: 400}
trainer:
  epochs: 1
  rounds: 2
  steps: 40
  start_training: 60
  update_model_interval: 20
  update_buffer_interval: 20
  device: cpu
  evaluation: {episodes: 1, every_updates: 40}
"""


def checkpoints(folder: Path) -> dict[str, Any]:
    """One checkpoint of each case after two epochs; what it holds; and the policy's parameters one epoch later."""
    disk_rows = import_module("tmrl_core.training.memories.disk_rows")
    disk_rows.MIN_SEGMENT_BYTES = disk_rows.MAX_SEGMENT_BYTES = 2_000  # type: ignore[attr-defined]
    expected = {}
    for name, case in parts.CASES.items():
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        home = folder / name
        training = case.make(home)
        interface = case.interface(training)
        store = CheckpointStore(home / "checkpoint")
        for epoch in range(2):
            if not case.lockstep:
                interface.put(parts.messages(case.spaces, epoch))
            if case.disk:
                training.memory.deferred = True
                training.update_buffer(interface)
                offsets = dict.fromkeys(parts.STREAMS, (2 * (epoch + 1), 26 * (epoch + 1)))
                training.memory.commit(offsets, samples=training.total_samples, incarnation=1, counter=epoch + 1)
            training.run_epoch(interface)
            training.delivery["marks"] = dict.fromkeys(parts.STREAMS, (2 * (epoch + 1), 26 * (epoch + 1)))
            training.delivery["incarnation"] = 1
            if case.store:
                store.save(training, wait=True)
        if not case.store:
            training.save(home / "checkpoint")
        expected[name] = parts.facts(training)
        if case.disk:
            training.memory.close()
        # As a resumed trainer goes on, not as this one would: an interface of its own, and no more samples.
        copy = folder.parent / "copy" / name
        shutil.copytree(home, copy)
        resumed = case.load(copy)
        case.go_on(resumed)
        np.save(home / "after.npy", parts.actor_vector(resumed))
        if "rows" in expected[name]:
            expected[name]["digest_after"] = parts.digest(parts.row_digests(resumed.memory))
        if case.disk:
            resumed.memory.close()
    return expected


def policies(folder: Path) -> dict[str, Any]:
    """A file of weights of each policy, and its action without exploration."""
    folder.mkdir()
    expected = {}
    for number, (name, spaces) in enumerate(parts.ACTORS.items()):
        torch.manual_seed(number)
        actor = getattr(actors, name)(*spaces, **parts.HIDDEN)
        actor.save(folder / f"{name}.tmod")
        expected[name] = np.asarray(actor.act_(parts.OBSERVATION, test=True)).tolist()
    return expected


def spool(folder: Path) -> dict[str, Any]:
    """Spool of a Server without a trainer: three messages of one worker, two of another that has ended."""
    make_info = import_module("tmrl_core.networking.spools.memory").StreamInfo
    files = import_module("tmrl_core.networking.spools.files").DiskSpool(folder, 1 << 20)
    for stream, count in enumerate((3, 2)):
        info = make_info(parts.STREAMS[stream], "run", f"robot{stream + 1}", b"")
        for number in range(count):
            chunk = parts.message(parts.BOX, stream, 2 * number + stream)
            body = encode_message([chunk], [])
            files.append(info, number=number, floor=0, position=13 * number, samples=13, body=[body])
    files.end(parts.STREAMS[1])
    files.close()
    return {"samples": 65}


class _Early(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return EARLY


def keys(folder: Path) -> dict[str, Any]:
    """A folder of a throwaway CA, valid for a hundred years from 2020 on, and two bundles installed elsewhere."""
    certificates = import_module("tmrl_core.networking.security.certificates")
    credentials = import_module("tmrl_core.networking.security.credentials")
    certificates.datetime = credentials.datetime = _Early  # type: ignore[attr-defined]
    folder.mkdir()
    main = folder / "main"
    credentials.create(main, ["robots.example.org"], days=DAYS, ca_days=DAYS)
    for role, name in (("worker", "robot7"), ("worker", "stolen"), ("trainer", "hpc"), ("server", "")):
        credentials.bundle(main, role, name, folder, days=DAYS)
    import_module("tmrl_core.networking.security.renewal").revoke(main, "stolen")
    credentials.install(folder / "robot7.worker.bundle", folder / "robot7")
    return {"fingerprints": [record.fingerprint for record in credentials.show(main)]}


def run(folder: Path) -> dict[str, Any]:
    """The folder of a whole run on one machine."""
    folder.mkdir()
    (folder / "small.yaml").write_text(RUN, encoding="utf-8")
    command = [sys.executable, "-m", "tmrl_core", "--local", "--workers", "1", "-c", "small.yaml"]
    environ = {**os.environ, "PYTHONPATH": str(Path.cwd()), "TMRL_CORE_HOME": str(folder.parent / "home")}
    subprocess.run(command, cwd=folder, env=environ, check=False, timeout=200)
    shutil.rmtree(folder / "runs" / "small" / "logs")
    (folder / "runs" / "small" / "learning_curve.png").unlink()
    lines = (folder / "runs" / "small" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {"records": len(lines)}


ARCHIVES = {"checkpoints": checkpoints, "policies": policies, "spool": spool, "credentials": keys, "run": run}


def main(names: list[str]) -> None:
    """Record these archives, and what is to be found in them."""
    path = parts.DATA / "expected.json"
    expected = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in names:
        if name == "wire":
            setattr(import_module("tmrl_core.networking.relay.status"), "__version__", "0.0.0")  # noqa: B010
            print(*conversations.record(), sep="\n")
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            expected[name] = ARCHIVES[name](folder)
            with tarfile.open(parts.DATA / f"{name}.tar.xz", "w:xz", preset=9) as archive:
                archive.add(folder, name)
        path.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(name, (parts.DATA / f"{name}.tar.xz").stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
