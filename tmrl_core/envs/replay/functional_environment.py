"""BaseEnvironment: batched, functional environments written in torch. FunctionalEnv: the bridge to Gymnasium's API.

torch is imported when it is needed. Shape suffix: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.experimental.functional import FuncEnv
from gymnasium.vector.utils import batch_space

from tmrl_core.space_tree import widest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Results = tuple[list[Tensor], list[Tensor]]
    Layers = nn.Module | Sequence[nn.Module] | None

Shape = tuple[int, ...]
Shapes = int | Sequence[int] | Sequence[int | Sequence[int]]
"""One shape (an integer, a tuple or list of integers) or a list of shapes; `()` is the shape of a scalar."""
DTypes = Any
"""One dtype of NumPy or torch (or its name), or a list of them; None: the default."""


def as_shapes(name: str, given: Shapes) -> list[Shape]:
    """Return one shape or several as a list of tuples.

    Args:
        name: of the argument, for messages.
        given: an integer or a sequence of integers is one shape, `()` a scalar's, any other sequence a list of shapes.

    Raises:
        ValueError: anything else, or a negative size.
    """
    if isinstance(given, int | np.integer):
        given = (given,)  # checked below: a bool is none
    if isinstance(given, list | tuple):
        shapes = [given] if given == () or (given and all(map(_is_size, given))) else list(given)
        shapes = [(each,) if _is_size(each) else each for each in shapes]
        if all(isinstance(shape, list | tuple) and all(map(_is_size, shape)) for shape in shapes):
            return [tuple(map(int, shape)) for shape in shapes]
    raise ValueError(
        f"{name} is {given!r}; allowed: one shape, such as (3, 64, 64), or a list of shapes, without the batch axis."
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)


def as_dtypes(name: str, given: DTypes, default: str, count: int) -> list[np.dtype]:
    """Return the dtypes of `count` arrays.

    Args:
        name: of the argument, for messages.
        given: one dtype for all arrays, one for each, or None.
        default: the dtype if None is given.
        count: number of arrays.

    Raises:
        ValueError: an unknown dtype, or another number of them.
    """
    given = default if given is None else given
    listed = list(given) if isinstance(given, list | tuple) else [given] * count
    if len(listed) != count:
        raise ValueError(f"{name} has {len(listed)} entries for {count} shapes; give one for each, or one for all.")
    try:
        # The name of a torch dtype is that of NumPy's after a prefix.
        return [np.dtype(str(each).removeprefix("torch.") if "torch." in str(each) else each) for each in listed]
    except TypeError as exc:
        raise ValueError(f"{name} is {given!r}; allowed: dtypes of NumPy or torch, such as 'float32'.") from exc


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Return the dtype of torch that matches NumPy's."""
    import torch

    return torch.from_numpy(np.empty(0, dtype)).dtype


class BaseEnvironment:
    """An environment as functions of a batch of states, written in torch.

    A subclass implements `get_action_results`, and overrides the other `get_` methods if their defaults do not fit. It
    keeps no state of its own, so gradients flow through it, and any number of sessions can be unrolled from any state.
    `tmrl_core.envs.get_sessions` unrolls it with an actor.

    Args:
        state_shapes: of the environment's states; one shape, or a list of them. Shapes are those of one item, without
            the batch axis.
        observation_shapes: likewise, of the observations.
        action_shapes: likewise, of the actions.
        state_dtypes: dtypes of NumPy or torch, one for each state or one for all; None: float32.
        observation_dtypes: likewise; None: float32.
        action_dtypes: likewise; None: int32.

    Attributes:
        state_shapes: list of tuples.
        observation_shapes: list of tuples.
        action_shapes: list of tuples.
        state_dtypes: list of NumPy dtypes, which compare equal to their names.
        observation_dtypes: list of NumPy dtypes.
        action_dtypes: list of NumPy dtypes.

    Raises:
        ValueError: no state or observation, a shape or dtype of another form, or a wrong number of dtypes.
    """

    def __init__(
        self,
        state_shapes: Shapes,
        observation_shapes: Shapes,
        action_shapes: Shapes,
        state_dtypes: DTypes = None,
        observation_dtypes: DTypes = None,
        action_dtypes: DTypes = None,
    ) -> None:
        super().__init__()  # a subclass may also be a torch module
        self.state_shapes = as_shapes("state_shapes", state_shapes)
        self.observation_shapes = as_shapes("observation_shapes", observation_shapes)
        self.action_shapes = as_shapes("action_shapes", action_shapes)
        if not (self.state_shapes and self.observation_shapes):
            raise ValueError("state_shapes or observation_shapes is empty; an environment has at least one of each.")
        self.state_dtypes = as_dtypes("state_dtypes", state_dtypes, "float32", len(self.state_shapes))
        self.observation_dtypes = as_dtypes(
            "observation_dtypes", observation_dtypes, "float32", len(self.observation_shapes)
        )
        self.action_dtypes = as_dtypes("action_dtypes", action_dtypes, "int32", len(self.action_shapes))

    def get_initial_results(self, batch_size: int) -> Results:
        """Return the states and observations at the beginning of `batch_size` sessions: zeros by default.

        They are on torch's default device.
        """
        import torch

        def zeros(shapes: list[Shape], dtypes: list[np.dtype]) -> list[Tensor]:
            return [
                torch.zeros(batch_size, *shape, dtype=torch_dtype(dtype))
                for shape, dtype in zip(shapes, dtypes, strict=True)
            ]

        return zeros(self.state_shapes, self.state_dtypes), zeros(self.observation_shapes, self.observation_dtypes)

    def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Results:
        """Return the new states and the observations after one action in each session.

        Args:
            last_states: tensors [B, ...] in declared order.
            actions: tensors [B, ...] in declared order.
            kwargs: whatever else the caller passes, such as a generator.

        Returns:
            New states and observations: lists of tensors [B, ...] in declared order.

        Raises:
            NotImplementedError: a subclass implements it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no get_action_results(last_states, actions, **kwargs). Implement it to return "
            "(new_states, observations): two lists of [batch, ...] tensors in declared order."
        )

    def get_rewards(self, last_states: list[Tensor], actions: list[Tensor], new_states: list[Tensor]) -> Tensor:
        """Return the [B] float32 rewards of these actions: zeros by default."""
        import torch

        return torch.zeros(len(new_states[0]), device=new_states[0].device)

    def get_is_alive(self, states: list[Tensor]) -> Tensor:
        """Return [B] uint8, 0 for sessions that have ended with these states, else 1: ones by default."""
        import torch

        return torch.ones(len(states[0]), dtype=torch.uint8, device=states[0].device)

    def checked_initial_results(self, batch_size: int) -> Results:
        """Return the result of `get_initial_results` in the declared dtypes.

        Raises:
            ValueError: as in `checked_action_results`.
        """
        states, observations = self.get_initial_results(batch_size)
        return (
            _checked("state", states, self.state_shapes, self.state_dtypes, batch_size),
            _checked("observation", observations, self.observation_shapes, self.observation_dtypes, batch_size),
        )

    def checked_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Results:
        """Return the result of `get_action_results` for inputs and with outputs of the declared shapes and dtypes.

        Tensors of other dtypes are cast. Integer states are thereby constants for the gradient.

        Raises:
            ValueError: the number of tensors, a shape, or numbers that an integer dtype cannot hold differ from the
                declaration.
        """
        batch = len(last_states[0]) if last_states else 0
        last_states = _checked("last state", last_states, self.state_shapes, self.state_dtypes, batch)
        actions = _checked("action", actions, self.action_shapes, self.action_dtypes, batch)
        new_states, observations = self.get_action_results(last_states, actions, **kwargs)
        return (
            _checked("new state", new_states, self.state_shapes, self.state_dtypes, batch),
            _checked("observation", observations, self.observation_shapes, self.observation_dtypes, batch),
        )

    def as_layers(
        self,
        prev_state_layers: Layers = None,
        action_layers: Layers = None,
        environment_layer_name: str = "EnvironmentLayer",
    ) -> tuple[list[nn.Module], list[nn.Module]]:
        """Return one step of this environment as modules: one for each new state and one for each observation.

        `forward` of each returned module takes the tensors of the inputs that are None here, first the states, then the
        actions, in declared order. Further positional arguments are passed to each given module; keyword arguments to
        `get_action_results`. The modules of one call share one step, which a forward call computes once, also where it
        is an input of the modules that it goes through. Separate forward calls compute it anew.

        Args:
            prev_state_layers: a module for each state (or one that is not in a list) that returns the previous state.
            action_layers: likewise for the actions.
            environment_layer_name: name of the submodule with the step; an environment that is itself a module has its
                parameters there.

        Raises:
            ValueError: a wrong number of modules.
        """
        prev_states = _as_modules("prev_state_layers", prev_state_layers, len(self.state_shapes))
        actions = _as_modules("action_layers", action_layers, len(self.action_shapes))
        return _layers(self, prev_states, actions, environment_layer_name)


def _checked(
    what: str, tensors: Sequence[Tensor], shapes: list[Shape], dtypes: list[np.dtype], batch: int
) -> list[Tensor]:
    if len(tensors) != len(shapes):
        raise ValueError(f"found {len(tensors)} tensors as {what}s; the environment declares {len(shapes)}.")
    checked = []
    for index, (tensor, shape, dtype) in enumerate(zip(tensors, shapes, dtypes, strict=True)):
        if tuple(tensor.shape) != (batch, *shape):
            raise ValueError(
                f"{what} {index} has the shape {tuple(tensor.shape)}; expected {(batch, *shape)}: the batch, then the "
                "declared shape."
            )
        # A cast to an integer that changes values, such as an action 0.7 for int32, would act as another action.
        cast = tensor.to(torch_dtype(dtype))
        if cast is not tensor and not cast.is_floating_point() and bool((cast != tensor).any()):
            raise ValueError(
                f"{what} {index} is {tensor.dtype} with values that the declared {dtype} cannot hold. Declare another "
                "dtype, such as action_dtypes='float32'."
            )
        checked.append(cast)
    return checked


def _as_modules(name: str, given: Layers, count: int) -> list[nn.Module] | None:
    if given is None:
        return None
    modules = list(given) if isinstance(given, Sequence) else [given]
    if len(modules) != count:
        raise ValueError(f"{name} has {len(modules)} modules; the environment declares {count}.")
    return modules


_evaluated: ContextVar[dict[tuple[int, ...], tuple[Any, Results]] | None] = ContextVar("_evaluated", default=None)
"""Results of the steps that the running forward call has computed, by step and inputs.

Without it, a chain of n steps whose actions depend on observations would be computed 2^n times, and a random step would
give a state and an observation that do not belong together.
"""


def _layers(
    environment: BaseEnvironment, prev_states: list[nn.Module] | None, actions: list[nn.Module] | None, name: str
) -> tuple[list[nn.Module], list[nn.Module]]:
    from torch import nn

    # Classes inside of the function: their base is torch's, which is imported when it is needed.
    class EnvironmentStep(nn.Module):
        """One step of an environment."""

        def __init__(self) -> None:
            super().__init__()
            self.environment = environment
            self.prev_states = None if prev_states is None else nn.ModuleList(prev_states)
            self.actions = None if actions is None else nn.ModuleList(actions)

        def forward(self, *inputs: Tensor, **kwargs: Any) -> Results:
            """Return the new states and observations."""
            free = [
                0 if prev_states else len(environment.state_shapes),
                0 if actions else len(environment.action_shapes),
            ]
            if len(inputs) < sum(free):
                raise ValueError(f"found {len(inputs)} tensors; expected {free[0]} states, then {free[1]} actions.")
            rest = inputs[sum(free) :]
            return environment.checked_action_results(
                [module(*rest) for module in prev_states] if prev_states else list(inputs[: free[0]]),
                [module(*rest) for module in actions] if actions else list(inputs[free[0] : sum(free)]),
                **kwargs,
            )

    class StepOutput(nn.Module):
        """One of the new states (part 0) or observations (part 1) of a step."""

        def __init__(self, part: int, index: int) -> None:
            super().__init__()
            self.add_module(name, step)
            self.part, self.index = part, index

        def forward(self, *inputs: Tensor, **kwargs: Any) -> Tensor:
            """Return this output of the step."""
            results = _evaluated.get()
            if results is None:
                token = _evaluated.set({})
                try:
                    return self.forward(*inputs, **kwargs)
                finally:
                    _evaluated.reset(token)
            key = (id(step), *map(id, inputs))
            if key not in results:
                results[key] = inputs, step(*inputs, **kwargs)  # the inputs are kept, so that no id is used again
            return results[key][1][self.part][self.index]

    step = EnvironmentStep()
    return (
        [StepOutput(0, index) for index in range(len(environment.state_shapes))],
        [StepOutput(1, index) for index in range(len(environment.observation_shapes))],
    )


def as_space(shapes: list[Shape], dtypes: list[np.dtype]) -> spaces.Space[Any]:
    """Return the widest space of arrays of these shapes and dtypes: of one array a Box, of several a Tuple."""
    boxes = [widest(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return boxes[0] if len(boxes) == 1 else spaces.Tuple(boxes)


class FunctionalState(NamedTuple):
    """State of a `FunctionalEnv`: Gymnasium's API reads an observation from the state alone."""

    states: list[Tensor]
    observations: list[Tensor]


class FunctionalEnv(FuncEnv[FunctionalState, Any, Any, Any, Any, Any, Mapping[str, Any]]):
    """A `BaseEnvironment` behind Gymnasium's functional environment API.

    All tensors have the batch axis, and so have the spaces. Observations and actions are one tensor if the environment
    declares one, else a tuple in declared order. `params` are passed to `get_action_results` as keyword arguments, and
    `rng`, if it is not None, as `rng`.

    Args:
        environment: to step.
        batch_size: number of sessions.

    Attributes:
        environment: the environment.
        observation_space: of a batch.
        action_space: of a batch.
        single_observation_space: of one session.
        single_action_space: of one session.
    """

    def __init__(self, environment: BaseEnvironment, batch_size: int = 1) -> None:
        super().__init__()
        self.environment = environment
        self.batch_size = batch_size
        self.single_observation_space = as_space(environment.observation_shapes, environment.observation_dtypes)
        self.single_action_space = as_space(environment.action_shapes, environment.action_dtypes)
        self.observation_space = batch_space(self.single_observation_space, batch_size)
        self.action_space = batch_space(self.single_action_space, batch_size)

    def initial(self, rng: Any = None, params: Mapping[str, Any] | None = None) -> FunctionalState:
        """Return the state at the beginning."""
        return FunctionalState(*self.environment.checked_initial_results(self.batch_size))

    def transition(
        self, state: FunctionalState, action: Any, rng: Any = None, params: Mapping[str, Any] | None = None
    ) -> FunctionalState:
        """Return the state after an action."""
        kwargs = {**(params or {}), **({} if rng is None else {"rng": rng})}
        return FunctionalState(*self.environment.checked_action_results(state.states, self._actions(action), **kwargs))

    def observation(self, state: FunctionalState, rng: Any = None, params: Mapping[str, Any] | None = None) -> Any:
        """Return the observation of a state."""
        return state.observations[0] if len(state.observations) == 1 else tuple(state.observations)

    def reward(
        self,
        state: FunctionalState,
        action: Any,
        next_state: FunctionalState,
        rng: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Return the [B] rewards of an action."""
        return self.environment.get_rewards(state.states, self._actions(action), next_state.states)

    def terminal(self, state: FunctionalState, rng: Any = None, params: Mapping[str, Any] | None = None) -> Tensor:
        """Return for each session [B] True if it has ended."""
        return self.environment.get_is_alive(state.states) == 0

    def _actions(self, action: Any) -> list[Tensor]:
        import torch

        actions = [action] if len(self.environment.action_shapes) == 1 else list(action)
        return [torch.as_tensor(each) for each in actions]
