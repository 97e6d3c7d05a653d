"""Make the pictures of tmrl_core/dashboard/README.md from a real run in headless Chromium.

    python scripts/dashboard_pictures.py                         a minute; needs the package chromium and torch

Starts `--local --dashboard` with config/pendulum_sac.yaml in a temporary folder, waits until it has learned for a
while, and takes pictures: light, dark, as wide as a telephone, and of a worker's camera and its latest evaluation.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.dashboard.browser import CHROMIUM, MISSING, Page, chromium  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000
PORT = 8633
LONGER = (
    "trainer.epochs=20",
    "trainer.evaluation.time_limit_s=900",
    "trainer.evaluation.target_return=-120",
    "trainer.evaluation.every_updates=250",
    "worker.evaluation_videos=true",
)
"""The run would end at its own target before it has a curve to show."""
SHOTS = {
    "dashboard_light": (1440, 860, False),
    "dashboard_dark": (1440, 860, True),
    "dashboard_phone": (390, 844, False),
}


def wait(page: Page, url: str, evaluations: int, run: subprocess.Popen[bytes]) -> None:
    """Wait until the run has this number of evaluations.

    Raises:
        SystemExit: the run has ended before.
    """
    page.open(url)
    while int(page.value("document.querySelectorAll('#policies tbody tr').length") or 0) < evaluations:
        if run.poll() is not None:
            raise SystemExit("the run has ended before; set fewer --evaluations")
        time.sleep(1.0)


def take(page: Page, url: str) -> list[Path]:
    """Take the pictures."""
    paths = []
    PICTURES.mkdir(exist_ok=True)
    for name, (width, height, dark) in SHOTS.items():
        page.size(width, height, mobile=width < 500)
        page.dark(dark)
        page.open(url)
        page.until("document.querySelector('#return-chart .dot') && document.querySelector('#workers td')")
        time.sleep(1.0)  # until the browser has drawn it
        path = PICTURES / f"{name}.png"
        page.picture(path)
        if path.stat().st_size > MOST_BYTES:
            raise SystemExit(
                f"{path} has {path.stat().st_size:,} bytes, allowed: {MOST_BYTES:,}; take a smaller window"
            )
        paths.append(path)
    return paths


def take_camera(page: Page) -> Path:
    """Ask the worker for its camera, and take a picture of it and of the latest evaluation beside it."""
    page.size(1440, 560)
    page.dark(False)
    page.value("document.querySelector('#look button[value=camera]').click()")
    for media in ("img').naturalWidth > 0", "video').readyState > 1"):
        page.until(f"document.querySelector('#picture-list {media}")
    page.value("document.getElementById('pictures').scrollIntoView()")
    page.value("document.querySelector('#picture-list video').currentTime = 1")
    time.sleep(2.0)
    path = PICTURES / "dashboard_camera.png"
    page.picture(path)
    return path


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--evaluations", type=int, default=5, help="evaluations before the pictures are taken")
    chosen = options.parse_args()
    if not CHROMIUM:
        raise SystemExit(MISSING)
    command = [
        sys.executable,
        "-m",
        "tmrl_core",
        "--local",
        "--dashboard",
        "-c",
        "config/pendulum_sac.yaml",
        "--control",
    ]
    for change in (f"dashboard.port={PORT}", "server.port=0", *LONGER):
        command += ["--set", change]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        log = Path(folder) / "log"
        environment = {**os.environ, "TMRL_CORE_HOME": folder}
        command += ["--set", f"run.folder={folder}/runs"]
        with open(log, "wb") as output:
            run = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        try:
            deadline = time.monotonic() + 120
            while b"Live page:" not in log.read_bytes():
                if run.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the run did not start")
                time.sleep(0.5)
            time.sleep(5.0)
            with chromium(Path(profile)) as page:
                url = f"http://localhost:{PORT}/"
                wait(page, url, chosen.evaluations, run)
                for path in (*take(page, url), take_camera(page)):
                    print(path.relative_to(ROOT), f"{path.stat().st_size:,} bytes")
        except SystemExit:
            print(log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            if run.stdin is not None:
                run.stdin.close()  # which ends it in order
            run.wait(120)


if __name__ == "__main__":
    main()
