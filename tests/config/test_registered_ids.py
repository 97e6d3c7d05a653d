from __future__ import annotations

import pytest

from tmrl_core.config import environment_maker
from tmrl_core.config.registered_ids import prefix_hint
from tmrl_core.errors import ConfigError


@pytest.mark.parametrize(
    ("id_", "written"),
    [
        ("ALE/Pong-v5", "ale_py:ALE/Pong-v5"),
        ("MiniGrid-Empty-8x8-v0", "minigrid:MiniGrid-Empty-8x8-v0"),
        ("BabyAI-GoTo-v0", "minigrid:BabyAI-GoTo-v0"),
        ("FetchReach-v4", "gymnasium_robotics:FetchReach-v4"),
        ("dm_control/cartpole-swingup-v0", "shimmy:dm_control/cartpole-swingup-v0"),
        ("highway-fast-v0", "highway_env:highway-fast-v0"),
        ("mo-hopper-v5", "mo_gymnasium:mo-hopper-v5"),
        ("MyRobot-v0", "package.module:MyRobot-v0"),
    ],
)
def test_the_hint_names_the_module_that_registers_an_id(id_: str, written: str) -> None:
    assert f"rite id: {written}, which imports" in prefix_hint(id_)


def test_an_id_that_its_module_does_not_register_needs_a_call() -> None:
    make = environment_maker("tmrl_core.envs:GenericGymEnv", {"id": "json:MinAtar/Breakout-v1"})
    with pytest.raises(ConfigError, match=r"Importing json does not register it.* such as register_envs"):
        make()


def test_another_id_needs_no_hint() -> None:
    assert prefix_hint(None) == ""
