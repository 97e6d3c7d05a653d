"""Time and size of a checkpoint: a memory with thousands of open streams, and agents with a policy each.

    python benchmarks/checkpoint_time.py streams --count 32768
    python benchmarks/checkpoint_time.py agents --count 500 --hidden 256

`streams`: a replay memory in RAM with one open episode of each stream, and the offset of each. `agents`: one DQN for
each agent, after one update. Training stands still until `save` returns; a thread writes the rest. Processor time of
the process, median of the checkpoints after the first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Streams:
    """A training object that is a memory with open streams."""

    def __init__(self, count: int) -> None:
        from tmrl_core.samples import Chunk, Segment
        from tmrl_core.training import ReplayMemory

        self.memory = ReplayMemory(memory_size=200_000, batch_size=256, device="cpu")
        self.delivery: dict[str, Any] = {"marks": {}}
        for number in range(count):
            stream = number.to_bytes(17, "big")
            self.delivery["marks"][stream] = [1, number]
            self.memory.append_chunk(
                Chunk(
                    rows=3,
                    action=np.zeros((3, 1), np.float32),
                    action_present=np.array([False, True, True]),
                    observation=np.zeros((3, 3), np.float32),
                    reward=np.zeros(3),
                    terminated=np.zeros(3, bool),
                    truncated=np.zeros(3, bool),
                    segments=(Segment(3, 0, 0, 1, 1),),
                    stream=stream,
                )
            )


def agents(count: int, hidden: int) -> Any:
    """Return the training object of agents with a policy each."""
    from gymnasium.spaces import Box, Discrete

    from tmrl_core.multiagent import AgentManager, AgentParameters, Assembly, KStepExperienceShaper, PolicySettings
    from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm
    from tmrl_core.multiagent.training import MultiAgentTraining

    def algorithm() -> TrainingAgentAlgorithm:
        return TrainingAgentAlgorithm(
            agent="tmrl_core.training:DQNAgent",
            observation_space=Box(-1, 1, (3,), np.float32),
            action_space=Discrete(4),
            hidden_sizes=[hidden, hidden],
        )

    names = [f"agent{number}" for number in range(count)]
    policy = PolicySettings(algorithm=algorithm, parameters=AgentParameters(batch_size=32, min_experiences=32))
    plan = Assembly(agents={name: name for name in names}, policies=dict.fromkeys(names, policy))
    shaper = KStepExperienceShaper(lambda metrics: 0.0, gamma=0.99)
    manager = AgentManager("training", names, config=plan, experience_shaper=shaper)
    rows, ends = 200, np.zeros(200, bool)
    for agent in manager.agents.values():
        states = np.zeros((rows, 3), np.float32)
        numbers = {"reward": np.zeros(rows, np.float32), "discount": np.full(rows, 0.99, np.float32)}
        flags = {"terminated": ends, "truncated": ends, "action": np.zeros(rows, np.int64)}
        agent.store_experiences({"state": states, "next_state": states, **numbers, **flags})
        agent.train()
    return MultiAgentTraining(manager)


def main() -> None:
    """Measure."""
    from tmrl_core.training.checkpoints.checkpoint_store import CheckpointStore

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "agents"])
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--checkpoints", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    training = Streams(options.count) if options.what == "streams" else agents(options.count, options.hidden)
    still, whole = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder, keep_last=1)
        for _ in range(options.checkpoints):
            begun = time.process_time()
            number = store.save(training)
            still.append(time.process_time() - begun)
            store.wait()
            whole.append(time.process_time() - begun)
        assert not store.failures, store.last_error
        size = sum(file.stat().st_size for file in (Path(folder) / str(number)).iterdir())
    print(
        f"{options.count} {options.what}: training stands still for {1e3 * statistics.median(still[1:]):.0f} ms, "
        f"{1e3 * statistics.median(whole[1:]):.0f} ms with writing; {size / 1e6:.1f} MB without rows"
    )


if __name__ == "__main__":
    main()
