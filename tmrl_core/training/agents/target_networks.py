"""Target networks: copies that follow their source networks by Polyak updates."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def make_target(module: nn.Module) -> Any:
    """Return a copy of a module without gradients, as a target network."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def polyak_update(targets: list[Tensor], sources: list[Tensor], polyak: float) -> None:
    """Polyak update of target networks, in place.

    Args:
        targets: parameters of the target networks.
        sources: parameters of the source networks, in the same order.
        polyak: weight of the targets' old values; 0: copy the sources.

    Source: Polyak averaging as in Lillicrap et al., arXiv:1509.02971, algorithm 1, with polyak = 1 - tau.
    """
    torch._foreach_lerp_(targets, sources, 1.0 - polyak)
