"""Datasets of LeRobot, version 3, read and written by the documented format (extra `lerobot`: pyarrow and pillow)."""

# Theory of operation
#
# For: recorded sessions that lerobot trains on, and its datasets that this package trains on. lerobot itself is not
# needed: it wants another Python and its own torch, and the format is documented. Tried with lerobot 0.6.1.
#
#     meta/info.json                             features, rates, numbers
#     meta/stats.json                            statistics of each feature (stats.py)
#     meta/tasks.parquet                         texts of the tasks
#     meta/episodes/chunk-000/file-000.parquet   one row for each episode
#     data/chunk-000/file-000.parquet            one row for each tick, one row group for each episode
#     videos/KEY/chunk-000/file-000.mp4          frames, read only (videos.py)
#     meta/tmrl_core.json                        ours only: the spaces
#     meta/tmrl_core_episodes.parquet            ours only: the other fields of a session
#
# The feature of an observation is `observation.state`, or `observation.KEY` for each part of a Dict or Tuple space;
# that of an action is `action` or `action.KEY`. uint8 arrays [height, width, 3] are images (PNG).
#
# What LeRobot does not store, and where it is instead: the observation after the last action, the seed, the worker and
# the policy version are in a file of our own. As further columns of `meta/episodes` they would keep lerobot from
# loading a dataset that it has recorded on, because its own rows lack them. That file has rows for the first episodes;
# lerobot may have added more. If the lengths do not agree, the file belongs to another dataset and is not used.
#
# Without such a file, the observation after the last action is unknown: `inner_ends.py` repeats the last one after a
# termination, whose value nobody takes, and leaves the last step out after a truncation.
#
# Writing: sessions come one by one, each becomes one row group, and statistics are collected on the way. The features
# of the first session are those of all. The folder appears when it is complete (`whole_folder`).
#
# Reading makes two passes. The first decodes everything and tells all that is wrong, once; the second yields the
# sessions. A training or an import that has begun does not fail at episode 800, and no session is in memory longer than
# its own turn. The price is that videos are decoded twice.
#
# What fails: a damaged file, a missing column or file and an episode that contradicts itself are errors with the name
# of the file or the number of the episode. With `skip_bad`, episodes that contradict themselves are left out and
# counted.
#
# Of datasets of others, nothing may run: no path of a video is followed out of the folder, images are PNG or JPEG, and
# a size is compared before anything is decoded.

from __future__ import annotations

import io
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from tmrl_core.errors import ConfigError, MissingExtraError, StorageError
from tmrl_core.samples.columns import Array
from tmrl_core.sessions.formats import SessionFormat
from tmrl_core.sessions.inner_ends import InnerEnds
from tmrl_core.sessions.lerobot.stats import FeatureStats, as_lists
from tmrl_core.sessions.lerobot.videos import Videos, require_pyav
from tmrl_core.sessions.reading import Reading
from tmrl_core.sessions.session import Session
from tmrl_core.sessions.session_files import Spaces, spaces_problem
from tmrl_core.sessions.spaces import completed, space_of_json, space_to_json
from tmrl_core.sessions.whole_folder import whole_folder
from tmrl_core.space_tree import parts_of, widest, with_leaves
from tmrl_core.storage import read_whole

logger = logging.getLogger(__name__)

INFO_FILE = "meta/info.json"
STATS_FILE = "meta/stats.json"
OWN_FILE = "meta/tmrl_core.json"
OWN_EPISODES = "meta/tmrl_core_episodes.parquet"
# Both as lerobot's own writer has them; they are also stated in meta/info.json.
FILES_IN_CHUNK = 1000
FILE_BYTES = 100 << 20
ROWS_AT_ONCE = 1000
"""Number of episodes whose rows become Arrow at once."""
MAX_JSON_BYTES = 64 << 20
MAX_ITEM_SIZE = 1 << 26
"""Maximum number of elements of an observation or action."""
_STANDARD = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
_INDICES = "episode_index", "frame_index", "timestamp"
_PICTURES = frozenset({"image", "video"})
_PREFIXES, _SINGLES = ("observation", "action"), ("observation.state", "action")
_REWARD, _DONE, _TRUNCATED = "next.reward", "next.done", "next.truncated"


def is_lerobot(path: str | os.PathLike[str]) -> bool:
    """Return True for a folder with a LeRobot dataset."""
    return (Path(path) / INFO_FILE).is_file()


def read_lerobot(
    path: str | os.PathLike[str], *, of: Spaces | None = None, bounds_of_stats: bool = False, skip_bad: bool = False
) -> tuple[Spaces, Iterator[Session]]:
    """Return the spaces and the sessions of a dataset.

    All files are read and checked before the first session is returned. An episode with ends inside becomes several
    sessions (inner_ends.py). Where a dataset lacks the observation after the last action, the last observation is
    repeated, or the step left out if it truncates the episode; where it lacks rewards, they are 0. Columns of text, and
    features that are neither observations, actions, rewards nor ends, are left out.

    Args:
        path: the dataset's folder.
        of: spaces of observations and actions, which datasets of others do not store. Features that they have no part
            for are left out. None: the dataset's, or Box spaces without bounds.
        bounds_of_stats: bounds that the actions lack are the smallest and largest values of `meta/stats.json`.
        skip_bad: leave out inconsistent episodes, with a warning, instead of refusing the dataset.

    Raises:
        StorageError: there is no dataset of this version, it is damaged, it does not have the given spaces, or an
            episode is inconsistent; the message names the file or the episode.
        MissingExtraError: pyarrow or pillow is not installed; or PyAV, for a dataset with videos.
    """
    _pyarrow()
    dataset = _Dataset(Path(path), of, bounds_of_stats)
    reading = Reading(skip_bad)
    for _ in dataset.sessions(reading):
        pass
    reading.finish(path)
    return dataset.spaces, dataset.sessions(Reading(skip_bad))


def write_lerobot(
    path: str | os.PathLike[str], sessions: Iterable[Session], of: Spaces, *, fps: int = 30, task: str = "recorded"
) -> int:
    """Write sessions as a new dataset; return their number. `path` appears when the dataset is complete.

    Infos are left out.

    Args:
        path: the dataset's folder.
        sessions: at least one.
        of: spaces of observations and actions.
        fps: ticks per second.
        task: text of the task.

    Raises:
        ConfigError: `fps` is below 1 or above a million.
        StorageError: `path` exists, there is no session, or a session cannot be written.
        MissingExtraError: pyarrow or pillow is not installed.
    """
    if not 1 <= fps <= 1_000_000:
        raise ConfigError(f"fps: found {fps}, allowed: 1 to 1000000")
    _pyarrow()
    count = 0
    with whole_folder(Path(path)) as folder:
        writer = _Writer(folder, of, fps)
        try:
            for session in sessions:
                writer.add(session)
                count += 1
            if not count:
                raise StorageError(f"there is no session to write to {path}")
            writer.finish(task)
        except (OSError, ValueError, KeyError, TypeError, _pyarrow().ArrowException) as exc:
            raise StorageError(f"session {count} cannot be written to {path}: {exc}") from exc
        finally:
            writer.close()
    return count


def _pyarrow() -> Any:
    try:
        import PIL.Image  # noqa: F401
        import pyarrow.parquet
    except ImportError as exc:
        raise MissingExtraError(exc.name or str(exc), "lerobot", "a LeRobot dataset") from exc
    return pyarrow


# -- features ---------------------------------------------------------------------------------------------------------


def _leaves_of(tree: Any, name: str, single: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree, or of a space, with the names of their features."""
    if isinstance(tree, Space):
        parts = parts_of(tree)
    else:
        nested = dict(enumerate(tree)) if isinstance(tree, tuple) else tree
        parts = list(nested.items()) if isinstance(nested, Mapping) else None
    if parts is None:
        yield single, tree
    for key, child in parts or ():
        inner = f"{name}.{key}"
        if "/" in inner:
            raise StorageError(f"the key {key!r} has a slash, which names of LeRobot's features cannot have")
        yield from _leaves_of(child, inner, inner)


def _rebuilt(space: Space[Any], name: str, single: str, columns: Mapping[str, Array]) -> Any:
    """Undo `_leaves_of`."""
    if isinstance(space, spaces.Dict):
        return {key: _rebuilt(s, f"{name}.{key}", f"{name}.{key}", columns) for key, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_rebuilt(s, f"{name}.{i}", f"{name}.{i}", columns) for i, s in enumerate(space.spaces))
    column = columns[single]
    return column.reshape(len(column), *(space.shape or ()))


def _feature(shape: Sequence[int], dtype: np.dtype[Any]) -> dict[str, Any]:
    # lerobot's pictures have three channels; others, such as grey ones, stay arrays.
    if dtype == np.uint8 and len(shape) == 3 and shape[2] == 3:
        return {"dtype": "image", "shape": list(shape), "names": ["height", "width", "channels"]}
    return {"dtype": dtype.name, "shape": list(shape) or [1], "names": None}


def _feature_of_info(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    dtype, shape = str(found["dtype"]), tuple(map(int, found["shape"]))
    if dtype in _PICTURES:
        if len(shape) == 3 and shape[0] == 3 and shape[2] != 3:
            shape = (*shape[1:], 3)  # stated channel-first; the images themselves have no order
        if len(shape) != 3 or shape[2] != 3:
            raise StorageError(
                f"the feature {name} is of the dtype {dtype} and the shape {list(shape)}; [height, width, 3] is read"
            )
    return {"dtype": dtype, "shape": shape}


def _space_of(feature: Mapping[str, Any]) -> Space[Any]:
    shape = feature["shape"]
    if feature["dtype"] in _PICTURES:
        return spaces.Box(0, 255, shape, np.uint8)
    dtype = np.dtype(feature["dtype"])
    if dtype.kind not in "biuf" or math.prod(shape) > MAX_ITEM_SIZE:
        raise StorageError(
            f"{INFO_FILE} has a feature of the dtype {dtype} and the shape {list(shape)}, which is not read"
        )
    return widest(shape, dtype)


# -- writing ----------------------------------------------------------------------------------------------------------


class _Rows:
    """Rows of one file, kept as Arrow: as Python objects, the statistics of 100,000 episodes would take 5 GB."""

    def __init__(self) -> None:
        self._count = 0
        self._latest: list[dict[str, Any]] = []
        self._tables: list[Any] = []

    def __len__(self) -> int:
        return self._count

    def append(self, row: dict[str, Any]) -> None:
        self._count += 1
        self._latest.append(row)
        if len(self._latest) == ROWS_AT_ONCE:
            self._convert()

    def table(self) -> Any:
        self._convert()
        # A column without values in one part, such as that of seeds, gets the type that it has in another.
        return _pyarrow().concat_tables(self._tables, promote_options="default")

    def _convert(self) -> None:
        if self._latest:
            self._tables.append(_pyarrow().Table.from_pylist(self._latest))
            self._latest = []


class _Writer:
    def __init__(self, folder: Path, of: Spaces, fps: int) -> None:
        self._folder, self._of, self._fps = folder, of, fps
        self._features: dict[str, dict[str, Any]] = {}
        self._stats: dict[str, FeatureStats] = {}
        self._scalars: list[str] = []
        self._episodes, self._own = _Rows(), _Rows()
        self._frames = 0
        self._file = -1
        self._writer: Any = None

    def add(self, session: Session) -> None:
        ticks = len(session)
        ended = np.arange(ticks) == ticks - 1
        observations = dict(_leaves_of(session.observations, "observation", "observation.state"))
        columns = {
            **{name: _array(column, name) for name, column in observations.items()},
            **{name: _array(column, name) for name, column in _leaves_of(session.actions, "action", "action")},
            **{name: _array(c, name) for name, c in _leaves_of(session.extras, "extras", "extras")},
            _REWARD: session.rewards,
            _DONE: ended & (session.terminated or session.truncated),
            _TRUNCATED: ended & session.truncated,
        }
        features = {name: _feature(column.shape[1:], column.dtype) for name, column in columns.items()}
        if not self._episodes:
            self._features = features
            # LeRobot has no shape (): a number and an array of one number are both [1]. Ours is told apart by the list.
            self._scalars = [name for name, column in columns.items() if column.ndim == 1]
            images = {name for name, feature in features.items() if feature["dtype"] == "image"}
            self._stats = {name: FeatureStats(name in images) for name in (*features, *_STANDARD)}
        elif features != self._features:
            names = features.keys() | self._features.keys()
            wrong = sorted(name for name in names if features.get(name) != self._features.get(name))
            raise StorageError(
                f"session {len(self._episodes)} differs from the first one in {', '.join(wrong)}; all sessions of a "
                "LeRobot dataset have the same features"
            )
        final = {name: columns[name][ticks:] for name in observations}
        columns |= {name: columns[name][:ticks] for name in observations}
        columns |= self._standard(ticks)
        # Of each episode too: lerobot needs them when it edits a dataset or records on.
        stats = {name: as_lists(self._stats[name].add(column)) for name, column in columns.items()}
        self._write(columns)
        self._episodes.append(
            {
                "episode_index": len(self._episodes),
                "length": ticks,
                "dataset_from_index": self._frames,
                "dataset_to_index": self._frames + ticks,
                "data/chunk_index": self._file // FILES_IN_CHUNK,
                "data/file_index": self._file % FILES_IN_CHUNK,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
                **{f"stats/{name}/{key}": value for name, one in stats.items() for key, value in one.items()},
            }
        )
        self._own.append(
            {
                "length": ticks,
                **{f"final/{name}": _bytes_of(column) for name, column in final.items()},
                "terminated": session.terminated,
                "truncated": session.truncated,
                "first_step": session.first_step,
                # As text: seeds may be larger than 64 bits.
                "seed": None if session.seed is None else str(session.seed),
                "source": session.source,
                "version": " ".join(map(str, session.version)),
            }
        )
        self._frames += ticks

    def _standard(self, ticks: int) -> dict[str, Array]:
        """Return the columns that each dataset has."""
        frames = np.arange(ticks)
        columns = {
            "timestamp": frames / self._fps,
            "frame_index": frames,
            "episode_index": np.full(ticks, len(self._episodes)),
            "index": self._frames + frames,
            "task_index": np.zeros(ticks, np.int64),
        }
        return {name: column.astype(_STANDARD[name]) for name, column in columns.items()}

    def _write(self, columns: Mapping[str, Array]) -> None:
        pa = _pyarrow()
        features = self._features | {name: {"dtype": dtype, "shape": [1]} for name, dtype in _STANDARD.items()}
        table = pa.table({name: _arrow_column(column, features[name]) for name, column in columns.items()})
        path = self._path(self._file)
        if self._writer is None or path.stat().st_size > FILE_BYTES:
            self.close()
            self._file += 1
            path = self._path(self._file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pa.parquet.ParquetWriter(path, table.schema, write_page_checksum=True)
        self._writer.write_table(table)

    def _path(self, number: int) -> Path:
        chunk, file = divmod(number, FILES_IN_CHUNK)
        return self._folder / "data" / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"

    def finish(self, task: str) -> None:
        self.close()
        pa = _pyarrow()
        meta = self._folder / "meta"
        episodes = meta / "episodes" / "chunk-000" / "file-000.parquet"
        episodes.parent.mkdir(parents=True)
        table = self._episodes.table()
        table = table.append_column("tasks", pa.array([[task]] * len(table), pa.list_(pa.string())))
        pa.parquet.write_table(table, episodes, write_page_checksum=True)
        table = self._own.table()
        # If no session has a seed, the column would be of no type, and could not be read together with others.
        seed = table.schema.get_field_index("seed")
        table = table.set_column(seed, "seed", table.column(seed).cast(pa.string()))
        pa.parquet.write_table(table, self._folder / OWN_EPISODES, write_page_checksum=True)
        # The text is the index of the table, as pandas writes it.
        tasks = pa.table({"task_index": pa.array([0], pa.int64()), "task": pa.array([task])})
        types = ("task_index", "int64", "int64"), ("task", "unicode", "object")
        columns = [
            {"name": name, "field_name": name, "pandas_type": pandas, "numpy_type": numpy, "metadata": None}
            for name, pandas, numpy in types
        ]
        about = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"}
        tasks = tasks.replace_schema_metadata({"pandas": json.dumps(about)})
        pa.parquet.write_table(tasks, meta / "tasks.parquet", write_page_checksum=True)
        standard = {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _STANDARD.items()}
        info = {
            "codebase_version": "v3.0",
            "robot_type": None,
            "total_episodes": len(self._episodes),
            "total_frames": self._frames,
            "total_tasks": 1,
            "chunks_size": FILES_IN_CHUNK,
            "data_files_size_in_mb": FILE_BYTES >> 20,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": None,
            "features": self._features | standard,
        }
        own = {
            "observation_space": space_to_json(self._of[0], "the observation space"),
            "action_space": space_to_json(self._of[1], "the action space"),
            "scalars": self._scalars,
        }
        stats = {name: as_lists(one.total()) for name, one in self._stats.items()}
        for file, value in ((INFO_FILE, info), (STATS_FILE, stats), (OWN_FILE, own)):
            (self._folder / file).write_text(json.dumps(value, indent=4, allow_nan=False), encoding="utf-8")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _array(column: Any, name: str) -> Array:
    if not isinstance(column, np.ndarray):
        raise StorageError(f"{name} holds values that are no arrays, which LeRobot cannot store")
    return column


def _bytes_of(column: Array) -> bytes:
    return np.ascontiguousarray(column).tobytes()


def _arrow_column(column: Array, feature: Mapping[str, Any]) -> Any:
    pa = _pyarrow()
    if feature["dtype"] == "image":
        from PIL import Image

        rows = []
        for image in column:
            buffer = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="PNG")
            rows.append({"bytes": buffer.getvalue(), "path": None})
        return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    shape = tuple(feature["shape"])
    array = pa.array(np.ascontiguousarray(column).reshape(-1))
    if shape == (1,):
        return array
    if len(shape) == 1:
        return pa.FixedSizeListArray.from_arrays(array, shape[0])
    # Nested lists, from the innermost axis on.
    for size in reversed(shape):
        array = pa.ListArray.from_arrays(pa.array(np.arange(0, len(array) + 1, size), pa.int32()), array)
    return array


# -- reading ----------------------------------------------------------------------------------------------------------


class _Dataset:
    """A dataset whose description has been checked.

    Attributes:
        spaces: of observations and actions.
    """

    def __init__(self, folder: Path, of: Spaces | None, bounds_of_stats: bool) -> None:
        self._folder = folder
        info = _json_of(folder / INFO_FILE, "is no LeRobot dataset")
        try:
            version = str(info["codebase_version"])
            if not version.startswith("v3."):
                raise StorageError(
                    f"{folder / INFO_FILE} states the version {version}; v3 is read. Convert the dataset with lerobot"
                )
            self._features = {name: _feature_of_info(name, one) for name, one in info["features"].items()}
            self._episodes = int(info["total_episodes"])
            own = folder / OWN_FILE
            # Without our own file, one number is a scalar.
            self._scalars = [name for name, one in self._features.items() if one["shape"] == (1,)]
            self._own = own.is_file()
            if self._own:
                found = _json_of(own, "is damaged")
                self.spaces: Spaces = space_of_json(found["observation_space"]), space_of_json(found["action_space"])
                self._scalars = found["scalars"]
                if of is not None and (problem := spaces_problem(self.spaces, of)):
                    raise StorageError(f"{folder} has other spaces than those given: {problem}")
            elif of is None:
                self.spaces = self._space("observation", "observation.state"), self._space("action", "action")
            self.spaces = self.spaces if of is None else of
            if bounds_of_stats:
                self.spaces = self.spaces[0], self._with_bounds_of_stats(self.spaces[1])
            self._names = [
                self._checked(name, leaf)
                for space, prefix, single in zip(self.spaces, _PREFIXES, _SINGLES, strict=True)
                for name, leaf in _leaves_of(space, prefix, single)
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise StorageError(f"{folder / INFO_FILE} is damaged, or describes no dataset: {exc!r}") from exc
        self._extras = [name for name in self._features if name.startswith("extras.")]
        for name in (_REWARD, _DONE, _TRUNCATED):
            if name in self._features:
                self._names.append(name)
        self._names += self._extras
        self._videos = [name for name in self._names if self._features[name]["dtype"] == "video"]
        self._fps = 1.0
        if self._videos:
            require_pyav()
            fps = info.get("fps")
            if not isinstance(fps, int | float) or not 0 < fps < math.inf:
                raise StorageError(f"{folder / INFO_FILE} states the rate fps = {fps!r:.40}, which the videos need")
            self._fps = float(fps)
        self._stored = [name for name in self._names if name not in self._videos]
        self._timed = "timestamp" in self._features
        left_out = sorted(self._features.keys() - {*self._names, *_STANDARD})
        if left_out:
            logger.info("%s: the features %s are left out", folder, ", ".join(left_out))
        if _REWARD not in self._features:
            logger.warning("%s has no rewards (the feature %s): they are 0", folder, _REWARD)

    def _space(self, prefix: str, single: str) -> Space[Any]:
        parts = {
            name.removeprefix(f"{prefix}."): _space_of(feature)
            for name, feature in self._features.items()
            if (name == single or name.startswith(f"{prefix}.")) and feature["dtype"] != "string"
        }
        if single == prefix and single in parts:
            return parts[single]
        if not parts:
            raise StorageError(f"{self._folder / INFO_FILE} names no feature {single}")
        if list(parts) == [single.removeprefix(f"{prefix}.")]:
            return next(iter(parts.values()))
        return spaces.Dict(list(parts.items()))

    def _checked(self, name: str, leaf: Space[Any]) -> str:
        """Return the name of a part of the spaces, if the dataset has a feature that can be it."""
        feature = self._features.get(name)
        if feature is None:
            names = ", ".join(one for one in self._features if one.startswith(_PREFIXES))
            raise StorageError(f"{self._folder / INFO_FILE} names no feature {name}; it has {names}")
        shape, target = feature["shape"], leaf.dtype
        dtype = np.dtype(np.uint8 if feature["dtype"] in _PICTURES else feature["dtype"])
        if (
            target is None
            or math.prod(shape) != math.prod(leaf.shape or ())
            or not np.can_cast(dtype, target, "same_kind")
        ):
            raise StorageError(
                f"{self._folder} has the feature {name} of the dtype {feature['dtype']} and the shape {list(shape)}, "
                f"which cannot be of the space {leaf}"
            )
        # Of our own datasets the dtype is exact. Others store float32 where a space may have float64.
        if feature["dtype"] not in _PICTURES and not self._own:
            self._features[name] = {**feature, "dtype": target.name}
        return name

    def _with_bounds_of_stats(self, space: Space[Any]) -> Space[Any]:
        stats = _json_of(self._folder / STATS_FILE, "has no statistics")

        def bounded(path: Any, leaf: Space[Any]) -> Space[Any]:
            if not isinstance(leaf, spaces.Box):
                return leaf
            name = ".".join(["action", *map(str, path)])
            try:
                low, high = (np.reshape(np.asarray(stats[name][key], np.float64), leaf.shape) for key in ("min", "max"))
            except (KeyError, TypeError, ValueError) as exc:
                raise StorageError(f"{self._folder / STATS_FILE} has no bounds of {name}: {exc!r}") from exc
            still = low == high  # a policy needs a width
            low, high = (low - still).astype(leaf.dtype), (high + still).astype(leaf.dtype)
            return completed(leaf, spaces.Box(low, high, leaf.shape, leaf.dtype.type))

        return with_leaves(space, bounded) or space

    def sessions(self, reading: Reading) -> Iterator[Session]:
        notes = self._notes()
        bad = OSError, ValueError, KeyError, TypeError, _pyarrow().ArrowException
        with Videos(self._folder, self._fps) as videos:
            for number, tables in self._tables():
                if number != reading.episodes:
                    raise StorageError(f"found episode {number}; expected is episode {reading.episodes}")
                if number >= len(notes):
                    raise StorageError(f"the files of meta/episodes have {len(notes)} episodes, the data have more")
                read = partial(self._sessions_of, tables, notes[number], reading.ends, videos)
                yield from reading.episode(self._folder, read, bad)
        done = reading.episodes
        if not done == len(notes) == self._episodes:
            raise StorageError(
                f"{self._folder}: the data have {done} episodes, meta/episodes has {len(notes)}, and {INFO_FILE} "
                f"states {self._episodes}; files are missing"
            )

    def _notes(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the rows of `meta/episodes`, each with our own fields."""
        rows: list[dict[str, Any]] = []
        for file in sorted((self._folder / "meta" / "episodes").glob("*/*.parquet")):
            with _opened(file) as opened:
                # A row has ten statistics of each feature, which nothing here needs.
                names = [name for name in opened.schema_arrow.names if not name.startswith("stats/")]
                rows += opened.read(columns=names).to_pylist()
        rows = sorted(rows, key=lambda row: int(row["episode_index"]))
        own: list[dict[str, Any]] = []
        if (self._folder / OWN_EPISODES).is_file():
            with _opened(self._folder / OWN_EPISODES) as opened:
                own = opened.read().to_pylist()
        # lerobot may have recorded further episodes. It gives datasets with others another folder, without our files.
        if [note["length"] for note in own] != [row["length"] for row in rows[: len(own)]]:
            logger.warning("%s: %s describes other episodes, and is not used", self._folder, OWN_EPISODES)
            own = []
        return list(zip_longest(rows, own, fillvalue={}))

    def _tables(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the index and the rows of each episode."""
        pending: list[Any] = []
        number = -1
        for file in sorted((self._folder / "data").glob("*/*.parquet")):
            with _opened(file) as opened:
                for group in range(opened.num_row_groups):
                    table = _read(file, opened, group, [*self._stored, *_INDICES[: 2 + self._timed]])
                    episodes = table.column("episode_index").to_numpy()
                    starts = [0, *(np.flatnonzero(np.diff(episodes)) + 1).tolist()]
                    for start, stop in zip(starts, [*starts[1:], len(episodes)], strict=True):
                        if start == stop:
                            continue
                        if pending and int(episodes[start]) != number:
                            yield number, pending
                            pending = []
                        number = int(episodes[start])
                        pending.append(table.slice(start, stop - start))
        if pending:
            yield number, pending

    def _joined(self, tables: list[Any], row: Mapping[str, Any], videos: Videos) -> dict[str, Array]:
        table = _pyarrow().concat_tables(tables)
        frames = table.column("frame_index").to_numpy()
        # Rows may lie in several row groups and files; what is missing between them shows here.
        if not np.array_equal(frames, np.arange(len(frames))):
            raise ValueError("frames are missing or out of order")
        columns = {name: _numpy_column(table.column(name), name, self._features[name]) for name in self._stored}
        columns |= {name: columns[name].reshape(len(frames)) for name in self._scalars if name in columns}
        times_s = (
            table.column("timestamp").to_numpy().reshape(-1) if self._timed and self._videos else frames / self._fps
        )
        for name in self._videos:
            columns[name] = videos.frames(name, row, times_s, self._features[name]["shape"])
        return columns

    def _sessions_of(
        self, tables: list[Any], notes: tuple[Mapping[str, Any], Mapping[str, Any]], ends: InnerEnds, videos: Videos
    ) -> Iterator[Session]:
        row, own = notes
        columns = self._joined(tables, row, videos)
        observations = [name for name, _ in _leaves_of(self.spaces[0], "observation", "observation.state")]
        ticks = len(columns[observations[0]])
        if ticks != int(row["length"]):
            raise ValueError(f"it has {ticks} frames, and meta/episodes states {row['length']}")
        for name, column in columns.items():
            if column.dtype.kind == "f" and not np.isfinite(column).all():
                raise ValueError(f"{name} of frame {np.argwhere(~np.isfinite(column))[0][0]} is not finite")
        done, truncated = (
            columns[name].astype(np.bool_) if name in columns else np.zeros(ticks, np.bool_)
            for name in (_DONE, _TRUNCATED)
        )
        terminated = done & ~truncated
        last_known = f"final/{observations[0]}" in own
        if last_known:
            terminated[-1], truncated[-1] = own["terminated"], own["truncated"]
        for name in observations:
            last = columns[name][-1:]
            if last_known:
                last = np.frombuffer(own[f"final/{name}"], last.dtype).reshape(last.shape)
            columns[name] = np.concatenate([columns[name], last])
        whole = Session(
            observations=_rebuilt(self.spaces[0], "observation", "observation.state", columns),
            actions=_rebuilt(self.spaces[1], "action", "action", columns),
            rewards=columns[_REWARD] if _REWARD in columns else np.zeros(ticks),
            extras={name.removeprefix("extras."): columns[name] for name in self._extras},
            first_step=int(own.get("first_step") or 0),
            seed=None if own.get("seed") is None else int(own["seed"]),
            source=str(own.get("source") or ""),
            version=tuple(map(int, str(own.get("version") or "0 0").split())),  # type: ignore[arg-type]
        )
        yield from ends.split(whole, terminated, truncated, last_known=last_known)


def _json_of(file: Path, problem: str) -> Any:
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise StorageError(f"{file} has more than {MAX_JSON_BYTES} bytes")
        value = json.loads(read_whole(file))
    except (OSError, ValueError, RecursionError) as exc:
        raise StorageError(f"{file.parent.parent} {problem}: {file} cannot be read: {exc}") from exc
    if not isinstance(value, dict):
        raise StorageError(f"{file} is damaged: it holds no object")
    return value


def _opened(file: Path) -> Any:
    try:
        return _pyarrow().parquet.ParquetFile(file, page_checksum_verification=True)
    except (OSError, ValueError, _pyarrow().ArrowException) as exc:
        raise StorageError(f"{file} is damaged, or cut short: {exc}") from exc


def _read(file: Path, opened: Any, group: int, names: list[str]) -> Any:
    missing = sorted(set(names) - set(opened.schema_arrow.names))
    if missing:
        raise StorageError(f"{file} lacks the columns {', '.join(missing)}, which {INFO_FILE} names")
    try:
        return opened.read_row_group(group, columns=names)
    except (OSError, ValueError, _pyarrow().ArrowException) as exc:
        raise StorageError(f"{file} is damaged: row group {group} cannot be read: {exc}") from exc


def _numpy_column(column: Any, name: str, feature: Mapping[str, Any]) -> Array:
    shape = feature["shape"]
    if column.null_count:
        raise ValueError(f"{name} lacks values")
    if feature["dtype"] == "image":
        return np.stack([_image(value, name, shape) for value in column.to_pylist()])
    array, types = column.combine_chunks(), _pyarrow().types
    # Writers differ: fixed lists, lists and large lists, nested to any depth. The shape is that of the feature.
    while types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        array = array.flatten()
    found: Array = array.to_numpy(zero_copy_only=False).astype(np.dtype(feature["dtype"]), copy=False)
    return found.reshape(len(column), *shape)


def _image(value: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Array:
    from PIL import Image

    if value.get("bytes") is None:
        raise ValueError(f"{name} refers to the file {value.get('path')}; only images in the Parquet files are read")
    try:
        image = Image.open(io.BytesIO(value["bytes"]), formats=["PNG", "JPEG"])
        if image.size != (shape[1], shape[0]):  # before it is decoded: a small file may hold a huge image
            raise ValueError(f"its size is {image.size}, and the feature has the shape {list(shape)}")
        return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as exc:
        raise ValueError(f"an image of {name} cannot be read: {exc}") from exc


FORMAT = SessionFormat(
    title="LeRobot",
    sign=INFO_FILE,
    needs="the extra `lerobot`, or `lerobot-video` if it has videos",
    recognizes=is_lerobot,
    read=read_lerobot,
    write=write_lerobot,
    read_options={
        "--bounds-of-stats": {
            "action": "store_true",
            "help": "actions without bounds get those of the values in meta/stats.json",
        }
    },
    write_options={
        "--fps": {"type": int, "metavar": "N", "help": "ticks per second (default: 30)"},
        "--task": {"metavar": "TEXT", "help": "text of the task (default: recorded)"},
    },
    bounds="--bounds-of-stats",
)
