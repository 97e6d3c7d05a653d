"""Random shifts of the images of a batch, against overfitting of the convolutions to few pictures."""

# Theory of operation
#
# Each image of each row is moved by a whole number of pixels in both directions, and the pixels at its border are
# repeated into the gap: the same as a border of so many repeated pixels, of which a window of the image's own size is
# cut out. Observation and next observation of a row are moved independently, as are the cameras of one observation. All
# channels and all frames of a stack move together, since a movement between frames is what a stack is there to show. In
# numbers: a row of pixels 1 2 3 4 5 becomes 1 1 1 2 3 with a shift of -2, and 3 4 5 5 5 with one of 2.
#
# Numbers are drawn where a batch becomes transitions, apply where the update begins, and travel between the two as a
# column of the transitions. So a compiled graph gets them as an input, and a compiled update has the shifts of an
# uncompiled one: a compiler may change the order of draws within a graph. The pixels move inside the graph, where that
# costs no copy of its own. The generator is the agent's: it is part of checkpoints, and several updates asked for at
# once draw the same numbers as one after another. Agents without shifts have none, so that their checkpoints are those
# of before; a run that has begun with shifts cannot resume without them.

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tmrl_core.actor.policies.flattening import Key, Leaf
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Tree

# Shape suffixes: B batch, I images, H height, W width.

PAPER_PIXELS = 4
"""Greatest shift where the setting is true, for images with a side of 84 in the paper."""


def greatest(setting: bool | int) -> int:
    """Return the greatest shift in pixels that a setting means."""
    return PAPER_PIXELS if setting is True else int(setting)


def drawn(rng: np.random.Generator, most: int, rows: int, images: int) -> Tensor:
    """Return [B, 2, I, 2] int64 shifts in pixels, of observations and next ones, along height and width.

    Args:
        rng: of the agent.
        most: greatest shift.
        rows: B.
        images: I.

    Source: Kostrikov et al., arXiv:2004.13649, section 3.1, with one shift for each image, as in Yarats et al.,
        arXiv:2107.09645, section 3.1, whose interpolation between pixels is left out.
    """
    return torch.from_numpy(rng.integers(-most, most, (rows, 2, images, 2), endpoint=True))


def shifted(transitions: Transitions, images: Sequence[Leaf], most: int) -> Transitions:
    """Return transitions with their images moved by their shifts.

    Args:
        transitions: a batch of rows, not of sequences, with shifts.
        images: of the observation space.
        most: greatest shift in pixels.
    """
    shifts = transitions.shifts
    assert shifts is not None
    obs, next_obs = transitions.obs, transitions.next_obs
    for number, image in enumerate(images):
        obs = _replaced(obs, image.path, moved(image.of(obs), shifts[:, 0, number], image, most))
        next_obs = _replaced(next_obs, image.path, moved(image.of(next_obs), shifts[:, 1, number], image, most))
    return transitions._replace(obs=obs, next_obs=next_obs, shifts=None)


def moved(pixels: Tensor, shift_B2: Tensor, image: Leaf, most: int) -> Tensor:
    """Return images [B, *shape] moved by [B, 2] pixels of at most `most`, with their borders repeated."""
    # All windows are a view, from which one gather copies one window a row, in long runs: a third of the time of a
    # gather pixel by pixel.
    windows = pixels
    for axis in image.sides:
        first, last = (windows.narrow(1 + axis, at, 1) for at in (0, image.shape[axis] - 1))
        border = [most if dim == 1 + axis else -1 for dim in range(windows.dim())]
        windows = torch.cat([first.expand(border), windows, last.expand(border)], dim=1 + axis)
    for axis in image.sides:
        windows = windows.unfold(1 + axis, image.shape[axis], 1)
    # The two axes of shifts behind that of rows, height and width to their places.
    high, wide = image.sides
    windows = windows.movedim((1 + high, 1 + wide, -2, -1), (1, 2, 3 + high, 3 + wide))
    row_B = torch.arange(len(pixels), device=pixels.device)
    moved_B: Tensor = windows[row_B, shift_B2[:, 0] + most, shift_B2[:, 1] + most]
    return moved_B


def _replaced(obs: Tree, path: Sequence[Key], leaf: Tensor) -> Tree:
    """Return an observation with another leaf at a path."""
    if not path:
        return leaf
    key, *rest = path
    if isinstance(obs, Mapping):
        return {**obs, key: _replaced(obs[key], rest, leaf)}
    parts = list(obs)
    parts[int(key)] = _replaced(parts[int(key)], rest, leaf)
    return tuple(parts)
