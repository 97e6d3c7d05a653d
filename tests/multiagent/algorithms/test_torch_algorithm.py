from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tmrl_core.errors import ConfigError, WeightsError
from tmrl_core.multiagent.algorithms.torch_algorithm import Algorithm
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.training.checkpoints.capture import capture_part
from tmrl_core.training.checkpoints.restore import decoded, restore_part
from tmrl_core.training.constructor_settings import constructed_settings
from tmrl_core.training.updates.skipped_updates import SKIPPED

ADAM = (torch.optim.Adam, {"lr": 1e-2})
SGD = (torch.optim.SGD, {"lr": 0.5})


def linear(inputs: int = 2, outputs: int = 1) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def weight_of(made: Algorithm) -> torch.Tensor:
    """The weight of the model `a`."""
    return dict(made.models["a"].named_parameters())["weight"]


def frozen() -> nn.Module:
    return linear().requires_grad_(False)


def test_a_pair_makes_one_optimizer_of_all_trainable_parameters() -> None:
    shared = linear()
    models = {"a": nn.Sequential(shared, linear(1)), "b": nn.Sequential(shared, linear(1)), "c": frozen()}
    made = Algorithm(models, SGD, {}, {})
    (group,) = made.optimizers["all"].param_groups
    assert list(made.optimizers) == ["all"]
    expected = {id(p) for name in "ab" for p in models[name].parameters()}
    assert [id(p) in expected for p in group["params"]] == [True] * 6
    assert group["lr"] == 0.5


def test_a_dict_makes_an_optimizer_of_each_named_model() -> None:
    models = {"a": linear(), "b": linear(), "c": frozen()}
    made = Algorithm(models, {"a": ADAM, "b": SGD}, {}, {})
    assert {name: type(one) for name, one in made.optimizers.items()} == {"a": torch.optim.Adam, "b": torch.optim.SGD}
    assert made.optimizers["b"].param_groups[0]["params"] == [*models["b"].parameters()]


@pytest.mark.parametrize(
    ("models", "optimizers", "losses", "message"),
    [
        ({}, ADAM, {}, r"model_dict: found \{\}, allowed: a dict of torch models by name"),
        ({"a.b": linear()}, ADAM, {}, "the name 'a.b', allowed: a text without dots"),
        ({"keys": linear()}, ADAM, {}, "model_dict: .*'keys'.* Take another name"),
        ({"a": nn.Linear}, ADAM, {}, r"model_dict\['a'\]: found type, allowed: a torch.nn.Module"),
        ({"a": frozen()}, ADAM, {}, "optimizer_opt: found no trainable parameters"),
        ({"a": linear()}, {"b": ADAM}, {}, "optimizer_opt: found 'b'; allowed are the names of model_dict: a"),
        ({"a": linear(), "b": linear()}, {"a": ADAM}, {}, "found no optimizer for b; it names a. Add a pair"),
        ({"a": frozen()}, {"a": ADAM}, {}, r"optimizer_opt\['a'\]: found no trainable parameters"),
        ({"a": frozen()}, {}, {}, "found no optimizer for any model"),
        ({"a": linear()}, torch.optim.Adam, {}, r"allowed: a pair \(class, parameters\)"),
        ({"a": linear()}, ("adam", {}), {}, "allowed: an optimizer's class and a dict"),
        ({"a": linear()}, (torch.optim.Adam, {"rate": 1}), {}, "unexpected keyword argument 'rate'"),
        ({"a": linear()}, (torch.optim.Adam, {"lr": -1.0}), {}, "Invalid learning rate: -1.0"),
        ({"a": linear()}, (list, {}), {}, "a maker of list, allowed: a class of torch.optim.Optimizer"),
        ({"a": linear()}, ADAM, {"b": nn.MSELoss}, "loss_func_dict: found 'b'; allowed are the names of model_dict: a"),
        ({"a": linear()}, ADAM, {"a": nn.MSELoss()}, r"loss_func_dict\['a'\]: found MSELoss\(\), allowed: a loss"),
        ({"a": linear()}, ADAM, {"a": nn.Linear}, "Allowed: types that take reduction='none'"),
        ({"a": linear()}, ADAM, nn.MSELoss, "loss_func_dict: found .*, allowed: a dict by the names of the models"),
    ],
)
def test_arguments_that_do_not_match_are_refused(models: Any, optimizers: Any, losses: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Algorithm(models, optimizers, losses, {})


def test_models_that_share_parameters_need_one_optimizer() -> None:
    model = linear()
    with pytest.raises(ConfigError, match="a and b share parameters"):
        Algorithm({"a": model, "b": model}, {"a": ADAM, "b": ADAM}, {}, {})


def test_loss_functions_are_made_per_row() -> None:
    losses: Any = {"a": nn.MSELoss, "b": nn.functional.l1_loss}
    made = Algorithm({"a": linear(), "b": linear()}, ADAM, losses, {})
    found, wanted = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])
    assert made.loss_funcs["a"](found, wanted).tolist() == [4.0, 1.0]
    assert made.loss_funcs["b"](found, wanted).tolist() == [2.0, 1.0]


def test_the_base_says_what_to_implement() -> None:
    made = Algorithm({"a": linear()}, ADAM, {}, {})
    with pytest.raises(NotImplementedError, match=r"Algorithm does not choose actions. Implement choose_action\("):
        made.choose_action(np.zeros(2), 0.0)
    with pytest.raises(NotImplementedError, match=r"Algorithm does not learn. Implement train_on_batch\("):
        made.train_on_batch({})


def test_a_step_moves_all_optimizers_and_is_clipped_for_each() -> None:
    models = {"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)}
    made = Algorithm(models, {"a": (torch.optim.SGD, {"lr": 1.0}), "b": (torch.optim.SGD, {"lr": 2.0})}, {}, {})
    for model in models.values():
        nn.init.zeros_(model.weight)
    metrics = made.minimise(30.0 * models["a"].weight.sum() + 0.4 * models["b"].weight.sum(), max_norm=1.0)
    assert models["a"].weight.item() == pytest.approx(-1.0)
    assert models["b"].weight.item() == pytest.approx(-0.8)
    assert metrics["grad_norm"] == pytest.approx((30.0**2 + 0.4**2) ** 0.5)
    assert made.updates == 1


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    made = Algorithm({"a": linear()}, ADAM, {}, {})
    before = made.get_model()
    assert made.minimise(weight_of(made).sum() * torch.nan) == {SKIPPED: True}
    assert made.get_model() == before
    assert made.updates == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Algorithm({"a": linear(3)}, ADAM, {}, {}).get_model(), r"a.weight has the shape \(1, 3\)"),
        (Algorithm({"b": linear()}, ADAM, {}, {}).get_model(), "without a.weight, a.bias"),
        (Blob("file", b""), "of the format 'file', Algorithm reads 'safetensors'. Learner and actors must"),
        (Blob("safetensors", b"?"), "1 bytes of weights are not in the safetensors format"),
    ],
)
def test_other_models_are_refused(model: Blob, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        Algorithm({"a": linear()}, ADAM, {}, {}).load_model(model)


def test_models_that_are_not_finite_are_refused() -> None:
    bad = linear()
    nn.init.constant_(bad.bias, torch.nan)
    made = Algorithm({"a": linear()}, ADAM, {}, {})
    before = made.get_model()
    with pytest.raises(WeightsError, match=r"not finite: a.bias"):
        made.load_model(Algorithm({"a": bad}, ADAM, {}, {}).get_model())
    assert made.get_model() == before


def test_changed_optimizer_settings_take_effect_on_resume() -> None:
    def make(lr: float) -> Algorithm:
        return Algorithm({"a": linear()}, {"a": (torch.optim.Adam, {"lr": lr})}, {}, {})

    saved = make(0.1)
    saved.minimise(weight_of(saved).sum())
    settings = capture_part(constructed_settings(make(0.1), "algorithm"), "constructed")
    captured = capture_part(saved, "algorithm")
    for lr in (0.1, 0.2):
        resumed = make(lr)
        restore_part(resumed, "algorithm", captured.tree, captured.arrays, decoded(settings.tree, settings.arrays))
        assert resumed.optimizers["a"].param_groups[0]["lr"] == lr
        assert resumed.get_model() == saved.get_model()
        assert resumed.updates == 1
