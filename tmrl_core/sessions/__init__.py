"""Recorded sessions: episodes in files, to train from. Imports no torch. Rooms add formats and further names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tmrl_core import rooms
from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.sessions.session import Session as Session
    from tmrl_core.sessions.session import sessions_of as sessions_of
    from tmrl_core.sessions.session_files import SessionWriter as SessionWriter
    from tmrl_core.sessions.session_files import read_sessions as read_sessions
    from tmrl_core.sessions.session_files import read_spaces as read_spaces

_, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "session": "Session sessions_of",
        "session_files": "SessionWriter read_sessions read_spaces",
    },
    further=partial(rooms.exports, __name__),
)
