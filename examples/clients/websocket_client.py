"""Play an environment over one WebSocket: for control loops, where a request for each step would cost too much.

    GATEWAY_KEY=... python websocket_client.py [--url wss://gateway.example:8000/ --ca ca.pem] [--episodes 10]

Needs `pip install websockets gymnasium`.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from websockets.sync.client import ClientConnection, connect


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="ws://localhost:8000/")
    parser.add_argument("--ca", help="the gateway's ca.pem, for wss")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--episodes", type=int, default=10)
    arguments = parser.parse_args()
    key = os.environ.get("GATEWAY_KEY") or sys.exit("set GATEWAY_KEY to an API key")

    url = arguments.url.rstrip("/") + "/shepherd/ws/"
    context = ssl.create_default_context(cafile=arguments.ca) if url.startswith("wss:") else None
    try:
        with connect(url, ssl=context, compression=None) as socket:
            play(socket, key, gymnasium.make(arguments.env), arguments.episodes)
    except OSError as error:
        sys.exit(f"no answer from {url}: {error}. Does the gateway run there?")


def play(socket: ClientConnection, key: str, env: gymnasium.Env[Any, Any], episodes: int) -> None:
    def ask(message: dict[str, Any]) -> dict[str, Any]:
        socket.send(json.dumps(message))
        answer: dict[str, Any] = json.loads(socket.recv())
        if "error" in answer:
            sys.exit(f"refused: {answer['error']}")
        return answer

    # The connection remembers the session of its login, so the messages below contain no session_key.
    ask({"apikey": key})
    steps, started = 0, time.perf_counter()
    for episode in range(1, episodes + 1):
        obs, _ = env.reset()
        reward, terminated, truncated, total = 0.0, False, False, 0.0
        while True:
            result = {"reward": float(reward), "terminated": bool(terminated), "truncated": bool(truncated)}
            action = ask({"obs": np.asarray(obs).tolist(), **result})["action"]
            if action is None:
                break
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            steps += 1
        print(f"episode {episode}: return {total:g}", flush=True)
    print(f"{steps / (time.perf_counter() - started):.0f} steps/s")
    ask({"obs": None})


if __name__ == "__main__":
    main()
