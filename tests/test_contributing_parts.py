"""The parts that CONTRIBUTING.md walks through are short, and hold to the promises of the project's own parts."""

from __future__ import annotations

import csv
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.walkthrough import FILES, MODULES, install
from tmrl_core.metrics import MetricRecord, MetricSink
from tmrl_core.networking.transports.base import Transport
from tmrl_core.testing.agents import AgentSuite
from tmrl_core.testing.memories import MemorySuite
from tmrl_core.testing.metric_sinks import SinkSuite, Written
from tmrl_core.testing.transports import TransportSuite


@pytest.fixture(autouse=True, scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("package")
    install(folder)
    with pytest.MonkeyPatch.context() as changed:
        changed.syspath_prepend(str(folder))
        yield
        for name in MODULES:
            sys.modules.pop(name, None)


def part(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"acme_rl.{module}"), name)


@pytest.mark.parametrize("modules", [("memory",), ("crr_settings", "crr"), ("unix",), ("csv_sink",)], ids="+".join)
def test_a_part_has_at_most_sixty_lines(modules: tuple[str, ...]) -> None:
    assert sum(len(FILES[f"acme_rl/{name}.py"].splitlines()) for name in modules) <= 60


class TestMemory(MemorySuite):
    def make_memory(self) -> Any:
        return part("memory", "NewestFirstMemory")(memory_size=100, batch_size=4)


class TestAgent(AgentSuite):
    def make_agent(self) -> Any:
        return part("crr", "CrrAgent")(self.observation_space, self.action_space, "cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="abstract Unix sockets")
class TestTransport(TransportSuite):
    def make_transport(self, role: str) -> Transport:
        made: Transport = part("unix", "UnixTransport")(None)
        return made


class TestSink(SinkSuite):
    def make_sink(self, folder: Path) -> MetricSink:
        made: MetricSink = part("csv_sink", "CsvSink")(folder / "rounds.csv")
        return made

    def keeps(self, record: MetricRecord) -> bool:
        return record.kind == "round" and bool(record.numbers())

    def read_back(self, folder: Path) -> list[Written]:
        found: dict[int, dict[str, float]] = {}
        with (folder / "rounds.csv").open(newline="", encoding="utf-8") as file:
            for steps, name, value in csv.reader(file):
                found.setdefault(int(steps), {})[name] = float(value)
        return list(found.items())
