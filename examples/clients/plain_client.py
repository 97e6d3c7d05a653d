"""Play CartPole against a gateway: the shortest client, with one new connection per message.

    GATEWAY_KEY=... python plain_client.py [URL] [EPISODES]

Works with the API of Gymnasium, whose `step` returns five values, and with the older one of four. For HTTPS, also set
REQUESTS_CA_BUNDLE to the gateway's ca.pem.
"""

import os
import sys

import gymnasium
import requests

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/"
EPISODES = int(sys.argv[2]) if len(sys.argv) > 2 else 10
KEY = os.environ.get("GATEWAY_KEY") or sys.exit("set GATEWAY_KEY to an API key")

answer = requests.post(URL + "shepherd/login_user/", json={"apikey": KEY}).json()
if "ok" not in answer:
    sys.exit(f"login refused: {answer['error']}")
session_key = answer["session_key"]


def post(obs, **result):
    message = {"obs": obs.tolist(), "session_key": session_key, **result}
    answer = requests.post(URL + "shepherd/env/", json=message).json()
    return answer["action"] if "action" in answer else sys.exit(f"refused: {answer['error']}")


env = gymnasium.make("CartPole-v1")
for episode in range(EPISODES):
    obs, total = env.reset(), 0.0
    action = post(obs[0] if isinstance(obs, tuple) else obs, reward=0.0, done=False)
    while action is not None:
        obs, reward, *ends, info = env.step(action)
        names = ["done"] if len(ends) == 1 else ["terminated", "truncated"]
        action = post(obs, reward=reward, info=info, **dict(zip(names, ends, strict=True)))
        total += reward
    print(f"episode {episode + 1}: return {total:g}", flush=True)
requests.post(URL + "shepherd/env/", json={"obs": None, "session_key": session_key})
