"""A Server in a process of its own, which a test can look at from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SERVER = """
import json
import sys
from tmrl_core.config import from_values
from tmrl_core.networking import Server

with Server(config=from_values(json.loads(sys.argv[1]))) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


def start_server(stack: ExitStack, values: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a Server, which ends when its input does. Return its process and its port."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps(values)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    stack.callback(server.wait)
    assert server.stdin is not None
    assert server.stdout is not None
    stack.callback(server.stdout.close)
    stack.callback(server.stdin.close)
    return server, int(server.stdout.readline())
