"""Workers whose environment is not the trainer's: refused when they join, experts too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.networking.test_other_policies import Place
from tmrl_core.actor import SquashedGaussianMLPActor
from tmrl_core.envs import GenericGymEnv
from tmrl_core.envs.identity import identity_of
from tmrl_core.networking import RolloutWorker
from tmrl_core.training.remote.interface import RemoteInterface


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        made = Place(stack, tmp_path)
        made.interface = RemoteInterface(
            made.interface.link, identity=identity_of(GenericGymEnv()), check_environment=True
        )
        yield made


def worker_of(place: Place, env_cls: Any) -> RolloutWorker:
    made = RolloutWorker(
        env_cls,
        partial(SquashedGaussianMLPActor, hidden_sizes=(16,)),
        max_samples_per_episode=4,
        model_path=None,
        server_port=place.server.port,
        name="robot7",
        config=place.config,
        max_env_steps_per_update=None,
    )
    return place.stack.enter_context(made)


@pytest.mark.parametrize("expert", [False, True])
def test_samples_of_another_environment_are_refused_and_both_sides_say_so(
    place: Place, expert: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    worker = worker_of(place, partial(GenericGymEnv, id="MountainCarContinuous-v0"))
    link = worker.link
    assert link is not None
    place.publish()
    worker.run(nb_episodes=2, verbose=False, expert=expert)
    place.take_until(lambda: link.counts.samples_refused == 10)
    assert place.samples == 0
    assert place.interface.workers() == []
    worker.close()  # its link's thread has logged all that it will
    difference = (
        "another environment, environment_id MountainCarContinuous-v0 at the worker, Pendulum-v1 at the trainer; "
        "observation_space Box([-1.2  -0.07], [0.6  0.07], (2,), float32) at the worker, "
        "Box([-1. -1. -8.], [1. 1. 8.], (3,), float32) at the trainer; action_space Box(-1.0, 1.0, (1,), float32) at "
        "the worker, Box(-2.0, 2.0, (1,), float32) at the trainer. Give both the same section environment, or set "
        "trainer.check_environment: false"
    )
    said = [line.split(":")[0] for line in caplog.messages if difference in line]
    assert said == ["samples of worker robot7 are refused", "the trainer uses no samples of this worker"]


class Robot(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A machine with the simulation's spaces, which is not registered."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1").unwrapped)
        self.unwrapped.spec = None


def test_a_robot_without_an_id_joins_its_simulations_trainer(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.publish()
    worker_of(place, Robot).run(nb_episodes=2, verbose=False)
    place.take_until(lambda: place.samples == 10)
    assert "another environment" not in caplog.text


def test_other_environments_are_only_logged_if_they_are_mixed_on_purpose(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    identity = {**identity_of(GenericGymEnv()), "environment_id": "Hanging-v0"}
    place.interface = RemoteInterface(place.interface.link, identity=identity)
    place.publish()
    worker_of(place, GenericGymEnv).run(nb_episodes=2, verbose=False)
    place.take_until(lambda: place.samples == 10)
    said = [line for line in caplog.messages if "another environment" in line]
    assert len(said) == 1
    assert "worker robot7 has another environment, environment_id Pendulum-v1 at the worker, Hanging-v0" in said[0]
