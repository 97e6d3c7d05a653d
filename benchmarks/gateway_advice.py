"""Measure what the advice of a trained session gives a newcomer's first episodes of CartPole.

    python benchmarks/gateway_advice.py

For each seed, a session of an agent with `mode: advice` learns CartPole with DQN and stays open. Its next 20 episodes
are `before`. Then newcomers play their first 20 episodes, on the same starts, each in an agent of its own with the same
settings: from scratch without advice, from scratch with the advice of the trained session, and the same two from the
trained session's save. Then a session of another gateway continues from the newest save, at most 100 steps old, as if
the first gateway had been killed (`restarted`). At last the trained session itself plays 20 more episodes on the same
starts (`went on`). The clients run in the process of the agents and exchange messages over the channel.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import torch
from wire_bytes import versions

from tmrl_core.config import from_values
from tmrl_core.gateway.advice.agent import AdviceAgent, AdvicePlayer
from tmrl_core.gateway.advice.from_config import advice_agent

REACH = 1.5
REACH_RESTARTED = 0.8
AGENT = {
    "cls": "tmrl_core.training:DQNAgent",
    "kwargs": {
        "hidden_sizes": [64, 64],
        "lr": 3e-4,
        "target_interval": 500,
        "epsilon_final": 0.02,
        "epsilon_updates": 3000,
    },
}


def make_agent(folder: Path, seed: int, env_id: str, **settings: Any) -> AdviceAgent:
    """An agent with the settings of all sessions here, and its saves in `folder`."""
    values = {
        "mode": "advice",
        "env_id": env_id,
        "actor": {"cls": "tmrl_core.actor:QValueMLPActor"},
        "agent": AGENT,
        **settings,
    }
    config = from_values({"run": {"folder": str(folder), "seed": seed}, "gateway": {"agents": {"cartpole": values}}})
    return advice_agent(config, "cartpole")


async def play(
    player: AdvicePlayer, env_id: str, seed: int, steps: float = float("inf"), episodes: float = float("inf")
) -> list[float]:
    """Play whole episodes until a number of steps or episodes is reached; return their returns."""
    env = gymnasium.make(env_id)
    returns: list[float] = []
    taken = 0
    while taken < steps and len(returns) < episodes:
        obs, info = env.reset(seed=seed * 1000 + len(returns))
        total = 0.0
        action = await player.begin(obs, info)
        while action is not None:
            obs, reward, terminated, truncated, info = env.step(action)
            taken += 1
            total += float(reward)
            action = await player.step(obs, float(reward), terminated, truncated, info)
        returns.append(total)
    env.close()
    return returns


def copy_newest(trained: AdviceAgent, folder: Path, env_id: str) -> Path:
    """Copy the newest save, as a killed gateway leaves it, into a run in `folder`."""
    newest = max(trained.saves_folder.glob("*.save"))
    saves = make_agent(folder, 0, env_id).saves_folder
    saves.mkdir(parents=True)
    shutil.copy(newest, saves)
    return folder


async def newcomer(folder: Path, trained: AdviceAgent, env_id: str, seed: int, episodes: int, advised: bool) -> float:
    """Mean return of a new session's first episodes."""
    torch.manual_seed(seed)
    agent = make_agent(folder, seed + 1000, env_id)
    if advised:
        agent.board = trained.board
    player = agent.open(f"newcomer {advised}")
    returns = await play(player, env_id, seed + 500, episodes=episodes)
    # It would advise the next one.
    await player.close()
    return statistics.mean(returns)


async def run(folder: Path, env_id: str, seed: int, steps: int, episodes: int) -> dict[str, float]:
    """The mean returns of one seed, by kind of session."""
    torch.manual_seed(seed)
    trained = make_agent(folder / "trained", seed, env_id, save_every_steps=100)
    await trained.start()
    player = trained.open("trained")
    await play(player, env_id, seed, steps=steps)
    # A number of episodes: a number of steps is more likely reached in a phase of long ones.
    found = {"before": statistics.mean(await play(player, env_id, seed + 200, episodes=episodes))}
    for kind in ("scratch", "save"):
        for advised in (False, True):
            name = f"{kind}, {'advised' if advised else 'alone'}"
            place = folder / name if kind == "scratch" else copy_newest(trained, folder / name, env_id)
            found[name] = await newcomer(place, trained, env_id, seed, episodes, advised)
    restarted = make_agent(copy_newest(trained, folder / "restarted", env_id), seed + 2000, env_id)
    again = restarted.open("restarted")
    found["restarted"] = statistics.mean(await play(again, env_id, seed + 500, episodes=episodes))
    await restarted.close()
    found["went on"] = statistics.mean(await play(player, env_id, seed + 500, episodes=episodes))
    await trained.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--env", default="CartPole-v1", help="CartPole-v1 ends episodes after 500 steps, CartPole-v0 after 200"
    )
    parser.add_argument("--steps", type=int, default=16_000, help="steps of the trained session")
    parser.add_argument("--episodes", type=int, default=20, help="first episodes of the newcomer")
    options = parser.parse_args()
    print(versions(), f"torch {torch.__version__}, {options.env}\n", flush=True)
    rows: list[float] = []
    restarted: dict[str, list[float]] = {"before": [], "went on": []}
    for seed in range(options.seeds):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(run(Path(folder), options.env, seed, options.steps, options.episodes))
        if not rows:
            print(f"| seed | {' | '.join(found)} | ratio from scratch | seconds |")
            print("| --- " * (len(found) + 3) + "|")
        ratio = found["scratch, advised"] / found["scratch, alone"]
        rows.append(ratio)
        for before, ratios in restarted.items():
            ratios.append(found["restarted"] / found[before])
        means = " | ".join(f"{mean:.1f}" for mean in found.values())
        print(f"| {seed} | {means} | {ratio:.1f} | {time.perf_counter() - began:.0f} |", flush=True)
    print(f"\nfrom scratch, advised / alone at least {REACH}: {sum(r >= REACH for r in rows)} of {len(rows)} seeds")
    print(f"lowest ratio: {min(rows):.1f}")
    for before, ratios in restarted.items():
        reached = sum(ratio >= REACH_RESTARTED for ratio in ratios)
        print(f"restarted / {before}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}", end="; ")
        print(f"at least {REACH_RESTARTED} for {reached} of {len(ratios)} seeds")


if __name__ == "__main__":
    main()
