"""Settings of the built-in algorithms: the only place of every key of `agent.kwargs`.

Each has its type, default, limit and description here. The constructors of the agents, their signatures and docstrings,
the checks of a configuration and the table in `docs/choosing.md` follow from it. Nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from tmrl_core.config.descriptions import described
from tmrl_core.config.sections import doc

_POLYAK = "fraction of the target networks that each Polyak update keeps; 0: copy the networks"
_LEARNING_RATE = "learning rate of the "
_OPTIMIZERS = "adam, adamw or sgd"
_BETAS = "Adam's betas; None: torch's default"
_DECAY = "weight decay; None: the optimizer's default"


@dataclass(frozen=True)
class OffPolicySettings:
    """Settings of every agent that learns from a replay memory."""

    networks: ClassVar[str] = "model_cls"
    """Name of the keyword argument that is code: it makes the networks."""

    gamma: Annotated[float, Meta(ge=0, le=1, description="discount factor per step")] = 0.99
    polyak: Annotated[float, Meta(ge=0, le=1, description=_POLYAK)] = 0.995
    _: KW_ONLY
    hidden_sizes: Annotated[
        Sequence[int] | None, doc("width of each hidden layer; None: `model_cls`'s default, 256, 256")
    ] = None
    activation: Annotated[object, doc("class or name of the activation; None: `model_cls`'s default, relu")] = None
    model_kwargs: Annotated[dict[str, Any] | None, doc("further keyword arguments of `model_cls`")] = None
    compile: Annotated[bool | str, doc("compile each update into one graph; auto: after 20,000 updates")] = "auto"
    precision: Annotated[str, doc("float32, or bfloat16 for the networks' matrix products")] = "float32"


@dataclass(frozen=True)
class _OptimizerSettings:
    optimizer_actor: Annotated[str, doc(_OPTIMIZERS)] = "adam"
    optimizer_critic: Annotated[str, doc(_OPTIMIZERS)] = "adam"
    betas_actor: Annotated[Sequence[float] | None, doc(_BETAS)] = None
    betas_critic: Annotated[Sequence[float] | None, doc(_BETAS)] = None
    l2_actor: Annotated[float | None, doc(_DECAY)] = None
    l2_critic: Annotated[float | None, doc(_DECAY)] = None


@dataclass(frozen=True)
class _EntropySettings(OffPolicySettings):
    alpha: Annotated[
        float, Meta(ge=0, description="entropy coefficient (temperature), or its initial value if it is learned")
    ] = 0.2
    lr_actor: Annotated[float, doc(_LEARNING_RATE + "policy")] = 1e-3
    lr_critic: Annotated[float, doc(_LEARNING_RATE + "critics")] = 1e-3
    lr_entropy: Annotated[float, doc(_LEARNING_RATE + "entropy coefficient")] = 1e-3
    learn_entropy_coef: Annotated[bool, doc("learn the entropy coefficient")] = True


@dataclass(frozen=True)
class _SacTarget(_EntropySettings):
    target_entropy: Annotated[
        float | None,
        doc(
            "target of the learned entropy coefficient, in nats, for actions scaled to [-1, 1]; None: minus the number "
            "of action elements"
        ),
    ] = None


@dataclass(frozen=True)
class SacSettings(_OptimizerSettings, _SacTarget):
    """Settings of soft actor-critic."""


@dataclass(frozen=True)
class _DiscreteSacTarget(_EntropySettings):
    target_entropy_share: Annotated[
        float, doc("target of the learned entropy coefficient, as a fraction of the entropy of a uniform policy")
    ] = 0.5


@dataclass(frozen=True)
class DiscreteSacSettings(_OptimizerSettings, _DiscreteSacTarget):
    """Settings of soft actor-critic for discrete actions."""


@dataclass(frozen=True)
class _RedqEnsemble:
    n: Annotated[int, doc("number of critics")] = 10
    m: Annotated[int, doc("critics in the random subset of each update, whose lowest value makes the target")] = 2
    q_updates_per_policy_update: Annotated[
        int, doc("critic updates per policy update; set `trainer.max_training_steps_per_env_step` to the same")
    ] = 1


@dataclass(frozen=True)
class RedqSettings(SacSettings, _RedqEnsemble):
    """Settings of randomized ensembled double Q-learning."""


@dataclass(frozen=True)
class _DeterministicRates(OffPolicySettings):
    lr_actor: Annotated[float, doc(_LEARNING_RATE + "policy")] = 1e-3
    lr_critic: Annotated[float, doc(_LEARNING_RATE + "critics")] = 1e-3


@dataclass(frozen=True)
class _TargetNoise(_DeterministicRates):
    policy_delay: Annotated[int, doc("critic updates per update of the policy and of the target networks")] = 2
    target_noise: Annotated[
        float,
        Meta(
            ge=0,
            description="standard deviation of the noise on the target policy's actions, for actions scaled to [-1, 1]",
        ),
    ] = 0.2
    target_noise_clip: Annotated[float, Meta(ge=0, description="bound of that noise, in the same unit")] = 0.5


@dataclass(frozen=True)
class _ExplorationNoise:
    exploration_noise: Annotated[
        float,
        Meta(ge=0, description="standard deviation of the workers' exploration noise, for actions scaled to [-1, 1]"),
    ] = 0.1


@dataclass(frozen=True)
class Td3Settings(_OptimizerSettings, _ExplorationNoise, _TargetNoise):
    """Settings of twin delayed DDPG."""


@dataclass(frozen=True)
class DdpgSettings(_OptimizerSettings, _ExplorationNoise, _DeterministicRates):
    """Settings of deep deterministic policy gradient."""


@dataclass(frozen=True)
class DqnSettings(OffPolicySettings):
    """Settings of deep Q-networks."""

    polyak: Annotated[float, Meta(ge=0, le=1, description=_POLYAK)] = 0.0
    target_interval: Annotated[int, doc("updates between two updates of the target network")] = 500
    lr: Annotated[float, doc("learning rate")] = 5e-4
    double: Annotated[bool, doc("double DQN: the target network evaluates the online network's best action")] = True
    dueling: Annotated[bool | None, doc("dueling network; None: `model_cls`'s default")] = None
    epsilon_initial: Annotated[float, doc("fraction of random actions before the first update")] = 1.0
    epsilon_final: Annotated[float, doc("fraction of random actions at the end")] = 0.05
    epsilon_updates: Annotated[int, doc("updates from the initial to the final fraction")] = 10_000
    max_grad_norm: Annotated[
        float | None, Meta(gt=0, description="gradient-norm clipping threshold; None: no clipping")
    ] = 10.0
    optimizer: Annotated[str, doc(_OPTIMIZERS)] = "adam"
    betas: Annotated[Sequence[float] | None, doc(_BETAS)] = None
    l2: Annotated[float | None, doc(_DECAY)] = None


@dataclass(frozen=True)
class PpoSettings:
    """Settings of proximal policy optimization."""

    networks: ClassVar[str] = "actor_cls"

    hidden_sizes: Annotated[Sequence[int], doc("width of each hidden layer of the policy and the value function")] = (
        64,
        64,
    )
    activation: Annotated[str | Callable[[], Any], doc("class or name of the activation")] = "tanh"
    log_std: Annotated[
        float | None, doc("initial log standard deviation of the Gaussian policy; None: the policy's default, 0")
    ] = None
    gamma: Annotated[float, Meta(ge=0, le=1, description="discount factor per step")] = 0.99
    gae_lambda: Annotated[float, Meta(ge=0, le=1, description="lambda of generalized advantage estimation")] = 0.95
    lr: Annotated[float, doc("learning rate")] = 3e-4
    lr_final: Annotated[
        float,
        Meta(
            ge=0,
            description="final learning rate as a fraction of `lr`, reached linearly over `lr_rounds`; 1: constant",
        ),
    ] = 1.0
    lr_rounds: Annotated[
        int | None, Meta(ge=0, description="rounds of the linear learning-rate schedule; None: constant")
    ] = None
    update_epochs: Annotated[int, doc("passes over the samples of a round")] = 10
    minibatch_size: Annotated[int, doc("transitions in a minibatch")] = 64
    clip_ratio: Annotated[float, Meta(gt=0, description="PPO clip range of the ratio of densities around 1")] = 0.2
    value_clip: Annotated[
        float | None, Meta(ge=0, description="clip range of the new value around the old one; None: no clipping")
    ] = None
    value_coef: Annotated[float, Meta(ge=0, description="weight of the value loss")] = 0.5
    entropy_coef: Annotated[float, doc("weight of the entropy bonus")] = 0.0
    max_grad_norm: Annotated[
        float | None, Meta(gt=0, description="gradient-norm clipping threshold; None: no clipping")
    ] = 0.5
    target_kl: Annotated[
        float | None,
        Meta(
            ge=0,
            description="stop training on a round once the KL divergence exceeds 1.5 times this, in nats; None: never",
        ),
    ] = None
    normalize_advantages: Annotated[bool, doc("normalize advantages in each minibatch")] = True
    normalize_observations: Annotated[
        bool,
        doc(
            "normalize observations of the policy and the value function by running moments, which are published "
            "with the weights. A round is trained on with the moments that it was collected with"
        ),
    ] = False
    normalize_rewards: Annotated[
        bool,
        doc(
            "divide rewards by the standard deviation of the discounted sums of all rewards so far, and clip them at "
            "10. A sum continues from round to round until its episode ends"
        ),
    ] = False
    optimizer: Annotated[str, doc(_OPTIMIZERS)] = "adam"
    adam_eps: Annotated[
        float,
        doc(
            "Adam's epsilon. The first gradients of the policy's hidden layers are not much larger, so that noise does "
            "not move these layers at the full rate"
        ),
    ] = 1e-5


def out_of_range(settings: type[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the problem of each keyword argument that has the right type and an impossible value.

    Args:
        settings: one of the classes above.
        kwargs: keyword arguments of an agent.
    """
    known = described(settings)
    for name, value in kwargs.items():
        if name == "hidden_sizes" and isinstance(value, list | tuple):
            if not all(size >= 1 for size in value):
                yield name, f"found {value!r:.100}, allowed: widths of at least 1"
        elif name in known and isinstance(value, int | float) and not isinstance(value, bool):
            limit = known[name][1]
            if limit.gt is not None and not value > limit.gt:
                yield name, f"found {value!r}, allowed: more than {limit.gt}"
            elif limit.ge is not None and not limit.ge <= value <= (math.inf if limit.le is None else limit.le):
                yield (
                    name,
                    f"found {value!r}, allowed: {limit.ge} {'or more' if limit.le is None else f'to {limit.le}'}",
                )
