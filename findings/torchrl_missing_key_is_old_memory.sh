#!/usr/bin/env bash
# TorchRL's storage in RAM gives rows that lack a key whatever its memory held before, as if it were data.
#
# Guess: a row that is added without a key that earlier rows have is refused, as another dtype is (a RuntimeError), or
#   reads as zeros.
# Seen: torchrl 0.14.1, tensordict 0.14.3, torch 2.13.0, Python 3.11, Linux x86_64, November 2026. Three rows with the keys
#   `reward` and `bonus`, then rows with `reward` alone. `LazyTensorStorage` takes them without a warning, and their
#   `bonus` is what lay in the uninitialized memory: numbers like 1.7e-37 or -1.5e19, others in each run. With
#   `LazyMemmapStorage` it is 0. If `bonus` comes only later, the storage in RAM adds the column, and the one on disk
#   drops it silently. `ListStorage` keeps each row as it was and raises a KeyError when the key is read.
# Matters for: buffers that two collectors fill (demonstrations with a key that the policy's own steps lack). Training
#   goes on with absurd numbers in some rows of each batch. Give each row every key.
#
# Memory is filled with 7 and freed first, so that something lies there.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet torchrl==0.14.1 tensordict==0.14.3 torch==2.13.0 numpy==2.4.6 || exit 2
cat > "$folder/storage.py" <<'PYTHON'
import logging

import torch
from tensordict import TensorDict

logging.disable(logging.CRITICAL)
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer  # noqa: E402

ROWS = 8_000


def bonus(storage):
    old = [torch.full((ROWS,), 7.0) for _ in range(64)]
    del old  # the allocator hands this memory out again
    buffer = ReplayBuffer(storage=storage, batch_size=4)
    buffer.extend(TensorDict({"reward": torch.zeros(3), "bonus": torch.ones(3)}, [3]))
    buffer.extend(TensorDict({"reward": torch.zeros(ROWS - 3)}, [ROWS - 3]))
    return buffer[:]["bonus"]


def later(storage):
    buffer = ReplayBuffer(storage=storage, batch_size=4)
    buffer.extend(TensorDict({"reward": torch.zeros(3)}, [3]))
    buffer.extend(TensorDict({"reward": torch.zeros(3), "bonus": torch.ones(3)}, [3]))
    return sorted(buffer[:].keys())


memory, disk = bonus(LazyTensorStorage(ROWS)), bonus(LazyMemmapStorage(ROWS))
print("in RAM: ", memory[:3].tolist(), "then", sorted(set(memory[3:].tolist()))[:6])
print("on disk:", disk[:3].tolist(), "then", sorted(set(disk[3:].tolist()))[:6])
keys = later(LazyTensorStorage(ROWS)), later(LazyMemmapStorage(ROWS))
print("keys if it comes later:", *keys)
same = memory[:3].tolist() == [1, 1, 1] and bool((memory[3:] != 0).any()) and not bool((disk[3:] != 0).any())
raise SystemExit(0 if same and keys == (["bonus", "reward"], ["reward"]) else 1)
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/storage.py"
