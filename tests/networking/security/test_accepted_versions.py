"""The highest accepted policy version survives a restart of the worker."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.accepted_versions import AcceptedVersions
from tmrl_core.networking.security.secret_files import writing

ACCEPT = """
import sys
from tmrl_core.networking.security.accepted_versions import AcceptedVersions
file, last = sys.argv[1], int(sys.argv[2])
versions = AcceptedVersions(file, "run")
print("ready", flush=True)
sys.stdin.readline()
for counter in range(last - 100, last):
    versions.accept((1, counter))
    stored = AcceptedVersions(file, "run").version
    assert stored >= (1, counter), f"{stored} replaced 1.{counter}"
"""


def test_it_is_beside_the_copy_of_the_policy(tmp_path: Path) -> None:
    AcceptedVersions(tmp_path / "policy.tmod", "run").accept((1, 1))
    assert {path.name for path in tmp_path.iterdir()} == {"policy.tmod.accepted", ".lock"}


def test_a_restarted_worker_knows_the_highest_version(tmp_path: Path) -> None:
    file = tmp_path / "worker" / "policy.tmod"
    first = AcceptedVersions(file, "run")
    assert first.version == (0, 0)
    for version in ((1, 4), (1, 3), (2, 1)):
        first.accept(version)
    assert AcceptedVersions(file, "run").version == (2, 1)
    assert AcceptedVersions(file, "other").version == (0, 0)


def test_workers_that_share_the_file_keep_the_highest_version(tmp_path: Path) -> None:
    file = tmp_path / "policy"
    one, other = AcceptedVersions(file, "run"), AcceptedVersions(file, "run")
    one.accept((3, 9))
    other.accept((3, 5))
    AcceptedVersions(file, "second").accept((1, 1))
    assert AcceptedVersions(file, "run").version == (3, 9)
    assert other.version == (3, 5)


def test_processes_that_share_the_file_never_lower_its_version(tmp_path: Path) -> None:
    file = tmp_path / "policy"
    for run in range(50):
        AcceptedVersions(file, f"earlier {run}").accept((1, run))
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ACCEPT, str(file), str(last)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for last in (130, 150, 170)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("start\n")
            worker.stdin.flush()
        said = [worker.communicate(timeout=60)[1] for worker in workers]
    assert said == ["", "", ""]
    assert AcceptedVersions(file, "run").version == (1, 169)
    assert AcceptedVersions(file, "earlier 49").version == (1, 49)


def test_without_a_file_nothing_is_kept() -> None:
    accepted = AcceptedVersions(None, "run")
    accepted.accept((1, 1))
    assert accepted.version == (1, 1)


def test_the_number_of_runs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_core.networking.security.accepted_versions._MAX_RUNS", 3)
    file = tmp_path / "policy"
    for number, run in enumerate("abcad", 1):
        AcceptedVersions(file, run).accept((number, 0))
    kept = {run: AcceptedVersions(file, run).version for run in "abcd"}
    assert kept == {"a": (4, 0), "b": (0, 0), "c": (3, 0), "d": (5, 0)}


@pytest.mark.parametrize("content", ["", "[]", '{"format": "tmrl_core accepted versions", "runs": {"run": [-1, 0]}}'])
def test_a_damaged_file_is_refused_with_advice(tmp_path: Path, content: str) -> None:
    file = tmp_path / "policy"
    (tmp_path / "policy.accepted").write_text(content)
    with pytest.raises(CredentialsError, match=r"accepted is damaged .*Delete it"):
        AcceptedVersions(file, "run")


def test_a_file_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    accepted = AcceptedVersions(tmp_path / "folder" / "policy", "run")
    (tmp_path / "folder").write_text("a file in place of the folder")
    with caplog.at_level(logging.WARNING):
        accepted.accept((1, 1))
        accepted.accept((1, 2))
    assert accepted.version == (1, 2)
    assert len(caplog.records) == 1


def test_a_lock_that_another_process_keeps_does_not_stop_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tmrl_core.networking.security.accepted_versions.LINK_WAIT_S", 0.1)
    accepted = AcceptedVersions(tmp_path / "policy", "run")
    with ThreadPoolExecutor(1) as pool, writing(tmp_path):
        pool.submit(accepted.accept, (1, 1)).result(10.0)
    assert accepted.version == (1, 1)
    assert "is being written by another process" in caplog.text
