"""Precision of the products of float32 matrices on a CUDA device, for the time of some updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

TF32 = "tf32"
"""Value of an agent's `precision`: products of float32 matrices use TF32, with 10 bits of fraction in place of 23."""


@contextmanager
def matrix_products(precision: str, device: torch.device) -> Iterator[None]:
    """Compute products of matrices in TF32 if `precision` is `tf32` and the device a CUDA device.

    torch's switch is for the whole process, which may be another program's: it is put back afterwards. Compiling and
    capturing must happen inside, since both take what they find.
    """
    if precision != TF32 or device.type != "cuda":
        yield
        return
    switch = torch.backends.cuda.matmul
    before = switch.allow_tf32
    switch.allow_tf32 = True
    try:
        yield
    finally:
        switch.allow_tf32 = before
