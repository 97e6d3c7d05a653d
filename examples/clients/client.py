"""A client class to copy: one connection, numbered steps, retries. As a script, it plays an environment of Gymnasium.

    GATEWAY_KEY=... python client.py [--url https://gateway.example:8000/ --ca ca.pem] [--env CartPole-v1]

Needs `pip install requests gymnasium`.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import gymnasium
import numpy as np
import requests

RETRIED = {409, 429, 500, 502, 503, 504}
"""Statuses that pass: another request of the session is in progress, too many requests, the gateway is not ready."""


class RefusedError(Exception):
    """The gateway's reason for not answering with an action.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} (status {status})")
        self.status = status


class Client:
    """A session with the gateway: `begin` and `step` return the agent's action, as `env.step` takes it.

    Args:
        key: API key.
        url: address of the gateway.
        ca: the gateway's `ca.pem`, for HTTPS.
        retry_s: seconds to repeat a message for if it gets no answer. A repeated message has the same step number, so
            the gateway records it once.

    Raises:
        RefusedError: the gateway refuses the key, or a message.
        requests.ConnectionError: no answer within `retry_s`.
    """

    def __init__(
        self, key: str, url: str = "http://localhost:8000/", ca: str | None = None, retry_s: float = 60.0
    ) -> None:
        self._url = url.rstrip("/") + "/shepherd/"
        self._retry_s = retry_s
        self._step = 0
        self._http = requests.Session()
        self._http.verify = ca or True
        self._session_key = self._post("login_user/", {"apikey": key})["session_key"]

    def begin(self, obs: Any) -> Any:
        """Begin an episode with the observation of a reset."""
        return self.step(obs, 0.0)

    def step(self, obs: Any, reward: float, terminated: bool = False, truncated: bool = False) -> Any:
        """Report the result of the last action; return the next action, or None at the end of the episode."""
        self._step += 1
        message = {
            "obs": obs,
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "step": self._step,
            "session_key": self._session_key,
        }
        return self._post("env/", message)["action"]

    def close(self) -> None:
        """End the session."""
        self._post("env/", {"obs": None, "session_key": self._session_key})
        self._http.close()

    def _post(self, path: str, message: dict[str, Any]) -> Any:
        deadline, wait_s = time.monotonic() + self._retry_s, 0.1
        while True:
            late = time.monotonic() > deadline
            try:
                response = self._http.post(self._url + path, json=message, timeout=10)
            except (requests.ConnectionError, requests.Timeout) as error:
                if late or isinstance(error, requests.exceptions.SSLError):
                    raise
            else:
                if response.ok:
                    return response.json()
                if late or response.status_code not in RETRIED:
                    raise RefusedError(response.status_code, response.json()["error"])
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)


def play(client: Client, env: gymnasium.Env[Any, Any]) -> float:
    """Play one episode and return its return."""
    obs, _ = env.reset()
    total, action = 0.0, client.begin(np.asarray(obs).tolist())
    while action is not None:
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        action = client.step(np.asarray(obs).tolist(), float(reward), terminated, truncated)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://localhost:8000/")
    parser.add_argument("--ca", help="the gateway's ca.pem, for HTTPS")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--episodes", type=int, default=10)
    arguments = parser.parse_args()

    client = Client(os.environ["GATEWAY_KEY"], arguments.url, arguments.ca)
    env = gymnasium.make(arguments.env)
    for episode in range(1, arguments.episodes + 1):
        print(f"episode {episode}: return {play(client, env):g}", flush=True)
    client.close()


if __name__ == "__main__":
    main()
