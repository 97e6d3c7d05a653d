"""Names of rooms and of other packages: found when they are used, with errors that say whose they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import in_this_process
from tmrl_core import rooms
from tmrl_core.config import from_values
from tmrl_core.errors import ConfigError
from tmrl_core.metrics import open_sinks
from tmrl_core.networking.transports.local import LocalTransport
from tmrl_core.networking.transports.selection import client_transport, link_settings, transport_kind

PIGEON = """
from tmrl_core.networking.transports.local import LocalKind

class Pigeon(LocalKind):
    pass
"""


class Install:
    """Installs packages of others into a folder of `sys.path`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, package: str, entry_points: str, code: str) -> None:
        module = f"of_others_{package}"
        (self.folder / f"{module}.py").write_text(code)
        info = self.folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points.replace("MODULE", module))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    yield Install(tmp_path)
    for name in set(sys.modules) - modules:
        if name.startswith("of_others"):
            del sys.modules[name]


def test_a_transport_of_another_package_is_used_by_its_name(install: Install) -> None:
    install("pigeons", "[tmrl_core.transports]\npigeon = MODULE:Pigeon\n", PIGEON)
    config = from_values({"network": {"transport": "pigeon"}})
    assert "of_others_pigeons" not in sys.modules
    transport, _ = client_transport(link_settings(config), "worker")
    assert isinstance(transport, LocalTransport)


FILE_SINK = """
from tmrl_core.metrics import MemorySink

class Noted(MemorySink):
    def __init__(self, run, title):
        super().__init__()
        self.path = run.folder / title
"""


def test_a_sink_of_another_package_is_configured_by_its_name(install: Install, tmp_path: Path) -> None:
    install("notes", "[tmrl_core.sinks]\nnoted = MODULE:Noted\n", FILE_SINK)
    config = from_values({"metrics": {"console": False, "sinks": {"noted": {"title": "chapter"}}}})
    assert "of_others_notes" not in sys.modules
    _, noted = sinks = open_sinks(tmp_path, console=False, further=config.metrics.sinks)
    assert noted.path == tmp_path / "chapter"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"metrics\.sinks\.noted: .*'headline'.* takes run, title"):
        open_sinks(tmp_path, console=False, further={"noted": {"headline": "chapter"}})
    for sink in sinks:
        sink.close()


DANCE = """
from tmrl_core.roles.role import Role

def run(config, options, shutdown):
    print(config.run.name, options.turns)
    return 0

def add_options(parser):
    parser.add_argument("--turns", type=int)

ROLE = Role("dance", run, takes=("turns", "seed"), options=add_options)
"""


def test_a_role_of_another_package_is_an_option(install: Install, tmp_path: Path) -> None:
    install("dances", "[tmrl_core.roles]\ndance = MODULE:ROLE\nlost = MODULE:LOST\n", DANCE)
    with in_this_process(tmp_path) as run:
        ended = run("--dance", "--turns", "3", "--set", "run.name=waltz")
        assert (ended.returncode, ended.stdout) == (0, "waltz 3\n"), ended.stderr
        refused = run("--dance", "--workers", "2")
        assert "--workers goes with --worker or --local, not --dance" in refused.stderr
        assert "--turns: no such option" in run("--server", "--turns", "3").stderr
        broken = run("--lost")
        assert broken.returncode == 2
        assert "ConfigError: lost: the package dances adds it to roles" in broken.stderr


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        from_values({"metrics": {"sinks": {"wandp": {}}}, "network": {"transport": "tsl"}})
    transport, sink = str(error.value).splitlines()
    assert transport.startswith("network.transport: found the text 'tsl', allowed: local, tls, tlspyo, or")
    assert sink.startswith("metrics.sinks: found the text 'wandp', allowed: console, tensorboard, trackio, wandb, or")
    assert "Did you mean wandb" in sink


def test_the_error_for_a_broken_package_names_it(install: Install) -> None:
    install("pigeons", "[tmrl_core.transports]\npigeon = MODULE:Pigeon\n", "import lost_package")
    with pytest.raises(ConfigError, match=r"pigeon: the package pigeons .*transports.*lost_package.*Repair or update"):
        transport_kind("pigeon")
    assert transport_kind("local").in_process  # not affected


def test_the_error_for_a_missing_object_names_its_package(install: Install) -> None:
    install("pigeons", "[tmrl_core.transports]\npigeon = MODULE:Pidgin\n", PIGEON)
    with pytest.raises(ConfigError, match=r"package pigeons .*'of_others_pigeons:Pidgin'.*AttributeError"):
        transport_kind("pigeon")


def test_a_name_of_two_packages_is_refused(install: Install) -> None:
    for package in ("doves", "pigeons"):
        install(package, "[tmrl_core.transports]\npigeon = MODULE:Pigeon\n", PIGEON)
    with pytest.raises(ConfigError, match=r"the packages doves and pigeons both add it to transports\. Uninstall one"):
        rooms.find("transports", "pigeon")


def test_a_room_comes_before_other_packages(install: Install) -> None:
    install("pigeons", "[tmrl_core.transports]\nlocal = MODULE:Pigeon\n", PIGEON)
    entry = rooms.find("transports", "local")
    assert entry is not None
    assert entry.package == "tmrl_core.networking.transports"


def test_a_broken_room_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "of_others_tree"
    for name, code in (("broken", "1 +"), ("sound", 'SINKS = {"a": "b:C"}')):
        (root / name).mkdir(parents=True)
        (root / name / "room.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(rooms, "ROOT", root)
    rooms._rooms.cache_clear()
    try:
        assert rooms.entries("sinks")["a"].package == "of_others_tree.sound"
    finally:
        rooms._rooms.cache_clear()
    assert "broken" in caplog.text


def test_objects_of_rooms_exist() -> None:
    found = [entry for kind in rooms.KINDS for entry in rooms.entries(kind).values()]
    assert found
    for entry in found:
        assert entry.reference.startswith("tmrl_core."), entry
        assert entry.load() is not None
