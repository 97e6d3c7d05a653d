"""Recorded sessions on one time line of the viewer rerun (extra `rerun`): pictures, numbers, actions, rewards."""

# Theory of operation
#
# For: a look at what was recorded, tick by tick, before somebody trains on it. The sessions follow each other on one
# time line, `tick`, with the same entities for each, so that plots and pictures run through all of them; `session`
# tells which one is shown, and a line of text its source, its return and how it ended. Observation t, the action chosen
# on it and the reward for it stand at the same tick; the last observation has a tick of its own.
#
# Entities are named after the spaces: observation/arm/camera, action, reward, return, extras/logp. A leaf of at most
# `MOST_SERIES` numbers is a plot with a line for each of them. Bytes of the shape of an image are a picture; of frames
# of it, the last one. Other arrays are tensors.
#
# Data go to rerun in columns, a session at a time: one call for a leaf, where one call for a tick would take a minute
# for a long recording. Sessions are read one by one, and only those that are shown.
#
# A file is written under another name and renamed, so that a command that fails leaves nothing. `spawn` of rerun (0.41)
# starts the viewer as a program of its own, which outlives this one and keeps what it was sent.

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_core.errors import MissingExtraError, StorageError
from tmrl_core.samples import Tree
from tmrl_core.samples.columns import Array
from tmrl_core.sessions.session import Session
from tmrl_core.sessions.session_files import read_sessions

MOST_SERIES = 64
"""Largest number of elements that are drawn as lines."""
APPLICATION, TIMELINE = "tmrl_core sessions", "tick"


def view(
    folder: str | os.PathLike[str], chosen: Container[int], last: int | None, out: Path | None = None
) -> tuple[int, int]:
    """Show sessions in the viewer, or write them to a file.

    Args:
        folder: a recording.
        chosen: numbers of the sessions to show, from 0.
        last: number of the last of them; None: to the end.
        out: the .rrd file, for a viewer elsewhere; None: start the viewer here.

    Returns:
        Number of sessions and of ticks shown.

    Raises:
        MissingExtraError: rerun is not installed.
        StorageError: there is no recording, it is damaged, or it has none of these sessions; or the file cannot be
            written.
    """
    # A folder of that name in the current directory is found as a namespace package, which has no origin.
    found = importlib.util.find_spec("rerun")
    if found is None or found.origin is None:
        raise MissingExtraError("rerun-sdk", "rerun", "the view of sessions")
    import rerun

    sessions = read_sessions(folder)
    recording = rerun.RecordingStream(APPLICATION)
    # Times of writing say nothing about a recording.
    recording.set_log_time_enabled(False)
    recording.set_log_tick_enabled(False)
    if out is None:
        recording.spawn()
        return _send(rerun, recording, sessions, chosen, last)
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(8)}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        recording.save(temporary)
        shown = _send(rerun, recording, sessions, chosen, last)
        recording.disconnect()
        os.replace(temporary, out)
    except OSError as exc:
        raise StorageError(f"{out} cannot be written: {exc}") from exc
    finally:
        with suppress(OSError):
            temporary.unlink()
    return shown


def _send(
    rerun: Any, recording: Any, sessions: Iterator[Session], chosen: Container[int], last: int | None
) -> tuple[int, int]:
    sender = _Sender(rerun, recording)
    count = ticks = 0
    for number, session in enumerate(sessions):
        if last is not None and number > last:
            break
        if number in chosen:
            sender.send(number, session)
            count, ticks = count + 1, ticks + len(session)
    if not count:
        raise StorageError("the recording has none of these sessions; `--sessions list` prints their number")
    recording.flush()
    return count, ticks


class _Sender:
    """Sends sessions to a recording of rerun, one after another on the time line.

    Args:
        rerun: the package.
        recording: gets the data.
    """

    def __init__(self, rerun: Any, recording: Any) -> None:
        self._rerun = rerun
        self._recording = recording
        self._tick = 0
        self._described: set[str] = set()
        """Entities whose form has been sent."""

    def send(self, number: int, session: Session) -> None:
        """Send a session."""
        ticks = len(session)
        self._leaves("observation", session.observations)
        self._leaves("action", session.actions)
        for name, extra in session.extras.items():
            self._leaves(f"extras/{name}", extra)
        self._column("reward", session.rewards)
        self._column("return", np.cumsum(session.rewards, dtype=np.float64))
        self._column("session", np.full(ticks + 1, number))
        end = "terminated" if session.terminated else "truncated" if session.truncated else "unfinished"
        text = (
            f"session {number}: {ticks} ticks, {end}, return {session.episode_return:.6g}, by "
            f"{session.source or 'an unknown source'}"
        )
        self._recording.set_time(TIMELINE, sequence=self._tick)
        self._recording.log("sessions", self._rerun.TextLog(text))
        self._tick += ticks + 1

    def _leaves(self, path: str, tree: Tree) -> None:
        if isinstance(tree, dict):
            for key, inner in tree.items():
                self._leaves(f"{path}/{self._rerun.escape_entity_path_part(str(key))}", inner)
        elif isinstance(tree, tuple):
            for index, inner in enumerate(tree):
                self._leaves(f"{path}/{index}", inner)
        else:
            self._column(path, np.asarray(tree))

    def _column(self, path: str, values: Array) -> None:
        """Send the values [T, ...] of an entity, which begin at the present tick."""
        if values.dtype.kind not in "biuf" or not values.size:
            return
        pictures = _pictures(values)
        elements = values[0].size
        if pictures is not None:
            self._pictures(path, pictures)
        elif elements <= MOST_SERIES:
            if path not in self._described and elements > 1:
                names = [_index_text(index) for index in np.ndindex(values.shape[1:])]
                self._recording.log(path, self._rerun.SeriesLines(names=names), static=True)
            scalars = self._rerun.Scalars.columns(scalars=values.reshape(-1).astype(np.float64))
            self._columns(path, len(values), scalars.partition([elements] * len(values)))
        else:
            for offset, value in enumerate(values):
                self._recording.set_time(TIMELINE, sequence=self._tick + offset)
                self._recording.log(path, self._rerun.Tensor(value))
        self._described.add(path)

    def _pictures(self, path: str, pictures: Array) -> None:
        """Send pictures [T, height, width, channels] of bytes."""
        rows, height, width, channels = pictures.shape
        if path not in self._described:
            form = self._rerun.components.ImageFormat(
                width=width, height=height, color_model={1: "L", 3: "RGB", 4: "RGBA"}[channels], channel_datatype="U8"
            )
            self._recording.log(path, self._rerun.Image.from_fields(format=form), static=True)
        self._columns(path, rows, self._rerun.Image.columns(buffer=np.ascontiguousarray(pictures).reshape(rows, -1)))

    def _columns(self, path: str, rows: int, columns: Any) -> None:
        times = self._rerun.TimeColumn(TIMELINE, sequence=range(self._tick, self._tick + rows))
        self._recording.send_columns(path, [times], columns)


def _index_text(index: tuple[int, ...]) -> str:
    return ",".join(map(str, index))


def _pictures(values: Array) -> Array | None:
    """Return bytes [T, ...] of the shape of an image as [T, height, width, channels]; None: it is none.

    Channels are first or last, as policies take images; of frames along a first axis, the last one is returned.
    """
    if values.dtype != np.uint8 or not 3 <= values.ndim <= 5:
        return None
    if values.ndim == 5:
        values = values[:, -1]
    if values.ndim == 3:
        values = values[..., None]
    elif values.shape[1] < values.shape[3]:
        # Four along the first axis are a stack of frames, which is common, and no picture with a transparency.
        values = np.moveaxis(values if values.shape[1] in (1, 3) else values[:, -1:], 1, -1)
    elif values.shape[3] not in (1, 3, 4):
        values = values[..., -1:]  # frames of one channel each
    return values if min(values.shape[1:3]) >= 2 else None
