#!/usr/bin/env bash
# torch's Categorical gives a choice of probability 0 a finite log-probability, if it was made from probabilities.
#
# Guess: Categorical(probs=p) and Categorical(logits=log p) are the same distribution, so log_prob of a choice that cannot
#   be made is -inf in both; entropy and the KL divergence are those of p.
# Seen: torch 2.13.0, Python 3.11, Linux x86_64, November 2026. With probs (0.5, 0.5, 0) log_prob of the third choice is
#   -15.942 in float32 and -36.044 in float64, the logarithms of the dtype's epsilon, while `probs` says exactly 0 and
#   kl_divergence says inf. From logits (0, 0, -inf) it is -inf. The number is a clamp, made when logits are computed
#   from probabilities, and it depends on the dtype only.
# Matters for: action masks. A masked action that slips into a batch, from a recording or another mask, gives -inf and is
#   noticed with masked logits; with masked probabilities it gives a plausible number: a ratio of densities of e^15.9 or
#   its inverse, a cross entropy of 15.9, a gradient. The same code in float64 gives another loss.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 || exit 2
cat > "$folder/impossible.py" <<'PYTHON'
import math

import torch
from torch.distributions import Categorical, kl_divergence

same = True
for dtype in (torch.float32, torch.float64):
    made = Categorical(probs=torch.tensor([0.5, 0.5, 0.0], dtype=dtype))
    masked = Categorical(logits=torch.tensor([0.0, 0.0, -math.inf], dtype=dtype))
    even = Categorical(probs=torch.full((3,), 1 / 3, dtype=dtype))
    third = torch.tensor(2)
    found = made.log_prob(third).item()
    print(dtype, "from probabilities", found, "with probability", made.probs[2].item(), "; from logits", end=" ")
    print(masked.log_prob(third).item(), "; KL divergence", kl_divergence(even, made).item())
    same &= math.isclose(found, math.log(torch.finfo(dtype).eps), rel_tol=1e-4) and made.probs[2].item() == 0.0
    same &= masked.log_prob(third).item() == -math.inf and kl_divergence(even, made).item() == math.inf
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/impossible.py"
