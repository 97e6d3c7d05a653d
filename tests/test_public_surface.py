"""Public names and the signatures of the documented ones, compared with the list in `public_surface.txt`.

A difference fails the test and prints a unified diff. A change on purpose (a new name or parameter) records the list
again in the same commit, so that its diff shows the change:

    RECORD_SURFACE=1 python -m pytest tests/test_public_surface.py
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

RECORDED = Path(__file__).with_name("public_surface.txt")

PACKAGES = (
    "tmrl_core",
    "tmrl_core.actor",
    "tmrl_core.compat.config.config_constants",
    "tmrl_core.compat.config.config_objects",
    "tmrl_core.config",
    "tmrl_core.envs",
    "tmrl_core.functional",
    "tmrl_core.metrics",
    "tmrl_core.networking",
    "tmrl_core.samples",
    "tmrl_core.storage",
    "tmrl_core.training",
)

# Module -> names, and the methods of each class.
DOCUMENTED: dict[str, dict[str, str]] = {
    "tmrl_core": {"cached_property": "", "partial": "", "prod": ""},
    "tmrl_core.config": {"current": "", "load": "", "from_values": "", "resolve": "", "use": "", "with_changes": ""},
    "tmrl_core.envs": {"GenericGymEnv": "reset step close render"},
    "tmrl_core.networking": {
        "Buffer": "append_sample clear __len__ __iadd__",
        "Server": "close wait __enter__ __exit__",
        "RolloutWorker": (
            "act reset step collect_train_episode run_episode run_episodes run run_synchronous run_env_benchmark "
            "send_and_clear_buffer update_actor_weights ignore_actor_weights close"
        ),
        "Trainer": "run run_with_wandb close",
    },
    "tmrl_core.actor": {
        "ActorModule": "act save load to_bytes from_bytes to_device",
        "TorchActorModule": "act save load to_bytes from_bytes to_device",
        "SquashedGaussianMLPActor": "act",
        "CategoricalMLPActor": "act",
        "DeterministicMLPActor": "act",
        "GaussianMLPActor": "act",
        "QValueMLPActor": "act",
        "NumpyCategoricalMLPActor": "act",
        "NumpyDeterministicMLPActor": "act",
        "NumpyGaussianMLPActor": "act",
        "NumpyQValueMLPActor": "act",
        "NumpySquashedGaussianMLPActor": "act",
        "choose_actor": "",
        "numpy_backend_of": "",
    },
    "tmrl_core.training": {
        "CheckpointStore": "",
        "DQNAgent": "train get_actor",
        "DiscreteSacAgent": "train get_actor",
        "FrameStackMemory": "append_buffer __len__ __iter__",
        "GenericTorchMemory": "append_buffer __len__ __iter__ get_transition collate",
        "LocalInterface": "retrieve_buffer commit broadcast_model",
        "MLPActorCritic": "",
        "Memory": "append_buffer __len__ __iter__ get_transition collate",
        "PPOAgent": "train get_actor",
        "REDQMLPActorCritic": "",
        "REDQSACAgent": "train get_actor",
        "ReplayMemory": "append_buffer __len__ __iter__",
        "RoundMemory": "__len__",
        "SacAgent": "train get_actor",
        "SpinupSacAgent": "train get_actor",
        "TD3Agent": "train get_actor",
        "TorchMemory": "append_buffer __len__ __iter__ get_transition collate",
        "TorchTrainingOffline": "run_epoch update_buffer save load",
        "TrainingAgent": "train get_actor",
        "TrainingLockstep": "run_epoch save load",
        "TrainingOffline": "run_epoch update_buffer save load",
    },
}  # fmt: skip

MARKS: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def default_text(value: object) -> str:
    """A default without the place of its definition."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    if isinstance(value, tuple):
        return f"({', '.join(map(default_text, value))})"
    return repr(value)


def signature_lines(called: Callable[..., Any]) -> list[str]:
    """One line for each parameter, with the markers of positional-only and keyword-only ones."""
    lines: list[str] = []
    before = None
    for parameter in inspect.signature(called).parameters.values():
        kind = parameter.kind
        if before is inspect.Parameter.POSITIONAL_ONLY and kind is not before:
            lines.append("/")
        if kind is inspect.Parameter.KEYWORD_ONLY and before not in (kind, inspect.Parameter.VAR_POSITIONAL):
            lines.append("*")
        has_default = parameter.default is not inspect.Parameter.empty
        default = f"={default_text(parameter.default)}" if has_default else ""
        lines.append(f"{MARKS.get(kind, '')}{parameter.name}{default}")
        before = kind
    return [*lines, "/"] if before is inspect.Parameter.POSITIONAL_ONLY else lines


def exported() -> Iterator[str]:
    """The public names of each package."""
    for package in PACKAGES:
        yield package
        yield from (f"    {name}" for name in sorted(importlib.import_module(package).__all__))
        yield ""


def signatures() -> Iterator[str]:
    """The parameters of each documented class and function, and those of its methods."""
    for module, names in DOCUMENTED.items():
        for name, methods in names.items():
            found = getattr(importlib.import_module(module), name)
            yield f"{module}:{name}"
            yield from (f"    {line}" for line in signature_lines(found))
            for method in methods.split():
                yield f"    .{method}({', '.join(signature_lines(getattr(found, method)))})"
            yield ""


def test_the_public_surface_is_the_listed_one() -> None:
    text = "\n".join([*exported(), *signatures()])
    if os.environ.get("RECORD_SURFACE") == "1":
        RECORDED.write_text(text, encoding="utf-8", newline="\n")
    recorded = RECORDED.read_text(encoding="utf-8")
    if text != recorded:
        changes = difflib.unified_diff(recorded.splitlines(), text.splitlines(), "listed", "now", "", "", 3, "")
        pytest.fail("\n".join(changes), pytrace=False)
