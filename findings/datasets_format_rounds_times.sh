#!/usr/bin/env bash
# A float64 column of a Hugging Face dataset loses its digits as soon as it is given out as arrays.
#
# Guess: `features` says that a column is float64, and "the format has no effect on the internal table": with_format
#   ("numpy", "torch") gives out float64 arrays, as it gives out int64 ones for int64.
# Seen: datasets 5.2.0, pyarrow of the day, numpy 2.4.6, torch 2.13.0, Python 3.11, Linux x86_64, November 2026. Time
#   stamps of a camera at 50 Hz, in seconds since 1970: without a format they differ by 0.02 s; as numpy and as torch they
#   are float32, where neighbours are 128 s apart, and all differences are 0. int64 columns stay int64. With the dtype
#   given to with_format, they are float64 again.
# Matters for: robot logs, whose frames are joined by time stamps, and GPS positions: everything matches everything, with
#   no error. Give the dtype, `with_format("numpy", dtype=np.float64)`, or store times since the start.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet datasets==5.2.0 numpy==2.4.6 torch==2.13.0 || exit 2
cat > "$folder/times.py" <<'PYTHON'
import numpy as np
import torch
from datasets import Dataset

start = 1_764_000_000.0
frames = Dataset.from_dict({"time": [start + 0.02 * frame for frame in range(50)], "frame": list(range(50))})
assert frames.features["time"].dtype == "float64"
plain = np.diff(np.array(frames["time"]))
found = {name: frames.with_format(name)[:] for name in ("numpy", "torch")}
kept = frames.with_format("numpy", dtype=np.float64)[:]["time"]
for name, columns in found.items():
    print(name, columns["time"].dtype, "largest difference", float(np.abs(np.diff(np.asarray(columns["time"]))).max()))
print("without a format", plain.max().round(3), "; with its dtype named", np.diff(kept).max().round(3))
same = np.allclose(plain, 0.02, atol=1e-6) and np.allclose(np.diff(kept), 0.02, atol=1e-6)
same &= found["numpy"]["time"].dtype == np.float32 and found["torch"]["time"].dtype == torch.float32
same &= all(not np.diff(np.asarray(columns["time"])).any() for columns in found.values())
same &= found["numpy"]["frame"].dtype == np.int64
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/times.py"
