"""The room's page and examples/onnx: the Python snippet and the JavaScript run, and act as the policy."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import tmrl_core.actor
from tmrl_core.onnx_export import write_onnx

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tmrl_core" / "onnx_export" / "README.md"
EXAMPLE = ROOT / "examples" / "onnx"


def test_the_snippet_acts_as_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    env = gymnasium.make("Pendulum-v1")
    policy = tmrl_core.actor.NumpySquashedGaussianMLPActor(env.observation_space, env.action_space, seed=2)
    obs, _ = env.reset(seed=1)
    total = 0.0
    for _ in range(200):
        obs, reward, _, _, _ = env.step(policy.act(obs, test=True))
        total += float(reward)
    write_onnx(policy, tmp_path / "policy.onnx")
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(shown, {"__name__": "shown"})
    assert float(said.getvalue().removeprefix("return ")) == pytest.approx(total, abs=1.0)


JAVASCRIPT = """
import { readFile } from "node:fs/promises";
import { Policy } from "%s";
const policy = await Policy.load(await readFile("policy.onnx"));
for (const observation of JSON.parse(await readFile("observations.json")))
  console.log(JSON.stringify((await policy.act(observation)).action));
await policy.act({}).catch((error) => console.error(error.message));
"""


@pytest.mark.full
@pytest.mark.skipif(
    shutil.which("node") is None or not (EXAMPLE / "node_modules").is_dir(),
    reason="needs Node, and `npm install` there",
)
def test_javascript_acts_as_the_recurrent_policy(tmp_path: Path) -> None:
    space = spaces.Dict(
        gear=spaces.Discrete(3), speed=spaces.Box(-1, 1, (2,), np.float64), view=spaces.Box(0, 255, (6, 7), np.uint8)
    )
    policy: Any = tmrl_core.actor.NumpySquashedGaussianRNNActor(
        space, spaces.Box(-2.0, 1.0, (3,), np.float32), cell="lstm", cell_size=8, seed=2
    )
    write_onnx(policy, tmp_path / "policy.onnx")
    space.seed(1)
    episode = [space.sample() for _ in range(5)]
    told = [{f"observation.{key}": np.ravel(value).tolist() for key, value in obs.items()} for obs in episode]
    (tmp_path / "observations.json").write_text(json.dumps(told))
    code = JAVASCRIPT % (EXAMPLE / "policy.mjs").as_uri()
    command = ["node", "--input-type=module", "-e", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    np.testing.assert_allclose(found, [policy.act(obs, test=True) for obs in episode], atol=1e-5)
    assert "the observation lacks observation.gear" in done.stderr
