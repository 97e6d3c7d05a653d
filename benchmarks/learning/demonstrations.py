"""Recorded demonstrations on a sparse-reward task: SAC alone against SAC with 20 expert episodes mixed half and half.

    python benchmarks/learning/demonstrations.py                          five seeds of both, one after the other
    python benchmarks/learning/demonstrations.py --seeds 0 --kinds mixed --set agent.kwargs.alpha=0.05

Task and expert are those of examples/demonstrations, the settings those of its two_rooms.yaml. Steps, storing and
updates take turns in one process, so a run of a seed can be repeated. A run is solved if its deterministic policy
reaches the goal in at least 90 of 100 episodes after 20,000 steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
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
STEPS, DEMONSTRATIONS, EPISODES, SOLVED = 20_000, 20, 100, 0.9


def record(folder: Path, seed: int) -> None:
    """Record the expert's episodes."""
    env = environment_maker("two_rooms:TwoRooms", {})()
    expert = resolve("two_rooms:Expert", "expert")(env.observation_space, env.action_space)
    expert.seed(seed)
    recorder = StepRecorder(Buffer(maxlen=None))
    with SessionWriter(folder, env.observation_space, env.action_space) as writer:
        for episode in range(DEMONSTRATIONS):
            obs, info = env.reset(seed=1_000_000 * (seed + 1) + episode)
            recorder.begin(obs, info)
            while recorder.recording:
                action = expert.act(obs)
                obs, *result = env.step(action)
                recorder.step(action, obs, *result)
            writer.append(*recorder.take())


def success(policy: Any, episodes: int) -> float:
    """Return the share of deterministic episodes that reach the goal."""
    env, reached = environment_maker("two_rooms:TwoRooms", {})(), 0.0
    for seed in range(1000, 1000 + episodes):
        obs, over = env.reset(seed=seed)[0], False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act_(obs, test=True))
            reached += reward
            over = terminated or truncated
    return reached / episodes


def learn(seed: int, recording: Path | None, changes: list[str]) -> float:
    """Train for `STEPS` steps; print the curve and return the final success."""
    torch.manual_seed(seed)
    config = load(
        TASK / "two_rooms.yaml", [*changes, *([] if recording is None else [f"memory.recorded={recording}"])], {}
    )
    trainer = config.trainer
    training = training_from_config(config)()
    agent, memory = training.agent, training.memory
    env, began, updates = environment_maker("two_rooms:TwoRooms", {})(), time.perf_counter(), 0
    if recording is not None:
        SessionLoader(recording, "memory.recorded", env.action_space).load(memory.for_sessions, 0)
    live = memory if recording is None else memory.live
    for step in steps_of(env, agent, live, seed, []):
        while updates < (step - trainer.start_training) * trainer.max_training_steps_per_env_step:
            agent.train(next(iter(memory)))
            updates += 1
        if step % 2000 == 0:
            found = success(agent.get_actor(), EPISODES if step == STEPS else 20)
            kind = "alone" if recording is None else "mixed"
            seconds = time.perf_counter() - began
            print(f"{kind} seed {seed}: {step:6d} steps, success {found:.2f}, {seconds:.0f} s", flush=True)
        if step == STEPS:
            return found
    raise AssertionError("the environment never ends")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--kinds", nargs="+", choices=["mixed", "alone"], default=["mixed", "alone"])
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.append(str(TASK))
    found: dict[str, list[float]] = {kind: [] for kind in arguments.kinds}
    with tempfile.TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            recording = Path(folder) / str(seed)
            record(recording, seed)
            for kind in arguments.kinds:
                found[kind].append(learn(seed, recording if kind == "mixed" else None, arguments.changes))
    for kind, values in found.items():
        solved = sum(value >= SOLVED for value in values)
        print(f"{kind}: solved by {solved} of {len(values)}, success {' '.join(f'{value:.2f}' for value in values)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
