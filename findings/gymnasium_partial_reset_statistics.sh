#!/usr/bin/env bash
# Gymnasium's vector RecordEpisodeStatistics forgets the running episodes at each partial reset.
#
# Guess: with AutoresetMode.DISABLED, `reset(options={"reset_mask": mask})` resets the masked environments. The wrapper
#   handles the mask in its own reset, so lengths and returns that it reports are those of whole episodes: their sum over
#   finished episodes is nearly the number of steps made.
# Seen: gymnasium 1.4.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. Three CartPoles, 500 steps each, the same
#   actions: 72 episodes, whose lengths, counted outside, sum to 1475; the wrapper's sum to 528. SyncVectorEnv takes
#   `reset_mask` out of the options (`pop`), which are the same dict, before the wrapper looks for it; the wrapper then
#   takes the call for a reset of all and clears every counter.
# Matters for: anyone who resets by mask to avoid the extra step of autoreset: returns in the logs are too low by a
#   factor that depends on the number of environments. The options dict is emptied too: one that is kept and used again
#   resets all environments. Pass a new dict each time, and count outside the wrapper.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6 || exit 2
cat > "$folder/count.py" <<'PYTHON'
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

STEPS, ENVS = 500, 3
env = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * ENVS, autoreset_mode=AutoresetMode.DISABLED)
env = RecordEpisodeStatistics(env)
env.reset(seed=0)
env.action_space.seed(0)
running, counted, reported = np.zeros(ENVS, int), [], []
for _ in range(STEPS):
    *_, terminated, truncated, infos = env.step(env.action_space.sample())
    running += 1
    done = terminated | truncated
    if done.any():
        counted += running[done].tolist()
        reported += infos["episode"]["l"][infos["_episode"]].tolist()
        running[done] = 0
        options = {"reset_mask": done}
        env.reset(options=options)
        assert not options, "the mask stays in the options"
print(f"{len(counted)} episodes; lengths counted outside: {sum(counted)}, reported: {sum(reported)}")
assert len(reported) == len(counted)
raise SystemExit(0 if sum(reported) < 0.5 * sum(counted) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/count.py"
