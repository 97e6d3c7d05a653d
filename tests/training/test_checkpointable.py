from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core import multiagent
from tmrl_core import training as public
from tmrl_core.errors import CheckpointError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.checkpointable import type_name, type_version
from tmrl_core.training.checkpoints.capture import capture, capture_part
from tmrl_core.training.checkpoints.checked_files import write_file
from tmrl_core.training.checkpoints.manifest import read_manifest, write_manifest
from tmrl_core.training.contracts import TrainingMemory
from tmrl_core.training.loops.lockstep import TrainingLockstep
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.generic import GenericTorchMemory
from tmrl_core.training.memories.replay import ReplayMemory

SPACES = (gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))

AGENT = """
from tmrl_core.training.agents.sac import SacAgent

class Mine(SacAgent):
    {body}
"""

LOOP = (
    "epoch round step total_updates total_samples samples_stale updates_skipped elapsed_s delivery memory agent "
    "limiter sessions_loaded"
)
ENTROPY = "target_critics log_alpha optimizer_actor optimizer_critic optimizer_alpha"
OFF_POLICY = "settings model updates_asked"
SAC = f"{OFF_POLICY} target_entropy {ENTROPY}"
STATISTICS = "stat_test_return stat_train_return stat_test_steps stat_train_steps"
REPLAY = (
    "memory_size storage layout written oldest generator block next_block statistics tails steps priorities version"
)
DQN = f"{OFF_POLICY} updates target_network optimizer"
ALGORITHM = "models optimizers rng updates"
STATES = {
    "discrete_sac": (1, f"{OFF_POLICY} first_action {ENTROPY}"),
    "dqn": (1, DQN),
    "frame_stack_replay": (2, f"{REPLAY} frame_stack shape leaves frames"),
    "generic_torch_memory": (1, f"{STATISTICS} data generator first_number transitions previous last_rows"),
    "lockstep": (1, f"{LOOP} rounds_done redistributed"),
    "multiagent_a2c": (1, ALGORITHM),
    "multiagent_dqn": (1, f"{ALGORITHM} target_network"),
    "offline": (1, LOOP),
    "ppo": (
        1,
        "device settings rounds model observations returns _last_sums optimizer generator",
    ),
    "recurrent_dqn": (1, DQN),
    "recurrent_sac": (1, SAC),
    "random_policy": (1, "rng"),
    "redq": (1, f"{SAC} updates"),
    "replay": (1, REPLAY),
    "round": (1, STATISTICS),
    "rule_policy": (1, "rng"),
    "sac": (1, SAC),
    "sample_columns": (2, "first written fields infos early"),
    "sequence_replay": (1, f"{REPLAY} sequence"),
    "samples_per_insert": (1, "made band seen"),
    "td3": (
        1,
        f"{OFF_POLICY} updates target_actor target_critics optimizer_actor optimizer_critic",
    ),
    "torch_offline": (1, LOOP),
    "training_agent_algorithm": (1, "agent rng updates"),
}
"""Version and names of the state of each type.

Another name changes the state: raise the version of the type, so that checkpoints with the other names are refused with
both numbers.
"""


def make(
    agent_cls: Any = SacAgent, memory_cls: Any = ReplayMemory, loop: Any = TrainingOffline, actions: Any = SPACES[1]
) -> TrainingOffline:
    made: TrainingOffline = loop(
        (SPACES[0], actions), partial(memory_cls, memory_size=20), partial(agent_cls, hidden_sizes=(4,)), device="cpu"
    )
    return made


def make_lockstep() -> TrainingLockstep:
    return TrainingLockstep(
        SPACES, training_agent_cls=partial(PPOAgent, hidden_sizes=(4,)), steps_per_round=8, device="cpu"
    )


@pytest.fixture
def agent_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., type[SacAgent]]]:
    """Make an agent's class in a module of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def define(module: str, body: str) -> type[SacAgent]:
        (tmp_path / f"{module}.py").write_text(AGENT.format(body=body), encoding="utf-8")
        made.append(module)
        found: type[SacAgent] = importlib.import_module(module).Mine
        return found

    yield define
    for module in made:
        del sys.modules[module]


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change each typed node of a checkpoint."""

    def walk(node: Any) -> None:
        if isinstance(node, dict) and "class" in node:
            change(node)
        for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(item)

    tree = json.loads((folder / "state.json").read_bytes())
    walk(tree)
    found = read_manifest(folder)
    found.files["state.json"] = write_file(folder / "state.json", json.dumps(tree).encode())
    write_manifest(folder, found)


def test_each_class_in_checkpoints_has_a_unique_id() -> None:
    classes = {getattr(public, name) for name in public.__all__}
    kept = [
        kind
        for kind in classes
        if issubclass(kind, (TrainingAgent, TrainingMemory, TrainingOffline)) and not inspect.isabstract(kind)
    ]
    ids = [type_name(kind) for kind in kept]
    assert len(kept) >= 13
    assert [name for name in ids if ":" in name or "." in name] == []
    assert len(set(ids)) == len(ids)
    assert [kind for kind in kept if "type_version" not in vars(kind)] == []


def test_a_state_has_the_attribute_names_of_its_version() -> None:
    found = {}

    def walk(node: Any) -> None:
        if isinstance(node, dict) and "class" in node and ":" not in node["class"]:
            state = node["v"] if node["t"] == "owner" else dict(node["v"]["v"])
            names = sorted(name for name, value in state.items() if value != {"t": "constant"})
            if not node["class"].endswith("Settings"):  # those have the names of the keyword arguments
                found[node["class"]] = (node["version"], names)
        for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(item)

    choices = gym.spaces.Discrete(3)
    for training in (
        *(make(agent_cls) for agent_cls in (SacAgent, public.REDQSACAgent, public.TD3Agent)),
        *(make(agent_cls, actions=choices) for agent_cls in (public.DQNAgent, public.DiscreteSacAgent)),
        make(public.RecurrentSacAgent, public.SequenceMemory),
        make(public.RecurrentDQNAgent, public.SequenceMemory, actions=choices),
        make(memory_cls=public.FrameStackMemory),
        make(memory_cls=GenericTorchMemory, loop=public.TorchTrainingOffline),
        make_lockstep(),
    ):
        walk(capture(training).tree)
    models = {"actor": torch.nn.Linear(1, 1), "critic": torch.nn.Linear(1, 1)}
    adam: Any = (torch.optim.Adam, {})
    for algorithm in (
        multiagent.A2C(models, adam, {}, {}),
        multiagent.DQN({"q": torch.nn.Linear(1, 1)}, adam, {}, {}),
        multiagent.RandomPolicy(3),
        multiagent.RulePolicy(len),
        multiagent.TrainingAgentAlgorithm(public.DQNAgent, SPACES[0], choices),
    ):
        walk(capture_part(algorithm, "algorithm").tree)
    assert found == {name: (version, sorted(names.split())) for name, (version, names) in STATES.items()}


def test_a_derived_class_is_a_separate_type_with_the_same_state_version() -> None:
    class Derived(SacAgent):
        pass

    assert type_name(Derived).endswith(
        "test_checkpointable:test_a_derived_class_is_a_separate_type_with_the_same_state_version.<locals>.Derived"
    )
    assert type_version(Derived) == type_version(SacAgent)
    assert type_version(dict) == 1


def test_a_checkpoint_loads_after_its_class_has_moved(tmp_path: Path, agent_in: Callable[..., type[SacAgent]]) -> None:
    saved = make(agent_in("before", "type_id = 'acme/mine'"))
    saved.total_updates = 7
    saved.save(tmp_path / "saved")
    moved = make(agent_in("after", "type_id = 'acme/mine'"))
    moved.load(tmp_path / "saved")
    assert moved.total_updates == 7
    for one, other in zip(saved.agent.model.parameters(), moved.agent.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_class_without_an_id_has_its_qualified_name(tmp_path: Path, agent_in: Callable[..., type[SacAgent]]) -> None:
    mine = agent_in("before", "pass")
    make(mine).save(tmp_path / "saved")
    make(mine).load(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"agent was of type before:Mine and is of type after:Mine$"):
        make(agent_in("after", "pass")).load(tmp_path / "saved")


def test_an_id_may_be_declared_when_there_are_checkpoints(
    tmp_path: Path, agent_in: Callable[..., type[SacAgent]]
) -> None:
    mine = agent_in("before", "pass")
    make(mine).save(tmp_path / "saved")
    mine.type_id = "acme/mine"
    resumed = make(mine)
    resumed.load(tmp_path / "saved")
    resumed.save(tmp_path / "again")
    make(agent_in("after", "type_id = 'acme/mine'")).load(tmp_path / "again")


@pytest.mark.parametrize("other", [1, 3])
def test_a_state_of_another_version_is_refused(
    tmp_path: Path, agent_in: Callable[..., type[SacAgent]], other: int
) -> None:
    make(agent_in("saved", "type_id, type_version = 'acme/mine', 2")).save(tmp_path / "saved")
    another = make(agent_in("another", f"type_id, type_version = 'acme/mine', {other}"))
    said = (
        rf"agent was saved as version 2 of acme/mine; its class reads version {other}\. Use the release that wrote it"
    )
    with pytest.raises(CheckpointError, match=said):
        another.load(tmp_path / "saved")


def test_a_state_without_a_version_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "saved")
    rewrite(tmp_path / "saved", lambda node: node.pop("version", None))
    with pytest.raises(CheckpointError, match="does not fit this training object: 'version'"):
        make().load(tmp_path / "saved")


def test_a_part_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "saved")
    rewrite(tmp_path / "saved", lambda node: node.update(t="code") if node["class"] == "samples_per_insert" else None)
    with pytest.raises(CheckpointError, match="limiter is of the unknown kind 'code'"):
        make().load(tmp_path / "saved")


def test_nothing_is_imported_because_a_checkpoint_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    make().save(tmp_path / "saved")
    rewrite(tmp_path / "saved", lambda node: node.update({"class": "trap:Agent"}))
    with pytest.raises(CheckpointError, match="the training object was of type trap:Agent"):
        make().load(tmp_path / "saved")
    assert "trap" not in sys.modules
