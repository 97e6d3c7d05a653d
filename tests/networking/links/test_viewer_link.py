"""A viewer's link over TLS: each machine has a bundle of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.hostile.fleet import Fleet
from tests.waiting import until
from tmrl_core.errors import CredentialsError
from tmrl_core.metrics.latest import LatestSink
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.networking import Server
from tmrl_core.networking.links import TrainerLink, WorkerLink
from tmrl_core.networking.links.viewer_link import ViewerLink
from tmrl_core.networking.protocol.pictures import MAX_VIDEO_BYTES, Picture, Wanted
from tmrl_core.networking.protocol.telemetry import Order
from tmrl_core.networking.security import renewal
from tmrl_core.networking.security.revocations import REVOKED_FILE, SIGNED_FILE
from tmrl_core.training.remote.interface import RemoteInterface
from tmrl_core.training.remote.telemetry import HIDDEN, RunTelemetry


class Watched:
    """A fleet whose trainer shows its run."""

    def __init__(self, fleet: Fleet, server: Server, stack: ExitStack) -> None:
        self.stack = stack
        self.fleet = fleet
        self.server = server
        self.interface: RemoteInterface

    def train(self, **settings: str) -> RemoteInterface:
        latest = LatestSink()
        recorder = self.stack.enter_context(Recorder([latest]))
        link = TrainerLink(self.fleet.settings("hpc", **settings), name="hpc", run="run")
        self.interface = interface = RemoteInterface(link, recorder=recorder)
        link.trainer.telemetry = RunTelemetry(
            link, latest, interface.progressing, lambda: recorder.elapsed_s, {"trainer.epochs": "3"}
        )
        link.start()
        self.stack.callback(link.close)
        assert link.wait_connected(20.0)
        return interface

    def view(self, machine: str, **more: bool) -> ViewerLink:
        link = ViewerLink(self.fleet.settings(machine), "run", name="display", **more)
        link.start()
        self.stack.callback(link.close)
        return link

    def worker(self) -> WorkerLink:
        worker = self.fleet.worker()
        self.fleet.send(worker)
        return worker

    def until(self, condition: Callable[[], object]) -> None:
        """Wait, while the trainer looks at what has arrived."""

        def met() -> object:
            for delivery in self.interface.receive():
                delivery.accept()
            return condition()

        until(met)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Server]]:
    with ExitStack() as stack:
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), stack)
        for name in ("anna", "ben"):
            fleet.install("operator", name)
        yield fleet, fleet.server()


@pytest.fixture
def watched(running: tuple[Fleet, Server]) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(*running, stack)


def test_the_trainers_own_machine_may_order_and_the_servers_only_looks(watched: Watched) -> None:
    watched.train()
    trainer, server = watched.view("hpc"), watched.view("server")
    looking = watched.view("hpc", orders=False)
    watched.until(lambda: trainer.scene and server.scene and looking.scene)
    assert (trainer.may_order, server.may_order, looking.may_order) == (True, False, False)
    assert not server.authenticated
    for viewer, why in ((server, "no operator's certificate"), (looking, "this viewer only looks")):
        outcome = viewer.outcome(viewer.order(Order(kind="pause")))
        assert outcome is not None
        assert why in outcome.outcome
    order = trainer.order(Order(kind="pause_worker", worker="nobody"))
    watched.until(lambda: trainer.outcome(order))
    outcome = trainer.outcome(order)
    assert outcome is not None
    assert outcome.outcome == "refused: no worker 'nobody' is connected; connected: none"


def test_an_operators_bundle_is_for_nothing_else(watched: Watched) -> None:
    settings = watched.fleet.settings("anna")
    as_trainer = TrainerLink(settings, name="t", run="run")
    as_worker = WorkerLink(settings, name="w", run="run")
    for link in (as_trainer, as_worker):
        with pytest.raises(CredentialsError, match="these are an operator's credentials"):
            link.start()
    with pytest.raises(CredentialsError, match="has a worker's credentials only"):
        ViewerLink(watched.fleet.settings("robot")).start()


def test_a_revoked_operator_is_shut_out(watched: Watched) -> None:
    watched.train()
    viewer = watched.view("ben")
    watched.until(lambda: viewer.scene)
    renewal.revoke(watched.fleet.authority, "ben")
    for file in (REVOKED_FILE, SIGNED_FILE):
        shutil.copy(watched.fleet.authority / file, watched.fleet.folder / "server")
    watched.until(lambda: "was revoked" in viewer.state)
    assert not viewer.connected


def test_with_encryption_the_server_learns_nothing_more(watched: Watched) -> None:
    watched.train(end_to_end="encrypt")
    viewer = watched.view("anna")
    watched.until(lambda: viewer.scene and viewer.history)
    scene, history = viewer.scene, viewer.history
    assert scene is not None
    assert history is not None
    assert (scene.hidden, scene.settings, scene.values, history.series) == (HIDDEN, {}, {}, {})
    assert viewer.may_order


def test_without_proofs_the_server_is_trusted_with_orders(watched: Watched) -> None:
    watched.train(end_to_end="off")
    viewer = ViewerLink(watched.fleet.settings("hpc", end_to_end="off"), name="anna")
    viewer.start()
    watched.stack.callback(viewer.close)
    watched.until(lambda: viewer.may_order)
    assert not viewer.authenticated
    order = viewer.order(Order(kind="checkpoint"))
    watched.until(lambda: viewer.outcome(order))
    outcome = viewer.outcome(order)
    assert outcome is not None
    assert (outcome.by, outcome.done) == ("anna", False)
    assert "train_iteration" in outcome.outcome


def test_a_trainer_without_proofs_is_not_believed_where_they_are_expected(watched: Watched) -> None:
    watched.train(end_to_end="off")
    viewer = watched.view("hpc")
    watched.until(lambda: "is not believed" in viewer.state)
    assert viewer.scene is None
    assert not viewer.may_order


def test_an_operator_sees_a_run_and_pauses_a_worker(watched: Watched) -> None:
    interface = watched.train()
    worker = watched.worker()
    viewer = watched.view("anna")
    watched.until(lambda: viewer.scene and viewer.scene.workers and viewer.status and viewer.history)
    assert (viewer.state, viewer.authenticated, viewer.may_order) == ("connected", True, True)
    assert viewer.status_s > 0
    scene = viewer.scene
    assert scene is not None
    assert (scene.run, scene.settings, scene.takes_orders) == ("run", {"trainer.epochs": "3"}, True)
    assert [one.name for one in scene.workers] == ["robot"]
    order = viewer.order(Order(kind="pause_worker", worker="robot"))
    watched.until(lambda: worker.directive.pause)
    watched.until(lambda: viewer.outcome(order))
    outcome = viewer.outcome(order)
    assert outcome is not None
    assert (outcome.text, outcome.outcome, outcome.by, outcome.done) == ("pause worker robot", "done", "anna", True)
    watched.until(lambda: viewer.scene and viewer.scene.workers[0].paused)
    watched.until(lambda: viewer.scene and any(event.name == "order" for event in viewer.scene.events))
    viewer.order(Order(kind="resume_worker", worker="robot"))
    watched.until(lambda: not worker.directive.pause)
    viewer.order(Order(kind="camera", worker="robot"))
    watched.until(lambda: worker.directive.wanted)
    assert worker.directive.wanted == Wanted("robot", camera=1)
    worker.show(Picture("robot", "camera", 1, b"frame"))
    worker.show(Picture("robot", "video", 1, bytes(MAX_VIDEO_BYTES)))
    watched.until(lambda: len(viewer.pictures) == 2)
    assert viewer.pictures["robot", "camera"] == Picture("robot", "camera", 1, b"frame", origin="robot")
    assert len(viewer.pictures["robot", "video"].content) == MAX_VIDEO_BYTES
    changes = viewer.changed
    assert viewer.wait(20.0, after=changes - 1)
    # A Server that starts again knows nothing of the run until its trainer and viewers are back.
    watched.server.close()
    watched.until(lambda: not viewer.connected)
    assert viewer.state.startswith("not connected to the Server at")
    watched.server = watched.fleet.server()
    seen = viewer.scene
    watched.until(lambda: viewer.connected and viewer.scene and seen and viewer.scene.time_s > seen.time_s)
    interface.link.close()
    watched.until(lambda: viewer.status and not viewer.status.trainer)
    order = viewer.order(Order(kind="pause"))
    watched.until(lambda: viewer.outcome(order))
    outcome = viewer.outcome(order)
    assert outcome is not None
    assert "no trainer is connected" in outcome.outcome
    viewer.close()
    assert not viewer.wait(20.0)
