"""Recorded sessions as environments, and environments written in torch.

Nothing here imports torch before it is needed. `tmrl_core.envs` and `tmrl_core.sessions` export the same names, without
their types: this room can be taken away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.envs.replay.functional_environment import BaseEnvironment as BaseEnvironment
    from tmrl_core.envs.replay.functional_environment import FunctionalEnv as FunctionalEnv
    from tmrl_core.envs.replay.pool import SessionBatch as SessionBatch
    from tmrl_core.envs.replay.pool import SessionPool as SessionPool
    from tmrl_core.envs.replay.pool import padded_sequences as padded_sequences
    from tmrl_core.envs.replay.pool_environment import SessionPoolEnvironment as SessionPoolEnvironment
    from tmrl_core.envs.replay.recorded import SessionBatchEnvironment as SessionBatchEnvironment
    from tmrl_core.envs.replay.unrolling import SessionActor as SessionActor
    from tmrl_core.envs.replay.unrolling import Sessions as Sessions
    from tmrl_core.envs.replay.unrolling import get_sessions as get_sessions

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "functional_environment": "BaseEnvironment FunctionalEnv",
        "pool": "SessionBatch SessionPool padded_sequences",
        "pool_environment": "SessionPoolEnvironment",
        "recorded": "SessionBatchEnvironment",
        "unrolling": "SessionActor Sessions get_sessions",
    },
)
