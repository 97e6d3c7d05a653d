#!/usr/bin/env bash
# gym-hil's buttons "open gripper" and "close gripper" do the opposite, and the cube follows no seed.
#
# Guess: a person's "open" opens the gripper, and `reset(seed=0)` puts the cube at one place each time, as Gymnasium asks.
# Seen: gym-hil 0.1.14, gymnasium 1.4.0, mujoco 3.8.1, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026.
#   `InputsControlWrapper` sends 2.0 for "open" and 0.0 for "close"; the environment adds what is above 1 to the command
#   of the fingers, whose largest value is closed. After "open" the pads are 1.3 cm apart, after "close" 9.8 cm.
#   With `random_block_position=True`, `reset(seed=0)` three times puts the cube at three places: it is drawn from NumPy's
#   global generator. Without it, all seeds have the same place.
# Matters for: demonstrations that a person records with its gamepad or keyboard, whose printed help says "LT button:
#   Close gripper"; and for success rates over "seeds", which are repeatable only after `np.random.seed`.
#   `examples/robot/panda.py` draws the cube from the environment's generator and closes at positive actions.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed or nothing can render.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gym-hil==0.1.14 gymnasium==1.4.0 mujoco==3.8.1 numpy==2.4.6 || exit 2
export MUJOCO_GL=${MUJOCO_GL:-egl}
cat > "$folder/gripper.py" <<'PYTHON'
import os
import sys

import numpy as np

try:
    import gym_hil.wrappers.intervention_utils as devices
    from gym_hil import make_env
    from gym_hil.wrappers.hil_wrappers import InputsControlWrapper

    made = {"env_id": "gym_hil/PandaPickCubeBase-v0", "reset_delay_seconds": 0.0, "gripper_penalty": 0.0}
    inner = make_env(**made)
except Exception as exc:  # no EGL on this machine
    print(exc)
    os._exit(2)


class Button:
    """The keyboard, with one button pressed, on a machine that has none."""

    def __init__(self, **sizes):
        self.pressed = "open"

    def start(self):
        pass

    reset = update = start

    def get_deltas(self):
        return 0.0, 0.0, 0.0

    def should_intervene(self):
        return True

    def gripper_command(self):
        return self.pressed

    def get_episode_end_status(self):
        return None


devices.KeyboardController = Button
env = InputsControlWrapper(inner, use_gripper=True, use_gamepad=False)
env.reset(seed=0)
apart = {}
for pressed in ("open", "close"):
    env.controller.pressed = pressed
    for _ in range(10):
        env.step(np.zeros(4, np.float32))
    left, right = (env.unwrapped.data.body(name).xpos for name in ("left_pad", "right_pad"))
    apart[pressed] = float(np.linalg.norm(left - right)) * 100
    print(f'"{pressed}" held for a second: the pads are {apart[pressed]:.1f} cm apart')
drawn = make_env(**made, random_block_position=True)
places = [drawn.reset(seed=0)[0]["environment_state"][:2].round(3).tolist() for _ in range(3)]
print("the cube after reset(seed=0), three times:", places)
sys.stdout.flush()
os._exit(0 if apart["open"] < 2 < 6 < apart["close"] and places[0] != places[1] != places[2] else 1)
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/gripper.py"
