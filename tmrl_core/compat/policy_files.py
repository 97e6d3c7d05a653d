"""Files of tmrl's policies: a restricted reader of torch's format, and the conversion to the project's.

Such a file is a zip archive with a pickle and the tensors' bytes. torch reads it with `weights_only`, which builds
tensors and plain containers and runs nothing of the file. The archive's members must be stored uncompressed, as torch
writes them, so that a small file cannot expand.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_core.actor.policies.weights import encode_arrays
from tmrl_core.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

ZIP = b"PK\x03\x04"
"""First bytes of a file of torch."""

MAX_BYTES = 1 << 30
"""Maximum size of a file."""

RENAMED = {"mu_layer": "mu", "log_std_layer": "log_std"}
"""The project's names of layers, by tmrl's."""

_NAME = re.compile(r"(net\.\d+|mu|log_std)\.(weight|bias)")


def has_torch_format(path: Path) -> bool:
    """Return True if a file exists and begins as torch's files do."""
    try:
        with path.open("rb") as file:
            return file.read(len(ZIP)) == ZIP
    except OSError:
        return False


def read_torch_format(data: bytes) -> dict[str, Tensor]:
    """Return the named tensors of the content of a file that torch wrote, and run nothing of it.

    Raises:
        WeightsError: the content is too large, in another format, or contains more than named tensors.
    """
    import torch

    if len(data) > MAX_BYTES:
        raise WeightsError(f"the weights have {len(data)} bytes, allowed: {MAX_BYTES}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            compressed = any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist())
        found: Any = None if compressed else torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as exc:  # torch reports a malformed or a refused file with many types
        raise WeightsError(
            f"this is not a file of named tensors in torch's format: {type(exc).__name__}: {str(exc)[:200]}. Nothing "
            "of it was run. Only a state_dict that torch.save wrote can be read."
        ) from exc
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()
    ):
        what = "compressed members" if compressed else f"a {type(found).__name__}"
        raise WeightsError(f"the file has {what}, allowed: a state_dict of named tensors, as torch.save writes it")
    return dict(found)


def policy_weights(state: Mapping[str, Tensor]) -> bytes:
    """Return the weights of tmrl's `SquashedGaussianMLPActor` as those of the project's.

    Raises:
        WeightsError: the names are not those of this policy, or a tensor holds other numbers than floats.
    """
    named = {}
    for name, tensor in state.items():
        layer, _, rest = name.partition(".")
        named[f"{RENAMED.get(layer, layer)}.{rest}"] = tensor
    strange = sorted(name for name in named if not _NAME.fullmatch(name))
    missing = sorted({"net.0.weight", "mu.weight", "mu.bias", "log_std.weight", "log_std.bias"} - named.keys())
    if strange or missing:
        raise WeightsError(
            "these are not the weights of tmrl's SquashedGaussianMLPActor, the only policy that can be converted: "
            f"{'without ' + ', '.join(missing) if missing else 'with ' + ', '.join(strange[:5])}. Train other models "
            "again, or load their state_dict into a custom ActorModule."
        )
    if not all(tensor.is_floating_point() for tensor in named.values()):
        raise WeightsError("the weights are not floating-point numbers")
    # The activation is not in the file, so it is not in the metadata.
    return encode_arrays({name: tensor.float().numpy() for name, tensor in named.items()}, {})
