"""The Server's mind: who may say what, who gets what, and how much of it is held. Sans-I/O."""

from tmrl_core.networking.relay.connection import RelayConnection
from tmrl_core.networking.relay.core import Authenticate, Relay
from tmrl_core.networking.relay.settings import RelaySettings
from tmrl_core.networking.spools.memory import MemorySpool, Spool

__all__ = ["Authenticate", "MemorySpool", "Relay", "RelayConnection", "RelaySettings", "Spool"]
