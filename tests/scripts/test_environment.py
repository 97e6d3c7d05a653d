"""The environment of a checkout, with programs of the test's own in pip's place, or pip with packages of the test."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

FAKE_PIP = """
import json, os, pathlib, sys
with open({log!r}, "a") as log:
    names = ("PIP_USER", "PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
    log.write(json.dumps([sys.argv[1:], *map(os.environ.get, names)]) + "\\n")
if {fails!r} in sys.argv:
    print("\\n".join(f"line {{i}}" for i in range(100)), file=sys.stderr)
    sys.exit(3)
print("WARNING: an odd index", file=sys.stderr)
if "--report" in sys.argv:
    print({report!r})
if "-e" in sys.argv:
    (site,) = pathlib.Path(sys.argv[-1]).glob(".venv/[Ll]ib/**/site-packages")
    (site / "tmrl_core-1.dist-info").mkdir(exist_ok=True)
    record = {{"url": pathlib.Path(sys.argv[-1]).as_uri(), "dir_info": {{"editable": True}}}}
    (site / "tmrl_core-1.dist-info" / "direct_url.json").write_text(json.dumps(record))
"""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """`scripts/_environment.py`."""
    spec = importlib.util.spec_from_file_location("_environment_under_test", SCRIPTS / "_environment.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Checkout:
    """A folder like this project's, whose environment is there already, and a pip that writes down what it is asked."""

    def __init__(self, module: ModuleType, root: Path) -> None:
        self.module, self.root = module, root
        (root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
        (root / "constraints.txt").write_text("torch==2.13.0\n")
        (root / "requirements").mkdir()
        (root / "requirements" / "all.txt").write_text("")
        self.log = root / "log"
        self.pip()

    def pip(self, torch: str | None = "2.13.0+cpu", fails: str = "nothing") -> None:
        found = [{"metadata": {"name": "torch", "version": torch, "requires_dist": []}}] if torch else []
        report = json.dumps({"install": found})
        code = FAKE_PIP.format(log=str(self.log), report=report, fails=fails)
        (self.root / "pip.py").write_text(code)

    def environment(self) -> Any:
        made = self.module.Environment(self.root, pip=[sys.executable, "-S", str(self.root / "pip.py")])
        if not made.python.exists():
            venv.create(made.folder, symlinks=sys.platform != "win32")
            libraries = made.folder / "Lib" if sys.platform == "win32" else next(made.folder.glob("lib/python*"))
            site = libraries / "site-packages"
            (site / "pip.py").write_text("")
        return made

    def calls(self) -> list[list[str]]:
        if not self.log.exists():
            return []
        calls = [json.loads(line)[0] for line in self.log.read_text().splitlines()]
        self.log.unlink()
        return calls


@pytest.fixture
def checkout(module: ModuleType, tmp_path: Path) -> Checkout:
    return Checkout(module, tmp_path)


def report(version: str, *needs: str) -> dict[str, Any]:
    return {"install": [{"metadata": {"name": "torch", "version": version, "requires_dist": list(needs)}}]}


@pytest.mark.parametrize(
    ("content", "system", "expected"),
    [
        (report("2.13.0+cpu"), "Linux", True),
        (report("2.13.0+cu130"), "Linux", False),
        (report("2.13.0", "nvidia-cublas==13.0; platform_system == 'Linux'", "triton"), "Linux", False),
        (report("2.13.0"), "Linux", False),
        (report("2.13.0", "filelock", "sympy"), "Windows", True),
        (report("2.13.0", "filelock"), "Darwin", True),
        (report("2.13.0+cu130"), "Windows", False),
        ({"install": []}, "Linux", True),
    ],
)
def test_cpu_builds_are_recognized(module: ModuleType, content: dict[str, Any], system: str, expected: bool) -> None:
    assert module.takes_cpu_build(content, system) is expected


def test_everything_is_installed_by_hash_and_without_further_packages(checkout: Checkout) -> None:
    environment = checkout.environment()
    assert environment.ensure(["all", "dev"]) == environment.python
    asked, installed, built, project, torch = checkout.calls()
    assert {"--dry-run", "--report", "torch"} <= set(asked)
    folder = checkout.root / "requirements"
    by_hash = ["install", "--no-deps", "--require-hashes"]
    files = ["-r", str(folder / "all.txt"), "-r", str(folder / "dev.txt")]
    assert installed == [*by_hash, *files, "--only-binary", ":all:"]
    assert built == [*by_hash, "-r", str(folder / "source.txt"), "--no-deps", "--no-build-isolation"]
    assert project == ["install", "--no-deps", "--no-build-isolation", "-e", str(checkout.root)]
    assert torch == ["install", "-c", str(checkout.root / "constraints.txt"), "--no-deps", "torch"]


def test_output_of_pip_is_hidden(checkout: Checkout, capfd: pytest.CaptureFixture[str]) -> None:
    checkout.environment().ensure(["all"])
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "odd index" not in captured.out


def test_the_cpu_build_is_taken_from_its_index_alone(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://packages.example.org")
    checkout.pip(torch="2.13.0+cu130")
    checkout.environment().ensure(["all"])
    *others, last = [json.loads(line) for line in checkout.log.read_text().splitlines()]
    index = "https://download.pytorch.org/whl/cpu"
    constraints = str(checkout.root / "constraints.txt")
    assert last[0] == ["install", "-c", constraints, "--no-deps", "--index-url", index, "torch"]
    assert last[3:] == [index, str(checkout.root / ".venv")]
    assert all(index not in arguments and extra != index for arguments, _, _, extra, _ in others)


def test_gpu_leaves_the_choice_to_pip(checkout: Checkout) -> None:
    checkout.pip(torch="2.13.0+cu130")
    checkout.environment().ensure(["all"], gpu=True)
    assert checkout.calls()[-1] == ["install", "-c", str(checkout.root / "constraints.txt"), "torch"]


def test_the_package_indexs_build_of_torch_is_installed_by_hash(checkout: Checkout) -> None:
    checkout.pip(torch="2.13.0")
    checkout.environment().ensure(["all"], gpu=True)
    file = str(checkout.root / "requirements" / "torch.txt")
    assert checkout.calls()[-1][:5] == ["install", "--no-deps", "--require-hashes", "-r", file]


def test_an_installed_torch_stays(checkout: Checkout) -> None:
    checkout.pip(torch=None)
    checkout.environment().ensure(["all"])
    assert not any(word == "torch" or word.endswith("torch.txt") for call in checkout.calls()[1:] for word in call)


def test_a_second_run_does_nothing_and_is_quick(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.environment().ensure(["all", "dev"])
    checkout.calls()
    capsys.readouterr()
    started = time.monotonic()
    checkout.environment().ensure(["all"])
    assert time.monotonic() - started < 1
    assert checkout.calls() == []
    assert capsys.readouterr().out == ""


def test_a_copy_in_place_of_the_editable_installation_is_noticed_and_repaired(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = checkout.environment()
    environment.ensure(["all"])
    (record,) = environment.folder.glob("**/tmrl_core-*.dist-info/direct_url.json")
    here = checkout.root.as_uri()
    records: tuple[Any, ...] = (
        {"url": here, "dir_info": {}},
        {"url": here, "dir_info": {"editable": False}},
        {"url": f"{here}/other", "dir_info": {"editable": True}},
        {"url": "https://packages.example.org/x.whl", "archive_info": {}},
        [],
        None,
    )
    for content in records:
        if content is None:
            record.unlink()
        else:
            record.write_text(json.dumps(content), encoding="utf-8")
        checkout.calls()
        capsys.readouterr()
        environment.ensure(["all"])
        assert ["-e", str(checkout.root)] in [call[-2:] for call in checkout.calls()], content
        assert "no editable installation" in capsys.readouterr().out
        environment.ensure(["all"])
        assert checkout.calls() == []
    shutil.rmtree(record.parent)  # `pip uninstall`
    environment.ensure(["all"])
    assert len(checkout.calls()) == 5


def test_earlier_installed_packages_stay(checkout: Checkout) -> None:
    checkout.environment().ensure(["dev"])
    checkout.calls()
    checkout.environment().ensure(["all"])
    folder = checkout.root / "requirements"
    assert {str(folder / "all.txt"), str(folder / "dev.txt")} <= set(checkout.calls()[1])


def test_a_change_installs_again(checkout: Checkout) -> None:
    checkout.environment().ensure(["all"])
    checkout.calls()
    for file in ("pyproject.toml", "constraints.txt", "requirements/all.txt"):
        (checkout.root / file).write_text("changed\n")
        checkout.environment().ensure(["all"])
        assert len(checkout.calls()) == 5, file


def test_gpu_after_cpu_removes_the_old_torch(checkout: Checkout) -> None:
    checkout.environment().ensure(["all"])
    checkout.calls()
    checkout.environment().ensure(["all"], gpu=True)
    assert [call[0] for call in checkout.calls()] == ["uninstall", *["install"] * 5]
    checkout.environment().ensure(["all"])  # and a run without it leaves the GPU's in place
    assert checkout.calls() == []


@pytest.mark.parametrize("step", ["-e", "--report", "--require-hashes"])
def test_pips_failure_is_shown_from_its_end_and_tried_again(checkout: Checkout, step: str) -> None:
    checkout.pip(fails=step)
    with pytest.raises(checkout.module.SetupError) as caught:
        checkout.environment().ensure(["all"])
    assert "exit status 3" in str(caught.value)
    assert "line 99" in str(caught.value)
    assert "line 10\n" not in str(caught.value)
    checkout.pip()
    checkout.calls()
    checkout.environment().ensure(["all"])
    assert len(checkout.calls()) == 5


def test_variables_of_pip_reach_it(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", "more.txt")
    monkeypatch.setenv("PIP_USER", "1")
    checkout.environment().ensure(["all"])
    assert json.loads(checkout.log.read_text().splitlines()[-1])[1:3] == ["0", "more.txt"]


def test_an_old_python_is_refused(module: ModuleType) -> None:
    module.check_python((3, 10, 0))
    with pytest.raises(module.SetupError, match=r"Python 3\.9\.18 is too old: tmrl_core needs 3\.10"):
        module.check_python((3, 9, 18))


def test_a_python_without_venv_is_named(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)  # Debian's python3 without python3-venv
    with pytest.raises(checkout.module.SetupError, match="apt install python3"):
        checkout.module.Environment(checkout.root).ensure(["all"])


@pytest.mark.parametrize("script", ["quickstart.py", "test.py"])
def test_scripts_explain_themselves_from_any_directory(script: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / script), "--help"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "usage:" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_number_of_workers_is_refused() -> None:
    command = [sys.executable, str(SCRIPTS / "quickstart.py"), "--workers", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "at least one RolloutWorker" in ended.stderr


# -- with pip itself --------------------------------------------------------------------------------------------------

BACKEND = """
import shutil
def build_wheel(folder, settings=None, metadata=None):
    return shutil.copy({wheel!r}, folder) and {name!r}
build_editable = build_wheel
"""


def make_wheel(folder: Path, name: str, version: str = "1.0") -> Path:
    """Write a package without content."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in {**files, f"{info}/RECORD": "".join(f"{file},,\n" for file in files)}.items():
            archive.writestr(zipfile.ZipInfo(file), content)
    return path


class Packages(Checkout):
    """A checkout whose packages lie in a folder that pip's configuration names."""

    def __init__(self, module: ModuleType, root: Path) -> None:
        super().__init__(module, root)
        (root / "pip.py").unlink()
        self.folder, outside = root / "packages", root / "outside"
        self.folder.mkdir()
        outside.mkdir()
        wheel = make_wheel(outside, "tmrl_core")
        (root / "backend.py").write_text(BACKEND.format(wheel=str(wheel), name=wheel.name))
        (root / "pyproject.toml").write_text(
            "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        )
        for file in ("all", "source"):
            made = make_wheel(self.folder, f"of_{file}")
            self.require(file, hashlib.sha256(made.read_bytes()).hexdigest())

    def require(self, file: str, digest: str) -> None:
        (self.root / "requirements" / f"{file}.txt").write_text(f"of_{file}==1.0 --hash=sha256:{digest}\n")

    def installed(self) -> set[str]:
        """Make the environment; the packages in it."""
        made = self.environment()
        made.pip = [sys.executable, "-m", "pip", "--python", str(made.python)]
        made.ensure(["all"])
        ended = subprocess.run([*made.pip, "list", "--format", "freeze"], capture_output=True, text=True, check=True)
        return set(ended.stdout.split())


@pytest.fixture
def packages(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    made = Packages(module, tmp_path)
    (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {made.folder}\nindex-url = {tmp_path.as_uri()}/none\n")
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no configuration of this user
    monkeypatch.setenv("HOME", str(tmp_path))
    return made


def test_a_changed_file_is_refused_with_its_hash_and_advice(packages: Packages) -> None:
    make_wheel(packages.folder, "torch", "2.13.0+cpu")
    packages.require("all", "0" * 64)
    found = hashlib.sha256((packages.folder / "of_all-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    with pytest.raises(packages.module.SetupError) as caught:
        packages.installed()
    message = str(caught.value)
    assert "of_all==1.0 from file:" in message
    assert f"has SHA-256 {found}" in message
    assert "0" * 64 not in message
    assert "scripts/pins.py --update" in message


@pytest.mark.full
def test_pip_install_of_the_checkout_by_hand_is_repaired(packages: Packages) -> None:
    make_wheel(packages.folder, "torch", "2.13.0+cpu")
    packages.installed()
    environment = packages.environment()
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python)]
    command = [*pip, "install", "--no-deps", "--no-build-isolation", str(packages.root)]
    (record,) = environment.folder.glob("**/tmrl_core-*.dist-info/direct_url.json")
    assert json.loads(record.read_text(encoding="utf-8"))["dir_info"] == {"editable": True}
    subprocess.run(command, check=True, capture_output=True)
    assert json.loads(record.read_text(encoding="utf-8"))["dir_info"] == {}
    packages.installed()
    assert json.loads(record.read_text(encoding="utf-8"))["dir_info"] == {"editable": True}


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the package index has the CPU build")
def test_a_foreign_build_of_torch_loses_against_the_index_of_cpu_builds(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(packages.folder, "torch", "2.13.0+foreign")  # pip prefers it to +cpu
    index = packages.root / "index" / "torch"
    index.mkdir(parents=True)
    wheel = make_wheel(index, "torch", "2.13.0+cpu")
    (index / "index.html").write_text(f"<a href='{wheel.name.replace('+', '%2B')}'>{wheel.name}</a>")
    monkeypatch.setattr(packages.module, "CPU_INDEX", index.parent.as_uri())
    assert packages.installed() == {"of_all==1.0", "of_source==1.0", "torch==2.13.0+cpu", "tmrl_core==1.0"}
