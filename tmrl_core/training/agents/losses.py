"""Losses and targets of the algorithms: pure functions of tensors.

Shape suffixes: K critics, B batch, N discrete actions, A action elements. A *discount* multiplies the value of the next
state: gamma, or gamma^n of each row where `reward_B` is the sum of n rewards. Termination removes that value.
Truncation does not: a time limit is not part of the state, so the last state keeps its value (Pardo et al.,
arXiv:1712.00378). No function here takes truncation.
"""

# Theory of operation
#
# Each loss or target is one pure function of tensors, named and sourced, so that it can be compared with a slow loop in
# a test. No function here holds state, draws random numbers, branches on the content of a tensor, or reads one: a read
# would make every update wait for its device, and a branch would be frozen into a compiled graph.
#
# Two conventions matter more than any formula:
#
# - Shapes are checked where broadcasting would hide a mistake. Targets of [B, 1] minus values of [B] make a [B, B]
#   matrix, whose mean is a plausible loss that learns nothing. The check reads shapes, which costs nothing in a
#   compiled graph.
# - A target ends at termination, never at truncation. With a reward of 1 and a next value of 10 at discount 0.99, a
#   transition that terminates has the target 1; one that a time limit ends has 10.9, as in the middle of an episode.
#
# Importance weights multiply the loss of each row, and never the TD error, which is the row's next priority.
#
# A *discount* may be [B]: transitions of n steps that an episode's end has cut have a discount of their own.

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def _one_dimensional(**tensors: object) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.ndim != 1:
            raise ValueError(f"{name} must be [B], got {list(tensor.shape)}; [B, 1] would broadcast silently")


def _scalar_or_one_dimensional(**tensors: float | Tensor) -> None:
    _one_dimensional(**{name: t for name, t in tensors.items() if isinstance(t, Tensor) and t.ndim > 0})


# --- targets ----------------------------------------------------------------------------------------------------------


def td_target(reward_B: Tensor, terminated_B: Tensor, next_value_B: Tensor, discount: float | Tensor) -> Tensor:
    """Return [B] the TD target of a critic: the reward plus the discounted value of the next state.

    Args:
        reward_B: [B] float32; with n steps, their discounted sum.
        terminated_B: [B] float32, 1 where the episode has terminated.
        next_value_B: [B] value of the next state (n steps later).
        discount: gamma, or [B] gamma^n.

    Raises:
        ValueError: an argument is not 1-D.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, eq. 6.2 and (n steps) 7.1.
    """
    _one_dimensional(reward_B=reward_B, terminated_B=terminated_B, next_value_B=next_value_B)
    _scalar_or_one_dimensional(discount=discount)
    return reward_B + discount * (1.0 - terminated_B) * next_value_B


def critic_target(
    reward_B: Tensor,
    terminated_B: Tensor,
    next_q_B: Tensor,
    next_log_prob_B: Tensor,
    alpha: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """Return [B] the target of SAC's critics: the reward plus the discounted soft value of the next state.

    Args:
        reward_B: [B] float32.
        terminated_B: [B] float32, 1 where the episode has terminated.
        next_q_B: [B] the target critics' value of a freshly sampled action in the next state.
        next_log_prob_B: [B] log-density of that action, in nats.
        alpha: scalar temperature.
        gamma: discount, a number or [B].

    Raises:
        ValueError: an argument is not 1-D.

    Source: Haarnoja et al., arXiv:1812.05905, eq. 3 and 6.
    """
    _one_dimensional(next_q_B=next_q_B, next_log_prob_B=next_log_prob_B)
    return td_target(reward_B, terminated_B, next_q_B - alpha * next_log_prob_B, gamma)


def chosen_value(q_BN: Tensor, index_B: Tensor) -> Tensor:
    """Return [B] the value of one action of each row.

    Args:
        q_BN: [B, N] values.
        index_B: [B] integers, 0 to N - 1.

    Raises:
        ValueError: `index_B` is not 1-D.
    """
    _one_dimensional(index_B=index_B)
    return q_BN.gather(-1, index_B.to(torch.int64).unsqueeze(-1)).squeeze(-1)


def largest_value(q_BN: Tensor, allowed_BN: Tensor | None = None) -> Tensor:
    """Return [B] the value of the best action.

    Args:
        q_BN: [B, N] values of a state's actions.
        allowed_BN: [B, N] bool action mask; None: all are allowed. A state without an allowed action has the value 0.
    """
    return of_allowed(_limited(q_BN, allowed_BN).amax(dim=-1), allowed_BN)


def double_value(online_q_BN: Tensor, target_q_BN: Tensor, allowed_BN: Tensor | None = None) -> Tensor:
    """Return [B] the target network's value of the online network's best action (double DQN).

    Args:
        online_q_BN: [B, N] the online network's values of the next state's actions.
        target_q_BN: [B, N] the target network's values.
        allowed_BN: as for `largest_value`.

    Source: van Hasselt et al., arXiv:1509.06461, eq. 4.
    """
    best_B = _limited(online_q_BN, allowed_BN).argmax(dim=-1)
    return of_allowed(chosen_value(target_q_BN, best_B), allowed_BN)


def weighted_mean(loss_B: Tensor, weight_B: Tensor | None) -> Tensor:
    """Return the mean of losses, each multiplied by the weight of its row; None: all 1."""
    return (loss_B if weight_B is None else loss_B * weight_B).mean()


def _limited(q_BN: Tensor, allowed_BN: Tensor | None) -> Tensor:
    # Minus infinity is safe for a maximum; expectations would multiply it by 0, see `masks.FORBIDDEN`.
    return q_BN if allowed_BN is None else q_BN.masked_fill(~allowed_BN, -math.inf)


def of_allowed(value_B: Tensor, allowed_BN: Tensor | None) -> Tensor:
    """Return the values, 0 where no action is allowed."""
    return value_B if allowed_BN is None else value_B.masked_fill(~allowed_BN.any(dim=-1), 0.0)


def soft_value(q_BN: Tensor, log_prob_BN: Tensor, alpha: Tensor, allowed_BN: Tensor | None = None) -> Tensor:
    """Return [B] the soft value of a state under a policy over discrete actions, as an exact expectation.

    Args:
        q_BN: [B, N] values.
        log_prob_BN: [B, N] the policy's log-probabilities, in nats; finite also where an action is not allowed.
        alpha: scalar temperature.
        allowed_BN: as for `largest_value`.

    Source: Christodoulou, arXiv:1910.07207, eq. 10.
    """
    return of_allowed((log_prob_BN.exp() * (q_BN - alpha * log_prob_BN)).sum(dim=-1), allowed_BN)


def smoothed_action(
    action_BA: Tensor, noise_BA: Tensor, scale: float, clip: float, low_A: Tensor, high_A: Tensor
) -> Tensor:
    """Return [B, *action shape] the target policy's actions with clipped noise (target policy smoothing).

    Args:
        action_BA: the target policy's actions.
        noise_BA: standard Gaussian numbers of the same shape.
        scale: standard deviation of the noise, for actions scaled to [-1, 1].
        clip: bound of the noise, in the same unit.
        low_A, high_A: the actions' bounds, of their own shape.

    Source: Fujimoto et al., arXiv:1802.09477, eq. 14 and algorithm 1.
    """
    # Noise is given for actions in [-1, 1], so that one setting serves any actuator.
    half_range_A = (high_A - low_A) / 2.0
    return torch.clamp(action_BA + (scale * noise_BA).clamp(-clip, clip) * half_range_A, low_A, high_A)


# --- losses of critics ------------------------------------------------------------------------------------------------


def critic_loss(q_KB: Tensor, target_B: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """Half the squared error, averaged over the batch and summed over the critics, so that each learns independently.

    Args:
        q_KB: [K, B] values of the critics.
        target_B: [B] targets, without gradient.
        weight_B: [B] importance weights where rows were not sampled uniformly; None: all 1.

    Raises:
        ValueError: `target_B` or `weight_B` is not 1-D.

    Source: Haarnoja et al., arXiv:1812.05905, eq. 5; the weights: Schaul et al., arXiv:1511.05952, section 3.4.
    """
    _one_dimensional(target_B=target_B, weight_B=weight_B)
    error_KB = (q_KB - target_B).square()
    # A sum over critics, not a mean: each critic's step then is what it would be alone, with any number of critics.
    return 0.5 * (error_KB if weight_B is None else error_KB * weight_B).mean(dim=1).sum()


def huber_loss(q_B: Tensor, target_B: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """DQN's loss: squared up to an error of 1, linear beyond, averaged over the batch.

    Args:
        q_B: [B] the network's values of the actions taken.
        target_B: [B] targets, without gradient.
        weight_B: [B] importance weights; None: all 1.

    Raises:
        ValueError: an argument is not 1-D.

    Source: Mnih et al., Nature 518 (2015), algorithm 1, whose clipped error is this loss's gradient.
    """
    _one_dimensional(q_B=q_B, target_B=target_B, weight_B=weight_B)
    error_B = functional.smooth_l1_loss(q_B, target_B, reduction="none")
    return weighted_mean(error_B, weight_B)


def lowest_quantiles(quantiles_KBM: Tensor, dropped: int) -> Tensor:
    """Return [B, K * (M - dropped)] the quantiles of all critics together in ascending order, without the highest ones.

    Args:
        quantiles_KBM: [K, B, M] quantiles of the critics.
        dropped: number of quantiles to leave out for each critic; the highest of all count, whoever estimates them.

    Source: Kuznetsov et al., arXiv:2005.04269, eq. 8 and 9.
    """
    count, rows, quantiles = quantiles_KBM.shape
    # Of all critics together, not of each: a critic that overestimates loses more of its quantiles than the others.
    ordered = quantiles_KBM.permute(1, 0, 2).reshape(rows, -1).sort(dim=-1).values
    return ordered[:, : count * (quantiles - dropped)]


def quantile_loss(quantiles_KBM: Tensor, target_BN: Tensor) -> Tensor:
    """Return [B] the Huber loss of quantile regression, averaged over critics, their quantiles and those of the target.

    Args:
        quantiles_KBM: [K, B, M] quantiles; the m-th estimates the one at (m + 1/2) / M.
        target_BN: [B, N] samples of the target distribution, without gradient.

    Source: Dabney et al., arXiv:1710.10044, eq. 9 and 10, with a threshold of 1.
    """
    quantiles = quantiles_KBM.shape[-1]
    # Midpoints of M equal shares of probability. Within an error of 1 the loss is quadratic, which draws the estimates
    # slightly together.
    levels_M = (torch.arange(quantiles, device=quantiles_KBM.device, dtype=quantiles_KBM.dtype) + 0.5) / quantiles
    error_KBMN = target_BN.unsqueeze(1) - quantiles_KBM.unsqueeze(-1)
    huber_KBMN = functional.smooth_l1_loss(error_KBMN, torch.zeros_like(error_KBMN), reduction="none")
    tilt_KBMN = (levels_M.unsqueeze(-1) - (error_KBMN.detach() < 0).to(levels_M.dtype)).abs()
    return (tilt_KBMN * huber_KBMN).mean(dim=(0, 2, 3))


def td_error(q_KB: Tensor, target_B: Tensor) -> Tensor:
    """Return [B] absolute TD errors, averaged over the critics: the rows' priorities.

    Args:
        q_KB: [K, B] or [B] values of the critics.
        target_B: [B] targets.

    Raises:
        ValueError: `target_B` is not 1-D.

    Source: Schaul et al., arXiv:1511.05952, section 3.3.
    """
    _one_dimensional(target_B=target_B)
    error = (q_KB - target_B).detach().abs()
    return error if error.ndim == 1 else error.mean(dim=0)


# --- losses of policies -----------------------------------------------------------------------------------------------


def policy_loss(q_B: Tensor, log_prob_B: Tensor, alpha: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """SAC policy loss, which favours high values and high entropy.

    Args:
        q_B: [B] value of freshly sampled actions, with gradients through the actions.
        log_prob_B: [B] their log-density, in nats.
        alpha: scalar temperature, without gradient.
        weight_B: [B] weights of the rows, with a mean of 1; None: all 1.

    Raises:
        ValueError: an argument is not 1-D.

    Source: Haarnoja et al., arXiv:1812.05905, eq. 7.
    """
    _one_dimensional(q_B=q_B, log_prob_B=log_prob_B, weight_B=weight_B)
    loss_B = alpha * log_prob_B - q_B
    return weighted_mean(loss_B, weight_B)


def imitation_loss(found: Tensor, action: Tensor, width_A: Tensor, shown_B: Tensor) -> Tensor:
    """Mean squared distance of a policy's actions to those that persons or experts chose, over the rows that have some.

    Args:
        found: [B, *action shape] most likely actions of the policy.
        action: actions of the batch, of the same shape.
        width_A: [A] width of the bounds of each flattened element, which are scaled to [-1, 1].
        shown_B: [B] 1 in rows of persons and experts, else 0. Without such a row, the loss is 0.

    Raises:
        ValueError: `shown_B` is not 1-D.

    Source: Nair et al., arXiv:1709.10089, eq. 5, without the filter of values.
    """
    _one_dimensional(shown_B=shown_B)
    error_BA = (found - action).reshape(len(found), -1) * (2.0 / width_A)
    return (error_BA.square().mean(dim=1) * shown_B).sum() / shown_B.sum().clamp(min=1.0)


def discrete_policy_loss(q_BN: Tensor, log_prob_BN: Tensor, alpha: Tensor) -> Tensor:
    """`policy_loss` for discrete actions, as an exact expectation.

    Args:
        q_BN: [B, N] values, without gradient.
        log_prob_BN: [B, N] the policy's log-probabilities, in nats.
        alpha: scalar temperature, without gradient.

    Source: Christodoulou, arXiv:1910.07207, eq. 12.
    """
    return -soft_value(q_BN, log_prob_BN, alpha).mean()


def deterministic_policy_loss(q_B: Tensor) -> Tensor:
    """Loss of a deterministic policy, which maximizes the value of its actions.

    Args:
        q_B: [B] value of the policy's actions, with gradients through the actions.

    Raises:
        ValueError: `q_B` is not 1-D.

    Source: Silver et al., ICML 2014, eq. 9; TD3 takes the first critic (Fujimoto et al., arXiv:1802.09477, alg. 1).
    """
    _one_dimensional(q_B=q_B)
    return -q_B.mean()


def temperature_loss(
    log_alpha: Tensor, log_prob_B: Tensor, target_entropy: float | Tensor, weight_B: Tensor | None = None
) -> Tensor:
    """Loss that moves the temperature towards a target entropy.

    Args:
        log_alpha: scalar; the temperature is exp(log_alpha).
        log_prob_B: [B] float32, log-density of freshly sampled actions, in nats; for discrete actions minus each
            state's entropy.
        target_entropy: nats, usually minus the action dimension; a number or [B].
        weight_B: [B] weights of the rows, with a mean of 1; None: all 1.

    Raises:
        ValueError: an argument is not 1-D.

    Source: Haarnoja et al., arXiv:1812.05905, eq. 18, with log_alpha in place of alpha, as its authors' code has it.
    """
    _one_dimensional(log_prob_B=log_prob_B, weight_B=weight_B)
    _scalar_or_one_dimensional(target_entropy=target_entropy)
    # In numbers: entropy 0.5 below a target of 1 makes the gradient -0.5 for log_alpha, so the temperature rises.
    loss_B = -(log_alpha * (log_prob_B.detach() + target_entropy))
    return weighted_mean(loss_B, weight_B)
