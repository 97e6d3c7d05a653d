"""A Server over TLS with an honest worker and trainer, for the tests of one stolen bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.networking.test_hostile import Place
from tmrl_core.networking.relay import processor_time
from tmrl_core.networking.security import credentials


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


@pytest.fixture
def place(keys: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        place = Place(keys, stack)
        place.start_trainer()
        yield place


@pytest.fixture
def small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the processor that a test can use up however busy the machine is."""
    monkeypatch.setattr(processor_time, "SHARE", 0.001)
    monkeypatch.setattr(processor_time, "BURST_S", 0.1)
