"""A CUDA device for machines without one: it computes on the CPU, says that it is `cuda:0`, and tells who waits for it.

A tensor of it is a wrapper around one of the CPU. What is computed with it is computed with those, so that the numbers,
random ones too, are those of a CPU. What a CUDA device would refuse is refused (tensors of two devices in one
operation), and what would make the processor wait for it is noted (a number that is read, a copy from or to it that is
not asynchronous, a shape that depends on numbers). Torch's own FakeTensor has no numbers, and gradients of its kind of
CUDA tensor end the process where torch was built without CUDA.

It knows nothing of streams, of kernels and of CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = "cuda:0"
_CPU = torch.device("cpu")
_CUDA = torch.device(CUDA)
_COPIES = {"copy_", "_to_copy", "_foreach_copy_"}
_READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "repeat_interleave"}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}


class OnDevice(Tensor):
    """A tensor of the device. To C++ it is one of `meta`, which has gradients and no numbers."""

    wrapped: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        tensor: OnDevice = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=torch.device("meta"),
        )  # fmt: skip
        tensor.wrapped = inner
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{func} outside of `pretended_cuda`")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def data_ptr(self) -> int:
        return self.wrapped.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {CUDA} device type tensor to numpy")
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.wrapped!r} on {CUDA}"


class PretendedCuda(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Attributes: waits: what has made the processor wait for the device, by the operations' names."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        leaves, spec = pytree.tree_flatten((args, kwargs or {}))
        there = [leaf for leaf in leaves if isinstance(leaf, OnDevice)]
        here = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice)]
        devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        # Where nothing else is said, results are where the arguments are; meta is what C++ takes the device for.
        goes_there = any(d.type in ("cuda", "meta") for d in devices) if devices else bool(there)
        self._refresh(name, func, there, here, goes_there, (args, kwargs or {}))
        plain = [
            leaf.wrapped if isinstance(leaf, OnDevice) else _CPU if isinstance(leaf, torch.device) else leaf
            for leaf in leaves
        ]
        plain_args, plain_kwargs = pytree.tree_unflatten(plain, spec)
        result = func(*plain_args, **plain_kwargs)
        given = {id(inner): leaf for inner, leaf in zip(plain, leaves, strict=True) if isinstance(leaf, Tensor)}
        to_host = name == "_local_scalar_dense" or not goes_there

        def wrapped(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if id(value) in given:
                return given[id(value)]
            return value if to_host else OnDevice(value)

        return pytree.tree_map(wrapped, result)

    def _refresh(self, name: str, func: Any, there: list[Any], here: list[Tensor], goes_there: bool, call: Any) -> None:
        if name in _COPIES:
            crossing = bool(here and goes_there and (there or name == "_to_copy")) or bool(there and not goes_there)
            if name != "_to_copy":
                crossing = bool(there and here)
            asynchronous = call[1].get("non_blocking", False) or (name == "copy_" and len(call[0]) > 2 and call[0][2])
            if crossing and not asynchronous:
                self.waits.append(name)
            return
        if not there:
            return
        # Single numbers of the CPU are handed over with the operation.
        strangers = [tensor for tensor in here if tensor.dim() or name in ("_fused_adam_", "_fused_adamw_")]
        if strangers:
            raise RuntimeError(f"{func} of tensors on {CUDA} and of {[list(t.shape) for t in strangers]} on the CPU")
        masks = name in _INDEXED and any(t.dtype in (torch.bool, torch.uint8) for t in _indices(call[0]))
        if name in _READS or masks:
            self.waits.append(name)


def _indices(args: Any) -> list[Tensor]:
    return [index for index in args[1] if isinstance(index, Tensor)]


def _pinned(tensor: Tensor, device: Any = None) -> Tensor:
    """What stands for a copy in pinned memory, which needs a driver."""
    return tensor.clone()


@contextmanager
def pretended_cuda() -> Iterator[PretendedCuda]:
    """Within it there is a device `cuda:0`; to be named so, with its index."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    # Have torch.tensor make a tensor of the CPU and then copy it, which is what it does.
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with (
            mock.patch.object(torch.cuda, "_lazy_init", return_value=None),
            mock.patch.object(Tensor, "pin_memory", _pinned),
            mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False),
            mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True),
            PretendedCuda() as device,
        ):
            yield device
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
        torch._C._set_only_lift_cpu_tensors(lifted)
