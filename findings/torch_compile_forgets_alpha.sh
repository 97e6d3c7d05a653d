#!/usr/bin/env bash
# torch.compile forgets the factor of a sum with a matrix product: add(p, a @ b, alpha=-0.001) returns p + a @ b.
#
# Guess: a compiled function returns what it returns uncompiled, apart from rounding.
# Seen: torch 2.13.0, Python 3.11, Linux x86_64, November 2026, on a CPU, in float32, with default options; no GPU was
#   tried. torch.add(p, a @ b, alpha=c), torch.add(a @ b, p, alpha=c) and p.add_(a @ b, alpha=c) compile to addmm(p, a,
#   b) for any c. torch.sub with alpha and p + c * (a @ b) are right. The rule that makes addmm
#   (torch/_inductor/fx_passes/post_grad.py) looks at the two terms, and the pattern matcher skips keyword arguments
#   that a pattern does not name.
# Matters for: a training step compiled as one graph with its optimizer. SGD steps by p.add_(gradient, alpha=-lr), and
#   the gradient of a linear layer's weight is a matrix product: the whole gradient is added to the weight. An L2
#   penalty written as gradient.add(p, alpha=decay) adds the whole weight. Biases, and weights whose gradient is no
#   plain product of two matrices, are right, so losses look plausible at first. Write a product and a sum instead: p +
#   c * gradient.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
command -v "${CXX:-g++}" > /dev/null || { echo "inductor needs a C++ compiler"; exit 2; }
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 || exit 2
cat > "$folder/factor.py" <<'PYTHON'
import torch


def added(p, a, b):
    return torch.add(p, a @ b, alpha=-0.001)


def decayed(p, a, b):
    return torch.add(a @ b, p, alpha=-0.001)


def descended(p, a, b):
    p = p.clone()
    return p.add_(a @ b, alpha=-0.001)


def subtracted(p, a, b):
    return torch.sub(p, a @ b, alpha=0.001)


def written_out(p, a, b):
    return p + -0.001 * (a @ b)


torch.manual_seed(0)
p, a, b = torch.randn(16, 16), torch.randn(16, 32), torch.randn(32, 16)
same = True
for function in (added, decayed, descended, subtracted, written_out):
    right = function(p, a, b)
    found = torch.compile(function)(p, a, b)
    error = (found - right).abs().max().item()
    without = (found - (p + a @ b)).abs().max().item()
    print(f"{function.__name__}: off by {error:.1e}, from the sum without a factor by {without:.1e}")
    wrong = function in (added, decayed, descended)
    same &= (error > 1 and without < 1e-4) if wrong else error < 1e-4
raise SystemExit(0 if same else 1)
PYTHON
TORCHINDUCTOR_CACHE_DIR="$folder/cache" "$folder/venv/bin/python" "$folder/factor.py"
