from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import logging
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.waiting import until
from tmrl_core.actor import ActorModule, NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor
from tmrl_core.config import CFG, Config, from_values, with_changes
from tmrl_core.config.sections import NetworkSection, RunSection, WorkerSection
from tmrl_core.envs import GenericGymEnv
from tmrl_core.errors import ConfigError, EnvironmentFailedError, StarvedError
from tmrl_core.networking import RolloutWorker, Server
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.protocol.messages import Blob, Directive, Evaluation, Progress
from tmrl_core.networking.security import credentials
from tmrl_core.roles.rollout_worker import mixed_seed
from tmrl_core.samples import SampleMessage, decode_message, decode_value
from tmrl_core.samples.frame_history import NewestFrame
from tmrl_core.samples.segments import MAX_LANES
from tmrl_core.training import ReplayMemory

MAX = 1 << 28


class Sink:
    """A trainer's side that keeps what arrives and acknowledges it."""

    def __init__(self, link: TrainerLink) -> None:
        self.link = link
        self.messages: list[SampleMessage] = []

    @property
    def samples(self) -> int:
        return sum(message.chunk.rows for message in self.messages if message.chunk is not None)

    @property
    def records(self) -> list[Any]:
        return [record for message in self.messages for record in message.records]

    def take(self) -> None:
        received = self.link.receive()
        self.messages += [decode_message(one.payload, max_bytes=MAX) for one in received]
        self.link.acknowledge(received)

    def take_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(200):
            self.take()
            if condition():
                return
            self.link.wait(0.1)
        raise AssertionError(f"{self.samples} samples and {len(self.records)} records have arrived")

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Take what arrives meanwhile, so that a worker that closes is acknowledged at once."""
        ended = threading.Event()

        def take() -> None:
            while not ended.is_set():
                self.take()
                self.link.wait(0.02)

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def publish(self, actor: Any) -> tuple[int, int]:
        return self.link.publish({"policy": Blob(*actor.to_blob())})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        run=RunSection(name="tests", folder=str(tmp_path)),
        network=NetworkSection(transport="local", backoff_min_s=0.01, backoff_max_s=0.05),
        worker=WorkerSection(name="robot", drain_timeout_s=5.0, max_env_steps_per_update=None),
    )


@pytest.fixture
def server(config: Config) -> Iterator[Server]:
    with Server(port=0, config=config) as server:
        yield server


@pytest.fixture
def sink(server: Server) -> Iterator[Sink]:
    link = TrainerLink(LinkSettings(port=server.port, transport="local"), name="trainer", run="tests")
    link.start()
    assert link.wait_connected(10)
    yield Sink(link)
    link.close()


@pytest.fixture
def make(config: Config, request: pytest.FixtureRequest) -> Iterator[Callable[..., RolloutWorker]]:
    with contextlib.ExitStack() as stack:

        def make(**kwargs: Any) -> RolloutWorker:
            if not kwargs.get("standalone"):
                kwargs = {"server_port": request.getfixturevalue("server").port, **kwargs}
            kwargs = {"env_cls": GenericGymEnv, "actor_module_cls": policy, "config": config, **kwargs}
            return stack.enter_context(RolloutWorker(**kwargs))

        yield make


policy = functools.partial(SquashedGaussianMLPActor, hidden_sizes=(8,))


def test_the_parameters_are_those_of_the_api_in_its_order() -> None:
    parameters = list(inspect.signature(RolloutWorker).parameters.values())
    positional = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert positional == {
        "env_cls": inspect.Parameter.empty,
        "actor_module_cls": inspect.Parameter.empty,
        "sample_compressor": None,
        "device": "cpu",
        "max_samples_per_episode": math.inf,
        "model_path": CFG,
        "obs_preprocessor": None,
        "crc_debug": False,
        "model_path_history": CFG,
        "model_history": CFG,
        "standalone": False,
        "server_ip": None,
        "server_port": CFG,
        "password": CFG,
        "security": CFG,
        "hostname": CFG,
    }
    assert list(positional) == [p.name for p in parameters][: len(positional)]


class Unsorted(gym.Env[Any, Any]):
    """Returns a dict whose keys are not sorted, as the space's are."""

    observation_space = spaces.Dict({key: spaces.Box(-9, 9, (1,), np.float32) for key in ("zoom", "arm")})
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return {"zoom": np.full(1, 1, np.float32), "arm": np.full(1, 2, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


class Concatenating(ActorModule):
    """Depends on the order of keys."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.concatenate([*obs.values()])[:1] / 4

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(b"")


def test_dict_keys_have_one_order_from_the_policy_over_the_link_to_the_batch(make: Any, sink: Sink) -> None:
    worker = make(env_cls=Unsorted, actor_module_cls=Concatenating, max_samples_per_episode=9)
    worker.run(nb_episodes=2, verbose=False)
    sink.take_until(lambda: sink.samples == 20)
    memory = ReplayMemory(memory_size=50, batch_size=4, seed=1)
    for message in sink.messages:
        if message.chunk is not None:
            memory.append_chunk(message.chunk)
    prev_obs, act, _, obs, *_ = memory.sample()
    assert [*prev_obs] == [*obs] == ["zoom", "arm"]
    assert torch.equal(torch.cat([*prev_obs.values()], dim=1)[:, :1] / 4, act)


def test_samples_and_records_arrive_and_close_reports_them(make: Any, sink: Sink) -> None:
    worker = make(max_samples_per_episode=10)
    worker.run(nb_episodes=3, test_episode_interval=3, verbose=False)
    sink.take_until(lambda: sink.samples == 33)
    assert [(record.mode, record.length, record.worker) for record in sink.records] == [
        ("test", 10, "robot"),
        *[("train", 10, "robot")] * 3,
    ]
    chunks = [message.chunk for message in sink.messages if message.chunk is not None]
    assert all(chunk.observation.dtype == np.float32 for chunk in chunks)  # type: ignore[union-attr]
    # episodes that waited together came as one message, so only the whole has a fixed shape
    assert [step for chunk in chunks for step in chunk.step.tolist()] == list(range(11)) * 3
    assert worker.close() == (33, 0, 0)


def test_a_worker_uses_tls_with_its_credentials(config: Config, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    credentials.ensure(keys)
    secure = msgspec.structs.replace(config, network=NetworkSection(credentials_dir=str(keys)))
    with Server(port=0, config=secure) as server:
        settings = LinkSettings(port=server.port, credentials_dir=str(keys))
        link = TrainerLink(settings, name="trainer", run="tests")
        link.start()
        sink = Sink(link)
        with RolloutWorker(
            GenericGymEnv, policy, server_port=server.port, max_samples_per_episode=3, config=secure
        ) as worker:
            worker.run(nb_episodes=2, verbose=False)
            sink.take_until(lambda: sink.samples == 8)
            assert worker.close() == (8, 0, 0)
        link.close()


def test_a_worker_keeps_the_accepted_version_beside_its_policy(config: Config, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    credentials.ensure(keys)
    network = NetworkSection(credentials_dir=str(keys), end_to_end="authenticate")
    secure = msgspec.structs.replace(config, network=network)
    with Server(port=0, config=secure) as server:
        settings = LinkSettings(port=server.port, credentials_dir=str(keys), end_to_end="authenticate")
        link = TrainerLink(settings, name="trainer", run="tests")
        link.start()
        with RolloutWorker(GenericGymEnv, policy, server_port=server.port, config=secure) as worker:
            space = worker.env.observation_space
            version = Sink(link).publish(policy(observation_space=space, action_space=worker.env.action_space))
            assert worker.update_actor_weights(blocking=True) == 1
            record = Path(f"{worker.model_path}.accepted")
            assert msgspec.json.decode(record.read_bytes())["runs"] == {"tests": list(version)}
        link.close()


def test_handed_over_samples_are_logged_at_the_end(make: Any, server: Server) -> None:
    worker = make(max_samples_per_episode=10)
    worker.run(nb_episodes=1, verbose=False)
    assert worker.close() == (0, 11, 0)


def test_policies_arrive_and_act(make: Any, sink: Sink) -> None:
    worker = make()
    obs = np.array([1.0, 0.0, 0.5], np.float32)
    original = policy(observation_space=worker.env.observation_space, action_space=worker.env.action_space)
    version = sink.publish(original)
    assert worker.update_actor_weights(blocking=True) == 1
    assert worker.policy_version == version
    np.testing.assert_allclose(worker.act(obs, test=True), original.act_(obs, test=True), atol=1e-5)
    assert worker.model_path == Path(worker.model_path)
    assert worker.model_path.read_bytes() == original.to_bytes()
    worker.collect_train_episode(5)
    worker.send_and_clear_buffer()
    sink.take_until(lambda: sink.samples == 6)
    assert sink.records[0].version == version


def test_a_stored_policy_is_loaded_and_acts_without_a_server(make: Any, tmp_path: Path) -> None:
    env = GenericGymEnv()
    original = policy(observation_space=env.observation_space, action_space=env.action_space)
    original.save(tmp_path / "kept")
    worker = make(standalone=True, model_path=tmp_path / "kept")
    assert worker.standalone
    obs = np.array([1.0, 0.0, 0.5], np.float32)
    np.testing.assert_allclose(worker.act(obs, test=True), original.act_(obs, test=True), atol=1e-5)
    worker.run_episodes(nb_episodes=1, max_samples_per_episode=5)
    assert worker.buffer.stat_test_steps == 5


def test_an_evaluation_is_played_for_the_trainer(make: Any, sink: Sink) -> None:
    worker = make(max_samples_per_episode=7, drain_timeout_s=0.0)
    original = policy(observation_space=worker.env.observation_space, action_space=worker.env.action_space)
    version = sink.publish(original)
    sink.link.direct(Directive(1, Evaluation(3, (1000, 1001), version)))
    thread = threading.Thread(target=worker.run, kwargs={"verbose": False})
    thread.start()
    try:
        sink.take_until(lambda: sum(record.evaluation == 3 for record in sink.records) == 2)
    finally:
        sink.link.direct(Directive(2, finish=True))
        thread.join(20)
    assert not thread.is_alive()
    played = {record.seed: record for record in sink.records if record.evaluation == 3}
    for seed, record in played.items():
        env = GenericGymEnv()
        obs, _ = env.reset(seed=seed)
        expected = 0.0
        for _ in range(7):
            obs, rew, *_ = env.step(original.act_(obs, test=True))
            expected += float(rew)
        assert record.episode_return == pytest.approx(expected, rel=1e-4)
        assert record.mode == "test"
        assert record.version == version


def test_synchronous_collection_continues_with_each_model(make: Any, sink: Sink) -> None:
    worker = make(collection="synchronous", max_samples_per_episode=4)
    original = policy(observation_space=worker.env.observation_space, action_space=worker.env.action_space)
    thread = threading.Thread(
        target=worker.run_synchronous, kwargs={"nb_steps": 20, "initial_steps": 5, "max_steps_per_update": 5.0}
    )
    thread.start()
    # 5 initial steps need one model: 6 / 2. Then episodes of 5: 11 / 2 is too much, 11 / 3 is not; 16 / 3 and 16 / 4.
    for wanted in (5, 15, 20):
        sink.take_until(lambda wanted=wanted: sink.samples >= wanted)  # type: ignore[misc]
        sink.publish(original)
    thread.join(20)
    assert not thread.is_alive()
    sink.take_until(lambda: sink.samples == 25)


def test_the_starvation_error_of_a_worker_names_the_numbers(
    make: Any, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tmrl_core.actor.rollout import schedule
    from tmrl_core.actor.rollout.starvation import StarvationWatch

    monkeypatch.setattr(schedule, "StarvationWatch", lambda longest: StarvationWatch(0.0, least_s=0.05))
    worker = make(collection="synchronous", max_samples_per_episode=4)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run_synchronous(max_steps_per_update=2.0)
        except StarvedError as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    sink.take_until(lambda: sink.samples == 5)
    sink.link.report(Progress(samples=5, updates=5, lack="1 sample for the next update"))
    thread.join(20)
    assert len(errors) == 1
    assert "5 samples and 5 updates: 1 sample for the next update" in str(errors[0])


def test_the_rate_limit_waits_for_the_trainers_updates(make: Any, sink: Sink) -> None:
    worker = make(max_samples_per_episode=9, max_env_steps_per_update=1.0)
    thread = threading.Thread(target=worker.run, kwargs={"verbose": False, "nb_episodes": 3})
    thread.start()
    for episode in (1, 2, 3):
        sink.take_until(lambda episode=episode: sink.samples == 10 * episode)  # type: ignore[misc]
        assert thread.is_alive()
        sink.link.report(Progress(samples=10 * episode, updates=10 * episode))
    thread.join(20)
    assert not thread.is_alive()


class Shaky(GenericGymEnv):
    """Fails for good from its 25th step on."""

    count = 0

    def step(self, action: Any) -> Any:
        Shaky.count += 1
        if Shaky.count >= 25:
            raise RuntimeError("the gear box is gone")
        return super().step(action)


def test_a_permanently_failing_environment_ends_the_run(make: Any, sink: Sink) -> None:
    Shaky.count = 0
    worker = make(env_cls=Shaky, max_samples_per_episode=20, send_every=2, max_failures=2)
    with pytest.raises(EnvironmentFailedError, match="gear box"):
        worker.run(verbose=False)
    worker.send_and_clear_buffer()
    sink.take_until(lambda: len(sink.records) == 2)
    assert [record.end for record in sink.records] == ["truncated", "aborted"]


def test_the_trainer_receives_a_description_of_the_environment(make: Any, sink: Sink) -> None:
    worker = make()
    worker.collect_train_episode(1)
    worker.send_and_clear_buffer()
    sink.take_until(lambda: sink.samples == 2)
    (member,) = sink.link.members
    signature = decode_value(member.signature, max_bytes=MAX)
    assert signature["environment_id"] == "Pendulum-v1"
    assert signature["observation_space"] == repr(worker.env.observation_space)
    assert signature["observation"] == [{"path": "", "shape": [3], "dtype": "float32"}]
    assert signature["action"] == [{"path": "", "shape": [1], "dtype": "float32"}]
    assert member.name == "robot"


@pytest.mark.parametrize(
    ("backend", "actor", "kind"),
    [
        ("auto", policy, NumpySquashedGaussianMLPActor),
        ("numpy", policy, NumpySquashedGaussianMLPActor),
        ("torch", policy, SquashedGaussianMLPActor),
        ("auto", "tmrl_core.actor:SquashedGaussianMLPActor", NumpySquashedGaussianMLPActor),
        ("torch", "tmrl_core.actor:SquashedGaussianMLPActor", SquashedGaussianMLPActor),
        ("numpy", NumpySquashedGaussianMLPActor, NumpySquashedGaussianMLPActor),
        ("auto", functools.partial(SquashedGaussianMLPActor, activation="ELU"), SquashedGaussianMLPActor),
    ],
)
def test_the_setting_selects_the_backend(backend: str, actor: Any, kind: type, make: Any) -> None:
    assert type(make(standalone=True, actor_module_cls=actor, backend=backend).actor) is kind


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"backend": "jax"}, "allowed: auto, numpy, torch"),
        ({"backend": "numpy", "actor_module_cls": functools.partial(policy, activation="ELU")}, "no NumPy backend"),
        ({"backend": "numpy", "device": "cuda"}, "numpy runs on the CPU"),
        ({"actor_module_cls": "nowhere:Nothing"}, "module 'nowhere' was not found"),
    ],
)
def test_an_impossible_backend_is_refused(kwargs: dict[str, Any], message: str, make: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        make(standalone=True, **kwargs)


@pytest.mark.parametrize("overrides", [False, True])
def test_a_worker_that_nothing_refers_to_closes_and_its_samples_arrive(
    config: Config, server: Server, sink: Sink, overrides: bool
) -> None:
    """As in a notebook, whose cell makes the worker a second time."""

    class Counting(RolloutWorker):
        def reset(self, collect_samples: bool) -> Any:
            return super().reset(collect_samples)

    closed: list[bool] = []

    class Env(GenericGymEnv):
        def close(self) -> None:
            closed.append(True)
            super().close()

    kind = Counting if overrides else RolloutWorker
    worker = kind(Env, policy, config=config, server_port=server.port)
    until(lambda: len(sink.link.members) == 1)
    (first,) = sink.link.members
    worker.collect_train_episode(max_samples=7)
    worker.send_and_clear_buffer()
    with sink.taking():
        worker = kind(Env, policy, config=config, server_port=server.port)
        gc.collect()
    assert closed == [True]
    until(lambda: len(sink.link.members) == 1 and sink.link.members[0].stream != first.stream)
    sink.take_until(lambda: sink.samples == 8)
    assert worker.close() is not None
    assert closed == [True, True]
    del worker
    gc.collect()
    assert len(closed) == 2


def test_workers_of_one_run_have_seeds_of_their_own(make: Any, config: Config) -> None:
    seeded = msgspec.structs.replace(config, run=RunSection(name="tests", folder=config.run.folder, seed=7))

    def begins(**kwargs: Any) -> list[float]:
        return first_obs(make(standalone=True, model_path=None, config=seeded, **kwargs))

    assert begins(name="one") == begins(name="one")
    assert begins(name="one") != begins(name="two")
    assert begins(seed=5) == begins(seed=5, name="two")


def test_workers_of_one_name_in_one_run_play_other_episodes(
    make: Any, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    seeded = msgspec.structs.replace(config, run=RunSection(name="tests", folder=config.run.folder, seed=7))
    began, workers = [first_obs(make(config=seeded, standalone=True))], []
    for number in (1, 2, 3):  # one after the other: numbers are given in the order of connections
        workers.append(worker := make(config=seeded, drain_timeout_s=0.0))
        assert worker.link.wait_connected(10)
        until(functools.partial(is_placed, worker, number > 1))
        began.append(first_obs(worker))
    second = workers[1]
    assert began[0] == began[1], "the first has the seed of its name, as if it were alone"
    assert len({tuple(one) for one in began}) == 3
    second.collect_train_episode()
    assert second.recorder.episode.seed is None, "its generators go on"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.partition(" of that name")[0] for text in warnings] == [
        "worker robot is number 2",
        "worker robot is number 3",
    ]


def test_seeds_of_workers_fit_simulators_that_take_31_bits() -> None:
    seeds = [mixed_seed(seed, "robot", place) or 0 for seed in (0, 1, 2**32 - 1) for place in range(1, 20)]
    assert max(seeds) < 2**31
    assert len(set(seeds)) == len(seeds)


def test_a_seed_of_an_evaluation_or_of_the_caller_is_kept_by_a_namesake(make: Any, config: Config, sink: Sink) -> None:
    seeded = msgspec.structs.replace(config, run=RunSection(name="tests", folder=config.run.folder, seed=7))
    make(config=seeded)
    until(lambda: sink.link.members)
    second = make(config=seeded, drain_timeout_s=0.0)
    chosen = make(config=seeded, seed=5)
    until(lambda: second.link.place and chosen.link.place)
    assert first_obs(chosen) == first_obs(make(standalone=True, model_path=None, config=seeded, seed=5))
    version = sink.publish(second.actor)
    sink.link.direct(Directive(1, Evaluation(3, (40, 41), version)))
    assert second.link.wait_policy(10)
    until(lambda: second.link.directive.evaluation)
    assert second.loop.evaluate_if_due()
    sink.take_until(lambda: len(sink.records) == 2)
    assert [record.seed for record in sink.records] == [40, 41]
    second.collect_train_episode()
    assert second.recorder.episode.seed == mixed_seed(7, "robot", second.link.place)


def is_placed(worker: RolloutWorker, later: bool) -> bool:
    return not later or (worker.link is not None and worker.link.place > 1)


def first_obs(worker: RolloutWorker) -> list[float]:
    obs, _ = worker.reset(collect_samples=False)
    return [float(value) for value in obs]


@pytest.mark.parametrize("bundle", [False, True])
def test_its_name_is_the_certificates_or_the_hosts_and_numbered_on_one_machine(
    make: Any, config: Config, tmp_path: Path, bundle: bool
) -> None:
    keys = tmp_path / "keys"
    credentials.create(keys)
    if bundle:
        keys = credentials.bundle(keys, "worker", "robot7", tmp_path)
    unnamed = msgspec.structs.replace(
        config,
        worker=WorkerSection(drain_timeout_s=0.0),
        network=NetworkSection(credentials_dir=str(keys)),
        run=RunSection(name="tests", folder=config.run.folder, seed=7),
    )
    name = "robot7" if bundle else socket.gethostname()
    one = make(config=unnamed)
    two = make(config=unnamed)
    assert [one.name, two.name] == [name, f"{name}-2"]
    began = first_obs(one)
    assert first_obs(two) != began, "no two workers play the same episodes"
    one.close()
    again = make(config=unnamed)
    assert again.name == name, "it is free again"
    assert first_obs(again) == began, "a worker plays the same episodes from run to run"
    assert make(standalone=True, name="arm").name == "arm"
    assert make(standalone=True, config=unnamed).name == socket.gethostname()


def test_an_environment_is_closed_when_the_link_cannot_start(make: Any, config: Config, tmp_path: Path) -> None:
    nowhere = with_changes(config, [f"network.credentials_dir={tmp_path / 'none'}"])
    closed: list[bool] = []

    class Env(GenericGymEnv):
        def close(self) -> None:
            closed.append(True)
            super().close()

    with pytest.raises(Exception, match="credentials"):
        make(env_cls=Env, transport="tls", security="TLS", server_port=1, config=nowhere)
    assert closed == [True]


def test_a_worker_with_the_numpy_backend_never_imports_torch(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None  # importing it raises
from tmrl_core.networking import RolloutWorker
from tmrl_core.envs import GenericGymEnv
with RolloutWorker(
    GenericGymEnv, "tmrl_core.actor:SquashedGaussianMLPActor", transport="local", server_port=1, drain_timeout_s=0.0,
    max_env_steps_per_update=None, max_samples_per_episode=5,
) as worker:
    worker.run(nb_episodes=2, verbose=False)
    assert len(worker.buffer.episodes) == 0
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_a_run_is_logged_only_when_it_is_verbose(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker = make(standalone=True, max_samples_per_episode=2)
    with caplog.at_level(logging.INFO, "tmrl_core.actor"):
        worker.run(nb_episodes=1, verbose=False)
        assert caplog.records == []
        worker.run(nb_episodes=50)
    lines = [record.getMessage() for record in caplog.records if "episode" in record.getMessage()]
    assert lines[0].startswith("worker robot: episode 2, 2 steps, return")
    assert len(lines) < 5  # not one for each of a simulator's short episodes


def test_relative_arguments_mean_the_folder_of_the_construction(
    make: Callable[..., RolloutWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    class Wandering(GenericGymEnv):
        def __init__(self) -> None:
            super().__init__()
            os.chdir(tmp_path / "elsewhere")

    worker = make(
        env_cls=Wandering,
        standalone=True,
        model_path="policy.tmod",
        record="recorded",
        max_samples_per_episode=5,
    )
    worker.collect_train_episode()
    worker.send_and_clear_buffer()
    worker.close()
    assert Path.cwd() == tmp_path / "elsewhere"
    assert worker.model_path == tmp_path / "policy.tmod"
    assert list((tmp_path / "recorded").glob("*/*.seg"))
    assert list(Path.cwd().iterdir()) == []


def test_a_second_recording_of_one_name_says_how_to_record_beside(
    make: Callable[..., RolloutWorker], tmp_path: Path
) -> None:
    recorded = str(tmp_path / "recorded")
    make(standalone=True, name="first", record=recorded)
    with pytest.raises(ConfigError, match=r"worker\.record: .*first is in use by process \d+ .*worker\.name=second"):
        make(standalone=True, name="first", record=recorded)
    make(standalone=True, name="second", record=recorded)
    assert sorted(folder.name for folder in (tmp_path / "recorded").iterdir()) == ["first", "second"]


def test_a_worker_steps_several_environments_and_the_trainer_keeps_their_episodes_apart(make: Any, sink: Sink) -> None:
    worker = make(envs=3, max_samples_per_episode=20)
    with sink.taking():
        worker.run(nb_episodes=6, verbose=False)
        worker.close()
    sink.take_until(lambda: sink.samples >= worker.steps_collected)
    assert len([record for record in sink.records if record.length == 20]) == 6


def test_settings_that_need_one_environment_are_refused(make: Any) -> None:
    for name, value in (("sample_compressor", NewestFrame), ("crc_debug", True)):
        with pytest.raises(ConfigError, match=rf"worker\.{name} is for one environment"):
            make(envs=2, standalone=True, **{name: value})
    assert WorkerSection(envs=MAX_LANES).envs == MAX_LANES
    with pytest.raises(ConfigError, match=r"worker\.envs"):
        from_values({"worker": {"envs": MAX_LANES + 1}})
