"""Settings of proximal policy optimization, and its row of the table of algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar

from tmrl_core.config.algorithms import BOX, CHOICES, ON_POLICY
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.settings import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    SHARE,
    SIZES,
    Arguments,
    ClippedNorm,
    Layers,
    Optimizer,
    Settings,
)


class PpoSettings(
    Settings,
    agent="tmrl_core.training.agents.ppo:PPOAgent",
    action_spaces=BOX | CHOICES,
    collection=ON_POLICY,
    actors=frozenset({"CategoricalMLPActor", "GaussianMLPActor"}),
):
    """Settings of proximal policy optimization."""

    networks: ClassVar[str] = "actor_cls"
    of_model: ClassVar[tuple[str, ...]] = (*Settings.of_model, "log_std")
    # The first standard deviation stays in force when a run resumes.
    transient: ClassVar[frozenset[str]] = frozenset({"log_std"})

    hidden_sizes: Annotated[Sequence[int], SIZES, "width of each hidden layer"] = (64, 64)
    activation: Annotated[str | Callable[[], Any], "class or name of the activation"] = "tanh"
    log_std: Annotated[float | None, "initial log standard deviation; None: the policy's default, 0"] = None
    gamma: Annotated[float, SHARE, "discount factor per step"] = 0.99
    gae_lambda: Annotated[float, SHARE, "lambda of generalized advantage estimation"] = 0.95
    lr: Annotated[float, "learning rate"] = 3e-4
    lr_final: Annotated[float, AT_LEAST_0, "final fraction of `lr`, reached linearly over `lr_rounds`"] = 1.0
    lr_rounds: Annotated[int | None, AT_LEAST_0, "rounds until then; None: `lr` is constant"] = None
    update_epochs: Annotated[int, AT_LEAST_1, "passes over the samples of a round"] = 10
    minibatch_size: Annotated[int, AT_LEAST_1, "transitions in a minibatch"] = 64
    clip_ratio: Annotated[float, ABOVE_0, "PPO clip range of the ratio of densities around 1"] = 0.2
    value_clip: Annotated[float | None, AT_LEAST_0, "clip range of values; None: no clipping"] = None
    value_coef: Annotated[float, AT_LEAST_0, "weight of the value loss"] = 0.5
    entropy_coef: Annotated[float, "weight of the entropy bonus"] = 0.0
    max_grad_norm: ClippedNorm = 0.5
    target_kl: Annotated[float | None, AT_LEAST_0, "stop a round at 1.5 times this KL divergence; None: never"] = None
    normalize_advantages: Annotated[bool, "normalize advantages in each minibatch"] = True
    normalize_observations: Annotated[bool, "normalize observations by running moments, published with weights"] = False
    normalize_rewards: Annotated[bool, "divide rewards by the standard deviation of their discounted sums"] = False
    optimizer: Optimizer = "adam"
    adam_eps: Annotated[float, "Adam's epsilon, near the first gradients of hidden layers"] = 1e-5
    _: KW_ONLY
    convolutions: Layers = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize_advantages and self.minibatch_size < 2:
            raise ConfigError(
                "agent.kwargs.minibatch_size: found 1, allowed: at least 2, since one advantage cannot be normalized. "
                "Raise it, or set normalize_advantages: false."
            )
        if self.lr_final != 1.0 and not self.lr_rounds:
            raise ConfigError(
                f"agent.kwargs.lr_rounds: found {self.lr_rounds}, allowed: at least 1, since lr_final is "
                f"{self.lr_final:g}. Set the number of rounds of the learning-rate schedule."
            )

    def model_arguments(self) -> Arguments:
        """Return the keyword arguments of the policy. One of the user's own need not know how to normalize."""
        normalizes = {"normalize_observations": True} if self.normalize_observations else {}
        return super().model_arguments() | normalizes
