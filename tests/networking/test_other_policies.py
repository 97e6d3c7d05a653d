"""Workers whose policy is not the trainer's: refused when they join."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tmrl_core.actor import SquashedGaussianMLPActor
from tmrl_core.config import Config, from_values
from tmrl_core.envs import GenericGymEnv
from tmrl_core.networking import RolloutWorker, Server
from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink
from tmrl_core.training.interface import Delivery
from tmrl_core.training.remote.interface import RemoteInterface

DIFFERENCE = "another policy, hidden_sizes: [64] at the worker, [16] at the trainer. Give both the same settings of"


class Place:
    """A Server, and a trainer's interface that has published a policy of 16 hidden units."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack = stack
        self.config: Config = from_values(
            {"network": {"transport": "local"}, "server": {"port": 0}, "run": {"folder": str(folder)}}
        )
        self.server = stack.enter_context(Server(config=self.config))
        link = TrainerLink(LinkSettings(port=self.server.port, transport="local"), name="trainer", run="default")
        link.start()
        stack.callback(link.close)
        self.interface = RemoteInterface(link)
        self.samples = 0
        self.deliveries: list[Delivery] = []

    def publish(self, hidden: int = 16) -> None:
        env = GenericGymEnv()
        self.interface.broadcast_model(
            SquashedGaussianMLPActor(env.observation_space, env.action_space, hidden_sizes=(hidden,))
        )

    def worker(self, hidden: int, **kwargs: Any) -> RolloutWorker:
        made = RolloutWorker(
            GenericGymEnv,
            partial(SquashedGaussianMLPActor, hidden_sizes=(hidden,)),
            max_samples_per_episode=4,
            model_path=None,
            server_port=self.server.port,
            name="robot7",
            config=self.config,
            max_env_steps_per_update=None,
            **kwargs,
        )
        return self.stack.enter_context(made)

    def take_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(200):
            for delivery in self.interface.receive():
                delivery.accept()
                self.deliveries.append(delivery)
                self.samples += len(delivery.buffer)
            self.interface.commit()
            if condition():
                return
            self.interface.wait(0.1)
        raise AssertionError(f"{self.samples} samples have arrived")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(stack, tmp_path)


@pytest.mark.parametrize("first", ["trainer", "worker"])
def test_samples_of_another_policy_are_refused_and_both_sides_log_the_reason_once(
    place: Place, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    if first == "trainer":
        place.publish()
    worker = place.worker(64)
    link = worker.link
    assert link is not None
    place.take_until(lambda: bool(place.interface.link.members))
    place.publish()
    for number in (1, 2, 3):
        worker.collect_train_episode()
        worker.send_and_clear_buffer()
        place.publish()
        place.take_until(lambda number=number: link.counts.samples_refused == 5 * number)  # type: ignore[misc]
        worker.update_actor_weights(blocking=True)
    assert place.samples == 0
    assert place.interface.workers() == []
    worker.close()  # its link's thread has logged all that it will
    said = [line for line in caplog.messages if DIFFERENCE in line]
    assert [line.split(":")[0] for line in said] == [
        "samples of worker robot7 are refused",
        "the trainer uses no samples of this worker",
    ]
    (told,) = [line for line in caplog.messages if "of the policy is refused, the old one stays" in line]
    assert "hidden_sizes: [64] here, [16] in them" in told


@pytest.mark.parametrize("collection", [{}, {"max_steps_per_update": 100.0}])
def test_a_worker_waits_until_a_policy_fits(place: Place, collection: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place.publish()
    worker = place.worker(64)
    run = worker.run_synchronous if collection else worker.run
    thread = threading.Thread(target=run, kwargs={"verbose": False, **collection})
    thread.start()
    try:
        place.take_until(lambda: "worker robot7 waits until a policy fits" in caplog.text)
        collected = worker.steps_collected
        for _ in range(3):
            place.publish()
            place.take_until(lambda: worker.latest_version == place.interface.version)
        assert worker.steps_collected == collected
        place.publish(hidden=64)
        place.take_until(lambda: worker.steps_collected > collected)
    finally:
        worker.stop()
        thread.join(20)
    closing = threading.Thread(target=worker.close)
    closing.start()
    place.take_until(lambda: not closing.is_alive())  # else it waits for its acknowledgements in vain
    assert sum("waits until a policy fits" in line for line in caplog.messages) == 1
    assert "refused by the trainer" in next(line for line in caplog.messages if "robot7 ends:" in line)


def test_records_name_workers_as_the_server_does(place: Place) -> None:
    named: list[str] = []
    place.interface.on_episode = lambda record: named.append(record.worker)
    for _ in range(2):
        place.worker(16).run(nb_episodes=1)
    place.take_until(lambda: place.samples == 10)
    assert sorted(named) == ["robot7", "robot7-2"]


def test_an_experts_policy_may_be_any(place: Place) -> None:
    place.publish()
    place.worker(64).run(nb_episodes=2, expert=True)
    place.take_until(lambda: place.samples == 10)
    assert all(one.expert for one in place.deliveries)


def test_the_policy_of_other_workers_is_the_trainers(place: Place) -> None:
    place.publish()
    place.worker(16).run(nb_episodes=2)
    place.take_until(lambda: place.samples == 10)
    assert not any(one.expert for one in place.deliveries)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_trainers_policy_is_accepted_from_either_backend(place: Place, backend: str) -> None:
    place.publish()
    place.worker(16, backend=backend).run(nb_episodes=2)
    place.take_until(lambda: place.samples == 10)
    assert [name for _, name in place.interface.workers()] == ["robot7"]


def test_a_description_with_a_huge_number_does_not_end_the_trainer(place: Place) -> None:
    place.publish()
    policy = {"shapes": {"net.0.weight": [1 << 8_000, 3]}, "metadata": {}}
    settings = LinkSettings(port=place.server.port, transport="local")
    wolf = WorkerLink(settings, name="wolf", run="default", signature={"policy": policy})
    wolf.start()
    place.stack.callback(wolf.close, drain=False)
    place.take_until(lambda: bool(place.interface.workers()))
    place.worker(16).run(nb_episodes=1)
    place.take_until(lambda: place.samples == 5)
