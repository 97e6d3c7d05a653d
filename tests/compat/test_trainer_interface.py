"""TrainerInterface: samples of a worker and policies to it, over a Server, without a Trainer."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from tmrl_core.compat.custom.custom_models import SquashedGaussianMLPActor
from tmrl_core.compat.networking import Buffer, RolloutWorker, Server, TrainerInterface
from tmrl_core.envs import GenericGymEnv

ENV = partial(GenericGymEnv, id="Pendulum-v1", to_float32=True)
ACTOR = partial(SquashedGaussianMLPActor, hidden_sizes=(8,))


def test_samples_arrive_and_a_policy_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmrl_core.yaml").write_text("network: {credentials_dir: keys}\n", encoding="utf-8")
    env = ENV()
    actor = ACTOR(observation_space=env.observation_space, action_space=env.action_space)
    with (
        Server(port=0) as server,
        TrainerInterface(server_port=server.port, model_path=tmp_path / "weights" / "policy.tmod") as interface,
        RolloutWorker(ENV, ACTOR, server_port=server.port, max_samples_per_episode=9) as worker,
    ):
        interface.broadcast_model(actor)
        assert (tmp_path / "weights" / "policy.tmod").exists()
        assert worker.update_actor_weights(blocking=True) == 1
        collecting = threading.Thread(target=worker.run, kwargs={"nb_episodes": 2})
        collecting.start()
        received = Buffer(None)
        while len(received) < 20:
            interface.wait(1.0)
            received += interface.retrieve_buffer()
        collecting.join()
        interface.retrieve_buffer()  # acknowledges what came before, so that the worker closes at once
    assert len(received) == 20
    assert [record.length for record in received.episodes] == [9, 9]
    assert interface.server_ip == "127.0.0.1"
    env.close()
