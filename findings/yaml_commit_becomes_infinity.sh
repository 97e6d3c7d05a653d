#!/usr/bin/env bash
# A commit's short hash that PyYAML writes into a run's configuration is read as infinity by OmegaConf and ruamel.yaml.
#
# Guess: PyYAML's safe_dump puts quotes around a string that would be read as something else, so a string stays a string
#   in every reader of YAML. The three packages are used on one file all the time: wandb and Lightning write with PyYAML,
#   Hydra reads with OmegaConf.
# Seen: pyyaml 6.0.4, omegaconf 2.4.0, ruamel.yaml 0.19.1, Python 3.11, Linux x86_64, November 2026. "7e12345" is written
#   without quotes and is inf in both others, "1234e56" is 1.234e+59, "0e12345" is 0.0; PyYAML itself reads the strings
#   back. It follows YAML 1.1, where a float with an exponent needs a point and a sign; the others follow YAML 1.2 there.
#   "1_000" and "1:30", which PyYAML would misread itself, are quoted.
# Matters for: run ids, hashes and versions in saved configurations. Short hashes of seven digits that look so are about
#   one in 54; comparing inf with inf says that two different commits are the same. Put a letter before ids.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet pyyaml==6.0.4 omegaconf==2.4.0 ruamel.yaml==0.19.1 || exit 2
cat > "$folder/commit.py" <<'PYTHON'
import math
import random
import re

import yaml
from omegaconf import OmegaConf
from ruamel.yaml import YAML


def read_back(text):
    """Write a string with PyYAML, and read it with each of the three."""
    written = yaml.safe_dump({"commit": text})
    return [
        yaml.safe_load(written)["commit"],
        OmegaConf.create(written)["commit"],
        YAML(typ="safe").load(written)["commit"],
    ]


expected = {"7e12345": math.inf, "1234e56": 1.234e59, "0e12345": 0.0}
same = True
for text, number in expected.items():
    found = read_back(text)
    print(repr(text), "is read by PyYAML, OmegaConf and ruamel.yaml as", found)
    same &= found == [text, number, number]
same &= read_back("1_000") == ["1_000"] * 3
chance = random.Random(1)
hashes = [f"{chance.randrange(16**7):07x}" for _ in range(200_000)]
hit = sum(bool(re.fullmatch(r"[0-9]+e[0-9]+", text)) for text in hashes) / len(hashes)
print(f"one short hash in {1 / hit:.0f} is such a number")
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/commit.py"
