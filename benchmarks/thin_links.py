"""Images that are encoded at the worker: bytes of a step, their cost, and the lateness of a loop of 20 Hz beside them.

    python benchmarks/thin_links.py [--rows 200] [--minutes 2] [--fifo]

Two stand-in cameras of 128x128 pan over a photograph (matplotlib's sample), with noise of a sensor (two levels). First,
the messages of a worker with each setting of `worker.images`, beside PNG. Then Server, trainer and worker as processes
over TLS: the worker on the first core, the others on the second, where SAC with convolutions trains. `--fifo` gives the
worker SCHED_FIFO and all cores, so that a busy machine can be measured too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.envs.sent_images import ImageEncoder, SentImages
from tmrl_core.samples import Buffer, encode_message
from tmrl_core.samples.images import ImageDecoder

REACH = {"JPEG 75": 0.3, "JPEG 75, resized to 64": 0.15}
REACH_LATE = 0.001
STEP_S = 0.05
SIDE = 128


class Cameras(gymnasium.Env[Any, Any]):
    """Two cameras and a speed at a fixed rate; 200 steps an episode."""

    def __init__(self, step_s: float = STEP_S, seed: int = 0) -> None:
        import matplotlib
        from PIL import Image

        photo = Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg")
        self._photo = np.asarray(Image.open(photo).convert("RGB"))
        camera = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {"front": camera, "wrist": camera, "speed": spaces.Box(-9, 9, (8,), np.float32)}
        )
        self.action_space = spaces.Box(-1, 1, (4,), np.float32)
        self.time_step_duration = step_s
        self._rng = np.random.default_rng(seed)
        self._steps, self._due = 0, 0.0
        # Recorded beforehand: a camera's driver fills its buffers by itself.
        self._frames = [self._frame(number) for number in range(256)]  # more than an episode has

    def _frame(self, number: int) -> Any:
        height, width, _ = self._photo.shape
        found = []
        for speed in (3, 5):
            y = int((0.5 + 0.5 * np.sin(speed * number / 60)) * (height - SIDE))
            x = int((0.5 + 0.5 * np.cos(speed * number / 40)) * (width - SIDE))
            part = self._photo[y : y + SIDE, x : x + SIDE]
            found.append(np.clip(part + self._rng.normal(0, 2, part.shape), 0, 255).astype(np.uint8))
        return found

    def _obs(self) -> Any:
        front, wrist = self._frames[self._steps % len(self._frames)]
        return {"front": front, "wrist": wrist, "speed": self._rng.random(8, np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps, self._due = 0, time.perf_counter() + self.time_step_duration
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        if self.time_step_duration:
            time.sleep(max(0.0, self._due - time.perf_counter()))
            self._due += self.time_step_duration
        self._steps += 1
        return self._obs(), 0.0, False, self._steps == 200, {}


def bytes_of(rows: int, size: int | None, quality: Any) -> tuple[float, float, float]:
    """Return bytes of a message for each step, and milliseconds of a step at the worker and at the trainer."""
    env: Any = Cameras(0.0)
    encoder = None
    if quality is not None:
        encoder = ImageEncoder(None if size is None else (size, size), quality)
        env = SentImages(env, encoder)
    action, buffer, seconds = env.action_space.sample(), Buffer(), []
    obs, info = env.reset()
    for row in range(rows):
        sample = (action if row else None, obs, 0.0, False, False, info)
        buffer.append_sample(sample if encoder is None else encoder.compress(*sample))
        began = time.perf_counter()
        obs, _, _, _, info = env.step(action)
        seconds.append(time.perf_counter() - began)
    sizes, decoding = 0, 0.0
    for chunk in buffer.chunks:
        sizes += len(encode_message(chunk, [], compression="auto"))
        began = time.perf_counter()
        ImageDecoder(env.observation_space).decode(chunk)
        decoding += time.perf_counter() - began
    return sizes / rows, 1000 * float(np.median(seconds)), 1000 * decoding / rows


def print_bytes(rows: int) -> bool:
    settings: dict[str, tuple[int | None, Any]] = {
        "pixels": (None, None),
        "PNG": (None, "lossless"),
        "JPEG 90": (None, 90),
        "JPEG 75": (None, 75),
        "JPEG 75, resized to 64": (64, 75),
    }
    found = {name: bytes_of(rows, *setting) for name, setting in settings.items()}
    png = found["PNG"][0]
    print("| two cameras of 128x128 | bytes a step | of PNG | reach | worker, a step | trainer, a step |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (size, worker_ms, trainer_ms) in found.items():
        reach = REACH.get(name)
        print(
            f"| {name} | {size:,.0f} | {size / png:.3f} | {reach or '-'} | {worker_ms:.2f} ms | {trainer_ms:.2f} ms |"
        )
    return all(found[name][0] / png <= reach for name, reach in REACH.items())


def late_steps(minutes: float, size: int | None, fifo: bool) -> tuple[str, float]:
    """Return the worker's line on its lateness, and the share of late steps."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        images = f'{{"quality": 75, "size": {"null" if size is None else size}}}'
        config.write_text(
            f"""{{"run": {{"folder": "{Path(folder, "runs").as_posix()}"}},
            "environment": {{"cls": "thin_links:Cameras", "probe": false}}, "server": {{"port": {port}}},
            "actor": {{"kwargs": {{"hidden_sizes": [64], "convolutions": [[16, 8, 4], [32, 4, 2]]}}}},
            "network": {{"credentials_dir": "{Path(folder, "keys").as_posix()}"}},
            "worker": {{"images": {images}, "update_weights": "step", "send_every": 20,
              "nb_episodes": {max(2, round(minutes * 6))}}},
            "memory": {{"capacity": 20000, "batch_size": 64}},
            "trainer": {{"epochs": 1, "rounds": 1000, "steps": 1000, "start_training": 100, "device": "cpu",
              "threads": 1, "update_model_interval": 20, "update_buffer_interval": 5,
              "max_training_steps_per_env_step": 1}}}}""",
            encoding="utf-8",
        )
        paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

        def start(role: str, cores: str) -> subprocess.Popen[str]:
            prefix = ["taskset", "-c", cores] if sys.platform == "linux" else []
            if fifo and role == "--worker":
                prefix = ["chrt", "-f", "10"]
            return subprocess.Popen(
                [*prefix, sys.executable, "-m", "tmrl_core", role, "-c", str(config)],
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

        server = start("--server", "1")
        for _ in range(600):
            if list(Path(folder, "runs").rglob("server*")):
                break
            time.sleep(0.1)
        time.sleep(2)
        trainer, worker = start("--trainer", "1"), start("--worker", "0")
        try:
            text, _ = worker.communicate(timeout=60 * minutes + 300)
        finally:
            for process in (worker, trainer, server):
                process.terminate()
            for process in (trainer, server):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=30)
    lines = [line for line in text.splitlines() if "late" in line]
    shares = re.findall(r"([\d,]+) of ([\d,]+) steps", lines[-1]) if lines else []
    if not shares:
        print(text[-3000:])
        return "the worker said nothing of its lateness", 1.0
    return lines[-1], int(shares[-1][0].replace(",", "")) / int(shares[-1][1].replace(",", ""))


def main() -> int:
    """Print both tables. Return 0 if everything is within reach."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--fifo", action="store_true")
    options = parser.parse_args()
    reached = print_bytes(options.rows)
    for size in (None, 64):
        line, share = late_steps(options.minutes, size, options.fifo)
        print(f"\nsize {size}: {100 * share:.3f} % late (reach {100 * REACH_LATE:g} %)\n  {line}")
        reached &= share <= REACH_LATE
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
