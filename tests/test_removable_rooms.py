"""Each room can be deleted: the core names none, and a tree without one starts, learns and passes its own units."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import source

ROOT = source.PACKAGE.parent


class Room(NamedTuple):
    """A part of the package that can be taken away.

    Args:
        paths: folders or modules below the package, as patterns.
        words: a regular expression of the words that name it.
        configuration: one that needs it; empty: none does.
        error: the error that this configuration then has.
        option: an option of the command line that it adds; tests that name it need the room.
    """

    paths: tuple[str, ...]
    words: str
    configuration: str = ""
    error: str = ""
    option: str = ""


ROOMS = {
    "gateway": Room(
        ("gateway",),
        r"\bgateway",
        "gateway: {port: 0}",
        "gateway: unknown section. No package tmrl_core.gateway is here",
    ),
    "multiagent": Room(
        ("multiagent",),
        "multiagent",
        "multiagent: {agents: {}}",
        "multiagent: unknown section. Did you mean agent? No package",
    ),
    "compat": Room(("compat",), r"tmrl_core.compat|\bcompat/", option="--import-config"),
    "replay": Room(
        ("envs/replay",),
        r"envs\.replay|ReplayEnv|FunctionalEnv|SessionBatch|SessionPool|unrolling",
    ),
    "lerobot": Room(("sessions/lerobot",), "lerobot"),
    "lerobot_robots": Room(("envs/lerobot",), r"envs.lerobot|RobotEnvironment"),
    "minari": Room(("sessions/minari",), "minari"),
    "tlspyo": Room(
        ("networking/transports/tlspyo",),
        "tlspyo",
        "network: {transport: tlspyo}",
        "network.transport: found the text 'tlspyo', allowed: local, tls, or",
    ),
    "dashboard": Room(
        ("dashboard",),
        r"\bdashboard",
        "dashboard: {port: 0}",
        "dashboard: unknown section. No package tmrl_core.dashboard is here",
    ),
    "onnx_export": Room(("onnx_export",), r"tmrl_core.onnx_export|\bonnx_export/"),
    "ranks": Room(("ranks",), r"tmrl_core.ranks|\branks/"),
    "plots": Room(("plots",), r"tmrl_core.plots|\bplots/"),
    "success": Room(("success",), r"tmrl_core.success|\bsuccess/"),
    "teleop": Room(("teleop",), r"tmrl_core.teleop|\bteleop/"),
    "testing": Room(("testing",), r"tmrl_core.testing|\btesting/"),
}


def files_of(room: str) -> set[Path]:
    """Return the files of a room."""
    return {
        file
        for pattern in ROOMS[room].paths
        for found in source.PACKAGE.glob(pattern)
        for file in ([found] if found.is_file() else found.rglob("*.py"))
    }


CORE = set(source.FILES).difference(*map(files_of, ROOMS))


@pytest.mark.parametrize("room", ROOMS)
def test_the_core_names_no_room(room: str) -> None:
    words = re.compile(ROOMS[room].words, re.IGNORECASE)
    naming = [file.relative_to(source.PACKAGE).as_posix() for file in CORE if words.search(file.read_text("utf-8"))]
    assert naming == [], "declare it in the room's room.py, or say it without the room's name"


class Tree:
    """A copy of the package in a folder, and processes that run it.

    Args:
        folder: an empty folder.
        without: the rooms to leave out.
    """

    def __init__(self, folder: Path, without: Iterable[str]) -> None:
        self.folder = folder
        missing = {file for room in without for file in files_of(room)}
        assert missing
        for file in set(source.FILES) - missing:
            copy = folder / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        for file in source.PACKAGE.rglob("*"):  # pages, scripts and pictures of the packages that are there
            package = next(parent for parent in file.parents if (parent / "__init__.py").exists())
            is_here = (folder / package.relative_to(ROOT) / "__init__.py").exists()
            if is_here and file.is_file() and file.suffix not in (".py", ".pyc"):
                copy = folder / file.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)

    def run(self, *arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """Run Python in the folder. The process must succeed."""
        environment = {**os.environ, "TMRL_CORE_HOME": str(self.folder / "home"), "PYTHONPATH": str(self.folder)}
        environment.pop("FULL_TESTS", None)
        command = [sys.executable, "-B", *arguments]
        ended = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-4_000:]
        return ended


START = """
import contextlib, io, json, pathlib, sys
import tmrl_core
from tmrl_core.cli.main import main

assert tmrl_core.__file__.startswith(sys.argv[1]), tmrl_core.__file__
out = io.StringIO()
with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
    main(["--help"])
assert "--trainer" in out.getvalue()
assert "numpy" not in sys.modules, "the objects that --help needs import nothing heavy"
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(["--credentials", "--help"])
out = io.StringIO()
with contextlib.redirect_stdout(out):
    assert main(["--config-schema"]) == 0
pathlib.Path("tmrl_core.yaml").write_text("run: {name: whole}")
assert main(["--benchmark", "--steps", "20"]) == 0  # checks the configuration, and acts
errors = []
for configuration in sys.argv[2:]:
    pathlib.Path("tmrl_core.yaml").write_text(configuration)
    with contextlib.redirect_stderr(io.StringIO()) as error:
        assert main(["--server"]) == 2
    errors.append(error.getvalue())
print(json.dumps([json.loads(out.getvalue()), errors]))
"""

NAMES = list(ROOMS)
# One after another in the long form: a room that needs another one imports it in a line that `test_imports.py` reads,
# unless it takes the module by its name.
MISSING = [
    pytest.param(NAMES, id="all"),
    pytest.param(NAMES[::2], id="every second"),
    pytest.param(NAMES[1::2], id="the others"),
    *(pytest.param([room], id=room, marks=pytest.mark.full) for room in NAMES),
]


@pytest.mark.parametrize("missing", MISSING)
def test_a_tree_without_rooms_starts(missing: list[str], tmp_path: Path) -> None:
    tree = Tree(tmp_path, missing)
    needing = [ROOMS[room] for room in missing if ROOMS[room].configuration]
    ended = tree.run("-c", START, str(tmp_path), *(room.configuration for room in needing))
    schema, errors = json.loads(ended.stdout.splitlines()[-1])
    assert schema["$defs"]["Config"]["properties"].keys().isdisjoint(missing)
    transports = schema["$defs"]["NetworkSection"]["properties"]["transport"]["examples"]
    assert ("tlspyo" in transports) == ("tlspyo" not in missing)
    for room, error in zip(needing, errors, strict=True):
        assert error.startswith("ConfigError: ")
        assert room.error in error


SHORT = """
run: {name: short}
environment: {cls: "tmrl_core.envs:GenericGymEnv", kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [16, 16]}}
worker: {max_env_steps_per_update: 8, max_samples_per_episode: 50}
server: {port: 0}
memory: {batch_size: 32}
trainer:
  epochs: 1
  rounds: 2
  steps: 50
  start_training: 100
  update_model_interval: 20
  update_buffer_interval: 20
  device: cpu
  evaluation: {episodes: 1, every_updates: 100}
"""


@pytest.mark.timeout(320)
def test_a_tree_without_any_room_learns(tmp_path: Path) -> None:
    tree = Tree(tmp_path, ROOMS)
    (tmp_path / "tmrl_core.yaml").write_text(SHORT)
    ended = tree.run("-m", "tmrl_core", "--local", "--single-process", "--workers", "1", timeout=300)
    assert "100 updates" in ended.stdout


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("room", ROOMS)
def test_a_tree_without_a_room_learns_between_processes(room: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path, [room])
    ended = tree.run("-m", "tmrl_core", "--local", "--small", timeout=300)
    assert "400 updates" in ended.stdout


ROOMS_MODULE = "tmrl_core import rooms"
UNAWARE = ("actor", "samples", "storage", "training")
"""Packages that ask for no room, so that their units do not depend on one: half of the time of all units."""


def test_these_packages_ask_for_no_room() -> None:
    files = [file for package in UNAWARE for file in (source.PACKAGE / package).rglob("*.py")]
    assert [file for file in files if ROOMS_MODULE in file.read_text("utf-8")] == []


OF_OTHERS = ("benchmarks", "examples", "hostile", "scripts")
"""Folders of tests that are not of a package, or that use all of it."""


def module_of(file: Path, root: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.full
@pytest.mark.timeout(2_500)
@pytest.mark.parametrize("room", ROOMS)
def test_the_units_pass_without_a_room(room: str, tmp_path: Path) -> None:
    """Tests that import the room, or name it, are its own or of its users; all others must pass."""
    tree = Tree(tmp_path, [room])
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("tmrl_core", "tests", "config"):
            (tmp_path / path.name).symlink_to(path)
    tests = tmp_path / "tests"
    shutil.copytree(ROOT / "tests", tests, ignore=shutil.ignore_patterns("__pycache__"))
    modules = {module_of(file, ROOT) for file in files_of(room)}
    option = ROOMS[room].option
    names = re.compile("|".join([ROOMS[room].words, *map(re.escape, [*modules, *([option] if option else [])])]))
    (tmp_path / "config").mkdir()
    for file in (ROOT / "config").iterdir():
        if not names.search(file.read_text("utf-8")):
            (tmp_path / "config" / file.name).symlink_to(file)
    for folder in ROOMS[room].paths:
        shutil.rmtree(tests / folder, ignore_errors=True)
    for conftest in [file for file in tests.rglob("conftest.py") if file.parent != tests]:
        if names.search(conftest.read_text("utf-8")):
            shutil.rmtree(conftest.parent)
    # Those beside the packages are of the whole repository: its pages, its public surface, this test.
    of_all = set(tests.glob("test_*.py")).union(*((tests / one).rglob("test_*.py") for one in OF_OTHERS))
    texts = {file: file.read_text("utf-8") for file in tests.rglob("test_*.py")}
    gone = of_all | {file for file, text in texts.items() if names.search(text)}
    while gone:
        for file in gone:
            file.unlink()
            del texts[file]
        # Some tests have helpers that others import.
        imported = re.compile("|".join(rf"\b{re.escape(module_of(file, tmp_path))}\b" for file in gone))
        gone = {file for file, text in texts.items() if imported.search(text)}
    tree.run("-m", "pytest", "-q", "--collect-only", "-m", "unit", "tests", timeout=600)
    aside = [f"--ignore=tests/{package}" for package in UNAWARE]
    aside += ["--deselect", "tests/compat/test_behaviour.py::test_each_behaviour_has_tests"]  # it names tests of all
    tree.run("-m", "pytest", "-q", "-n", "2", "-m", "unit", *aside, "tests", timeout=1_800)
