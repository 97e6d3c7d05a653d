#!/usr/bin/env bash
# SuperSuit's environments for stable-baselines3 turn every time limit into an end.
#
# Guess: stable-baselines3's guide says that a VecEnv tells a time limit by `infos[i]["TimeLimit.truncated"]`, and that
#   learning bootstraps there. SuperSuit's `concat_vec_envs_v1(base_class="stable_baselines3")` makes such a VecEnv of a
#   PettingZoo environment, which knows truncations, so the key is there when an episode is truncated.
# Seen: supersuit 3.11.0, pettingzoo 1.27.0, mpe2 1.1.1, stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0, Python
#   3.11, Linux x86_64, November 2026. simple_spread ends by its limit of 25 steps only. The bare environment says
#   terminated False, truncated True; SuperSuit's vector environment 0 and 1; its VecEnv done 1, with
#   `terminal_observation` and without `TimeLimit.truncated`. PPO then trains on returns in which the 26th step is worth
#   nothing: rewards and dones are used as they are, and the value of the terminal observation is never added. DQN
#   stores a real end.
# Matters for: all tasks of mpe2 and every other one with a limit. A state close to the limit looks bad for no reason that
#   the agent can see; with 25 steps and gamma 0.99 that is most of the value. Add the key in a VecEnvWrapper of one's own.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet supersuit==3.11.0 pettingzoo==1.27.0 mpe2==1.1.1 stable-baselines3==2.9.2 \
  gymnasium==1.4.0 numpy==2.4.6 torch==2.13.0 || exit 2
cat > "$folder/limit.py" <<'PYTHON'
import warnings

warnings.filterwarnings("ignore")
import numpy as np
import supersuit
from mpe2 import simple_spread_v3
from stable_baselines3 import DQN

LIMIT = 25


def parallel():
    return simple_spread_v3.parallel_env(max_cycles=LIMIT)


bare = parallel()
bare.reset(seed=0)
for _ in range(LIMIT):
    _, _, terminated, truncated, _ = bare.step(dict.fromkeys(bare.agents, 0))
print("bare: terminated", set(terminated.values()), "truncated", set(truncated.values()))
env = supersuit.pettingzoo_env_to_vec_env_v1(parallel())
env = supersuit.concat_vec_envs_v1(env, 1, base_class="stable_baselines3")
env.reset()
for _ in range(LIMIT):
    _, _, dones, infos = env.step(np.zeros(3, int))
keys = {key for info in infos for key in info}
print("VecEnv: done", dones.tolist(), "keys of the infos", keys)
agent = DQN("MlpPolicy", env, learning_starts=10_000, buffer_size=1000)
agent.learn(3 * 2 * LIMIT)
memory = agent.replay_buffer
ends, limits = int(memory.dones.sum()), int(memory.timeouts.sum())
print("DQN's memory: ends", ends, ", of them marked as time limits", limits)
same = set(terminated.values()) == {False} and set(truncated.values()) == {True} and all(dones)
same = same and "terminal_observation" in keys and "TimeLimit.truncated" not in keys and ends > 0 and limits == 0
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/limit.py"
