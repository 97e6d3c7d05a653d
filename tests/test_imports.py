"""Imports point one way, the protocol stays without I/O, and nothing happens on import."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import source
from tests.test_decodable import decoded_types
from tmrl_core import rooms

# From the bottom to the top. A module imports from its own package and from packages of lower ranks; the longest prefix
# decides. Only packages have ranks, and the modules beside them at the top.
LAYERS: list[tuple[str, ...]] = [
    (
        "blas_threads",
        "bounded_texts",
        "decodable",
        "errors",
        "forked",
        "functional",
        "lazy_names",
        "long_calls",
        "rate_limit",
        "rate_limited_log",
        "rooms",
        "signal_handlers",
        "space_tree",
        "terminal_log",
        "token_bucket",
    ),
    ("storage",),
    ("config",),
    ("samples", "metrics"),
    ("networking.protocol",),
    ("networking.security", "networking.spools"),
    ("networking.end_to_end",),
    ("networking.relay", "networking.worker", "networking.trainer", "networking.observer", "networking.transports"),
    ("networking.transports.tlspyo",),
    ("networking.links",),
    ("networking",),  # lazy names only
    ("envs",),
    ("sessions",),
    ("envs.lerobot", "envs.replay", "sessions.lerobot", "sessions.minari"),
    ("actor",),
    ("actor.policies",),
    ("actor.policies.numpy",),
    ("actor.policies.torch",),
    ("actor.rollout",),
    ("training",),  # contracts and batches
    ("training.memories",),
    ("training.updates",),
    ("training.agents",),
    ("training.loops",),
    ("training.checkpoints",),
    ("training.remote",),
    ("testing", "teleop"),
    ("roles",),
    ("web",),
    ("local", "doctor", "gateway", "dashboard", "multiagent", "ranks"),
    ("cli", "compat", "onnx_export", "plots", "success"),
    ("__main__",),
]
PROTOCOL = tuple(f"networking.{name}" for name in ("protocol", "relay", "worker", "trainer", "observer"))
PROTOCOL_PACKAGES = {"numpy", "msgspec", "zstandard", "tmrl_core"}
SEALS = (
    "networking.worker.seal",
    "networking.trainer.seal",
    "networking.observer.seal",
)
"""Loaded only where end-to-end authentication is on; they may import `cryptography` too."""
DOES_IO = {"asyncio", "selectors", "select", "socket", "ssl", "multiprocessing", "subprocess"}
TORCH_PACKAGES = (  # loaded where they are needed
    "actor.policies.torch",
    "compat.custom",
    "gateway.advice",
    "ranks.process_group",
    "ranks.trainer",
    "success.training",
    *(f"multiagent.algorithms.{name}" for name in ("a2c", "torch_algorithm", "batches", "dqn", "training_agent")),
)


def module_name(file: Path) -> str:
    """The module's name without the package's."""
    parts = list(file.relative_to(source.PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in source.FILES}


def at_import(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, other than for type checkers."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from at_import(statement.orelse)
            continue
        for block in ("body", "orelse", "finalbody"):
            yield from at_import(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from at_import(handler.body)


@functools.cache
def imported(module: str) -> set[str]:
    """Full names of the modules (or of names in them) that a module imports when it is imported."""
    names: set[str] = set()
    for statement in at_import(source.tree(FILES[module]).body):
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{module}: relative import"
            names |= {f"{statement.module}.{alias.name}" for alias in statement.names}
    return names


@functools.cache
def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports when it is imported."""
    found = set()
    for name in imported(module):
        if name.split(".")[0] == "tmrl_core":
            rest = name.partition(".")[2]
            found.add(rest if rest in FILES else rest.rpartition(".")[0])
    return found


def layer(module: str) -> int:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        for number, prefixes in enumerate(LAYERS):
            if prefix in prefixes:
                return number
    raise AssertionError(f"tmrl_core.{module} is in no layer: say in LAYERS where it belongs")


def test_imports_point_one_way() -> None:
    upwards = [
        f"tmrl_core.{module} imports tmrl_core.{other}, which is above it"
        for module in FILES
        for other in own_imports(module)
        if module and other and layer(other) > layer(module)  # the package itself holds the version and lazy names
    ]
    assert not upwards


def test_imports_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(own_imports(module)):
                visit(other, (*path, module))
            done.add(module)

    for module in FILES:
        visit(module, ())


ONE_CIRCLE = "networking.relay"
"""The hub of links and its parts, which call each other. No other modules may import each other in a circle."""


@functools.cache
def all_imports(module: str) -> set[str]:
    """The modules of the package that a module imports at any time, or for type checkers only."""
    found = set()
    for node in ast.walk(source.tree(FILES[module])):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            if top == "tmrl_core":
                found.add(rest if rest in FILES else rest.rpartition(".")[0])
    return (found & FILES.keys()) - {module, ""}


def test_imports_on_use_and_for_types_have_no_circle_either() -> None:
    def outside(module: str) -> set[str]:
        inner = module.startswith(ONE_CIRCLE)
        return {name for name in all_imports(module) if not (inner and name.startswith(ONE_CIRCLE))}

    graphlib.TopologicalSorter({module: outside(module) for module in FILES}).prepare()  # raises a CycleError
    relay = [module for module in FILES if module.startswith(ONE_CIRCLE)]
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({module: all_imports(module) for module in relay}).prepare()


def test_protocol_modules_do_no_io() -> None:
    modules = [name for name in FILES if name.startswith(PROTOCOL)]
    assert modules
    for module in modules:
        tops = {name.split(".")[0] for name in imported(module)}
        assert not tops & DOES_IO, module
        allowed = PROTOCOL_PACKAGES | ({"cryptography"} if module in SEALS else set())
        assert tops <= allowed | set(sys.stdlib_module_names), module


def test_only_training_imports_torch() -> None:
    for module in FILES:
        if module.split(".")[0] != "training" and not module.startswith(TORCH_PACKAGES):
            assert "torch" not in {name.split(".")[0] for name in imported(module)}, module
            assert not [name for name in own_imports(module) if name.startswith(TORCH_PACKAGES)], module


def run(code: str, *arguments: str) -> Any:
    """What a fresh Python prints as JSON."""
    command = [sys.executable, "-B", "-c", code, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_server_runs_without_numpy(tmp_path: Path) -> None:
    code = """
import json, sys
from tmrl_core.roles import from_config as roles
from tmrl_core.config import from_values
from tmrl_core.cli.screens import ServerLines
config = from_values({"network": {"credentials_dir": sys.argv[1]}, "server": {"port": 0}})
roles.ensure_credentials(config)
with roles.make_server(config) as server:
    ServerLines(server).refresh()
print(json.dumps("numpy" in sys.modules))
"""
    assert run(code, str(tmp_path / "credentials")) is False


def test_imports_of_workers_and_servers_are_light() -> None:
    code = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""
    light = [
        "roles.server",
        "roles.rollout_worker",
        "networking.security.credentials",
        "actor",
        "envs",
        "metrics",
        "config",
    ]
    found = set(run(code, *(f"tmrl_core.{name}" for name in [*light, "cli.main"])))
    heavy = {"torch", "matplotlib", "wandb", "tensorboard", "tlspyo", "twisted", "cryptography", "pandas", "scipy"}
    assert not found & heavy


def test_a_gateway_with_a_central_agent_needs_no_torch(tmp_path: Path) -> None:
    code = """
import json, sys
sys.modules["torch"] = None
from tmrl_core.config import from_values
from tmrl_core.gateway.serve import Gateway
from tmrl_core.networking import Server
from tmrl_core.roles import from_config as roles
values = {
    "run": {"folder": sys.argv[1]},
    "network": {"credentials_dir": sys.argv[1] + "/credentials"},
    "environment": {"cls": "tmrl_core.envs:ShepherdEnv", "kwargs": {"observation_space": [4, 0, 1], "action_space": 2}},
    "actor": {"cls": "tmrl_core.actor:QValueMLPActor"},
    "agent": {"cls": "tmrl_core.training:DQNAgent"},
    "gateway": {"port": 0},
}
roles.ensure_credentials(from_values(values))
with Server(config=from_values(values), port=0) as server:
    values["server"] = {"port": server.port}
    with Gateway(from_values(values)) as gateway:
        print(json.dumps(type(gateway.agents[0].policy.actor).__name__))
"""
    assert run(code, str(tmp_path)) == "NumpyQValueMLPActor"


WATCHED = """
import gc, json, logging, os, random, sys, threading, warnings
import importlib
for name in json.loads(sys.argv[2]):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
events = []
sys.addaudithook(lambda event, args: events.append((event, [str(arg) for arg in args])) if watching else None)
watching = False
def state():
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    numpy_state = str(sys.modules["numpy"].random.get_state()) if "numpy" in sys.modules else ""
    torch_state = str(sys.modules["torch"].get_rng_state().sum()) if "torch" in sys.modules else ""
    return {
        "sys.path": list(sys.path), "environment": dict(os.environ), "random": hash(random.getstate()),
        "numpy": numpy_state, "torch": torch_state, "threads": threading.active_count(),
        "handlers": sum(len(getattr(each, "handlers", [])) for each in loggers), "level": logging.root.level,
        "folder": os.getcwd(), "filters": str(warnings.filters), "switch": sys.getswitchinterval(),
    }
before, modules = state(), set(sys.modules)
watching = True
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
watching = False
after = state()
described = lambda kind: any(type(part).__name__ == "StructInfo" for part in gc.get_referents(kind))
print(json.dumps({
    "events": events,
    "changed": [key for key in before if before[key] != after[key]],
    "modules": sorted(set(sys.modules) - modules),
    "undescribed": [
        f"{module}.{name}" for module, name in json.loads(sys.argv[3])
        if not described(getattr(sys.modules[module], name))
    ],
}))
"""
CODE = (".py", ".pyc", ".so", ".pyd")
# What the import system does by itself: read code and list folders.
HARMLESS = {"import", "compile", "exec", "marshal.loads", "os.listdir", "os.scandir", "object.__getattr__"}
FORBIDDEN = ("socket.", "subprocess.", "os.mkdir", "os.remove", "os.rename", "os.putenv", "_thread.", "os.fork")


def suspicious(events: list[tuple[str, list[str]]]) -> list[str]:
    """Files that are not code, and anything that reaches out of the process."""
    found = []
    for event, arguments in events:
        if event == "open":
            written = len(arguments) > 1 and any(letter in arguments[1] for letter in "wax+")
            if written or not arguments[0].endswith(CODE):
                found.append(f"open {arguments}")
        elif event not in HARMLESS and event.startswith(FORBIDDEN):
            found.append(f"{event} {arguments}")
    return found


def watch(names: list[str], before: Sequence[str] = (), structures: Sequence[tuple[str, str]] = ()) -> Any:
    """Return the effects of importing modules, after others, and those of the structures that it leaves undescribed."""
    return run(WATCHED, json.dumps(names), json.dumps(before), json.dumps(structures))


def test_importing_the_package_does_nothing() -> None:
    result = watch(["tmrl_core"])
    assert suspicious(result["events"]) == []
    assert result["changed"] == []
    assert set(result["modules"]) == {"tmrl_core", "tmrl_core.lazy_names", "__future__"}


def test_importing_any_module_does_nothing_but_describe_what_functions_decode() -> None:
    """Structures are complete before a second thread can decode them."""
    own = [f"tmrl_core.{name}" for name in FILES if name and name != "__main__"]
    others = sorted({name for module in FILES for name in imported(module) if not name.startswith("tmrl_core")})
    # Names in modules are tried as modules too; what others do on import is theirs, so they come first.
    modules = sorted({*others, *(name.rpartition(".")[0] for name in others if "." in name)})
    decoded = {(f"tmrl_core.{name}", kind) for name, file in FILES.items() for kind in decoded_types(source.tree(file))}
    assert ("tmrl_core.training.checkpoints.manifest", "Manifest") in decoded
    result = watch(own, ["typing", *modules], sorted(decoded))
    assert suspicious(result["events"]) == []
    assert result["changed"] == []
    assert set(own) <= set(result["modules"])
    assert not result["undescribed"], "decorate them with tmrl_core.decodable"


def test_the_check_notices_side_effects_of_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, socket, random\nrandom.random()\nsocket.socket().close()\nos.environ['X_NOISY'] = '1'\n"
        f"open({str(tmp_path / 'log')!r}, 'w').close()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    result = watch(["noisy"])
    assert {"environment", "random"} <= set(result["changed"])
    seen = " ".join(suspicious(result["events"]))
    assert "open" in seen
    assert "socket." in seen


def test_star_imports_need_no_extra_but_the_trainer_s() -> None:
    optional = ["pettingzoo", "rtgym", "h5py", "pyarrow", "wandb", "tensorboard", "matplotlib", "stable_baselines3"]
    code = f"import sys\nsys.modules.update(dict.fromkeys({optional}))"
    for name in ("metrics", "multiagent", "sessions", "training"):
        code += f"\nfrom tmrl_core.{name} import *"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def test_every_exported_name_is_there() -> None:
    for name in ("", "networking", "actor", "training", "envs", "samples", "metrics", "config", "sessions"):
        module = importlib.import_module(f"tmrl_core.{name}".rstrip("."))
        assert [each for each in module.__all__ if not hasattr(module, each)] == []
        assert not hasattr(module, "no_such_name")


@pytest.mark.parametrize("package", ["", "actor", "envs", "envs.replay", "metrics", "sessions"])
def test_the_lazy_names_that_type_checkers_see_are_those_that_exist(package: str) -> None:
    told = {
        alias.asname
        for node in ast.walk(source.tree(FILES[package]))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.asname is not None
    }
    name = f"tmrl_core.{package}".rstrip(".")
    assert told == set(importlib.import_module(name).__all__) - {"__version__"} - rooms.exports(name).keys()
