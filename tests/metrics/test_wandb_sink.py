from __future__ import annotations

import gzip
import http.server
import json
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from tmrl_core.errors import MissingExtraError
from tmrl_core.metrics import names, wandb_sink
from tmrl_core.metrics.branch import Cut
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.records import MetricRecord, record
from tmrl_core.metrics.sinks import JsonLinesSink, MetricSink
from tmrl_core.metrics.standard import SinkRun
from tmrl_core.metrics.wandb_sink import WandbSink, _netrc_key
from tmrl_core.testing.metric_sinks import SinkSuite, Written

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


class FakeWandb(http.server.ThreadingHTTPServer):
    """As much of wandb's server as a run needs; keeps what it is sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeWandbHandler)
        self.bodies: list[bytes] = []
        self.silent = threading.Event()
        self.ended = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no error here; any other would show in what the test finds missing."""


class FakeWandbHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, FakeWandb)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        server.bodies.append(body)
        if server.silent.is_set():
            server.ended.wait(60.0)
            self.close_connection = True
            return
        answer = json.dumps(self.answer(json.loads(body) if self.path == "/graphql" else {})).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        project = {"id": "p", "name": "tests", "entity": {"id": "e", "name": "me"}}
        if request.get("operationName") == "UpsertBucket":
            bucket = {"id": "b", "name": "run7", "displayName": "run", "historyLineCount": 0, "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if request.get("operationName") == "CreateRunFiles":
            files = [
                {"name": name, "uploadUrl": f"http://{self.headers['host']}/upload/{name}"}
                for name in request["variables"]["files"]
            ]
            return {"data": {"createRunFiles": {"runID": "run7", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test looks at what came, not at a log."""


@pytest.fixture
def wandb_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    with FakeWandb() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}")
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()


def make(step: int = 0) -> MetricRecord:
    return record("round", {"return_test": -1.5, "worker": "robot7"}, step=step, elapsed_s=0.0)


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*/*.wandb"))


def records_in(path: Path) -> Iterator[Any]:
    """Yield the records of an offline file: wandb's own messages, in frames of leveldb's log."""
    record_type: Any = vars(wandb_internal_pb2)["Record"]  # the module makes its classes when it is imported
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no frame begins in the last bytes of a block
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record_type.FromString(parts)
            parts = b""


def history_in(path: Path) -> list[dict[str, Any]]:
    """Return the points of an offline file, without wandb's own entries."""
    points = []
    for found in records_in(path):
        if found.WhichOneof("record_type") == "history":
            point: dict[str, Any] = {}
            for item in found.history.item:
                name, *inner = [item.key] if item.key else item.nested_key
                value = json.loads(item.value_json)
                if inner:
                    point.setdefault(name, {})[inner[0]] = value
                elif not name.startswith("_"):
                    point[name] = value
            points.append(point)
    return points


NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class TestWandbSink(SinkSuite):
    reads_unclosed = False

    def make_sink(self, folder: Path) -> MetricSink:
        return WandbSink(project="tests", folder=folder)

    def read_back(self, folder: Path) -> list[Written]:
        """Return what `wandb sync` would send."""
        wandb.teardown()  # its own process may still write
        found = []
        # By the times of their ends: names have whole seconds.
        for path in sorted(runs(folder), key=lambda path: path.stat().st_mtime_ns):
            for point in history_in(path):
                values = {name: float(NUMBERS.get(value, value)) for name, value in point.items()}
                steps = int(values.pop(names.SAMPLES_RECEIVED))
                del values[names.ELAPSED]
                found.append((steps, values))
        return found

    def keeps(self, record: MetricRecord) -> bool:
        return bool(record.numbers())


def test_without_a_key_the_run_is_kept_on_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with WandbSink(project="tests", folder=tmp_path, run_id="run7", config={"seed": 3}) as sink:
        assert sink.mode == ""
        sink.write(make(1))
        sink.write(make(2))
        assert sink.mode == "offline"
    # wandb's own process may still be writing when a run has finished; it is done when that process has ended.
    wandb.teardown()
    (kept,) = runs(tmp_path)
    assert kept.name == "run-run7.wandb"
    content = kept.read_bytes()
    assert b"rollout/test_ep_rew" in content
    assert b"updates" in content
    assert "no API key" in caplog.text
    assert f"wandb sync {kept.parent}" in caplog.text


def test_group_tags_and_notes_go_with_the_run(tmp_path: Path) -> None:
    with WandbSink(project="tests", folder=tmp_path, group="seeds", tags=["one", "two"], notes="by night") as sink:
        sink.write(make(1))
    wandb.teardown()
    content = runs(tmp_path)[0].read_bytes()
    assert all(text in content for text in (b"seeds", b"one", b"two", b"by night"))


def test_parts_of_a_run_that_is_resumed_offline_are_to_be_joined(tmp_path: Path) -> None:
    """Without the note, `wandb sync` sends the steps of the second part from 0 again."""
    for run_id in ("run7", "run7", None):
        with WandbSink(project="tests", folder=tmp_path, run_id=run_id) as sink:
            sink.write(make(1))
        time.sleep(1.1)  # the names of the folders are whole seconds
    wandb.teardown()
    assert [noted_resume(path) for path in runs(tmp_path)] == [True, True, False]


def noted_resume(path: Path) -> bool:
    """Return what a file of wandb notes for `wandb sync`: the latest description of its run."""
    noted: list[bool] = [found.run.resume for found in records_in(path) if found.WhichOneof("record_type") == "run"]
    return noted[-1]


def evaluation(number: int, score: float, env_steps: int) -> MetricRecord:
    made = record("evaluation", {names.EVALUATION: number, names.RETURN_EVALUATION: score}, step=number, elapsed_s=1.0)
    return msgspec.structs.replace(made, env_steps=env_steps)


def artifacts_in(path: Path) -> list[tuple[str, list[str], dict[str, Any], bytes]]:
    """Return type, aliases, metadata and content of each artifact of an offline file."""
    found = (each.request for each in records_in(path) if each.WhichOneof("record_type") == "request")
    logged = [one.log_artifact.artifact for one in found if one.WhichOneof("request_type") == "log_artifact"]
    logged += [each.artifact for each in records_in(path) if each.WhichOneof("record_type") == "artifact"]
    return [
        (
            one.type,
            sorted(one.aliases),
            json.loads(one.metadata),
            Path(one.manifest.contents[0].local_path).read_bytes(),
        )
        for one in logged
    ]


def test_videos_and_policies_go_with_the_records(tmp_path: Path) -> None:
    videos, policy = tmp_path / "worker" / "videos", tmp_path / "policy.tmod"
    videos.mkdir(parents=True)
    (videos / "evaluation-1.mp4").write_bytes(b"of an earlier part of the run")
    sink = wandb_sink.of_run(SinkRun(tmp_path), policy=policy, project="tests")
    with sink:
        policy.write_bytes(b"first")
        (videos / "evaluation-2.mp4").write_bytes(b"two")
        os.utime(videos / "evaluation-2.mp4", (1, 1))
        (videos / "evaluation-3.mp4").write_bytes(b"not complete yet")
        sink.write(evaluation(2, -5.0, 200))
        policy.write_bytes(b"second")
        sink.write(evaluation(3, -7.0, 300))
        sink.write(make(4))
    wandb.teardown()
    (path,) = runs(tmp_path)
    filmed = [
        (point[names.SAMPLES_RECEIVED], point["eval/video"]) for point in history_in(path) if "eval/video" in point
    ]
    assert [(steps, one["caption"]) for steps, one in filmed] == [(200, "evaluation 2"), (300, "evaluation 3")]
    media = [path.parent / "files" / one["path"] for _, one in filmed]
    assert [each.read_bytes() for each in media] == [b"two", b"not complete yet"]
    best, final = artifacts_in(path)
    assert (best[0], best[1], best[3]) == ("model", ["best", "latest"], b"first")
    assert best[2] == {names.UPDATES: 2, names.ELAPSED: 1.0, names.SAMPLES_RECEIVED: 200, names.RETURN_EVALUATION: -5.0}
    assert (final[0], final[1], final[3]) == ("model", ["final", "latest"], b"second")


def test_a_worse_evaluation_after_a_resume_is_not_the_best(tmp_path: Path) -> None:
    (tmp_path / "policy.tmod").write_bytes(b"weights")
    with JsonLinesSink(tmp_path / "metrics.jsonl") as kept:
        kept.write(evaluation(1, -5.0, 100))
    run = SinkRun(tmp_path, cut=Cut(last=()))
    with wandb_sink.of_run(run, policy=tmp_path / "policy.tmod", project="tests") as sink:
        sink.write(evaluation(2, -6.0, 200))
    wandb.teardown()
    assert [aliases for _, aliases, _, _ in artifacts_in(runs(tmp_path)[0])] == [["final", "latest"]]


def test_files_that_cannot_be_stored_leave_the_records_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "policy.tmod").mkdir(mode=0o700)
    videos = tmp_path / "worker" / "videos"
    with wandb_sink.of_run(SinkRun(tmp_path), policy=tmp_path / "policy.tmod", project="tests") as sink:
        videos.mkdir(parents=True)
        (videos / "evaluation-1.mp4").symlink_to(tmp_path / "missing")
        sink.write(evaluation(1, -5.0, 100))
        sink.write(evaluation(2, -5.0, 200))
    wandb.teardown()
    assert [point[names.SAMPLES_RECEIVED] for point in history_in(runs(tmp_path)[0])] == [100, 200]
    assert caplog.text.count("wandb does not store files of this run: FileNotFoundError") == 1


def test_without_network_the_run_is_kept_on_disk_and_the_key_is_not_stored(
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
    wandb.teardown()
    assert "not reachable" in caplog.text
    assert runs(tmp_path)
    assert not [name for name, value in os.environ.items() if KEY in value]
    assert KEY not in caplog.text + "".join(capfd.readouterr())
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_with_key_and_network_the_run_is_online(
    tmp_path: Path, wandb_server: FakeWandb, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with WandbSink(project="tests", folder=tmp_path, run_id="run7", key=KEY) as sink:
        sink.write(make(20))
        sink.write(make(10))
        assert sink.mode == "online"
    wandb.teardown()
    sent = b"".join(wandb_server.bodies)
    assert sent.count(b"rollout/test_ep_rew") >= 2
    assert KEY.encode() not in sent
    assert "/me/tests/runs/run7" in caplog.text
    assert runs(tmp_path) == []


def test_a_hanging_upload_delays_the_end_only_up_to_its_limit(tmp_path: Path, wandb_server: FakeWandb) -> None:
    sink = WandbSink(project="tests", folder=tmp_path, run_id="run7", key=KEY, finish_limit_s=0.5)
    recorder = Recorder([sink])
    recorder.write(make(1))
    assert recorder.flush(60.0)
    assert sink.mode == "online"
    wandb_server.silent.set()
    assert recorder.close(60.0)


@pytest.mark.parametrize(("wanted", "mode", "files"), [("offline", "offline", 1), ("disabled", "disabled", 0)])
def test_wandbs_own_mode_holds_even_with_a_key(
    tmp_path: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch, wanted: str, mode: str, files: int
) -> None:
    monkeypatch.setenv("WANDB_MODE", wanted)
    with WandbSink(project="tests", folder=tmp_path, key=KEY) as sink:
        sink.write(make(1))
        assert sink.mode == mode
    wandb.teardown()
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


def test_a_folder_of_wandb_files_is_not_imported_as_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[wandb\]"):
        WandbSink(project="tests", folder=tmp_path)
