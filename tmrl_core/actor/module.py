"""Interfaces of policies: ActorModule, and BatchActor and RecurrentActor for those that carry a recurrent state."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tmrl_core.errors import WeightsError

State = dict[str, np.ndarray]
"""A recurrent state: arrays by name, each with a leading batch dimension; empty without recurrence."""

STATE_COLUMN = "state."
"""Prefix of the extras of a sample that hold the recurrent state before its action."""

FILE_FORMAT = "file"
"""Format tag of weights that are the content of the file that the actor's own `save` writes."""


class ActorModule(ABC):
    """A policy that a RolloutWorker can run.

    A subclass implements `act`, and `save` and `load` if its weights are published or stored. Its constructor takes
    `observation_space` and `action_space` by these names.

    Args:
        observation_space: observation space of the environment, after the worker's `obs_preprocessor` if the policy
            expects one.
        action_space: action space of the environment: a copy, which only the actor samples from, and which a run with
            a seed seeds.
    """

    weights_format: ClassVar[str] = FILE_FORMAT
    """Format tag of the bytes that `to_bytes` returns; actors with the same tag can read each other's weights."""
    owner: ClassVar[str] = ""
    """Name of this policy in configurations and messages; empty: the name of its class."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def act(self, obs: Any, test: bool = False) -> Any:
        """Return the action for one observation.

        Args:
            obs: as the environment (or the worker's `obs_preprocessor`) returned it.
            test: True: no exploration.

        Returns:
            An action of the action space, usually a numpy array.
        """

    def act_(self, obs: Any, test: bool = False) -> Any:
        """Prepare the observation for this kind of actor, and call `act`. Workers call this method."""
        return self.act(obs, test=test)

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """Return the action and values to store with it. Workers call this method for the samples that they collect.

        Args:
            obs: as for `act_`.
            test: True: no exploration.

        Returns:
            The action, and further values by name, such as its log-density `logp`: numbers or arrays, each time with
            the same names, dtypes and shapes. They are sent as separate columns. Default: none.
        """
        return self.act_(obs, test=test), {}

    def reset_extras(self) -> dict[str, Any]:
        """Return the extras of a reset, which has no action: usually zeros, in the columns of `act_with_extras`."""
        return {}

    def begin_episode(self) -> None:  # noqa: B027  # not abstract: most policies keep nothing
        """Begin an episode: workers call this method after each reset. Does nothing by default."""

    def seed(self, seed: int) -> None:  # noqa: B027  # not abstract: a policy may have nothing random
        """Seed the exploration of this actor. Default: do nothing."""

    def exploration(self) -> dict[str, float]:
        """Return the exploration parameters that the trainer sends to workers with each version of the weights.

        Numbers by name, such as an epsilon or the scale of a noise that training lowers. Default: none.
        """
        return {}

    def set_exploration(self, parameters: Mapping[str, float]) -> None:  # noqa: B027  # not abstract: few need it
        """Explore with these parameters from now on.

        Workers call this method after they have loaded a version, with the result of `exploration` of the trainer's
        actor, unless it is empty. Does nothing by default.
        """

    def save(self, path: str | Path) -> None:
        """Write the weights to one file of any format.

        Raises:
            NotImplementedError: the class has no `save`. There is no fallback, because generic formats can run code
                when loaded.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no save(path). Implement save(path) and load(path, device), "
            "which write the weights to one file and read them back, or derive from TorchActorModule."
        )

    def load(self, path: str | Path, device: Any) -> ActorModule:
        """Read the weights from a file that `save` wrote, and return the actor with them (may be self).

        After a failure this actor is unchanged.

        Raises:
            NotImplementedError: the class has no `load`.
            WeightsError: the file holds no weights for this policy.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no load(path, device). Implement save(path) and load(path, device), "
            "which write the weights to one file and read them back, or derive from TorchActorModule."
        )

    def to_bytes(self) -> bytes:
        """Return the weights as bytes: `save` writes them to a private temporary file. Override to avoid the file."""
        with tempfile.TemporaryDirectory(prefix="tmrl_core-") as folder:  # readable by this user only
            path = Path(folder) / "weights"
            self.save(path)
            return path.read_bytes()

    def from_bytes(self, data: bytes, device: Any) -> ActorModule:
        """Return the actor with the weights of `to_bytes` (may be self), read through a private temporary file.

        Raises:
            WeightsError: the bytes hold no weights for this policy.
        """
        with tempfile.TemporaryDirectory(prefix="tmrl_core-") as folder:
            path = Path(folder) / "weights"
            path.write_bytes(data)
            return self.load(path, device)

    def architecture(self) -> dict[str, Any]:
        """Return the result of `tmrl_core.actor.policies.weights.describe`, which must be equal for worker and trainer.

        The trainer compares it when a worker joins. Default: empty; weights are compared when they arrive.
        """
        return {}

    def to_device(self, device: Any) -> ActorModule:
        """Return the actor on `device` (may be self, as by default)."""
        return self

    def to_blob(self) -> tuple[str, bytes]:
        """Return the weights in the form that is sent: (format tag, bytes)."""
        return self.weights_format, self.to_bytes()

    def from_blob(self, tag: str, data: bytes, device: Any) -> ActorModule:
        """Return the actor with the weights that `to_blob` of an actor of the same format returned.

        Raises:
            NotImplementedError: the class has no `load`.
            WeightsError: the format differs, the weights are for another architecture, or a custom `load` has failed.
        """
        if tag != self.weights_format:
            raise WeightsError(
                f"the weights are of the format {tag!r}, {self.owner or type(self).__name__} reads "
                f"{self.weights_format!r}: trainer and worker must name the same actor.cls."
            )
        try:
            return self.from_bytes(data, device)
        except (WeightsError, NotImplementedError, MemoryError):
            raise
        except Exception as exc:  # a custom `load` may raise any error, because any member may have published the bytes
            name = self.owner or type(self).__name__
            raise WeightsError(f"{name} cannot load the weights: {type(exc).__name__}: {exc}") from exc


class BatchActor(ActorModule):
    """An actor that acts on batches, and may carry a state from one step of an episode to the next.

    A subclass implements `act_batch` instead of `act`; with torch it derives from TorchActorModule too, after this
    class. Its extras are stored like those of `act_with_extras`. It includes its state in them if the learner needs it.
    """

    def initial_state(self, batch: int) -> State:
        """Return the state at the beginning of `batch` episodes: by default an empty one."""
        return {}

    @abstractmethod
    def act_batch(
        self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool
    ) -> tuple[Any, State, dict[str, Any]]:
        """Act on a batch of observations.

        Args:
            obs_B: observations whose arrays have a leading batch dimension; nesting is kept.
            state_B: the result of `initial_state`, or the state that the call for the step before returned.
            rng: random generator of the exploration.
            deterministic: True: no exploration.

        Returns:
            Actions, the state after this step, and further values by name, all with a leading batch dimension.
        """

    def act(self, obs: Any, test: bool = False) -> Any:
        """Refuse to act without a state.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{type(self).__name__} acts on batches and carries a state: call act_batch, or let "
            "tmrl_core.actor.rollout.runner.PolicyRunner hold the state."
        )


class RecurrentActor(BatchActor):
    """A `BatchActor` whose recurrent state is stored with the samples, for training on sequences.

    The state is a flat dict of [B, ...] arrays. `initial_state` and `act_batch` return NumPy arrays. `step` and
    `unroll` return arrays of the backend, with torch tensors with gradients, and also take NumPy arrays as the state.

    The policy runner stores the state before an action as the extras `state.<name>`: at each tick of an episode that is
    a multiple of `state_interval`, and with the first action of a new version of the weights. At all other ticks they
    are zeros. Ticks count from 0, the first action.

    Attributes:
        state_interval: number of ticks between two stored states.
    """

    state_interval: int

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """Return the state at the beginning of `batch` episodes."""

    @abstractmethod
    def step(self, obs_B: Any, state_B: Mapping[str, Any], deterministic: bool = False) -> tuple[Any, dict[str, Any]]:
        """Act on one tick.

        Args:
            obs_B: observations with [B, ...] leaves.
            state_B: recurrent state before this tick.
            deterministic: True: no exploration.

        Returns:
            Actions [B, *action shape], and the state after this tick.
        """

    @abstractmethod
    def unroll(self, obs_BT: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Compute the parameters of the action distributions of whole sequences.

        Args:
            obs_BT: observations with [B, T, ...] leaves.
            state_B: recurrent state before the first tick.

        Returns:
            [B, T, ...] parameters by name, such as `mu` and `log_std`, `logits` or `q`, and the state after the last
            tick.
        """

    def reset_extras(self) -> dict[str, Any]:
        """Return zeros for the columns of the state, and the extras of the policy itself."""
        zeros = {STATE_COLUMN + name: np.zeros_like(value_B[0]) for name, value_B in self.initial_state(1).items()}
        return {**super().reset_extras(), **zeros}
