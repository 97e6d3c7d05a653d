from __future__ import annotations

import pytest

from tmrl_core.config.registered_ids import prefix_hint


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


@pytest.mark.parametrize("id_", ["ale_py:ALE/Pong-v5", None])
def test_an_id_with_a_module_needs_no_hint(id_: object) -> None:
    assert prefix_hint(id_) == ""
