"""Names and signatures of tmrl_core.compat against those of tmrl 0.7, which `signatures.json` lists."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tmrl_core.compat.custom import custom_models
from tmrl_core.config import CFG

RECORD: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures.json").read_text(encoding="utf-8"))
PAGE = (Path(__file__).resolve().parents[2] / "tmrl_core" / "compat" / "README.md").read_text(encoding="utf-8")

LEFT_OUT = {
    "networking": "print_with_timestamp print_ip log_environment_variables load_run_instance dump_run_instance "
    "iterate_epochs run_with_wandb run",
    "util": "default get_output git_info shallow_copy pandas_dict get_class_or_function partial_to_dict "
    "partial_from_args FKEY DelayInterrupt",
    "memory": "check_samples_crc",
    "custom.custom_models": "EPSILON SELayer conv_3x3_bn conv_1x1_bn MBConv EffNetV2 effnetv2_s effnetv2_m effnetv2_l "
    "effnetv2_xl SquashedGaussianEffNetActor EffNetQFunction EffNetActorCritic num_flat_features conv2d_out_dims "
    "VanillaCNN remove_colors rnn "
    "SquashedGaussianRNNActor RNNQFunction RNNActorCritic",
    "custom.custom_memories": "last_true_in_list replace_hist_before_eoe",
    "custom.custom_checkpoints": "load_run_instance_images_dataset dump_run_instance_images_dataset update_memory",
    "custom.utils.nn": "PopArt TanhNormal Independent TanhNormalLayer RlkitLinear SacLinear BasicReLU AffineReLU "
    "NormalizedReLU KaimingReLU Linear10 Linear04 LinearConstBias LinearZeroBias AffineSimon dqn_conv big_conv hd_conv",
    "config.config_constants": "CONFIG_FOLDER CONFIG_VERSION CRC_DEBUG_SAMPLES DEBUG_MODE PRINT_BYTESIZES "
    "SYNCHRONIZE_CUDA",
}
"""Names that are not there, for the reasons on the page."""

METHODS_LEFT_OUT = {"load_imgs", "load_acts"}
"""Methods of tmrl's memories that are not there, for the reason on the page."""

DEFAULTS = {
    "np.inf": math.inf,
    "nn.ReLU": torch.nn.ReLU,
    "nn.Identity": torch.nn.Identity,
    "core.MLPActorCritic": custom_models.MLPActorCritic,
    "core.REDQMLPActorCritic": custom_models.REDQMLPActorCritic,
    "cfg_obj.TRAINER": CFG,
    "'Pendulum-v0'": "Pendulum-v1",  # Gymnasium no longer has the other
}

THERE = [
    (module, name) for module, names in RECORD.items() for name in names if name not in LEFT_OUT.get(module, "").split()
]


def default_of(text: str) -> Any:
    if text.startswith("cfg."):
        return CFG
    return DEFAULTS[text] if text in DEFAULTS else ast.literal_eval(text)


def check(place: str, function: Any, expected: str) -> None:
    """Compare the parameters that tmrl has. Further ones may follow if they are optional."""
    found = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    if any(one.kind is one.VAR_POSITIONAL for one in found):
        return
    parameters = ast.parse(f"def f({expected}): ...").body[0].args  # type: ignore[attr-defined]
    names = [one.arg for one in parameters.args]
    assert [one.name for one in found[: len(names)]] == names, place
    defaults = [inspect.Parameter.empty] * (len(names) - len(parameters.defaults))
    defaults += [default_of(ast.unparse(one)) for one in parameters.defaults]
    for one, default in zip(found, defaults, strict=False):
        assert one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD), (place, one)
        assert default is inspect.Parameter.empty or one.default == default, (place, one)
    for one in found[len(names) :]:
        assert one.default is not one.empty or one.kind is one.VAR_KEYWORD, (place, one)


def test_the_name_is_there_with_its_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tmrl_core.yaml"
    for module, name in THERE:
        if (module, name) in (("config.config_objects", "INT"), ("config.config_objects", "CONFIG_DICT")):
            file.write_text(
                "environment: {cls: 'tmrl_core.envs:real_time_env', kwargs: {interface: 'rtgym:DummyRCDrone'}}\n",
                encoding="utf-8",
            )
        else:
            file.unlink(missing_ok=True)
        found = getattr(importlib.import_module(f"tmrl_core.compat.{module}"), name)
        recorded = RECORD[module][name]
        if isinstance(recorded, str):
            check(f"{module}.{name}", found, recorded)
        for method, expected in (recorded if isinstance(recorded, dict) else {}).items():
            if method not in METHODS_LEFT_OUT:
                check(f"{module}.{name}.{method}", getattr(found, method), expected)


def test_each_name_that_is_left_out_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE for name in METHODS_LEFT_OUT)
    for module, names in LEFT_OUT.items():
        found = importlib.import_module(f"tmrl_core.compat.{module}")
        for name in names.split():
            assert name in RECORD[module], name
            assert name not in dir(found), f"{module}.{name} is there: remove it from LEFT_OUT"
            assert f"`{name}`" in PAGE, f"compat/README.md does not say why {module}.{name} is not there"
