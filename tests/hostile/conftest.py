"""A Server over TLS with an honest worker and trainer, for the tests of one stolen bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.networking.test_hostile import Place
from tmrl_core.networking.protocol.messages import Role
from tmrl_core.networking.relay import processor_time
from tmrl_core.networking.security import credentials


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


@pytest.fixture(scope="module")
def members(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Role, Path]:
    """The credentials folders of an honest worker and a trainer with bundles of their own."""
    folder = tmp_path_factory.mktemp("members")
    for role in ("worker", "trainer"):
        credentials.install(credentials.bundle(keys, role, f"honest-{role}", folder), folder / role)
    return {"worker": folder / "worker", "trainer": folder / "trainer"}


@pytest.fixture
def inbox_bytes() -> int:
    """Maximum bytes of samples that wait in the trainer."""
    return 64 << 20


# With `off` the Server runs the same code and skips the proofs: `tests/networking/test_hostile.py` attacks such a one.
@pytest.fixture(params=[pytest.param("off", marks=pytest.mark.full), "authenticate"])
def place(
    request: pytest.FixtureRequest, keys: Path, members: dict[Role, Path], inbox_bytes: int, tmp_path: Path
) -> Iterator[Place]:
    """A fleet whose members authenticate each other, or do not."""
    with ExitStack() as stack:
        spool = str(tmp_path / "spool")
        mode = request.param
        place = Place(keys, stack, None if mode == "off" else members, mode, spool_dir=spool)
        place.start_trainer(inbox_bytes)
        yield place


@pytest.fixture
def small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the processor that a test can use up however busy the machine is."""
    monkeypatch.setattr(processor_time, "SHARE", 0.001)
    monkeypatch.setattr(processor_time, "BURST_S", 0.1)
