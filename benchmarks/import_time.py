"""How long `import tmrl_core` takes, and what it opens.

    python benchmarks/import_time.py [--repetitions 21]

Both sides in turn: a Python that imports nothing, and one that imports the package. `time` is a whole process from
start to end; the difference is what the import costs.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time

REACH_S = 0.2

OPENED = """
import json, sys
opened = []
watching = True
sys.addaudithook(lambda event, args: opened.append(f"{event} {args[0]}") if watching and (
    event == "open" and not str(args[0]).endswith((".py", ".pyc", ".so", ".pyd"))
    or event.startswith(("socket.", "subprocess.", "_thread."))) else None)
before = set(sys.modules)
import tmrl_core
watching = False
print(json.dumps({"opened": opened, "modules": sorted(set(sys.modules) - before)}))
"""


def seconds(code: str) -> float:
    """Of one whole process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print both sides."""
    parser = argparse.ArgumentParser(description="The time of `import tmrl_core`.")
    parser.add_argument("--repetitions", type=int, default=21)
    repetitions = parser.parse_args().repetitions
    codes = {"bare": "pass", "import tmrl_core": "import tmrl_core"}
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(repetitions):
        for name, code in codes.items():
            times[name].append(seconds(code))
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {repetitions} repetitions")
    for name, measured in times.items():
        middle, least, most = statistics.median(measured), min(measured), max(measured)
        print(f"{name:<18} median {middle * 1000:6.1f} ms, range {least * 1000:.1f} to {most * 1000:.1f} ms")
    bare, whole = (statistics.median(measured) for measured in times.values())
    print(
        f"the import alone   {(whole - bare) * 1000:.1f} ms; ratio {whole / bare:.2f}; reach: {REACH_S * 1000:.0f} ms"
    )
    seen = json.loads(subprocess.run([sys.executable, "-c", OPENED], check=True, capture_output=True).stdout)
    print(f"opened: {', '.join(seen['opened']) or 'nothing'}; new modules: {', '.join(seen['modules'])}")


if __name__ == "__main__":
    main()
