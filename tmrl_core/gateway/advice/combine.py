"""Products of policies, as pure functions. A uniform policy changes no product, to the last bit.

Shape suffixes: N discrete actions, A action elements.

Source: Hinton, Neural Computation 14 (2002), section 2, of products of experts.
"""

# Theory of operation
#
# An action is drawn from the product of the session's behaviour policy, exploration included, and its advisors'
# policies without exploration. All learners are off-policy, so they learn from it unchanged. Discrete products are
# renormalized; if no action is possible for all, the session's own policy counts. Gaussian products are made before the
# squashing (TD3, DDPG: before the clipping, with their exploration noise as the standard deviation). Actions are drawn
# in the same way with and without advisors, so a uniform advisor changes no bit of a run. Rejected: averaging the
# weights of sessions, since networks that were trained apart have no common coordinates.

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

Choice: TypeAlias = np.ndarray
"""[N] float64 probabilities of discrete actions."""


class Gaussian(NamedTuple):
    """Independent Gaussians of the action elements, before actions are squashed or clipped.

    Attributes:
        mean_A: [A] float64.
        std_A: [A] float64; infinite: uniform.
    """

    mean_A: np.ndarray
    std_A: np.ndarray


def softmax(q_N: np.ndarray, temperature: float) -> Choice:
    """Return the probabilities of actions with these values.

    Args:
        q_N: [N] values; minus infinity: the action is not allowed.
        temperature: above 0; a large one makes the choice uniform.
    """
    scaled_N = q_N.astype(np.float64) / temperature
    weight_N = np.exp(scaled_N - scaled_N.max())
    choice: Choice = weight_N / weight_N.sum()
    return choice


def epsilon_greedy(q_N: np.ndarray, epsilon: float) -> Choice:
    """Return the probabilities of the epsilon-greedy choice, whose random actions may be the best one too.

    Args:
        q_N: as for `softmax`.
        epsilon: share of random actions.
    """
    is_allowed_N = ~np.isneginf(q_N)
    choice_N: Choice = is_allowed_N * (epsilon / is_allowed_N.sum())
    choice_N[q_N.argmax()] += 1.0 - epsilon
    return choice_N


def choice_product(own_N: Choice, advice: Sequence[Choice]) -> Choice:
    """Return the product of discrete policies, renormalized.

    Where no action is possible for all of them, the own policy counts.

    Args:
        own_N: [N] probabilities.
        advice: probabilities of the advisors' policies.
    """
    # Relative to the largest, so that long products do not vanish and a uniform policy multiplies by exactly 1.
    weight_N = np.ones_like(own_N)
    for advice_N in advice:
        weight_N *= advice_N / advice_N.max()
        weight_N /= weight_N.max() or 1.0
    product_N = own_N * weight_N
    total = product_N.sum()
    if total == 0.0:
        product_N, total = own_N, own_N.sum()
    choice: Choice = product_N / total
    return choice


def gaussian_product(policies: Sequence[Gaussian]) -> Gaussian | None:
    """Return the product of Gaussian policies: precisions add up and weight the means.

    Returns:
        None: every policy is uniform in an element of the action.
    """
    if not policies:
        return None
    precision_A: np.ndarray = sum((1.0 / np.square(std_A) for _, std_A in policies), np.zeros(1))
    if not (precision_A > 0.0).all():
        return None
    weighted_A: np.ndarray = sum((mean_A / np.square(std_A) for mean_A, std_A in policies), np.zeros(1))
    return Gaussian(weighted_A / precision_A, 1.0 / np.sqrt(precision_A))


def sample_choice(choice_N: Choice, rng: np.random.Generator) -> int:
    """Return a random action's index, drawn with one number of the generator."""
    cumulative_N = np.cumsum(choice_N)
    last = int(np.searchsorted(cumulative_N, cumulative_N[-1]))  # the last action with a probability
    return min(int(np.searchsorted(cumulative_N, rng.random() * cumulative_N[-1], side="right")), last)


def sample_gaussian(policy: Gaussian, rng: np.random.Generator) -> np.ndarray:
    """Return [A] a random action before it is squashed or clipped."""
    drawn_A: np.ndarray = policy.mean_A + policy.std_A * rng.standard_normal(policy.mean_A.shape)
    return drawn_A
