"""Pinned versions: `constraints.txt`, and `requirements/` with the SHA-256 of each file that pip may install.

    python scripts/pins.py             checks that pins, hashes and pyproject.toml agree; needs no network
    python scripts/pins.py --update    writes both for all platforms; keeps each pinned version that still fits
    python scripts/pins.py --upgrade   the same with the newest versions

The check needs `packaging`, which the extra `dev` installs. The other two need uv (https://docs.astral.sh/uv/) and the
package index. Review the difference that they make: the hashes are those that the index states at that moment.
"""

# Theory of operation
#
# Three files must agree: pyproject.toml says what is allowed, constraints.txt which version was tested, requirements/
# which files pip may install. The check needs no network and no resolver: it walks from each extra along the metadata
# of the installed packages and looks for each requirement among the pins, for every system and Python that the project
# names, with the markers evaluated as they would be there. So it finds a package that is missing on Windows on a
# machine with Linux, as long as the package is installed here; the others are taken as uv has written them.
#
# Updating is uv's work (`uv pip compile --universal --generate-hashes`): one resolution for all platforms. Versions
# that still fit are kept, because a difference that nobody asked for cannot be reviewed. torch and the packages with
# CUDA stand in a file of their own, since a machine without a GPU shall not have to download 2 GB. A package without a
# wheel runs code when it is installed; it stands in a file of its own that is installed last, with the pinned build
# backend.
#
# Example: `mkdocs>=1.6,<2` in the extra docs; `mkdocs==1.6.1` in constraints.txt; two hashes (a wheel, a source
# archive) in requirements/docs.txt. `mkdocs==1.7.0` there fails the check twice: another version than constraints.txt,
# and another one than is installed.

from __future__ import annotations

import argparse
import functools
import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from _environment import BASE, BESIDE, CORE, EXTRAS, ROOT
from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

FOLDER = ROOT / "requirements"
# Extras that no script installs: two for environments, one that would hold pillow back, one for devices, one of 170 MB
# (docs/dependencies.md).
UNPINNED = {"mujoco", "box2d", "trackio", "teleop", "rerun"}
SOURCES = {"tlspyo"}  # has no wheel
BUILT_WITH = ["setuptools", "editables"]  # for the packages of SOURCES; for hatchling's editable installation
# The package index's build of torch for Linux needs them; builds of other indexes have their own.
CUDA = re.compile(r"(cuda|nvidia)-|triton$")
PYTHONS = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
SYSTEMS = {
    "Linux": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"},
    "macOS": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix", "platform_machine": "arm64"},
    "Windows": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "AMD64"},
}
CONSTRAINTS_HEAD = """\
# Every package that `.[all,dev,docs]` and its build bring, at the version that was tested (Linux, Python 3.11).
# `python scripts/pins.py --update` writes this file, and requirements/ with the hashes.
# torch without a local version: the CPU build (2.13.0+cpu) and the builds for GPUs fit alike, and each GPU build pins
# its own CUDA packages. What only an extra outside of `all` brings (mujoco, box2d, trackio, hidapi, rerun) is not
# pinned.
"""
HEAD = "# Written by `python scripts/pins.py --update`.\n"


class Pin(NamedTuple):
    """One line of a file of pins: a version, its marker, and the hashes of its files."""

    requirement: Requirement
    hashes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The normalized name."""
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        """The pinned version; empty if the line allows several."""
        said = str(self.requirement.specifier)
        return said[2:] if re.fullmatch(r"==[^=*,]+", said) else ""


class Environment(NamedTuple):
    """A Python on an operating system, as markers see it."""

    label: str
    marker: Mapping[str, str]


parse = functools.lru_cache(maxsize=None)(Requirement)


def read(text: str) -> list[Pin]:
    """Return the pins of a file's text.

    Raises:
        ValueError: a line is not a requirement.
    """
    pins = []
    for line in text.replace("\\\n", " ").splitlines():
        words, *hashes = re.split(r"\s--hash=", line.partition("#")[0])
        if words.strip() and not words.startswith("-"):
            try:
                pins.append(Pin(parse(words.strip()), tuple(one.strip() for one in hashes)))
            except InvalidRequirement as exc:
                raise ValueError(f"{words.strip()!r} is not a pin: {exc}") from exc
    return pins


# -- check ------------------------------------------------------------------------------------------------------------


def check(
    project: Mapping[str, Any],
    constraints: str,
    files: Mapping[str, str],
    needs: Callable[[str, str], Sequence[str]] | None = None,
) -> list[str]:
    """Return each disagreement between the project's requirements, the pins, and the files with hashes.

    Args:
        project: pyproject.toml.
        constraints: the text of constraints.txt.
        files: the texts of requirements/, by name without `.txt`.
        needs: the requirements of a package at a version, or none if they are not known here; None: those of the
            installed packages.
    """
    try:
        pins = read(constraints)
        locked = {name: read(text) for name, text in files.items()}
    except ValueError as exc:
        return [str(exc)]
    missing = [f"requirements/{name}.txt is missing" for name in (CORE, *EXTRAS, *sorted(BESIDE)) if name not in files]
    if missing:
        return missing
    errors = [error for name, entries in locked.items() for error in _entry_errors(name, entries)]
    backend = [Pin(parse(requirement)) for requirement in project["build-system"]["requires"]]
    errors += [f"pyproject.toml (build-system): {pin.requirement} is not pinned" for pin in backend if not pin.version]
    for environment in _environments(project):
        versions = {pin.name: pin.version for pin in pins if _applies(pin.requirement, environment)}
        errors += _pin_errors(project, versions, environment)
        errors += _lock_errors(project, versions, locked, environment)
    here = Environment("this machine", _this_environment())
    errors += _closure_errors(project, locked, here, needs or _installed)
    return list(dict.fromkeys(errors))


def _entry_errors(name: str, entries: Iterable[Pin]) -> Iterator[str]:
    for pin in entries:
        if not pin.version:
            yield f"requirements/{name}.txt: {pin.requirement} is not pinned to one version"
        if not pin.hashes:
            yield f"requirements/{name}.txt: {pin.requirement} has no hash"
        for digest in pin.hashes:
            if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
                yield f"requirements/{name}.txt: {pin.requirement} has {digest!r}, which is no SHA-256"


def _pin_errors(project: Mapping[str, Any], versions: Mapping[str, str], environment: Environment) -> Iterator[str]:
    direct = [("build-system", one) for one in project["build-system"]["requires"]]
    for extra in (None, *project["project"]["optional-dependencies"].keys() - UNPINNED):
        direct += [(f"extra {extra}" if extra else "dependencies", one) for one in _required(project, extra)]
    for origin, text in direct:
        requirement = parse(text)
        version = versions.get(canonicalize_name(requirement.name))
        if not _applies(requirement, environment):
            continue
        if version is None:
            yield f"pyproject.toml ({origin}) requires {text}, and constraints.txt has no pin for {environment.label}"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"pyproject.toml ({origin}) requires {text}, and constraints.txt pins {version}"


def _lock_errors(
    project: Mapping[str, Any],
    versions: Mapping[str, str],
    locked: Mapping[str, Sequence[Pin]],
    environment: Environment,
) -> Iterator[str]:
    active = {name: _active(entries, environment) for name, entries in locked.items()}
    for name, entries in active.items():
        for package, version in entries.items():
            pinned = versions.get(package)
            if pinned != version and not CUDA.match(package) and name != "pip":
                yield (
                    f"requirements/{name}.txt has {package} {version}, and constraints.txt {pinned or 'no pin'} "
                    f"for {environment.label}"
                )
    for extra in (CORE, *EXTRAS):
        found = _installed_with(extra, active)
        for text in _direct(project, extra):
            requirement = parse(text)
            wanted = _applies(requirement, environment)
            if wanted and canonicalize_name(requirement.name) not in found:
                yield f"requirements/{extra}.txt lacks {text} of pyproject.toml for {environment.label}"


def _closure_errors(
    project: Mapping[str, Any],
    locked: Mapping[str, Sequence[Pin]],
    environment: Environment,
    needs: Callable[[str, str], Sequence[str]],
) -> Iterator[str]:
    active = {name: _active(entries, environment) for name, entries in locked.items()}
    for extra in (CORE, *EXTRAS):
        found = _installed_with(extra, active)
        todo = [("pyproject.toml", text, frozenset({""})) for text in _direct(project, extra)]
        seen = set()
        while todo:
            origin, text, asked = todo.pop()
            requirement = parse(text)
            name = canonicalize_name(requirement.name)
            extras = frozenset(requirement.extras or {""})
            if (name, extras) in seen or not any(_applies(requirement, environment, one) for one in asked):
                continue
            seen.add((name, extras))
            if name not in found:
                yield f"requirements/{extra}.txt lacks {name}, which {origin} requires on {environment.label}"
                continue
            if not requirement.specifier.contains(found[name], prereleases=True):
                yield f"requirements/{extra}.txt has {name} {found[name]}, and {origin} requires {requirement}"
            todo += [(f"{name} {found[name]}", inner, extras) for inner in needs(name, found[name])]


def _direct(project: Mapping[str, Any], extra: str) -> list[str]:
    """Return the requirements of an environment with this extra (`CORE`: with none), and of the build."""
    build = [*project["build-system"]["requires"], *BUILT_WITH]
    return [*build, *_required(project, None), *(() if extra == CORE else _required(project, extra))]


def _installed_with(extra: str, active: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the versions that an environment with this extra (`CORE`: with none) gets."""
    files = (CORE,) if extra == CORE else (CORE, BASE, extra, *BESIDE)
    return {name: version for file in files for name, version in active[file].items()}


def _active(entries: Iterable[Pin], environment: Environment) -> dict[str, str]:
    return {pin.name: pin.version for pin in entries if _applies(pin.requirement, environment)}


def _applies(requirement: Requirement, environment: Environment, extra: str = "") -> bool:
    marker = requirement.marker
    return marker is None or marker.evaluate({**environment.marker, "extra": extra})


def _installed(name: str, version: str) -> Sequence[str]:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []
    # A local version names a build of the same release.
    return (found.requires or []) if found.version.partition("+")[0] == version else []


def _required(project: Mapping[str, Any], extra: str | None) -> Iterator[str]:
    """Yield the requirements of an extra, also of the project's extras that it names; None: those without extras."""
    table = project["project"]
    own = canonicalize_name(table["name"])
    for text in table["dependencies"] if extra is None else table["optional-dependencies"][extra]:
        requirement = parse(text)
        if canonicalize_name(requirement.name) != own:
            yield text
        else:
            for inner in sorted(requirement.extras):
                yield from _required(project, inner)


def _environments(project: Mapping[str, Any]) -> Iterator[Environment]:
    versions = [found[1] for one in project["project"]["classifiers"] if (found := PYTHONS.match(one))]
    for version in versions:
        for patch in (0, 99):  # some requirements begin with a patch release
            for system, marker in SYSTEMS.items():
                python = {
                    "python_version": version,
                    "python_full_version": f"{version}.{patch}",
                    "implementation_name": "cpython",
                    "platform_python_implementation": "CPython",
                }
                label = f"Python {version}.{patch} on {system}"
                yield Environment(label, {**_this_environment(), **python, **marker})


def _this_environment() -> dict[str, str]:
    return {name: str(value) for name, value in default_environment().items()}


# -- update -----------------------------------------------------------------------------------------------------------


def update(upgrade: bool) -> None:
    """Write constraints.txt and requirements/.

    Raises:
        OSError: uv is not here, or it found no versions that fit together.
    """
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise OSError("uv is not here. It finds the versions for all platforms: `pip install uv`, then try again")
    project = read_project()
    path = ROOT / "constraints.txt"
    also = [*project["build-system"]["requires"], *BUILT_WITH]
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    old = "" if upgrade else path.read_text(encoding="utf-8")
    text = compile_pins(uv, [str(ROOT / "pyproject.toml"), *extras], also, old)
    write(path, CONSTRAINTS_HEAD, [entry for entry in entries_of(text) if not CUDA.match(name_of(entry))])

    hashed = ["--generate-hashes", "--constraints", str(path)]
    sets = {CORE: entries_of(compile_pins(uv, [str(ROOT / "pyproject.toml"), *hashed], also, ""))}
    for extra in EXTRAS:
        options = [str(ROOT / "pyproject.toml"), *hashed, "--extra", BASE, "--extra", extra]
        sets[extra] = entries_of(compile_pins(uv, options, also, ""))
    FOLDER.mkdir(exist_ok=True)
    own = [entry for entry in sets[BASE] if name_of(entry) in SOURCES]
    wheels = [
        entry for entry in sets[BASE] if not CUDA.match(name_of(entry)) and name_of(entry) not in {*SOURCES, "torch"}
    ]
    write(FOLDER / f"{CORE}.txt", HEAD, sets[CORE])
    write(FOLDER / f"{BASE}.txt", f"{HEAD}-r {CORE}.txt\n", [entry for entry in wheels if entry not in sets[CORE]])
    write(FOLDER / "source.txt", HEAD, own)
    for extra in EXTRAS:
        if extra != BASE:
            more = [entry for entry in sets[extra] if entry not in sets[BASE]]
            write(FOLDER / f"{extra}.txt", f"{HEAD}-r {BASE}.txt\n", more)
    torch = FOLDER / "torch.txt"
    old = torch.read_text(encoding="utf-8") if torch.exists() and not upgrade else ""
    found = entries_of(compile_pins(uv, hashed, ["torch"], old))
    write(torch, HEAD, [entry for entry in found if CUDA.match(name_of(entry)) or name_of(entry) == "torch"])
    write(FOLDER / "pip.txt", HEAD, entries_of(compile_pins(uv, ["--generate-hashes"], ["pip"], "")))


def compile_pins(uv: str, options: Sequence[str], also: Sequence[str], old: str) -> str:
    """Return versions for all platforms and Pythons that fit together.

    Args:
        uv: the program.
        options: of `uv pip compile`, with the files of requirements.
        also: further requirements.
        old: an earlier result, whose versions stay where they fit.
    """
    oldest = re.search(r"\d+\.\d+", read_project()["project"]["requires-python"])
    assert oldest is not None
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "pins.txt"
        output.write_text(old, encoding="utf-8")
        ended = subprocess.run(
            [
                *(uv, "pip", "compile", "--universal", "--python-version", oldest[0], "--no-python-downloads"),
                *(
                    "--quiet",
                    "--no-config",
                    "--no-header",
                    "--no-annotate",
                    "--output-file",
                    str(output),
                    *options,
                    "-",
                ),
            ],
            input="\n".join(also),
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise OSError(f"uv found no versions that fit together:\n{ended.stderr}")
        return output.read_text(encoding="utf-8")


def entries_of(text: str) -> list[str]:
    """Return each pin with its lines of hashes."""
    return re.findall(r"^\S.*\n(?:^\s+\S.*\n)*", text, re.MULTILINE)


def name_of(entry: str) -> str:
    """Return the package of a pin."""
    return canonicalize_name(entry.partition("==")[0].partition("[")[0])


def write(path: Path, head: str, entries: Sequence[str]) -> None:
    """Write a file of pins."""
    path.write_text(head + "".join(entries), encoding="utf-8", newline="\n")


# -- command ----------------------------------------------------------------------------------------------------------


def read_project() -> dict[str, Any]:
    """Return pyproject.toml."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project: dict[str, Any] = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return project


def main() -> int:
    """Check, after an update if one is asked for; the exit status."""
    parser = argparse.ArgumentParser(description="Check or write constraints.txt and requirements/.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--update", action="store_true", help="write them; keep each pinned version that still fits")
    action.add_argument("--upgrade", action="store_true", help="write them with the newest versions")
    arguments = parser.parse_args()
    if arguments.update or arguments.upgrade:
        try:
            update(arguments.upgrade)
        except OSError as exc:
            print(f"error: {exc}", file=sys.stderr)
            return 1
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    files = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.txt"))}
    errors = check(read_project(), constraints, files)
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if errors:
        print("`python scripts/pins.py --update` writes pins and hashes that fit pyproject.toml.", file=sys.stderr)
        return 1
    hashes = sum(text.count("--hash=") for text in files.values())
    print(f"{len(read(constraints))} pins and {hashes} hashes agree with pyproject.toml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
