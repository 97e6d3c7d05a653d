"""Recorded sessions against the environment's own tally: steps, returns and ends of each episode.

    python benchmarks/recorded_sessions.py [--episodes N] [--only NAME ...] [--send-every N ...]

For each environment and each `worker.send_every`, `--expert --record` plays episodes with random actions. A wrapper
around the environment adds up what `step` returns, before any part of the package sees it: the number of steps, the sum
of the rewards and the end. Compared are the sessions that `read_sessions` finds: the number of sessions and their steps
and ends exactly, returns to 1e-6. Environments that are not installed are named and left out.

They need `pip install "gymnasium[box2d,mujoco]" "shimmy[dm-control]"`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import yaml

from tmrl_core.actor import ActorModule
from tmrl_core.sessions import read_sessions

ENVIRONMENTS = {
    "Taxi-v4": "Taxi-v4",
    "LunarLander-v3": "LunarLander-v3",
    "InvertedPendulum-v5": "InvertedPendulum-v5",
    "ball_in_cup": "shimmy:dm_control/ball_in_cup-catch-v0",
}
TOLERANCE = 1e-6


class Tallied(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes one line for each finished episode: steps, return, end.

    Args:
        name: of the environment, as Gymnasium registers it.
        file: of the lines.
    """

    def __init__(self, name: str, file: str) -> None:
        super().__init__(gymnasium.make(name))
        self._file = file
        self._steps, self._total = 0, 0.0

    def reset(self, **kwargs: Any) -> Any:
        self._steps, self._total = 0, 0.0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self._steps += 1
        self._total += float(reward)
        if terminated or truncated:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(json.dumps([self._steps, self._total, "terminated" if terminated else "truncated"]) + "\n")
        return observation, reward, terminated, truncated, info


class RandomActor(ActorModule):
    """Acts at random."""

    def seed(self, seed: int) -> None:
        self.action_space.seed(seed)

    def act(self, obs: Any, test: bool = False) -> Any:
        return self.action_space.sample()


def record(folder: Path, name: str, send_every: int, episodes: int) -> None:
    """Play and record episodes in a process of their own."""
    here = Path(__file__)
    values = {
        "run": {"name": "tally", "folder": str(folder / "runs"), "seed": 1},
        "environment": {
            "cls": f"{here.stem}:Tallied",
            "kwargs": {"name": name, "file": str(folder / "tally.jsonl")},
        },
        "actor": {"cls": f"{here.stem}:RandomActor"},
        "worker": {"send_every": send_every},
    }
    (folder / "tally.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    command = [sys.executable, "-m", "tmrl_core", "--expert", "--record", str(folder / "recorded")]
    paths = [str(here.parent), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    subprocess.run(
        [*command, "--episodes", str(episodes), "-c", str(folder / "tally.yaml")],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


def compare(folder: Path) -> tuple[int, int, int]:
    """Return the numbers of episodes, steps and differences."""
    lines = (folder / "tally.jsonl").read_text(encoding="utf-8").splitlines()
    tally = [json.loads(line) for line in lines]
    sessions = list(read_sessions(folder / "recorded"))
    different = abs(len(sessions) - len(tally))
    for (steps, total, end), session in zip(tally, sessions, strict=False):
        found = "terminated" if session.terminated else "truncated" if session.truncated else "aborted"
        off = abs(total - session.episode_return) > TOLERANCE * max(1.0, abs(total))
        different += steps != len(session) or off or end != found
    return len(tally), sum(steps for steps, _, _ in tally), different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="episodes of each row (default: 100)")
    parser.add_argument("--only", nargs="+", choices=list(ENVIRONMENTS), default=list(ENVIRONMENTS), metavar="NAME")
    parser.add_argument("--send-every", nargs="+", type=int, default=[1, 7, 100], metavar="N")
    options = parser.parse_args()
    packages = ("numpy", "gymnasium", "mujoco", "box2d", "dm-control", "shimmy")
    versions = ", ".join(f"{name} {version}" for name in packages if (version := _version(name)))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}")
    print(f"{'environment':22}{'send_every':>11}{'episodes':>10}{'steps':>10}{'different':>11}")
    wrong = 0
    for title in options.only:
        for send_every in options.send_every:
            with tempfile.TemporaryDirectory() as name:
                try:
                    record(Path(name), ENVIRONMENTS[title], send_every, options.episodes)
                except subprocess.CalledProcessError as exc:
                    print(f"{title:22}does not run: {(exc.stdout + exc.stderr).strip().splitlines()[-1][:90]}")
                    break
                episodes, steps, different = compare(Path(name))
            wrong += different + (episodes != options.episodes)
            print(f"{title:22}{send_every:11}{episodes:10}{steps:10,}{different:11}", flush=True)
    print(f"reach: 0 different; found {wrong}: {'missed' if wrong else 'reached'}")
    return int(wrong > 0)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
