"""A policy as one ONNX file."""

# Theory of operation
#
# For: programs without Python or without this package, which act with a trained policy. The file is complete: spaces,
# normalization and scaling are inside, and its metadata describe the spaces as `spaces.json` of a recording does.
#
# Weights are read by their names from the bytes that the policy publishes, so one path serves both backends, and a
# policy that folds its normalizations when it is published is exported folded.
#
# A file is compared with the policy before it is written: the reference implementation of onnx computes both on sampled
# observations, over some ticks for a recurrent policy. A mistake in this translation must not be found by a robot.

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from tmrl_core import __version__
from tmrl_core.actor.module import ActorModule, State
from tmrl_core.actor.policies.policy import Policy, RecurrentPolicy
from tmrl_core.actor.policies.spaces import is_box_of_floats
from tmrl_core.actor.policies.weights import decode_arrays
from tmrl_core.config.algorithms import ACTORS, actor_of
from tmrl_core.errors import ConfigError, MissingExtraError, TmrlError
from tmrl_core.sessions.spaces import space_to_json
from tmrl_core.storage import write_whole

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

FORMAT = "1"
"""Version of the names of inputs, outputs and metadata."""
TOLERANCE = 1e-3
"""Difference to the policy from which a file is wrong. Rounding is below 1e-5 where observations and weights are of
ordinary sizes, and more where large numbers cancel each other; a wrong layer is far above."""
_TICKS, _ROWS = 3, 4


class Written(NamedTuple):
    """The content of a file.

    Args:
        inputs, outputs: name, dtype and shape of each, as a text such as `observation float32[batch, 3]`.
        difference: largest difference to the policy's own outputs, as the function of that name says.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float


def write_onnx(policy: ActorModule, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> Written:
    """Write a policy as one ONNX file, which replaces an existing one.

    Args:
        policy: one of the policies of `tmrl_core.actor`, with either backend.
        path: the file.
        metadata: further entries of the file's metadata.

    Raises:
        MissingExtraError: onnx is not installed.
        ConfigError: a policy of another class, or one with an activation or an observation space that has no form here.
        TmrlError: the result differs from the policy. Nothing was written.
        OSError: the file cannot be written.
    """
    made = model_of(policy, metadata)
    assert isinstance(policy, Policy)
    found = difference(made, policy)
    if not found <= TOLERANCE:
        raise TmrlError(
            f"the ONNX file would differ from the policy by {found:.2g}, more than {TOLERANCE:g}, so it was not "
            "written. Please report the policy's settings and its spaces: this is a defect of the export."
        )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, made.SerializeToString())
    return Written(tuple(map(_told, made.graph.input)), tuple(map(_told, made.graph.output)), found)


def _told(declared: ValueInfoProto) -> str:
    from onnx.helper import tensor_dtype_to_np_dtype

    kind = declared.type.tensor_type
    sizes = (size.dim_param or str(size.dim_value) for size in kind.shape.dim)
    return f"{declared.name} {tensor_dtype_to_np_dtype(kind.elem_type)}[{', '.join(sizes)}]"


def model_of(policy: ActorModule, metadata: Mapping[str, str] | None = None) -> ModelProto:
    """Return a policy as an ONNX model.

    The arguments and errors are those of `write_onnx`.
    """
    if importlib.util.find_spec("onnx") is None:
        raise MissingExtraError("onnx", "onnx", "the export of a policy")
    from tmrl_core.onnx_export.graph import Graph
    from tmrl_core.onnx_export.inputs import encoded
    from tmrl_core.onnx_export.layers import features
    from tmrl_core.onnx_export.outputs import add_outputs

    name = built_in_name(policy)
    assert isinstance(policy, Policy)
    arrays, settings = decode_arrays(policy.to_bytes())
    graph = Graph()
    inputs, allowed = encoded(graph, policy, arrays)
    hidden = features(graph, policy, arrays, settings["activation"], inputs)
    heads = {head: graph.linear(hidden, arrays, head) for head in policy.heads}
    add_outputs(graph, policy, arrays, heads, allowed)
    described = {
        "tmrl_core.format": FORMAT,
        "tmrl_core.version": __version__,
        "tmrl_core.policy": name,
        "tmrl_core.observation_space": _as_json(policy.observation_space, "the observation space"),
        "tmrl_core.action_space": _as_json(policy.action_space, "the action space"),
    }
    return graph.model(name, __version__, {**(metadata or {}), **described})


def built_in_name(policy: ActorModule) -> str:
    """Return the name of a policy's class without its backend.

    Raises:
        ConfigError: it is a class of the user's own, whose computation only its code knows.
    """
    cls = type(policy)
    name = actor_of(f"{cls.__module__}:{cls.__qualname__}")
    if name is None:
        raise ConfigError(
            f"actor.cls: {cls.__qualname__} is not a policy of this package, so its computation is known to its code "
            f"alone. Allowed for an export: {', '.join(ACTORS)}. A policy of your own that is a torch module can be "
            "written with torch.onnx.export."
        )
    return name


def _as_json(space: Any, name: str) -> str:
    return json.dumps(space_to_json(space, name), separators=(",", ":"))


def difference(model: ModelProto, policy: Policy) -> float:
    """Return the largest difference between a model's outputs and those of the policy, on sampled observations.

    Actions of a Box count in widths of finite bounds, parameters of distributions absolutely below 1 and relatively
    above it. For recurrent policies, the states go on for some ticks.
    """
    from onnx.reference import ReferenceEvaluator

    from tmrl_core.onnx_export.inputs import observation_arrays
    from tmrl_core.onnx_export.layers import NEXT_STATE, STATE
    from tmrl_core.onnx_export.outputs import ACTION, OF_POLICIES

    session, rng = ReferenceEvaluator(model), np.random.default_rng(1)
    names = [one.name for one in model.graph.output]
    state_B: State = policy.initial_state(_ROWS) if isinstance(policy, RecurrentPolicy) else {}
    largest = 0.0
    for _ in range(_TICKS):
        obs_B = _sampled(policy.observation_space, rng)
        states = {STATE + name: value_B for name, value_B in state_B.items()}
        with np.errstate(all="ignore"):  # its sigmoid overflows where the result is 0
            found = dict(zip(names, session.run(None, observation_arrays(obs_B) | states), strict=True))
        outputs_B, after_B = policy.infer(obs_B, state_B)
        state_B = {name: found[NEXT_STATE + name] for name in after_B}
        pairs = [(found[NEXT_STATE + name], value_B) for name, value_B in after_B.items()]
        of_file = dict(outputs_B)
        for name in OF_POLICIES.keys() & found.keys():
            pairs.append((found[name], outputs_B[OF_POLICIES[name]]))
            of_file[OF_POLICIES[name]] = found[name]
        # The action of the file's own parameters: where two are almost equal, rounding decides which one is the best.
        action_B, _ = policy.choose(of_file, rng, True)
        largest = max([largest, _in_widths(policy.action_space, found[ACTION], action_B), *map(_relative, pairs)])
    return largest


def _sampled(space: Any, rng: np.random.Generator) -> Any:
    """Return a batch of observations, nested as the space is, with numbers of ordinary sizes."""
    if isinstance(space, spaces.Dict):
        return {key: _sampled(inner, rng) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_sampled(inner, rng) for inner in space.spaces)
    if is_box_of_floats(space):
        # Bounds may be a formality (plus or minus 3.4e38), and a uniform sample infinite in a network.
        numbers = rng.standard_normal((_ROWS, *space.shape))
        return np.clip(numbers, space.low, space.high).astype(space.dtype)
    space.seed(int(rng.integers(1 << 31)))
    return np.stack([np.asarray(space.sample(), space.dtype) for _ in range(_ROWS)])


def _relative(pair: tuple[np.ndarray, np.ndarray]) -> float:
    found, wanted = pair
    return float((np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))).max(initial=0.0))


def _in_widths(space: Any, found: np.ndarray, wanted: np.ndarray) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return math.inf
    if not isinstance(space, spaces.Box):
        return float((found != wanted).any())
    with np.errstate(over="ignore", invalid="ignore"):
        width = space.high.astype(np.float64) - space.low
    scale = np.where(np.isfinite(width) & (width > 0), width, np.maximum(1.0, np.abs(wanted)))
    # A bit of the action's own dtype is rounding, even in float16.
    apart = np.maximum(np.abs(found.astype(np.float64) - wanted) - np.spacing(np.abs(wanted)), 0.0)
    return float((apart / scale).max(initial=0.0))
