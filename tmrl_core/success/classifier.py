"""A success classifier, computed with NumPy."""

# Theory of operation
#
# A classifier is a policy of the project with two actions, failure and success, which was trained to choose the labels:
# convolutions for images, hidden layers, two logits. So a worker without torch computes it with the policies' own NumPy
# layers, bytes are scaled as a policy scales them, and its file is a policy's: safetensors, which cannot run code.
#
# One more entry of the file's metadata says what the arrays do not: the space of the observations that it takes, their
# entries in the environment's Dict, the hidden sizes, and the threshold. An environment may have larger images than the
# classifier; they are reduced as they were for its training. Everything else must be equal.

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from gymnasium import Space, spaces

from tmrl_core.actor import NumpyCategoricalMLPActor
from tmrl_core.actor.policies.weights import read_metadata, with_sorted_metadata
from tmrl_core.decodable import decodable
from tmrl_core.errors import ConfigError, WeightsError
from tmrl_core.samples.columns import map_leaves
from tmrl_core.samples.images import ImageShape, image_shape, leaf_at, need_pillow, resize, with_images
from tmrl_core.sessions.spaces import space_of_json, space_to_json
from tmrl_core.space_tree import Path as SpacePath
from tmrl_core.space_tree import space_leaves
from tmrl_core.storage import read_whole

ENTRY = "success"
"""Metadata entry of files."""
VERSION = 1
ACTIONS = spaces.Discrete(2)
"""Failure, success."""


@decodable
class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metadata entry of a classifier's file.

    Attributes:
        version: of this entry.
        space: JSON value of the space of the observations that the classifier takes.
        entries: entries of the environment's Dict observation that they consist of; empty: the whole observation.
        hidden_sizes: widths of the hidden layers.
        threshold: least probability of a success.
        normalized: mean and deviation of values are in the file.
    """

    version: int
    space: dict[str, Any]
    entries: tuple[str, ...]
    hidden_sizes: tuple[Annotated[int, msgspec.Meta(ge=1, le=4096)], ...]
    threshold: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    normalized: bool


def file_content(weights: bytes, space: Space[Any], **described: Any) -> bytes:
    """Return the content of a classifier's file.

    Args:
        weights: of its policy.
        space: of the observations that it takes.
        described: other fields of `Description`.
    """
    entry = Description(version=VERSION, space=space_to_json(space), **described)
    return with_sorted_metadata(weights, {ENTRY: msgspec.json.encode(entry).decode()})


class SuccessClassifier:
    """Tells the probability that an observation shows a success.

    Args:
        file: written by `--label`.

    Raises:
        ConfigError: there is no such file, or it is no classifier of this version.

    Attributes:
        space: of the observations that it takes.
        entries: entries of the environment's Dict observation that they consist of; empty: the whole observation.
        threshold: least probability of a success, which `--label` has chosen.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        path = Path(file)
        try:
            data = read_whole(path)
            entry = msgspec.json.decode(read_metadata(data).get(ENTRY, ""), type=Description)
            if entry.version != VERSION:
                raise ValueError(f"its version is {entry.version}, and this version of tmrl_core reads {VERSION}")
            self.space = space_of_json(entry.space)
            self._policy = NumpyCategoricalMLPActor(
                self.space, ACTIONS, entry.hidden_sizes, "relu", normalize_observations=entry.normalized
            ).from_bytes(data)
        except OSError as exc:
            raise ConfigError(
                f"the success classifier {path} cannot be read: {exc.strerror or exc}. Train one with "
                f"`python -m tmrl_core --label DIR --out {path}`, or copy its file to this machine"
            ) from exc
        except (ValueError, WeightsError, ConfigError) as exc:
            raise ConfigError(f"{path} is no success classifier: {exc}. `--label` writes them") from exc
        self.entries = entry.entries
        self.threshold = entry.threshold
        self._resized: dict[SpacePath, tuple[ImageShape, ImageShape]] = {}

    def fit(self, space: Space[Any]) -> None:
        """Take observations of an environment's space; larger images are reduced.

        Raises:
            ConfigError: the space lacks an entry, or has other ones.
            MissingExtraError: images must be reduced, and Pillow is not installed.
        """
        chosen = chosen_space(space, self.entries)
        found = dict(space_leaves(chosen))
        own = dict(space_leaves(self.space))
        resized = {}
        for path, leaf in own.items():
            here, there = found.get(path), leaf
            if here == there:
                continue
            shape, wanted = (None if here is None else image_shape(here)), image_shape(there)
            if shape is None or wanted is None or shape._replace(height=wanted.height, width=wanted.width) != wanted:
                raise ConfigError(
                    f"the success classifier takes observations of {self.space}, and the environment has {chosen}: "
                    "label sessions of this environment, or set the entries (--on) that both have"
                )
            resized[path] = (shape, wanted)
        if found.keys() != own.keys():
            raise ConfigError(f"the success classifier takes {self.space}, and the environment has {chosen}")
        if resized:
            need_pillow("a success classifier of smaller images")
        self._resized = resized

    def probability(self, obs: Any) -> float:
        """Return the probability, 0 to 1, that an observation of the fitted space shows a success."""
        obs = chosen_entries(obs, self.entries)
        if self._resized:
            made = {path: resize(leaf_at(obs, path), *shapes) for path, shapes in self._resized.items()}
            obs = with_images(obs, made)
        outputs, _ = self._policy.infer(map_leaves(lambda value: np.asarray(value)[None], obs), {})
        failure, success = outputs["logits"][0].tolist()
        difference = max(-700.0, min(700.0, failure - success))
        return 1.0 / (1.0 + math.exp(difference))


def chosen_space(space: Space[Any], entries: tuple[str, ...]) -> Space[Any]:
    """Return a Dict space with these entries only; without entries, the space.

    Raises:
        ConfigError: there are no such entries.
    """
    if not entries:
        return space
    if not isinstance(space, spaces.Dict) or not set(entries) <= space.spaces.keys():
        raise ConfigError(f"the entries {list(entries)} are not in the observation space {space}. Correct --on")
    return spaces.Dict([(key, space[key]) for key in entries])


def chosen_entries(obs: Any, entries: tuple[str, ...]) -> Any:
    """Return an observation, or columns of some, with these entries only."""
    return {key: obs[key] for key in entries} if entries and isinstance(obs, Mapping) else obs
