"""Names of types in checkpoints, those of format 2 included.

A name is only compared with the class of an existing object. Nothing is imported by name.
"""

from __future__ import annotations

from tmrl_core.training.checkpointable import place_of, type_name

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
"""Names in checkpoints of format 2: the classes' qualified names at that time. Read until release 1.0."""


def saved_name(name: str) -> str:
    """Return the current name for a name of format 2, if the class has a type id now."""
    return FORMER_NAMES.get(name, name)


def is_named(kind: type, name: str) -> bool:
    """Return True if a name in a checkpoint means this class.

    The name is the class's type id or its qualified name, which has no colon in format 2. A class may declare an id
    even if checkpoints with its qualified name exist.
    """
    named = saved_name(name).replace(":", ".")
    return named in (type_name(kind), place_of(kind).replace(":", "."))
