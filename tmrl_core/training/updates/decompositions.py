"""Decompositions of some of torch's operations into ones that the compiler can fuse with their neighbours."""

# Theory of operation
#
# Operations on many tensors (`_foreach_*`, fused Adam) become operations on each, because the compiler fuses what it
# sees and calls the rest as it is.
#
# Products with a side of eight or less (the last layer of a critic, the first layer of a small observation) become
# sums: libraries are slow at them, and a sum is fused with its neighbours. Other products stay with the library that
# torch chose. On AMD processors without AVX-512 (Zen 3), MKL reaches 88 to 92 GFLOP/s per core, the limit of the
# processor, and oneDNN 73 to 83, so nothing is replaced.
#
# A sum with a factor, p + alpha g, becomes a product and a sum. Inductor (torch 2.13.0) makes `addmm` of a sum and a
# matrix product and forgets alpha (findings/torch_compile_forgets_alpha.sh). SGD would add the whole gradient to a
# layer's weight instead of subtracting lr times the gradient, and the l2 of Adam would be 1.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _adam(decoupled: bool) -> Callable[..., None]:
    def step(
        params: list[Tensor],
        grads: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        max_squares: list[Tensor],
        steps: list[Tensor],
        *,
        lr: float | Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Step Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1) or AdamW (arXiv:1711.05101, algorithm 2)."""
        if amsgrad or maximize or grad_scale is not None or found_inf is not None:
            raise NotImplementedError("this variant of Adam is not compiled")
        if isinstance(lr, Tensor):
            lr = lr.reshape(())  # a parameter without dimensions takes no [1]
        # All parameters of a group have the same number of steps.
        # Powers are written as exponentials: the compiler reuses these, but would recompute powers in the inner loop.
        # 1 - exp(x) would lose three digits of seven in the first steps, where x is about -0.001.
        step_size = lr / -torch.expm1(steps[0] * math.log(beta1))
        root_scale = (-torch.expm1(steps[0] * math.log(beta2))).sqrt()
        for p, gradient, mean, square in zip(params, grads, means, squares, strict=True):
            if weight_decay and decoupled:
                p.mul_(1.0 - lr * weight_decay)
            g = gradient.add(p, alpha=weight_decay) if weight_decay and not decoupled else gradient
            mean.lerp_(g, 1.0 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
            p.sub_(step_size * mean / (square.sqrt() / root_scale + eps))

    return step


SMALL = 8
"""Products with a side of at most this size become sums, which the compiler fuses with the neighbouring operations."""


def product(a: Tensor, b: Tensor) -> Any:
    """Multiply [..., M, K] by [..., K, N] as a sum where a side is short, for which libraries are slow."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if k <= SMALL:
        if b.stride(-1) != 1 and n > SMALL:
            # Make the rows of a layer's transposed weight contiguous, or the loop cannot be vectorized.
            b = torch.stack([b[..., i, :] for i in range(k)], dim=-2)
        total = a[..., :, :1] * b[..., :1, :]
        for i in range(1, k):
            total = total + a[..., :, i : i + 1] * b[..., i : i + 1, :]
        return total
    if n <= SMALL:
        return torch.stack([(a * b[..., None, :, j]).sum(-1) for j in range(n)], dim=-1)
    if m <= SMALL:
        return torch.stack([(a[..., i, :, None] * b).sum(-2) for i in range(m)], dim=-2)
    return NotImplemented


def _product_and_bias(multiply: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def add(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        # The next operation adds the bias. torch would copy the bias into the product's memory first.
        return multiply(a, b) + bias if alpha == beta == 1 else NotImplemented

    return add


def _sum(a: Tensor, b: Tensor | float, *, alpha: float = 1) -> Any:
    """Return a + alpha b; NotImplemented, which keeps the operation, if there is no factor."""
    return NotImplemented if alpha == 1 else a + b * alpha


def _sum_in_place(a: Tensor, b: Tensor | float, *, alpha: float = 1) -> Any:
    """Add alpha b to a; NotImplemented as in `_sum`."""
    return NotImplemented if alpha == 1 else a.add_(b * alpha)


def _add_each(tensors: list[Tensor], value: float) -> None:
    for tensor in tensors:
        tensor.add_(value)


def _lerp_each(tensors: list[Tensor], ends: list[Tensor], weight: float) -> None:
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.lerp_(end, weight)


DECOMPOSITIONS: dict[torch._ops.OpOverload[..., object], Callable[..., object]] = {
    torch.ops.aten._fused_adam_.default: _adam(decoupled=False),
    torch.ops.aten._fused_adam_.tensor_lr: _adam(decoupled=False),
    torch.ops.aten._fused_adamw_.default: _adam(decoupled=True),
    torch.ops.aten._fused_adamw_.tensor_lr: _adam(decoupled=True),
    torch.ops.aten._foreach_add_.Scalar: _add_each,
    torch.ops.aten._foreach_lerp_.Scalar: _lerp_each,
    torch.ops.aten.add.Tensor: _sum,
    torch.ops.aten.add_.Tensor: _sum_in_place,
    torch.ops.aten.mm.default: product,
    torch.ops.aten.bmm.default: product,
    torch.ops.aten.addmm.default: _product_and_bias(torch.mm),
    torch.ops.aten.baddbmm.default: _product_and_bias(torch.bmm),
}
