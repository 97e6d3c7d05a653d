"""The sides of links that carry no samples: an observer's, a viewer's and a prober's. Sans-I/O."""

from tmrl_core.networking.observer.connection import ObserverConnection, ObserverState
from tmrl_core.networking.observer.viewer import ViewerConnection, ViewerState

__all__ = ["ObserverConnection", "ObserverState", "ViewerConnection", "ViewerState"]
