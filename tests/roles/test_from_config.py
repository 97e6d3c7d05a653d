"""Roles made from the configuration."""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path

import pytest

from tmrl_core.config import Config, from_values, use
from tmrl_core.config.sections import WorkerSection
from tmrl_core.errors import ConfigError, StarvedError
from tmrl_core.roles import from_config as roles
from tmrl_core.roles.devices import check_device
from tmrl_core.roles.rollout_worker import RolloutWorker


def test_every_setting_of_a_worker_has_a_parameter() -> None:
    accepted: set[str] = set()
    for takes_settings in (RolloutWorker, RolloutWorker.run, RolloutWorker.run_synchronous):
        accepted |= signature(takes_settings).parameters.keys()
    elsewhere = {"evaluation_videos", "images"}  # of the environment that the worker gets
    assert set(WorkerSection.__struct_fields__) - accepted == elsewhere


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_longest_episode_comes_from_the_registry() -> None:
    assert roles.longest_episode(Config()) == 200
    assert roles.longest_episode(from_values({"environment": {"kwargs": {"id": "NoSuch-v0"}}})) is None
    assert roles.longest_episode(from_values({"environment": {"kwargs": {}}})) is None


def test_the_saved_policy_is_the_newer_of_the_two_copies() -> None:
    config = Config()
    with pytest.raises(ConfigError, match=r"neither .*runs.default.policy\.tmod nor"):
        roles.saved_policy(config)
    for age, path in enumerate([config.worker_model_path, config.trainer_model_path]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    assert roles.saved_policy(config) == config.worker_model_path
    os.utime(config.trainer_model_path, (2000, 2000))
    assert roles.saved_policy(config) == config.trainer_model_path


@pytest.mark.parametrize(
    "values",
    [
        {"server": {"host": "server.example.org"}},
        {"network": {"security": None}},
        {"network": {"transport": "local"}},
    ],
)
def test_credentials_are_made_for_tls_on_this_machine_only(values: dict[str, object], tmp_path: Path) -> None:
    folder = {"credentials_dir": str(tmp_path / "keys")}
    network = {**values.get("network", {}), **folder}  # type: ignore[dict-item]
    assert not roles.ensure_credentials(from_values({**values, "network": network}))
    assert not (tmp_path / "keys").exists()
    here = from_values({"network": folder})
    assert roles.ensure_credentials(here)
    assert not roles.ensure_credentials(here)


def test_a_worker_is_made_as_configured_and_needs_no_server_to_play() -> None:
    config = from_values(
        {
            "run": {"seed": 3},
            "actor": {"kwargs": {"hidden_sizes": [8]}},
            "worker": {"max_samples_per_episode": 7, "name": "robot7"},
        }
    )
    use(config)
    try:
        with roles.make_worker(config, standalone=True) as worker:
            worker.run_episode()
            assert worker.buffer.stat_test_steps == 7
            assert worker.name == "robot7"
        with roles.make_worker(config, standalone=True, name="other") as worker:
            assert worker.name == "other"
    finally:
        use(None)


def test_a_worker_acts_with_the_sizes_that_only_the_agent_was_given() -> None:
    config = from_values({"agent": {"kwargs": {"hidden_sizes": [8, 4]}}})
    use(config)
    try:
        with roles.make_worker(config, standalone=True) as worker:
            assert worker.actor.architecture()["shapes"]["mu.weight"] == [1, 4]
    finally:
        use(None)


def test_a_worker_keeps_to_its_limits() -> None:
    config = from_values({"worker": {"max_samples_per_episode": 5, "nb_episodes": 2}})
    use(config)
    try:
        with roles.make_worker(config, standalone=True) as worker:
            roles.run_worker(worker, config)
            assert worker.steps_collected == 2 * 6
        lockstep = from_values(
            {
                "worker": {"collection": "lockstep"},
                "trainer": {"loop": "tmrl_core.training:TrainingLockstep"},
                "agent": {"cls": "tmrl_core.training:PPOAgent"},
                "actor": {"cls": "tmrl_core.actor:GaussianMLPActor"},
            }
        )
        with roles.make_worker(config, standalone=True) as worker:
            with pytest.raises(StarvedError, match="there is none: the worker is standalone"):
                roles.run_worker(worker, lockstep)
            with pytest.raises(ConfigError, match="an expert's samples are of no use"):
                roles.run_worker(worker, lockstep, expert=True)
    finally:
        use(None)


def test_the_cpu_is_there_without_torch() -> None:
    check_device(None, "trainer.device")
    check_device("cpu", "worker.device")


@pytest.mark.parametrize("device", ["gpu", "cuda:one", "meta", "vulkan"])
def test_unknown_devices_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=rf"^trainer\.device: found '{device}', allowed: a device of this machine"):
        check_device(device, "trainer.device")


@pytest.mark.parametrize(
    ("built", "count", "device", "message"),
    [
        (False, 0, "cuda", r"'cuda', allowed on this machine: cpu\. Torch .* is built without CUDA"),
        (True, 0, "cuda:0", r"'cuda:0', allowed on this machine: cpu\. Torch finds no CUDA device: .*nvidia-smi"),
        (True, 2, "cuda:2", r"'cuda:2', allowed on this machine: cpu, cuda:0, cuda:1$"),
        (True, 2, "cuda:1", None),
        (True, 1, "cuda", None),
    ],
)
def test_a_cuda_device_is_checked_without_initializing_it(
    built: bool, count: int, device: str, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if message is None:
        check_device(device, "trainer.device")
    else:
        with pytest.raises(ConfigError, match=message):
            check_device(device, "trainer.device")
    assert not torch.cuda.is_initialized()
