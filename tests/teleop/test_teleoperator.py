from __future__ import annotations

from enum import Enum

import pytest

from tmrl_core.errors import ConfigError
from tmrl_core.teleop import TeleoperatorSource


class Event(Enum):
    SUCCESS = "success"
    RERECORD_EPISODE = "rerecord_episode"
    IS_INTERVENTION = "is_intervention"
    TERMINATE_EPISODE = "terminate_episode"


class Teleoperator:
    """Methods of lerobot's teleoperators that are used here."""

    def __init__(self) -> None:
        self.connected = False
        self.flags: dict[Event, bool] = dict.fromkeys(Event, False)

    def connect(self) -> None:
        self.connected = True

    def disconnect(self) -> None:
        self.connected = False

    def get_action(self) -> dict[str, float]:
        return {"delta_x": 0.5, "gripper": 2}

    def get_teleop_events(self) -> dict[Event, bool]:
        return self.flags


@pytest.mark.parametrize(
    ("flags", "event"),
    [
        ([], []),
        (["SUCCESS", "TERMINATE_EPISODE"], ["success"]),
        (["TERMINATE_EPISODE"], ["failure"]),
        (["TERMINATE_EPISODE", "RERECORD_EPISODE"], ["rerecord_episode"]),
    ],
)
def test_a_teleoperator_of_lerobot_is_a_source(flags: list[str], event: list[str]) -> None:
    source = TeleoperatorSource(f"{__name__}:Teleoperator")
    teleoperator = source._teleoperator
    assert isinstance(teleoperator, Teleoperator)
    assert teleoperator.connected
    assert source.poll(None) is None
    teleoperator.flags.update(dict.fromkeys([Event[name] for name in ["IS_INTERVENTION", *flags]], True))
    assert source.poll(None).tolist() == [0.5, 2]
    assert list(source.events()) == event
    source.close()
    assert not teleoperator.connected


def test_an_object_without_events_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kwargs\.make: builtins:dict made a dict; allowed: an object with connect"):
        TeleoperatorSource("builtins:dict")
