"""The environment of this checkout: `.venv` beside pyproject.toml, with the tested versions of everything.

pip installs only files whose SHA-256 is in requirements/, and runs no build backend but the pinned ones. The exception
is a build of torch that the package index does not have: PyTorch's own index serves it.

Needs nothing but Python's standard library, since it runs before anything is installed. It works from any directory
and in any shell. When nothing changed since the last time, it only compares a stamp and is done. `pip install .` by
hand replaces the editable installation by a copy, which no change of the checkout reaches. The next script that uses
the environment repairs that.
"""

# Theory of operation
#
# The scripts work with a bare Python: this file makes the environment that everything else needs. It knows nothing of
# tmrl_core but its name, and imports the standard library only.
#
# State. `.venv/tmrl_core.json`, the stamp: a digest of all that decides what is installed (pyproject.toml, the pins and
# hashes, the Python, the checkout's path), the extras, and the kind of torch. An equal stamp costs one comparison. It
# is removed before anything is installed and written at the end, so an interrupted installation is repeated, never
# taken for a complete one. Extras only add up: `test.py` after `quickstart.py` does not remove what the other one
# needs.
#
# Order. pip itself first, if it is too old for hashes with local versions; then wheels by hash; then packages without a
# wheel, whose build backend the line before has installed by hash; then this project; then torch. A step that fails
# ends the rest with the end of pip's output.
#
# Torch is the exception to "files by hash only": the package index has builds for GPUs on Linux, of 2 GB with CUDA's
# packages, and the build for CPUs is on an index of PyTorch's own, 200 MB. pip is therefore asked first (`--dry-run
# --report`) which file it would take, because a user's configuration of pip may lead to another source, or a build may
# be there already. Rejected: torch's CPU build in the list of hashes (the index of PyTorch changes files in place), and
# an extra for it (extras cannot name an index).

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
OLDEST_PIP = (23, 1)  # tells what it would install without downloading it
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CORE = "core"  # the file in requirements/ without any extra; that of BASE names it
BASE = "all"  # the extra that every environment has
EXTRAS = (BASE, "dev", "docs")  # each has a file in requirements/
BESIDE = ("torch", "source")  # more such files, which every environment needs
PACKAGE = "tmrl_core"
STAMP = f"{PACKAGE}.json"
TAIL_LINES = 25
ALONE = ("--no-deps", "--no-build-isolation")


class SetupError(Exception):
    """The environment could not be made; the message says what to do."""


class TorchError(SetupError):
    """No build of torch for this Python could be installed; everything else is."""


def ensure(extras: Sequence[str], *, gpu: bool = False) -> Path:
    """The environment's Python, after making or updating the environment if that is needed."""
    return Environment(ROOT).ensure(extras, gpu=gpu)


class Environment:
    """The environment of the checkout at `root`.

    Args:
        root: the folder of pyproject.toml, constraints.txt and requirements/.
        pip: the command that runs pip; None: the environment's own.
        folder: of the environment; None: `.venv` below the root.
    """

    def __init__(self, root: Path, pip: Sequence[str] | None = None, folder: Path | None = None) -> None:
        self.root = root
        self.folder = folder or root / ".venv"
        windows = sys.platform == "win32"
        self.python = self.folder / ("Scripts/python.exe" if windows else "bin/python")
        self.pip = list(pip) if pip is not None else [str(self.python), "-m", "pip"]
        self._own_pip = pip is None

    def ensure(self, extras: Sequence[str], *, gpu: bool = False) -> Path:
        """Make or update the environment unless it already has these extras; return its Python.

        Args:
            extras: of EXTRAS. What an earlier call installed stays.
            gpu: take the build of torch that pip takes by itself; otherwise the one for the CPU.

        Raises:
            SetupError: Python is too old, `venv` is missing, or pip failed or refused a file.
        """
        stamp = self._read_stamp()
        wanted = sorted({*extras, *stamp.get("extras", [])})
        editable = self._is_editable()
        unchanged = (
            stamp.get("made_of") == self._made_of() and stamp.get("extras") == wanted and (stamp["gpu"] or not gpu)
        )
        if unchanged and editable:
            return self.python
        if stamp and not editable:
            print(f"{self.folder} holds no editable installation of {self.root}, but a copy or none: repairing that.")
            print('(`pip install .` makes such a copy; `pip install -e ".[EXTRA]"` does not.)', flush=True)
        started = time.monotonic()
        if not self._is_usable():
            self._make()
            stamp, wanted = {}, sorted(extras)
        print(f"Setting up {self.folder} (the first time this takes some minutes) ...", flush=True)
        (self.folder / STAMP).unlink(missing_ok=True)
        if self._own_pip:
            self._update_pip()
        if gpu and not stamp.get("gpu") and stamp:
            # The CPU build satisfies the same pin, so pip would keep it.
            self._run([*self.pip, "uninstall", "-y", "torch"], "removing the CPU build of torch")
        gpu = gpu or bool(stamp.get("gpu"))
        self.install(wanted, "-e", str(self.root), gpu=gpu)
        content = {"made_of": self._made_of(), "extras": wanted, "gpu": gpu}
        (self.folder / STAMP).write_text(json.dumps(content), encoding="utf-8")
        print(f"Setting up took {time.monotonic() - started:.0f} s.", flush=True)
        if not gpu and shutil.which("nvidia-smi"):
            print("This machine seems to have an NVIDIA GPU: `--gpu` installs torch for it.", flush=True)
        return self.python

    def install(self, extras: Sequence[str], *package: str, gpu: bool = False) -> None:
        """Install the pinned files of some extras, the project itself, and torch.

        Args:
            extras: names of files in requirements/.
            package: the project, as arguments of `pip install`.
            gpu: as for `ensure`.

        Raises:
            TorchError: no build of torch can be installed.
            SetupError: pip failed or refused a file.
        """
        # Asked first: the answer costs seconds, and a machine that reaches no build of torch should say so before the
        # minutes of the other downloads.
        torch = self._torch(gpu)
        self._run([*self._locked(*extras), "--only-binary", ":all:"], "installing")
        # These run a build backend, which the line above has installed.
        self._run([*self._locked("source"), *ALONE], "building packages without a wheel")
        self._run([*self.pip, "install", *ALONE, *package], "building tmrl_core")
        if torch:
            try:
                self._run(torch, "installing torch", index=CPU_INDEX if CPU_INDEX in torch else None)
            except SetupError as exc:
                raise TorchError(str(exc)) from None

    # -- what is there ------------------------------------------------------------------------------------------------

    def _made_of(self) -> str:
        """A digest of all that decides what gets installed."""
        digest = hashlib.sha256()
        pins = [self.root / "constraints.txt", *sorted((self.root / "requirements").glob("*.txt"))]
        for file in (self.root / "pyproject.toml", *pins, self.folder / "pyvenv.cfg"):
            digest.update(file.read_bytes() if file.exists() else b"")
            digest.update(b"\0")
        digest.update(str(self.root).encode())  # an editable installation points there
        return digest.hexdigest()

    def _read_stamp(self) -> dict[str, Any]:
        try:
            stamp = json.loads((self.folder / STAMP).read_text(encoding="utf-8"))
            return stamp if self.python.exists() and isinstance(stamp, dict) and "gpu" in stamp else {}
        except (OSError, ValueError):
            return {}

    def _is_editable(self) -> bool:
        """Return True if the environment imports the package from this checkout, so that changes take effect."""
        libraries = "Lib" if sys.platform == "win32" else "lib/python*"
        found = list(self.folder.glob(f"{libraries}/site-packages/{PACKAGE}-*.dist-info"))
        return bool(found) and all(self._names_this_checkout(folder / "direct_url.json") for folder in found)

    def _names_this_checkout(self, record: Path) -> bool:
        """Return True if a record of pip (PEP 610) is that of an editable installation of this checkout."""
        try:
            said = json.loads(record.read_text(encoding="utf-8"))
            place = Path(url2pathname(urlsplit(said["url"]).path))
            return said["dir_info"]["editable"] is True and place.resolve() == self.root.resolve()
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _is_usable(self) -> bool:
        if not self.python.exists():
            return False
        code = "import sys, pip; sys.exit(sys.version_info < ({}, {}))".format(*OLDEST)
        return subprocess.run([str(self.python), "-c", code], capture_output=True, check=False).returncode == 0

    # -- steps --------------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        check_python(sys.version_info[:3])
        try:
            import ensurepip  # noqa: F401
            import venv  # noqa: F401
        except ImportError:
            version = "{}.{}".format(*sys.version_info[:2])
            raise SetupError(
                "this Python has no `venv` module. On Debian and Ubuntu it is a package of its own: "
                f"`sudo apt install python{version}-venv`."
            ) from None
        self._run([sys.executable, "-m", "venv", "--clear", str(self.folder)], f"making {self.folder}")

    def _update_pip(self) -> None:
        output = self._run([*self.pip, "--version"], None)
        version = tuple(int(part) for part in output.split()[1].split(".")[:2] if part.isdigit())
        if version < OLDEST_PIP:
            self._run(self._locked("pip"), "updating pip")

    def _locked(self, *names: str) -> list[str]:
        """Return the command that installs all of some files of requirements/, and nothing else."""
        files = [word for name in names for word in ("-r", str(self.root / "requirements" / f"{name}.txt"))]
        return [*self.pip, "install", "--no-deps", "--require-hashes", *files]

    def _torch(self, gpu: bool) -> list[str]:
        """Return the command that installs torch; empty if the right version is there."""
        install = [*self.pip, "install", "-c", str(self.root / "constraints.txt")]
        command = [*install, "--dry-run", "--quiet", "--no-deps", "--report", "-", "torch"]
        output = self._run(command, "asking pip which build of torch it would take", merge=False)
        try:
            report = json.loads(output)
        except ValueError:
            raise SetupError(f"pip's report is not JSON:\n{tail(output)}") from None
        if not report["install"]:
            return []
        if not gpu and not takes_cpu_build(report):
            return [*install, "--no-deps", "--index-url", CPU_INDEX, "torch"]
        if "+" in report["install"][0]["metadata"]["version"]:
            # A build that the package index does not have: pip is configured for another source.
            return [*install, *([] if gpu else ["--no-deps"]), "torch"]
        return [*self._locked("torch"), "--only-binary", ":all:"]

    def _run(self, command: Sequence[str], what: str | None, *, merge: bool = True, index: str | None = None) -> str:
        """Run a program behind one line of progress; its output, which is shown only when it fails.

        Args:
            command: the program and its arguments.
            what: said on the line of progress.
            merge: add the errors to the output.
            index: the one index that pip may use, whatever its configuration adds.
        """
        # A `user = true` in somebody's pip configuration makes pip refuse to work in a virtual environment.
        environment = {**os.environ, "PIP_USER": "0"}
        if index is not None:
            # A variable replaces a value of the configuration, unless it is empty; there are no packages in .venv.
            environment |= {"PIP_EXTRA_INDEX_URL": index, "PIP_FIND_LINKS": str(self.folder)}
        progress = Progress(what)
        lines = []
        with (
            tempfile.TemporaryFile() as aside,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merge else aside,
                stdin=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=environment,
                cwd=str(self.root),
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                progress.show(line)
            process.wait()
            aside.seek(0)
            complaints = aside.read().decode("utf-8", "replace")
        progress.close()
        output = "".join(lines)
        if process.returncode != 0:
            refused = refused_files(output + complaints)
            if refused:
                raise SetupError(refused)
            shown = " ".join(command)
            raise SetupError(
                f"{what or 'a command'} failed (exit status {process.returncode}). The end of its output:\n\n"
                f"{tail(output + complaints)}\n\nThe command was: {shown}"
            )
        return output


class Progress:
    """One line on a terminal that says what is being done now; elsewhere nothing."""

    def __init__(self, what: str | None) -> None:
        self._what = what
        self._started = time.monotonic()
        self._on = what is not None and sys.stdout.isatty()

    def show(self, line: str) -> None:
        """Say which package is at hand, from a line of pip's output."""
        words = line.split()
        if not self._on or len(words) < 2 or words[0] not in ("Collecting", "Downloading", "Installing", "Building"):
            return
        text = f"  {self._what} ({time.monotonic() - self._started:.0f} s): {words[0].lower()} {words[1]}"
        width = shutil.get_terminal_size().columns - 1
        print("\r" + text[:width].ljust(width), end="", flush=True)

    def close(self) -> None:
        """Take the line away."""
        if self._on:
            print("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r", end="", flush=True)


def check_python(version: Sequence[int]) -> None:
    """Refuse a Python that is too old.

    Raises:
        SetupError: it is.
    """
    if tuple(version[:2]) < OLDEST:
        found = ".".join(str(part) for part in version)
        raise SetupError(
            "Python {} is too old: tmrl_core needs {}.{} or newer. Run this with a newer one, for instance "
            "`python3.12 {}`.".format(found, *OLDEST, " ".join(sys.argv))
        )


def takes_cpu_build(report: dict[str, Any], system: str | None = None) -> bool:
    """Whether the torch in pip's report (of `--dry-run --report`) is a build for the CPU.

    On Linux a CPU build says so in its version; elsewhere what the package index has is one, unless it asks for CUDA
    packages. Nothing to install at all means that torch is there already, and stays.
    """
    system = platform.system() if system is None else system
    for item in report.get("install", []):
        metadata = item.get("metadata", {})
        if metadata.get("name", "").lower() == "torch":
            if "+" in metadata.get("version", ""):
                return bool(metadata["version"].endswith("+cpu"))
            needs = " ".join(metadata.get("requires_dist", [])).lower()
            return system != "Linux" and not any(word in needs for word in ("nvidia-", "cuda-", "triton"))
    return True


def refused_files(output: str) -> str:
    """Return the message about files whose hash pip refused, from its output; empty if it refused none."""
    _, found, said = output.partition("DO NOT MATCH THE HASHES")
    files = re.findall(r"^ {4}(\S.*?)(?: \(from -r .*)?:\n(?: {8}.*\n)*? +Got +([0-9a-f]{64})", said, re.MULTILINE)
    if not found or not files:
        return ""
    return (
        "pip refused a file, because requirements/ does not list its SHA-256:\n\n"
        + "".join(f"    {file}\n    has SHA-256 {digest}\n" for file, digest in files)
        + "\nNothing was installed from it. A package index or a proxy has changed the file, or the file is newer than "
        "the list. Try another index (`PIP_INDEX_URL=https://pypi.org/simple`). If you trust the file, list the hashes "
        "that the index states now (`python scripts/pins.py --update`) and review the difference."
    )


def tail(output: str) -> str:
    """The last lines of a program's output."""
    return "\n".join(output.rstrip().splitlines()[-TAIL_LINES:])


def run_here(command: Sequence[str], **options: Any) -> int:
    """Run a program in the project's folder until it ends; its exit status.

    Ctrl-C reaches it from the terminal by itself: this waits for its orderly end. A SIGTERM is passed on.
    """
    process: subprocess.Popen[bytes] | None = None

    def pass_on(*_: object) -> None:
        if process is None:
            sys.exit(128 + signal.SIGTERM)
        process.terminate()

    previous = signal.signal(signal.SIGTERM, pass_on)
    try:
        while True:
            try:
                process = process or subprocess.Popen(command, cwd=str(ROOT), **options)
                return process.wait()
            except KeyboardInterrupt:
                if process is None:
                    raise
    finally:
        signal.signal(signal.SIGTERM, previous)
