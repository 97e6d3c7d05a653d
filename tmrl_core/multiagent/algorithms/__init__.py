"""Algorithms with torch models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tmrl_core.multiagent.algorithm import AgentAlgorithm


class Algorithm(AgentAlgorithm):
    """An algorithm of named models, their optimizers and loss functions. (A placeholder.)

    Args:
        model_dict: torch models by name.
        optimizer_opt: a pair (class, parameters) for one optimizer of all models, or a dict of pairs by model.
        loss_func_dict: loss function types by model.
        hyper_params: the algorithm's own.
    """

    def __init__(
        self,
        model_dict: Mapping[str, Any],
        optimizer_opt: Any,
        loss_func_dict: Mapping[str, Any],
        hyper_params: Any,
    ) -> None:
        super().__init__()
        self.model_dict = model_dict
        self.optimizer_opt = optimizer_opt
        self.loss_func_dict = loss_func_dict
        self.hyper_params = hyper_params
