"""The command line: what it prints, its exit statuses, and how roles end.

Only what a process alone shows (signals, pipes, modules that stay away) is tested with real processes.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import gymnasium
import jsonschema
import pytest

from tests.command_line import Run, in_this_process, started
from tests.waiting import until
from tmrl_core import __version__
from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.cli import main as cli
from tmrl_core.cli.options import check_options
from tmrl_core.config.documents import read_document
from tmrl_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with nothing of the person who runs the tests."""
    there = {name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")}
    there["TMRL_CORE_HOME"] = str(tmp_path / "home")
    there["PYTHONPATH"] = str(ROOT)
    return there


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with in_this_process(tmp_path, ["mine", "theirs", "poison"]) as call:
        yield call


@pytest.fixture
def start(tmp_path: Path, environ: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command line; what still runs at the test's end is killed."""
    with started(tmp_path, environ, stderr=subprocess.PIPE) as call:
        yield call


def in_a_process(folder: Path, environ: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=90,
    )


def test_the_version_and_the_exit_status_of_a_process(tmp_path: Path, environ: dict[str, str]) -> None:
    done = in_a_process(tmp_path, environ, "-m", "tmrl_core", "--version")
    assert (done.returncode, done.stdout) == (0, f"tmrl_core {__version__}\n")
    done = in_a_process(tmp_path, environ, "-m", "tmrl_core", "--server", "--set", "server.prot=3")
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: ")
    assert "Traceback" not in done.stderr


def test_the_schema_is_one_and_the_ready_files_fit_it(run: Run) -> None:
    done = run("--config-schema")
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for path in (ROOT / "config").iterdir():
        validator.validate(read_document(path))
    assert not validator.is_valid({"sever": {}})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("server: {prot: 3}\n", "server.prot: unknown key. Did you mean port?"),
        ("server: {port: abc}\n", "server.port: found the text 'abc', allowed: a whole number from 0 to 65535"),
        ("memory: {capacity: 3}\n", "memory.capacity: 3 samples hold no batch"),
        ("server: {port: [\n", "invalid YAML"),
        ("network: {token: hunter2}\n", "secrets are not allowed in the configuration"),
        (None, "my.yaml: no such file"),
    ],
)
def test_a_wrong_configuration_is_one_message_and_exit_status_2(
    run: Run, tmp_path: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "my.yaml").write_text(content, encoding="utf-8")
    done = run("--server", "-c", "my.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: my.yaml: ") or "memory" in said
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr


WRONG = (
    ((), "name a role to run: --local, --server"),
    (("--server", "--worker"), "not allowed with"),
    (("--server", "--workers", "2"), "--workers goes with --worker or --local, not --server"),
    (("--worker", "--wandb"), "--wandb goes with --trainer or --local"),
    (("--local", "--workers", "0"), "--workers: found 0"),
    (("--server", "--gateway"), "--gateway goes with --local, not --server"),
    (("--gateway", "--workers", "2"), "--workers goes with --worker or --local, not --gateway"),
    (("--local", "--gateway", "--single-process"), "--gateway is a process of its own"),
    (("--test", "--render", "--video", "a.mp4"), "leave one of the two out"),
    (("--worker", "--new"), "--new goes with --trainer or --local, not --worker"),
    (("--server", "--seed", "0"), "--seed goes with --worker or --trainer"),
    (("--trainer", "--seed", "-1"), "run.seed"),
    (("--server", "--set", "server.port"), "write it as section.key=value"),
    (("--serv",), "--serv"),
    (("--credentials",), "COMMAND"),
    (("--credentials", "bundle"), "ROLE"),
)


def test_a_wrong_command_line_is_exit_status_2(run: Run) -> None:
    for arguments, said in WRONG:
        done = run(*arguments)
        assert done.returncode == 2, arguments
        assert said in done.stderr, arguments


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of POSIX")
def test_a_crash_of_the_interpreter_shows_where_each_thread_was(tmp_path: Path, environ: dict[str, str]) -> None:
    crash = "import os, signal\n\n\ndef Env():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    (tmp_path / "mine.py").write_text(crash, encoding="utf-8")
    settings = ("--set", "environment.cls=mine:Env", "--set", "environment.kwargs={}")
    done = in_a_process(tmp_path, environ, "-m", "tmrl_core", "--benchmark", *settings)
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert 'mine.py", line 5 in Env' in done.stderr


def test_an_unexpected_exception_keeps_its_traceback(run: Run, tmp_path: Path) -> None:
    source = "def make(**_):\n    raise RuntimeError('a bug of mine')\n"
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    # The interpreter prints it, and exits with status 1.
    with pytest.raises(RuntimeError, match="a bug of mine"):
        run("--benchmark", "--set", "actor.cls=mine:make")
    # The environment's constructor may fail because of the machine: that is named.
    done = run("--benchmark", "--set", "environment.cls=mine:make", "--set", "environment.kwargs={}")
    assert done.returncode == 1
    assert re.search(r"^EnvironmentFailedError: .*mine\.py, line 2: RuntimeError: a bug of mine\.", done.stderr, re.M)
    assert "Traceback" not in done.stderr
    done = run(
        "--benchmark", "--set", "environment.cls=mine:make", "--set", "environment.kwargs={}", "--log-level=debug"
    )
    assert "Traceback" in done.stderr


def test_a_machine_without_a_folder_for_temporary_files_is_told_of_the_variable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import tempfile\ndef Env():\n    tempfile.mkdtemp()\n", encoding="utf-8")
    arguments = ("--benchmark", "--set", "environment.cls=mine:Env", "--set", "environment.kwargs={}")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    done = run(*arguments)
    assert done.returncode == 2
    assert re.search(r"^ConfigError: No usable temporary directory found .*none'\]\. Set TMPDIR", done.stderr, re.M)
    assert "Traceback" not in done.stderr
    # A file of the user's that is missing is another error.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "mine.py").write_text("def Env():\n    open('missing')\n", encoding="utf-8")
    sys.modules.pop("mine")
    done = run(*arguments)
    assert done.returncode == 1
    assert re.search(r"mine\.py, line 2: FileNotFoundError: .*'missing'", done.stderr)


def test_the_configuration_file_s_folder_is_searched_for_references(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "import gymnasium\ndef Env():\n    return gymnasium.make('Pendulum-v1')\n", encoding="utf-8"
    )
    (folder / "my.yaml").write_text("environment: {cls: 'mine:Env', kwargs: {}}\n", encoding="utf-8")
    done = run("--benchmark", "-c", "elsewhere/my.yaml", "--steps", "50")
    assert done.returncode == 0, done.stderr


def test_the_configuration_file_that_is_used_is_named_before_it_imports_anything(run: Run, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("print('it ran', flush=True, file=__import__('sys').stderr)\nEnv = 3\n")
    file = tmp_path / "tmrl_core.yaml"
    file.write_text("environment: {cls: 'theirs:Env'}\nserver: {host: 127.0.0.1}\n")
    said = run("--benchmark", "--steps", "1").stderr
    assert "it ran" in said
    assert -1 < said.find(f"configuration: {file}") < said.find("it ran")
    looked = run("--doctor", "--timeout", "0.1")
    assert "theirs:Env" in looked.stdout
    assert "it ran" not in looked.stderr


def test_the_benchmark_prints_rates_and_needs_no_torch(tmp_path: Path, environ: dict[str, str]) -> None:
    code = (
        "import sys; from tmrl_core.cli import main as cli; status = cli.main(['--benchmark', '--steps', '300']);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = in_a_process(tmp_path, environ, "-c", code)
    assert done.returncode == 0, done.stderr
    rates = dict(line.split(": ") for line in done.stdout.splitlines())
    assert all(int(rate.replace(",", "")) > 0 for rate in rates.values())
    assert "steps_per_s" in rates


@pytest.mark.filterwarnings("ignore:.*[Tt]ime-step.*")  # a busy machine
def test_the_benchmark_of_a_real_time_environment_prints_its_durations(run: Run) -> None:
    kwargs = "{interface: 'tests.actor.rollout.test_real_time:Noting', interface_kwargs: {notes: []}}"
    cls = "environment.cls=tmrl_core.envs:real_time_env"
    done = run("--benchmark", "--set", cls, "--set", f"environment.kwargs={kwargs}", "--steps", "5")
    assert done.returncode == 0, done.stderr
    first, *rows = done.stdout.splitlines()
    assert " of 5 steps late" in first
    assert [row.split()[0] for row in rows] == [
        "time_step_duration",
        "step_duration",
        "join_duration",
        "inference_duration",
        "send_control_duration",
        "get_obs_duration",
    ]


def test_a_test_without_a_saved_policy_names_the_next_step(run: Run, tmp_path: Path) -> None:
    done = run("--test")
    assert done.returncode == 2
    assert "has no saved policy" in done.stderr
    assert "Traceback" not in done.stderr
    assert "policy.tmod too" not in done.stderr
    (tmp_path / "runs" / "default" / "checkpoint").mkdir(parents=True)
    assert "checkpoint, copy the run's policy.tmod too." in run("--test").stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a display")
def test_a_window_that_nobody_can_see_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    warning = "--render: this machine has no display"
    assert warning in run("--test", "--render").stderr
    assert warning not in run("--test").stderr


def test_the_policy_beside_a_copied_configuration_of_a_run_is_played(run: Run, tmp_path: Path) -> None:
    env = gymnasium.make("Pendulum-v1")
    (tmp_path / "moved").mkdir()
    NumpySquashedGaussianMLPActor(env.observation_space, env.action_space).save(tmp_path / "moved" / "policy.tmod")
    (tmp_path / "moved" / "config.yaml").write_text("{}\n", encoding="utf-8")
    done = run("--test", "-c", "moved/config.yaml", "--episodes", "1")
    assert done.returncode == 0, done.stderr
    assert f"loaded from {tmp_path / 'moved' / 'policy.tmod'}" in done.stderr


def test_a_video_is_a_file_of_a_known_kind_or_a_folder(run: Run) -> None:
    done = run("--test", "--video", "a.gif")
    assert done.returncode == 2
    assert "--video: found a.gif, allowed: a file .mp4 or .mkv, or a folder" in done.stderr
    assert "--render goes with --test, not --trainer" in run("--trainer", "--render").stderr


# --- the Server as a process ------------------------------------------------------------------------------------------


def listening(process: subprocess.Popen[str]) -> int:
    """The port that a Server announces."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        pytest.fail(process.stderr.read())
    return int(json.loads(line)["port"])


SERVER = ("--server", "--announce", "--set", "server.port=0")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_server_in_order(
    start: Callable[..., subprocess.Popen[str]], number: signal.Signals, tmp_path: Path
) -> None:
    process = start(*SERVER)
    port = listening(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "ending in order" in err
    with socket.socket() as probe, pytest.raises(OSError):  # noqa: PT011 - refused, or reset where it is slow
        probe.connect(("127.0.0.1", port))


def test_a_port_in_use_is_one_message_and_the_control_pipe_ends_a_server_in_order(
    start: Callable[..., subprocess.Popen[str]], run: Run, tmp_path: Path
) -> None:
    process = start(*SERVER, "--control")
    port = listening(process)
    assert (tmp_path / "home" / "credentials" / "ca.pem").is_file(), "it makes credentials for this machine"
    done = run("--server", "--set", f"server.port={port}")
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr
    _, err = process.communicate("stop\n", timeout=30)
    assert process.returncode == 0, err


def test_a_server_makes_no_credentials_for_another_machine(run: Run, tmp_path: Path) -> None:
    done = run("--server", "--set", "server.host=server.example.org", "--set", "network.credentials_dir=others")
    assert done.returncode == 1
    assert "CredentialsError" in done.stderr
    assert "--credentials create" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "others").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_a_worker_without_a_server_keeps_trying_and_ends_in_order(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("--worker", "--set", "server.port=9", "--set", "worker.drain_timeout_s=0")
    assert process.stderr is not None
    read_until(process.stderr, "cannot reach")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "samples acknowledged" in err


NOTING = """
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tmrl_core.envs import GenericGymEnv

class Noting(GenericGymEnv):
    def step(self, action):
        Path("steps").open("a").write(".")
        return super().step(action)
"""


@pytest.mark.parametrize(
    ("queue_bytes", "spool_bytes", "status", "line"),
    [("20000", "0", 3, "dropped earlier"), ("64e6", "1e7", 0, "samples wait in")],
)
def test_a_worker_that_has_dropped_samples_ends_with_another_status(
    tmp_path: Path, environ: dict[str, str], queue_bytes: str, spool_bytes: str, status: int, line: str
) -> None:
    settings = (
        "server.port=9",
        "worker.max_env_steps_per_update=null",
        "worker.nb_episodes=40",
        f"worker.queue_bytes={queue_bytes}",
        f"worker.spool_bytes={spool_bytes}",
        "worker.drain_timeout_s=0",
    )
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = in_a_process(tmp_path, environ, "-m", "tmrl_core", "--worker", *chosen)
    assert done.returncode == status, done.stderr
    assert line in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_a_second_ctrl_c_ends_immediately(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    # Nobody will ever acknowledge what this worker collects, so it drains for as long as it is allowed to.
    (tmp_path / "noting.py").write_text(NOTING, encoding="utf-8")
    settings = ("server.port=9", "worker.drain_timeout_s=600", "environment.cls=noting:Noting")
    options = [word for setting in settings for word in ("--set", setting)]
    process = start("--worker", *options, PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT))))
    assert process.stderr is not None
    until(lambda: (tmp_path / "steps").exists() and len((tmp_path / "steps").read_text()) > 1, limit_s=60)
    process.send_signal(signal.SIGINT)
    read_until(process.stderr, "a second signal ends immediately")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


def read_until(lines: Iterable[str], wanted: str) -> None:
    """Read on to the line that says this."""
    said = []
    for line in lines:
        said.append(line)
        if wanted in line:
            return
    pytest.fail("".join(said))


# --- credentials ------------------------------------------------------------------------------------------------------


def test_a_message_stays_one_message_with_any_quoted_text(capsys: pytest.CaptureFixture[str]) -> None:
    root, own = logging.getLogger(), logging.getLogger("tmrl_core")
    handlers, level, own_level = root.handlers[:], root.level, own.level
    try:
        cli.set_up_logging("info")
        own.warning("%s has gone", "arm\n12:00:00 ERROR   all is lost\x1b[2J")
        try:
            raise ValueError("\x1b[31mfirst\n12:00:00 ERROR   second")
        except ValueError:
            own.exception("failed")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        own.setLevel(own_level)
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert [line for line in said.splitlines() if not line.startswith((" ", "Traceback"))][2:] == [
        line for line in said.splitlines() if line.endswith("ERROR   failed")
    ]
    assert "\n    12:00:00 ERROR   second" in said


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read everywhere")
def test_a_folder_of_another_user_is_one_message(run: Run, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0)
    done = run("--plot", str(theirs), "--out", "picture")
    assert done.returncode == 1
    assert re.fullmatch(r"PermissionError: .*theirs.*\. This user may not use it, or a folder above it\n", done.stderr)


def test_a_device_that_may_not_be_used_is_told_with_the_line_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "locked_arm.py").write_text(
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "class Arm(PendulumEnv):\n"
        "    def step(self, action):\n"
        "        raise PermissionError(13, 'Permission denied', '/dev/ttyUSB0')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["--benchmark", "--set", "environment.cls=locked_arm:Arm"]) == 1
    told = capsys.readouterr().err
    assert f"{tmp_path / 'locked_arm.py'}, line 4: PermissionError: " in told
    assert "'/dev/ttyUSB0'. This user may not use it" in told


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no tzset")
def test_a_log_of_weeks_says_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        formatter = cli._Formatter("%(asctime)s %(message)s", "%H:%M:%S")
        evening = datetime(2026, 10, 24, 23, 59, tzinfo=timezone(timedelta(hours=2))).timestamp()
        said = []
        for seconds in (0, 1, 3600, 4 * 3600):
            record = logging.makeLogRecord({"msg": "as always", "created": evening + seconds})
            said += formatter.format(record).splitlines()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert said == [
        "2026-10-24, UTC+0200",
        "23:59:00 as always",
        "23:59:01 as always",
        "2026-10-25, UTC+0200",
        "00:59:00 as always",
        "2026-10-25, UTC+0100",
        "02:59:00 as always",
    ]


def test_new_credentials_are_for_the_server_that_the_configuration_names(run: Run) -> None:
    def names(*arguments: str) -> str:
        made = run("--credentials", "create", *arguments)
        assert made.returncode == 0, made.stderr
        assert ("bundle worker" in made.stdout) == ("example.org" in made.stdout)
        return made.stdout.partition("certificate is for ")[2].splitlines()[0]

    loopback = "localhost, 127.0.0.1, ::1"
    assert names() == names("--set", "server.host=::1") == loopback
    relay, other = "relay.example.org", "other.example.org"
    assert names("--set", f"server.host={relay}") == f"{relay}, {loopback}", "in place of the loopback alone"
    assert names("--set", f"server.host={other}", "--host", "localhost", "--overwrite") == loopback, "that name alone"
    assert names("--set", f"server.host={relay}") == f"{relay}, {loopback}"
    assert names("--set", f"server.host={other}") == f"{relay}, {loopback}", "existing names stay"
    assert names("--set", f"server.host={relay}", "--host", other) == f"{other}, {relay}, {loopback}", "and get company"
    assert names("--set", f"network.hostname={relay}", "--overwrite") == f"{relay}, {loopback}"


def test_a_bundle_installs_on_another_machine(run: Run, tmp_path: Path) -> None:
    made = run("--credentials", "create", "--host", "server.example.org", "--host", "192.0.2.7")
    assert made.returncode == 0, made.stderr
    assert "server.example.org, 192.0.2.7" in made.stdout
    bundled = run("--credentials", "bundle", "worker", "--name", "robot7")
    assert bundled.returncode == 0, bundled.stderr
    assert "robot7.worker.bundle" in bundled.stdout
    gateway = run("--credentials", "bundle", "gateway", "--name", "web", "--weight", "4")
    assert "web.worker.bundle" in gateway.stdout
    for role, weight in (("worker", "4"), ("gateway", "0")):
        refused = run("--credentials", "bundle", role, "--name", "web", "--weight", weight)
        assert refused.returncode != 0
        assert f"{weight}" in refused.stderr
    installed = run("--credentials", "install", "robot7.worker.bundle", "--set", "network.credentials_dir=robot")
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "robot" / "worker-robot7.pem").is_file()
    assert not (tmp_path / "robot" / "ca.key").exists()
    # Options of the whole command line may stand before it too.
    shown = run("--set", "network.credentials_dir=robot", "--credentials", "show")
    assert shown.returncode == 0, shown.stderr
    assert "days left" in shown.stdout
    token = (tmp_path / "home" / "credentials" / "worker.token").read_text(encoding="utf-8").strip()
    renewed = run("--credentials", "renew", "--all", "--out", ".")
    assert renewed.returncode == 0, renewed.stderr
    assert "server.pem" in renewed.stdout
    assert "robot7.worker.bundle" in renewed.stdout
    revoked = run("--credentials", "revoke", "robot7")
    assert revoked.returncode == 0, revoked.stderr
    assert revoked.stdout.count("revoked: the worker certificate of robot7") == 2
    listed = run("--credentials", "show")
    assert listed.stdout.count("revoked, revoked.json, worker, robot7") == 2
    rotated = run("--credentials", "rotate-token", "worker")
    assert rotated.returncode == 0, rotated.stderr
    newer = (tmp_path / "home" / "credentials" / "worker.token").read_text(encoding="utf-8").strip()
    assert newer != token
    unknown = run("--credentials", "revoke", "robot8")
    assert unknown.returncode == 1
    assert "no certificate was issued to 'robot8'" in unknown.stderr
    for done in (made, bundled, installed, shown, renewed, revoked, listed, rotated):
        assert token not in done.stdout + done.stderr
        assert newer not in done.stdout + done.stderr


def test_an_api_key_is_printed_once_and_ended_by_its_id(run: Run) -> None:
    made = run("--credentials", "key", "default")
    assert made.returncode == 0, made.stderr
    (text,) = [line.strip() for line in made.stdout.splitlines() if line.startswith("    ")]
    name = text.removeprefix("key-").partition(".")[0]
    listed = run("--credentials", "show")
    assert f"API key, gateway_keys.json, {name}, agent default" in listed.stdout
    assert text not in listed.stdout
    ended = run("--credentials", "revoke", name)
    assert f"the API key {name} of agent default" in ended.stdout
    assert name not in run("--credentials", "show").stdout
    unknown = run("--credentials", "key", "thermostat")
    assert unknown.returncode == 2
    assert "there is no agent 'thermostat', but default" in unknown.stderr


def test_missing_credentials_are_one_message(run: Run) -> None:
    done = run("--credentials", "show")
    assert done.returncode == 1
    assert done.stderr.startswith("CredentialsError: ")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_a_request_to_end_after_the_end_changes_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    program = (
        "import atexit, sys; from tmrl_core.cli import main as cli\n"
        "atexit.register(lambda: (print('at the end', flush=True), sys.stdin.read()))\n"
        "sys.argv[1:] = ['--benchmark', '--steps', '1']\n"
        "sys.exit(cli.main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert "at the end\n" in iter(process.stdout.readline, "")
            for number in (signal.SIGINT, signal.SIGTERM):
                process.send_signal(number)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")


def test_child_processes_of_local_get_their_options() -> None:
    options = cli.parser().parse_args(["--local", "--wandb", "--set", "run.name=x", "--log-level", "error"])
    passed = cli.parser().parse_args(["--trainer", *cli.passed_on(options)])
    assert passed.overrides == ["run.name=x", "metrics.wandb=true"]
    assert passed.log_level == "error"


@pytest.mark.parametrize(
    ("role", "override", "said"),
    [
        (
            "--worker",
            "environment.kwargs={id: Pendulumm-v1}",
            "environment.kwargs: Environment `Pendulumm` doesn't",
        ),
        ("--trainer", "environment.kwargs={id: Pendulumm-v1}", "environment.kwargs: Environment `Pendulumm` doesn't"),
        ("--worker", "environment.kwargs={idd: x}", "environment.kwargs: got an unexpected keyword argument 'idd'"),
        ("--worker", "environment.kwargs.g=5", "goes into gym_kwargs: {g: ...}"),
        ("--trainer", "agent.kwargs={gama: 1}", "agent.kwargs.gama: SacAgent takes no such keyword argument"),
        ("--trainer", "memory.kwargs={size: 1}", "memory.kwargs: got an unexpected keyword argument 'size'"),
        ("--trainer", "trainer.device=nonsense", "trainer.device: found 'nonsense'"),
        ("--worker", "worker.device=nonsense", "worker.device: found 'nonsense'"),
        ("--local", "worker.device=nonsense", "worker.device: found 'nonsense'"),
        ("--local", "worker.collection=lockstep", "trainer.loop: tmrl_core.training:TorchTrainingOffline does not"),
    ],
)
def test_library_errors_are_one_message(run: Run, role: str, override: str, said: str) -> None:
    done = run(role, "--set", override, "--set", "server.port=1")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


def test_an_option_with_another_role_is_refused() -> None:
    options = cli.parser().parse_args(["--worker", "--quickstart"])
    with pytest.raises(ConfigError, match="--quickstart goes with --local"):
        check_options(options, cli.ROLES | options.added)


POISON = """
import gymnasium as gym

class Poison(gym.Wrapper):
    def step(self, action):
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, 1e30, terminated, truncated, info  # finite, but not its square

gym.register("Poison-v0", entry_point=lambda: Poison(gym.make("Pendulum-v1")))
"""


def test_a_new_run_has_a_name_of_its_own_and_the_seed_that_is_given(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs" / "default").mkdir(parents=True)
    done = run("--local", "--single-process", "--new", "--seed", "7", "--set", "trainer.device=nonsense")
    assert "this run is called default-2 (other machines need --set run.name=default-2)" in done.stderr
    options = cli.parser().parse_args(["--local", "--seed", "0", "--set", "run.seed=3"])
    assert cli.load_config(options).run.seed == 0
    assert cli.passed_on(options)[-2:] == ["--set", "run.seed=0"]


def test_updates_that_are_not_finite_end_a_run_with_exit_status_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "poison.py").write_text(POISON)
    settings = {
        "run.folder": "runs",
        "run.name": "bad",
        "environment.kwargs": "{id: 'poison:Poison-v0', to_float32: true}",
        "agent.kwargs": "{hidden_sizes: [8, 8], compile: false}",
        "trainer.device": "cpu",
        "trainer.threads": "1",
        "trainer.start_training": "20",
        "trainer.max_bad_updates": "3",
        "metrics.console": "false",
    }
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    done = run("--local", "--single-process", *given)
    assert done.returncode == 1, done.stderr
    assert "BadUpdatesError: 3 updates in a row" in done.stderr
    assert done.stderr.count("3 updates in a row") == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("was skipped: NaN or Inf in losses or gradients; its batch is finite") == 3


def test_torch_is_loaded_at_once_and_never_searched_for_garbage() -> None:
    try:
        cli.load_torch()
        assert "torch._dynamo" in sys.modules
        assert gc.isenabled()
        assert gc.get_freeze_count() > 100_000
    finally:
        gc.unfreeze()
