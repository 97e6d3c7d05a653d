"""Learning through the gateway: CartPole played by a client over HTTP, in central mode with DQN.

    python benchmarks/gateway_learning.py [--seeds N] [--env CartPole-v0]

Each seed is a run of its own in a new folder: `--local --gateway` with `config/gateway_cartpole.yaml`, and a client
that plays until its latest 20 episodes have a mean return of 195, for 40,000 steps at most. These episodes explore, as
the client cannot tell the gateway otherwise. Then the gateway's process is killed with SIGKILL. Its supervisor starts
it again, the client logs in again and plays 20 episodes; at the same time a second client, new to the gateway, plays 20
with the same key. Training goes on meanwhile.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import psutil
from wire_bytes import versions

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "config" / "gateway_cartpole.yaml"
EPISODES = 20
REACH_RETURN = 195.0
REACH_STEPS = 40_000
REACH_SHARE = 0.8
"""Of the return before the kill."""
START_S = 120.0


class Client:
    """A client that knows nothing but the protocol; one connection for its whole session."""

    def __init__(self, port: int, key: str, env: str, seed: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.session = self.post("/shepherd/login_user/", {"apikey": key})["session_key"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's about the older version
            self.env = gymnasium.make(env, disable_env_checker=True)
        self.env.reset(seed=seed)
        self.steps = 0

    def post(self, path: str, fields: dict[str, Any]) -> Any:
        """Return the answer to a message."""
        self.connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer}")
        return answer

    def episode(self) -> float:
        """Play one episode and return its return."""
        obs, _ = self.env.reset()
        reward, terminated, truncated, total = 0.0, False, False, 0.0
        while True:
            fields = {"obs": obs.tolist(), "reward": reward, "terminated": terminated, "truncated": truncated}
            action = self.post("/shepherd/env/", {**fields, "session_key": self.session})["action"]
            if action is None:
                return total
            obs, step_reward, terminated, truncated, _ = self.env.step(action)
            reward = float(step_reward)
            total += reward
            self.steps += 1

    def mean(self, episodes: int = EPISODES) -> float:
        """Return the mean return of some episodes."""
        return statistics.fmean(self.episode() for _ in range(episodes))


class Result(NamedTuple):
    """Figures of one run."""

    steps: int
    reached: float
    """Mean return of the latest episodes before the kill."""
    seconds: float
    again: float
    """Mean return of the first episodes after the restart."""
    second: float
    """The same of a second client."""


def run(folder: Path, env: str, seed: int) -> Result:
    """Learn, kill the gateway and play on."""
    environ = os.environ | {"TMRL_CORE_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    base = [sys.executable, "-m", "tmrl_core", "-c", str(CONFIG)]
    made = subprocess.run(
        [*base, "--credentials", "key", "default"], cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    key = next(line.strip() for line in made.stdout.splitlines() if line.startswith("    "))
    port = free_port()
    settings = [f"gateway.port={port}", "server.port=0", f"run.seed={seed}"]
    command = [*base, "--local", "--gateway", *(word for one in settings for word in ("--set", one))]
    with (
        open(folder / "output", "wb") as output,
        subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=output) as roles,
    ):
        try:
            client = logged_in(port, key, env, seed)
            started, returns = time.perf_counter(), []
            while client.steps < REACH_STEPS:
                returns.append(client.episode())
                if len(returns) >= EPISODES and statistics.fmean(returns[-EPISODES:]) >= REACH_RETURN:
                    break
            seconds = time.perf_counter() - started
            gateway_of(roles.pid).kill()
            while is_open(port):
                time.sleep(0.05)
            again, second = logged_in(port, key, env, seed + 1), logged_in(port, key, env, seed + 2)
            means: list[float] = []
            thread = threading.Thread(target=lambda: means.append(second.mean()))
            thread.start()
            result = Result(client.steps, statistics.fmean(returns[-EPISODES:]), seconds, again.mean(), 0.0)
            thread.join()
            return result._replace(second=means[0])
        finally:
            roles.terminate()
            roles.wait(60)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(port: int) -> bool:
    """Return True if a program listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def logged_in(port: int, key: str, env: str, seed: int) -> Client:
    """Return a client, once the gateway is there."""
    deadline = time.monotonic() + START_S
    while not is_open(port):
        if time.monotonic() > deadline:
            raise TimeoutError("the gateway did not start")
        time.sleep(0.1)
    return Client(port, key, env, seed)


def gateway_of(pid: int) -> psutil.Process:
    """Return the gateway's process among the children of a supervisor."""
    (found,) = (
        child
        for child in psutil.Process(pid).children()
        if "--control" in child.cmdline() and "--gateway" in child.cmdline()
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--env", default="CartPole-v0", help="longest episode: 200 steps of CartPole-v0, 500 of -v1")
    arguments = parser.parse_args()
    print(versions(), "cores:", os.cpu_count(), arguments.env, "\n")
    print("| seed | steps | mean return of 20 episodes | seconds | after kill and restart | second client |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    failed = 0
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            result = run(Path(folder), arguments.env, seed)
        print(
            f"| {seed} | {result.steps:,} | {result.reached:.1f} | {result.seconds:.0f} | {result.again:.1f} | "
            f"{result.second:.1f} |",
            flush=True,
        )
        good = min(result.again, result.second) >= REACH_SHARE * result.reached
        failed += not (result.reached >= REACH_RETURN and result.steps <= REACH_STEPS + 500 and good)
    print(
        f"\n{arguments.seeds - failed} of {arguments.seeds} seeds reach {REACH_RETURN:g} within {REACH_STEPS:,} steps, "
        f"and {REACH_SHARE:.0%} of it after the kill and with a second client"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
