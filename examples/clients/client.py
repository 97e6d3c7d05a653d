"""A client class to copy: one connection, numbered steps, retries. As a script, it plays an environment of Gymnasium.

    GATEWAY_KEY=... python client.py [--url https://gateway.example:8000/ --ca ca.pem] [--env CartPole-v1]

Needs `pip install requests`; the script also needs gymnasium.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import requests

RETRIED = {None, 409, 429, 500, 502, 503, 504}
"""No answer, and statuses that pass: another request is in progress, too many requests, the gateway is not ready."""

SESSION_ENDED = 401
LOST = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class GatewayError(Exception):
    """The gateway has not answered with an action.

    Attributes:
        status: the HTTP status; None: there was no answer at all.
    """

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
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
        GatewayError: the gateway refuses the key or a message, or there is no answer within `retry_s`.
    """

    def __init__(
        self, key: str, url: str = "http://localhost:8000/", ca: str | None = None, retry_s: float = 60.0
    ) -> None:
        self._url = url.rstrip("/") + "/shepherd/"
        self._retry_s = retry_s
        self._step = 0
        self._http = requests.Session()
        self._ca = ca or True
        self._key = key
        self._log_in()

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
        try:
            return self._post("env/", message)["action"]
        except GatewayError as error:
            if error.status != SESSION_ENDED:
                raise
        # The gateway was restarted, or the session was idle for too long: the rest of the episode is a new one.
        self._log_in()
        return None if terminated or truncated else self.begin(obs)

    def close(self) -> None:
        """End the session."""
        self._post("env/", {"obs": None, "session_key": self._session_key})
        self._http.close()

    def _log_in(self) -> None:
        self._session_key = self._post("login_user/", {"apikey": self._key})["session_key"]

    def _post(self, path: str, message: dict[str, Any]) -> Any:
        deadline, wait_s = time.monotonic() + self._retry_s, 0.1
        while True:
            try:
                response = self._http.post(self._url + path, json=message, timeout=10, verify=self._ca)
                if response.ok:
                    return response.json()
                error = GatewayError(f"refused: {reason(response)}", response.status_code)
            except requests.exceptions.SSLError as problem:
                raise GatewayError(
                    f"{problem}. Give the gateway's ca.pem with --ca and a name of its certificate in the URL; on a "
                    "loopback address the gateway speaks plain http."
                ) from None
            except LOST as problem:
                error = GatewayError(
                    f"no answer from {self._url}: {problem}. Does the gateway run there, with http or https?"
                )
            if time.monotonic() > deadline or error.status not in RETRIED:
                raise error
            if wait_s == 0.4:
                print(f"{error} Trying again.", file=sys.stderr)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)


def reason(response: requests.Response) -> str:
    """Return the reason of a refusal; a proxy before the gateway may answer with a page of its own."""
    try:
        return str(response.json()["error"])
    except (ValueError, LookupError, TypeError):
        return f"{response.status_code} {response.reason}"


def play(client: Client, env: Any) -> float:
    """Play one episode of an environment of Gymnasium and return its return."""
    obs, _ = env.reset()
    total, action = 0.0, client.begin(obs.tolist())
    while action is not None:
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        action = client.step(obs.tolist(), float(reward), terminated, truncated)
    return total


def main() -> None:
    import gymnasium

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://localhost:8000/")
    parser.add_argument("--ca", help="the gateway's ca.pem, for HTTPS")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--episodes", type=int, default=10)
    arguments = parser.parse_args()
    key = os.environ.get("GATEWAY_KEY") or sys.exit("set GATEWAY_KEY to an API key")

    env = gymnasium.make(arguments.env)
    try:
        client = Client(key, arguments.url, arguments.ca)
        for episode in range(1, arguments.episodes + 1):
            print(f"episode {episode}: return {play(client, env):g}", flush=True)
        client.close()
    except GatewayError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
