"""Build and check what a release publishes: the wheel and the source distribution. Uploads nothing.

    python scripts/release.py           builds into dist/
    python scripts/release.py --keep    checks what is in dist/ without building

Both archives are searched for secrets, caches and missing files, and their metadata is validated. The wheel is
installed into a new environment without extras: the command line and an import must work there without torch. Needs the
package index for the core dependencies. Makes the environment first.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from _environment import CORE, ROOT, Environment, SetupError, ensure, run_here, tail

DIST = ROOT / "dist"
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
    arguments = parser.parse_args()
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
    errors = check(DIST, python)
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if not errors:
        print(
            "checked: " + ", ".join(f"{path.name} ({path.stat().st_size >> 10} KiB)" for path in sorted(DIST.iterdir()))
        )
        print("Not uploaded. Before that: the date of the version in CHANGELOG.md, and a tag.")
    return 1 if errors else 0


def check(folder: Path, python: Path) -> list[str]:
    """Return the errors of the two archives in `folder`.

    Args:
        folder: one wheel and one source distribution.
        python: of an environment with `packaging`; it also makes the new environment.
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
    return errors or installed_errors(wheels[0], python)


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


def installed_errors(wheel: Path, python: Path) -> list[str]:
    """Validate the metadata, install the wheel into a new environment without extras, and use it there."""
    validate = (
        "import sys, zipfile; from packaging.metadata import Metadata; archive = zipfile.ZipFile(sys.argv[1]);"
        "(name,) = [each for each in archive.namelist() if each.endswith('.dist-info/METADATA')];"
        "found = Metadata.from_email(archive.read(name), validate=True); assert found.license_files, 'no license file';"
        "assert found.description_content_type == 'text/markdown' and found.description, 'no description'"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder))
        new = str(environment.python)
        install = [new, "-m", "pip", "install", "-q", "--no-deps"]
        hashed = ["--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / "requirements" / f"{CORE}.txt")]
        steps = [
            ("metadata", [str(python), "-c", validate, str(wheel)]),
            ("a new environment", [str(python), "-m", "venv", str(environment.folder)]),
            ("installing the core dependencies", [*install, *hashed]),
            ("installing the wheel", [*install, str(wheel)]),
            ("checking its requirements", [new, "-m", "pip", "check"]),
            ("--version", [new, "-I", "-m", "tmrl_core", "--version"]),
            ("importing", [new, "-I", "-W", "error", "-c", USES]),
        ]
        for what, command in steps:
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if ended.returncode != 0:
                return [f"{what} failed:\n{tail(ended.stdout + ended.stderr)}"]
            if what == "--version" and ended.stdout != f"tmrl_core {wheel.name.split('-')[1]}\n":
                return [f"--version says {ended.stdout!r}"]
    return []


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
