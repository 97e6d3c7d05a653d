"""A whole run whose worker encodes images, and its recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.command_line import records, starting
from tmrl_core.sessions import read_sessions

RUN = """
run: {name: small, seed: 1}
environment: {cls: "tests.envs.test_sent_images:Cameras", probe: false}
actor: {kwargs: {hidden_sizes: [16], convolutions: [[8, 8, 4]]}}
worker: {images: {size: 32}, record: recorded, max_env_steps_per_update: 4, drain_timeout_s: 5}
server: {port: 0}
memory: {batch_size: 16, storage: disk}
trainer:
  epochs: 1
  rounds: 1
  steps: 60
  start_training: 50
  update_model_interval: 20
  update_buffer_interval: 10
  device: cpu
  threads: 1
"""


@pytest.mark.full
@pytest.mark.timeout(180)
def test_encoded_images_are_trained_on_and_recorded(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    with starting(tmp_path, RUN) as start:
        process = start("--local", "--workers", "1")
        out, _ = process.communicate(timeout=170)
    assert process.returncode == 0, out
    logs = out + "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.log"))
    assert "are refused" not in logs
    assert len(records(tmp_path, "episode")) > 15
    sessions = list(read_sessions(tmp_path / "recorded"))
    assert len(sessions) > 15
    assert isinstance(sessions[0].observations, dict)
    front = np.asarray(sessions[0].observations["front"])
    assert front.shape == (4, 32, 32, 3)
    assert front.std() > 20
