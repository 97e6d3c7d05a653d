"""Wrong command lines and configurations: one good line each, the right exit status, no traceback."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tmrl_core.cli import main as cli
from tmrl_core.networking.security import credentials

FILES = {
    "list.yaml": "- a\n",
    "broken.yaml": "server: {port: [\n",
    "tabs.yaml": "server:\n\tport: 3\n",
    "twice.yaml": "server: {port: 1}\nserver: {port: 2}\n",
    "tag.yaml": "server: !!python/object/apply:os.system ['true']\n",
    "token.yaml": "network: {token: hunter2}\n",
    "number.yaml": "server: 3\n",
    "typo.yaml": "server: {prot: 3}\n",
    "broken.json": '{"server": {"port": 1,}}',
    "my.toml": "a = 1\n",
    "file": "x",
    "wrong_env.py": "NUMBER = 3\ndef Env():\n    return 3\n",
    "wrong_texts.py": (
        "import gymnasium\n"
        "class Texts(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Text(8)\n"
        "    action_space = gymnasium.spaces.Box(-1, 1, (1,))\n"
    ),
    "wrong_syntax.py": "def f(:\n",
    "wrong_import.py": "import nothing_like_this\n",
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    credentials.create(folder / "all")
    credentials.bundle(folder / "all", "worker", "robot7", folder)
    credentials.bundle(folder / "all", "trainer", "hpc", folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with wrong files, as the current one."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    for bundle in keys.glob("*.bundle"):
        (tmp_path / bundle.name).write_bytes(bundle.read_bytes())
        (tmp_path / bundle.name).chmod(0o600)
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "all").symlink_to(keys / "all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(logging.root, "handlers", [])
    variables, interval = dict(os.environ), sys.getswitchinterval()
    yield tmp_path
    sys.setswitchinterval(interval)
    for name in [name for name in sys.modules if name.startswith("wrong_")]:
        del sys.modules[name]
    os.environ.clear()
    os.environ.update(variables)


def sets(role: str, *overrides: str) -> list[str]:
    return [f"--{role}", *(part for override in overrides for part in ("--set", override))]


def environment(reference: str) -> list[str]:
    return sets("worker", f"environment.cls={reference}", "environment.kwargs={}")


SERVER = "server.port=0"

COMMA = 22 if sys.version_info >= (3, 13) else 23
"""Column in which Python says that broken.json is wrong: from 3.13 on, that of the comma."""

# (command line, exit status, what is said)
WRONG: list[tuple[list[str], int, str]] = [
    # options
    ([], 2, "name a role to run: --local, --server"),
    (["--frobnicate"], 2, "--frobnicate: no such option; see --help"),
    (["--workr"], 2, "--workr: no such option; did you mean --worker"),
    (["trainer"], 2, "trainer: no such option; did you mean --trainer"),
    (["--worker", "my.yaml"], 2, "my.yaml: no such option"),
    (["--server", "--worker"], 2, "--worker: not allowed with argument --server"),
    (["--server", "--workers", "2"], 2, "--workers goes with --worker or --local, not --server"),
    (["--local", "--workers", "two"], 2, "--workers: invalid int value: 'two'"),
    (["--local", "--workers", "0"], 2, "--workers: found 0, allowed: a whole number of at least 1"),
    (["--worker", "--wandb"], 2, "--wandb goes with --trainer or --local, not --worker"),
    (["--worker", "--log-level", "loud"], 2, "--log-level: invalid choice: 'loud' (choose from"),
    (["--worker", "-c"], 2, "-c/--config: expected one argument"),
    (["--test", "--episodes", "0"], 2, "--episodes: found 0, allowed: a whole number of at least 1"),
    (["--benchmark", "--steps", "many"], 2, "--steps: invalid int value: 'many'"),
    (["--trainer", "--seed", "-1"], 2, "run.seed: found the number -1, allowed: a whole number from 0 to"),
    (["--status", "--watch", "0"], 2, "--watch: found 0, allowed: 0.2 to 86400 seconds"),
    (["--doctor", "--timeout", "0"], 2, "--timeout: found 0, allowed: 0.1 to 600 seconds"),
    # --set
    (["--worker", "--set", "worker.name"], 2, "--set worker.name: write it as section.key=value"),
    (sets("worker", "=3"), 2, "write it as section.key=value"),
    (sets("worker", "worker=3"), 2, "worker: found the number 3, allowed: a mapping with the keys"),
    (sets("worker", "worker.nmae=x"), 2, "worker.nmae: unknown key. Did you mean name"),
    (sets("worker", "wroker.name=x"), 2, "wroker: unknown section. Did you mean worker?"),
    (sets("worker", "name=x"), 2, "Did you mean run.name or worker.name?"),
    (sets("worker", "server.port=[1"), 2, "--set server.port: line 1, column 3: invalid YAML"),
    # files
    (["--worker", "-c", "none.yaml"], 2, "none.yaml: no such file. There: "),
    (["--worker", "-c", "my.toml"], 2, "my.toml: a configuration's name ends in .yaml, .yml, .json, not in '.toml'"),
    (["--worker", "-c", "list.yaml"], 2, "list.yaml: a configuration is a mapping of sections, found list"),
    (["--worker", "-c", "broken.yaml"], 2, "broken.yaml: line 2, column 1: invalid YAML"),
    (["--worker", "-c", "broken.json"], 2, f"broken.json: line 1, column {COMMA}: invalid JSON"),
    (["--worker", "-c", "tabs.yaml"], 2, "tabs.yaml: line 2, column 1: invalid YAML: found character '\\t'"),
    (["--worker", "-c", "tabs.yaml"], 2, "indent with spaces, not with tabs"),
    (["--local", "my.yaml"], 2, "my.yaml: no such option; did you mean -c my.yaml?"),
    (["--worker", "-c", "twice.yaml"], 2, "the key 'server' appears twice; keep one of them"),
    (["--worker", "-c", "binary.yaml"], 2, "binary.yaml: is not UTF-8 text"),
    (["--worker", "-c", "tag.yaml"], 2, "tag.yaml: line 1, column 9: invalid YAML"),
    (["--worker", "-c", "token.yaml"], 2, "network.token: secrets are not allowed in the configuration"),
    (["--worker", "-c", "number.yaml"], 2, "number.yaml: server: found the number 3, allowed: a mapping"),
    (["--worker", "-c", "typo.yaml"], 2, "typo.yaml: server.prot: unknown key. Did you mean port?"),
    # values
    (
        sets("worker", "worker.collection=sync"),
        2,
        "found the text 'sync', allowed: asynchronous, lockstep, synchronous",
    ),
    (sets("worker", "worker.queue_bytes=lots"), 2, "found the text 'lots', allowed: a whole number of at least 1"),
    (sets("worker", "server.port=70000"), 2, "server.port: found the number 70000, allowed: a whole number from 0"),
    (sets("worker", "server.host="), 2, "server.host: found null, allowed: a text that is not empty"),
    (sets("worker", "server.host=https://a.b"), 2, "server.host: 'https://a.b' is not a host name. Give a name or an"),
    (sets("worker", "server.host=a.b:5"), 2, "server.host: 'a.b:5' is not a host name"),
    (sets("worker", "worker.device=gpu"), 2, "worker.device: found 'gpu', allowed: a device of this machine"),
    (sets("worker", "network.transport=udp"), 2, "found the text 'udp', allowed: local, tls, tlspyo"),
    (sets("worker", "network.transport=local"), 2, "local connects threads of one process, and --worker is a process"),
    (
        sets("server", "network.security=null", "server.host=192.0.2.1"),
        2,
        "is not this machine, and network.security is",
    ),
    (
        sets("server", "server.budget_bytes=1"),
        2,
        "server.budget_bytes: found the number 1, allowed: a whole number of at",
    ),
    (sets("trainer", "memory.capacity=10"), 2, "memory.capacity: 10 samples hold no batch of memory.batch_size = 256"),
    (sets("trainer", "memory.capacity=1e30"), 2, "memory.capacity: found a number of 31 digits, allowed: at most"),
    (sets("trainer", "trainer.steps=.inf"), 2, "trainer.steps: found the number inf, allowed: a whole number"),
    (
        sets("trainer", "trainer.threads=0"),
        2,
        "trainer.threads: found the number 0, allowed: a whole number of at least 1",
    ),
    (sets("trainer", "run.name=a/b"), 2, "run.name: found the text 'a/b', allowed: a text that matches"),
    (sets("trainer", "agent.kwargs.gamma=1.5"), 2, "agent.kwargs.gamma: found 1.5, allowed: 0 to 1"),
    (sets("trainer", "memory.storage=tape"), 2, "memory.storage: found the text 'tape', allowed: disk, ram"),
    (
        sets("trainer", "checkpoint.keep_last=0"),
        2,
        "keep_last: found the number 0, allowed: a whole number of at least",
    ),
    (sets("trainer", "metrics.tensorboard=perhaps"), 2, "found the text 'perhaps', allowed: true or false"),
    (
        sets("trainer", "trainer.evaluation.episodes=-1"),
        2,
        "evaluation.episodes: found the number -1, allowed: a whole",
    ),
    (sets("trainer", "trainer.device=tpu"), 2, "trainer.device: found 'tpu', allowed: a device of this machine"),
    (
        sets("trainer", "trainer.limiter.samples_per_insert=8", "trainer.limiter.error_buffer=1"),
        2,
        "trainer.limiter.error_buffer: 1 is narrower than a batch (memory.batch_size = 256)",
    ),
    (
        sets("trainer", "memory.storage=disk", "memory.cls=tmrl_core.training:GenericTorchMemory"),
        2,
        "memory.storage: disk, but tmrl_core.training:GenericTorchMemory keeps its samples in RAM",
    ),
    (
        sets("local", "worker.collection=synchronous", "worker.max_steps_per_update=1", "trainer.start_training=900"),
        2,
        "Workers and trainer would wait for each other for ever: ",
    ),
    # references
    (environment("Pendulum"), 2, "found the text 'Pendulum', allowed: a reference `package.module:Name`"),
    (environment("nowhere:Env"), 2, "'nowhere:Env': module 'nowhere' was not found. Install it, or run where"),
    (environment("wrong_env:Evn"), 2, "'wrong_env' has no 'Evn'. Did you mean Env?"),
    (environment("wrong_env:NUMBER"), 2, "'wrong_env:NUMBER' is 3 (int), which cannot be called. Allowed: a class"),
    (environment("wrong_env:Env"), 2, "made a int, which is not an environment: it lacks action_space"),
    (environment("wrong_syntax:f"), 2, "wrong_syntax.py, line 1, is not valid Python: "),
    (
        environment("wrong_import:f"),
        2,
        "wrong_import.py, line 1, imports 'nothing_like_this', which is not installed",
    ),
    (sets("worker", "environment.kwargs.id=Pendulum-v9"), 2, "version `v9` for environment `Pendulum` doesn't exist"),
    (sets("worker", "environment.kwargs.g=5"), 2, "goes into gym_kwargs: {g: ...}"),
    (sets("worker", "environment.kwargs=[1]"), 2, "environment.kwargs: found a list, allowed: a mapping"),
    (
        sets("worker", "actor.kwargs.hidden_sizes=big"),
        2,
        "actor.kwargs.hidden_sizes: found 'big', allowed: Sequence[int]",
    ),
    (
        sets("worker", "actor.kwargs.hiden_sizes=[8]"),
        2,
        "actor.kwargs: got an unexpected keyword argument 'hiden_sizes'. SquashedGaussianMLPActor takes",
    ),
    (
        sets("trainer", "memory.kwargs.sed=1"),
        2,
        "memory.kwargs: got an unexpected keyword argument 'sed'. ReplayMemory",
    ),
    (sets("trainer", "trainer.loop=builtins:print"), 2, "trainer.loop: 'builtins:print' is not a training loop: "),
    (environment("wrong_texts:Texts"), 2, "the observation itself is of the space Text(1, 8, charset="),
    (sets("worker", "actor.cls=tmrl_core.actor:Nope"), 2, "'tmrl_core.actor' has no 'Nope'"),
    (sets("trainer", "agent.cls=tmrl_core.training:SACAgent"), 2, "has no 'SACAgent'. Did you mean"),
    (
        sets("trainer", "agent.kwargs.gama=1"),
        2,
        "agent.kwargs.gama: SacAgent takes no such keyword argument. Did you mean",
    ),
    (
        sets("trainer", "agent.cls=tmrl_core.training:DQNAgent"),
        2,
        "does not go with agent.cls: tmrl_core.training:DQNAgent",
    ),
    (
        sets("probe", "environment.kwargs.id=CartPole-v1"),
        2,
        "the environment's action space is Discrete(2) (discrete); for",
    ),
    (sets("local", "worker.collection=lockstep"), 2, "does not train in lockstep"),
    # files, ports and credentials of this machine
    (sets("trainer", "run.folder=file"), 2, "/file/default cannot be written: Not a directory"),
    (
        sets("server", "server.spool_dir=file", SERVER),
        2,
        "/file is a file, allowed: a folder, or null",
    ),
    (sets("server", "server.bind=203.0.113.7", SERVER), 1, "not an address of this machine: set server.bind"),
    (
        sets("server", "server.host=a.b", "network.credentials_dir=no"),
        1,
        "no/ca.pem not found. Create credentials with",
    ),
    (sets("worker", "server.host=a.b", "network.credentials_dir=no"), 1, "install a bundle that was made with"),
    (sets("worker", "network.credentials_dir=hpc.trainer.bundle"), 1, "these are a trainer's credentials"),
    (sets("trainer", "network.credentials_dir=robot7.worker.bundle"), 1, "these are a worker's credentials"),
    (sets("worker", "network.credentials_dir=file"), 1, "file is not a bundle of tmrl_core. Make one with"),
    (sets("test", "run.name=nothing"), 2, "run 'nothing' has no saved policy: "),
    # --credentials
    (["--credentials"], 2, "the following arguments are required: COMMAND"),
    (["--credentials", "make"], 2, "COMMAND: invalid choice: 'make' (choose from"),
    (["--credentials", "bundle"], 2, "the following arguments are required: ROLE"),
    (["--credentials", "bundle", "robot"], 2, "ROLE: invalid choice: 'robot' (choose from"),
    (
        ["--credentials", "bundle", "worker", "--set", "network.credentials_dir=all"],
        1,
        "a worker's bundle needs a name: `python -m tmrl_core --credentials bundle worker --name NAME`",
    ),
    (
        ["--credentials", "revoke", "nobody", "--set", "network.credentials_dir=all"],
        1,
        "/all, but to hpc, robot7",
    ),
    (["--credentials", "create", "--days", "-3"], 2, "--days: found '-3', allowed: a number of days, more than 0"),
    (["--credentials", "create", "--host", "http://x"], 1, "'http://x' is neither a host name nor an IP address"),
    (
        ["--credentials", "bundle", "worker", "--name", "a b"],
        1,
        "the name 'a b' is not allowed in a certificate: use 1 to 64",
    ),
    (
        ["--credentials", "install", "none.bundle"],
        1,
        "none.bundle not found. Make a bundle on the machine that holds the CA",
    ),
    (["--credentials", "install", "file"], 1, "file is not a bundle of tmrl_core. Make one with"),
    (["--credentials", "revoke", "nobody"], 1, "credentials/ca.pem not found. Create credentials with"),
    (["--credentials", "renew", "nobody"], 1, "'nobody' has no certificate to renew"),
]


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """The exit status, and what stands on standard error besides the usage and messages of the log."""
    try:
        status: object = cli.main(arguments)
    except SystemExit as exc:
        status = exc.code
    lines = capsys.readouterr().err.splitlines()
    begin = next((number for number, line in enumerate(lines) if ": error: " in line or "Error: " in line), 0)
    return status, "\n".join(lines[begin:])


@pytest.mark.parametrize(("arguments", "status", "said"), WRONG, ids=[" ".join(row[0]) or "nothing" for row in WRONG])
def test_it_is_one_good_line(
    arguments: list[str], status: int, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, err = answer(arguments, capsys)
    assert said in err
    assert found == status
    assert "Traceback" not in err
    assert "hunter2" not in err
    assert len([line for line in err.splitlines() if not line.startswith("    ")]) == 1, "further lines are indented"


@pytest.mark.parametrize("role", ["server", "status"])
def test_a_used_port_and_a_port_without_a_listener(
    role: str, place: Path, capsys: pytest.CaptureFixture[str], keys: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if role == "server":
            found, err = answer(sets("server", f"server.port={port}"), capsys)
            # Only Linux tells which process listens.
            assert sys.platform != "linux" or f"It is held by process {os.getpid()} (" in err
            assert "or set another server.port" in err
    if role == "status":
        found, err = answer(sets("status", f"server.port={port}", f"network.credentials_dir={keys / 'all'}"), capsys)
        assert "the Server is not up yet, or server.port differs" in err
    assert (found, "Traceback" in err, err.count("\n")) == (1, False, 0)


def test_a_missing_extra_is_named(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found_spec = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "tlspyo" else found_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    found, err = answer(sets("server", "network.transport=tlspyo", SERVER), capsys)
    assert "tmrl_core[tlspyo]" in err
    assert (found, "Traceback" in err, err.count("\n")) == (1, False, 0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TMRL_CORE_SERVER_PORT", "high", "TMRL_CORE_SERVER_PORT: server.port: found the text 'high', allowed"),
        ("TMRL_CORE_TOKEN_FILE", "missing", "TMRL_CORE_TOKEN_FILE"),
    ],
)
def test_a_wrong_environment_variable_is_named(
    name: str, value: str, said: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    found, err = answer(["--worker"], capsys)
    assert said in err
    assert (found, "Traceback" in err, err.count("\n")) == (2, False, 0)
