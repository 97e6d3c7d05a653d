"""A run with several Servers on one page."""

from __future__ import annotations

import msgspec

from tests.dashboard.played import Played, history, peer, scene, status, worker
from tmrl_core.dashboard.faults import Seen
from tmrl_core.dashboard.screen import Screen, screen
from tmrl_core.dashboard.several import SeveralServers
from tmrl_core.networking.protocol.pictures import Picture
from tmrl_core.networking.protocol.telemetry import Order


class Place:
    """Two Servers, with robot1 at the first and robot2 at the second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.first, self.second = Played(may_order=True), Played(may_order=True)
        self.source = SeveralServers({"one:1": self.first, "two:2": self.second}, lambda: self.now)
        for number, played in enumerate((self.first, self.second)):
            played.show(
                scene=msgspec.structs.replace(scene(), workers=(worker(number),)),
                status=status(1, peers=(peer("worker", f"robot{number + 1}"), peer("trainer", "t"))),
                history=history(),
            )

    def screen(self) -> Screen:
        source = self.source
        seen = Seen(source.state, source.scene, 0.0, source.status, others=source.others("-c FILE"))
        return screen(seen, source.history, may_order=source.may_order)


def test_workers_and_parts_of_all_servers_are_shown() -> None:
    found = Place().screen()
    assert [row.name for row in found.workers] == ["robot1", "robot2"]
    assert [(part.name, part.level, part.text.partition(";")[0]) for part in found.parts] == [
        ("Servers", "good", "2 of 2 in order"),
        ("Trainers", "good", "2 of 2 in order"),
        ("Workers", "good", "2 of 2 in order"),
    ]
    assert found.faults == []


def test_a_server_that_is_not_reached_is_named() -> None:
    place = Place()
    place.second.show(state="not connected to the Server at two port 2: refused")
    found = place.screen()
    assert [(part.level, part.text.partition(";")[0]) for part in found.parts[:2]] == [
        ("bad", "1 of 2 in order"),
        ("off", "1 of 2 in order"),
    ]
    (fault,) = found.faults
    assert fault.text.startswith("two:2: The Server is not reached: not connected to the Server at two port 2")


def test_a_silent_worker_of_another_server_is_named_by_its_own_clock() -> None:
    place = Place()
    assert place.screen().faults == []
    place.now = 100.0
    texts = [fault.text for fault in place.screen().faults]
    assert any(text.startswith("two:2: ") and "robot2" in text for text in texts), texts
    assert place.second.scene is not None
    place.second.show(scene=msgspec.structs.replace(place.second.scene, time_s=1.0))
    assert place.screen().faults == []


def test_what_holds_for_the_whole_run_is_told_once() -> None:
    place = Place()
    for played in (place.first, place.second):
        assert played.scene is not None
        played.show(scene=msgspec.structs.replace(played.scene, state="ended"))
    assert [fault.text for fault in place.screen().faults] == ["The run has ended."]


def test_an_order_goes_to_the_server_of_its_worker_and_its_answer_is_shown() -> None:
    place = Place()
    second, first = Order(kind="pause_worker", worker="robot2"), Order(kind="pause")
    for order in (second, first, Order(kind="camera", worker="nobody")):
        place.source.order(order)
    assert place.second.orders == [second]
    assert [order.kind for order in place.first.orders] == ["pause", "camera"]
    told = place.source.scene
    assert told is not None
    assert {outcome.text for outcome in told.orders} == {"pause_worker robot2", "pause", "camera nobody"}


def test_pictures_of_all_are_shown_and_all_are_closed() -> None:
    place = Place()
    pictures = [Picture(f"robot{number}", "camera", number, b"frame") for number in (1, 2)]
    for played, picture in zip((place.first, place.second), pictures, strict=True):
        played.show(pictures={(picture.worker, picture.kind): picture})
    assert list(place.source.pictures.values()) == pictures
    seen = place.source.changed
    place.second.show(state="connected")
    assert place.source.wait(5.0, after=seen)
    place.source.close()
    assert place.first.closed
    assert place.second.closed
