"""The import lines of tmrl's tutorials, with the package replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tmrl_core import compat
from tmrl_core.envs import GenericGymEnv

LINES = """
from tmrl_core.compat import get_environment
from tmrl_core.compat.networking import Server, RolloutWorker, Trainer
from tmrl_core.compat.util import partial, cached_property, prod
from tmrl_core.compat.envs import GenericGymEnv
from tmrl_core.compat.actor import ActorModule, TorchActorModule
from tmrl_core.compat.memory import Memory, TorchMemory
from tmrl_core.compat.training import TrainingAgent
from tmrl_core.compat.training_offline import TorchTrainingOffline, TrainingOffline
from tmrl_core.compat.wrappers import AffineObservationWrapper
from tmrl_core.compat.custom.custom_algorithms import REDQSACAgent, SpinupSacAgent
from tmrl_core.compat.custom.custom_checkpoints import update_run_instance
from tmrl_core.compat.custom.custom_memories import GenericTorchMemory
from tmrl_core.compat.custom.custom_models import SquashedGaussianMLPActor, MLPActorCritic
from tmrl_core.compat.custom.tm.tm_preprocessors import obs_preprocessor_tm_act_in_obs
from tmrl_core.compat.custom.utils.nn import copy_shared, no_grad
import tmrl_core.compat.config.config_constants as cfg
import tmrl_core.compat.config.config_objects as cfg_obj
from tmrl_core.compat.config import config_constants
"""


@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_the_line_works(line: str) -> None:
    exec(line, {})


def test_the_configured_environment_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmrl_core.yaml").write_text("environment: {kwargs: {id: MountainCarContinuous-v0}}\n")
    env = compat.get_environment()
    assert isinstance(env, GenericGymEnv)
    assert env.observation_space.shape == (2,)
    env.close()
