"""Bytes of a policy that follows another one after some updates, in each form of `network.weights`.

    python benchmarks/wire_weights.py [--updates N] [--every N] [--publications N]

SAC with two layers of 256 on 17 observations and 6 actions learns from 20,000 transitions of a small nonlinear system.
Its policy is then published after every 50 updates, as a trainer does: encoded, packed against the first of these
policies (the base), and unpacked again, which must give the same bytes. Beside the bytes, the times of packing and
unpacking in one thread, and what rounding to bfloat16 changes of the actions (in shares of their range, on observations
of the memory).
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import time

import numpy as np
import torch
import zstandard
from gymnasium import spaces

from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.actor.policies.weights import with_bfloat16_matrices
from tmrl_core.networking.protocol.messages import Blob, PolicyUpdate, encode_body
from tmrl_core.networking.protocol.packed_policy import decode_packed, pack, unpack
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import ReplayMemory, SacAgent

OBSERVATIONS = spaces.Box(-8, 8, (17,), np.float32)
ACTIONS = spaces.Box(-1, 1, (6,), np.float32)
ROWS = 20_000
REACH = {"delta": 0.62, "bfloat16": 0.2}
MOST = 1 << 30


def transitions() -> Chunk:
    """Random actions in a system whose next state is a bounded function of state and action."""
    generator = np.random.default_rng(0)
    (inputs,), (outputs,) = ACTIONS.shape, OBSERVATIONS.shape
    from_state = generator.normal(size=(outputs, outputs)) * 0.9 / np.sqrt(outputs)
    from_action = generator.normal(size=(inputs, outputs)) * 0.4
    rows = ROWS + 1
    action = generator.uniform(-1, 1, (rows, inputs)).astype(np.float32)
    observation = np.zeros((rows, outputs), np.float32)
    reward = np.zeros(rows)
    for row in range(1, rows):
        drift = observation[row - 1] @ from_state + action[row] @ from_action
        observation[row] = 2 * np.tanh(drift + generator.normal(size=outputs) * 0.1)
        reward[row] = observation[row, 0] - observation[row, 1] ** 2 - 0.1 * np.square(action[row]).sum()
    return Chunk(
        rows=rows,
        action=action,
        action_present=np.arange(rows) > 0,
        observation=observation,
        reward=reward,
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        segments=(Segment(rows, 0, 0, 1, 1),),
        stream=bytes(16),
    )


def body_of(weights: bytes) -> bytes:
    return encode_body(PolicyUpdate((0, 0), {"policy": Blob("safetensors", weights)}))


def checked(body: bytes, base: tuple[tuple[int, int], bytes] | None) -> tuple[int, float, float]:
    """Bytes of a packed body, and the seconds of packing and unpacking it."""
    started = time.perf_counter()
    content = pack(body, base)
    packed = time.perf_counter()
    again = unpack(decode_packed(content, MOST), base[1] if base is not None else None)
    unpacked = time.perf_counter()
    if again != body:
        raise RuntimeError("other bytes came back")
    return len(content), packed - started, unpacked - packed


def action_changes(weights: bytes, observations: np.ndarray) -> tuple[float, float]:
    """Mean and maximum change of the deterministic action by rounding, in shares of the action's range."""
    exact, rounded = (
        NumpySquashedGaussianMLPActor(OBSERVATIONS, ACTIONS).from_blob("safetensors", data, "cpu")
        for data in (weights, with_bfloat16_matrices(weights))
    )
    changes = [np.abs(exact.act(one, test=True) - rounded.act(one, test=True)) / 2 for one in observations]
    return float(np.mean(changes)), float(np.max(changes))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=2_000, help="before the first policy")
    parser.add_argument("--every", type=int, default=50, help="updates between two policies")
    parser.add_argument("--publications", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    chunk = transitions()
    memory = ReplayMemory("cpu", ROWS, memory_size=ROWS, batch_size=256, seed=0)
    memory.append_chunk(chunk)
    agent = SacAgent(OBSERVATIONS, ACTIONS, "cpu")
    for _ in range(arguments.updates):
        agent.train(memory.sample())
    policies = [agent.get_actor().to_blob()[1]]
    for _ in range(arguments.publications):
        for _ in range(arguments.every):
            agent.train(memory.sample())
        policies.append(agent.get_actor().to_blob()[1])

    whole = len(body_of(policies[0]))
    print("# Bytes of a policy on a thin link\n")
    print(
        f"`python benchmarks/wire_weights.py --updates {arguments.updates} --every {arguments.every}`; Python "
        f"{platform.python_version()}, NumPy {np.__version__}, torch {torch.__version__}, zstandard "
        f"{zstandard.__version__}; SAC, 2 x 256; {whole:,} bytes whole; {arguments.updates} updates before the base\n"
    )
    print("| weights | form | share of the whole | pack, ms | unpack, ms |\n| --- | --- | --- | --- | --- |")
    reached = True
    for mode, prepare in (("delta", bytes), ("bfloat16", with_bfloat16_matrices)):
        bodies = [body_of(prepare(weights)) for weights in policies]
        rows = {"complete": [checked(body, None) for body in bodies]}
        deltas = [checked(body, ((1, 1), bodies[0])) for body in bodies[1:]]
        distances = [distance for distance in (1, 4, 16, 64) if distance <= len(deltas)]
        rows |= {
            f"{distance * arguments.every} updates after its base": [deltas[distance - 1]] for distance in distances
        }
        rows["from each policy to the next"] = [
            checked(after, ((1, 1), before)) for before, after in itertools.pairwise(bodies)
        ]
        for form, results in rows.items():
            sizes, packs, unpacks = ([result[column] for result in results] for column in range(3))
            median = 1_000 * statistics.median(packs), 1_000 * statistics.median(unpacks)
            print(f"| {mode} | {form} | {statistics.median(sizes) / whole:.3f} | {median[0]:.1f} | {median[1]:.1f} |")
        worst = max(size for size, _, _ in rows["from each policy to the next"]) / whole
        reached &= worst <= REACH[mode]
        print(f"| {mode} | the largest of those | {worst:.3f} (to reach: {REACH[mode]}) | | |")
    changes = [
        action_changes(weights, np.asarray(chunk.observation)[:: ROWS // 200])
        for weights in policies[:: len(policies) - 1]
    ]
    text = "; ".join(f"{mean:.1e} (at most {most:.1e})" for mean, most in changes)
    print(
        f"\nMean change of the deterministic action by bfloat16, first and last policy, in shares of its range: {text}."
    )
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
