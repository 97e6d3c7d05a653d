"""Calls of our own functions per update of the training loop, and the loop's own processor time.

    python benchmarks/own_calls.py [--list]

`TrainingOffline` with a full `ReplayMemory`, batches of 256, one update per call of the agent, and an interface in
memory; no network, no threads. Every 50 updates a policy is published and a message of 201 samples arrives, as with
Pendulum and four samples per update.

- Calls: of Python functions whose file is below `tmrl_core/` but not in `training/agents` or `actor/policies`, counted
  by a profile function over `--updates` updates: with SAC, not compiled, and with a stub agent, whose `train` does
  nothing. They are the same in each run with one version of Python.
- Processor time, with the stub agent and without the profile function: all that the loop does for an update, sampling
  included. Median and range of `--repetitions`; only on a machine without other load.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections import Counter, deque
from types import FrameType
from typing import Any

import numpy as np
from entered_functions import PACKAGE, name_of
from processes import Cost, timed

APART = tuple(PACKAGE + os.path.join(*folder) + os.sep for folder in (("training", "agents"), ("actor", "policies")))
STEPS = 500
"""Updates of a round; the loop runs whole rounds."""
BETWEEN = 50
"""Updates between two policies, and between two messages of samples."""
ROWS = 201
"""Samples of a message: an episode of Pendulum with its reset."""


def message(episode: int) -> Any:
    """Make the samples of one episode."""
    from tmrl_core.samples import Buffer, Chunk, Segment

    generator = np.random.default_rng(episode)
    buffer = Buffer(maxlen=None)
    chunk = Chunk(
        rows=ROWS,
        action=generator.uniform(-2, 2, (ROWS, 1)).astype(np.float32),
        action_present=np.arange(ROWS) > 0,
        observation=generator.standard_normal((ROWS, 3)).astype(np.float32),
        reward=generator.standard_normal(ROWS),
        terminated=np.zeros(ROWS, bool),
        truncated=np.arange(ROWS) == ROWS - 1,
        segments=(Segment(ROWS, episode, 0, 1, 1),),
        stream=bytes(range(16)),
    )
    buffer.extend([chunk])
    return buffer


def agent_class(kind: str) -> Any:
    """Return the class of an agent that makes one update per call: `sac` or `stub`."""
    from tmrl_core.training import SacAgent
    from tmrl_core.training.agent import TrainingAgent

    class Sac(TrainingAgent):
        # Without `train_steps`: how many updates the loop would make in one call of it depends on their time.
        def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
            super().__init__(observation_space, action_space, device)
            self._agent = SacAgent(observation_space, action_space, device, compile=False)

        def train(self, batch: Any) -> Any:
            return self._agent.train(batch)

        def get_actor(self) -> Any:
            return self._agent.get_actor()

    class Stub(TrainingAgent):
        def train(self, batch: Any) -> dict[str, float]:
            return {}

        def get_actor(self) -> Any:
            return None

    return {"sac": Sac, "stub": Stub}[kind]


class Loop:
    """A training loop with an agent, `sac` or `stub`, that has made its first round."""

    def __init__(self, kind: str) -> None:
        import torch
        from sac_updates import ACTIONS, OBSERVATIONS, memory

        from tmrl_core.training import TrainingOffline
        from tmrl_core.training.interface import LocalInterface

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._arriving: deque[Any] = deque()
        self._messages = 0
        self.interface = LocalInterface(lambda policy, version: self.interface.put(self._arriving.popleft()))
        self.training = TrainingOffline(
            (OBSERVATIONS, ACTIONS),
            lambda nb_steps, device: memory(256, "cpu"),
            agent_class(kind),
            epochs=10**9,
            rounds=1,
            steps=STEPS,
            update_model_interval=BETWEEN,
            update_buffer_interval=BETWEEN,
            max_training_steps_per_env_step=1e9,
            device="cpu",
        )
        self._prepare(STEPS)
        self.training.run_epoch(self.interface)

    def _prepare(self, updates: int) -> None:
        """Make the messages that arrive during so many updates, and one for the policy at the very beginning."""
        while len(self._arriving) < updates // BETWEEN + 1:
            self._arriving.append(message(self._messages))
            self._messages += 1

    def _rounds(self, updates: int) -> None:
        for _ in range(updates // STEPS):
            self.training.run_epoch(self.interface)

    def cost(self, updates: int) -> Cost:
        """Return the cost of so many updates."""
        self._prepare(updates)
        return timed(lambda: self._rounds(updates))

    def calls(self, updates: int) -> Counter[tuple[str, str]]:
        """Return the calls of our own functions in so many updates, by file and name."""
        self._prepare(updates)
        found: Counter[tuple[str, str]] = Counter()

        def count(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                found[frame.f_code.co_filename, name_of(frame.f_code)] += 1

        sys.setprofile(count)
        self._rounds(updates)
        sys.setprofile(None)
        assert not self.interface.refused, "samples were refused"
        return Counter(
            {
                (file[len(PACKAGE) :].replace(os.sep, "/"), name): number
                for (file, name), number in found.items()
                if file.startswith(PACKAGE) and not file.startswith(APART)
            }
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=2000, help=f"counted; a multiple of {STEPS}")
    parser.add_argument("--timed-updates", type=int, default=20_000, help="of each repetition")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument(
        "--list", action="store_true", help="also print each function and its calls per update with SAC"
    )
    options = parser.parse_args()
    if options.updates % STEPS or options.timed_updates % STEPS:
        parser.error(f"updates come in rounds of {STEPS}")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # before torch is imported
    import torch

    sac, stub = Loop("sac"), Loop("stub")
    calls = {name: loop.calls(options.updates) for name, loop in (("SAC", sac), ("a stub agent", stub))}
    costs = [stub.cost(options.timed_updates) for _ in range(options.repetitions)]
    print(
        f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}; "
        f"{options.updates:,} updates counted, {options.repetitions} repetitions of {options.timed_updates:,} timed; "
        f"load {', '.join(f'{value:.1f}' for value in os.getloadavg()) if hasattr(os, 'getloadavg') else '?'}\n"
    )
    print("| what, per update | median | range |\n| --- | --- | --- |")
    for name, found in calls.items():
        print(f"| own calls, with {name} | {sum(found.values()) / options.updates:.2f} | |")
    used = [cost.processor_s / options.timed_updates * 1e6 for cost in costs]
    print(
        f"| processor time with a stub agent | {statistics.median(used):.1f} us | {min(used):.1f} to {max(used):.1f} |"
    )
    if options.list:
        print()
        for (file, name), number in calls["SAC"].most_common():
            print(f"{number / options.updates:10.3f}  {file}  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
