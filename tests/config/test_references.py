"""References `package.module:Name`: what they find, and what is said when they find nothing."""

from __future__ import annotations

import collections
import functools
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from tmrl_core.config import environment_maker, resolve, resolve_optional, resolve_with
from tmrl_core.errors import ConfigError, EnvironmentFailedError


def test_a_reference_finds_names_and_names_in_names() -> None:
    assert resolve("collections:OrderedDict") is collections.OrderedDict
    assert resolve("collections:OrderedDict.fromkeys") == collections.OrderedDict.fromkeys
    assert resolve_optional(None) is None
    assert resolve_optional("collections:deque") is collections.deque


def test_keyword_arguments_are_bound() -> None:
    assert resolve_with("collections:deque", {}) is collections.deque
    bound = resolve_with("collections:deque", {"maxlen": 3})
    assert isinstance(bound, functools.partial)
    assert bound().maxlen == 3


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("collections.deque", ["is not a reference", "package.module:Name"]),
        ("collections:", ["is not a reference"]),
        (":deque", ["is not a reference"]),
        ("colections:deque", ["module 'colections' was not found"]),
        ("collections.nothing:deque", ["module 'collections.nothing' was not found"]),
        ("collections:dequeue", ["has no 'dequeue'", "Did you mean deque"]),
        ("collections:ordereddict", ["has no 'ordereddict'", "Did you mean OrderedDict?"]),
        ("collections:OrderedDict.fromkey", ["has no 'fromkey'", "fromkeys"]),
    ],
)
def test_the_error_names_the_missing_object_and_its_key(reference: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(reference, "memory.cls")
    assert str(caught.value).startswith("memory.cls: ")
    for part in parts:
        assert part in str(caught.value)


def test_objects_that_cannot_be_called_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.cls: 'math:pi' is 3\.14\d+ \(float\), which cannot"):
        resolve_with("math:pi", {}, "agent.cls")


def test_a_module_s_own_missing_import_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_something.py").write_text("import package_that_is_not_there\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"something\.py, line 1, imports 'package_that_is_not_there', which is not"):
        resolve("needs_something:Name")


def _needs_more(**_: Any) -> Any:
    raise gymnasium.error.DependencyNotInstalled('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`')


@pytest.mark.parametrize(
    ("id_", "said"),
    [
        ("CartPole-v7", r"^environment\.kwargs: Environment version `v7` for environment `CartPole` doesn't exist"),
        ("NeedsMore-v0", r"^environment\.kwargs: MuJoCo is not installed, run `pip install"),
        ("ALE/Pong-v5", r"Namespace ALE not found.* Write id: ale_py:ALE/Pong-v5, which imports the package"),
        ("Robot-v3", r"write id: package\.module:Robot-v3"),
        ("not_there:Robot-v0", r"^environment\.kwargs\.id: No module named 'not_there'\. .*can be imported"),
        ("not_there.at_all:Robot-v0", r"^environment\.kwargs\.id: No module named 'not_there'"),
    ],
)
def test_an_environment_that_gymnasium_cannot_make_is_a_config_error(id_: str, said: str) -> None:
    gymnasium.register("NeedsMore-v0", entry_point=_needs_more)
    try:
        with pytest.raises(ConfigError, match=said):
            environment_maker("tmrl_core.envs:GenericGymEnv", {"id": id_})()
    finally:
        del gymnasium.registry["NeedsMore-v0"]


def test_a_missing_import_of_an_environments_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacks_something.py").write_text("import something_else\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'something_else'.*'lacks_something' contains env registration"):
        environment_maker("tmrl_core.envs:GenericGymEnv", {"id": "lacks_something:Robot-v0"})()


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (
            "import nowhere_at_all",
            ConfigError,
            r"own_env\.py, line 1, imports 'nowhere_at_all', which is not installed",
        ),
        ("1 / 0", ConfigError, r"own_env\.py, line 1: ZeroDivisionError: division by zero\. The module own_env cannot"),
        ("def Env():\n    import nowhere", ConfigError, r"own_env\.py, line 2: No module named 'nowhere'\. Install"),
        ("def Env():\n    assert 1 > 2", EnvironmentFailedError, r"line 2: AssertionError: assert 1 > 2\. The environ"),
        ("def Env():\n    {}['port']", EnvironmentFailedError, r"own_env\.py, line 2: KeyError: 'port'\. The environ"),
        (
            "def Env():\n    import json; json.loads('{')",
            EnvironmentFailedError,
            r"own_env\.py, line 2: JSONDecodeError",
        ),
    ],
)
def test_an_exception_of_the_users_module_or_constructor_is_named_with_its_line(
    source: str, kind: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_env.py").write_text(source + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pytest.raises(kind, match=said) as caught:
            environment_maker("own_env:Env", {})()
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
    finally:
        sys.modules.pop("own_env", None)


def test_the_text_of_a_long_exception_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long_env.py").write_text("def Env():\n    raise ValueError('\\n'.join('abcdefgh'))\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        EnvironmentFailedError, match=r"ValueError: a\nb\nc\nd\n\.\.\.\. The environment cannot"
    ) as caught:
        environment_maker("long_env:Env", {})()
    assert len(str(caught.value).splitlines()) == 5


def test_the_error_names_the_missing_attributes_of_an_environment() -> None:
    make = environment_maker("types:SimpleNamespace", {"reset": 1, "step": 2, "close": 3})
    with pytest.raises(
        ConfigError, match="SimpleNamespace, which is not an environment: it lacks action_space, observation_space"
    ):
        make()


class Talking(gymnasium.Env[Any, Any]):
    """An environment that says its task as a text."""

    observation_space = spaces.Dict(
        {"mission": spaces.Text(9), "view": spaces.Discrete(3), "heading": spaces.Discrete(4)}
    )
    action_space = spaces.Discrete(2)
    closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return {"view": 1, "mission": "go", "heading": 2}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"view": 2, "mission": "go", "heading": 3}, 1.0, False, False, {}

    def close(self) -> None:
        Talking.closed += 1


def test_entries_of_an_observation_are_left_out_on_request() -> None:
    env = environment_maker(f"{__name__}:Talking", {}, ["mission"])()
    assert list(env.observation_space.spaces) == list(env.reset()[0]) == ["heading", "view"]
    assert env.step(0) == ({"heading": 3, "view": 2}, 1.0, False, False, {})
    assert isinstance(env.unwrapped, Talking)
    whole = environment_maker(f"{__name__}:Talking", {})()
    assert isinstance(whole, Talking)


@pytest.mark.parametrize("drop", [["task"], ["mission", "task"], ["mission", "view", "heading"]])
def test_entries_that_are_missing_and_all_entries_cannot_be_left_out(drop: list[str]) -> None:
    closed = Talking.closed
    with pytest.raises(ConfigError, match=r"^environment.drop: found \['.*Allowed: some of the entries of a Dict"):
        environment_maker(f"{__name__}:Talking", {}, drop)()
    assert Talking.closed == closed + 1


def test_only_a_dict_of_a_gymnasium_environment_has_entries_to_leave_out() -> None:
    with pytest.raises(ConfigError, match=r"^environment.drop: .* the observation space Box"):
        environment_maker("tmrl_core.envs:GenericGymEnv", {"id": "Pendulum-v1"}, ["mission"])()
    own: dict[str, Any] = {"action_space": Talking.action_space, "observation_space": Talking.observation_space}
    own |= {"reset": 1, "step": 2, "close": list}
    with pytest.raises(
        ConfigError, match=r"^environment.drop: .* the environment is a SimpleNamespace .* gymnasium.Env"
    ):
        environment_maker("types:SimpleNamespace", own, ["mission"])()
