"""Minari datasets: what Minari writes is read, what is written Minari reads, and back again without a difference."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.sessions.made_sessions import assert_same, make_session
from tmrl_core.errors import MissingExtraError, StorageError
from tmrl_core.sessions.minari.dataset import is_minari, read_minari, write_minari
from tmrl_core.sessions.session import Session
from tmrl_core.sessions.session_files import Spaces

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")
from minari.data_collector import EpisodeBuffer  # noqa: E402

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (40, 32, 3), np.uint8)
TREE = spaces.Dict([("b", spaces.Box(-np.inf, np.inf, (2,), np.float32)), ("a", spaces.Discrete(5))])
NESTED = spaces.Dict([("z", IMAGE), ("a", spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (2, 2), np.float64)]))])


@pytest.mark.parametrize(
    "of",
    [(BOX, BOX), (IMAGE, spaces.Discrete(4)), (NESTED, spaces.Tuple([BOX, spaces.MultiBinary(3)]))],
    ids=["vectors", "images", "nested"],
)
def test_sessions_come_back_without_a_difference(tmp_path: Path, of: Spaces) -> None:
    logp = np.linspace(-1, 0, 4).astype(np.float32)
    given = [
        make_session(of, 5, 1, terminated=True, seed=7, source="robot7", version=(3, 12)),
        make_session(of, 1, 2, truncated=True, first_step=9),
        make_session(of, 4, 3, extras={"logp": logp, "state.h": np.ones((4, 8), np.float16)}),
        make_session(of, 2, 4, infos={row: {"in": {"y": np.ones(2)}, "x": np.float64(row)} for row in range(3)}),
    ]
    assert write_minari(tmp_path / "made", given, of) == 4
    assert is_minari(tmp_path / "made")
    found_spaces, found = read_minari(tmp_path / "made")
    assert found_spaces == of
    for one, other in zip(found, given, strict=True):
        assert_same(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_minari_reads_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    given = [make_session((BOX, BOX), ticks, ticks, truncated=True, seed=ticks) for ticks in (3, 8)]
    write_minari(tmp_path / "robot-v2", given, (BOX, BOX))
    dataset = minari.load_dataset("robot-v2")
    assert (dataset.total_episodes, dataset.total_steps, dataset.id) == (2, 11, "robot-v2")
    assert (dataset.observation_space, dataset.action_space) == (BOX, BOX)
    for episode, session in zip(dataset.iterate_episodes(), given, strict=True):
        np.testing.assert_array_equal(episode.observations, session.observations)
        np.testing.assert_array_equal(episode.actions, session.actions)
        np.testing.assert_array_equal(episode.rewards, session.rewards)
        assert episode.truncations.tolist() == [False] * (len(session) - 1) + [True]
        assert not episode.terminations.any()


def theirs(path: Path, monkeypatch: pytest.MonkeyPatch, *more: dict[str, Any], **changed: Any) -> Path:
    """A dataset that Minari's own function makes: an episode with changes, and one for each of `more`."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path))
    draw = np.random.default_rng(0)
    observation_space = changed.pop("observation_space", None)
    episode = {
        "observations": {"b": draw.standard_normal((5, 2)).astype(np.float32), "a": np.arange(5)},
        "actions": draw.standard_normal((4, 1)).astype(np.float32),
        "rewards": [0.0, 1.0, 2.0, 3.0],
        "terminations": [False, False, False, True],
        "truncations": [False] * 4,
        "infos": {"distance": np.arange(5.0)},
        "seed": 11,
        **changed,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "theirs-v0",
            [EpisodeBuffer(**{**episode, **copy.deepcopy(another)}) for another in ({}, *more)],
            observation_space=observation_space or TREE,
            action_space=spaces.Box(-1, 1, (1,), np.float32),
        )
    return path / "theirs-v0"


def test_what_minari_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = theirs(tmp_path, monkeypatch)
    for path in (folder, folder / "data"):
        (observation_space, _), found = read_minari(path)
        assert isinstance(observation_space, spaces.Dict)
        (session,) = found
        assert isinstance(session.observations, dict)
        assert list(session.observations) == ["a", "b"]  # Minari sorts them
        assert session.rewards.tolist() == [0, 1, 2, 3]
        assert (session.terminated, session.truncated, session.seed, len(session)) == (True, False, 11, 4)
        assert session.infos[4] == {"distance": 4.0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"actions": np.zeros((3, 1), np.float32)},
            "episode 0.* the actions of a session with 4 rewards have 4 rows, found 3",
        ),
        ({"rewards": [0.0, np.nan, 1.0, 1.0]}, "episode 0.* the reward of step 1 is not finite"),
        ({"truncations": [False] * 3}, r"episode 0.* truncations has the shape \[3\], and there are 4 rewards"),
        ({"observations": {"b": np.zeros((5, 3)), "a": np.arange(5)}}, "episode 0.* found columns of the shape"),
    ],
)
def test_wrong_episodes_are_named_before_any_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], message: str
) -> None:
    folder = theirs(tmp_path, monkeypatch, **changed)
    with pytest.raises(StorageError, match=message):
        read_minari(folder)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"terminations": [False, True, False, True]},
            [([0, 1, 1], [1, 1], True, False), ([2, 3, 4], [1, 1], True, False)],
        ),
        (
            {"terminations": [False] * 4, "truncations": [False, True, False, True]},
            [([0, 1], [1], False, True), ([2, 3, 4], [1, 1], False, True)],
        ),
        (
            {"terminations": [True, True, False, False], "truncations": [True] + [False] * 3},
            [([0, 0], [1], True, True), ([2, 3, 4], [1, 1], False, False)],
        ),
    ],
)
def test_ends_inside_an_episode_split_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], expected: list[Any]
) -> None:
    _, found = read_minari(theirs(tmp_path, monkeypatch, rewards=[1.0] * 4, **changed))
    sessions = list(found)
    observations: list[Any] = [session.observations for session in sessions]
    assert [
        (tree["a"].tolist(), session.rewards.tolist(), session.terminated, session.truncated)
        for tree, session in zip(observations, sessions, strict=True)
    ] == expected
    assert [(session.seed, session.first_step) for session in sessions] == [(11, 0), (None, 0)]


def test_infos_of_steps_are_those_of_the_observations_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    infos = {
        "distance": np.arange(5.0),
        "success": np.array([False, False, False, True]),
        "goal": {"name": ["a", "b", "c", "ä"]},
        "odd": np.arange(3),
        "number": 7,
    }
    one = {"infos": {"odd": np.arange(9), "success": np.zeros(4, bool)}}
    first, second = read_minari(theirs(tmp_path, monkeypatch, one, infos=infos))[1]
    assert first.infos[0] == {"distance": 0}
    assert first.infos[4] == {"distance": 4, "success": True, "goal": {"name": "ä"}}
    assert (list(first.infos), list(second.infos)) == ([0, 1, 2, 3, 4], [1, 2, 3, 4])
    (told,) = [record.getMessage() for record in caplog.records]
    assert "the infos odd, whose rows are neither those of steps nor of observations (in 2 of 2 episodes)" in told
    assert "the infos number, whose rows" in told


def test_text_in_observations_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    space = spaces.Dict(a=spaces.Discrete(5), mission=spaces.Text(9), c=spaces.Tuple([spaces.Text(3), TREE["b"]]))
    rows = {"a": np.arange(5), "mission": ["go"] * 5, "c": (["x"] * 5, np.ones((5, 2), np.float32))}
    (observation_space, _), found = read_minari(
        theirs(tmp_path, monkeypatch, observations=rows, observation_space=space)
    )
    assert observation_space == spaces.Dict(a=spaces.Discrete(5), c=spaces.Tuple([TREE["b"]]))
    observations: Any = next(found).observations
    assert (list(observations), len(observations["c"]), observations["c"][0].shape) == (["a", "c"], 1, (5, 2))
    assert "the text observation/c/0 (in 1 of 1 episodes); the text observation/mission (in 1" in caplog.text


def test_observations_of_text_alone_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = theirs(tmp_path, monkeypatch, observations=["go"] * 5, observation_space=spaces.Text(9))
    with pytest.raises(StorageError, match="has observations of text, which are not read"):
        read_minari(folder)


def test_bad_episodes_are_skipped_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"rewards": [0.0, np.nan, 1.0, 1.0]}, {"actions": np.zeros((3, 1), np.float32)}
    folder = theirs(tmp_path / "some", monkeypatch, *wrong, {"rewards": [5.0] * 4})
    with pytest.raises(StorageError, match="episode 1, cannot be read: the reward of step 1 is not finite"):
        read_minari(folder)
    _, found = read_minari(folder, skip_bad=True)
    assert [session.episode_return for session in found] == [6, 20]
    assert "2 of 4 episodes are left out because they cannot be read; the first: episode 1, cannot be" in caplog.text
    with pytest.raises(StorageError, match="none of its 1 episodes can be read; the first: episode 0"):
        read_minari(theirs(tmp_path / "all", monkeypatch, **wrong[0]), skip_bad=True)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, part: float) -> None:
    folder = tmp_path / "made"
    write_minari(folder, [make_session((BOX, BOX), 50, seed) for seed in range(5)], (BOX, BOX))
    file = folder / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with pytest.raises(StorageError, match="made/data, episode 0, cannot be read"):
        read_minari(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"data_format": "hdf5"', '{"observation_space": 1, "action_space": 1}']
)
def test_damaged_metadata_are_named(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "made"
    write_minari(folder, [make_session((BOX, BOX), 5, 1)], (BOX, BOX))
    (folder / "data" / "metadata.json").write_text(text)
    with pytest.raises(StorageError, match="made/data"):
        read_minari(folder)


def test_given_spaces_bound_those_of_a_dataset(tmp_path: Path) -> None:
    write_minari(tmp_path / "made", [make_session((BOX, BOX), 3, 1)], (BOX, BOX))
    bounds = spaces.Box(-5, 5, (3,), np.float32)
    assert read_minari(tmp_path / "made", of=(BOX, bounds))[0] == (BOX, bounds)
    with pytest.raises(StorageError, match="has other spaces than those given: its observations are"):
        read_minari(tmp_path / "made", of=(IMAGE, bounds))


def test_no_environment_is_made_for_its_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    write_minari(folder, [make_session((BOX, BOX), 5, 1)], (BOX, BOX))
    file = folder / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["observation_space"]
    metadata["env_spec"] = json.dumps({"id": "x-v0", "entry_point": "os:abort"})
    file.write_text(json.dumps(metadata))
    with pytest.raises(StorageError, match=r"names no spaces\. Making its environment could run any code"):
        read_minari(folder)


def test_other_folders_are_no_datasets(tmp_path: Path) -> None:
    assert not is_minari(tmp_path)
    with pytest.raises(StorageError, match=r"is not a Minari dataset: there is no metadata\.json"):
        read_minari(tmp_path)


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def sessions() -> Any:
        yield make_session((BOX, BOX), 5, 1)
        raise StorageError("the source is damaged")

    with pytest.raises(StorageError, match="the source is damaged"):
        write_minari(tmp_path / "made", sessions(), (BOX, BOX))
    with pytest.raises(StorageError, match="there is no session to write"):
        write_minari(tmp_path / "made", [], (BOX, BOX))
    text = Session(observations=["a", "b"], actions=np.zeros((1, 3)), rewards=np.zeros(1))
    with pytest.raises(StorageError, match="session 0: observations holds values that are no arrays"):
        write_minari(tmp_path / "made", [text], (BOX, BOX))
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="exists already"):
        write_minari(tmp_path, [make_session((BOX, BOX), 5, 1)], (BOX, BOX))


def test_infos_that_are_no_columns_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = {row: {"speed": 1.0 * row} for row in range(4)}
    given: list[Any] = [whole, {}, {2: {"goal": True}}, whole, {key: {"kind": "text"} for key in range(4)}]
    write_minari(tmp_path / "made", [make_session((BOX, BOX), 3, 1, infos=infos) for infos in given], (BOX, BOX))
    assert [len(session.infos) for session in read_minari(tmp_path / "made")[1]] == [4, 0, 0, 4, 0]
    (told,) = [record.getMessage() for record in caplog.records]
    assert "the infos of 2 of 5 sessions are left out" in told
    assert "(first session 2: not all observations have infos)" in told


def test_without_minari_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[minari\]"):
        write_minari(tmp_path / "made", [], (BOX, BOX))
