"""docs/environments.md is made of its families and results; recordings that differ from an environment are told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.benchmarks.scripts import imported
from tmrl_core.config import from_values
from tmrl_core.sessions.session import Session

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "environments"
MODULES = ("try_families", "families_page", "replayed")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    """The scripts' modules, imported as when they are run."""
    with imported(FOLDER, MODULES) as found:
        yield found


def test_the_page_is_what_the_results_say(modules: dict[str, Any]) -> None:
    page = modules["families_page"]
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.families(), modules["try_families"].read_results())


def test_the_results_are_those_of_valid_configurations_that_stand_in_the_families(modules: dict[str, Any]) -> None:
    families = modules["families_page"].families()
    results = modules["try_families"].read_results()
    cases = {family["name"]: [case["environment"] for case in family.get("cases", ())] for family in families}
    for environments in cases.values():
        for environment in environments:
            from_values({"environment": environment})
    for line in results:
        assert "environment" not in line or line["environment"] in cases[line["family"]]


class Walk(gymnasium.Env[Any, Any]):
    """A random walk. `flaw` makes it breach what a replay needs."""

    observation_space = spaces.Dict({"place": spaces.Box(-99, 99, (2,), np.float64), "side": spaces.Discrete(2)})
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        self.place = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=None if self.flaw == "seed" else seed)
        self.place[:] = self.np_random.uniform(-1, 1, 2)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.flaw == "action":
            action *= 0.5
        self.place += action
        reward = 1 if self.flaw == "types" and self.steps == 4 else 0.5
        return self.seen(), reward, False, self.steps == 5, {}

    def seen(self) -> Any:
        place = self.place if self.flaw == "alias" else self.place.copy()
        return {"place": place, "side": 5 if self.flaw == "outside" else int(self.place[0] > 0)}


def played(flaw: str = "") -> Session:
    """Record one episode of a walk."""
    env = Walk(flaw)
    env.action_space.seed(0)
    observations, actions, rewards = [env.reset(seed=3)[0]], [], []
    for _ in range(5):
        actions.append(env.action_space.sample())
        observation, reward, *_ = env.step(actions[-1].copy())
        observations.append(observation)
        rewards.append(float(reward))
    columns: Any = {
        "place": np.array([each["place"] for each in observations]),
        "side": np.array([each["side"] for each in observations]),
    }
    return Session(
        observations=columns, actions=np.array(actions), rewards=np.array(rewards), truncated=True, seed=3, source="w"
    )


@pytest.mark.parametrize(
    ("flaw", "told"), [("", []), ("seed", ["observation"]), ("action", ["observation"]), ("types", ["reward"])]
)
def test_a_replay_tells_what_differs(modules: dict[str, Any], flaw: str, told: list[str]) -> None:
    found = dict(modules["replayed"].compared(Walk(flaw), played()))
    assert list(found) == told


def test_bits_and_dtypes_count(modules: dict[str, Any]) -> None:
    same = modules["replayed"].same
    assert same(np.array([0.0], np.float32), np.array([0.0], np.float32))
    assert not same(np.array([0.0], np.float32), np.array([-0.0], np.float32))
    assert not same(np.array([1.0], np.float32), np.array([1.0], np.float64))
    assert same(np.array([np.nan], np.float64), np.array([np.nan], np.float64))
    assert same(np.int64(3), 3)
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    different = modules["replayed"].different
    assert different({"a": 1, "b": 2}, {"b": 2, "a": 1}) == "order of keys"
    assert different({"a": 1, "b": 2}, {"b": 3, "a": 1}) == "observation"
    assert different({"a": 1}, {"a": 1}) == ""


@pytest.mark.parametrize(
    ("flaw", "told"),
    [
        ("", []),
        ("seed", ["the same seed in the same object", "the same seed in a fresh object"]),
        (
            "action",
            ["the given action is changed", "the same seed in the same object", "the same seed in a fresh object"],
        ),
        ("types", ["types of rewards"]),
        ("alias", ["the observation of the step before changes"]),
        ("outside", ["observations outside their space"]),
    ],
)
def test_a_probe_tells_what_surprises(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch, flaw: str, told: list[str]
) -> None:
    case = {"environment": {"cls": f"{__name__}:Walk", "kwargs": {"flaw": flaw}}}
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Walk.__module__])
    assert list(modules["replayed"].probe(case, Path())) == told


def test_a_difference_and_a_failure_stand_in_the_table(modules: dict[str, Any]) -> None:
    page = modules["families_page"]
    environment = {"cls": "tmrl_core.envs:GenericGymEnv", "kwargs": {"id": "X-v0", "gym_kwargs": {"big": True}}}
    record: dict[str, Any] = {"observations": "float32 3", "actions": "Discrete(2)"}
    good: dict[str, Any] = {"sessions": 5, "steps": 70, "differences": {}}
    bad = {**good, "differences": {"reward": "episode 2, step 4"}}
    result: dict[str, Any] = {"environment": environment, "record": record, "replay": {"0": good, "7": bad}}
    cell = "send_every 0: equal. send_every 7: reward: episode 2, step 4"
    assert page.row(result) == f"| `X-v0` (big: True) | float32 3 | Discrete(2) | 5, 70 | {cell} |"
    failed: dict[str, Any] = {"environment": environment, "failed": "record: no"}
    found = [result, {**result, "replay": {"0": good, "7": good}}, failed]
    assert page.verdict(found) == "equal: 1, differs: 1, refused: 1"
    assert page.verdict(found[1:2]) == "equal"
    fewer = {**found[1], "record": {**record, "episodes": {"0": 6, "7": 5}}}
    assert page.row(fewer).endswith("| 5, 70 | send_every 0: 5 of 6 episodes are recorded. send_every 7: equal |")
    assert page.row(found[1]).endswith("| 5, 70 | equal |")
    assert page.verdict([fewer]) == "differs: 1"
    assert page.verdict([failed]) == "does not run here"
    assert page.verdict([]) == "not tried with these versions"
