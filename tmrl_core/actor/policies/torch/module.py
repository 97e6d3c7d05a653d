"""TorchActorModule: an ActorModule that is a torch.nn.Module."""

from __future__ import annotations

import itertools
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import safetensors
import safetensors.torch
import torch

from tmrl_core.actor.module import FILE_FORMAT, ActorModule
from tmrl_core.actor.policies.weights import (
    ADVICE,
    SAFETENSORS_FORMAT,
    check_weights,
    describe,
    load_file,
    read_metadata,
    with_exploration,
    with_sorted_metadata,
)
from tmrl_core.errors import WeightsError

if TYPE_CHECKING:
    from typing_extensions import Self


class TorchActorModule(ActorModule, torch.nn.Module, ABC):
    """A policy made with torch: implement `act`, and `forward` if it is of use.

    `act` gets observations collated to tensors on `device` with a batch dimension of one, and runs without gradients.
    The weights are the module's `state_dict`, as safetensors. Those of a subclass with a `save` and `load` of its own
    travel as what its `save` writes, unless it has `to_bytes` and `from_bytes` of its own too.

    Args:
        observation_space: of the environment.
        action_space: of the environment.
        device: where the module is, and observations are collated to.
    """

    weights_format: ClassVar[str] = SAFETENSORS_FORMAT
    _own_files: ClassVar[bool] = False
    """True: the weights are the file that a subclass's `save` writes."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Determine the format of the subclass's weights."""
        super().__init_subclass__(**kwargs)
        files, in_bytes = (
            min(i for i, each in enumerate(cls.__mro__) if not names.isdisjoint(vars(each)))
            for names in ({"save", "load"}, {"to_bytes", "from_bytes"})
        )
        cls._own_files = files < in_bytes
        if cls._own_files and "weights_format" not in vars(cls):
            cls.weights_format = FILE_FORMAT

    def __init__(self, observation_space: Any, action_space: Any, device: Any = "cpu") -> None:
        super().__init__(observation_space, action_space)
        self.device = device

    def act_(self, obs: Any, test: bool = False) -> Any:
        """Collate the observation and call `act` without gradients; workers call this."""
        with torch.no_grad():
            return self.act(collate_one(obs, self.device), test=test)

    def weights_metadata(self) -> dict[str, str]:
        """Return settings that must agree with the weights; they are sent with these and compared on loading."""
        return {}

    def architecture(self) -> dict[str, Any]:
        """Return names and shapes of the `state_dict`, unless the class writes its weights in its own way."""
        own = (type(self).to_bytes, type(self).save) != (TorchActorModule.to_bytes, TorchActorModule.save)
        return {} if own else describe(_shapes(self), self.weights_metadata())

    def to_bytes(self) -> bytes:
        """Return the `state_dict` as the content of a safetensors file, or the output of the subclass's `save`."""
        return super().to_bytes() if self._own_files else self._state_bytes()

    def _state_bytes(self) -> bytes:
        return module_bytes(self, type(self).__name__, self.weights_metadata())

    def from_bytes(self, data: bytes, device: Any) -> Self:
        """Load the weights in place and return self. After an error, nothing has changed.

        Raises:
            WeightsError: the message names the part that does not fit.
        """
        if self._own_files:
            return cast("Self", super().from_bytes(data, device))
        return self._take_state(data, device)

    def _take_state(self, data: bytes, device: Any) -> Self:
        load_module(self, data, type(self).__name__, self.weights_metadata())
        return self.to_device(device)

    def save(self, path: str | Path) -> None:
        """Write the weights and the exploration parameters to a safetensors file."""
        data = self._state_bytes() if self._own_files else self.to_bytes()
        Path(path).write_bytes(with_exploration(data, self.exploration()))

    def load(self, path: str | Path, device: Any) -> Self:
        """Load weights and exploration parameters of a safetensors file in place, and return self.

        Raises:
            WeightsError: names the part that does not fit.
        """
        take = self._take_state if self._own_files else self.from_bytes
        return load_file(path, lambda data: take(data, device))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """As `torch.nn.Module.to`; remembers the device."""
        moved = super().to(*args, **kwargs)
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if device is not None:
            moved.device = device
        return moved

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        # A module that this one is part of moves it without calling its `to`.
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        first = next(itertools.chain(moved.parameters(), moved.buffers()), None)
        if first is not None:
            moved.device = first.device
        return moved

    def to_device(self, device: Any) -> Self:
        """Move to `device`, in place, and return self."""
        return self.to(device)


def module_bytes(module: torch.nn.Module, owner: str, metadata: Mapping[str, str]) -> bytes:
    """Return the `state_dict` of a module as the content of a safetensors file.

    Args:
        module: the module.
        owner: its name in messages.
        metadata: settings that must agree with the weights.

    Raises:
        WeightsError: the `state_dict` holds something else than tensors.
    """
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise WeightsError(
                f"{name} in the state_dict of {owner} is a {type(value).__name__}; only tensors "
                "travel. Make it a buffer, or override to_bytes and from_bytes."
            )
        tensor = value.detach().to("cpu").contiguous()
        if tensor.data_ptr() in seen:  # the format does not know two names for one memory
            tensor = tensor.clone()
        seen.add(tensor.data_ptr())
        tensors[name] = tensor
    return with_sorted_metadata(bytes(safetensors.torch.save(tensors, metadata=dict(metadata) or None)))


def load_module(
    module: torch.nn.Module, data: bytes, owner: str, metadata: Mapping[str, str], advice: str = ADVICE
) -> None:
    """Load the result of `module_bytes` in place. After an error, nothing has changed.

    Args:
        module: the module.
        data: the bytes.
        owner: its name in messages.
        metadata: settings that must agree with the weights.
        advice: next step for weights of another shape, for messages.

    Raises:
        WeightsError: the message names the part that does not fit.
    """
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as exc:
        raise WeightsError(f"{len(data)} bytes of weights are not in the safetensors format: {exc}") from exc
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    not_finite = _not_finite(module, tensors)
    check_weights(owner, _shapes(module), found, metadata, read_metadata(data), not_finite, advice)
    module.load_state_dict(tensors)


def _shapes(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


def _not_finite(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
    parameters = dict(module.named_parameters())  # a buffer may hold infinite numbers on purpose, as a mask
    for name, tensor in tensors.items():
        values = tensor.float() if tensor.is_floating_point() else tensor  # not all dtypes support the check
        if not (values.isfinite() if name in parameters else ~values.isnan()).all():
            yield name


def collate_one(obs: Any, device: Any) -> Any:
    """Return one observation as tensors on `device`, each with a batch dimension of one; nesting is kept."""
    if isinstance(obs, np.ndarray):
        return torch.from_numpy(obs).unsqueeze(0).to(device) if _torch_takes(obs) else _tensor(obs, device)
    if isinstance(obs, Mapping):
        return {key: collate_one(value, device) for key, value in obs.items()}
    if isinstance(obs, (tuple, list)):
        return tuple(collate_one(value, device) for value in obs)
    return _tensor(obs, device)


def _torch_takes(array: np.ndarray) -> bool:
    return array.flags.writeable and all(stride >= 0 for stride in array.strides)


def _tensor(value: Any, device: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.unsqueeze(0).to(device)
    return torch.as_tensor(np.array(value)).unsqueeze(0).to(device)
