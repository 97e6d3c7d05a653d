"""The losses of proximal policy optimization, as pure functions.

Shapes: B transitions of a minibatch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tmrl_core.training.rank_group import RANK_GROUP


def clipped_policy_loss(log_prob_B: Tensor, old_log_prob_B: Tensor, advantage_B: Tensor, clip_ratio: float) -> Tensor:
    """Clipped surrogate loss of the policy.

    Args:
        log_prob_B: [B] log-density of the actions under the current policy, in nats.
        old_log_prob_B: [B] log-density under the policy that collected them.
        advantage_B: [B] advantages.
        clip_ratio: PPO clip range of the ratio of densities around 1.

    Returns:
        Scalar.

    Raises:
        ValueError: the tensors do not all have one shape [B]; [B, 1] would broadcast silently.

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
        value_B: [B] current values.
        return_B: [B] target values.
        old_value_B: [B] values before the round's updates; required with `value_clip`.
        value_clip: clip range of the new value around the old one; None: no clipping.

    Returns:
        Scalar.

    Raises:
        ValueError: the tensors do not all have one shape [B].

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
    """Estimate the KL divergence between the policy that collected and the current one; never negative.

    Args:
        log_prob_B: [B] log-density of the actions under the current policy, in nats.
        old_log_prob_B: [B] log-density under the policy that collected them.

    Returns:
        Scalar, in nats.

    Raises:
        ValueError: the tensors do not all have one shape [B].

    Source: Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html), k3.
    """
    _alike(log_prob_B, old_log_prob_B)
    log_ratio_B = log_prob_B - old_log_prob_B
    return (torch.expm1(log_ratio_B) - log_ratio_B).mean()


def mean_kl(divergence: Tensor) -> float:
    """Return the divergence of a minibatch, with several ranks the mean of theirs."""
    if (ranks := RANK_GROUP.get()) is not None:
        divergence = divergence.detach().clone().reshape(1)
        ranks.average([divergence])
    return float(divergence)


def normalized(advantage_B: Tensor) -> Tensor:
    """Return [B] advantages with mean 0 and standard deviation 1, with several ranks over the minibatches of all."""
    ranks = RANK_GROUP.get()
    if ranks is None:
        return (advantage_B - advantage_B.mean()) / (advantage_B.std() + 1e-8)
    mean = advantage_B.mean().reshape(1)
    ranks.average([mean])
    apart_B = advantage_B - mean
    # The mean over ranks of sums of squares; all minibatches have one size.
    squares = apart_B.square().sum().reshape(1)
    ranks.average([squares])
    return apart_B / ((squares[0] * ranks.size / (len(advantage_B) * ranks.size - 1)).sqrt() + 1e-8)


def _alike(*tensors: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if len(set(shapes)) != 1 or len(shapes[0]) != 1:
        raise ValueError(f"tensors of one shape [B] are needed, found {shapes}")
