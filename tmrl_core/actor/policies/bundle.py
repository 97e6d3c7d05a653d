"""Several policies that are published together, and their file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tmrl_core.actor.policies.weights import SAFETENSORS_FORMAT, decode_arrays, describe
from tmrl_core.errors import RemoteProtocolError, WeightsError
from tmrl_core.networking.protocol.messages import Blob, PolicyUpdate, decode_body, encode_body
from tmrl_core.storage import read_whole, write_whole


@dataclass(frozen=True)
class PolicyBundle:
    """The weights of several policies, which workers load as one version.

    Args:
        policies: weights by the policy's name.
        exploration: exploration parameters by name; for many agents the epsilons by agent id.
    """

    policies: Mapping[str, Blob]
    exploration: Mapping[str, float] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write policies and exploration parameters to one file, which only its owner can read.

        Raises:
            OSError: the file cannot be written.
        """
        write_whole(Path(path), self.to_bytes(), mode=0o600)

    def to_bytes(self) -> bytes:
        """Return policies and exploration parameters as the content of a file."""
        return encode_body(PolicyUpdate((0, 0), dict(self.policies), dict(self.exploration)))

    @classmethod
    def read(cls, path: str | Path) -> PolicyBundle:
        """Read a file that `save` wrote.

        Raises:
            OSError: the file cannot be read.
            WeightsError: the file holds something else.
        """
        try:
            update = decode_body(read_whole(path), PolicyUpdate)
        except RemoteProtocolError as exc:
            raise WeightsError(
                f"{path} does not hold several policies: {exc}. Pass the file that a trainer of many agents wrote "
                "(trainer.model_path)."
            ) from exc
        return cls(update.policies, update.exploration)

    def architecture(self) -> dict[str, Any]:
        """Return names of policies and agents, and shapes of weights, as `weights.difference` compares them.

        The shapes of weights in other formats than safetensors are unknown, and left out.
        """
        shapes = {
            f"{name}.{key}": array.shape
            for name, blob in self.policies.items()
            if blob.format == SAFETENSORS_FORMAT
            for key, array in decode_arrays(blob.data)[0].items()
        }
        names = {"policies": ", ".join(sorted(self.policies)), "agents": ", ".join(sorted(self.exploration))}
        return describe(shapes, names)
