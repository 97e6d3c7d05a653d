"""Build and check what a release publishes: the wheel and the source distribution. Uploads nothing.

    python scripts/release.py           builds into dist/
    python scripts/release.py --keep    checks what is in dist/ without building
    python scripts/release.py --python 3.12

Both archives are searched for secrets, caches and missing files, and their metadata is validated. For each Python that
the project supports and that is found on this machine, both are installed into new environments:

- the source distribution without extras: the command line and an import must work there without torch;
- the wheel with everything: a short run of the quickstart must take samples one way and policies the other.

Pythons that were not found are named at the end. Needs the package index, and some minutes for each Python. Makes the
environment first.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from _environment import BASE, CORE, ROOT, Environment, SetupError, TorchError, ensure, run_here, tail
from quickstart import SMALL, small_run_errors

DIST = ROOT / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SECRETS = re.compile(r"\.(pem|key|bundle|token)$|(^|/)credentials/(?!README\.md$)")
LEFT_BEHIND = re.compile(
    r"(^|/)(__pycache__|\.[a-z]+_cache|\.venv|\.git|\.hypothesis|runs|wandb|build|dist)/|\.(pyc|tmod)$"
)
SOURCE_NEEDS = (
    *("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt"),
    *("requirements/core.txt", "requirements/all.txt", "scripts/test.py"),
)
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{16}")

USES = """
import sys
from tmrl_core import Buffer, GenericGymEnv, RolloutWorker, Server
from tmrl_core.actor import SquashedGaussianMLPActor
assert "torch" not in sys.modules
assert "site-packages" in sys.modules["tmrl_core"].__file__, sys.modules["tmrl_core"].__file__
"""


def main() -> int:
    """Build and check; the exit status."""
    parser = argparse.ArgumentParser(description="Build and check the wheel and the source distribution.")
    parser.add_argument("--keep", action="store_true", help="check what is in dist/ without building")
    parser.add_argument(
        "--python",
        action="append",
        choices=PYTHONS,
        metavar="X.Y",
        help="try this one only (default: all that are found)",
    )
    arguments = parser.parse_args()
    wanted = arguments.python or PYTHONS
    try:
        python = ensure(["all", "dev", "docs"])
    except SetupError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    if not arguments.keep:
        shutil.rmtree(DIST, ignore_errors=True)
        # The wheel is built from the source distribution, so that nothing is missing there. The pinned build backend is
        # in the environment.
        if run_here([str(python), "-m", "build", "--no-isolation", "--outdir", str(DIST)]) != 0:
            return 1
    errors, without_torch = check(DIST, python), []
    found = {version: path for version in wanted if (path := find_python(version)) is not None}
    if not errors:
        (wheel,), (source,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
        for version, path in found.items():
            print(f"Python {version} ({path}) ...", flush=True)
            try:
                errors += [f"Python {version}: {error}" for error in installed_errors(wheel, source, path)]
            except TorchError as exc:
                # The index of torch may be out of reach, or may have no build for a new Python; neither is a defect.
                print(f"Python {version}: {exc}", file=sys.stderr)
                without_torch.append(version)
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if not errors:
        print(
            "checked: " + ", ".join(f"{path.name} ({path.stat().st_size >> 10} KiB)" for path in sorted(DIST.iterdir()))
        )
        print(f"Installed with Python {', '.join(found)}.")
        if ran := [version for version in found if version not in without_torch]:
            print(f"The quickstart ran with Python {', '.join(ran)}.")
        if without_torch:
            print(
                f"The quickstart did not run, because torch could not be installed: Python {', '.join(without_torch)}."
            )
        if missing := [version for version in wanted if version not in found]:
            print(f"Not tried, because this machine lacks it: Python {', '.join(missing)}.")
        print("Not uploaded. Before that: the date of the version in CHANGELOG.md, and a tag.")
    return 1 if errors else 0


def check(folder: Path, python: Path) -> list[str]:
    """Return the errors of the two archives in `folder`.

    Args:
        folder: one wheel and one source distribution.
        python: of an environment with `packaging`.
    """
    wheels, sources = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sources) != 1:
        return [f"{folder} has {len(wheels)} wheels and {len(sources)} source distributions; one of each is needed"]
    wheel, source = read_wheel(wheels[0]), read_source(sources[0])
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tmrl_core").rglob("*.py")} | {
        "tmrl_core/py.typed"
    }
    errors = [f"{wheels[0].name}: {error}" for error in content_errors(wheel, package)]
    errors += [
        f"{wheels[0].name}: {name} is not part of the package"
        for name in sorted(wheel)
        if not name.startswith("tmrl_core/") and ".dist-info/" not in name
    ]
    errors += [f"{sources[0].name}: {error}" for error in content_errors(source, [*package, *SOURCE_NEEDS])]
    errors += version_errors(wheels[0].name)
    return errors + metadata_errors(wheels[0], python)


def read_wheel(path: Path) -> dict[str, bytes]:
    """Return the files of a wheel by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def read_source(path: Path) -> dict[str, bytes]:
    """Return the files of a source distribution by name, without the folder around them."""
    with tarfile.open(path) as archive:
        files = [(member.name.partition("/")[2], archive.extractfile(member)) for member in archive if member.isfile()]
        return {name: file.read() for name, file in files if file is not None}


def content_errors(files: Mapping[str, bytes], needed: Iterable[str]) -> list[str]:
    """Return what an archive must not have, and what it lacks."""
    errors = [f"{name} is a secret or may hold one" for name in sorted(files) if SECRETS.search(name)]
    errors += [f"{name} has a private key" for name, content in sorted(files.items()) if PRIVATE_KEY.search(content)]
    errors += [f"{name} is a cache or output" for name in sorted(files) if LEFT_BEHIND.search(name)]
    return errors + [f"{name} is missing" for name in sorted(set(needed) - files.keys())]


def version_errors(wheel: str) -> list[str]:
    """Return the files that name another version than the wheel's."""
    version = wheel.split("-")[1]
    said = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    return [] if said and said[1].strip("\"'") == version else [f"CITATION.cff: version is not {version}"]


def metadata_errors(wheel: Path, python: Path) -> list[str]:
    """Return what is wrong with the metadata of a wheel, by the rules of the package index."""
    validate = (
        "import sys, zipfile; from packaging.metadata import Metadata; archive = zipfile.ZipFile(sys.argv[1]);"
        "(name,) = [each for each in archive.namelist() if each.endswith('.dist-info/METADATA')];"
        "found = Metadata.from_email(archive.read(name), validate=True); assert found.license_files, 'no license file';"
        "assert found.description_content_type == 'text/markdown' and found.description, 'no description'"
    )
    ended = subprocess.run([str(python), "-c", validate, str(wheel)], capture_output=True, text=True, check=False)
    return [f"metadata: {tail(ended.stderr)}"] if ended.returncode != 0 else []


def find_python(version: str) -> Path | None:
    """Return a Python of this version; None: none is found.

    Searched are the path, the Pythons of pyenv and uv, and the launcher of Windows.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [[str(path)] for path in sorted(pyenv.glob(f"{version}*/bin/python"), reverse=True)]
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        candidates.insert(0, [sys.executable])
    candidates += [["py", f"-{version}"], ["uv", "run", "--no-project", "--offline", "--python", version, "python"]]
    # A command of pyenv exists for every version that it has, also for those that are not selected and only fail: each
    # candidate is asked. `import ssl` fails for a Python that was built without it.
    ask = "import ensurepip, ssl, sys; print('{}.{}'.format(*sys.version_info), sys.executable, sep='\\n')"
    for command in [[f"python{version}"], *candidates]:
        try:
            said = subprocess.run([*command, "-c", ask], capture_output=True, text=True, check=False).stdout.split("\n")
        except OSError:
            continue
        if said[0] == version:
            return Path(said[1])
    return None


def installed_errors(wheel: Path, source: Path, python: Path) -> list[str]:
    """Install both archives into new environments of a Python, and use them there.

    Args:
        wheel: installed with everything, for the quickstart.
        source: source distribution, installed without extras.
        python: makes the environments.

    Raises:
        TorchError: the quickstart could not be tried.
    """
    # Outside the checkout, so that nothing is imported from there by accident.
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        small, whole = (Environment(ROOT, folder=folder / name) for name in ("small", "whole"))
        install = [*small.pip, "install", "-q", "--no-deps"]
        hashed = ["--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / "requirements" / f"{CORE}.txt")]
        isolated = [str(small.python), "-I"]
        steps = [
            ("a new environment", [str(python), "-m", "venv", str(small.folder)]),
            ("installing the core dependencies", [*install, *hashed]),
            # The pinned build backend is among them; an isolated build would take any version from the index.
            ("installing the source distribution", [*install, "--no-build-isolation", str(source)]),
            ("checking its requirements", [*small.pip, "check"]),
            ("--version", [*isolated, "-m", "tmrl_core", "--version"]),
            ("importing", [*isolated, "-W", "error", "-c", USES]),
            ("a new environment for everything", [str(python), "-m", "venv", str(whole.folder)]),
        ]
        for what, command in steps:
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                return [f"{what} failed:\n{tail(ended.stdout + ended.stderr)}"]
            if what == "--version" and ended.stdout != f"tmrl_core {wheel.name.split('-')[1]}\n":
                return [f"--version says {ended.stdout!r}"]
        try:
            whole.install([BASE], str(wheel))
        except TorchError:
            raise
        except SetupError as exc:
            return [str(exc)]
        return quickstart_errors(whole.python, folder)


def quickstart_errors(python: Path, folder: Path) -> list[str]:
    """Run the short quickstart of an installed package in a folder."""
    shutil.copy(ROOT / "config" / "pendulum_sac.yaml", folder)
    command = [str(python), "-I", "-m", "tmrl_core", "--local", "-c", "pendulum_sac.yaml", *SMALL, "--workers", "1"]
    ended = subprocess.run(
        [*command, "--set", "run.folder=runs"], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    if ended.returncode != 0:
        return [f"the quickstart failed:\n{tail(ended.stdout + ended.stderr)}"]
    (run,) = (folder / "runs").iterdir()
    return small_run_errors(run)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
