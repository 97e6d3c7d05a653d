"""The sides of links that carry no samples: an observer's and a prober's. Sans-I/O."""

from tmrl_core.networking.observer.connection import ObserverConnection, ObserverState

__all__ = ["ObserverConnection", "ObserverState"]
