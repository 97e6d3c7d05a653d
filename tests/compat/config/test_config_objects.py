"""config_objects.TRAINER: a training object's maker, from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tmrl_core.compat.config import config_objects


def test_trainer_makes_the_configured_training_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmrl_core.yaml").write_text(
        "trainer: {epochs: 3, rounds: 2, steps: 7, device: cpu, max_policy_lag: 5}\n"
        "memory: {capacity: 2e3, batch_size: 16}\n"
        "agent: {kwargs: {gamma: 0.9, model_kwargs: {hidden_sizes: [8, 8]}}}\n",
        encoding="utf-8",
    )
    training = config_objects.TRAINER()
    assert (training.epochs, training.rounds, training.steps, training.max_policy_lag) == (3, 2, 7, 5)
    assert (training.memory.memory_size, training.memory.batch_size, training.memory.nb_steps) == (2000, 16, 7)
    assert training.agent.gamma == 0.9
    assert training.agent.get_actor() is not None


def test_nothing_else_is_there() -> None:
    assert dir(config_objects) == ["TRAINER"]
    with pytest.raises(AttributeError, match="NO_SUCH"):
        config_objects.NO_SUCH  # noqa: B018
