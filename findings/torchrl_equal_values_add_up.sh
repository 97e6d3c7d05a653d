#!/usr/bin/env bash
# TorchRL's Q-value policies choose several actions at once where values are equal, and add the values up.
#
# Guess: QValueActor gives the greedy action ("argmax component"), one-hot: a vector with one 1. If two actions have
#   the same value it takes one of them, as torch.argmax does and as its own `action_space="categorical"` does, and
#   the value of the chosen action, which DQNLoss bootstraps with, is the largest one.
# Seen: torchrl 0.14.1, tensordict 0.14.3, torch 2.13.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. The
#   action has a 1 for each largest value, and `chosen_action_value` is the sum of those: with k of them, DQN's target
#   is k times too large. A random network with 18 actions and values of about 10 has no such state of 10,000 in
#   float32. In bfloat16, where neighbours between 8 and 16 are 0.06 apart, 22 % have one, and targets are up to 7
#   times too large.
# Matters for: DQN with torch.autocast or low precision, tables that begin with one value, and heads that saturate.
#   Targets that are doubled make values grow, with no error. Use `action_space="categorical"`.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet torchrl==0.14.1 tensordict==0.14.3 torch==2.13.0 numpy==2.4.6 || exit 2
export RL_WARNINGS=False
cat > "$folder/ties.py" <<'PYTHON'
import logging

import torch
from tensordict import TensorDict

logging.disable(logging.CRITICAL)
from torchrl.modules import MLP, QValueActor  # noqa: E402
from torchrl.objectives import DQNLoss  # noqa: E402

torch.manual_seed(1)
STATES, ACTIONS, GAMMA = 10_000, 18, 0.99
network = MLP(in_features=8, out_features=ACTIONS, num_cells=[64, 64])
with torch.no_grad():
    network[-1].bias += 10.0  # returns that are usual: values of about 10, which differ by some tenths
actor = QValueActor(network, in_keys=["observation"], action_space="one-hot")
steps = TensorDict({"observation": torch.randn(STATES, 8)}, [STATES])
steps["next"] = {
    "observation": torch.randn(STATES, 8),
    "reward": torch.zeros(STATES, 1),
    "done": torch.zeros(STATES, 1, dtype=torch.bool),
    "terminated": torch.zeros(STATES, 1, dtype=torch.bool),
}
loss = DQNLoss(actor, action_space="one-hot", delay_value=False)
loss.make_value_estimator(gamma=GAMMA)

same = True
for dtype in (torch.float32, torch.bfloat16):
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        acted = actor(steps.select(("next", "observation")).get("next").clone())
        target = loss.value_estimator.value_estimate(steps.clone(), target_params=loss.target_value_network_params)
    several = acted["action"].sum(dim=-1) > 1
    largest = acted["action_value"].amax(dim=-1).float()
    ratio = target.flatten().float() / (GAMMA * largest)
    print(dtype, "states whose action has several ones:", several.float().mean().item(), end="; ")
    print("targets by reward + gamma * largest value:", ratio.min().item(), "to", ratio.max().item())
    same &= bool(((ratio > 1.9) == several).all())
    same &= several.float().mean().item() == 0.0 if dtype == torch.float32 else several.float().mean().item() > 0.1
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/ties.py"
