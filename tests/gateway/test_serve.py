"""The gateway as a role: over real sockets, with a Server and a Trainer, and as processes."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import psutil
import pytest

from tests.command_line import Start, announced, starting
from tmrl_core.cli.main import main
from tmrl_core.config import Config
from tmrl_core.config.room_sections import config_type
from tmrl_core.config.sections import (
    ActorSection,
    AgentSection,
    EnvironmentSection,
    EvaluationSection,
    MemorySection,
    NetworkSection,
    RunSection,
    ServerSection,
    TrainerSection,
    WorkerSection,
)
from tmrl_core.errors import ConfigError, CredentialsError, NetworkError
from tmrl_core.gateway.api_keys import make_key
from tmrl_core.gateway.from_config import check_central, make_agents
from tmrl_core.gateway.serve import Gateway
from tmrl_core.gateway.settings import GatewaySection
from tmrl_core.metrics import read_records
from tmrl_core.networking import Server, Trainer
from tmrl_core.networking.security import credentials
from tmrl_core.web.listening import https_context, listening_sockets

SMALL: dict[str, Any] = {"hidden_sizes": [8, 8]}


def make_config(folder: Path, **trainer: Any) -> Config:
    return config_type()(
        run=RunSection(name="tests", folder=str(folder), seed=3),
        network=NetworkSection(transport="local", credentials_dir=str(folder / "keys"), backoff_min_s=0.01),
        environment=EnvironmentSection(
            cls="tmrl_core.envs:ShepherdEnv", kwargs={"observation_space": [[4], None, None], "action_space": 2}
        ),
        worker=WorkerSection(drain_timeout_s=2.0),
        memory=MemorySection(capacity=5000, batch_size=8),
        actor=ActorSection(cls="tmrl_core.actor:QValueMLPActor", kwargs=dict(SMALL)),
        agent=AgentSection(cls="tmrl_core.training:DQNAgent"),
        trainer=TrainerSection(**{"start_training": 100_000, "device": "cpu", **trainer}),
        gateway=GatewaySection(port=0, send_every=7),  # type: ignore[call-arg]
    )


class Client:
    """A client that knows the protocol only: CartPole, one connection."""

    def __init__(self, port: int, key: str, connection: http.client.HTTPConnection | None = None) -> None:
        self.connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.session = self.post("/shepherd/login_user/", {"apikey": key})["session_key"]
        self.env = gymnasium.make("CartPole-v1", disable_env_checker=True)
        self.transitions: list[tuple[Any, ...]] = []
        self.steps = 0

    def post(self, path: str, fields: dict[str, Any]) -> Any:
        self.connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        content = json.loads(response.read())
        assert response.status == 200, content
        return content

    def exchange(self, obs: Any, reward: float, terminated: bool, truncated: bool) -> Any:
        fields = {"obs": obs.tolist(), "reward": reward, "terminated": terminated, "truncated": truncated}
        return self.post("/shepherd/env/", {**fields, "session_key": self.session})["action"]

    def episode(self) -> None:
        obs, _ = self.env.reset(seed=len(self.transitions))
        action = self.exchange(obs, 0.0, False, False)
        while action is not None:
            before, acted = obs, action
            obs, reward, terminated, truncated, _ = self.env.step(action)
            self.transitions.append((before, acted, float(reward), obs, terminated, truncated))
            action = self.exchange(obs, float(reward), terminated, truncated)

    def episodes(self, number: int) -> None:
        for _ in range(number):
            self.episode()

    def play_until(self, true: Callable[[], object]) -> None:
        """Play episodes with pauses: those that start or learn meanwhile need the processor."""
        pause = threading.Event()
        while not true():
            self.episode()
            pause.wait(0.05)

    def close(self) -> None:
        self.connection.close()
        self.env.close()


def wait_until(true: Callable[[], object], seconds: float = 30.0) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if true():
            return
        pause.wait(0.02)
    raise AssertionError("not in time")


class Run:
    """A Server, a Trainer in a thread and a gateway, connected without sockets; clients use sockets."""

    def __init__(self, config: Config) -> None:
        self.server = Server(port=0, config=config)
        self.config = msgspec.structs.replace(config, server=ServerSection(port=self.server.port))
        self.trainer = Trainer(config=self.config)
        self.thread = threading.Thread(target=self.trainer.run)
        self.thread.start()
        self.key = make_key(config.network.credentials_dir or "", "default")[1]
        self.gateway = Gateway(self.config)
        wait_until(lambda: self.trainer.training is not None)

    @property
    def training(self) -> Any:
        return self.trainer.training

    def close(self) -> None:
        self.gateway.close()
        self.trainer.close()
        self.thread.join(20)
        self.server.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(make_config(tmp_path))
    yield made
    made.close()


def test_transitions_of_a_client_equal_those_in_the_trainers_memory(run: Run) -> None:
    client = Client(run.gateway.port, run.key)
    for _ in range(8):
        client.episode()
    client.close()
    training = run.training
    wait_until(lambda: training.total_samples == len(client.transitions) + 8)
    memory = training.memory
    assert len(memory) == len(client.transitions)
    for index, (before, action, reward, after, terminated, truncated) in enumerate(client.transitions):
        kept = memory.get_transition(index)
        np.testing.assert_array_equal(kept[0], before)
        assert kept[0].dtype == before.dtype
        assert kept[1] == action
        assert kept[2] == np.float32(reward)
        np.testing.assert_array_equal(kept[3], after)
        assert (bool(kept[4]), bool(kept[5])) == (terminated, truncated)


def test_clients_that_play_at_once_lose_no_transition(tmp_path: Path) -> None:
    run = Run(make_config(tmp_path))
    clients = [Client(run.gateway.port, run.key) for _ in range(3)]
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda client: client.episodes(12), clients))
        wanted = [one for client in clients for one in client.transitions]
        memory = run.training.memory
        wait_until(lambda: len(memory) >= len(wanted))
        assert sorted(map(str, wanted)) == sorted(
            str((kept[0], int(kept[1]), float(kept[2]), kept[3], bool(kept[4]), bool(kept[5])))
            for kept in map(memory.get_transition, range(len(memory)))
        )
    finally:
        for client in clients:
            client.close()
        run.close()


def test_an_episode_that_is_open_at_the_gateways_end_is_kept_as_truncated(run: Run) -> None:
    client = Client(run.gateway.port, run.key)
    obs, _ = client.env.reset(seed=1)
    client.exchange(obs, 0.0, False, False)
    for _ in range(3):
        assert client.exchange(obs, 1.0, False, False) in (0, 1)
    run.gateway.close()
    client.close()
    training = run.training
    wait_until(lambda: training.total_samples == 4)
    assert [bool(training.memory.get_transition(index)[5]) for index in range(3)] == [False, False, True]


def test_a_gateway_that_is_made_again_goes_on_with_the_same_weights(tmp_path: Path) -> None:
    few = {"start_training": 20, "max_training_steps_per_env_step": 0.5, "update_model_interval": 5}
    run = Run(make_config(tmp_path, **few))
    kept = tmp_path / "tests" / "gateway" / "default" / "policy.tmod"

    def play_until(true: Callable[[], object]) -> None:
        client = Client(run.gateway.port, run.key)
        client.play_until(true)
        client.close()

    try:
        play_until(kept.exists)
        first = kept.read_bytes()
        play_until(lambda: kept.read_bytes() != first)
        run.trainer.close()  # it publishes nothing from here on
        run.thread.join(20)
        run.gateway.close()
        kept.unlink()
        run.gateway = Gateway(run.config)
        wait_until(kept.exists)
        learned = kept.read_bytes()
        assert learned != first
        run.gateway.close()
        kept.unlink()
        run.gateway = Gateway(run.config)
        wait_until(kept.exists)
        assert kept.read_bytes() == learned
        run.trainer = Trainer(config=run.config)
        run.thread = threading.Thread(target=run.trainer.run)
        run.thread.start()
        play_until(lambda: kept.read_bytes() != learned)
    finally:
        run.close()


def test_the_trainers_evaluations_and_end_reach_the_clients(tmp_path: Path) -> None:
    evaluation = EvaluationSection(episodes=2, every_updates=20)
    few: dict[str, Any] = {"epochs": 1, "rounds": 2, "steps": 20, "start_training": 30, "update_model_interval": 10}
    run = Run(make_config(tmp_path, evaluation=evaluation, **few))
    client = Client(run.gateway.port, run.key)
    try:
        client.play_until(lambda: not run.thread.is_alive())
        records = list(read_records(tmp_path / "tests" / "metrics.jsonl"))
        evaluations = [record.values for record in records if record.kind == "evaluation"]
        assert evaluations
        assert [(row["eval/episodes"], "/" in str(row["worker"])) for row in evaluations] == [(2, True)] * len(
            evaluations
        )
        played = {record.values["worker"] for record in records if record.kind == "episode"}
        assert played == {evaluations[0]["worker"]}

        client.episode()  # answered, though nobody learns
        more = msgspec.structs.replace(run.config.trainer, epochs=1000)
        run.trainer = Trainer(config=msgspec.structs.replace(run.config, trainer=more))
        run.thread = threading.Thread(target=run.trainer.run)
        run.thread.start()
        wait_until(lambda: run.training is not None)
        before = run.training.total_samples
        client.play_until(lambda: run.training.total_samples >= before + 100)
    finally:
        client.close()
        run.close()


def test_agents_of_both_modes_serve_beside_each_other(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    advice = {"mode": "advice", "observation_space": [[4], None, None], "action_space": 2, "start_training": 1000}
    section = msgspec.convert({"port": 0, "agents": {"default": {}, "alone": advice}}, GatewaySection)
    run = Run(msgspec.structs.replace(config, gateway=section))
    try:
        together = Client(run.gateway.port, run.key)
        alone = Client(run.gateway.port, make_key(tmp_path / "keys", "alone")[1])
        for client in (together, alone):
            client.episode()
            client.close()
        wait_until(lambda: run.training.total_samples == len(together.transitions) + 1)
    finally:
        run.close()


def test_a_websocket_that_is_open_at_the_gateways_end_leaves_a_truncated_episode(run: Run) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{run.gateway.port}/shepherd/ws/") as client:
        client.send(json.dumps({"apikey": run.key}))
        assert "ok" in json.loads(client.recv(20))
        for reward in (0.0, 1.0, 1.0):
            client.send(json.dumps({"obs": [0.0] * 4, "reward": reward, "done": False}))
            assert json.loads(client.recv(20))["action"] in (0, 1)
        run.gateway.close()
        with pytest.raises(ConnectionClosed):
            client.recv(20)
    wait_until(lambda: run.training.total_samples == 3)
    assert [bool(run.training.memory.get_transition(index)[5]) for index in range(2)] == [False, True]


def test_localhost_is_reached_by_both_address_families(run: Run) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        if host == "::1" and not socket.has_ipv6:
            continue
        connection = http.client.HTTPConnection(host, run.gateway.port, timeout=20)
        connection.request("POST", "/shepherd/login_user/", json.dumps({"apikey": run.key}))
        assert "ok" in json.loads(connection.getresponse().read())
        connection.close()


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(NetworkError, match=rf"port {port} of 127.0.0.1 is in use: .* set gateway.port"):
            listening_sockets("127.0.0.1", port, "gateway")


def test_https_needs_the_certificate_of_a_server(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"server.pem not found. Other machines reach the gateway over HTTPS"):
        https_context(tmp_path, "gateway")
    credentials.create(tmp_path, ["gateway.example.org"])
    elsewhere = tmp_path / "elsewhere"
    credentials.install(credentials.bundle(tmp_path, "worker", "web", tmp_path), elsewhere)
    with pytest.raises(CredentialsError, match=r"On the machine that holds ca.key, run .* bundle server"):
        https_context(elsewhere, "gateway")
    assert https_context(tmp_path, "gateway").verify_mode == ssl.CERT_NONE


def test_other_machines_reach_it_over_https(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    config = msgspec.structs.replace(config, gateway=GatewaySection(host="0.0.0.0", port=0))
    credentials.create(tmp_path / "keys")
    run = Run(config)
    try:
        context = ssl.create_default_context(cafile=tmp_path / "keys" / "ca.pem")
        connection = http.client.HTTPSConnection("127.0.0.1", run.gateway.port, timeout=20, context=context)
        connection.request("POST", "/shepherd/login_user/", json.dumps({"apikey": run.key}))
        assert "ok" in json.loads(connection.getresponse().read())
        connection.close()

        def certificate() -> str:
            return ssl.get_server_certificate(("127.0.0.1", run.gateway.port), timeout=20)

        before = certificate()
        credentials.create(tmp_path / "keys")  # as --credentials renew does
        wait_until(lambda: certificate() != before)
    finally:
        run.close()


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        ({"collection": "lockstep"}, "lockstep trains on exactly the steps that it assigns"),
        ({"collection": "synchronous"}, "clients of the gateway do not wait"),
    ],
)
def test_collection_that_waits_is_refused(tmp_path: Path, worker: dict[str, Any], reason: str) -> None:
    config = msgspec.structs.replace(make_config(tmp_path), worker=WorkerSection(**worker))
    with pytest.raises(ConfigError, match=reason):
        check_central(config)


@pytest.mark.parametrize(
    ("agents", "reason"),
    [
        ({"a": {}, "b": {}}, "a and b are central"),
        ({"../a": {}}, "found the name '../a'; allowed: 1 to 64 letters"),
    ],
)
def test_impossible_agents_are_refused(tmp_path: Path, agents: dict[str, Any], reason: str) -> None:
    section = msgspec.convert({"agents": agents}, GatewaySection)
    with pytest.raises(ConfigError, match=reason):
        make_agents(msgspec.structs.replace(make_config(tmp_path), gateway=section))


# --- processes --------------------------------------------------------------------------------------------------------

PROCESSES = """
run: {name: small}
network: {credentials_dir: keys}
environment:
  cls: tmrl_core.envs:ShepherdEnv
  kwargs: {observation_space: [[4], null, null], action_space: 2}
actor: {cls: "tmrl_core.actor:QValueMLPActor", kwargs: {hidden_sizes: [8, 8]}}
agent: {cls: "tmrl_core.training:DQNAgent"}
memory: {batch_size: 8}
trainer:
  epochs: 1000
  start_training: 20
  max_training_steps_per_env_step: 0.5
  update_model_interval: 5
  update_buffer_interval: 5
  device: cpu
server: {port: 0}
gateway: {port: 0, send_every: 20}
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, PROCESSES) as call:
        yield call


def command(*arguments: str) -> str:
    """Run a command of the command line in this process, and return its output."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert main(arguments) == 0
    return shown.getvalue()


def new_key(folder: Path, agent: str = "default", *more: str) -> str:
    shown = command("--credentials", "key", agent, "--set", f"network.credentials_dir={folder}", *more)
    return next(line.strip() for line in shown.splitlines() if line.startswith("    "))


def test_a_gateway_on_another_machine_has_credentials_of_its_own(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own, other = (("--set", f"network.credentials_dir={tmp_path / name}") for name in ("server", "gateway"))
    command("--credentials", "create", *own)
    command("--credentials", "bundle", "worker", "--name", "site", *own)
    command("--credentials", "bundle", "server", "--out", "server.bundle", *own)
    for bundle in ("site.worker.bundle", "server.bundle"):
        command("--credentials", "install", bundle, *other)
    key = new_key(tmp_path / "gateway")
    server = start("--server", "--announce", *own)
    at_server = ("--set", f"server.port={announced(server)}", "--set", "server.host=localhost")
    gateway = start("--gateway", "--announce", "--set", "gateway.host=0.0.0.0", *at_server, *other)
    port = announced(gateway)
    context = ssl.create_default_context(cafile=str(tmp_path / "gateway" / "ca.pem"))
    client = Client(port, key, http.client.HTTPSConnection("localhost", port, timeout=20, context=context))
    client.episodes(2)
    client.close()
    assert not (tmp_path / "gateway" / "ca.key").exists()
    assert not (tmp_path / "server" / "gateway_keys.json").exists()
    server.terminate()
    said, _ = server.communicate(timeout=30)
    assert "worker site (site's certificate" in said


def test_all_roles_of_one_machine_with_a_gateway_that_is_restarted_after_a_crash(start: Start, tmp_path: Path) -> None:
    key = new_key(tmp_path / "keys")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    roles = start("--local", "--gateway", "--set", f"gateway.port={port}")

    def login() -> Client | None:
        try:
            return Client(port, key)
        except ConnectionError:
            return None

    def logged_in() -> Client:
        made: list[Client] = []

        def tried() -> bool:
            client = login()
            if client is not None:
                made.append(client)
            return bool(made)

        wait_until(tried, 100)
        return made[0]

    first = logged_in()
    first.play_until((tmp_path / "runs" / "small" / "gateway" / "default" / "policy.tmod").exists)
    children = psutil.Process(roles.pid).children()
    (gateway,) = (child for child in children if "--gateway" in child.cmdline())
    gateway.kill()
    wait_until(lambda: not gateway.is_running() or gateway.status() == psutil.STATUS_ZOMBIE)
    second = logged_in()
    second.episode()
    for client in (first, second):
        client.close()
    roles.send_signal(signal.SIGTERM)
    out, _ = roles.communicate(timeout=100)
    assert roles.returncode == 0, out
    assert "the gateway ended with exit status -9 and is restarted" in out
    log = (tmp_path / "runs" / "small" / "logs" / "gateway.log").read_text(encoding="utf-8")
    assert ", 0 lost" in log
