"""Names of types in checkpoints: stable where a class declares one, so that its file may move.

A class declares in its body

    type_id = "sac"     its name in checkpoints, for good
    type_version = 1    the version of the state that it writes; a higher one is for a state that it wrote otherwise

A type id holds neither `:` nor `.`; every other class is named `module:qualname`. A derived class is a type of its own:
it does not inherit the id, but the version of the state that it extends.

A name is only ever compared with the class of an object that is there: nothing is looked up or imported by it.
"""

from __future__ import annotations

FORMER_NAMES = {
    f"tmrl_core.training.{place}": type_id
    for place, type_id in (
        ("discrete_sac.DiscreteSacAgent", "discrete_sac"),
        ("dqn.DQNAgent", "dqn"),
        ("frame_stack_memory.FrameStackMemory", "frame_stack_replay"),
        ("lockstep.TrainingLockstep", "lockstep"),
        ("memory.GenericTorchMemory", "generic_torch_memory"),
        ("offline.TorchTrainingOffline", "torch_offline"),
        ("offline.TrainingOffline", "offline"),
        ("ppo.PPOAgent", "ppo"),
        ("redq.REDQSACAgent", "redq"),
        ("replay.ReplayMemory", "replay"),
        ("round_memory.RoundMemory", "round"),
        ("sac.SacAgent", "sac"),
        ("td3.TD3Agent", "td3"),
    )
}
"""Names in checkpoints of format 2, which are the places where classes were then. Read until release 1.0."""


def type_name(kind: type) -> str:
    """Return a class's type id, or `module:qualname` where it declares none."""
    declared: str | None = vars(kind).get("type_id")
    return declared if declared is not None else f"{kind.__module__}:{kind.__qualname__}"


def type_version(kind: type) -> int:
    """Return the version of the state that a class writes."""
    return next((vars(base)["type_version"] for base in kind.__mro__ if "type_version" in vars(base)), 1)


def saved_name(name: str) -> str:
    """Return the name that a checkpoint of format 2 would give today, if its class has a type id now."""
    return FORMER_NAMES.get(name, name)


def is_named(kind: type, name: str) -> bool:
    """Return True when a checkpoint, of format 2 or a newer one, means this class by a name."""
    return saved_name(name).replace(":", ".") == type_name(kind).replace(":", ".")
