"""The Server that a worker belongs to, when `server.endpoints` has changed, and what waits for another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tmrl_core.config import from_values
from tmrl_core.config.endpoints import Endpoint, at_endpoint, chosen_endpoint, endpoints_of, spool_folder_of
from tmrl_core.config.sections import Config, ServerSection
from tmrl_core.networking.protocol.delivery import HeldMessage
from tmrl_core.networking.spools.own_server import Waiting, at_own_server, waiting_in
from tmrl_core.networking.spools.stream_files import SpooledStreamInfo, StreamFiles


def leave(spool: Path, server: Endpoint, name: str, stream: int, samples: int) -> None:
    """Leave a message of a worker that was killed."""
    info = SpooledStreamInfo(stream=bytes([stream] * 16).hex(), run="run", name=name, signature=b"", key=b"")
    files = StreamFiles(spool / spool_folder_of(server) / info.stream, info, limit_bytes=8_000)
    files.write([HeldMessage(1, 1, 0, samples, [bytes(100)], 100, 0)])
    files.close()


def config(spool: Path, *servers: Endpoint) -> Config:
    listed = {"endpoints": list(map(str, servers))}
    return from_values({"server": listed, "worker": {"spool_dir": str(spool)}}, "a test")


def test_a_worker_goes_to_its_own_server_with_a_spool_of_its_own() -> None:
    config = Config(server=ServerSection(endpoints=("127.0.0.1:1001", "127.0.0.1:1002")))
    found = {name: at_own_server(config, name) for name in ("a", "b", "c", "d", "e")}
    assert {made.server.port for made in found.values()} == {1001, 1002}
    for name, made in found.items():
        assert made.server.port == chosen_endpoint(name, endpoints_of(config)).port
        assert made.server.endpoints == ()
        # What one Server's trainer has committed in part must not reach another's.
        assert made.worker_spool_path == config.worker_spool_path / f"127.0.0.1_{made.server.port}"
    assert at_own_server(Config(), "a").worker_spool_path == Config().worker_spool_path
    assert ":" not in at_endpoint(config, Endpoint("2001:db8::1", 5)).worker_spool_path.name  # for Windows


def test_a_worker_moves_when_its_samples_are_delivered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    two, three = Endpoint("relay", 1), Endpoint("relay", 3)
    servers = [two, Endpoint("relay", 2), three]
    name = next(name for name in map(str, range(99)) if chosen_endpoint(name, servers) == three)
    here = config(tmp_path, *servers)
    leave(tmp_path, two, "another worker", 1, 7)
    leave(tmp_path, two, name, 2, 30)
    leave(tmp_path, two, name, 3, 12)
    assert at_own_server(here, name).server.port == 1
    assert f"worker {name} belongs to the Server relay:3 by server.endpoints, and goes to relay:1 first" in caplog.text
    assert "42 of its samples (200 bytes)" in caplog.text
    for stream in (2, 3):
        found = StreamFiles.left(tmp_path / spool_folder_of(two) / bytes([stream] * 16).hex())
        assert found is not None
        found[0].remove()
    # Those of other workers are no reason to wait.
    assert waiting_in(tmp_path / spool_folder_of(two)) == Waiting(7, 100)
    assert at_own_server(here, name).server.port == 3


def test_samples_for_a_server_that_was_removed_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    leave(tmp_path, Endpoint("old", 1), "a", 1, 30)
    leave(tmp_path, Endpoint("old", 1), "b", 2, 12)
    leave(tmp_path, Endpoint("kept", 2), "a", 3, 99)
    at_own_server(config(tmp_path, Endpoint("kept", 2)), "robot7")
    assert "42 samples (200 bytes) in" in caplog.text
    assert "old_1 wait for a Server that server.endpoints does not list" in caplog.text
    assert "99" not in caplog.text
