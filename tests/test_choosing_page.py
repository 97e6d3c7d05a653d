"""docs/choosing.md is what the code says: every keyword of every agent with its default, and files that are there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tmrl_core import training
from tmrl_core.config import load
from tmrl_core.config.algorithms import ALGORITHMS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "choosing.md"
COLUMNS = [algorithm.name for algorithm in ALGORITHMS if algorithm.name != "SpinupSacAgent"]
NOT_FOR_A_TABLE = {"observation_space", "action_space", "device", "model_cls", "actor_cls", "model_kwargs", "settings"}


def keywords(agent: str) -> dict[str, Any]:
    """Of an agent, with their defaults; REDQ takes SAC's too."""
    parameters = inspect.signature(getattr(training, agent)).parameters
    own = {name: one.default for name, one in parameters.items() if name not in NOT_FOR_A_TABLE}
    return {**keywords("SacAgent"), **own} if agent == "REDQSACAgent" else own


def rows() -> list[list[str]]:
    """Of the table of keywords, its head first."""
    text = PAGE.read_text(encoding="utf-8").split("## Every `agent.kwargs`")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("column", COLUMNS)
def test_every_keyword_of_an_agent_is_there_with_its_default(column: str) -> None:
    head, _, *body = rows()
    index = head.index(column)
    told = {row[0].strip("`"): yaml.safe_load(row[index]) for row in body if row[index] or row[index] == "null"}
    told = {name: float(value) if value == "1e-05" else value for name, value in told.items()}
    there = {name: list(value) if isinstance(value, tuple) else value for name, value in keywords(column).items()}
    assert told == there


def test_every_algorithm_has_a_column() -> None:
    assert [cell for cell in rows()[0] if cell.endswith("Agent")] == COLUMNS


def test_every_file_that_is_named_is_there_and_is_of_the_agent_beside_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    for line in text.splitlines():
        agents = re.findall(r"`(\w+Agent)`, `(\w+)`", line)
        for link in re.findall(r"\]\(([^)]+\.yaml)\)", line) if agents else []:
            config = load(PAGE.parent / link, environ={})
            assert (config.agent.cls.partition(":")[2], config.actor.cls.partition(":")[2]) in agents
