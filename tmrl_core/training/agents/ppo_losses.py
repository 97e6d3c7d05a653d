"""The losses of proximal policy optimization, as pure functions.

Shapes: B transitions of a minibatch.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_policy_loss(log_prob_B: Tensor, old_log_prob_B: Tensor, advantage_B: Tensor, clip_ratio: float) -> Tensor:
    """Loss that raises what had a positive advantage, as long as the policy stays near the one that collected.

    Args:
        log_prob_B: [B] log-density of the actions under the policy as it is, in nats.
        old_log_prob_B: [B] under the one that collected them.
        advantage_B: [B] advantages.
        clip_ratio: how far from 1 the ratio of both is followed.

    Returns:
        Scalar.

    Raises:
        ValueError: the tensors are not [B] alike; [B, 1] would broadcast silently.

    Source: Schulman et al., arXiv:1707.06347, eq. 7.
    """
    _alike(log_prob_B, old_log_prob_B, advantage_B)
    ratio_B = torch.exp(log_prob_B - old_log_prob_B)
    clipped_B = torch.clamp(ratio_B, 1.0 - clip_ratio, 1.0 + clip_ratio)
    return -torch.minimum(ratio_B * advantage_B, clipped_B * advantage_B).mean()


def value_loss(
    value_B: Tensor, return_B: Tensor, old_value_B: Tensor | None = None, value_clip: float | None = None
) -> Tensor:
    """Half the mean squared error of the values.

    Args:
        value_B: [B] values as they are.
        return_B: [B] what they should be.
        old_value_B: [B] values before the round's updates; only with `value_clip`.
        value_clip: how far from the old value the new one is followed; None: it is not clipped.

    Returns:
        Scalar.

    Raises:
        ValueError: the tensors are not [B] alike.

    Source: Schulman et al., arXiv:1707.06347, eq. 9 (L^VF); the clipping is of the authors' own implementation, see
    Andrychowicz et al., arXiv:2006.05990, section 3.3.
    """
    _alike(value_B, return_B)
    error_B = (value_B - return_B).square()
    if value_clip is not None:
        if old_value_B is None:
            raise ValueError("value_clip needs old_value_B")
        _alike(value_B, old_value_B)
        clipped_B = old_value_B + torch.clamp(value_B - old_value_B, -value_clip, value_clip)
        error_B = torch.maximum(error_B, (clipped_B - return_B).square())
    return 0.5 * error_B.mean()


def divergence(log_prob_B: Tensor, old_log_prob_B: Tensor) -> Tensor:
    """An estimate of the KL divergence of the policy as it is from the one that collected; never negative.

    Args:
        log_prob_B: [B] log-density of the actions under the policy as it is, in nats.
        old_log_prob_B: [B] under the one that collected them.

    Returns:
        Scalar, in nats.

    Raises:
        ValueError: the tensors are not [B] alike.

    Source: Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html), k3.
    """
    _alike(log_prob_B, old_log_prob_B)
    log_ratio_B = log_prob_B - old_log_prob_B
    return (torch.expm1(log_ratio_B) - log_ratio_B).mean()


def _alike(*tensors: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"tensors of one shape [B] are needed, found {shapes}")
