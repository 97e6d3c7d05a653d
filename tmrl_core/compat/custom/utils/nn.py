"""Helpers for models, under the names of `tmrl.custom.utils.nn`."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

__all__ = ["copy_shared", "detach", "exponential_moving_average", "no_grad"]

Module = TypeVar("Module", bound=nn.Module)


def detach(x: Any) -> Any:
    """Return tensors without their gradients: one tensor, or a nested list of them."""
    return x.detach() if isinstance(x, Tensor) else [detach(element) for element in x]


def no_grad(model: Module) -> Module:
    """Stop gradients of all parameters, in place, and return the model."""
    return model.requires_grad_(False)


@torch.no_grad()
def exponential_moving_average(averages: Iterable[Tensor], values: Iterable[Tensor], factor: float) -> None:
    """Move averages towards values by `factor` of their distance, in place."""
    for average, value in zip(averages, values, strict=True):
        average.lerp_(value, factor)


def copy_shared(model_a: Module) -> Module:
    """Return a copy of a model whose parameters and buffers share the memory of the original's.

    The copy follows each update of the original. With `no_grad`, it acts without affecting gradients of the original.
    """
    memo: dict[int, Any] = {}
    for parameter in model_a.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    for buffer in model_a.buffers():
        memo[id(buffer)] = buffer.detach()
    return copy.deepcopy(model_a, memo)
