"""TrainingAgent: base class of learning algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tmrl_core.training.checkpointable import StateOwner
from tmrl_core.training.value_types import Batch, Device, Metrics, Policy, Space


class TrainingAgent(StateOwner, ABC):
    """Learn from batches and provide the policy.

    Checkpoints save its attributes, see `tmrl_core.training.checkpoints.capture`.

    Args:
        observation_space: observation space of the environment.
        action_space: action space of the environment.
        device: device of the computation.
    """

    collection: ClassVar[frozenset[str]] = frozenset({"asynchronous", "synchronous", "lockstep"})
    """Supported modes of collection (`worker.collection`)."""
    action_spaces: ClassVar[frozenset[str]] = frozenset()
    """Supported action spaces: `box` (of floats), `discrete`, `multi_discrete` (MultiBinary too). Empty: the
    constructor checks them."""
    wants_extras: ClassVar[bool] = False
    """True: the agent accepts batches that end in a dict of extras."""
    times_updates: ClassVar[bool] = False
    """True: `train` makes many updates and calls `after_update` after each."""
    after_update: Callable[[float], None] | None = None
    """Called with the seconds that an update took; the loop sets it."""
    on_notice: Callable[[str, str], None] | None = None
    """Called with the name of an event and a sentence for the display, such as before compiling, during which no update
    is made; the loop sets it."""
    transient: ClassVar[frozenset[str]] = frozenset({"on_notice"})
    td_error_B: Any = None
    """TD errors [B] of the last update, for a memory with prioritized sampling; None: not computed."""

    @property
    def return_scale(self) -> tuple[float, float] | None:
        """Discount and greatest discounted return to which a memory scales rewards; None (default): as they are."""
        return None

    def __init__(self, observation_space: Space, action_space: Space, device: Device) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.device: Any = device

    @property
    def own(self) -> Any:
        """The user's agent, without the wrapper of `as_agent`."""
        return self

    @abstractmethod
    def train(self, batch: Batch) -> Metrics:
        """Compute one update.

        Args:
            batch: batch of the memory, usually `(prev_obs, new_act, rew, new_obs, terminated, truncated)`.

        Returns:
            Metrics by name: numbers, or detached scalar tensors, which are read only at a round's end, so that no
                update waits for its device. `tmrl_core.training.updates.skipped_updates.SKIPPED` marks a skipped
                update.
        """

    def train_steps(self, batches: Sequence[Batch]) -> list[Metrics]:
        """Compute several updates in order.

        Override this method if it is faster than separate calls of `train`. Only then does a loop pass more than one
        batch.

        Args:
            batches: batch of each update.

        Returns:
            For each update, the result of `train`.
        """
        return [self.train(batch) for batch in batches]

    @abstractmethod
    def get_actor(self) -> Policy:
        """Return the ActorModule to publish. Its weights are read before the next update."""
