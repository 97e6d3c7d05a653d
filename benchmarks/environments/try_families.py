"""Try each family of environments in a virtual environment of its own; write results as JSON lines.

    python benchmarks/environments/try_families.py [--only NAME ...]

Needs the package index, up to 10 GB of disk and an hour. `families.yaml` says what is installed and tried; a family's
earlier lines in `results.jsonl` are replaced. Then `families_page.py` writes docs/environments.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.jsonl"
TIMEOUT_S = 300


def main() -> int:
    """Try the families."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of families")
    options = parser.parse_args()
    families = yaml.safe_load((HERE / "families.yaml").read_text(encoding="utf-8"))
    names = [family["name"] for family in families]
    if unknown := set(options.only or ()) - set(names):
        parser.error(f"--only: found {sorted(unknown)}, allowed: {names}")
    for family in families:
        if "packages" in family and (not options.only or family["name"] in options.only):
            store(family["name"], tried(family), names)
    return 0


def store(name: str, lines: list[dict[str, Any]], order: list[str]) -> None:
    """Replace a family's lines, in the order of the families."""
    old = read_results()
    kept = [line for line in old if line["family"] != name] + lines
    kept.sort(key=lambda line: order.index(line["family"]) if line["family"] in order else len(order))
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def read_results() -> list[dict[str, Any]]:
    """Return all lines that are there."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def tried(family: dict[str, Any]) -> list[dict[str, Any]]:
    """Install a family, and record and replay its cases."""
    name = family["name"]
    folder = Path(tempfile.mkdtemp(prefix="family-"))
    try:
        python = folder / "venv" / "bin" / "python"
        failed = run([family.get("python", sys.executable), "-m", "venv", str(folder / "venv")], folder)[1]
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        failed = failed or run([*install, "-e", str(ROOT), *family["packages"]], folder, 1500)[1]
        for more in family.get("then", []):
            failed = failed or run([*install, *more.split()], folder, 900)[1]
        if failed:
            print(f"{name}: not installed: {failed}", flush=True)
            return [{"family": name, "failed": f"not installed: {failed}"}]
        versions = json.loads(run([str(python), "-c", VERSIONS], folder)[0])
        versions["versions"] = {
            each: versions["versions"][each] for each in named(family) if each in versions["versions"]
        }
        return [{"family": name, **one(case, python, folder, name), **versions} for case in family["cases"]]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def named(family: dict[str, Any]) -> list[str]:
    """Return the normalized names of the packages that a family names, and of those in `also`."""
    names = [re.split(r"[\[=<>]| @", package)[0].strip().lower().replace("_", "-") for package in family["packages"]]
    return list(dict.fromkeys([*names, *family.get("also", [])]))


VERSIONS = """
import importlib.metadata, json, platform
print(json.dumps({"python": platform.python_version(),
    "versions": {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}}))
"""


def one(case: dict[str, Any], python: Path, folder: Path, name: str) -> dict[str, Any]:
    """Record and replay one case."""
    work = Path(tempfile.mkdtemp(dir=folder))
    (work / "case.json").write_text(json.dumps(case), encoding="utf-8")
    for file, text in case.get("files", {}).items():
        (work / file).write_text(text, encoding="utf-8")
    result: dict[str, Any] = {"environment": case["environment"]}
    for what in ("record", "replay", "probe"):
        out, failed = run([str(python), str(HERE / "replayed.py"), what, "case.json", str(work / "out")], work)
        if failed:
            result["failed"] = f"{what}: {failed}"
            if what == "record":
                break
            continue
        result[what] = json.loads(out.rstrip().rpartition("\n")[2])
    print(name, json.dumps(result), flush=True)
    return result


def run(command: list[str], folder: Path, timeout: float = TIMEOUT_S) -> tuple[str, str]:
    """Run a command; return its output, and why it failed."""
    environ = {**os.environ, "PYTHONPATH": str(folder), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environ.update(MUJOCO_GL="egl", SDL_VIDEODRIVER="dummy", SDL_AUDIODRIVER="dummy", PYTHONWARNINGS="ignore")
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, timeout=timeout, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return "", f"no end after {timeout:.0f} s"
    if not done.returncode:
        return done.stdout, ""
    lines = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
    sys.stderr.write("\n".join(lines[-25:]) + "\n")
    last = next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b|ERROR", line)), "")
    text = last or (lines[-1] if lines else f"status {done.returncode}")
    return "", text.replace(str(folder), "FOLDER").replace(str(ROOT), "CHECKOUT")[:400]


if __name__ == "__main__":
    print(platform.platform(), flush=True)
    sys.exit(main())
