"""SuccessEnv: an environment whose success a classifier tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from tmrl_core.config import resolve_with
from tmrl_core.config.loading import expanded
from tmrl_core.errors import ConfigError, ContractError
from tmrl_core.samples.segments import IS_SUCCESS
from tmrl_core.success.classifier import SuccessClassifier

PROBABILITY = "success_probability"
"""Key of the info with the classifier's probability of each step."""


class SuccessEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """End an episode as a success, with a reward, where a classifier says so.

    The file is read at the first reset, since a trainer makes the environment too, for its spaces, and needs no file.

    Args:
        env: the environment, or the reference "package.module:Name" of a callable that makes it.
        file: of the classifier, which `--label` wrote.
        kwargs: keyword arguments, if `env` is a reference.
        reward: of the step that succeeds, in place of the environment's.
        threshold: least probability of a success, 0 to 1; None: that in the file.
        steps: number of steps in a row that must reach the threshold.

    Raises:
        ConfigError: a number is out of range, or `env` is no gymnasium.Env and names none.
    """

    def __init__(
        self,
        env: Any,
        file: str,
        kwargs: Mapping[str, Any] | None = None,
        reward: float = 1.0,
        threshold: float | None = None,
        steps: int = 1,
    ) -> None:
        if steps < 1 or (threshold is not None and not 0 < threshold < 1):
            raise ConfigError(
                f"environment.kwargs: found steps {steps} and threshold {threshold}; allowed: at least 1 step, and "
                "null or a number between 0 and 1"
            )
        made = resolve_with(env, kwargs or {}, "environment.kwargs.env")() if isinstance(env, str) else env
        if not isinstance(made, gymnasium.Env):
            raise ConfigError(f"environment.kwargs.env: found a {type(made).__name__}, allowed: a gymnasium.Env")
        super().__init__(made)
        self._file = expanded(file).absolute()
        self._reward, self._threshold, self._steps = reward, threshold, steps
        self._classifier: SuccessClassifier | None = None
        self._in_a_row = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's.

        Raises:
            ContractError: the classifier's file is missing, damaged, or for another space.
        """
        if self._classifier is None:
            self._classifier = self._loaded(self._file)
        self._in_a_row = 0
        given: dict[str, Any] = {
            name: value for name, value in (("seed", seed), ("options", options)) if value is not None
        }
        return self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's; a success ends the episode, and its info says `is_success`."""
        assert self._classifier is not None, "reset comes first"
        obs, reward, terminated, truncated, info = self.env.step(action)
        probability = self._classifier.probability(obs)
        threshold = self._classifier.threshold if self._threshold is None else self._threshold
        self._in_a_row = self._in_a_row + 1 if probability >= threshold else 0
        success = self._in_a_row >= self._steps
        info = {**info, PROBABILITY: probability}
        if success or terminated or truncated:
            info[IS_SUCCESS] = success
        if success:
            return obs, self._reward, True, False, info
        return obs, reward, terminated, truncated, info

    def _loaded(self, file: Path) -> SuccessClassifier:
        try:
            classifier = SuccessClassifier(file)
            classifier.fit(self.env.observation_space)
        except ConfigError as exc:
            raise ContractError(f"environment.kwargs.file: {exc}") from exc
        return classifier
