"""What a task's configuration is in stable-baselines3's words, so that both sides learn with the same settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tmrl_core.config import Config

_PPO_NAMES = {
    "gamma": "gamma",
    "gae_lambda": "gae_lambda",
    "clip_ratio": "clip_range",
    "value_clip": "clip_range_vf",
    "update_epochs": "n_epochs",
    "minibatch_size": "batch_size",
    "entropy_coef": "ent_coef",
    "value_coef": "vf_coef",
    "max_grad_norm": "max_grad_norm",
    "target_kl": "target_kl",
    "normalize_advantages": "normalize_advantage",
}
_SAC_NAMES = {"gamma": "gamma", "lr_actor": "learning_rate", "dropped_quantiles": "top_quantiles_to_drop_per_net"}
_OFF_POLICY = {
    "tmrl_core.training:SacAgent": "SAC",
    "tmrl_core.training:CrossQAgent": "CrossQ",
    "tmrl_core.training:TQCAgent": "TQC",
}


@dataclass(frozen=True)
class PeerSettings:
    """How stable-baselines3 is to learn a task.

    Args:
        algorithm: PPO or SAC of stable-baselines3; CrossQ or TQC of sb3-contrib.
        envs: environments that it steps in turn, as many as there are workers.
        steps: environment steps in all.
        evaluate_at: steps after which it is evaluated, and what it has learned of them by then.
        kwargs: of the algorithm; torch's classes by their names.
        normalize: keyword arguments of VecNormalize; None: nothing is normalized.
    """

    algorithm: str
    envs: int
    steps: int
    evaluate_at: tuple[int, ...]
    kwargs: dict[str, Any]
    normalize: dict[str, Any] | None = None


def peer_settings(config: Config) -> PeerSettings:
    """The same task for stable-baselines3.

    Raises:
        ValueError: there is something in the configuration that this does not translate.
    """
    if config.agent.cls == "tmrl_core.training:PPOAgent":
        return _ppo(config)
    if config.agent.cls in _OFF_POLICY:
        return _off_policy(config, _OFF_POLICY[config.agent.cls])
    translated = ", ".join(cls.partition(":")[2] for cls in ("tmrl_core.training:PPOAgent", *_OFF_POLICY))
    raise ValueError(f"agent.cls: only {translated} are translated, not {config.agent.cls}")


def rate(lr: float, lr_final: float, lr_rounds: int, rounds: int) -> Callable[[float], float]:
    """Our learning rate of a round as a schedule over what remains of the run (1 before it, 0 after its last round).

    stable-baselines3 asks for it after it has counted the round's steps; ours begins with the whole rate.
    """

    def schedule(remaining: float) -> float:
        done = (1.0 - remaining) * rounds - 1.0
        return lr * (1.0 + min(1.0, max(0.0, done / lr_rounds)) * (lr_final - 1.0))

    return schedule


def _ppo(config: Config) -> PeerSettings:
    trainer, ours = config.trainer, dict(config.agent.kwargs)
    rounds = trainer.epochs * trainer.rounds
    per_round = trainer.lockstep.steps_per_round
    envs = trainer.lockstep.min_workers
    if per_round is None or per_round % envs:
        raise ValueError(f"trainer.lockstep.steps_per_round: {per_round} is not the same for each of {envs} workers")
    kwargs: dict[str, Any] = {"n_steps": per_round // envs, "policy_kwargs": _network(config.actor.kwargs)}
    lr, lr_final, lr_rounds = ours.pop("lr", 3e-4), ours.pop("lr_final", 1.0), ours.pop("lr_rounds", None)
    normalize = {
        "norm_obs": bool(config.actor.kwargs.get("normalize_observations", False)),
        "norm_reward": bool(ours.pop("normalize_rewards", False)),
        "gamma": ours.get("gamma", 0.99),
    }
    kwargs["learning_rate"] = rate(lr, lr_final, lr_rounds, rounds) if lr_rounds else lr
    kwargs |= _translated(ours, _PPO_NAMES)
    minibatches = -(-per_round // kwargs["batch_size"])
    every = trainer.evaluation.every_updates // (kwargs["n_epochs"] * minibatches)
    return PeerSettings(
        "PPO",
        envs,
        rounds * per_round,
        tuple(per_round * number for number in range(every, rounds + 1, every)),
        kwargs,
        normalize if normalize["norm_obs"] or normalize["norm_reward"] else None,
    )


def _off_policy(config: Config, algorithm: str) -> PeerSettings:
    trainer, ours = config.trainer, dict(config.agent.kwargs)
    if len({ours.pop("lr_critic", 1e-3), ours.pop("lr_entropy", 1e-3), ours.get("lr_actor", 1e-3)}) != 1:
        raise ValueError("agent.kwargs: stable-baselines3 knows one learning rate for all")
    updates = trainer.epochs * trainer.rounds * trainer.steps
    first = int(trainer.start_training)
    every = trainer.evaluation.every_updates
    hidden = list(config.actor.kwargs["hidden_sizes"])
    ours.pop("compile", None)  # changes the speed alone
    kwargs: dict[str, Any] = {
        "ent_coef": f"auto_{ours.pop('alpha', 1.0 if algorithm == 'CrossQ' else 0.2)}",
        "learning_starts": first,
        "buffer_size": int(config.memory.capacity),
        "batch_size": config.memory.batch_size,
        "train_freq": 1,
        "gradient_steps": 1,
    }
    if algorithm == "CrossQ":
        kwargs["policy_kwargs"] = {"net_arch": {"pi": hidden, "qf": list(ours.pop("critic_sizes", (1024, 1024)))}}
    else:
        kwargs["tau"] = round(1.0 - ours.pop("polyak", 0.995), 12)
        kwargs["policy_kwargs"] = {"net_arch": hidden}
    if algorithm == "TQC":
        kwargs["policy_kwargs"] |= {"n_critics": ours.pop("n", 2), "n_quantiles": ours.pop("quantiles", 25)}
    kwargs |= _translated(ours, _SAC_NAMES)
    return PeerSettings(
        algorithm, 1, first + updates, tuple(first + number for number in range(every, updates + 1, every)), kwargs
    )


def _network(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    hidden = list(kwargs["hidden_sizes"])
    return {"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": kwargs["activation"]}


def _translated(ours: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    unknown = sorted(set(ours) - set(names))
    if unknown:
        raise ValueError(f"agent.kwargs: {', '.join(unknown)} cannot be said in stable-baselines3's words")
    return {names[name]: value for name, value in ours.items()}
