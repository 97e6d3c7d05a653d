"""What the training interface says over a link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tmrl_core.actor import ActorModule
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.messages import PolicyUpdate, decode_body
from tmrl_core.training.remote import RemoteInterface


class Noisy(ActorModule):
    """A policy that workers are to explore with."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return 0

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(b"weights")

    def exploration(self) -> dict[str, float]:
        return {"noise": 0.25}


class Bare:
    """An actor of the fewest methods."""

    def to_blob(self) -> tuple[str, bytes]:
        return "file", b"weights"


def published(actor: Any) -> PolicyUpdate:
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    RemoteInterface(link).broadcast_model(actor)
    assert link._trainer.policy is not None
    update: PolicyUpdate = decode_body(link._trainer.policy[1], PolicyUpdate)
    return update


def test_a_policy_travels_with_what_workers_explore_with() -> None:
    update = published(Noisy(None, None))
    assert update.exploration == {"noise": 0.25}
    assert update.policies["policy"].data == b"weights"


def test_most_policies_say_nothing_of_exploration() -> None:
    assert published(Bare()).exploration == {}
