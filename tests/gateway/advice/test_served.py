"""A gateway with an agent of the mode `advice` and clients over HTTP: a full disk, a kill, and a hostile client."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.command_line import Start, announced, starting
from tests.gateway.test_serve import Client, new_key
from tmrl_core.config import Config, from_values
from tmrl_core.gateway.advice.saves import read_save
from tmrl_core.gateway.api_keys import make_key
from tmrl_core.gateway.serve import Gateway
from tmrl_core.networking.security import credentials

SETTINGS = """
run: {name: small}
network: {credentials_dir: keys}
actor: {cls: "tmrl_core.actor:QValueMLPActor"}
agent: {cls: "tmrl_core.training:DQNAgent", kwargs: {hidden_sizes: [8]}}
gateway:
  port: 0
  agents:
    game: {mode: advice, env_id: CartPole-v1, start_training: 20, batch_size: 8, save_every_steps: 50}
"""


def config(runs: Path, keys: Path, host: str = "localhost", **agent: Any) -> Config:
    values = yaml.safe_load(SETTINGS)
    values["network"]["credentials_dir"] = str(keys)
    values["run"]["folder"] = str(runs)
    values["gateway"]["host"] = host
    values["gateway"]["agents"]["game"].update(agent)
    return from_values(values)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, SETTINGS) as call:
        yield call


def test_sessions_go_on_after_a_full_disk_and_from_the_saves_after_a_kill(start: Start, tmp_path: Path) -> None:
    key = new_key(tmp_path / "keys", "game", "-c", str(tmp_path / "small.yaml"))
    saves = tmp_path / "runs" / "small" / "gateway" / "game" / "saves"
    gateway = start("--gateway", "--announce")
    client = Client(announced(gateway), key)
    while not (before := sorted(saves.glob("*.save"))):
        client.episode()
    if sys.platform == "linux":  # elsewhere, the files of a running process cannot be limited
        process = psutil.Process(gateway.pid)
        _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (100, hard))
        taken = len(client.transitions)
        while len(client.transitions) < taken + 100:
            client.episode()
        assert sorted(saves.iterdir()) == before
        process.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
        while sorted(saves.glob("*.save")) == before:
            client.episode()
        assert read_save(max(saves.glob("*.save"))).steps > taken + 100
    while len(list(saves.glob("*.save"))) < 3:
        client.episode()
    client.close()
    gateway.kill()
    said, _ = gateway.communicate(timeout=30)
    assert sys.platform != "linux" or "cannot be saved" in said
    assert sys.platform != "linux" or "episodes are missing" in said
    newest = read_save(max(saves.glob("*.save")))
    assert newest.steps >= 150

    # No update, so that the weights can be compared.
    again = Gateway(config(tmp_path / "runs", tmp_path / "keys", start_training=100_000))
    client = Client(again.port, key)
    client.episode()
    client.post("/shepherd/env/", {"obs": None, "session_key": client.session})
    resumed = read_save(max(saves.glob("*.save")))
    assert resumed.session_id != newest.session_id
    assert resumed.steps == newest.steps + len(client.transitions)
    assert resumed.arrays.keys() == newest.arrays.keys()
    for name, array in newest.arrays.items():
        found = resumed.arrays[name]
        if name.startswith("memory"):  # followed by the transitions of the new session
            assert len(found) == len(array) + len(client.transitions)
            found = found[: len(array)]
        assert (found == array).all(), name

    second = Client(again.port, key)  # of the same key: it starts from the level reached
    second.episode()
    again.close()
    last = read_save(max(saves.glob("*.save")))
    assert last.steps == resumed.steps + len(second.transitions)
    client.close()
    second.close()


def test_a_hostile_client_over_https_harms_no_other_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = tmp_path / "keys"
    credentials.create(keys)
    key = make_key(keys, "game")[1]
    gateway = Gateway(config(tmp_path, keys, host="0.0.0.0"))
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))

    def connected() -> Client:
        connection = http.client.HTTPSConnection("localhost", gateway.port, timeout=60, context=context)
        return Client(gateway.port, key, connection)

    def status(client: Client, **changes: object) -> int:
        fields = {"obs": [0.0] * 4, "reward": 0.0, "done": False, "session_key": client.session, **changes}
        client.connection.request("POST", "/shepherd/env/", json.dumps(fields))
        response = client.connection.getresponse()
        assert json.loads(response.read())
        return response.status

    refused: list[dict[str, object]] = [
        {"obs": [1e9] * 4},
        {"obs": [[]] * 10_000},
        {"obs": [0.0] * 3},
        {"reward": 1e300},
        {"info": 5},
        {"info": {"a": [[[[[[[[[[]]]]]]]]]]}},
    ]
    try:
        honest, hostile = connected(), connected()
        for number in range(60):
            assert status(hostile, obs=[1e6 * (-1) ** number] * 4, reward=1e6, info={"a": "x" * 20_000}) in (200, 401)
            assert status(hostile, **refused[number % len(refused)]) in (400, 401)
            assert status(hostile, done=True) in (200, 401)
            if number % 10 == 0:
                honest.episode()
        assert len(honest.transitions) > 0
        for client in (honest, hostile):
            client.close()
    finally:
        gateway.close()
    assert "Traceback" not in caplog.text
