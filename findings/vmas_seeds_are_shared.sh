#!/usr/bin/env bash
# VMAS: all environments of a process draw from one generator, so that an evaluation with a seed repeats the training.
#
# Guess: an environment made with a seed has a generator of its own, as Gymnasium's have: what another one does, does not
#   change it.
# Seen: vmas 1.5.2, torch 2.13.0 (CPU), numpy 2.4.6, Python 3.11, Linux x86_64, November 2026.
#   The random state belongs to the class `Environment`, and is swapped in around each call. Five resets of one
#   environment begin at five places. With `reset(seed=0)` of a second one before each of them, as a periodic evaluation
#   does it, all five begin at one place. An environment made with seed 1 begins elsewhere if one with seed 2 is made
#   after it.
# Matters for: training and evaluation environments in one process: after each evaluation, training sees the same starts
#   and the same noise again. Seed the training environment anew after an evaluation, or evaluate in another process. A
#   worker of tmrl_core gives the first training episode after an evaluation a seed of its own.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet --no-compile vmas==1.5.2 torch==2.13.0 numpy==2.4.6 || exit 2
cat > "$folder/starts.py" <<'PYTHON'
import torch
import vmas

ROUNDS = 5


def start(env, seed=None):
    """Return the first observations of an episode."""
    return tuple(torch.cat([seen.flatten() for seen in env.reset(seed=seed)]).tolist())


training = vmas.make_env("balance", num_envs=1, seed=1)
first = start(training)
alone = {start(training) for _ in range(ROUNDS)}
evaluation = vmas.make_env("balance", num_envs=1, seed=2)
between = set()
for _ in range(ROUNDS):
    start(evaluation, seed=0)
    between.add(start(training))
again = vmas.make_env("balance", num_envs=1, seed=1)
equal = start(again) == first
again = vmas.make_env("balance", num_envs=1, seed=1)
vmas.make_env("balance", num_envs=1, seed=2)
moved = start(again) != first
print(f"{ROUNDS} resets of the training environment: {len(alone)} different starts")
print(f"with reset(seed=0) of another one before each: {len(between)}")
print(f"made with seed 1, it begins as before: {equal}; not so if another one is made with seed 2: {moved}")
raise SystemExit(0 if len(alone) == ROUNDS and len(between) == 1 and equal and moved else 1)
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/starts.py"
