"""Managers, environments and workers from the section `multiagent`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import ROOT
from tests.multiagent.remote_scenario import Manager, Stocks
from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.actor.policies.weights import difference
from tmrl_core.config import Config, from_values
from tmrl_core.errors import ConfigError, EnvironmentFailedError
from tmrl_core.multiagent import ActingPolicy, TrainingAgentAlgorithm, from_config
from tmrl_core.multiagent.from_config import environment_maker, make_manager, make_worker
from tmrl_core.roles.environment_probe import is_probed, probe_environment
from tmrl_core.samples import encode_value

SCENARIO = "tests.multiagent.remote_scenario"
POLICY = {"algorithm": f"{SCENARIO}:Weights"}
AGENT = {
    "agent": "tmrl_core.training:DQNAgent",
    "kwargs": {"observation_space": [[3], -1, 1], "action_space": 2, "hidden_sizes": [8]},
}


def values(**section: Any) -> dict[str, Any]:
    return {
        "environment": {"cls": f"{SCENARIO}:Stocks", "kwargs": {}},
        "worker": {"collection": "lockstep", "name": "one"},
        "trainer": {"lockstep": {"steps_per_round": None, "episodes_per_round": 1}},
        "multiagent": {"agents": {"north": "a", "south": "b"}, "policies": {"a": POLICY, "b": POLICY}, **section},
    }


def config(**section: Any) -> Config:
    return from_values(values(**section))


def test_the_same_name_is_the_same_object() -> None:
    shared = make_manager(config(agents={"north": "a", "south": "a"}, policies={"a": POLICY}), "training")
    assert shared.agents["north"].algorithm is shared.agents["south"].algorithm
    own = make_manager(config(), "training")
    assert own.agents["north"].algorithm is not own.agents["south"].algorithm
    assert own.agents["north"].experience_pool is not own.agents["south"].experience_pool
    policies = {name: {**POLICY, "memory": "all"} for name in "ab"}
    pool = make_manager(config(policies=policies, memories={"all": {"capacity": 7}}), "training")
    assert pool.agents["north"].experience_pool is pool.agents["south"].experience_pool


def test_agents_may_be_named_by_patterns() -> None:
    made = make_manager(config(agents={"*th": "a"}, agent_ids=["south", "north"], policies={"a": POLICY}), "training")
    assert made.agent_ids == ("south", "north")
    assert made.policy_of == {"south": "a", "north": "a"}


def test_a_manager_of_the_user_gets_its_arguments() -> None:
    exploration = {"cls": "tmrl_core.multiagent:LinearExplorer", "kwargs": {"initial": 0.5, "episodes": 3}}
    made = make_manager(config(manager=f"{SCENARIO}:Manager", exploration=exploration), "inference")
    assert isinstance(made, Manager)
    assert dict(made.explorer.epsilons) == {"north": 0.5, "south": 0.5}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"manager": f"{SCENARIO}:Stocks"}, ["multiagent.manager: got an unexpected keyword argument 'config'"]),
        ({"kwargs": {"state": 1}}, ["multiagent.manager: got an unexpected keyword argument 'state'", "state_shaper"]),
        ({"exploration": {"cls": "builtins:list"}}, ["multiagent.exploration.cls", "made a list", "Explorer"]),
        (
            {"policies": {"a": POLICY, "b": {"algorithm": f"{SCENARIO}:Weight"}}},
            ["multiagent.policies.b.algorithm", "Did you mean Weights"],
        ),
        (
            {"policies": {"a": POLICY, "b": {**POLICY, "kwargs": {"bies": 1}}}},
            ["multiagent.policies.b.algorithm", "bies", "bias"],
        ),
        ({"policies": {"a": POLICY, "b": {"algorithm": "builtins:dict"}}}, ["made a dict", "AgentAlgorithm"]),
        (
            {"policies": {"a": POLICY, "b": {**POLICY, "parameters": {"capacity": 5, "min_experiences": 9}}}},
            ["multiagent.policies.b.parameters: min_experiences is 9"],
        ),
    ],
)
def test_references_of_another_kind_are_refused_with_their_key(section: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_manager(config(**section), "inference")
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_test_environment_is_its_own() -> None:
    plain = config()
    assert isinstance(environment_maker(plain)(), Stocks)
    assert isinstance(environment_maker(plain, test=True)(), Stocks)
    own = config(test_environment={"cls": "builtins:dict", "kwargs": {}})
    with pytest.raises(ConfigError, match=r"multiagent\.test_environment\.cls: 'builtins:dict' made a dict"):
        environment_maker(own, test=True)()
    with pytest.raises(ConfigError, match=r"environment\.cls: 'tmrl_core\.envs:GenericGymEnv' made a GenericGymEnv"):
        environment_maker(from_values({**values(), "environment": {}}))()


def test_a_training_agent_learns_in_the_trainer_and_acts_in_workers() -> None:
    section = {"agents": {"north": "a", "south": "a"}, "policies": {"a": AGENT}}
    learner, actor = (make_manager(config(**section), mode) for mode in ("training", "inference"))
    assert isinstance(learner.policies["a"], TrainingAgentAlgorithm)
    assert isinstance(actor.policies["a"], ActingPolicy)
    actor.load_models(learner.get_models())
    assert actor.policies["a"].get_model() == learner.get_models()["a"]


def test_a_policy_is_made_in_one_way() -> None:
    both: list[dict[str, Any]] = [{**POLICY, **AGENT}, {"kwargs": {}}]
    for policy in both:
        with pytest.raises(ConfigError, match=r"multiagent\.policies\.a: set one of algorithm .* and agent"):
            config(agents={"north": "a"}, policies={"a": policy})


def test_a_worker_of_a_training_agent_needs_no_torch() -> None:
    section = {"agents": {"north": "a", "south": "a"}, "policies": {"a": AGENT}}
    script = f"""
import json, sys
sys.modules["torch"] = None
from tmrl_core.config import from_values
from tmrl_core.multiagent.from_config import make_worker
values = json.loads({json.dumps(json.dumps(values(**section)))})
with make_worker(from_values(values), standalone=True) as worker:
    algorithm = worker.collector.stage.manager.policies["a"]
    assert algorithm.choose_action([0.1, 0.2, 0.3], 0.0) in (0, 1)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=60)


def test_a_worker_without_a_server_plays_the_configured_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = from_values({**values(manager=f"{SCENARIO}:Manager"), "run": {"seed": 4}})
    scores = []
    for _ in range(2):
        with make_worker(made, standalone=True) as worker:
            assert worker.run_episode()
            scores.append(worker.recorder.buffer.stat_test_return)
    assert scores[0] == scores[1]


def test_a_signature_that_is_too_long_leaves_the_shapes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_manager(config(), "inference")
    models = {name: policy.get_model() for name, policy in manager.policies.items()}
    trainer = PolicyBundle(models, manager.explorer.epsilons).architecture()
    full = from_config.signature_of(manager)
    assert difference(full["policy"], trainer) == ""
    monkeypatch.setattr(from_config, "MAX_SIGNATURE_BYTES", len(encode_value(full)) - 1)
    short = from_config.signature_of(manager)
    assert "shapes" not in short["policy"]
    assert difference(short["policy"], trainer) == ""
    monkeypatch.setattr(from_config, "MAX_SIGNATURE_BYTES", 10)
    assert from_config.signature_of(manager) == {}


def test_an_exception_of_the_constructor_is_named_with_its_place() -> None:
    broken = {**values(), "environment": {"cls": f"{SCENARIO}:Stocks", "kwargs": {"hang_in": 7}}}
    with pytest.raises(EnvironmentFailedError, match=r"environment\.cls: .*remote_scenario\.py, line \d+: TypeError"):
        environment_maker(from_values(broken))()


def test_an_environment_is_tried_by_its_first_event_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_probed(config())
    calls: list[str] = []
    for name in ("reset", "step", "close"):

        def note(self: Stocks, *arguments: Any, name: str = name) -> tuple[Any, Any, bool]:
            calls.append(name)
            return None, None, False

        monkeypatch.setattr(Stocks, name, note)
    tried = from_values({**values(), "environment": {"cls": f"{SCENARIO}:Stocks", "kwargs": {}, "probe": True}})
    assert is_probed(tried)
    probe_environment(tried)
    assert calls == ["reset", "reset", "step", "close"], "the constructor resets too"
