"""Algorithms that are made of named torch models, with their optimizers and loss functions.

Shape suffixes: B batch, N discrete actions.
"""

# Theory of operation
#
# `Algorithm` is the base for users who bring their own networks: it checks and names models, optimizers and losses,
# moves weights as safetensors, and makes one step of all optimizers on one loss. Losses, targets and masks are the
# project's (`training/agents/losses.py`), and so is the generator of exploration.
#
# The attributes are the state in checkpoints, as those of agents are (`training/checkpointable.py`), except
# `transient`; an algorithm of a user needs no code for checkpoints.
#
# Not shared with the project's agents: `minimise`. Theirs steps one optimizer, and updates that are not finite are
# rolled back by the loop, with copies of the state. Here several optimizers step on one loss, a user calls it from code
# of his own, and no loop stands around it. So it looks at the loss and the gradients before the first step, and changes
# nothing if one is not finite.
#
# `check_choices` runs the model on experiences of a worker before they are stored: values that no update could use are
# refused with the worker's name, instead of ending the run.

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.masks import ACTION_MASK
from tmrl_core.actor.policies.torch.module import load_module, module_bytes
from tmrl_core.actor.policies.weights import SAFETENSORS_FORMAT
from tmrl_core.config.references import check_kwargs
from tmrl_core.errors import ConfigError, SampleRefusedError, WeightsError
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.algorithms.batches import tensors_of
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training.updates.skipped_updates import SKIPPED

OptimizerOption = tuple[Callable[..., torch.optim.Optimizer], Mapping[str, Any]]
"""Class of an optimizer and its keyword arguments."""
LossFunction = Callable[[Tensor, Tensor], Tensor]
"""`(found_B, wanted_B) -> loss_B`."""


class Algorithm(AgentAlgorithm):
    """An algorithm of named torch models. A subclass implements `choose_action` and `train_on_batch`.

    Its attributes are its state in checkpoints.

    Args:
        model_dict: torch models by name. Models that no optimizer may change have frozen parameters.
        optimizer_opt: a pair (class, keyword arguments), which makes one optimizer over the trainable parameters of all
            models; or a dict of such pairs by name, one for each model with trainable parameters.
        loss_func_dict: loss function types by the models' names: classes such as `torch.nn.SmoothL1Loss`, made with
            `reduction="none"`, or functions that take it. Models that are left out have the algorithm's own.
        hyper_params: the algorithm's own.

    Raises:
        ConfigError: names do not match, an optimizer has no parameters, or an argument is of another kind.

    Attributes:
        models: the models by name.
        optimizers: the optimizers by the models' names; one for all models is named `all`.
        loss_funcs: the loss functions by the models' names, each `(found_B, wanted_B) -> loss_B`.
        updates: number of updates so far.
    """

    type_version = 1

    transient: ClassVar[frozenset[str]] = frozenset({"hyper_params", "loss_funcs"})
    parameters: ClassVar[type | None] = None
    """Dataclass of the hyper parameters, which may be given as a dict of its arguments; None: any value."""
    model_names: ClassVar[tuple[str, ...]] = ()
    """Names that the models must have. Empty: any."""
    acts_with: ClassVar[tuple[str, ...]] = ()
    """Names of the models that acting needs, which `get_model` returns. Empty: all."""
    default_losses: ClassVar[Mapping[str, type[nn.Module]]] = {}
    """Loss function types of models that `loss_func_dict` leaves out, by the models' names."""

    def __init__(
        self,
        model_dict: Mapping[str, nn.Module],
        optimizer_opt: OptimizerOption | Mapping[str, OptimizerOption],
        loss_func_dict: Mapping[str, Callable[..., Any]],
        hyper_params: Any,
    ) -> None:
        super().__init__()
        self.models = self._checked_models(model_dict)
        self.optimizers = _make_optimizers(self.models, optimizer_opt)
        _refuse_unknown("loss_func_dict", loss_func_dict, self.models)
        losses: dict[str, Callable[..., Any]] = {**self.default_losses, **loss_func_dict}
        self.loss_funcs = {name: _make_loss(name, kind) for name, kind in losses.items()}
        self.hyper_params = hyper_params if self.parameters is None else _parameters(self.parameters, hyper_params)
        self.updates = 0

    def choose_action(self, state: Any, epsilon: float) -> Any:
        """Return the model action; see `AgentAlgorithm`.

        Raises:
            NotImplementedError: the class does not implement it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not choose actions. Implement choose_action(state, epsilon): it returns the "
            "model action for one state, and draws from self.rng with probability epsilon, unless self.deterministic"
        )

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        """Make one update; see `AgentAlgorithm`.

        Raises:
            NotImplementedError: the class does not implement it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not learn. Implement train_on_batch(batch): it gets columns of experiences by "
            "key, makes one update, such as with self.minimise(loss), and returns metrics by name"
        )

    def _checked_models(self, models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        if not isinstance(models, Mapping) or not models:
            raise ConfigError(
                f"model_dict: found {models!r:.100}, allowed: a dict of torch models by name, at least one"
            )
        for name, model in models.items():
            if not isinstance(name, str) or not name or "." in name:
                raise ConfigError(f"model_dict: found the name {name!r}, allowed: a text without dots")
            if not isinstance(model, nn.Module):
                raise ConfigError(
                    f"model_dict[{name!r}]: found {type(model).__name__}, allowed: a torch.nn.Module. Pass a model, "
                    "not its class"
                )
        if (wanted := self.model_names) and models.keys() != set(wanted):
            raise ConfigError(
                f"model_dict: found {', '.join(models)}; allowed for {type(self).__name__}: {' and '.join(wanted)}"
            )
        try:
            nn.ModuleDict(models)
        except KeyError as exc:
            raise ConfigError(
                f"model_dict: {exc.args[0]} in torch.nn.ModuleDict. Take another name for the model"
            ) from exc
        return dict(models)

    @property
    def device(self) -> torch.device:
        """Device of the first model."""
        first = next(iter(self.models.values()))
        tensor = next(itertools.chain(first.parameters(), first.buffers()), None)
        return torch.device("cpu") if tensor is None else tensor.device

    def get_model(self) -> Blob:
        """Return the weights of the models that acting needs, as safetensors."""
        return Blob(SAFETENSORS_FORMAT, module_bytes(self._acting, type(self).__name__, {}))

    def load_model(self, model: Blob) -> None:
        """Load the result of `get_model`.

        Raises:
            WeightsError: the format, a name or a shape differs, or a number is not finite; nothing has changed.
        """
        owner = type(self).__name__
        if model.format != SAFETENSORS_FORMAT:
            raise WeightsError(
                f"the weights are of the format {model.format!r}, {owner} reads {SAFETENSORS_FORMAT!r}. {_ADVICE}"
            )
        load_module(self._acting, model.data, owner, {}, _ADVICE)

    @property
    def _acting(self) -> nn.ModuleDict:
        return nn.ModuleDict(
            {name: one for name, one in self.models.items() if name in (self.acts_with or self.models)}
        )

    def output(self, name: str, state: Any) -> np.ndarray:
        """Return a model's output [N] for one state, without gradients."""
        one = map_leaves(lambda value: np.asarray(value)[None], state)
        with torch.no_grad():
            found: np.ndarray = self.models[name](model_input(tensors_of(one, self.device)))[0].cpu().numpy()
        return found

    def check_choices(self, name: str, experiences: Mapping[str, Any]) -> None:
        """Refuse experiences whose states do not fit a model, or whose actions it does not number.

        Args:
            name: the model, whose output has a value for each action.
            experiences: columns of at least one experience.

        Raises:
            SampleRefusedError: a column is missing, or does not fit.
        """
        bootstraps = "next_state" in experiences
        for key in ("reward", *(("discount", "terminated") if bootstraps else ())):
            if key not in experiences or np.ndim(experiences[key]) != 1:
                raise SampleRefusedError(
                    f"{key!r} is {'missing' if key not in experiences else 'not one number a row'}"
                )
        count = 0
        model = self.models[name]
        training = model.training
        model.eval()  # a check changes neither running statistics nor generators
        try:
            for key in ("state", "next_state") if bootstraps else ("state",):
                states = tensors_of(experiences[key], self.device)
                with torch.no_grad():
                    found_BN = model(model_input(states))
                count = found_BN.shape[-1]
                allowed_BN = allowed_actions(states)
                if allowed_BN is not None and allowed_BN.shape != found_BN.shape:
                    raise ValueError(f"its action mask has the shape {[*allowed_BN.shape[1:]]}, actions: {count}")
        except Exception as exc:  # a user's model may raise any error
            raise SampleRefusedError(f"{key!r} does not fit the model {name!r}: {exc}") from exc
        finally:
            model.train(training)
        action = np.asarray(experiences["action"])
        if action.dtype.kind not in "iu" or action.ndim != 1 or not ((action >= 0) & (action < count)).all():
            raise SampleRefusedError(
                f"'action' is {action.dtype}{list(action.shape)} from {action.min()} to {action.max()}; the model "
                f"{name!r} has the actions 0 to {count - 1}, one number a row"
            )

    def minimise(self, loss: Tensor, max_norm: float | None = None) -> dict[str, Any]:
        """Make a step of all optimizers on one loss; skip it if the loss or a gradient is not finite.

        Args:
            loss: scalar with gradients.
            max_norm: clipping threshold of the gradient norm of each optimizer's parameters; None: no clipping.

        Returns:
            The metric `grad_norm`, of all parameters before clipping; `SKIPPED` if nothing was changed.
        """
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        limit = math.inf if max_norm is None else max_norm
        norms = [
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], limit)
            for optimizer in self.optimizers.values()
        ]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        if not bool(torch.isfinite(norm + loss.detach())):
            return {SKIPPED: True}
        for optimizer in self.optimizers.values():
            optimizer.step()
        self.updates += 1
        return {"grad_norm": float(norm)}


_ADVICE = "Learner and actors must make the algorithm of the same models."


def model_input(state: Any) -> Any:
    """Return the part of states that goes into a model: without their action mask, and alone what is left alone."""
    if not isinstance(state, Mapping) or ACTION_MASK not in state:
        return state
    rest = {key: value for key, value in state.items() if key != ACTION_MASK}
    return next(iter(rest.values())) if len(rest) == 1 else rest


def allowed_actions(state: Any) -> Tensor | None:
    """Return [B, N] bool, the actions that the action masks of a batch of states allow; None: they have no mask."""
    return state[ACTION_MASK] > 0 if isinstance(state, Mapping) and ACTION_MASK in state else None


def _parameters(kind: type, hyper_params: Any) -> Any:
    """Return hyper parameters as the algorithm's own type.

    Raises:
        ConfigError: a name is unknown, or a value has another type or is out of range.
    """
    if isinstance(hyper_params, kind):
        return hyper_params
    if not isinstance(hyper_params, Mapping):
        raise ConfigError(
            f"hyper_params: found {type(hyper_params).__name__}, allowed: {kind.__name__}, or a dict of its arguments"
        )
    check_kwargs(kind, hyper_params, "hyper_params")
    return kind(**hyper_params)


def check_max_norm(max_norm: float | None) -> None:
    """Refuse a clipping threshold that is not positive.

    Raises:
        ConfigError: it is not.
    """
    if max_norm is not None and not max_norm > 0.0:
        raise ConfigError(f"hyper_params.max_grad_norm: found {max_norm}, allowed: more than 0, or None")


def _make_optimizers(
    models: Mapping[str, nn.Module], options: OptimizerOption | Mapping[str, OptimizerOption]
) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers by the names of their models, or one named `all`."""
    trainable = {name: [p for p in model.parameters() if p.requires_grad] for name, model in models.items()}
    if not isinstance(options, Mapping):
        # Models may share layers.
        of_all = {id(p): p for parameters in trainable.values() for p in parameters}
        return {"all": _make_optimizer("optimizer_opt", options, list(of_all.values()))}
    _refuse_unknown("optimizer_opt", options, models)
    missing = [name for name in models if trainable[name] and name not in options]
    if missing or not options:
        raise ConfigError(
            f"optimizer_opt: found no optimizer for {', '.join(missing) or 'any model'}; it names "
            f"{', '.join(options) or 'none'}. Add a pair (class, parameters) for each, or freeze the model with "
            "requires_grad_(False)"
        )
    seen: dict[int, str] = {}
    for name in options:
        for parameter in trainable[name]:
            if (other := seen.setdefault(id(parameter), name)) != name:
                raise ConfigError(
                    f"optimizer_opt: {other} and {name} share parameters, which two optimizers would both change. Pass "
                    "one pair (class, parameters) for all models"
                )
    return {name: _make_optimizer(f"optimizer_opt[{name!r}]", one, trainable[name]) for name, one in options.items()}


def _make_optimizer(key: str, option: OptimizerOption, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if not isinstance(option, (tuple, list)) or len(option) != 2:
        raise ConfigError(
            f"{key}: found {option!r:.100}, allowed: a pair (class, parameters) such as (torch.optim.Adam, {{'lr': "
            "1e-3}), or a dict of such pairs by the names of the models"
        )
    kind, arguments = option
    if not callable(kind) or not isinstance(arguments, Mapping):
        raise ConfigError(f"{key}: found {option!r:.100}, allowed: an optimizer's class and a dict of its arguments")
    if not parameters:
        raise ConfigError(f"{key}: found no trainable parameters to optimize. Unfreeze the model, or leave this out")
    try:
        made = kind(parameters, **arguments)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{key}: {exc}. Correct the parameters {dict(arguments)}") from exc
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"{key}: found a maker of {type(made).__name__}, allowed: a class of torch.optim.Optimizer")
    return made


def _make_loss(name: str, kind: Callable[..., Any]) -> LossFunction:
    if not callable(kind) or isinstance(kind, nn.Module):
        raise ConfigError(
            f"loss_func_dict[{name!r}]: found {kind!r:.100}, allowed: a loss function type such as "
            "torch.nn.SmoothL1Loss, or a function such as torch.nn.functional.mse_loss"
        )
    if not isinstance(kind, type):
        return partial(kind, reduction="none")
    try:
        made: LossFunction = kind(reduction="none")
    except TypeError as exc:
        raise ConfigError(
            f"loss_func_dict[{name!r}]: {exc}. Allowed: types that take reduction='none' and return a loss per row"
        ) from exc
    return made


def _refuse_unknown(key: str, found: Mapping[str, Any], models: Mapping[str, nn.Module]) -> None:
    if not isinstance(found, Mapping):
        raise ConfigError(f"{key}: found {found!r:.100}, allowed: a dict by the names of the models")
    if unknown := [name for name in found if name not in models]:
        raise ConfigError(
            f"{key}: found {', '.join(map(repr, unknown))}; allowed are the names of model_dict: {', '.join(models)}"
        )
