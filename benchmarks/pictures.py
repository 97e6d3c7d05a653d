"""Cost of pictures for viewers: a worker that nobody looks at, a camera that somebody watches, and the bytes of each.

    python benchmarks/pictures.py

- asked, nothing wanted: what `Uplink.ending` takes with and without pictures. A worker asks between two slices, about
  five times a second;
- a frame: the time of the environment's thread (the renderer's included), and of the second thread, for JPEG;
- a piece: signing it at the worker, checking it at a viewer.

Medians of `--repetitions` repetitions.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gymnasium  # noqa: E402

from tests.networking.end_to_end.ends import signer, verifier  # noqa: E402
from tmrl_core.actor.rollout.pictures import Frame, WorkerPictures, jpeg, rendered  # noqa: E402
from tmrl_core.networking.end_to_end.signed import check_message, sign_message  # noqa: E402
from tmrl_core.networking.protocol.messages import Film, encode_body, encode_control  # noqa: E402
from tmrl_core.networking.protocol.pictures import FRAME_S, Picture, Piece, Wanted  # noqa: E402


class Source:
    """The renderer of an environment."""

    def __init__(self, env: gymnasium.Env[object, object]) -> None:
        self._env = env

    def frame(self) -> Frame:
        """Return what it renders."""
        return rendered(self._env)

    def latest_video(self) -> Path:
        """Return no video; nothing asks for it."""
        raise NotImplementedError


def median_us(call: Callable[[], object], repetitions: int) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def main() -> None:
    """Measure, and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repetitions", type=int, default=200)
    repetitions = options.parse_args().repetitions
    logging.disable()
    env = gymnasium.make("Pendulum-v1", render_mode="rgb_array")
    env.reset(seed=1)
    source, sent = Source(env), list[Picture]()
    now = 0.0
    made = WorkerPictures(source, sent.append, lambda: now)
    idle = median_us(lambda: made.look(Wanted("robot7")), 50 * repetitions)

    def watched() -> None:
        nonlocal now
        now += FRAME_S
        made.look(Wanted("robot7", camera=round(now)))

    def encoded() -> None:
        watched()
        while made._encoding is not None and not made._encoding.done():
            time.sleep(0.001)

    encoded()
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        watched()
        times.append(time.perf_counter() - began)
        encoded()
    frame = source.frame()
    content = jpeg(frame)
    piece = Piece("run", "robot7", "camera", 1, 0, 1, content)
    own, checks = signer("worker", "robot7"), verifier()
    proven = sign_message(piece, own)
    size = len(encode_control(Film("camera", 0, encode_body(proven))))
    made.close()
    print(f"| a look while nobody watches | {idle:.2f} us, five times a second |")
    print(
        f"| a frame of {frame.shape[1]} x {frame.shape[0]}, environment's thread "
        f"| {1e3 * statistics.median(times):.2f} ms |"
    )
    print(f"| of it the renderer | {median_us(source.frame, repetitions) / 1e3:.2f} ms |")
    print(f"| JPEG, second thread | {median_us(lambda: jpeg(frame), repetitions) / 1e3:.2f} ms |")
    print(
        f"| signing, checking | {median_us(lambda: sign_message(piece, own), repetitions):.0f} us, "
        f"{median_us(lambda: check_message(proven, checks), repetitions):.0f} us |"
    )
    print(f"| a camera's message | {size:,} bytes, {2 * size / 1e3:.1f} kB/s |")


if __name__ == "__main__":
    main()
