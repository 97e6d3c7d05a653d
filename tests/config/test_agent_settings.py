from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from tmrl_core.config import from_values, load, resolve
from tmrl_core.config.algorithms import Algorithm, algorithms
from tmrl_core.errors import ConfigError

READY = sorted((Path(__file__).resolve().parents[2] / "config").glob("*.yaml"))


@pytest.mark.parametrize("algorithm", algorithms().values(), ids=lambda algorithm: algorithm.name)
def test_the_settings_are_the_parameters_of_the_class(algorithm: Algorithm) -> None:
    agent = resolve(algorithm.cls)
    parameters = inspect.signature(agent).parameters
    assert set(parameters) == algorithm.keywords | {"observation_space", "action_space", "device"}
    for one in dataclasses.fields(algorithm.settings):
        assert parameters[one.name].default == one.default
        assert f"\n    {one.name}: " in agent.__doc__


def test_the_error_for_an_unknown_keyword_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as refused:
        from_values({"agent": {"kwargs": {"gama": 0.9, "device": "cpu", "lr_actor": 1e-3}}})
    words = str(refused.value)
    assert "agent.kwargs.device, agent.kwargs.gama: SacAgent takes no such keyword arguments." in words
    assert "The device is trainer.device. Did you mean gamma" in words
    assert "agent.kwargs.lr_actor" not in words
    assert "\nIt takes activation, " in words
    from_values({"agent": {"cls": "mine:Agent", "kwargs": {"gama": 0.9}}})


def test_keywords_of_another_algorithm_are_two_lines() -> None:
    kwargs = {"clip_ratio": 0.1, "update_epochs": 4, "minibatch_size": 64, "target_kl": 0.01, "double": True}
    with pytest.raises(ConfigError) as refused:
        from_values({"agent": {"kwargs": kwargs}})
    first, second = str(refused.value).splitlines()
    assert first.endswith("DQNAgent takes double. PPOAgent takes clip_ratio, minibatch_size, target_kl, update_epochs.")
    assert second.endswith("docs/choosing.md explains them.")


def test_a_keyword_that_the_class_passes_on_is_known() -> None:
    redq = {"cls": "tmrl_core.training:REDQSACAgent", "kwargs": {"n": 3, "gamma": 0.9}}
    from_values({"agent": redq})
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.ms: REDQSACAgent takes no such"):
        from_values({"agent": {**redq, "kwargs": {"ms": 3}}})


def test_it_is_found_before_anything_starts_and_without_torch(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None  # importing it raises
from tmrl_core.cli.main import main
sys.exit(main(["--local", "--set", "agent.kwargs.nope=1"]))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == 2, found.stderr
    assert "agent.kwargs.nope: SacAgent takes no such keyword argument" in found.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_ready_configurations_are_accepted(path: Path) -> None:
    load(path, environ={})


EVERY_AGENT = """
import sys
sys.modules["torch"] = None  # importing it raises
from tmrl_core.config.algorithms import algorithms
from tmrl_core.config.loading import from_values
from tmrl_core.errors import ConfigError

def refused(values, words):
    try:
        from_values(values)
    except ConfigError as exc:
        assert words in str(exc), exc
    else:
        raise AssertionError(values)

for name, row in algorithms().items():
    values = {
        "agent": {"cls": f"tmrl_core.training:{name}", "kwargs": {"lr": 1e-3} if "lr" in row.keywords else {}},
        "actor": {"cls": f"tmrl_core.actor:{min(row.actors)}"},
        "worker": {"collection": min(row.collection)},
        "memory": {"cls": f"tmrl_core.training:{min(row.memories)}"} if row.memories else {},
        "trainer": {"loop": "tmrl_core.training:TrainingLockstep"} if "lockstep" in row.collection else {},
    }
    from_values(values)
    sizes = {"hidden_sizes": [0]} if "hidden_sizes" in row.keywords else {"width": 0}
    refused({**values, "agent": {**values["agent"], "kwargs": {"nope": 1}}}, f"agent.kwargs.nope: {name} takes no such")
    refused({**values, "agent": {**values["agent"], "kwargs": sizes}}, "at least 1")
    together = {
        "PPOAgent": ({"lr_final": 0.1}, "lr_rounds: found None"),
        "REDQSACAgent": ({"m": 5, "n": 4}, "m=5 and n=4"),
        "RecurrentSacAgent": ({"compile": True}, "allowed for recurrent agents: auto, false"),
    }
    if name in together:
        kwargs, words = together[name]
        refused({**values, "agent": {**values["agent"], "kwargs": kwargs}}, words)
    other = "GaussianRNNActor" if "PPO" not in name else "QValueMLPActor"
    refused({**values, "actor": {"cls": f"tmrl_core.actor:{other}"}}, "actor.cls")
print(len(algorithms()))
"""


def test_the_configuration_of_every_agent_is_checked_without_torch() -> None:
    found = subprocess.run([sys.executable, "-c", EVERY_AGENT], capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) == len(algorithms()) >= 11


def test_the_table_is_not_read_before_a_configuration_is_checked() -> None:
    script = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "import tmrl_core, tmrl_core.cli.main as main\n"
        "try:\n    main.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not [name for name in sys.modules if name.endswith('_settings')], sys.modules.keys()"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
