"""The example of the tutorial on real time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tmrl_core.config import environment_maker, load

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "real_time"


def test_the_tutorial_shows_the_files() -> None:
    tutorial = (ROOT / "docs" / "tutorials" / "real_time.md").read_text(encoding="utf-8")
    cart = (EXAMPLE / "cart.py").read_text(encoding="utf-8")
    assert cart[cart.index("class CartInterface") :] in tutorial
    assert (EXAMPLE / "cart.yaml").read_text(encoding="utf-8") in tutorial


@pytest.mark.filterwarnings("ignore:.*[Tt]ime-step.*")  # a busy machine
def test_the_cart_moves_at_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    given = load(EXAMPLE / "cart.yaml", environ={}).environment
    try:
        env = environment_maker(given.cls, given.kwargs)()
        (seen, *actions), _ = env.reset(seed=0)
        assert [action.tolist() for action in actions] == [[0.0], [0.0]]
        truncated, steps = False, 0
        while not truncated:
            (seen, *actions), reward, _, truncated, info = env.step(np.ones(1, np.float32))
            steps += 1
        assert steps == 40
        assert seen[0] == 1.0, "it stands at the end of the rail"
        assert reward == pytest.approx(-info["distance"]) == pytest.approx(-abs(1.0 - seen[1]))
    finally:
        sys.modules.pop("cart", None)


@pytest.mark.full
def test_it_trains(tmp_path: Path) -> None:
    small = {"epochs": 1, "rounds": 1, "steps": 20, "start_training": 30}
    overrides = [word for key, value in small.items() for word in ("--set", f"trainer.{key}={value}")]
    command = [sys.executable, "-m", "tmrl_core", "--local", "--workers", "1", "-c", str(EXAMPLE / "cart.yaml")]
    done = subprocess.run(
        [*command, *overrides, "--set", "server.port=0"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 updates" in done.stdout + done.stderr
