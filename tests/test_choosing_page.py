"""docs/choosing.md is what the code says: every keyword of every agent with its default, and files that are there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from tmrl_core import training
from tmrl_core.config import from_values, load
from tmrl_core.config.algorithms import ACTORS, algorithms
from tmrl_core.config.sections import WorkerSection
from tmrl_core.errors import ConfigError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "choosing.md"
AGENTS = list(algorithms())
NOT_FOR_A_TABLE = {"observation_space", "action_space", "device", "model_cls", "actor_cls", "model_kwargs", "settings"}

SPACES = {"discrete": "discrete", "continuous": "box", "several choices": "multi_discrete"}
"""Action spaces as the page calls them, with their names in the declarations."""
NOT_IN_LOCKSTEP: dict[str, Any] = {
    "memory.storage": "disk",
    "memory.n_step": 2,
    "memory.sampling": "prioritized",
    "memory.max_drawn_lag": 1,
    "memory.prefetch": 1,
    "trainer.limiter.samples_per_insert": 8,
    "worker.sample_compressor": "mine:compress",
    "memory.sample_preprocessor": "mine:preprocess",
    "worker.crc_debug": True,
}


def keywords(agent: str) -> dict[str, Any]:
    """Of an agent, with their defaults; REDQ takes SAC's too."""
    parameters = inspect.signature(getattr(training, agent)).parameters
    own = {name: one.default for name, one in parameters.items() if name not in NOT_FOR_A_TABLE}
    return {**keywords("SacAgent"), **own} if agent == "REDQSACAgent" else own


def told_of(agent: str) -> dict[str, Any]:
    """Of the table of keywords: those of an agent, with their defaults."""
    text = PAGE.read_text(encoding="utf-8").split("## Every `agent.kwargs`")[1].split("\n## ")[0]
    told = {}
    for line in [line for line in text.splitlines() if line.startswith("| `")]:
        key, defaults, _ = (cell.strip() for cell in line.strip("|").split("|"))
        for default, listed in re.findall(r"`(.*?)`: ([^;]*)", defaults):
            named = {f"{name}Agent" for name in listed.removeprefix("all but ").split(", ")}
            assert listed == "all" or named <= set(AGENTS)
            if listed == "all" or (agent in named) != listed.startswith("all but "):
                assert key not in told, "one default"
                told[key.strip("` *")] = 1e-5 if default == "1e-05" else yaml.safe_load(default)
    return told


@pytest.mark.parametrize("agent", AGENTS)
def test_every_keyword_of_an_agent_is_there_with_its_default(agent: str) -> None:
    there = {name: list(value) if isinstance(value, tuple) else value for name, value in keywords(agent).items()}
    assert told_of(agent) == there


def test_every_named_file_exists_and_belongs_to_its_agent() -> None:
    text = PAGE.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    for line in text.splitlines():
        agents = re.findall(r"`(\w+Agent)`, `(\w+)`", line)
        for link in re.findall(r"\]\(([^)]+\.yaml)\)", line) if agents else []:
            config = load(PAGE.parent / link, environ={})
            assert (config.agent.cls.partition(":")[2], config.actor.cls.partition(":")[2]) in agents


def section(title: str) -> str:
    """Text below a heading of the page."""
    return PAGE.read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_action_spaces_list_every_declared_pair_in_its_space() -> None:
    told, space = set(), ""
    for line in section("By action space").splitlines():
        space = next((name for words, name in SPACES.items() if line.startswith(f"| {words}")), space)
        told |= {(*pair, space) for pair in re.findall(r"`(\w+Agent)`, `(\w+Actor)`", line)}
    declared = {
        (one.name, actor, kind)
        for one in algorithms().values()
        for actor in one.actors
        for kind in ACTORS[actor] & one.action_spaces
    }
    assert told == declared


def test_the_collection_modes_are_those_of_the_section() -> None:
    modes = re.findall(r"^\| `(\w+)`", section("By collection mode"), flags=re.MULTILINE)
    assert tuple(modes) == get_args(get_type_hints(WorkerSection)["collection"])


def test_keys_that_lockstep_excludes_are_refused_there() -> None:
    lines = [line.split("|")[1:4] for line in section("The memory").splitlines() if line.startswith("| `")]
    told = [key for keys, _, excluded in lines if "lockstep" in excluded for key in re.findall(r"`([\w.]+)[`:]", keys)]
    assert sorted(told) == sorted(NOT_IN_LOCKSTEP)
    for key, value in NOT_IN_LOCKSTEP.items():
        *path, name = key.split(".")
        values: dict[str, Any] = {
            "worker": {"collection": "lockstep"},
            "trainer": {"loop": "tmrl_core.training:TrainingLockstep"},
            "agent": {"cls": "tmrl_core.training:PPOAgent"},
            "actor": {"cls": "tmrl_core.actor:GaussianMLPActor"},
        }
        from_values(values)
        inner = values
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = value
        with pytest.raises(ConfigError, match=re.escape(key)):
            from_values(values)
