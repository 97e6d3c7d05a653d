"""The classes of tmrl.networking: attributes, and a Buffer that scripts change."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.compat.custom.custom_models import SquashedGaussianMLPActor
from tmrl_core.compat.networking import Buffer, RolloutWorker, Server, Trainer, _configured
from tmrl_core.config import CFG, from_values
from tmrl_core.envs import GenericGymEnv
from tmrl_core.networking.transports.tlspyo.settings import TlspyoKeys


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sample(step: int, terminated: bool = False) -> tuple[Any, ...]:
    return (None if step == 0 else np.ones(1), np.full(2, float(step)), 1.0, terminated, False, {})


def steps_of(buffer: Buffer) -> list[float]:
    return [one[1][0] for one in buffer.memory]


def filled(count: int, maxlen: float | None = None) -> Buffer:
    buffer = Buffer(maxlen)
    for step in range(count):
        buffer.append_sample(sample(step))
    return buffer


def test_a_smaller_capacity_drops_the_oldest_samples() -> None:
    buffer = filled(6)
    buffer.maxlen = 4
    buffer.clip_to_maxlen()
    assert steps_of(buffer) == [2, 3, 4, 5]
    buffer.append_sample(sample(6))
    assert steps_of(buffer) == [3, 4, 5, 6]
    assert (buffer.maxlen, buffer.dropped) == (4, 3)
    with pytest.raises(ValueError, match="at least 1"):
        buffer.maxlen = 0


def worker(actor: Any = SquashedGaussianMLPActor, **kwargs: Any) -> RolloutWorker:
    env = partial(GenericGymEnv, id="Pendulum-v1")
    return RolloutWorker(env, actor, **{"standalone": True, "model_path": None, **kwargs})


def test_a_worker_has_tmrls_attributes(tmp_path: Path) -> None:
    def compress(*sample: Any) -> Any:
        return sample

    with worker(
        sample_compressor=compress,
        max_samples_per_episode=3,
        crc_debug=True,
        obs_preprocessor=np.asarray,
        model_path_history=str(tmp_path / "copy_"),
        model_history=4,
        server_ip="10.0.0.1",
    ) as made:
        assert made.get_local_buffer_sample is compress
        assert made.obs_preprocessor is np.asarray
        assert (made.crc_debug, made.max_samples_per_episode, made.device) == (True, 3, "cpu")
        assert (made.model_path_history, made.model_history, made.model_cpt) == (str(tmp_path / "copy_"), 4, 0)
        assert made.server_ip == "10.0.0.1"
        assert (made.debug_ts_cpt, made.debug_ts_res_cpt) == (0, 0)
        made.collect_train_episode()
        assert (made.debug_ts_cpt, made.debug_ts_res_cpt) == (4, 3)
        assert isinstance(made.buffer, Buffer)
        made.model_history = 7
        assert made.uplink.files.every == 7


def test_its_compressor_may_be_replaced() -> None:
    with worker() as made:
        made.get_local_buffer_sample = lambda act, obs, rew, *rest: (act, obs[:1], rew, *rest)
        made.collect_train_episode(max_samples=2)
        assert made.buffer.memory[0][1].shape == (1,)


def test_tmrls_policy_acts_without_torch() -> None:
    with worker(partial(SquashedGaussianMLPActor, hidden_sizes=(8,))) as made:
        assert isinstance(made.actor, NumpySquashedGaussianMLPActor)


def test_a_policy_file_of_tmrl_is_loaded_at_the_start(tmp_path: Path) -> None:
    layers = {"net.0": (8, 3), "mu_layer": (1, 8), "log_std_layer": (1, 8)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in layers.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in layers.items()}
    torch.save(state, tmp_path / "policy.tmod")
    with worker(partial(SquashedGaussianMLPActor, hidden_sizes=(8,)), model_path=tmp_path / "policy.tmod") as made:
        assert torch.equal(made.actor.mu_layer.weight, state["mu_layer.weight"])  # type: ignore[attr-defined]


def test_a_trainer_has_tmrls_attributes_and_they_may_be_replaced(tmp_path: Path) -> None:
    def dump(training: Any, path: Path) -> None:
        path.write_text("mine", encoding="utf-8")

    class Training:
        epoch = epochs = 1

    def update(training: Any, training_cls: Any) -> Any:
        return training, training_cls

    made = Trainer(
        lambda: None,
        "10.0.0.1",
        checkpoint_path=tmp_path / "checkpoint",
        dump_run_instance_fn=dump,
        security=None,
    )
    assert (made.server_ip, made.dump_run_instance_fn, made.load_run_instance_fn) == ("10.0.0.1", dump, None)
    assert made.updater_fn is None
    (tmp_path / "checkpoint").write_text("mine", encoding="utf-8")
    made.load_run_instance_fn = lambda path: path.read_text(encoding="utf-8")
    made.updater_fn = update
    assert made._checkpoints.make_or_load() == (("mine", made.training_cls), False)
    made.close()


def test_pickles_are_no_policies(tmp_path: Path) -> None:
    (tmp_path / "policy.tmod").write_bytes(pickle.dumps({"a": 1}))
    from tmrl_core.errors import WeightsError

    with pytest.raises(WeightsError, match="safetensors"):
        worker(model_path=tmp_path / "policy.tmod")


def test_arguments_of_tmrl_are_keys_of_the_section_network(tmp_path: Path) -> None:
    config = from_values({"network": {"transport": "local"}, "server": {"port": 0}})
    with Server(header_size=20, local_port=7, keys_dir="mine", config=config) as server:
        assert server.port
    changed = _configured(
        config, credentials_dir=tmp_path / "mine", header_size=20, local_port_server=7, max_buf_len=CFG
    )
    assert changed.network.credentials_dir == str(tmp_path / "mine")
    keys = TlspyoKeys.of(changed)
    assert keys is not None
    assert (keys.header_size, keys.local_port_server, keys.local_port_worker) == (20, 7, 55558)
    assert changed.start_folder == config.start_folder
    assert _configured(config, credentials_dir=CFG, header_size=CFG) is config
    assert _configured(config, credentials_dir=None, of_a_transport_that_is_not_here=1) is config
