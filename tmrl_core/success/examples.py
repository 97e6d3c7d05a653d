"""Labelled observations, of recorded sessions or of folders of images, in groups that are never divided."""

# Theory of operation
#
# A label is what the person said: sessions whose last info has `is_success`, as `worker.interventions` and many
# environments write it. A session that ended with a success has its success at its end: the last `last` observations.
# As many before them are left out, since the person presses a moment late, and all earlier ones are failures. In a
# session that ended without one, every observation is a failure. Sessions without the entry say nothing.
#
# Neighbouring observations of one session are nearly equal, so a classifier that has seen one knows the other. The
# sessions are therefore the groups that are divided into those to train on and those held out, never the observations.
# Of a folder of images, each folder within `success/` and `failure/` is a group, or each file if there are none.

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from tmrl_core.errors import ConfigError
from tmrl_core.samples.columns import map_leaves
from tmrl_core.samples.images import ImageShape, images_of, leaf_at, need_pillow, resize, with_images
from tmrl_core.samples.segments import IS_SUCCESS
from tmrl_core.sessions import read_sessions, read_spaces
from tmrl_core.space_tree import with_leaves
from tmrl_core.success.classifier import chosen_entries, chosen_space

MOST_FAILURES = 200
"""Maximum number of failures of one session, evenly spaced: a long one would outweigh the others."""
SUFFIXES = (".png", ".jpg", ".jpeg")
LEAST_GROUPS = 4


@dataclass(frozen=True)
class Group:
    """Observations that are trained on together, or held out together.

    Args:
        name: of the session or folder, for messages.
        observations: columns [n, ...].
        success: [n] bool.
    """

    name: str
    observations: Any
    success: NDArray[np.bool_]


@dataclass(frozen=True)
class Examples:
    """Labelled observations of one space.

    Args:
        space: of an observation.
        groups: all of them.
        unlabelled: number of sessions without a label.
    """

    space: Space[Any]
    groups: list[Group]
    unlabelled: int = 0


def read_examples(folder: Path, entries: tuple[str, ...], last: int, side: int) -> Examples:
    """Return the labelled observations of a folder.

    Args:
        folder: recorded sessions, or `success/` and `failure/` with images.
        entries: entries of a Dict observation to look at; empty: all. Of images: the entry that they are of.
        last: number of last observations of a session that show its success.
        side: greatest height and width of images, which are reduced to it.

    Raises:
        ConfigError: there is nothing to learn from; the message says what is missing.
        StorageError: the recordings are damaged or of different spaces.
        MissingExtraError: there are images, and Pillow is not installed.
    """
    if (folder / "success").is_dir() and (folder / "failure").is_dir():
        return _of_images(folder, entries, side)
    space = chosen_space(read_spaces(folder)[0], entries)
    reduced, shapes = _reduced(space, side)
    groups, unlabelled = [], 0
    for number, session in enumerate(read_sessions(folder)):
        ticks = len(session)
        label = session.infos.get(ticks, {}).get(IS_SUCCESS)
        if label is None:
            unlabelled += 1
            continue
        rows = np.arange(ticks + 1)
        success = rows > ticks - last if label else np.zeros(ticks + 1, bool)
        failures = rows[: max(0, ticks + 1 - 2 * last)] if label else rows
        if len(failures) > MOST_FAILURES:
            failures = failures[np.linspace(0, len(failures) - 1, MOST_FAILURES).astype(int)]
        chosen = np.concatenate([failures, rows[success]])
        observations = chosen_entries(session.observations, entries)
        columns = map_leaves(functools.partial(_rows_of, rows=chosen), observations)
        groups.append(Group(f"session {number}", _smaller(columns, shapes), success[chosen]))
    if not groups:
        raise ConfigError(
            f"{folder}: none of {unlabelled} sessions has a label. Record with worker.interventions, and say success "
            "or failure at the end of each episode (docs/interventions.md); or take folders success/ and failure/ of "
            "images"
        )
    return Examples(reduced, groups, unlabelled)


def _rows_of(column: Any, rows: NDArray[np.intp]) -> NDArray[Any]:
    found: NDArray[Any] = np.asarray(column)[rows]
    return found


def _of_images(folder: Path, entries: tuple[str, ...], side: int) -> Examples:
    if len(entries) > 1:
        raise ConfigError(f"--on: found {list(entries)}; images are of one entry of the observation, or of all of it")
    need_pillow("labelled images")
    from PIL import Image

    files: list[tuple[Path, str, bool]] = []
    for label in ("failure", "success"):
        for file in sorted((folder / label).rglob("*")):
            if file.suffix.lower() in SUFFIXES:
                inner = file.parent != folder / label
                files.append((file, str(file.parent if inner else file), label == "success"))
    images: dict[str, list[Any]] = {}
    labels: dict[str, bool] = {}
    first = ""
    for file, group, success in files:
        try:
            with Image.open(file) as image:
                pixels = np.asarray(image.convert("RGB"))
        except Exception as exc:  # Pillow raises many kinds for damaged files
            raise ConfigError(f"{file} is no image: {type(exc).__name__}: {exc}") from exc
        shape = f"{pixels.shape[0]} rows and {pixels.shape[1]} columns"
        first = first or shape
        if shape != first:
            raise ConfigError(f"{file} has {shape}, and the first image {first}; allowed: images of one camera")
        images.setdefault(group, []).append(pixels)
        labels[group] = success
    if not images:
        raise ConfigError(f"{folder}: success/ and failure/ hold no images; allowed: {', '.join(SUFFIXES)}")
    found: Space[Any] = spaces.Box(0, 255, next(iter(images.values()))[0].shape, np.uint8)
    space = spaces.Dict({entries[0]: found}) if entries else found
    reduced, shapes = _reduced(space, side)
    groups = []
    for name, pictures in images.items():
        columns: Any = np.stack(pictures)
        columns = {entries[0]: columns} if entries else columns
        groups.append(Group(name, _smaller(columns, shapes), np.full(len(pictures), labels[name])))
    return Examples(reduced, groups)


def _reduced(space: Space[Any], side: int) -> tuple[Space[Any], dict[Any, tuple[ImageShape, ImageShape]]]:
    """Return the space with images of at most this side, and both shapes of those that change."""
    shapes = {}
    for path, shape in images_of(space).items():
        smaller = shape._replace(height=min(side, shape.height), width=min(side, shape.width))
        if smaller != shape:
            shapes[path] = (shape, smaller)
    made = with_leaves(
        space,
        lambda path, leaf: spaces.Box(0, 255, shapes[path][1].shape, np.uint8) if path in shapes else leaf,
    )
    assert made is not None
    return made, shapes


def _smaller(columns: Any, shapes: dict[Any, tuple[ImageShape, ImageShape]]) -> Any:
    if not shapes:
        return columns
    need_pillow("images that are larger than --size")
    made = {path: np.stack([resize(one, *both) for one in leaf_at(columns, path)]) for path, both in shapes.items()}
    return with_images(columns, made)


def divided(groups: Sequence[Group], seed: int) -> tuple[list[Group], list[Group]]:
    """Return the groups to train on and those held out: a quarter of those with a success, and of the others.

    Raises:
        ConfigError: there are too few, or labels of one kind only.
    """
    with_success = [group for group in groups if group.success.any()]
    without = [group for group in groups if not group.success.any()]
    failures = [group for group in groups if not group.success.all()]
    for kind, found in (("success", with_success), ("failure", failures)):
        if len(found) < LEAST_GROUPS:
            raise ConfigError(
                f"found {len(found)} sessions or groups of images with a {kind}, and {len(groups)} in all; needed: "
                f"{LEAST_GROUPS} or more, of which a quarter is held out. Label more"
            )
    rng = np.random.default_rng(seed)
    training: list[Group] = []
    held_out: list[Group] = []
    for alike in (with_success, without):
        count = max(1, round(len(alike) / 4)) if alike else 0
        order = rng.permutation(len(alike)).tolist()
        held_out += [alike[index] for index in order[:count]]
        training += [alike[index] for index in order[count:]]
    for part in (training, held_out):
        if all(group.success.all() for group in part):
            raise ConfigError("the failures are all in one part of the groups; label more sessions with a failure")
    return training, held_out
