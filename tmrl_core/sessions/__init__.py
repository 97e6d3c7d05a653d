"""Recorded sessions: episodes in files, to train from. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.sessions.lerobot import read_lerobot as read_lerobot
    from tmrl_core.sessions.lerobot import write_lerobot as write_lerobot
    from tmrl_core.sessions.minari import read_minari as read_minari
    from tmrl_core.sessions.minari import write_minari as write_minari
    from tmrl_core.sessions.pool import SessionBatch as SessionBatch
    from tmrl_core.sessions.pool import SessionPool as SessionPool
    from tmrl_core.sessions.pool import padded_sequences as padded_sequences
    from tmrl_core.sessions.session import Session as Session
    from tmrl_core.sessions.session import sessions_of as sessions_of
    from tmrl_core.sessions.session_files import SessionWriter as SessionWriter
    from tmrl_core.sessions.session_files import read_sessions as read_sessions
    from tmrl_core.sessions.session_files import read_spaces as read_spaces

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "session": "Session sessions_of",
        "lerobot": "read_lerobot write_lerobot",
        "minari": "read_minari write_minari",
        "pool": "SessionBatch SessionPool padded_sequences",
        "session_files": "SessionWriter read_sessions read_spaces",
    },
)
