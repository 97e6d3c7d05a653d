"""Success of policies that learn from encoded images (`worker.images`), beside pixels.

    python benchmarks/learning/encoded_images.py [--sessions 120] [--updates 2000] [--seeds 0 1]

A camera of 128x128 sees a gripper and a target as discs on a textured table, with noise of a sensor. Sessions of a
script that reaches the target are recorded with each setting of `worker.images`, behaviour cloning learns from them
(`trainer.offline`), and its policy plays 100 episodes through the same setting. The policy sees nothing but the camera.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE, REACH, STEP = 128, 6.0, 8.0
SETTINGS: dict[str, dict[str, Any] | None] = {
    "pixels": None,
    "JPEG 75": {"quality": 75},
    "JPEG 75, resized to 64": {"quality": 75, "size": 64},
}


class Table(gymnasium.Env[Any, Any]):
    """Reach the target within 30 steps.

    Args:
        shows: the script acts in place of the policy, and the info has its action.
    """

    def __init__(self, shows: bool = False) -> None:
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._shows = shows
        texture = np.random.default_rng(7).normal(0, 25, (SIDE // 8, SIDE // 8, 3))
        self._table = 110 + texture.repeat(8, 0).repeat(8, 1)
        self._grid = np.mgrid[:SIDE, :SIDE]

    def _obs(self) -> Any:
        picture = self._table + self._noise.normal(0, 4, self._table.shape)
        for place, radius, color in ((self._target, 8, (220, 40, 40)), (self._gripper, 6, (40, 220, 60))):
            picture[((self._grid - place[:, None, None]) ** 2).sum(0) < radius**2] = color
        return picture.clip(0, 255).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._noise = np.random.default_rng(self.np_random.integers(2**31))
        self._gripper, self._target = self.np_random.uniform(12, SIDE - 12, (2, 2))
        self._steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        info = {}
        if self._shows:
            action = np.clip((self._target - self._gripper) / STEP, -1, 1).astype(np.float32)
            info = {"teleop_action": action, "is_intervention": True}
        self._gripper = np.clip(self._gripper + STEP * np.asarray(action), 8, SIDE - 8)
        self._steps += 1
        reached = bool(np.linalg.norm(self._target - self._gripper) < REACH)
        return self._obs(), float(reached), reached, self._steps == 30 and not reached, info


def success(folder: Path, images: dict[str, Any] | None, sessions: int, updates: int, seed: int) -> float:
    """Return the share of 100 episodes that reach the target."""

    def call(section: dict[str, Any], *words: str, shows: bool = False) -> str:
        worker = {"images": images, **section.pop("worker", {})}
        config = {
            "run": {"name": "cloned", "seed": seed, "folder": str(folder / "runs")},
            "environment": {"cls": "encoded_images:Table", "kwargs": {"shows": shows}, "probe": False},
            "actor": {"kwargs": {"hidden_sizes": [128], "convolutions": [[16, 8, 4], [32, 4, 2], [32, 3, 1]]}},
            "agent": {"cls": "tmrl_core.training:BehaviorCloningAgent", "kwargs": {"lr": 1e-3}},
            "worker": worker,
            **section,
        }
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        ended = subprocess.run(
            [sys.executable, "-m", "tmrl_core", *words, "-c", str(folder / "config.json")],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(ended.stdout[-2000:] + ended.stderr[-2000:])
        return ended.stdout

    recorded = str(folder / "recorded")
    takeover = {"cls": "tmrl_core.actor.interventions:EnvironmentTakesOver"}
    words = ("--expert", "--record", recorded, "--episodes", str(sessions))
    call({"worker": {"interventions": takeover}}, *words, shows=True)
    trainer = {"offline": recorded, "epochs": 1, "rounds": 1, "steps": updates, "device": "cpu", "threads": 1}
    call({"memory": {"batch_size": 64, "capacity": 10_000}, "trainer": trainer}, "--trainer")
    out = call({}, "--test", "--episodes", "100")
    found = re.search(r"mean return of 100 episodes: ([\d.e+-]+)", out)
    if found is None:
        raise RuntimeError(out[-2000:])
    return float(found[1])


def main() -> int:
    """Print the success of each setting and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=120)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    print(
        f"| {options.sessions} sessions, {options.updates} updates | success of 100 episodes, seeds {options.seeds} |"
    )
    print("| --- | --- |")
    for name, images in SETTINGS.items():
        found = []
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                found.append(success(Path(folder), images, options.sessions, options.updates, seed))
        print(f"| {name} | {', '.join(f'{share:.2f}' for share in found)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
