#!/usr/bin/env bash
# Videos of Gymnasium's RecordVideo show some frames twice and leave out the ones after them.
#
# Guess: RecordVideo writes one frame for each step, and MoviePy's ImageSequenceClip gets all of them with the frame rate
#   of the environment, so frame n of the file is the picture after step n.
# Seen: gymnasium 1.4.0, moviepy 2.2.1, numpy 2.4.6, av 18.1.0, Python 3.11, Linux x86_64, November 2026. An episode of 500
#   steps whose pictures show their number in ten black and white fields: at 30 frames a second more than a hundred
#   frames are missing, each replaced by the one before; at 10, 25, 50 and 60 too. The video has the right length, so
#   nothing is noticed. The clip itself has it before any encoding: a frame is found by its time, its start is a sum of
#   rounded durations, and the time asked for is a multiple of one; where the sum is larger, the frame before is taken.
#   The first frames are right.
# Matters for: videos that are looked at frame by frame (when did the robot let go?), compared with logs by step, or used
#   as data for models of the world. Write frames with PyAV or imageio instead.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 moviepy==2.2.1 numpy==2.4.6 av==18.1.0 || exit 2
cat > "$folder/frames.py" <<'PYTHON'
import pathlib
import sys

import av
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from moviepy import ImageSequenceClip

STEPS, FIELDS, SIZE = 500, 10, 32


def picture(number):
    frame = np.zeros((SIZE, SIZE * FIELDS, 3), np.uint8)
    for field in range(FIELDS):
        frame[:, SIZE * field : SIZE * (field + 1)] = 255 * (number >> field & 1)
    return frame


def number_of(frame):
    centre = frame[SIZE // 2, SIZE // 2 :: SIZE].mean(axis=1)
    return sum(int(value > 127) << field for field, value in enumerate(centre))


class Counter(gymnasium.Env):
    render_mode = "rgb_array"
    observation_space, action_space = Box(0, STEPS, (1,), np.float32), Discrete(2)

    def __init__(self, fps):
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}

    def reset(self, *, seed=None, options=None):
        self.step_number = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        return np.full(1, self.step_number, np.float32), 0.0, self.step_number == STEPS, False, {}

    def render(self):
        return picture(self.step_number)


same = True
for fps in (10, 25, 30, 50, 60):
    folder = pathlib.Path(sys.argv[1]) / str(fps)
    env = gymnasium.wrappers.RecordVideo(Counter(fps), folder, episode_trigger=lambda _: True, disable_logger=True)
    env.reset()
    while not env.step(0)[2]:
        pass
    env.close()
    (file,) = folder.glob("*.mp4")
    with av.open(file) as video:
        seen = [number_of(frame.to_ndarray(format="rgb24")) for frame in video.decode(video=0)]
    clip = ImageSequenceClip([picture(number) for number in range(STEPS + 1)], fps=fps)
    unencoded = [number_of(frame) for frame in clip.iter_frames(fps=fps)]
    missing = sorted(set(range(STEPS)) - set(seen))
    print(fps, "frames a second:", len(seen), "frames,", len(missing), "of", STEPS, "missing:", *missing[:8], "...")
    same &= abs(len(seen) - STEPS - 1) <= 1 and len(missing) > STEPS // 50
    same &= missing == sorted(set(range(STEPS)) - set(unencoded)) and seen[:10] == list(range(10))
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/frames.py" "$folder/videos"
