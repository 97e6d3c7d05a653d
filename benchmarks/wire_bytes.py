"""Bytes that 1000 Pendulum transitions take as messages, against a pickled list of tuples.

    python benchmarks/wire_bytes.py

Five episodes of 200 transitions, each with its reset row; exact dtypes (12 bytes of observation, 4 of action, 8 of
reward a row); flags, segments, one episode record per episode, 16 bytes of signature, the message's head and the
headers of its frames included: all that is handed to TLS. Five repetitions, each of other episodes: the bytes depend on
what was seen, hardly on anything else.
"""

from __future__ import annotations

import argparse
import pickle  # the baseline: nothing here is unpickled
import platform
import statistics
import sys
from typing import Any

import gymnasium
import msgspec
import numpy as np
import zstandard

from tmrl_core.networking.protocol.framing import message_bytes
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD
from tmrl_core.samples import Buffer, EpisodeRecord, decode_message, encode_message

EPISODES, STEPS = 5, 200
TRANSITIONS = EPISODES * STEPS
SIGNATURE = bytes(range(16))


def pendulum_episodes(seed: int, episodes: int = EPISODES) -> list[list[tuple[Any, ...]]]:
    """Samples of random episodes of Pendulum, the reset first: (act, new_obs, rew, terminated, truncated, info)."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=STEPS)
    env.action_space.seed(seed)
    played = []
    for episode in range(episodes):
        obs, info = env.reset(seed=1000 * seed + episode)
        samples: list[tuple[Any, ...]] = [(None, obs, 0.0, False, False, info)]
        terminated = truncated = False
        while not (terminated or truncated):
            act = env.action_space.sample()
            obs, rew, terminated, truncated, info = env.step(act)
            samples.append((act, obs, rew, terminated, truncated, info))
        played.append(samples)
    env.close()
    return played


def messages(episodes: list[list[tuple[Any, ...]]], compression: Any, per_message: int) -> list[bytes]:
    """Encode episodes, `per_message` of them in each message."""
    buffer = Buffer(maxlen=None)
    encoded = []
    for number, samples in enumerate(episodes):
        buffer.start_episode(number, (1, number))
        for sample in samples:
            buffer.append_sample(sample)
        total = float(sum(sample[2] for sample in samples))
        buffer.end_episode(EpisodeRecord("", total, len(samples) - 1, "train", "truncated", number, (1, number)))
        if (number + 1) % per_message == 0:
            (chunk,), records = buffer.take()
            encoded.append(encode_message(chunk, records, signature=SIGNATURE, compression=compression))
    return encoded


def check(encoded: list[bytes], episodes: list[list[tuple[Any, ...]]]) -> None:
    """Raise if the messages do not hold every sample exactly."""
    chunks = [decode_message(message, max_bytes=1 << 24).chunk for message in encoded]
    decoded = [chunk.sample(row) for chunk in chunks if chunk is not None for row in range(chunk.rows)]
    samples = [sample for episode in episodes for sample in episode]
    if len(decoded) != len(samples):
        raise RuntimeError(f"{len(decoded)} samples came back of {len(samples)}")
    for ours, original in zip(decoded, samples, strict=True):
        for a, b in zip(ours, original, strict=True):
            same = (a is None) == (b is None) and (a == b if not isinstance(b, np.ndarray) else a.dtype == b.dtype)
            if not same or (isinstance(b, np.ndarray) and a.tobytes() != b.tobytes()):
                raise RuntimeError(f"{ours} came back for {original}")


def versions() -> str:
    return (
        f"Python {platform.python_version()}, NumPy {np.__version__}, msgspec {msgspec.__version__}, "
        f"zstandard {zstandard.__version__} (zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}), "
        f"gymnasium {gymnasium.__version__}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--reach-plain", type=float, default=26.0, help="bytes above which the exit status is 1")
    parser.add_argument("--reach-zstd", type=float, default=23.0, help="bytes above which the exit status is 1")
    arguments = parser.parse_args()

    rows: dict[str, list[float]] = {}
    for repetition in range(arguments.repetitions):
        episodes = pendulum_episodes(repetition)
        samples = [sample for episode in episodes for sample in episode]
        rows.setdefault("pickled list of tuples", []).append(len(pickle.dumps(samples)) / TRANSITIONS)
        rows.setdefault("pickled list, newest protocol", []).append(len(pickle.dumps(samples, -1)) / TRANSITIONS)
        for count in (1, EPISODES):
            for name, compression in (("before zstd", "none"), ("after zstd", "zstd"), ("as sent (auto)", "auto")):
                encoded = messages(episodes, compression, EPISODES // count)
                check(encoded, episodes)
                size = sum(message_bytes(SAMPLES_HEAD, len(message)) for message in encoded) / TRANSITIONS
                rows.setdefault(f"{name}, in {count} message{'s' * (count > 1)}", []).append(size)

    print("# Bytes per Pendulum transition\n")
    print(f"`python benchmarks/wire_bytes.py`; {versions()}; {arguments.repetitions} repetitions\n")
    print("| what | bytes a transition, median | range | pickle / this |\n| --- | --- | --- | --- |")
    baseline = statistics.median(rows["pickled list of tuples"])
    for name, sizes in rows.items():
        median = statistics.median(sizes)
        print(f"| {name} | {median:.2f} | {min(sizes):.2f} to {max(sizes):.2f} | {baseline / median:.2f} |")
    plain = max(statistics.median(sizes) for name, sizes in rows.items() if name.startswith("before"))
    packed = max(statistics.median(sizes) for name, sizes in rows.items() if name.startswith("after"))
    print(f"\nTo reach: {arguments.reach_plain:g} before and {arguments.reach_zstd:g} after zstd.")
    return 0 if plain <= arguments.reach_plain and packed <= arguments.reach_zstd else 1


if __name__ == "__main__":
    sys.exit(main())
