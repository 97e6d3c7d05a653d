"""Generalized advantage estimation."""

# Theory of operation
#
# Advantages end at a termination: what follows has no value. At any other end of a run of transitions (truncation, end
# of an assignment, an episode interrupted by an evaluation), the value of the last observation replaces the rest,
# because the episode would have gone on. Both are columns of their own; a single `done` would teach that time limits
# are death.
#
# Runs are those of the batch, not whole episodes: a round may cut an episode, and the next round's rows were chosen by
# another policy.

from __future__ import annotations

import numpy as np

from tmrl_core.training.memories.layout import Array


def generalized_advantages(
    reward_T: Array,
    value_T: Array,
    next_value_T: Array,
    terminated_T: Array,
    ends_T: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """Compute advantages, and returns for the value function, of transitions in order of collection.

    A termination ends the sum with a next value of 0. Any other end of a run of transitions (a truncation, the end of
    the round, an abandoned episode) ends the sum and bootstraps from the value of the last observation.

    Args:
        reward_T: [T] rewards.
        value_T: [T] value of the observation acted on.
        next_value_T: [T] value of the next observation.
        terminated_T: [T] non-zero where the episode has terminated.
        ends_T: [T] non-zero where the next transition does not continue this one; must be non-zero at terminations.
        gamma: discount per step.
        gae_lambda: 0: one-step advantages; 1: Monte Carlo ones.

    Returns:
        [T] float32 advantages, and [T] float32 returns: advantages plus values.

    Raises:
        ValueError: the arguments do not all have one shape [T].

    Source: Schulman et al., arXiv:1506.02438, eq. 16.
    """
    arrays = (reward_T, value_T, next_value_T, terminated_T, ends_T)
    if len({array.shape for array in arrays}) != 1 or reward_T.ndim != 1:
        raise ValueError(f"five arrays of one length are needed, found {[array.shape for array in arrays]}")
    reward, value, next_value = (array.astype(np.float64) for array in arrays[:3])
    goes_on = 1.0 - (terminated_T != 0)
    delta = (reward + gamma * goes_on * next_value - value).tolist()
    factor = (gamma * gae_lambda * (1.0 - (ends_T != 0))).tolist()
    advantages = [0.0] * len(delta)
    advantage = 0.0
    for index in range(len(delta) - 1, -1, -1):
        advantage = delta[index] + factor[index] * advantage
        advantages[index] = advantage
    result = np.array(advantages)
    return result.astype(np.float32), (result + value).astype(np.float32)


def discounted_sums(reward_T: Array, ends_T: Array, *, gamma: float, before_T: Array | None = None) -> Array:
    """Return [T] float64 of each transition: the sum of its reward and the discounted earlier rewards of its run.

    Args:
        reward_T: [T] rewards, in order of collection.
        ends_T: [T] non-zero where the next transition does not continue this one.
        gamma: discount per step.
        before_T: [T] at the beginning of a run, the sum that the run continues; None: all 0.

    Source: reward scaling of Engstrom et al., arXiv:2005.12729, appendix A.2.
    """
    sums = []
    total = 0.0
    before = [0.0] * len(reward_T) if before_T is None else before_T.tolist()
    for reward, end, earlier in zip(reward_T.tolist(), ends_T.tolist(), before, strict=True):
        total = reward + gamma * (total + earlier)
        sums.append(total)
        if end:
            total = 0.0
    return np.array(sums, np.float64)
