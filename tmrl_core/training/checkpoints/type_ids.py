"""Types as checkpoints name them, also in the way of format 2.

A name is only ever compared with the class of an object that is there: nothing is looked up or imported by it.
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
"""Names in checkpoints of format 2, which are the places where classes were then. Read until release 1.0."""


def saved_name(name: str) -> str:
    """Return the name that a checkpoint of format 2 would give today, if its class has a type id now."""
    return FORMER_NAMES.get(name, name)


def is_named(kind: type, name: str) -> bool:
    """Return True when a checkpoint means this class by a name: its type id, or its place, in format 2 without a colon.

    A class may declare its id when there are checkpoints with its place already.
    """
    named = saved_name(name).replace(":", ".")
    return named in (type_name(kind), place_of(kind).replace(":", "."))
