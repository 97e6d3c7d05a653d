"""The clients of the gateway, as users start them, against a gateway as they start it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.command_line import ROOT
from tests.examples.browser import CHROMIUM, browsing
from tmrl_core.gateway.api_keys import make_key
from tmrl_core.networking.security import credentials
from tmrl_core.testing.proxy import Proxy

CLIENTS = ROOT / "examples" / "clients"
WAIT_S = 60


class Gateway:
    """A gateway in a process of its own, without Server and Trainer: its policy stays as it begins.

    Args:
        folder: for everything that it writes.
        configuration: file.
        settings: further settings, `key=value`.
    """

    def __init__(self, folder: Path, configuration: Path, *settings: str) -> None:
        self.folder = folder
        home = folder / "home"
        credentials.ensure(home / "credentials")
        self.ca = home / "credentials" / "ca.pem"
        self.key = make_key(home / "credentials", "default")[1]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")}
        environ |= {"PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(home)}
        self.environ = {**environ, "GATEWAY_KEY": self.key}
        changes = [word for one in ("gateway.port=0", "worker.drain_timeout_s=0", *settings) for word in ("--set", one)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tmrl_core", "--gateway", "--announce", "-c", str(configuration), *changes],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["port"])

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://localhost:{self.port}/"

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a client in the folder of the clients."""
        return subprocess.run(
            command,
            cwd=CLIENTS,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    def end(self) -> list[tuple[int, float]]:
        """End the gateway and return steps and return of each finished episode."""
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0
        (file,) = (self.folder / "runs").glob("*/gateway/default/episodes.csv")
        rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
        return [(int(steps), float(total)) for _, _, _, steps, total in rows]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def running(folder: Path, configuration: Path, *settings: str) -> Iterator[Gateway]:
    gateway = Gateway(folder, configuration, *settings)
    try:
        yield gateway
    finally:
        gateway.kill()


CARTPOLE = ROOT / "config" / "gateway_cartpole.yaml"


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("gateway"), CARTPOLE) as gateway:
        yield gateway


def returns(said: str) -> list[float]:
    """The returns that a client printed."""
    return [float(found) for found in re.findall(r"return (\S+)", said)]


def succeeded(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, script)


FOUR_VALUES = """
import runpy, sys
import gymnasium

class FourValues(gymnasium.Wrapper):
    def reset(self):
        return super().reset()[0]

    def step(self, action):
        assert type(action) is int
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, {"TimeLimit.truncated": truncated and not terminated, **info}

make = gymnasium.make
gymnasium.make = lambda id: FourValues(make(id))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("code", [(), ("-c", FOUR_VALUES)], ids=["five values", "four values"])
def test_the_plain_client_plays_with_either_api(cartpole: Gateway, code: Sequence[str]) -> None:
    said = succeeded(cartpole.run(sys.executable, *code, "plain_client.py", cartpole.url(), "3"))
    assert len(returns(said)) == 3


def test_the_client_class_plays(cartpole: Gateway) -> None:
    said = succeeded(cartpole.run(*python("client.py"), "--url", cartpole.url(), "--episodes", "3"))
    assert len(returns(said)) == 3


def test_the_websocket_client_plays(cartpole: Gateway) -> None:
    said = succeeded(cartpole.run(*python("websocket_client.py"), "--url", cartpole.url("ws"), "--episodes", "3"))
    assert len(returns(said)) == 3
    assert "steps/s" in said


needs_curl = pytest.mark.skipif(shutil.which("curl") is None or shutil.which("sh") is None, reason="needs sh and curl")


@needs_curl
def test_curl_takes_two_steps_and_ends(cartpole: Gateway) -> None:
    answers = re.findall(r'{"action":(\w+)}', succeeded(cartpole.run("sh", "curl.sh", cartpole.url())))
    assert answers[0] in ("0", "1")
    assert answers[1] in ("0", "1")
    assert answers[2:] == ["null", "null"]


COMMANDS = [
    (*python("plain_client.py"), "{url}"),
    (*python("client.py"), "--url", "{url}"),
    (*python("websocket_client.py"), "--url", "{ws}"),
    (*python("thermostat.py"), "--url", "{url}"),
    pytest.param(("sh", "curl.sh", "{url}"), marks=needs_curl),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[1])
def test_a_wrong_key_is_refused_with_the_reason(cartpole: Gateway, command: Sequence[str]) -> None:
    words = [word.format(url=cartpole.url(), ws=cartpole.url("ws")) for word in command]
    ended = cartpole.run(*words, GATEWAY_KEY="key-0.wrong")
    assert ended.returncode == 1
    assert "this API key is not valid" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_owner_sees_sessions_and_episodes(cartpole: Gateway) -> None:
    def get(path: str, token: str) -> tuple[int, bytes]:
        answer = requests.get(
            f"{cartpole.url()}owner/{path}", headers={"Authorization": f"Bearer {token}"}, timeout=WAIT_S
        )
        return answer.status_code, answer.content

    token = cartpole.ca.with_name("gateway_owner.token").read_text().strip()
    client = ("-c", "from client import *; import os; Client(os.environ['GATEWAY_KEY'], sys.argv[1]).begin([0.0] * 4)")
    succeeded(cartpole.run(sys.executable, *client, cartpole.url()))
    status, body = get("sessions/", token)
    assert status == 200
    assert "default" in [session["agent"] for session in json.loads(body)["sessions"]]
    succeeded(cartpole.run(*python("plain_client.py"), cartpole.url(), "1"))
    assert get("agents/default/curve.png", token)[1].startswith(b"\x89PNG")
    status, body = get("sessions/", "wrong")
    assert status == 401
    assert "wrong token" in json.loads(body)["error"]


def test_each_step_counts_once_on_a_connection_that_breaks(tmp_path: Path) -> None:
    with running(tmp_path, CARTPOLE) as gateway:
        with Proxy(("127.0.0.1", gateway.port)) as proxy:
            proxy.truncate(2500)  # in the middle of a request or of an answer
            url = f"http://127.0.0.1:{proxy.port}/"
            said = succeeded(gateway.run(*python("client.py"), "--url", url, "--episodes", "5"))
            assert proxy.connections_made > 5
        played = returns(said)
        # The reward of CartPole is 1 for each step.
        assert gateway.end() == [(int(total), total) for total in played]
        assert len(played) == 5


def test_the_client_class_continues_after_a_kill_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CLIENTS))
    from client import Client  # type: ignore[import-not-found,unused-ignore]

    obs = [0.0, 0.0, 0.0, 0.0]
    with running(tmp_path, CARTPOLE) as first:
        client = Client(first.key, first.url())
        assert client.begin(obs) in (0, 1)
        assert client.step(obs, 1.0) in (0, 1)
    with running(tmp_path, CARTPOLE, f"gateway.port={first.port}") as second:
        assert client.step(obs, 1.0) in (0, 1)
        assert client.step(obs, 1.0, terminated=True) is None
        client.close()
        assert second.end() == [(1, 1.0)]


REQUESTS_ONLY = """
import runpy, sys

sys.modules.update(gymnasium=None, numpy=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_thermostat_needs_requests_only_and_runs_over_https(tmp_path: Path) -> None:
    with running(tmp_path, CLIENTS / "thermostat.yaml", "gateway.host=0.0.0.0", "worker.backend=numpy") as gateway:
        arguments = ("--url", gateway.url("https"), "--ca", str(gateway.ca), "--days", "1", "--step-s", "0")
        said = succeeded(gateway.run(sys.executable, "-c", REQUESTS_ONLY, "thermostat.py", *arguments))
        assert len(re.findall(r"day \d: \d+% green", said)) == 1
        assert [steps for steps, _ in gateway.end()] == [96]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def page() -> Iterator[str]:
    """The origin of a web server with the page."""
    handler = partial(QuietHandler, directory=str(CLIENTS))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def fingerprint(certificate: Path) -> str:
    """The SHA-256 of the public key, as Chromium's command line takes it."""
    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    info = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(info).digest()).decode()


PLAYED = """
new Promise(done => {
    const score = document.querySelector("#score"), message = document.querySelector("#message");
    const look = () => parseInt(score.textContent) >= 5 || message.textContent ? done() : setTimeout(look, 50);
    look();
}).then(() => [document.querySelector("#score").textContent, document.querySelector("#message").textContent])
"""


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_plays_over_https_in_a_browser(tmp_path: Path, page: str) -> None:
    settings = ("gateway.host=0.0.0.0", f'gateway.origins=["{page}"]')
    with running(tmp_path, CLIENTS / "catch.yaml", *settings) as gateway:
        trusted = f"--ignore-certificate-errors-spki-list={fingerprint(gateway.ca.with_name('server.pem'))}"
        with browsing(tmp_path / "profile", trusted) as browser:
            browser.open(f"{page}/page.html")
            browser.evaluate("document.querySelector('#pace').value = 0")
            browser.type("#url", gateway.url("https"))
            browser.type("#key", "key-0.wrong")
            browser.press_enter()
            _, message = browser.evaluate(PLAYED)
            assert "this API key is not valid" in message

            browser.type("#key", gateway.key)
            browser.press_enter()
            score, message = browser.evaluate(PLAYED)
            browser.screenshot(tmp_path / "page.png")
        assert message == ""
        assert re.fullmatch(r"\d+ apples; caught \d+ of the latest \d+", score)
        played = gateway.end()
    assert len(played) >= 5
    assert {steps for steps, _ in played} == {17}
    assert {total for _, total in played} <= {0.0, 1.0}


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_page_of_an_origin_that_is_not_allowed_gets_no_answer(tmp_path: Path, page: str) -> None:
    with running(tmp_path, CLIENTS / "catch.yaml") as gateway, browsing(tmp_path / "profile") as browser:
        browser.open(f"{page}/page.html")
        browser.type("#url", gateway.url())
        browser.type("#key", gateway.key)
        browser.press_enter()
        _, message = browser.evaluate(PLAYED)
        assert "gateway.origins" in message
