"""Make the picture of docs/tutorials/robot_with_a_person.md: an episode in which a person by a rule takes over.

    MUJOCO_GL=egl python scripts/robot_pictures.py

Needs gym-hil==0.1.14, which wants an environment of its own. The policy stands still, so that the person has to act.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples" / "robot"), str(ROOT)]
PICTURE = ROOT / "docs" / "pictures" / "robot_takeover.png"
SEED, SIZE = 4, 240
BORDERS = {"policy": "#8aa4c8", "person": "#e0873a"}


def main() -> None:
    """Play an episode, and draw five moments of it."""
    described = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    described.parse_args()
    import panda  # type: ignore[import-not-found,unused-ignore]

    env, person = panda.Panda(render_mode="rgb_array"), panda.PersonByRule()
    obs, _ = env.reset(seed=SEED)
    person.begin_episode()
    frames, over = [("policy", env.render())], False
    while not over:
        action = person.poll(obs)
        acted = "policy" if action is None else "person"
        obs, _, terminated, truncated, _ = env.step(np.array([0, 0, 0, 1.0]) if action is None else action)
        frames.append((acted, env.render()))
        over = terminated or truncated
    begins = next(place for place, (acted, _) in enumerate(frames) if acted == "person")
    closed = begins + (len(frames) - begins) // 2
    chosen = [0, begins, closed - 2, closed + 2, len(frames) - 1]
    strip = Image.new("RGB", (SIZE * len(chosen), SIZE + 22), "white")
    draw = ImageDraw.Draw(strip)
    for column, step in enumerate(chosen):
        acted, frame = frames[step]
        left = SIZE * column
        draw.rectangle((left, 0, left + SIZE - 2, SIZE + 21), fill=BORDERS[acted])
        small = Image.fromarray(frame).crop((60, 60, 420, 420)).resize((SIZE - 8, SIZE - 8))
        strip.paste(small, (left + 3, 3))
        draw.text((left + 6, SIZE + 2), f"step {step}: the {acted} acts", fill="black")
    strip.quantize(128).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes, steps {chosen}")


if __name__ == "__main__":
    main()
