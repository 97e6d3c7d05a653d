"""Construction and steps of optimizers, and frozen parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tmrl_core.errors import ConfigError
from tmrl_core.training.rank_group import RANK_GROUP


def make_optimizer(
    name: str,
    parameters: Iterable[Tensor],
    lr: float,
    betas: Sequence[float] | None = None,
    l2: float | None = None,
    eps: float | None = None,
) -> torch.optim.Optimizer:
    """Make an optimizer by name, fused where torch supports that on the parameters' device.

    Args:
        name: adam, adamw or sgd.
        parameters: to optimize.
        lr: learning rate.
        betas: Adam's; None: torch's default.
        l2: weight decay; None: the optimizer's default.
        eps: Adam's epsilon; None: torch's default.

    Raises:
        ConfigError: the name is unknown.
    """
    kind, parameters = name.lower(), list(parameters)
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=lr, weight_decay=l2 or 0.0)
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if kind not in makers:
        raise ConfigError(f"unknown optimizer {name!r}; allowed: adam, adamw, sgd")
    options: dict[str, Any] = {"lr": lr}
    if betas is not None:
        options["betas"] = tuple(betas)
    if l2 is not None:
        options["weight_decay"] = l2
    if eps is not None:
        options["eps"] = eps
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
    return makers[kind](parameters, fused=fused, **options)


def actor_critic_optimizers(
    settings: Any, actor: nn.Module, critics: nn.Module
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Make the optimizers of a policy and of its critics, by an agent's settings."""
    s = settings
    return (
        make_optimizer(s.optimizer_actor, actor.parameters(), s.lr_actor, s.betas_actor, s.l2_actor),
        make_optimizer(s.optimizer_critic, critics.parameters(), s.lr_critic, s.betas_critic, s.l2_critic),
    )


def minimise(optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float | None = None) -> dict[str, Tensor]:
    """Make one optimizer step on a loss.

    Args:
        optimizer: of parameters that the loss depends on.
        loss: scalar with gradients.
        max_norm: clipping threshold of the Euclidean norm of all gradients together; None: no clipping.

    Returns:
        With `max_norm`, the norm before clipping as the metric `grad_norm`.
    """
    metrics: dict[str, Tensor] = {}
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if (ranks := RANK_GROUP.get()) is not None:
        ranks.average(gradients_of(optimizer))
    if max_norm is not None:
        metrics["grad_norm"] = nn.utils.clip_grad_norm_(
            [p for group in optimizer.param_groups for p in group["params"]], max_norm
        )
    optimizer.step()
    return metrics


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the gradients of an optimizer's parameters, without those that have none."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


@torch.no_grad()
def optimizer_metrics(agent: object) -> dict[str, float]:
    """Return learning rates, and norms of the gradients that the latest update has left.

    An agent's optimizers are its attributes. `learning_rate` is the first one's, `learning_rate_x` that of an attribute
    `optimizer_x` that has another. Compiled updates leave no gradients.
    """
    metrics: dict[str, float] = {}
    for name, optimizer in vars(agent).items():
        if not isinstance(optimizer, torch.optim.Optimizer):
            continue
        suffix = name.removeprefix("optimizer")
        rate = float(optimizer.param_groups[0]["lr"])
        if metrics.setdefault("learning_rate", rate) != rate:
            metrics[f"learning_rate{suffix}"] = rate
        norms = [
            torch.linalg.vector_norm(p.grad) for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        ]
        if norms:
            metrics[f"grad_norm{suffix}"] = float(torch.linalg.vector_norm(torch.stack(norms)))
    return metrics


@contextmanager
def frozen(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Freeze parameters in a `with` block: gradients flow through their operations, but not into them."""
    parameters = list(parameters)  # `Module.parameters()` is an iterator, which can be read only once
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
