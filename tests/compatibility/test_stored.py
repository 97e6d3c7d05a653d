"""Data that earlier code has left on a disk (`data/`) is read, and gone on from, by the code of today."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compatibility import parts
from tmrl_core import actor as actors
from tmrl_core import training
from tmrl_core.cli.main import main
from tmrl_core.config import from_values, load
from tmrl_core.metrics import read_records
from tmrl_core.networking import Server, Trainer

ROOT = Path(__file__).resolve().parents[2]
EXPECTED: dict[str, Any] = json.loads((parts.DATA / "expected.json").read_text(encoding="utf-8"))
ON_DISK = [name for name, case in parts.CASES.items() if case.disk]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.unpack("checkpoints", tmp_path_factory.mktemp("stored"))


@pytest.fixture
def stored(unpacked: Path, tmp_path: Path) -> Path:
    """The recorded checkpoints, one folder for each case, that a test may change."""
    return Path(shutil.copytree(unpacked, tmp_path / "checkpoints"))


# --- checkpoints and memories -----------------------------------------------------------------------------------------


def test_there_is_a_checkpoint_of_each_agent_memory_and_loop() -> None:
    made = {getattr(case.agent, "func", case.agent) for case in parts.CASES.values()}
    made |= {part for case in parts.CASES.values() for part in (case.memory_cls, case.loop)}
    names = {
        "DQNAgent", "DiscreteSacAgent", "FrameStackMemory", "GenericTorchMemory", "PPOAgent", "REDQSACAgent",
        "ReplayMemory", "SacAgent", "SpinupSacAgent", "TD3Agent", "TorchTrainingOffline", "TrainingLockstep",
        "TrainingOffline",
    }  # fmt: skip
    assert {getattr(training, name) for name in names} <= made


@pytest.mark.parametrize("name", parts.CASES)
def test_training_from_an_old_checkpoint_continues_identically(
    stored: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case, expected = parts.CASES[name], dict(EXPECTED["checkpoints"][name])
    digest_after = expected.pop("digest_after", None)
    with caplog.at_level(logging.WARNING, "tmrl_core"):
        resumed = case.load(stored / name)
    assert caplog.messages == []
    assert json.loads(json.dumps(parts.facts(resumed))) == expected
    case.go_on(resumed)
    # All that the next updates depend on was there: networks, optimizers, what is sampled, random generators.
    np.testing.assert_allclose(parts.actor_vector(resumed), np.load(stored / name / "after.npy"), rtol=1e-4, atol=1e-6)
    if digest_after is not None:
        assert parts.digest(parts.row_digests(resumed.memory)) == digest_after
    if case.disk:
        resumed.memory.close()


@pytest.mark.parametrize("name", parts.CASES)
def test_a_checkpoint_that_was_loaded_can_be_written_and_loaded_again(stored: Path, name: str, tmp_path: Path) -> None:
    case = parts.CASES[name]
    resumed = case.load(stored / name)
    resumed.save(tmp_path / "again")
    expected = parts.facts(resumed)
    if case.disk:
        resumed.memory.close()
    again = case.make(stored / name)
    again.load(tmp_path / "again")
    assert parts.facts(again) == expected
    if case.disk:
        again.memory.close()


@pytest.mark.parametrize("name", ON_DISK)
def test_a_memory_on_disk_is_read_and_appended_to_without_a_checkpoint(stored: Path, name: str) -> None:
    case, expected = parts.CASES[name], EXPECTED["checkpoints"][name]
    memory = case.memory_in(stored / name)
    rows = parts.row_digests(memory)
    assert parts.digest(rows) == expected["digest"]
    memory.append(parts.messages(case.spaces, 2))
    memory.close()
    memory = case.memory_in(stored / name)
    assert parts.digest(parts.row_digests(memory)) == expected["digest_after"]
    memory.close()


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "Numpy"])
@pytest.mark.parametrize("name", parts.ACTORS)
def test_old_weights_give_the_same_actions(name: str, prefix: str, tmp_path: Path) -> None:
    actor = getattr(actors, prefix + name)(*parts.ACTORS[name], **parts.HIDDEN)
    actor = actor.load(parts.unpack("policies", tmp_path) / f"{name}.tmod", device="cpu")
    action = np.asarray(actor.act_(parts.OBSERVATION, test=True))
    np.testing.assert_allclose(action, EXPECTED["policies"][name], rtol=1e-5)


# --- credentials and the Server's spool -------------------------------------------------------------------------------


def configuration(folder: Path, keys: Path, end_to_end: str | None = None, **sections: Any) -> Any:
    return from_values(
        {
            "run": {"name": "run", "folder": str(folder / "runs")},
            "network": {
                "credentials_dir": str(keys),
                "security": "TLS",
                "hostname": "robots.example.org",
                "end_to_end": end_to_end,
            },
            **sections,
        }
    )


def test_old_spooled_samples_reach_a_trainer_with_old_credentials(tmp_path: Path) -> None:
    keys, spool = parts.unpack("credentials", tmp_path), parts.unpack("spool", tmp_path)
    case = parts.Case(training.SacAgent, settings={"epochs": 1, "steps": 2, "start_training": 65})
    server = {"port": 0, "spool_dir": str(spool)}
    with Server(config=configuration(tmp_path, keys / "server.server.bundle", server=server)) as running:
        # By default, a trainer with a bundle leaves samples without a proof of their origin in the spool.
        config = configuration(tmp_path, keys / "hpc.trainer.bundle", "off", server={"port": running.port})
        with Trainer(lambda: case.make(tmp_path), config=config) as trainer:
            trainer.run()
    found = trainer.training
    assert found.total_samples == EXPECTED["spool"]["samples"]
    local = case.memory_in(tmp_path)
    for stream in (0, 1):
        for number in range(3 - stream):
            buffer = parts.messages(parts.BOX, 0)
            buffer.clear()
            buffer.extend([parts.message(parts.BOX, stream, 2 * number + stream)])
            local.append(buffer)
    assert sorted(parts.row_digests(found.memory)) == sorted(parts.row_digests(local))
    assert list(spool.glob("*.seg")) == []


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Credentials of a throwaway CA: `main`, where it is; bundles; `robot7`, where one was installed."""
    folder = parts.unpack("credentials", tmp_path_factory.mktemp("keys"))
    by_token = folder / "by_token"
    by_token.mkdir()
    for name in ("ca.pem", "trainer.token"):
        shutil.copy(folder / "main" / name, by_token)
    return folder


@pytest.fixture(scope="module")
def server(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with Server(config=configuration(folder, keys / "main", server={"port": 0})) as made:
        yield made


@pytest.mark.parametrize(
    ("holder", "problem"),
    [
        ("robot7", ""),
        ("robot7.worker.bundle", ""),
        ("hpc.trainer.bundle", ""),
        ("by_token", ""),
        ("stolen.worker.bundle", "revoked"),
    ],
)
def test_a_server_with_old_credentials_accepts_the_same_peers(
    holder: str, problem: str, keys: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = {"credentials_dir": str(keys / holder), "hostname": "robots.example.org"}
    (tmp_path / "config.json").write_text(json.dumps({"network": network, "server": {"port": server.port}}))
    status = main(["--doctor", "-c", str(tmp_path / "config.json"), "--json"])
    said = capsys.readouterr().out
    assert status == (1 if problem else 0), said
    assert problem in said


def test_old_credentials_are_listed(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--credentials", "show", "--set", f"network.credentials_dir={keys / 'main'}"]) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in EXPECTED["credentials"]["fingerprints"])
    assert "stolen" in said
    assert "2119-12-08" in said, said


# --- a run's folder ---------------------------------------------------------------------------------------------------


def test_a_run_continues_from_an_old_folder(tmp_path: Path) -> None:
    folder = parts.unpack("run", tmp_path)
    run = folder / "runs" / "small"
    assert load(run / "config.yaml", environ={}).run.name == "small"
    assert len(read_records(run / "metrics.jsonl")) == EXPECTED["run"]["records"]
    command = [sys.executable, "-m", "tmrl_core", "--local", "--single-process", "--workers", "1", "-c", "small.yaml"]
    done = subprocess.run(
        [*command, "--set", "trainer.epochs=2"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert "resuming from checkpoint 3 (epoch 1)" in done.stderr
    assert "the policy was loaded from" in done.stderr
    assert "160 updates" in done.stdout.splitlines()[-1], done.stdout
    assert len(read_records(run / "metrics.jsonl")) > EXPECTED["run"]["records"]
