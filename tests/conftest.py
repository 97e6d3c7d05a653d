"""Environment of every test: processes are spawned, never forked, and nothing of the user's own is read or written."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import layers

# Read when torch is first imported, which a conftest.py of a folder may do before pytest is configured: on busy
# processors, two threads make a small network's updates 20 times slower.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the files in an order that this number decides")


def pytest_configure() -> None:
    # Compiled code is kept for other processes and the next run, also where the environment turns that off. Otherwise,
    # each process of pytest compiles all tests, for seconds, and each process of a test the package, for half a second.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if hasattr(signal, "SIGHUP"):
        # nohup has it ignored, which children inherit and roles respect.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # No test is timed: on busy processors, any example may take long.
    hypothesis.settings.register_profile(
        "untimed",
        max_examples=200 if os.environ.get("FULL_TESTS") == "1" else 25,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("untimed")
    layers.install()


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Name each failed test at once: a run shows nothing but dots for half an hour."""
    if not report.failed or report.when == "collect":
        return None
    category = "failed" if report.when == "call" else "error"
    return category, f"{category[0].upper()} {report.nodeid}\n", category.upper()


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--shuffle")
    return "" if seed is None else f"order of files: --shuffle {seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its layer. Shuffle files, not tests: those of one file share fixtures and caches."""
    for item in items:
        item.add_marker(_layer(item))
    seed = config.getoption("--shuffle")
    if seed is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of later garbage collections, each of which would look through them."""
    gc.collect()
    gc.freeze()


def _layer(item: pytest.Item) -> str:
    return "full" if item.get_closest_marker("full") else layers.layer_of(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep a test and its fixtures in its layer."""
    with layers.kept_in(_layer(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test that swallowed a refusal."""
    result = yield
    layers.raise_refused()
    return result


def _no_fork() -> int:
    raise RuntimeError("os.fork: processes are started by spawn everywhere (threads and locks do not survive a fork)")


@pytest.fixture(autouse=True, scope="session")
def _spawn_only() -> Iterator[None]:
    """`multiprocessing`'s fork and forkserver, and anybody else's, end here. `subprocess` does not come by."""
    with pytest.MonkeyPatch.context() as changed:
        if hasattr(os, "fork"):
            changed.setattr(os, "fork", _no_fork)
        yield


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, _homes: Path) -> None:
    """A data folder of the test's own, and no variable that changes what the package reads."""
    for name in list(os.environ):
        if name.startswith(("TMRL_CORE_", "WANDB_")):
            monkeypatch.delenv(name)
    # Not made here: few tests write to it, and `mktemp` looks through all folders that are there already.
    monkeypatch.setenv("TMRL_CORE_HOME", str(_homes / str(next(_numbers))))
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes")


_numbers = itertools.count()


class _SessionsDiffer(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        assert "differ from their records" not in record.msg, record.getMessage()
        return True


_SESSIONS = logging.getLogger("tmrl_core.sessions.session")
_SESSIONS_DIFFER = _SessionsDiffer()


@pytest.fixture
def sessions_may_differ() -> None:
    """For a test whose sessions differ from the records of their episodes on purpose."""


@pytest.fixture(autouse=True)
def _own_logging(request: pytest.FixtureRequest) -> Iterator[None]:
    """End with a test what it sets up for logging.

    The warning of a session that differs from its episode's record is an error.
    """
    if "sessions_may_differ" not in request.fixturenames:
        _SESSIONS.addFilter(_SESSIONS_DIFFER)
    known = logging.Logger.manager.loggerDict
    ours = [
        name for name, logger in known.items() if name.startswith("tmrl_core.") and isinstance(logger, logging.Logger)
    ]
    loggers = [logging.getLogger(name) for name in ("", "tmrl_core", "tmrl_core.networking", *ours)]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
    _SESSIONS.removeFilter(_SESSIONS_DIFFER)


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether the long forms were asked for (`scripts/test.py --full`)."""
    return os.environ.get("FULL_TESTS") == "1"
