"""The environment of a checkout, with programs of the test's own in pip's place: nothing is downloaded here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

FAKE_PIP = """
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], os.environ.get("PIP_USER"), os.environ.get("PIP_CONSTRAINT")]) + "\\n")
if {fails!r} in sys.argv:
    print("\\n".join(f"line {{i}}" for i in range(100)), file=sys.stderr)
    sys.exit(3)
print("WARNING: an odd index", file=sys.stderr)
if "--report" in sys.argv:
    print({report!r})
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
        self.log = root / "log"
        self.pip()

    def pip(self, torch: str = "2.13.0+cpu", fails: str = "nothing") -> None:
        report = json.dumps({"install": [{"metadata": {"name": "torch", "version": torch, "requires_dist": []}}]})
        code = FAKE_PIP.format(log=str(self.log), report=report, fails=fails)
        (self.root / "pip.py").write_text(code)

    def environment(self) -> Any:
        made = self.module.Environment(self.root, pip=[sys.executable, str(self.root / "pip.py")])
        if not made.python.exists():
            # `venv` without pip takes a tenth of a second.
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made.folder)], check=True)
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


def test_everything_is_installed_with_the_constraints(checkout: Checkout) -> None:
    environment = checkout.environment()
    assert environment.ensure(["all"]) == environment.python
    asked, installed = checkout.calls()
    assert asked[:2] == ["install", "-c"]
    assert {"--dry-run", "--report", "torch"} <= set(asked)
    assert installed == ["install", "-c", str(checkout.root / "constraints.txt"), "-e", f"{checkout.root}[all]"]


def test_output_of_pip_is_hidden(checkout: Checkout, capfd: pytest.CaptureFixture[str]) -> None:
    checkout.environment().ensure(["all"])
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "odd index" not in captured.out


def test_the_index_of_cpu_builds_is_added_only_where_it_is_needed(checkout: Checkout) -> None:
    checkout.pip(torch="2.13.0+cu130")
    checkout.environment().ensure(["all"])
    assert checkout.calls()[-1][3:5] == ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]


def test_gpu_leaves_the_choice_to_pip(checkout: Checkout) -> None:
    checkout.pip(torch="2.13.0+cu130")
    checkout.environment().ensure(["all"], gpu=True)
    (only,) = checkout.calls()
    assert "--extra-index-url" not in only


def test_a_second_run_does_nothing_and_is_quick(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.environment().ensure(["all", "dev"])
    checkout.calls()
    capsys.readouterr()
    started = time.monotonic()
    checkout.environment().ensure(["all"])
    assert time.monotonic() - started < 1
    assert checkout.calls() == []
    assert capsys.readouterr().out == ""


def test_earlier_installed_packages_stay(checkout: Checkout) -> None:
    checkout.environment().ensure(["dev"])
    checkout.calls()
    checkout.environment().ensure(["all"])
    assert checkout.calls()[-1][-1].endswith("[all,dev]")


@pytest.mark.parametrize("file", ["pyproject.toml", "constraints.txt"])
def test_a_change_installs_again(checkout: Checkout, file: str) -> None:
    checkout.environment().ensure(["all"])
    checkout.calls()
    (checkout.root / file).write_text("changed\n")
    checkout.environment().ensure(["all"])
    assert len(checkout.calls()) == 2


def test_gpu_after_cpu_removes_the_old_torch(checkout: Checkout) -> None:
    checkout.environment().ensure(["all"])
    checkout.calls()
    checkout.environment().ensure(["all"], gpu=True)
    assert [call[0] for call in checkout.calls()] == ["uninstall", "install"]
    checkout.environment().ensure(["all"])  # and a run without it leaves the GPU's in place
    assert checkout.calls() == []


@pytest.mark.parametrize("step", ["-e", "--report"])
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
    assert len(checkout.calls()) == 2


def test_variables_of_pip_reach_it(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", "more.txt")
    monkeypatch.setenv("PIP_USER", "1")
    checkout.environment().ensure(["all"])
    assert json.loads(checkout.log.read_text().splitlines()[-1])[1:] == ["0", "more.txt"]


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
