"""Datasets of Minari, read and written with its own package (extra `minari`).

A dataset is a folder `data` with `metadata.json` and the episodes. Ours have the format HDF5 with images as arrays, so
nothing is lost. Fields of a session that Minari does not know are under `tmrl_core` in the metadata of an episode, and
extras under `tmrl_core` in its infos. Infos are kept if each observation has the same ones, as arrays or numbers. In
datasets of others, infos may begin with the first step, and be text.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from tmrl_core.errors import MissingExtraError, StorageError
from tmrl_core.samples.columns import Array, leaves
from tmrl_core.sessions.formats import SessionFormat
from tmrl_core.sessions.reading import Reading
from tmrl_core.sessions.session import Session
from tmrl_core.sessions.session_files import Spaces, spaces_problem
from tmrl_core.sessions.spaces import space_of_json, space_to_json
from tmrl_core.sessions.whole_folder import whole_folder
from tmrl_core.space_tree import space_leaves, with_leaves

logger = logging.getLogger(__name__)

OWN = "tmrl_core"
METADATA_FILE = "metadata.json"


def is_minari(path: str | os.PathLike[str]) -> bool:
    """Return True for a folder with a Minari dataset."""
    return _data_folder(path) is not None


def read_minari(
    path: str | os.PathLike[str], *, of: Spaces | None = None, skip_bad: bool = False
) -> tuple[Spaces, Iterator[Session]]:
    """Return the spaces and the sessions of a dataset.

    All episodes are read and checked before the first session is returned. One with ends inside becomes several
    sessions (inner_ends.py).

    Args:
        path: the dataset's folder, or the folder `data` in it.
        of: spaces of observations and actions, with bounds that the dataset does not state; None: the dataset's. Text
            in observations is left out.
        skip_bad: leave out inconsistent episodes, with a warning, instead of refusing the dataset.

    Raises:
        StorageError: there is no dataset, it is damaged, or an episode is inconsistent; the message names it. Or its
            actions, or all its observations, are text.
        MissingExtraError: Minari is not installed.
    """
    folder = _data_folder(path)
    if folder is None:
        raise StorageError(
            f"{path} is not a Minari dataset: there is no {METADATA_FILE} in it or in its `data`. Check the path"
        )
    _minari()
    from minari.dataset.minari_storage import MinariStorage

    try:
        metadata = MinariStorage.read_raw_metadata(folder)
        # Minari would make the environment from its specification to learn its spaces, which may run any code.
        if not {"observation_space", "action_space"} <= metadata.keys():
            raise StorageError(
                f"{folder / METADATA_FILE} names no spaces. Making its environment could run any code, so save the "
                "dataset anew with Minari, which adds them"
            )
        storage = MinariStorage.read(folder)
        # Ours are exact: bounds, dtypes and the order of keys as they were recorded.
        own = metadata.get(OWN)
        if own is None:
            stored = storage.observation_space, storage.action_space
        else:
            stored = space_of_json(own["observation_space"]), space_of_json(own["action_space"])
    except ImportError as exc:
        raise _missing(exc) from exc
    except (OSError, ValueError, KeyError, TypeError, AssertionError, AttributeError) as exc:
        raise StorageError(f"{folder} cannot be read: {exc}") from exc
    observations, text = _without_text(stored[0]), _text_in(stored[0], "observation")
    if observations is None or _text_in(stored[1], "action"):
        raise StorageError(f"{folder} has {'actions' if observations else 'observations'} of text, which are not read")
    found = observations, stored[1]
    if of is not None:
        if problem := spaces_problem(found, of):
            raise StorageError(f"{folder} has other spaces than those given: {problem}")
        found = of
    reading = Reading(skip_bad)
    for _ in _episodes(storage, stored, folder, reading):
        pass
    reading.left_out |= dict.fromkeys((f"the text {name}" for name in text), reading.episodes)
    reading.finish(path)
    return found, _episodes(storage, stored, folder, Reading(skip_bad))


def write_minari(
    path: str | os.PathLike[str], sessions: Iterable[Session], of: Spaces, *, dataset_id: str | None = None
) -> int:
    """Write sessions as a new dataset; return their number. `path` appears when the dataset is complete.

    Args:
        path: the dataset's folder. In Minari's folder of datasets (`MINARI_DATASETS_PATH`), `minari.load_dataset` finds
            it by its id if both are the same.
        sessions: at least one.
        of: spaces of observations and actions.
        dataset_id: `name-v0`, in namespaces if wanted; None: from the name of the folder.

    Raises:
        StorageError: `path` exists, there is no session, or a session cannot be written.
        MissingExtraError: Minari is not installed.
    """
    minari = _minari()
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    target = Path(path)
    notes: list[dict[str, Any]] = []
    without_infos: list[str] = []

    # One at a time: Minari writes each as it comes, so no session but one is in memory.
    def buffers() -> Iterator[Any]:
        for session in sessions:
            notes.append(_notes(session))
            try:
                infos = _info_columns(session)
            except ValueError as exc:
                infos = {}
                without_infos.append(f"session {len(notes) - 1}: {exc}")
            yield EpisodeBuffer(**_episode(session, len(notes) - 1, infos))

    with whole_folder(target) as folder:
        try:
            storage = MinariStorage.new(folder / "data", *of, data_format="hdf5", jpeg_encoding=False)
            storage.update_metadata(
                {
                    "dataset_id": dataset_id or _id_of(target.name),
                    "minari_version": minari.__version__,
                    OWN: {
                        "observation_space": space_to_json(of[0], "the observation space"),
                        "action_space": space_to_json(of[1], "the action space"),
                    },
                }
            )
            storage.update_episodes(buffers())
            storage.update_episode_metadata(notes)
        except ImportError as exc:
            raise _missing(exc) from exc
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as exc:
            raise StorageError(f"session {max(len(notes) - 1, 0)} cannot be written to {target}: {exc}") from exc
        if not notes:
            raise StorageError(f"there is no session to write to {target}")
    if without_infos:
        logger.warning(
            "%s: the infos of %d of %d sessions are left out, because Minari stores columns of numbers only (first %s)",
            target,
            len(without_infos),
            len(notes),
            without_infos[0],
        )
    return len(notes)


def _minari() -> Any:
    try:
        import minari
    except ImportError as exc:
        raise _missing(exc) from exc
    return minari


def _missing(exc: ImportError) -> MissingExtraError:
    return MissingExtraError(exc.name or str(exc), "minari", "a Minari dataset")


def _data_folder(path: str | os.PathLike[str]) -> Path | None:
    folders = (Path(path), Path(path) / "data")
    return next((folder for folder in folders if (folder / METADATA_FILE).is_file()), None)


def _id_of(name: str) -> str:
    plain = re.sub(r"[^-_\w]", "_", name)
    return plain if re.search(r"-v\d+$", plain) else f"{plain}-v0"


# -- reading ----------------------------------------------------------------------------------------------------------


def _without_text(space: Space[Any]) -> Space[Any] | None:
    """Return a space without its parts of text; None: nothing is left."""
    return with_leaves(space, lambda _, leaf: None if isinstance(leaf, spaces.Text) else leaf)


def _text_in(space: Space[Any], name: str) -> list[str]:
    return ["/".join([name, *map(str, path)]) for path, leaf in space_leaves(space) if isinstance(leaf, spaces.Text)]


def _episodes(storage: Any, of: Spaces, folder: Path, reading: Reading) -> Iterator[Session]:
    def read(number: int) -> Iterator[Session]:
        (episode,), (notes,) = storage.get_episodes([number]), storage.get_episode_metadata([number])
        return _sessions_of(episode, notes, of, reading)

    # RuntimeError is h5py's for a damaged file.
    bad = OSError, RuntimeError, ValueError, KeyError, TypeError, AssertionError
    for number in range(int(storage.total_episodes)):
        try:
            yield from reading.episode(folder, partial(read, number), bad)
        except ImportError as exc:
            raise _missing(exc) from exc


def _sessions_of(
    episode: Mapping[str, Any], notes: Mapping[str, Any], of: Spaces, reading: Reading
) -> Iterator[Session]:
    rewards = np.asarray(episode["rewards"])
    ticks = len(rewards)
    terminated, truncated = (np.asarray(episode[name], np.bool_) for name in ("terminations", "truncations"))
    for name, flags in (("terminations", terminated), ("truncations", truncated)):
        if flags.shape != (ticks,):
            raise ValueError(f"{name} has the shape {list(flags.shape)}, and there are {ticks} rewards")
    infos = dict(episode["infos"] or {})
    extras = infos.pop(OWN, {})
    own = notes.get(OWN, {})
    seed = notes.get("seed")
    session = Session(
        observations=_tree(episode["observations"], of[0]),
        actions=_tree(episode["actions"], of[1]),
        rewards=rewards,
        extras=extras,
        infos=_infos_of(infos, ticks, reading),
        first_step=int(own.get("first_step", 0)),
        seed=None if seed is None else int(seed),
        source=str(own.get("source", "")),
        version=tuple(map(int, str(own.get("version", "0 0")).split())),  # type: ignore[arg-type]
    )
    for name, tree in (("observations", session.observations), ("actions", session.actions)):
        for column in leaves(tree):
            if isinstance(column, np.ndarray) and column.dtype.kind == "f" and not np.isfinite(column).all():
                raise ValueError(f"{name} at step {np.argwhere(~np.isfinite(column))[0][0]} are not finite")
    if not np.isfinite(rewards).all():
        raise ValueError(f"the reward of step {np.argwhere(~np.isfinite(rewards))[0][0]} is not finite")
    yield from reading.ends.split(session, terminated, truncated, last_known=True)


def _tree(value: Any, space: Space[Any]) -> Any:
    """Return columns in the order of the space; HDF5 sorts keys."""
    if isinstance(space, spaces.Dict):
        return {
            key: _tree(value[key], inner) for key, inner in space.spaces.items() if _without_text(inner) is not None
        }
    if isinstance(space, spaces.Tuple):
        both = zip(value, space.spaces, strict=True)
        return tuple(_tree(child, inner) for child, inner in both if _without_text(inner) is not None)
    column = np.asarray(value)
    if space.shape is None or column.shape[1:] != tuple(space.shape):
        raise ValueError(f"found columns of the shape {list(column.shape)} for the space {space}")
    return column


def _infos_of(columns: Mapping[str, Any], ticks: int, reading: Reading) -> dict[int, dict[Any, Any]]:
    """Return the infos by observation. Columns with a row for each step are those of the observations after them."""
    infos: dict[int, dict[Any, Any]] = {}
    for path, column in _columns_in(columns, ()):
        rows = len(column) if np.ndim(column) else 0
        # Datasets of others may have no infos of the reset, so theirs begin with the first step.
        if rows not in (ticks, ticks + 1):
            reading.leave_out(f"the infos {'/'.join(path)}, whose rows are neither those of steps nor of observations")
            continue
        values = _with_text(column) if isinstance(column, np.ndarray) and column.dtype.kind in "SO" else column
        for number, value in enumerate(values, ticks + 1 - rows):
            info = infos.setdefault(number, {})
            for key in path[:-1]:
                info = info.setdefault(key, {})
            info[path[-1]] = value
    return dict(sorted(infos.items()))


def _columns_in(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, Mapping):
        for key, child in tree.items():
            yield from _columns_in(child, (*path, str(key)))
    else:
        yield path, tree


def _with_text(column: Any) -> Any:
    """Return a column, or a value in it, with text in place of the bytes that HDF5 returns."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "SO":
        return [_with_text(value) for value in column.tolist()]
    if isinstance(column, list):
        return [_with_text(value) for value in column]
    try:
        return column.decode() if isinstance(column, bytes) else column
    except UnicodeDecodeError:
        return column


# -- writing ----------------------------------------------------------------------------------------------------------


def _episode(session: Session, number: int, infos: dict[str, Any]) -> dict[str, Any]:
    ticks = len(session)

    def flags(last: bool) -> Array:
        values = np.zeros(ticks, np.bool_)
        values[-1] = last
        return values

    for name, tree in (("observations", session.observations), ("actions", session.actions), *session.extras.items()):
        if any(isinstance(column, list) for column in leaves(tree)):
            raise StorageError(f"session {number}: {name} holds values that are no arrays, which Minari cannot store")
    if session.extras:
        infos[OWN] = dict(session.extras)
    return {
        "seed": session.seed,
        "observations": session.observations,
        "actions": session.actions,
        "rewards": session.rewards,
        "terminations": flags(session.terminated),
        "truncations": flags(session.truncated),
        "infos": infos,
    }


def _notes(session: Session) -> dict[str, Any]:
    return {
        f"{OWN}/first_step": session.first_step,
        f"{OWN}/source": session.source,
        f"{OWN}/version": " ".join(map(str, session.version)),
    }


def _info_columns(session: Session) -> dict[str, Any]:
    """Return the infos that all observations have, as columns.

    Raises:
        ValueError: they are no columns of numbers.
    """
    if not session.infos:
        return {}

    def joined(rows: list[Any]) -> Any:
        if isinstance(rows[0], dict):
            if any(not isinstance(row, dict) or row.keys() != rows[0].keys() for row in rows):
                raise ValueError("keys differ")
            return {str(key): joined([row[key] for row in rows]) for key in rows[0]}
        column = np.stack([np.asarray(row) for row in rows])
        if column.dtype.kind not in "biuf":
            raise ValueError("no numbers")
        return column

    if len(session.infos) != len(session) + 1:
        raise ValueError("not all observations have infos")
    columns: dict[str, Any] = joined([session.infos[row] for row in range(len(session) + 1)])
    return columns


FORMAT = SessionFormat(
    title="Minari",
    sign=f"{METADATA_FILE}, in the folder or in its folder `data`",
    needs="the extra `minari`",
    recognizes=is_minari,
    read=read_minari,
    write=write_minari,
)
