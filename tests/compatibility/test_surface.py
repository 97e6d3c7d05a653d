"""The surface that users meet, compared with committed snapshots: signatures, exports, help, JSON Schema, messages.

A difference fails the test and prints a unified diff. When a change alters the surface on purpose (a new parameter, a
message in better words), record the snapshots again in the same commit, so that its diff shows the change:

    RECORD_SURFACE=1 python -m pytest tests/compatibility/test_surface.py

Everything here goes through public names, the command line or configuration values, so that
moving code changes nothing.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tmrl_core.cli import main as cli
from tmrl_core.config import from_values, load
from tmrl_core.networking import Buffer, RolloutWorker, Server
from tmrl_core.networking.security import credentials

SNAPSHOTS = Path(__file__).parent / "surface"


def compare(name: str, text: str) -> None:
    """Compare text with a snapshot, or record it when `RECORD_SURFACE` is 1."""
    file = SNAPSHOTS / name
    if os.environ.get("RECORD_SURFACE") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
        return
    recorded = file.read_text(encoding="utf-8")
    if text != recorded:
        difference = difflib.unified_diff(
            recorded.splitlines(), text.splitlines(), f"recorded {name}", "now", "", "", 3, ""
        )
        pytest.fail("\n".join(difference), pytrace=False)


# --- signatures -------------------------------------------------------------------------------------------------------

PACKAGES = (
    "tmrl_core",
    "tmrl_core.actor",
    "tmrl_core.compat.config.config_constants",
    "tmrl_core.compat.config.config_objects",
    "tmrl_core.config",
    "tmrl_core.envs",
    "tmrl_core.functional",
    "tmrl_core.metrics",
    "tmrl_core.networking",
    "tmrl_core.samples",
    "tmrl_core.storage",
    "tmrl_core.training",
)

# Module -> names, and the methods of each class.
DOCUMENTED: dict[str, dict[str, str]] = {
    "tmrl_core": {"cached_property": "", "partial": "", "prod": ""},
    "tmrl_core.config": {"current": "", "load": "", "from_values": "", "resolve": "", "use": "", "with_changes": ""},
    "tmrl_core.envs": {"GenericGymEnv": "reset step close render"},
    "tmrl_core.networking": {
        "Buffer": "append_sample clear __len__ __iadd__",
        "Server": "close wait __enter__ __exit__",
        "RolloutWorker": (
            "act reset step collect_train_episode run_episode run_episodes run run_synchronous run_env_benchmark "
            "send_and_clear_buffer update_actor_weights ignore_actor_weights close"
        ),
        "Trainer": "run run_with_wandb close",
    },
    "tmrl_core.actor": {
        "ActorModule": "act save load to_bytes from_bytes to_device",
        "TorchActorModule": "act save load to_bytes from_bytes to_device",
        "SquashedGaussianMLPActor": "act",
        "CategoricalMLPActor": "act",
        "DeterministicMLPActor": "act",
        "GaussianMLPActor": "act",
        "QValueMLPActor": "act",
        "NumpyCategoricalMLPActor": "act",
        "NumpyDeterministicMLPActor": "act",
        "NumpyGaussianMLPActor": "act",
        "NumpyQValueMLPActor": "act",
        "NumpySquashedGaussianMLPActor": "act",
        "choose_actor": "",
        "numpy_backend_of": "",
    },
    "tmrl_core.training": {
        "CheckpointStore": "",
        "DQNAgent": "train get_actor",
        "DiscreteSacAgent": "train get_actor",
        "FrameStackMemory": "append_buffer __len__ __iter__",
        "GenericTorchMemory": "append_buffer __len__ __iter__ get_transition collate",
        "LocalInterface": "retrieve_buffer commit broadcast_model",
        "MLPActorCritic": "",
        "Memory": "append_buffer __len__ __iter__ get_transition collate",
        "PPOAgent": "train get_actor",
        "REDQMLPActorCritic": "",
        "REDQSACAgent": "train get_actor",
        "ReplayMemory": "append_buffer __len__ __iter__",
        "RoundMemory": "__len__",
        "SacAgent": "train get_actor",
        "SpinupSacAgent": "train get_actor",
        "TD3Agent": "train get_actor",
        "TorchMemory": "append_buffer __len__ __iter__ get_transition collate",
        "TorchTrainingOffline": "run_epoch update_buffer save load",
        "TrainingAgent": "train get_actor",
        "TrainingLockstep": "run_epoch save load",
        "TrainingOffline": "run_epoch update_buffer save load",
    },
}  # fmt: skip

MARKS: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def default_text(value: object) -> str:
    """A default without the place of its definition."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    if isinstance(value, tuple):
        return f"({', '.join(map(default_text, value))})"
    return repr(value)


def signature_lines(called: Callable[..., Any]) -> list[str]:
    """One line for each parameter, with the markers of positional-only and keyword-only ones."""
    lines: list[str] = []
    before = None
    for parameter in inspect.signature(called).parameters.values():
        kind = parameter.kind
        if before is inspect.Parameter.POSITIONAL_ONLY and kind is not before:
            lines.append("/")
        if kind is inspect.Parameter.KEYWORD_ONLY and before not in (kind, inspect.Parameter.VAR_POSITIONAL):
            lines.append("*")
        has_default = parameter.default is not inspect.Parameter.empty
        default = f"={default_text(parameter.default)}" if has_default else ""
        lines.append(f"{MARKS.get(kind, '')}{parameter.name}{default}")
        before = kind
    return [*lines, "/"] if before is inspect.Parameter.POSITIONAL_ONLY else lines


def test_signatures() -> None:
    lines: list[str] = []
    for module, names in DOCUMENTED.items():
        for name, methods in names.items():
            found = getattr(importlib.import_module(module), name)
            lines += [f"{module}:{name}", *(f"    {line}" for line in signature_lines(found))]
            for method in methods.split():
                lines.append(f"    .{method}({', '.join(signature_lines(getattr(found, method)))})")
            lines.append("")
    compare("signatures.txt", "\n".join(lines))


def test_exports() -> None:
    lines: list[str] = []
    for package in PACKAGES:
        lines += [package, *(f"    {name}" for name in sorted(importlib.import_module(package).__all__)), ""]
    compare("exports.txt", "\n".join(lines))


# --- the command line's help, and the schema --------------------------------------------------------------------------

HELPED = (
    [],
    ["--doctor"],
    ["--sessions"],
    ["--sessions", "list"],
    ["--sessions", "export"],
    ["--sessions", "import"],
    ["--credentials"],
    *(
        ["--credentials", name]
        for name in ("create", "bundle", "install", "show", "revoke", "renew", "rotate-token", "key")
    ),
)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each version of argparse lays its help out differently")
def test_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    parts: list[str] = []
    for arguments in HELPED:
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--help"])
        assert ended.value.code == 0
        parts.append(f"$ python -m tmrl_core {' '.join([*arguments, '--help'])}\n{capsys.readouterr().out}")
    compare("help.txt", "\n".join(parts))


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--config-schema"]) == 0
    compare("schema.json", capsys.readouterr().out)


# --- error messages ---------------------------------------------------------------------------------------------------

FILES = {
    "list.yaml": "- a\n",
    "broken.yaml": "server: {port: [\n",
    "twice.yaml": "server: {port: 1}\nserver: {port: 2}\n",
    "token.yaml": "network: {token: hunter2}\n",
    "broken.json": '{"server": {"port": }}',
    "my.toml": "a = 1\n",
    "file": "x",
    "surface_env.py": (
        "import gymnasium, numpy\nNUMBER = 3\ndef Three():\n    return 3\n"
        "class Texts(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Text(8)\n"
        "    action_space = gymnasium.spaces.Box(-1, 1, (1,), numpy.float32)\n"
    ),
}


def sets(role: str, *overrides: str) -> list[str]:
    return [f"--{role}", *(part for override in overrides for part in ("--set", override))]


COMMANDS: dict[str, list[str]] = {
    "no role": [],
    "misspelt option": ["--workr"],
    "option of another role": ["--server", "--workers", "2"],
    "no workers": ["--local", "--workers", "0"],
    "set without a value": ["--worker", "--set", "worker.name"],
    "unknown section": sets("worker", "wroker.name=x"),
    "unknown key of a section": sets("worker", "worker.nmae=x"),
    "key without its section": sets("worker", "name=x"),
    "missing file": ["--worker", "-c", "none.yaml"],
    "file of another format": ["--worker", "-c", "my.toml"],
    "file that is a list": ["--worker", "-c", "list.yaml"],
    "broken YAML": ["--worker", "-c", "broken.yaml"],
    "broken JSON": ["--worker", "-c", "broken.json"],
    "key written twice": ["--worker", "-c", "twice.yaml"],
    "secret in a file": ["--worker", "-c", "token.yaml"],
    "run.name": sets("trainer", "run.name=a/b"),
    "run.seed": sets("trainer", "run.seed=-1"),
    "run.folder": sets("trainer", "run.folder=file"),
    "server.port": sets("server", "server.port=70000"),
    "server.host": sets("worker", "server.host=https://example.org"),
    "server.budget_bytes": sets("server", "server.budget_bytes=1"),
    "server.spool_dir": sets("server", "server.spool_dir=file", "server.port=0"),
    "network.transport": sets("worker", "network.transport=udp"),
    "network.transport local as a process": sets("worker", "network.transport=local"),
    "network.security beyond this machine": sets("server", "network.security=null", "server.host=192.0.2.1"),
    "worker.collection": sets("worker", "worker.collection=sync"),
    "worker.device": sets("worker", "worker.device=gpu"),
    "worker.queue_bytes": sets("worker", "worker.queue_bytes=lots"),
    "environment.cls that is no reference": sets("worker", "environment.cls=Pendulum"),
    "environment.cls of no module": sets("worker", "environment.cls=nowhere:Env"),
    "environment.cls misspelt": sets("worker", "environment.cls=surface_env:Tree", "environment.kwargs={}"),
    "environment.cls of a number": sets("worker", "environment.cls=surface_env:NUMBER", "environment.kwargs={}"),
    "environment.cls that makes no environment": sets(
        "worker", "environment.cls=surface_env:Three", "environment.kwargs={}"
    ),
    "environment.kwargs": sets("worker", "environment.kwargs=[1]"),
    "environment.kwargs of the inner environment": sets("worker", "environment.kwargs.g=5"),
    "observation space of texts": sets("worker", "environment.cls=surface_env:Texts", "environment.kwargs={}"),
    "actor.cls": sets("worker", "actor.cls=tmrl_core.actor:Nope"),
    "actor.kwargs misspelt": sets("worker", "actor.kwargs.hiden_sizes=[8]"),
    "actor.kwargs of another type": sets("worker", "actor.kwargs.hidden_sizes=big"),
    "agent.cls misspelt": sets("trainer", "agent.cls=tmrl_core.training:SACAgent"),
    "agent.cls that does not go with the actor": sets("trainer", "agent.cls=tmrl_core.training:DQNAgent"),
    "agent.kwargs misspelt": sets("trainer", "agent.kwargs.gama=1"),
    "agent.kwargs out of range": sets("trainer", "agent.kwargs.gamma=1.5"),
    "discrete actions for SAC": sets("local", "environment.kwargs.id=CartPole-v1"),
    "off-policy agent in lockstep": sets("local", "worker.collection=lockstep"),
    "memory.capacity below a batch": sets("trainer", "memory.capacity=10"),
    "memory.storage": sets("trainer", "memory.storage=tape"),
    "memory on disk that keeps rows": sets(
        "trainer", "memory.storage=disk", "memory.cls=tmrl_core.training:GenericTorchMemory"
    ),
    "memory.kwargs misspelt": sets("trainer", "memory.kwargs.sed=1"),
    "trainer.steps": sets("trainer", "trainer.steps=.inf"),
    "trainer.device": sets("trainer", "trainer.device=tpu"),
    "trainer.loop": sets("trainer", "trainer.loop=builtins:print"),
    "trainer.limiter": sets("trainer", "trainer.limiter.samples_per_insert=8", "trainer.limiter.error_buffer=1"),
    "ratios that starve each other": sets(
        "local",
        "worker.collection=synchronous",
        "worker.max_steps_per_update=1",
        "trainer.max_training_steps_per_env_step=0.001",
    ),
    "checkpoint.keep_last": sets("trainer", "checkpoint.keep_last=0"),
    "metrics.tensorboard": sets("trainer", "metrics.tensorboard=perhaps"),
    "trainer.evaluation.episodes": sets("trainer", "trainer.evaluation.episodes=-1"),
    "no saved policy": sets("test", "run.name=nothing"),
    "no credentials": sets("worker", "server.host=example.org", "network.credentials_dir=no"),
    "credentials of another role": sets("worker", "network.credentials_dir=hpc.trainer.bundle"),
    "credentials that are something else": sets("worker", "network.credentials_dir=file"),
    "credentials bundle without a name": ["--credentials", "bundle", "worker", "--set", "network.credentials_dir=keys"],
    "credentials install of no bundle": ["--credentials", "install", "file"],
    "credentials install of a missing file": ["--credentials", "install", "none.bundle"],
    "credentials revoke without a CA": ["--credentials", "revoke", "nobody"],
    "credentials revoke of nobody": ["--credentials", "revoke", "nobody", "--set", "network.credentials_dir=keys"],
    "credentials renew of nobody": ["--credentials", "renew", "nobody", "--set", "network.credentials_dir=keys"],
}

BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
CLIP = gymnasium.spaces.Box(0, 255, (2, 2, 64, 64, 3), np.uint8)
ACTIONS = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


def training(**values: Any) -> Any:
    """A small training object."""
    from tmrl_core.training import ReplayMemory, SacAgent, TorchTrainingOffline

    kwargs = {"epochs": 1, "rounds": 1, "steps": 1, "device": "cpu"} | values
    return TorchTrainingOffline((BOX, ACTIONS), ReplayMemory, SacAgent, **kwargs)


def samples(observation: Any, reward: float = 0.0, action: Any = None) -> Buffer:
    """Three steps of one episode."""
    buffer = Buffer(10)
    for _ in range(3):
        buffer.append_sample((action or np.zeros(1, np.float32), observation, reward, False, False, {}))
    return buffer


def train_on(*buffers: Buffer) -> None:
    """Give samples to a training object; the reasons for refusing them are logged."""
    from tmrl_core.training import LocalInterface

    interface, made = LocalInterface(), training()
    for buffer in buffers:
        interface.put(buffer)
        made.update_buffer(interface)


def constructor_of_redq() -> object:
    from tmrl_core.training import REDQSACAgent

    return REDQSACAgent(BOX, ACTIONS, "cpu", n=2, m=3)


def constructor_of_td3() -> object:
    from tmrl_core.training import TD3Agent

    return TD3Agent(BOX, ACTIONS, "cpu", policy_delay=0)


def constructor_of_ppo() -> object:
    from tmrl_core.training import PPOAgent

    return PPOAgent(BOX, ACTIONS, "cpu", minibatch_size=1)


def constructor_of_dqn() -> object:
    from tmrl_core.training import DQNAgent

    return DQNAgent(BOX, gymnasium.spaces.Discrete(2), "cpu", target_interval=0)


def agent_of_discrete_actions() -> object:
    from tmrl_core.training import DQNAgent

    return DQNAgent(BOX, ACTIONS, "cpu")


def optimizer_that_is_unknown() -> object:
    from tmrl_core.training import SacAgent

    return SacAgent(BOX, ACTIONS, "cpu", optimizer_actor="lion")


def memory_of_a_broken_size() -> object:
    from tmrl_core.training import ReplayMemory

    return ReplayMemory("cpu", 1, memory_size=10.5)


def memory_on_disk_without_a_folder() -> object:
    from tmrl_core.training import ReplayMemory

    return ReplayMemory("cpu", 1, storage="disk")


def memory_of_one_frame() -> object:
    from tmrl_core.training import FrameStackMemory

    return FrameStackMemory("cpu", 1, frame_stack=1)


def memory_that_is_empty() -> object:
    from tmrl_core.training import ReplayMemory

    return next(iter(ReplayMemory("cpu", 1)))


def lockstep_of_steps_and_episodes() -> object:
    from tmrl_core.training import PPOAgent, RoundMemory, TrainingLockstep

    return TrainingLockstep((BOX, ACTIONS), RoundMemory, PPOAgent, steps_per_round=3, episodes_per_round=3)


def policy_of_images() -> object:
    from tmrl_core.actor import SquashedGaussianMLPActor

    return SquashedGaussianMLPActor(CLIP, ACTIONS)


def policy_of_discrete_actions() -> object:
    from tmrl_core.actor import SquashedGaussianMLPActor

    return SquashedGaussianMLPActor(BOX, gymnasium.spaces.Discrete(2))


def policy_without_save() -> object:
    from tmrl_core.actor import ActorModule

    class Own(ActorModule):
        def act(self, obs: Any, test: bool = False) -> Any:
            return None

    Own(BOX, ACTIONS).save("policy.tmod")
    return None


def weights_that_are_text() -> object:
    from tmrl_core.actor import SquashedGaussianMLPActor

    return SquashedGaussianMLPActor(BOX, ACTIONS).from_bytes(b"weights", "cpu")


def weights_of_another_architecture() -> object:
    from tmrl_core.actor import SquashedGaussianMLPActor

    small = SquashedGaussianMLPActor(BOX, ACTIONS, hidden_sizes=(4, 4))
    return SquashedGaussianMLPActor(BOX, ACTIONS, hidden_sizes=(8, 8)).from_bytes(small.to_bytes(), "cpu")


def checkpoint_that_is_missing() -> None:
    training().load(Path("nothing"))


def checkpoint_that_is_damaged() -> None:
    training().save(Path("saved"))
    for file in Path("saved").iterdir():
        file.write_bytes(file.read_bytes()[:20])
    training().load(Path("saved"))


def checkpoint_of_another_configuration() -> None:
    from tmrl_core.training import SacAgent

    training().save(Path("other"))
    loaded = training()
    loaded.agent = partial(SacAgent, hidden_sizes=(8, 8))(BOX, ACTIONS, "cpu")
    loaded.load(Path("other"))


def checkpoint_onto_a_file() -> None:
    training().save(Path("file"))


def worker_of_no_environment() -> object:
    return RolloutWorker(int, int, standalone=True)


def server_on_a_port_in_use() -> None:
    config = from_values({"server": {"port": 0}, "network": {"credentials_dir": "keys"}})
    with Server(config=config) as first:
        Server(port=first.port, config=config).close()


def status_with(folder: str) -> int:
    """Ask a Server whose credentials are in `keys` with the credentials in another folder."""
    with Server(config=from_values({"server": {"port": 0}, "network": {"credentials_dir": "keys"}})) as server:
        return cli.main(sets("status", f"server.port={server.port}", f"network.credentials_dir={folder}"))


def credentials_of_another_authority() -> int:
    return status_with("other_keys")


def token_that_is_wrong() -> int:
    os.environ["TMRL_CORE_TOKEN"] = "wrong" * 8
    return status_with("keys")


CALLS: dict[str, Callable[[], object]] = {
    "values of from_values": lambda: from_values({"memory": {"batch_size": "many"}}),
    "values that are unknown": lambda: from_values({"trainer": {"epoch": 3}}),
    "file of load": lambda: load("none.yaml"),
    "Buffer of no length": lambda: Buffer(0),
    "Buffer of a broken sample": lambda: Buffer(3).append_sample((1, 2, 3)),
    "samples of another shape": lambda: train_on(samples(np.zeros(3, np.float32)), samples(np.zeros(4, np.float32))),
    "samples of texts": lambda: train_on(samples("left")),
    **{
        call.__name__.replace("_", " "): call
        for call in (
            agent_of_discrete_actions,
            checkpoint_of_another_configuration,
            checkpoint_onto_a_file,
            checkpoint_that_is_damaged,
            checkpoint_that_is_missing,
            constructor_of_dqn,
            constructor_of_ppo,
            constructor_of_redq,
            constructor_of_td3,
            credentials_of_another_authority,
            lockstep_of_steps_and_episodes,
            memory_of_a_broken_size,
            memory_of_one_frame,
            memory_on_disk_without_a_folder,
            memory_that_is_empty,
            optimizer_that_is_unknown,
            policy_of_discrete_actions,
            policy_of_images,
            policy_without_save,
            server_on_a_port_in_use,
            token_that_is_wrong,
            weights_of_another_architecture,
            weights_that_are_text,
            worker_of_no_environment,
        )
    },
}


# Ports, and words of other packages that change with their versions.
VARYING = {
    r"(127\.0\.0\.1:|127\.0\.0\.1 port )\d+": r"\1PORT",
    r"(such as cpu: ).*": r"\1...",
    r"(cannot listen on .* port PORT: ).*( Is another Server)": r"\1...\2",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with wrong files and right credentials, as the current one."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "file").chmod(0o600)
    credentials.create(tmp_path / "keys")
    credentials.create(tmp_path / "other_keys")
    credentials.bundle(tmp_path / "keys", "trainer", "hpc", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(logging.root, "handlers", [])
    interval = sys.getswitchinterval()
    yield tmp_path
    sys.setswitchinterval(interval)
    sys.modules.pop("surface_env", None)


def said_by(call: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> str:
    """The exception of a call, or its exit status and the errors it prints, or the warnings it logs."""
    variables = dict(os.environ)
    logger, warnings = logging.getLogger("tmrl_core"), BufferingHandler(1000)
    warnings.setLevel(logging.WARNING)
    logger.addHandler(warnings)
    capsys.readouterr()
    ended: object = None
    try:
        ended = call()
    except SystemExit as exc:
        ended = exc.code
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    finally:
        logger.removeHandler(warnings)
        os.environ.clear()
        os.environ.update(variables)
    if ended is None:
        return "\n".join(f"{record.levelname}: {record.getMessage()}" for record in warnings.buffer)
    lines = capsys.readouterr().err.splitlines()
    begin = next((number for number, line in enumerate(lines) if re.search(r"(: error|^\w*Error): ", line)), len(lines))
    return "\n".join([*lines[begin:], f"exit status {ended}"])


@pytest.mark.filterwarnings("ignore")
def test_error_messages(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = os.environ["TMRL_CORE_HOME"]
    calls = {name: partial(cli.main, arguments) for name, arguments in COMMANDS.items()} | CALLS
    parts: list[str] = []
    for name, call in calls.items():
        text = said_by(call, capsys).replace(str(place), "FOLDER").replace(home, "HOME")
        for pattern, replacement in VARYING.items():
            text = re.sub(pattern, replacement, text)
        assert text, f"{name}: no error"
        parts.append(f"[{name}]\n{text}\n")
    compare("errors.txt", "\n".join(parts))
