#!/usr/bin/env bash
# safetensors writes the entries of a file's metadata in an order that changes from process to process.
#
# Guess: one safetensors file is one sequence of bytes. The arrays are sorted (by dtype, then by name), and the metadata
#   is a dict with an order, so two saves of the same content are equal, and a digest of the file identifies the content.
# Seen: safetensors 0.8.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. The same array with the same six
#   entries of metadata, saved in 12 processes, gave 12 different sequences of bytes; without metadata, or with one
#   entry, always the same one. All of them are read back as equal. PYTHONHASHSEED=0 changes nothing, because the map
#   is made in Rust with a random state of its own.
# Matters for: caches and stores addressed by content, signatures over a file, "did the weights change?" by digest,
#   and reproducible builds of models. Sort the entries after saving, or put them all into one entry as JSON.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet safetensors==0.8.0 numpy==2.4.6 || exit 2
cat > "$folder/digest.py" <<'PYTHON'
import hashlib
import sys

import numpy as np
from safetensors.numpy import load, save

entries = {f"key{number}": str(number) for number in range(int(sys.argv[1]))}
arrays = {"weight": np.arange(4, dtype=np.float32)}
written = save(arrays, metadata=entries or None)
assert np.array_equal(load(written)["weight"], arrays["weight"])
print(hashlib.sha256(written).hexdigest())
PYTHON
different() { # number of entries
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
    PYTHONHASHSEED=0 "$folder/venv/bin/python" "$folder/digest.py" "$1" || exit 2
  done | sort -u | wc -l
}
none=$(different 0) one=$(different 1) six=$(different 6)
echo "different files of 12: without metadata $none, with one entry $one, with six entries $six"
[ "$none" -eq 1 ] && [ "$one" -eq 1 ] && [ "$six" -gt 1 ]
