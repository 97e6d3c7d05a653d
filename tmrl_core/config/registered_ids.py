"""Gymnasium ids that other packages register when they are imported."""

from __future__ import annotations

import re

REGISTERED_BY = {
    "ale_py": r"ALE/",
    "minigrid": r"MiniGrid-|BabyAI-",
    "gymnasium_robotics": r"Fetch|Hand(Manipulate|Reach)|PointMaze_|AntMaze_|Adroit|FrankaKitchen",
    "shimmy": r"dm_control/",
    "metaworld": r"Meta-World/",
    "highway_env": r"(highway|merge|roundabout|parking|intersection|racetrack|exit|two-way|u-turn|lane-keeping)-",
    "panda_gym": r"Panda",
    "mo_gymnasium": r"mo-|deep-sea-treasure|minecart|resource-gathering|fruit-tree|four-room|fishwood",
    "gym_hil": r"gym_hil/",
    "gym_pusht": r"gym_pusht/",
    "gym_aloha": r"gym_aloha/",
    "gym_xarm": r"gym_xarm/",
    "myosuite": r"myo[A-Z]",
    "flappy_bird_gymnasium": r"FlappyBird",
    "PyFlyt.gym_envs": r"PyFlyt/",
}
"""Modules whose import registers Gymnasium ids, and the beginning of these ids."""


def prefix_hint(id_: object) -> str:
    """Return the way to write an id that another package registers, or what to do if importing it registers nothing."""
    if not isinstance(id_, str):
        return ""
    if ":" in id_:
        module = id_.partition(":")[0]
        return (
            f" Importing {module} does not register it. Some packages want a call, such as register_envs(): make it in "
            "a module of your own, in a function that returns the environment, and name that in environment.cls."
        )
    for module, ids in REGISTERED_BY.items():
        if re.match(ids, id_):
            return f" Write id: {module}:{id_}, which imports the package that registers it."
    return f" If another package registers it, write id: package.module:{id_}, which imports that first."
