from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import wandb

from tmrl_core.errors import MissingExtraError
from tmrl_core.metrics.conformance import SinkSuite
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.records import MetricRecord, record
from tmrl_core.metrics.sinks import MetricSink
from tmrl_core.metrics.wandb_sink import WandbSink, _netrc_key

KEY = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture(autouse=True)
def nobodys_account(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A wandb without key, settings and telemetry of whoever runs the tests; ends its process afterwards."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(home / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(home / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(home / "data"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield home
    wandb.teardown()
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert psutil.wait_procs(left, timeout=30)[1] == []


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Point wandb to a port of this machine where nobody answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", url)
        yield url


def make(step: int = 0) -> MetricRecord:
    return record("round", {"return_test": -1.5, "worker": "robot7"}, step=step, started_s=0.0)


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*/*.wandb"))


class TestWandbSink(SinkSuite):
    def make_sink(self, folder: Path) -> MetricSink:
        return WandbSink(project="tests", folder=folder)


def test_without_a_key_the_run_is_kept_on_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with WandbSink(project="tests", folder=tmp_path, run_id="run7", config={"seed": 3}) as sink:
        assert sink.mode == ""
        sink.write(make(1))
        sink.write(make(2))
        assert sink.mode == "offline"
    (kept,) = runs(tmp_path)
    assert kept.name == "run-run7.wandb"
    content = kept.read_bytes()
    assert b"round/return_test" in content
    assert b"updates" in content
    assert "no API key" in caplog.text
    assert f"wandb sync {kept.parent}" in caplog.text


def test_without_network_the_run_is_kept_on_disk_and_the_key_to_ourselves(
    tmp_path: Path, nowhere: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    sink = WandbSink(project="tests", folder=tmp_path, key=KEY, start_limit_s=1.0)
    recorder = Recorder([sink])
    recorder.write(make(1))
    assert recorder.close(timeout_s=60.0)
    (state,) = recorder.states
    assert (state.written, state.error) == (1, "")
    assert sink.mode == "offline"
    assert "not reachable" in caplog.text
    assert runs(tmp_path)
    assert not [name for name, value in os.environ.items() if KEY in value]
    assert KEY not in caplog.text + "".join(capfd.readouterr())
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize(("wanted", "mode", "files"), [("offline", "offline", 1), ("disabled", "disabled", 0)])
def test_wandbs_own_mode_holds_even_with_a_key(
    tmp_path: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch, wanted: str, mode: str, files: int
) -> None:
    monkeypatch.setenv("WANDB_MODE", wanted)
    with WandbSink(project="tests", folder=tmp_path, key=KEY) as sink:
        sink.write(make(1))
        assert sink.mode == mode
    assert len(runs(tmp_path)) == files


def test_nothing_is_started_before_the_first_record(tmp_path: Path) -> None:
    with WandbSink(project="tests", folder=tmp_path / "absent"):
        pass
    assert not (tmp_path / "absent").exists()


def test_the_key_is_found_where_wandb_login_puts_it(nobodys_account: Path) -> None:
    assert _netrc_key("https://wandb.example.org") is None
    (nobodys_account / "netrc").write_text(
        f"machine wandb.example.org login user password {KEY}\nmachine other.org login a password b\n"
    )
    (nobodys_account / "netrc").chmod(0o600)
    assert _netrc_key("https://wandb.example.org") == KEY
    assert _netrc_key("https://elsewhere.org") is None


def test_a_folder_that_wandb_left_is_not_taken_for_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[wandb\]"):
        WandbSink(project="tests", folder=tmp_path)
