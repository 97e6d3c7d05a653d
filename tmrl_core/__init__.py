"""Distributed reinforcement learning over TLS: rollout workers, one server, one trainer."""

__version__ = "0.1.0"
