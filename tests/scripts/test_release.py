"""A release has what it needs and nothing else."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import tmrl_core

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`scripts/release.py`."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("release")


@pytest.mark.parametrize(
    "name",
    [
        "credentials/ca.pem",
        "credentials/robot7.json",
        "examples/server.key",
        "hpc.trainer.bundle",
        "tmrl_core/__pycache__/errors.cpython-311.pyc",
        ".mypy_cache/3.11/x.json",
        "runs/pendulum_sac/config.yaml",
        "policy.tmod",
    ],
)
def test_a_file_that_does_not_belong_is_named(release: ModuleType, name: str) -> None:
    (error,) = release.content_errors({name: b"", "tmrl_core/a.py": b""}, ["tmrl_core/a.py"])
    assert name in error


def test_a_private_key_is_found_under_any_name(release: ModuleType) -> None:
    label = b"PRIVATE KEY-----\n"
    key = b"-----BEGIN EC " + label + b"MHcCAQEEIExampleExampleExample\n"
    assert release.content_errors({"docs/notes.txt": key}, []) == ["docs/notes.txt has a private key"]
    assert release.content_errors({"tmrl_core/a.py": b'"-----BEGIN ' + label[:-1] + b'"'}, []) == []


def test_a_missing_file_is_named(release: ModuleType) -> None:
    assert release.content_errors({"credentials/README.md": b""}, ["LICENSE"]) == ["LICENSE is missing"]


def test_archives_are_read_by_the_names_of_their_files(release: ModuleType, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("tmrl_core/a.py", "one")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as source:
        member = tarfile.TarInfo("tmrl_core-0.1.0/tmrl_core/a.py")
        member.size = 3
        source.addfile(member, io.BytesIO(b"two"))
    assert release.read_wheel(tmp_path / "a.whl") == {"tmrl_core/a.py": b"one"}
    assert release.read_source(tmp_path / "a.tar.gz") == {"tmrl_core/a.py": b"two"}


def test_one_of_each_archive_is_needed(release: ModuleType, tmp_path: Path) -> None:
    (error,) = release.check(tmp_path, Path(sys.executable))
    assert "0 wheels" in error


def test_another_version_in_the_citation_is_found(release: ModuleType) -> None:
    assert release.version_errors(f"tmrl_core-{tmrl_core.__version__}-py3-none-any.whl") == []
    assert release.version_errors("tmrl_core-9.9.9-py3-none-any.whl") == ["CITATION.cff: version is not 9.9.9"]


def test_this_python_is_found_and_a_future_one_is_not(release: ModuleType) -> None:
    version = "{}.{}".format(*sys.version_info)
    assert release.find_python(version) is not None
    assert release.find_python("3.99") is None


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_it_builds_a_release_that_installs_and_runs() -> None:
    """Needs the package index."""
    version = "{}.{}".format(*sys.version_info)
    command = [sys.executable, str(ROOT / "scripts" / "release.py"), "--python", version]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"The quickstart ran with Python {version}." in ended.stdout
