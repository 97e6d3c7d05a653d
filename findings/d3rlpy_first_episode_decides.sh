#!/usr/bin/env bash
# d3rlpy takes float actions for a discrete choice if those of the first episode happen to be whole numbers.
#
# Guess: `MDPDataset` looks at the type of the actions, or at all of them: a float32 array with a 0.35 in it is continuous.
# Seen: d3rlpy 2.8.1, torch 2.13.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. Only the first episode is
#   looked at, and only whether its numbers are whole, whatever their type and shape. Twenty episodes of a throttle between
#   0 and 1 are continuous; the same twenty, with one at full throttle in front, are a choice of two actions. Continuous
#   algorithms then refuse the dataset and advise discrete ones; `DiscreteBC` trains on it without a warning and cuts each
#   0.35 to 0: it predicts 0 where the throttle was 0.6 on average. Two motors that are at 1 all through the first
#   episode are "discrete, 2 actions" too.
# Matters for: recordings of robots and cars, whose first episode is often a standstill or full throttle. Pass
#   `action_space` and `action_size` to `MDPDataset`.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet d3rlpy==2.8.1 torch==2.13.0 numpy==2.4.6 || exit 2
cat > "$folder/throttle.py" <<'PYTHON'
import logging

import d3rlpy
import numpy as np
import structlog
from d3rlpy.algos import DiscreteBCConfig
from d3rlpy.dataset import MDPDataset

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
d3rlpy.seed(1)
random = np.random.default_rng(1)
LENGTH = 50


def dataset(throttle):
    count = len(throttle)
    ends = np.zeros(count)
    ends[LENGTH - 1 :: LENGTH] = 1
    observations = random.normal(size=(count, 3)).astype(np.float32)
    return MDPDataset(observations, throttle.astype(np.float32), np.zeros(count), ends)


def kind(data):
    return f"{data.dataset_info.action_space.name.lower()}, {data.dataset_info.action_size}"


usual = random.uniform(0.3, 0.9, size=(20 * LENGTH, 1))
full = np.ones((LENGTH, 1))
first, last = dataset(np.concatenate([full, usual])), dataset(np.concatenate([usual, full]))
motors = dataset(np.concatenate([np.ones((LENGTH, 2)), random.uniform(-1, 1, size=(LENGTH, 2))]))
print("full throttle in the first episode:", kind(first))
print("full throttle in the last episode: ", kind(last))
print("two motors, at 1 in the first one: ", kind(motors))
policy = DiscreteBCConfig().create(device="cpu:0")
quiet = d3rlpy.logging.NoopAdapterFactory()
policy.fit(first, n_steps=300, n_steps_per_epoch=300, show_progress=False, logger_adapter=quiet)
chosen = policy.predict(random.normal(size=(1000, 3)).astype(np.float32))
print(f"mean throttle: recorded {usual.mean():.2f}, predicted {chosen.mean():.2f}")
same = (kind(first), kind(last), kind(motors)) == ("discrete, 2", "continuous, 1", "discrete, 2")
raise SystemExit(0 if same and chosen.mean() < 0.05 else 1)
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/throttle.py" 2> "$folder/errors"
status=$?
[ $status -le 1 ] && [ -s "$folder/errors" ] && grep -v -i "gym\|^$" "$folder/errors"
exit $status
