"""Settings of the built-in algorithms: the only place of every key of `agent.kwargs`.

Each has its type, default, limit and description here. The constructors of the agents, their signatures and docstrings,
the checks of a configuration and the table in `docs/choosing.md` follow from it. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

_SHARE, _AT_LEAST_0, _ABOVE_0 = "0 to 1", "0 or more", "more than 0"
"""Limits of values that the constructors do not check."""
_HOLDS: dict[str, Callable[[float], bool]] = {
    _SHARE: lambda value: 0 <= value <= 1,
    _AT_LEAST_0: lambda value: value >= 0,
    _ABOVE_0: lambda value: value > 0,
}
_POLYAK = "fraction of the target networks that each Polyak update keeps; 0: copy the networks"
_LEARNING_RATE = "learning rate of the "
_OPTIMIZERS = "adam, adamw or sgd"
_CONVOLUTIONS = "for images: tiny, small, large, none, or [filters, kernel, stride] of each layer; None: by size"
_BETAS = "Adam's betas; None: torch's default"
_DECAY = "weight decay; None: the optimizer's default"


@dataclass(frozen=True, repr=False, eq=False)
class OffPolicySettings:
    """Settings of every agent that learns from a replay memory."""

    networks: ClassVar[str] = "model_cls"
    """Name of the keyword argument with code, which makes the networks."""

    gamma: Annotated[float, _SHARE, "discount factor per step"] = 0.99
    polyak: Annotated[float, _SHARE, _POLYAK] = 0.995
    _: KW_ONLY
    hidden_sizes: Annotated[Sequence[int] | None, "width of each hidden layer; None: that of `model_cls`"] = None
    activation: Annotated[object, "class or name of the activation; None: `model_cls`'s default, relu"] = None
    convolutions: Annotated[str | Sequence[Sequence[int]] | None, _CONVOLUTIONS] = None
    model_kwargs: Annotated[dict[str, Any] | None, "further keyword arguments of `model_cls`"] = None
    compile: Annotated[bool | str, "compile each update into one graph; auto: after 20,000 updates"] = "auto"
    precision: Annotated[str, "float32, or bfloat16 for the networks' matrix products"] = "float32"


@dataclass(frozen=True, repr=False, eq=False)
class _OptimizerSettings:
    optimizer_actor: Annotated[str, _OPTIMIZERS] = "adam"
    optimizer_critic: Annotated[str, _OPTIMIZERS] = "adam"
    betas_actor: Annotated[Sequence[float] | None, _BETAS] = None
    betas_critic: Annotated[Sequence[float] | None, _BETAS] = None
    l2_actor: Annotated[float | None, _DECAY] = None
    l2_critic: Annotated[float | None, _DECAY] = None


@dataclass(frozen=True, repr=False, eq=False)
class _EntropySettings(OffPolicySettings):
    alpha: Annotated[float, _AT_LEAST_0, "(initial) entropy coefficient, the temperature"] = 0.2
    lr_actor: Annotated[float, _LEARNING_RATE + "policy"] = 1e-3
    lr_critic: Annotated[float, _LEARNING_RATE + "critics"] = 1e-3
    lr_entropy: Annotated[float, _LEARNING_RATE + "entropy coefficient"] = 1e-3
    learn_entropy_coef: Annotated[bool, "learn the entropy coefficient"] = True


@dataclass(frozen=True, repr=False, eq=False)
class _SacTarget(_EntropySettings):
    target_entropy: Annotated[float | None, "target entropy, in nats; None: minus the number of action elements"] = None


@dataclass(frozen=True, repr=False, eq=False)
class SacSettings(_OptimizerSettings, _SacTarget):
    """Settings of soft actor-critic."""

    _: KW_ONLY
    reward_scale: Annotated[
        float, _ABOVE_0, "factor of rewards in targets; large returns are learned faster below 1"
    ] = 1.0


@dataclass(frozen=True, repr=False, eq=False)
class _DiscreteSacTarget(_EntropySettings):
    target_entropy_share: Annotated[float, "target entropy, as a fraction of a uniform policy's"] = 0.5


@dataclass(frozen=True, repr=False, eq=False)
class DiscreteSacSettings(_OptimizerSettings, _DiscreteSacTarget):
    """Settings of soft actor-critic for discrete actions."""


@dataclass(frozen=True, repr=False, eq=False)
class _RedqEnsemble:
    n: Annotated[int, "number of critics"] = 10
    m: Annotated[int, "critics in the random subset whose lowest value is the target"] = 2
    q_updates_per_policy_update: Annotated[
        int, "critic updates per policy update, as `trainer.max_training_steps_per_env_step`"
    ] = 1


@dataclass(frozen=True, repr=False, eq=False)
class RedqSettings(SacSettings, _RedqEnsemble):
    """Settings of randomized ensembled double Q-learning."""


@dataclass(frozen=True, repr=False, eq=False)
class _DeterministicRates(OffPolicySettings):
    lr_actor: Annotated[float, _LEARNING_RATE + "policy"] = 1e-3
    lr_critic: Annotated[float, _LEARNING_RATE + "critics"] = 1e-3


@dataclass(frozen=True, repr=False, eq=False)
class _TargetNoise(_DeterministicRates):
    policy_delay: Annotated[int, "critic updates per update of the policy and the targets"] = 2
    target_noise: Annotated[float, _AT_LEAST_0, "standard deviation of noise on target actions in [-1, 1]"] = 0.2
    target_noise_clip: Annotated[float, _AT_LEAST_0, "bound of that noise, in the same unit"] = 0.5


@dataclass(frozen=True, repr=False, eq=False)
class _ExplorationNoise:
    exploration_noise: Annotated[
        float, _AT_LEAST_0, "standard deviation of exploration noise on actions in [-1, 1]"
    ] = 0.1


@dataclass(frozen=True, repr=False, eq=False)
class Td3Settings(_OptimizerSettings, _ExplorationNoise, _TargetNoise):
    """Settings of twin delayed DDPG."""


@dataclass(frozen=True, repr=False, eq=False)
class DdpgSettings(_OptimizerSettings, _ExplorationNoise, _DeterministicRates):
    """Settings of deep deterministic policy gradient."""


@dataclass(frozen=True, repr=False, eq=False)
class DqnSettings(OffPolicySettings):
    """Settings of deep Q-networks."""

    polyak: Annotated[float, _SHARE, _POLYAK] = 0.0
    target_interval: Annotated[int, "updates between two updates of the target network"] = 500
    lr: Annotated[float, "learning rate"] = 5e-4
    double: Annotated[bool, "double DQN: the target network evaluates the online network's choice"] = True
    dueling: Annotated[bool | None, "dueling network; None: `model_cls`'s default"] = None
    epsilon_initial: Annotated[float, "fraction of random actions before the first update"] = 1.0
    epsilon_final: Annotated[float, "fraction of random actions at the end"] = 0.05
    epsilon_updates: Annotated[int, "updates from the initial to the final fraction"] = 10_000
    max_grad_norm: Annotated[float | None, _ABOVE_0, "gradient-norm clipping threshold; None: no clipping"] = 10.0
    optimizer: Annotated[str, _OPTIMIZERS] = "adam"
    betas: Annotated[Sequence[float] | None, _BETAS] = None
    l2: Annotated[float | None, _DECAY] = None


@dataclass(frozen=True, repr=False, eq=False)
class _RecurrentSettings(OffPolicySettings):
    burn_in: Annotated[
        int, _AT_LEAST_0, "first ticks of a sequence that only renew the state; not at the beginning of an episode"
    ] = 10
    cell: Annotated[str | None, "gru or lstm; None: that of `model_cls`, gru"] = None
    cell_size: Annotated[int | None, "units of each recurrent layer; None: that of `model_cls`, 128"] = None
    state_interval: Annotated[int | None, "ticks between two stored states; None: that of `model_cls`, 20"] = None

    def model_arguments(self) -> dict[str, Any]:
        """Return `model_kwargs` with those of the recurrent layers."""
        own = {"cell": self.cell, "cell_size": self.cell_size, "state_interval": self.state_interval}
        return {**(self.model_kwargs or {}), **{name: value for name, value in own.items() if value is not None}}


@dataclass(frozen=True, repr=False, eq=False)
class RecurrentSacSettings(SacSettings, _RecurrentSettings):
    """Settings of soft actor-critic on sequences."""


@dataclass(frozen=True, repr=False, eq=False)
class _RecurrentTarget(_RecurrentSettings):
    n_step: Annotated[int, "ticks of a target, within a sequence"] = 1
    rescale_values: Annotated[bool, "learn values as sign(x) (sqrt(abs(x) + 1) - 1) + 0.001 x"] = False


@dataclass(frozen=True, repr=False, eq=False)
class RecurrentDqnSettings(DqnSettings, _RecurrentTarget):
    """Settings of R2D2: deep Q-networks on sequences."""


@dataclass(frozen=True, repr=False, eq=False)
class BehaviorCloningSettings:
    """Settings of behaviour cloning."""

    networks: ClassVar[str] = "model_cls"

    lr: Annotated[float, _LEARNING_RATE + "policy"] = 1e-3
    _: KW_ONLY
    hidden_sizes: Annotated[Sequence[int] | None, "width of each hidden layer; None: that of `model_cls`"] = None
    activation: Annotated[object, "class or name of the activation; None: `model_cls`'s default"] = None
    convolutions: Annotated[str | Sequence[Sequence[int]] | None, _CONVOLUTIONS] = None
    model_kwargs: Annotated[dict[str, Any] | None, "further keyword arguments of `model_cls`"] = None
    max_grad_norm: Annotated[float | None, _ABOVE_0, "gradient-norm clipping threshold; None: no clipping"] = None
    optimizer: Annotated[str, _OPTIMIZERS] = "adam"
    l2: Annotated[float | None, _DECAY] = None
    compile: Annotated[bool | str, "compile each update into one graph; auto: after 20,000 updates"] = "auto"
    precision: Annotated[str, "float32, or bfloat16 for the networks' matrix products"] = "float32"


@dataclass(frozen=True, repr=False, eq=False)
class PpoSettings:
    """Settings of proximal policy optimization."""

    networks: ClassVar[str] = "actor_cls"

    hidden_sizes: Annotated[Sequence[int], "width of each hidden layer"] = (
        64,
        64,
    )
    activation: Annotated[str | Callable[[], Any], "class or name of the activation"] = "tanh"
    log_std: Annotated[float | None, "initial log standard deviation; None: the policy's default, 0"] = None
    gamma: Annotated[float, _SHARE, "discount factor per step"] = 0.99
    gae_lambda: Annotated[float, _SHARE, "lambda of generalized advantage estimation"] = 0.95
    lr: Annotated[float, "learning rate"] = 3e-4
    lr_final: Annotated[float, _AT_LEAST_0, "final fraction of `lr`, reached linearly over `lr_rounds`"] = 1.0
    lr_rounds: Annotated[int | None, _AT_LEAST_0, "rounds until then; None: `lr` is constant"] = None
    update_epochs: Annotated[int, "passes over the samples of a round"] = 10
    minibatch_size: Annotated[int, "transitions in a minibatch"] = 64
    clip_ratio: Annotated[float, _ABOVE_0, "PPO clip range of the ratio of densities around 1"] = 0.2
    value_clip: Annotated[float | None, _AT_LEAST_0, "clip range of values; None: no clipping"] = None
    value_coef: Annotated[float, _AT_LEAST_0, "weight of the value loss"] = 0.5
    entropy_coef: Annotated[float, "weight of the entropy bonus"] = 0.0
    max_grad_norm: Annotated[float | None, _ABOVE_0, "gradient-norm clipping threshold; None: no clipping"] = 0.5
    target_kl: Annotated[float | None, _AT_LEAST_0, "stop a round at 1.5 times this KL divergence; None: never"] = None
    normalize_advantages: Annotated[bool, "normalize advantages in each minibatch"] = True
    normalize_observations: Annotated[bool, "normalize observations by running moments, published with weights"] = False
    normalize_rewards: Annotated[bool, "divide rewards by the standard deviation of their discounted sums"] = False
    optimizer: Annotated[str, _OPTIMIZERS] = "adam"
    adam_eps: Annotated[float, "Adam's epsilon, near the first gradients of hidden layers"] = 1e-5
    _: KW_ONLY
    convolutions: Annotated[str | Sequence[Sequence[int]] | None, _CONVOLUTIONS] = None


@dataclass(frozen=True, repr=False, eq=False)
class RecurrentPpoSettings(PpoSettings):
    """Settings of proximal policy optimization with a recurrent policy."""

    hidden_sizes: Annotated[Sequence[int], "width of each hidden layer, before the recurrent one and of the values"] = (
        64,
    )
    minibatch_size: Annotated[int, "transitions in a minibatch of whole sequences, about"] = 256
    cell: Annotated[str, "recurrent layer: gru or lstm"] = "gru"
    cell_size: Annotated[int, "units of the recurrent layer"] = 128
    state_interval: Annotated[int, "ticks between two stored states: the longest sequence that gradients cross"] = 20


SETTINGS: dict[str, type[OffPolicySettings | BehaviorCloningSettings | PpoSettings]] = {
    "SacAgent": SacSettings,
    "SpinupSacAgent": SacSettings,
    "REDQSACAgent": RedqSettings,
    "TD3Agent": Td3Settings,
    "DDPGAgent": DdpgSettings,
    "DQNAgent": DqnSettings,
    "DiscreteSacAgent": DiscreteSacSettings,
    "RecurrentDQNAgent": RecurrentDqnSettings,
    "RecurrentSacAgent": RecurrentSacSettings,
    "BehaviorCloningAgent": BehaviorCloningSettings,
    "PPOAgent": PpoSettings,
    "RecurrentPPOAgent": RecurrentPpoSettings,
}
"""Settings of each built-in algorithm, by the name of its class."""


def out_of_range(settings: type[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the problem of each keyword argument with the right type and an impossible value.

    Args:
        settings: one of the classes above.
        kwargs: keyword arguments of an agent.
    """
    hints = get_type_hints(settings, include_extras=True)
    for name, value in kwargs.items():
        limit = get_args(hints[name])[1] if name in hints else ""
        if name == "hidden_sizes" and isinstance(value, list | tuple):
            if not all(size >= 1 for size in value):
                yield name, f"found {value!r:.100}, allowed: widths of at least 1"
        elif isinstance(value, bool) or not isinstance(value, int | float):
            continue
        elif limit in _HOLDS and not _HOLDS[limit](value):
            yield name, f"found {value!r}, allowed: {limit}"
