"""A Server under load: what `benchmarks/server_load.py` measures, small, and only what no busy machine can spoil."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tmrl_core.networking.security import credentials

if TYPE_CHECKING:
    import server_load

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads memory from Linux's /proc")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> server_load:  # type: ignore[valid-type]
    """The benchmark's module; its processes import it by its name too."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS), prepend=os.pathsep)
    return importlib.import_module("server_load")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return str(folder)


def holds(checks: list[Any]) -> None:
    missed = [check for check in checks if not check.good and not check.of_time]
    assert not missed, missed


def test_a_stopped_trainer(load: Any, keys: str) -> None:
    holds(load.stopped_trainer(keys, seconds=4.0, silent_s=2.5, megabytes_per_s=4))


@pytest.mark.full
def test_a_trainer_that_is_stopped_for_a_moment(load: Any, keys: str) -> None:
    holds(load.stopped_trainer(keys, seconds=1.0, silent_s=10.0, megabytes_per_s=4))


@pytest.mark.full
def test_a_stopped_worker_while_weights_are_published(load: Any, keys: str) -> None:
    holds(load.stopped_worker(keys, versions=60, size=200_000, rate=40.0))


@pytest.mark.full
def test_a_trainer_that_receives_nothing_for_a_while(load: Any, keys: str) -> None:
    holds(load.busy_trainer(keys, seconds=3.0, megabytes_per_s=20))


@pytest.mark.full
def test_many_workers(load: Any, keys: str) -> None:
    holds(load.many_workers(keys, count=40, seconds=1.5, processes=2))


@pytest.mark.full
def test_a_flooding_worker(load: Any, keys: str) -> None:
    holds(load.flood(keys, seconds=1.5, count=5, quiet_s=1.0))
