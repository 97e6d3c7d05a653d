"""A gateway process with an agent of the mode `advice`, its clients over HTTP, a kill and a restart."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.command_line import Start, announced, starting
from tests.gateway.test_serve import Client, new_key
from tmrl_core.gateway.advice.saves import read_save

SETTINGS = """
run: {name: small}
actor: {cls: "tmrl_core.actor:QValueMLPActor"}
agent: {cls: "tmrl_core.training:DQNAgent", kwargs: {hidden_sizes: [8]}}
gateway:
  port: 0
  agents:
    game: {mode: advice, env_id: CartPole-v1, start_training: 20, batch_size: 8, save_every_steps: 50}
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, SETTINGS) as call:
        yield call


def test_sessions_go_on_from_the_saves_after_a_kill(start: Start, tmp_path: Path) -> None:
    key = new_key(start, "game")
    saves = tmp_path / "runs" / "small" / "gateway" / "game" / "saves"
    gateway = start("--gateway", "--announce")
    client = Client(announced(gateway), key)
    while len(list(saves.glob("*.zip"))) < 3:
        client.episode()
    client.close()
    gateway.kill()
    gateway.wait(20)
    newest = read_save(max(saves.glob("*.zip")))
    assert newest.steps >= 150

    # No update, so that the weights can be compared.
    gateway = start("--gateway", "--announce", "--set", "gateway.agents.game.start_training=100000")
    port = announced(gateway)
    client = Client(port, key)
    client.episode()
    client.post("/shepherd/env/", {"obs": None, "session_key": client.session})
    resumed = read_save(max(saves.glob("*.zip")))
    assert resumed.session_id != newest.session_id
    assert resumed.steps == newest.steps + len(client.transitions)
    assert resumed.arrays.keys() == newest.arrays.keys()
    for name, array in newest.arrays.items():
        found = resumed.arrays[name]
        if name.startswith("memory"):  # followed by the transitions of the new session
            assert len(found) == len(array) + len(client.transitions)
            found = found[: len(array)]
        assert (found == array).all(), name

    second = Client(port, key)  # of the same key: it starts from the level reached
    second.episode()
    gateway.terminate()
    assert gateway.wait(60) == 0
    last = read_save(max(saves.glob("*.zip")))
    assert last.steps == resumed.steps + len(second.transitions)
    client.close()
    second.close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits the files of a running process")
def test_a_disk_that_is_full_for_a_while_ends_no_session(start: Start, tmp_path: Path) -> None:
    key = new_key(start, "game")
    saves = tmp_path / "runs" / "small" / "gateway" / "game" / "saves"
    gateway = start("--gateway", "--announce")
    client = Client(announced(gateway), key)
    while not (before := sorted(saves.glob("*.zip"))):
        client.episode()
    process = psutil.Process(gateway.pid)
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (100, hard))
    taken = len(client.transitions)
    while len(client.transitions) < taken + 150:
        client.episode()
    assert sorted(saves.iterdir()) == before
    process.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
    while sorted(saves.glob("*.zip")) == before:
        client.episode()
    assert read_save(max(saves.glob("*.zip"))).steps > taken + 150
    client.close()
    gateway.terminate()
    said, _ = gateway.communicate(timeout=30)
    assert "cannot be saved" in said
    assert "episodes are missing" in said


def test_a_hostile_client_over_https_harms_no_other_session(start: Start, tmp_path: Path) -> None:
    keys = ("--set", f"network.credentials_dir={tmp_path / 'keys'}")
    assert start("--credentials", "create", *keys).wait(100) == 0
    key = new_key(start, "game", *keys)
    gateway = start("--gateway", "--announce", "--set", "gateway.host=0.0.0.0", *keys)
    port = announced(gateway)
    context = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.pem"))

    def connected() -> Client:
        return Client(port, key, http.client.HTTPSConnection("localhost", port, timeout=60, context=context))

    def status(client: Client, **changes: object) -> int:
        fields = {"obs": [0.0] * 4, "reward": 0.0, "done": False, "session_key": client.session, **changes}
        client.connection.request("POST", "/shepherd/env/", json.dumps(fields))
        response = client.connection.getresponse()
        assert json.loads(response.read())
        return response.status

    honest, hostile = connected(), connected()
    refused: list[dict[str, object]] = [
        {"obs": [1e9] * 4},
        {"obs": [[]] * 10_000},
        {"obs": [0.0] * 3},
        {"reward": 1e300},
        {"info": 5},
        {"info": {"a": [[[[[[[[[[]]]]]]]]]]}},
    ]
    for number in range(60):
        assert status(hostile, obs=[1e6 * (-1) ** number] * 4, reward=1e6, info={"a": "x" * 20_000}) in (200, 401)
        assert status(hostile, **refused[number % len(refused)]) in (400, 401)
        assert status(hostile, done=True) in (200, 401)
        if number % 10 == 0:
            honest.episode()
    assert len(honest.transitions) > 0
    for client in (honest, hostile):
        client.close()
    gateway.terminate()
    said, _ = gateway.communicate(timeout=60)
    assert gateway.returncode == 0, said
    assert "Traceback" not in said
