"""Links and Servers in a process that was forked from theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FORKS = """
import os, sys
from tmrl_core.config import from_values
from tmrl_core.errors import NetworkError
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, WorkerLink

server = Server(config=from_values({"network": {"security": None}, "server": {"port": 0, "bind": "localhost"}}))
link = WorkerLink(LinkSettings(host="localhost", port=server.port, security=None), name="robot7", run="run")
link.start()
assert link.wait_connected(20.0)
child = os.fork()
if child == 0:
    for use in (link.check, lambda: link.wait_connected(20.0), server.wait):
        try:
            use()
        except NetworkError as exc:
            assert "spawn" in str(exc)
        else:
            raise AssertionError(f"{use} worked")
    link.close()
    server.close()
    own = Server(config=from_values({"network": {"security": None}, "server": {"port": 0, "bind": "localhost"}}))
    own.close()
    sys.exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
link.check()
assert link.connected
link.close()
server.close()
print("parent", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_forked_child_cannot_use_what_its_parent_made_and_ends_in_order(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS],
        env={**os.environ, "TMRL_CORE_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stdout.split() == ["child", "7", "parent"], done.stderr
