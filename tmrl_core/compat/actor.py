"""The interfaces of `tmrl.actor`: the project's own. The first one needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.actor import ActorModule as ActorModule
    from tmrl_core.actor import TorchActorModule as TorchActorModule

__all__, __getattr__, __dir__ = lazy_names("tmrl_core.compat", {".actor": "ActorModule TorchActorModule"})
