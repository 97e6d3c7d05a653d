"""The Server's protocol logic: admission, routing of messages, and limits of memory. Sans-I/O."""

from tmrl_core.networking.protocol.connection import Authenticate
from tmrl_core.networking.relay.connection import RelayConnection
from tmrl_core.networking.relay.core import Relay
from tmrl_core.networking.relay.settings import RelaySettings
from tmrl_core.networking.spools.spool import MemorySpool, Spool

__all__ = ["Authenticate", "MemorySpool", "Relay", "RelayConnection", "RelaySettings", "Spool"]
