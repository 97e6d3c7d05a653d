"""Recorded demonstrations on a sparse-reward task: SAC alone against SAC with 20 expert episodes mixed half and half.

    python benchmarks/learning/demonstrations.py                          five seeds of both, one after the other
    python benchmarks/learning/demonstrations.py --seeds 0 --kinds mixed --set agent.kwargs.alpha=0.05
    python benchmarks/learning/demonstrations.py --pictures               three seeds of three kinds, seen by a camera

Task and expert are those of examples/demonstrations, the settings those of its two_rooms.yaml, or two_rooms_seen.yaml.
Steps, storing and updates take turns in one process, so a run of a seed can be repeated. A run is solved if its
deterministic policy reaches the goal in at least 90 of 100 episodes after 20,000 steps.

With pictures the kind `unshifted` is `mixed` without random shifts of the pictures. Each run's curve is a file in
results_pictures/; a run whose file is there is not made again. Seeds and their number were committed before the first
run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from one_process import steps_of
from run import ROOT

from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.config import environment_maker, load, resolve
from tmrl_core.roles.training_object import training_from_config
from tmrl_core.samples import Buffer
from tmrl_core.sessions import SessionWriter
from tmrl_core.training.loops.recorded_sessions import SessionLoader

TASK = ROOT / "examples" / "demonstrations"
STEPS, EVERY, DEMONSTRATIONS, EPISODES, SOLVED = 20_000, 2_000, 20, 100, 0.9
SEEDS = (0, 1, 2, 3, 4)
PICTURES = Path(__file__).resolve().parent / "results_pictures"
SEEDS_OF_PICTURES = (0, 1, 2)
KINDS: dict[str, tuple[bool, list[str]]] = {
    "mixed": (True, []),
    "alone": (False, []),
    "unshifted": (True, ["agent.kwargs.random_shifts=false"]),
}
"""Of each kind: demonstrations are mixed in; changes of the settings."""


def record(folder: Path, seed: int, task: str) -> None:
    """Record the expert's episodes."""
    env = environment_maker(task, {})()
    expert = resolve("two_rooms:Expert", "expert")(env.observation_space, env.action_space)
    expert.seed(seed)
    recorder = StepRecorder(Buffer(maxlen=None))
    with SessionWriter(folder, env.observation_space, env.action_space) as writer:
        for episode in range(DEMONSTRATIONS):
            obs, info = env.reset(seed=1_000_000 * (seed + 1) + episode)
            recorder.begin(obs, info)
            while recorder.recording:
                action = expert.act(env.unwrapped.position)  # what a picture shows, too
                obs, *result = env.step(action)
                recorder.step(action, obs, *result)
            writer.append(*recorder.take())


def success(policy: Any, task: str, episodes: int) -> float:
    """Return the share of deterministic episodes that reach the goal."""
    env, reached = environment_maker(task, {})(), 0.0
    for seed in range(1000, 1000 + episodes):
        obs, over = env.reset(seed=seed)[0], False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act_(obs, test=True))
            reached += reward
            over = terminated or truncated
    return reached / episodes


def learn(file: Path, seed: int, kind: str, recording: Path, changes: list[str]) -> list[tuple[int, float, float]]:
    """Train for `STEPS` steps; print the curve and return it: steps, success, seconds."""
    torch.manual_seed(seed)
    mixed, own_changes = KINDS[kind]
    demonstrations = [f"memory.recorded={recording}"] if mixed else []
    config = load(file, [*own_changes, *changes, *demonstrations], {})
    trainer = config.trainer
    training = training_from_config(config)()
    agent, memory = training.agent, training.memory
    env, began, updates = environment_maker(config.environment.cls, {})(), time.perf_counter(), 0
    if mixed:
        SessionLoader(recording, "memory.recorded", env.action_space).load(memory.for_sessions, 0)
    curve: list[tuple[int, float, float]] = []
    for step in steps_of(env, agent, memory.live if mixed else memory, seed, []):
        while updates < (step - trainer.start_training) * trainer.max_training_steps_per_env_step:
            agent.train(next(iter(memory)))
            updates += 1
        if step % EVERY == 0:
            found = success(agent.get_actor(), config.environment.cls, EPISODES if step == STEPS else 20)
            curve.append((step, found, round(time.perf_counter() - began)))
            print(f"{kind} seed {seed}: {step:6d} steps, success {found:.2f}, {curve[-1][-1]:.0f} s", flush=True)
        if step == STEPS:
            break
    return curve


def keep(path: Path, seed: int, kind: str, curve: list[tuple[int, float, float]]) -> None:
    """Write a curve, all at once: a file that is there is whole."""
    versions = {name: version(name) for name in ("torch", "numpy", "gymnasium")}
    columns = ["environment steps", "share of episodes that reach the goal", "seconds"]
    text = json.dumps({"kind": kind, "seed": seed, "columns": columns, "curve": curve, "versions": versions})
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true", help="observations are pictures")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {SEEDS}, of pictures {SEEDS_OF_PICTURES}")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), help="default: mixed, alone; of pictures all")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.append(str(TASK))
    pictures = arguments.pictures
    file = TASK / ("two_rooms_seen.yaml" if pictures else "two_rooms.yaml")
    kinds = arguments.kinds or (list(KINDS) if pictures else ["mixed", "alone"])
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for seed in arguments.seeds or (SEEDS_OF_PICTURES if pictures else SEEDS):
            recording = Path(folder) / str(seed)
            record(recording, seed, load(file, [], {}).environment.cls)
            for kind in kinds:
                path = PICTURES / f"{kind}_{seed}.json"
                planned = pictures and not arguments.changes and seed in SEEDS_OF_PICTURES
                if planned and path.exists():
                    curve = json.loads(path.read_text(encoding="utf-8"))["curve"]
                else:
                    curve = learn(file, seed, kind, recording, arguments.changes)
                    if planned:
                        keep(path, seed, kind, curve)
                found[kind].append(curve[-1][1])
    for kind, values in found.items():
        solved = sum(value >= SOLVED for value in values)
        print(f"{kind}: solved by {solved} of {len(values)}, success {' '.join(f'{value:.2f}' for value in values)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
