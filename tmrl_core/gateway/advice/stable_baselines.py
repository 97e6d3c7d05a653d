"""Learners with an off-policy algorithm of stable-baselines3 (extra `sb3`), which runs its own loop on `ShepherdEnv`.

The algorithm is not modified, except that it samples an action together with advisors if there are any, and that after
a save was loaded it first fills its replay buffer again. Only arrays and numbers are saved, since the library's own
files contain pickles.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from tmrl_core.errors import BadUpdatesError, CheckpointError, ConfigError
from tmrl_core.gateway.advice.advisors import Advisor
from tmrl_core.gateway.advice.combine import (
    Choice,
    Gaussian,
    choice_product,
    epsilon_greedy,
    gaussian_product,
    sample_choice,
    sample_gaussian,
    softmax,
)
from tmrl_core.gateway.advice.learner import PUBLISH_EVERY, Learner, SessionContext
from tmrl_core.gateway.settings import StableBaselinesSection
from tmrl_core.gateway.shepherd import ShepherdEnv
from tmrl_core.training.checkpoints.capture import Captured, capture_part
from tmrl_core.training.checkpoints.restore import decoded

LEAST_NOISE = 1e-3
"""Standard deviation of a deterministic policy without noise: no advice could change an infinite precision."""


class _Advised(OffPolicyAlgorithm):
    """Mixin: samples actions with the learner's advisors."""

    learner: StableBaselinesLearner

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        advisors = self.learner.advisors()
        if not advisors:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        action = self.learner.advised_action(self._last_obs, advisors, warming_up=self.num_timesteps < learning_starts)
        if isinstance(self.action_space, spaces.Box):
            return self.policy.unscale_action(action), action
        return action, action

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Update, unless the replay buffer does not yet hold `learning_starts` samples after a save was loaded."""
        assert self.replay_buffer is not None
        if self.replay_buffer.size() >= self.learning_starts:
            super().train(gradient_steps, batch_size)


class DQN(_Advised, stable_baselines3.DQN):
    """DQN with advice."""


class SAC(_Advised, stable_baselines3.SAC):
    """SAC with advice."""


class TD3(_Advised, stable_baselines3.TD3):
    """TD3 with advice."""


class DDPG(_Advised, stable_baselines3.DDPG):
    """DDPG with advice."""


ALGORITHMS: dict[str, type[_Advised]] = {"DQN": DQN, "SAC": SAC, "TD3": TD3, "DDPG": DDPG}


class StableBaselinesLearner(Learner):
    """A learner with an algorithm of stable-baselines3.

    Args:
        context: of the session.
        settings: the algorithm.

    Raises:
        ConfigError: the algorithm does not take the spaces or the keyword arguments.
    """

    def __init__(self, context: SessionContext, settings: StableBaselinesSection) -> None:
        super().__init__(context)
        self.algorithm = f"stable_baselines3.{settings.algorithm}"
        self.env = ShepherdEnv(context.observation_space, context.action_space, channel=context.channel)
        self._settings = settings
        self._rng = np.random.default_rng(context.seed)
        kwargs = {
            "buffer_size": context.settings.capacity,
            "batch_size": context.settings.batch_size,
            "learning_starts": context.settings.start_training,
            "device": "cpu",
            "seed": context.seed,
            # A copy, because the library writes into nested arguments, and sessions share the settings.
            **copy.deepcopy(settings.kwargs),
        }
        self._noise = LEAST_NOISE
        if isinstance(kwargs.get("action_noise"), int | float):
            self._noise = max(LEAST_NOISE, float(kwargs["action_noise"]))
            size = int(np.prod(context.action_space.shape or ()))
            kwargs["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, self._noise))
        try:
            self.model = ALGORITHMS[settings.algorithm](settings.policy, self.env, **kwargs)
        except (AssertionError, TypeError, ValueError, KeyError) as exc:
            raise ConfigError(f"stable_baselines3.{settings.algorithm} cannot be made: {exc}") from exc
        self.model.learner = self
        self.model.set_logger(Logger(folder=None, output_formats=[]))
        self._published = 0

    def _play(self) -> None:
        if self.context.settings.enable_learning:
            self.after_step()
            length = sys.maxsize // 2
            self.model.learn(length, _Callback(self), log_interval=length, reset_num_timesteps=False)
        while True:
            obs, _ = self.env.reset()
            ended = False
            while not ended:
                obs, _, terminated, truncated, _ = self.env.step(self.act(obs))
                ended = terminated or truncated

    def act(self, obs: Any) -> np.ndarray:
        """Return the most likely action for an observation."""
        action, _ = self.model.predict(obs, deterministic=True)
        return action

    @property
    def schedule_steps(self) -> int:
        """Steps after which the algorithm's schedules have come to their end."""
        return self._settings.schedule_steps

    def after_step(self) -> None:
        """Publish the policy and save, if it is time."""
        self.steps = self.model.num_timesteps
        updates = self.model._n_updates
        if updates >= self._published + PUBLISH_EVERY:
            self._published = updates
            self.context.board.publish(self.context.session_id, updates, self._snapshot())
        self.save_if_due()

    # --- advice -------------------------------------------------------------------------------------------------------

    def advisors(self) -> list[Advisor[Any]]:
        """Return the policies that advise now."""
        context = self.context
        if self.model.use_sde:  # its noise depends on earlier steps, so there is no distribution to combine
            return []
        return context.board.advisors(context.session_id, context.settings.max_advisors)

    def advised_action(self, obs: Any, advisors: Sequence[Advisor[Any]], warming_up: bool) -> np.ndarray:
        """Return [1, ...] an action for a batch of one observation; elements of a Box are scaled to [-1, 1]."""
        advice = [each(obs) for each in advisors]
        policy, rng = self.model.policy, self._rng
        if isinstance(self.model, DQN):
            rate = 1.0 if warming_up else self.model.exploration_rate
            own_N = epsilon_greedy(_values(self.model.q_net, obs), rate)
            return np.array([sample_choice(choice_product(own_N, advice), rng)])
        own = [] if warming_up else [self._gaussian(policy.actor, obs)]
        product = gaussian_product([*own, *advice])
        shape = (1, *(self.context.action_space.shape or ()))
        if product is None:
            return rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        drawn_A = sample_gaussian(product, rng)
        scaled_A = np.tanh(drawn_A) if isinstance(self.model, SAC) else drawn_A.clip(-1.0, 1.0)
        return scaled_A.astype(np.float32).reshape(shape)

    def _gaussian(self, actor: Any, obs: Any) -> Gaussian:
        tensor, _ = actor.obs_to_tensor(obs)
        with torch.no_grad():
            if isinstance(self.model, SAC):
                mean_BA, log_std_BA, _ = actor.get_action_dist_params(tensor)
                std_A = np.exp(log_std_BA[0].numpy().astype(np.float64))
                return Gaussian(mean_BA[0].numpy().astype(np.float64), std_A)
            mean_A = actor(tensor)[0].numpy().ravel().astype(np.float64)
        return Gaussian(mean_A, np.full(mean_A.shape, self._noise))

    def _snapshot(self) -> Advisor[Any]:
        if isinstance(self.model, DQN):
            q_net, temperature = _frozen(self.model.q_net), self.context.settings.temperature
            return lambda obs: softmax(_values(q_net, obs), temperature)
        actor = _frozen(self.model.policy.actor)
        return partial(self._gaussian, actor)

    # --- saves --------------------------------------------------------------------------------------------------------

    def _capture(self) -> Captured:
        model = self.model
        parameters = model.get_parameters()
        if not all(value.isfinite().all() for value in model.policy.state_dict().values()):
            raise BadUpdatesError("the weights hold NaN or Inf. Lower the learning rate or scale the rewards")
        state = {"parameters": parameters, "steps": model.num_timesteps, "updates": model._n_updates}
        if isinstance(model, SAC) and model.log_ent_coef is not None:
            state["log_ent_coef"] = model.log_ent_coef.detach()
        return capture_part(state, "state")

    def _restore(self, tree: Any, arrays: dict[str, np.ndarray]) -> None:
        model, state = self.model, decoded(tree["learner"], arrays)
        # The library would look any other name up among the attributes of the algorithm.
        if (found := sorted(state["parameters"])) != (expected := sorted(model.get_parameters())):
            raise CheckpointError(f"it holds the parameters {found}, the algorithm has {expected}")
        model.set_parameters(state["parameters"], device="cpu")
        if isinstance(model, SAC) and model.log_ent_coef is not None:
            with torch.no_grad():
                model.log_ent_coef.copy_(state["log_ent_coef"])
        model.num_timesteps, model._n_updates = state["steps"], state["updates"]


class _Callback(BaseCallback):
    """Calls the learner after each step."""

    def __init__(self, learner: StableBaselinesLearner) -> None:
        super().__init__()
        self._learner = learner

    def _on_training_start(self) -> None:
        # A session has no end, while the library's schedules run over the length of a training.
        self.model._total_timesteps = self._learner.schedule_steps

    def _on_step(self) -> bool:
        self._learner.after_step()
        return True


def _values(q_net: Any, obs: Any) -> Choice:
    tensor, _ = q_net.obs_to_tensor(obs)
    with torch.no_grad():
        q_N: np.ndarray = q_net(tensor)[0].numpy()
    return q_N


def _frozen(network: Any) -> Any:
    copied = copy.deepcopy(network).requires_grad_(False)
    copied.set_training_mode(False)
    return copied


def check_stable_baselines(settings: StableBaselinesSection, action_space: gymnasium.Space[Any]) -> None:
    """Refuse algorithms and spaces that sessions cannot learn with.

    Raises:
        ConfigError: the algorithm is not off-policy, or the actions are not numbered from 0.
    """
    if settings.algorithm not in ALGORITHMS:
        raise ConfigError(
            f"stable_baselines3.algorithm is {settings.algorithm!r}; allowed: {', '.join(ALGORITHMS)}. On-policy "
            "algorithms such as PPO and A2C learn only from actions of their own policy, while advised sessions act "
            "with a product of several policies."
        )
    if isinstance(action_space, spaces.Discrete) and action_space.start != 0:
        raise ConfigError(f"stable-baselines3 numbers actions from 0, the action space is {action_space}")
