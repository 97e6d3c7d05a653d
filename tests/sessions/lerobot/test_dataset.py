"""LeRobot datasets: back again without a difference, the documented form, datasets of others, and damaged files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.sessions.made_sessions import assert_same, make_session
from tmrl_core.errors import MissingExtraError, StorageError
from tmrl_core.sessions.lerobot import dataset
from tmrl_core.sessions.lerobot.dataset import is_lerobot, read_lerobot, write_lerobot
from tmrl_core.sessions.lerobot.stats import QUANTILES
from tmrl_core.sessions.session import Session
from tmrl_core.sessions.session_files import Spaces

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (6, 8, 3), np.uint8)
NESTED = spaces.Dict([("z", IMAGE), ("a", spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (2, 2), np.float64)]))])
ONE = spaces.Box(-1, 1, (1,), np.float16)


@pytest.mark.parametrize(
    "of",
    [
        (BOX, BOX),
        (IMAGE, spaces.Discrete(4)),
        (NESTED, spaces.Tuple([ONE, spaces.MultiBinary(3)])),
        (spaces.Dict(x=ONE), spaces.Box(0, 9, (2, 2, 2), np.uint8)),
    ],
    ids=["vectors", "images", "nested", "other"],
)
def test_sessions_come_back_without_a_difference(tmp_path: Path, of: Spaces) -> None:
    def extras(ticks: int) -> dict[str, Any]:
        return {"logp": np.linspace(-1, 0, ticks).astype(np.float32), "state.h": np.ones((ticks, 1), np.float32)}

    given = [
        make_session(of, 5, 1, terminated=True, seed=7, source="robot7", version=(3, 12), extras=extras(5)),
        make_session(of, 1, 2, truncated=True, first_step=9, extras=extras(1)),
        make_session(of, 4, 3, extras=extras(4)),
        make_session(of, 2, 4, terminated=True, truncated=True, extras=extras(2)),
    ]
    assert write_lerobot(tmp_path / "made", given, of) == 4
    assert is_lerobot(tmp_path / "made")
    found_spaces, found = read_lerobot(tmp_path / "made")
    assert found_spaces == of
    for one, other in zip(found, given, strict=True):
        assert_same(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "FILE_BYTES", 1)
    monkeypatch.setattr(dataset, "FILES_IN_CHUNK", 2)
    monkeypatch.setattr(dataset, "ROWS_AT_ONCE", 2)
    given = [make_session((BOX, BOX), 3, number, seed=7 if number == 3 else None) for number in range(5)]
    write_lerobot(tmp_path / "made", given, (BOX, BOX))
    names = sorted(str(path.relative_to(tmp_path / "made")) for path in (tmp_path / "made").glob("data/*/*"))
    assert names[0] == "data/chunk-000/file-000.parquet"
    assert names[-1] == "data/chunk-002/file-000.parquet"
    for one, other in zip(read_lerobot(tmp_path / "made")[1], given, strict=True):
        assert_same(one, other)
    rows = pq.read_table(tmp_path / "made" / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(row["data/chunk_index"], row["data/file_index"]) for row in rows] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
    ]


def test_the_files_have_the_documented_form(tmp_path: Path) -> None:
    of = spaces.Dict(state=BOX, camera=IMAGE), ONE
    given = [make_session(of, ticks, ticks, terminated=True) for ticks in (2, 3)]
    write_lerobot(tmp_path / "made", given, of, fps=20, task="push the block")
    info = json.loads((tmp_path / "made/meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["splits"]) == ("v3.0", 20, {"train": "0:2"})
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (2, 5, 1)
    assert info["features"]["observation.camera"]["dtype"] == "image"
    assert info["features"]["observation.state"] == {"dtype": "float32", "shape": [3], "names": None}
    assert info["features"]["action"] == {"dtype": "float16", "shape": [1], "names": None}
    table = pq.read_table(tmp_path / "made/data/chunk-000/file-000.parquet")
    assert set(table.column_names) == set(info["features"])
    assert table.column("episode_index").to_pylist() == [0, 0, 1, 1, 1]
    assert table.column("frame_index").to_pylist() == [0, 1, 0, 1, 2]
    assert table.column("index").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("next.done").to_pylist() == [False, True, False, False, True]
    np.testing.assert_allclose(table.column("timestamp").to_pylist(), np.array([0, 1, 0, 1, 2]) / 20)
    assert table.schema.field("observation.state").type == pa.list_(pa.float32(), 3)
    assert table.schema.field("observation.camera").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    image = Image.open(io.BytesIO(table.column("observation.camera")[0].as_py()["bytes"]))
    observations: Any = given[0].observations
    np.testing.assert_array_equal(np.asarray(image), observations["camera"][0])
    (first, second) = pq.read_table(tmp_path / "made/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert (first["length"], first["dataset_from_index"], first["dataset_to_index"]) == (2, 0, 2)
    assert (second["episode_index"], second["dataset_to_index"], second["tasks"]) == (1, 5, ["push the block"])
    tasks = pq.read_table(tmp_path / "made/meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0], "task": ["push the block"]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_the_statistics_are_those_of_all_frames(tmp_path: Path) -> None:
    of = spaces.Dict(state=BOX, camera=IMAGE), spaces.Discrete(4)
    given = [make_session(of, ticks, ticks) for ticks in (2, 30)]
    write_lerobot(tmp_path / "made", given, of)
    stats = json.loads((tmp_path / "made/meta/stats.json").read_text())
    frames: list[Any] = [session.observations for session in given]
    states = np.concatenate([frame["state"][:-1] for frame in frames]).astype(np.float64)
    cameras = np.concatenate([frame["camera"][:-1] for frame in frames]) / 255
    rewards = np.concatenate([session.rewards for session in given])
    for name, values, axes in (
        ("observation.state", states, 0),
        ("observation.camera", cameras, (0, 1, 2)),
        ("next.reward", rewards, 0),
    ):
        found = stats[name]
        for key, function in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
            np.testing.assert_allclose(np.ravel(found[key]), np.ravel(function(values, axis=axes)), atol=1e-6)
        for key, part in QUANTILES.items():
            np.testing.assert_allclose(np.ravel(found[key]), np.quantile(values, part, axis=axes), atol=1e-6)
        assert found["count"] == [32]
    assert np.shape(stats["observation.camera"]["mean"]) == (3, 1, 1)
    assert stats["index"]["max"] == [31]
    features = json.loads((tmp_path / "made/meta/info.json").read_text())["features"]
    keys = ["min", "max", "mean", "std", *QUANTILES, "count"]
    assert {name: sorted(one) for name, one in stats.items()} == dict.fromkeys(features, sorted(keys))
    # Exactly the columns that lerobot itself writes: it loads no dataset whose files differ in them.
    table = pq.read_table(tmp_path / "made/meta/episodes/chunk-000/file-000.parquet")
    assert set(table.column_names) == {
        *("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index"),
        *("data/file_index", "meta/episodes/chunk_index", "meta/episodes/file_index"),
        *(f"stats/{name}/{key}" for name in features for key in keys),
    }
    first, second = table.to_pylist()
    assert (first["stats/observation.camera/count"], second["stats/index/min"]) == ([2], [2])
    np.testing.assert_allclose(second["stats/observation.state/q90"], np.quantile(states[2:], 0.9, axis=0), atol=1e-6)
    assert table.schema.field("stats/observation.camera/q01").type == pa.list_(pa.list_(pa.list_(pa.float64())))


def test_episodes_that_lerobot_adds_or_takes_away_keep_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = [make_session((BOX, BOX), ticks, ticks, terminated=True, seed=ticks) for ticks in (2, 3, 4)]
    write_lerobot(tmp_path / "made", given, (BOX, BOX))
    own = tmp_path / "made" / dataset.OWN_EPISODES
    fields = pq.read_table(own)
    pq.write_table(fields.slice(0, 2), own)  # the third was added by another program
    first, second, third = read_lerobot(tmp_path / "made")[1]
    assert_same(first, given[0])
    assert_same(second, given[1])
    assert (third.seed, third.terminated, len(third)) == (None, True, 4)
    observations = np.asarray(third.observations)
    np.testing.assert_array_equal(observations[-1], observations[-2])
    pq.write_table(fields.slice(1, 2), own)  # the first was taken away by another program
    assert [session.seed for session in read_lerobot(tmp_path / "made")[1]] == [None] * 3
    assert "describes other episodes, and is not used" in caplog.text
    own.unlink()
    assert [len(session) for session in read_lerobot(tmp_path / "made")[1]] == [2, 3, 4]


def foreign(folder: Path, **changed: Any) -> Path:
    """A dataset without anything of ours: lists in place of fixed-size lists, two episodes in one row group."""
    frames = 5
    draw = np.random.default_rng(0)
    buffer = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), 9, np.uint8)).save(buffer, format="PNG")
    columns: dict[str, Any] = {
        "observation.state": draw.standard_normal((frames, 2)).astype(np.float32).tolist(),
        "observation.images.top": [{"bytes": buffer.getvalue(), "path": "frame.png"}] * frames,
        "action": draw.standard_normal((frames, 2)).astype(np.float32).tolist(),
        "next.reward": np.arange(frames, dtype=np.float32),
        "next.done": [False, False, True, False, False],
        "language": ["text"] * frames,
        "frame_index": [0, 1, 2, 0, 1],
        "episode_index": [0, 0, 0, 1, 1],
        **changed.pop("columns", {}),
    }
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        "observation.images.top": {"dtype": "image", "shape": [3, 6, 8], "names": ["channels", "height", "width"]},
        "action": {"dtype": "float32", "shape": [2], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "language": {"dtype": "string", "shape": [1], "names": None},
        "frame_index": {"dtype": "int64", "shape": [1], "names": None},
        "episode_index": {"dtype": "int64", "shape": [1], "names": None},
        **changed.pop("features", {}),
    }
    columns = {name: column for name, column in columns.items() if column is not None}
    features = {name: feature for name, feature in features.items() if feature is not None}
    lengths = changed.pop("lengths", [3, 2])
    for name in ("meta/episodes/chunk-000", "data/chunk-000"):
        (folder / name).mkdir(parents=True)
    info = {"codebase_version": "v3.0", "total_episodes": 2, "fps": 10, "features": features, **changed}
    (folder / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table(columns), folder / "data/chunk-000/file-000.parquet")
    episodes = {"episode_index": list(range(len(lengths))), "length": lengths}
    pq.write_table(pa.table(episodes), folder / "meta/episodes/chunk-000/file-000.parquet")
    return folder


def test_datasets_of_others_are_read(tmp_path: Path) -> None:
    (observation_space, action_space), found = read_lerobot(foreign(tmp_path / "theirs"))
    assert isinstance(observation_space, spaces.Dict)
    assert list(observation_space) == ["images.top", "state"] or list(observation_space) == ["state", "images.top"]
    assert observation_space["images.top"].shape == (6, 8, 3)
    assert action_space.shape == (2,)
    first, second = found
    observations: Any = first.observations
    assert observations["state"].shape == (4, 2)
    np.testing.assert_array_equal(observations["state"][3], observations["state"][2])
    assert (observations["images.top"] == 9).all()
    assert first.rewards.tolist() == [0, 1, 2]
    assert (first.terminated, first.truncated, second.terminated, second.truncated) == (True, False, False, False)
    assert (len(first), len(second), second.extras, second.seed) == (3, 2, {}, None)


def test_without_rewards_they_are_zero(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nothing = {"next.reward": None, "next.done": None, "observation.images.top": None}
    (observation_space, _), found = read_lerobot(foreign(tmp_path / "theirs", columns=nothing, features=nothing))
    assert isinstance(observation_space, spaces.Box)
    assert [session.rewards.tolist() for session in found] == [[0, 0, 0], [0, 0]]
    assert "has no rewards" in caplog.text


def test_ends_inside_an_episode_split_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flags = {
        "next.done": [False, True, False, True, True],
        "next.truncated": [False, False, False, True, True],
        "next.reward": np.arange(5, dtype=np.float32),
        "frame_index": range(5),
        "episode_index": [0] * 5,
    }
    theirs = foreign(
        tmp_path / "theirs",
        columns=flags,
        features={"next.truncated": {"dtype": "bool", "shape": [1]}},
        lengths=[5],
        total_episodes=1,
    )
    first, second = sessions = list(read_lerobot(theirs)[1])
    assert (first.rewards.tolist(), first.terminated, first.truncated) == ([0, 1], True, False)
    assert (second.rewards.tolist(), second.terminated, second.truncated) == ([2], False, True)
    trees: list[Any] = [session.observations for session in sessions]
    states = pq.read_table(theirs / "data/chunk-000/file-000.parquet").column("observation.state").to_pylist()
    assert [tree["state"].tolist() for tree in trees] == [[states[0], states[1], states[1]], [states[2], states[3]]]
    assert "2 ends inside 1 of the episodes, which are split there" in caplog.text
    assert "2 steps are left out" in caplog.text


def test_given_spaces_choose_and_bound_the_features(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "theirs")
    of = spaces.Dict({"state": spaces.Box(-9, 9, (2,), np.float64)}), spaces.Box(-5, 5, (2,), np.float32)
    found_spaces, found = read_lerobot(folder, of=of)
    assert found_spaces == of
    observations: Any = next(found).observations
    assert list(observations) == ["state"]
    assert observations["state"].dtype == np.float64
    for wrong, message in (
        ((spaces.Dict(speed=BOX), of[1]), "names no feature observation.speed; it has observation.state, obs"),
        (
            (of[0], BOX),
            r"has the feature action of the dtype float32 and the shape \[2\], which cannot be of the space",
        ),
        ((of[0], spaces.MultiDiscrete([3, 3])), "cannot be of the space MultiDiscrete"),
    ):
        with pytest.raises(StorageError, match=message):
            read_lerobot(folder, of=wrong)


def test_numbered_actions_come_from_a_feature_of_one_integer(tmp_path: Path) -> None:
    columns = {"action": [3, 1, 2, 0, 1], "observation.images.top": None}
    features = {"action": {"dtype": "int64", "shape": [1]}, "observation.images.top": None}
    of = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(4)
    _, found = read_lerobot(foreign(tmp_path / "theirs", columns=columns, features=features), of=of)
    assert [np.asarray(session.actions).tolist() for session in found] == [[3, 1, 2], [0, 1]]


def test_bounds_of_actions_come_from_the_statistics_on_request(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "theirs")
    with pytest.raises(StorageError, match="has no statistics"):
        read_lerobot(folder, bounds_of_stats=True)
    (folder / "meta/stats.json").write_text(json.dumps({"action": {"min": [-0.5, 2], "max": [0.5, 2]}}))
    (_, of_actions), _ = read_lerobot(folder, bounds_of_stats=True)
    assert of_actions == spaces.Box(np.array([-0.5, 1], np.float32), np.array([0.5, 3], np.float32))
    given = spaces.Dict(state=spaces.Box(-9, 9, (2,), np.float32)), spaces.Box(-1, np.inf, (2,), np.float32)
    (_, of_actions), _ = read_lerobot(folder, of=given, bounds_of_stats=True)
    assert of_actions == spaces.Box(-1, np.array([0.5, 3], np.float32), (2,), np.float32)
    (folder / "meta/stats.json").write_text("{}")
    with pytest.raises(StorageError, match=r"stats\.json has no bounds of action"):
        read_lerobot(folder, bounds_of_stats=True)


def test_own_spaces_agree_with_those_given(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "made", [make_session((BOX, BOX), 3, 1)], (BOX, BOX))
    bounds = spaces.Box(-5, 5, (3,), np.float32)
    assert read_lerobot(tmp_path / "made", of=(BOX, bounds))[0] == (BOX, bounds)
    with pytest.raises(StorageError, match="has other spaces than those given: its actions are"):
        read_lerobot(tmp_path / "made", of=(BOX, ONE))


def test_bad_episodes_are_skipped_on_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = foreign(tmp_path / "theirs", columns={"next.reward": [0, np.nan, 2, 3, 4.0]})
    (session,) = read_lerobot(folder, skip_bad=True)[1]
    assert session.rewards.tolist() == [3, 4]
    assert "1 of 2 episodes are left out because they cannot be read; the first: episode 0, cannot be" in caplog.text
    folder = foreign(tmp_path / "short", lengths=[3])
    with pytest.raises(StorageError, match="the data have more"):
        read_lerobot(folder, skip_bad=True)


DEPTH = {"observation.images.top": {"dtype": "video", "shape": [6, 8, 1]}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"codebase_version": "v2.1"}, r"states the version v2\.1; v3 is read\. Convert the dataset with lerobot"),
    ({"features": DEPTH}, r"images\.top is of the dtype video and the shape \[6, 8, 1\]; \[height, width, 3\] is read"),
    ({"features": {"action": None}}, "names no feature action"),
    ({"columns": {"action": None}}, r"file-000\.parquet lacks the columns action"),
    ({"total_episodes": 3}, "the data have 2 episodes, meta/episodes has 2, and meta/info.json states 3"),
    ({"lengths": [3]}, "the files of meta/episodes have 1 episodes, the data have more"),
    ({"lengths": [3, 4]}, "episode 1, cannot be read: it has 2 frames, and meta/episodes states 4"),
    ({"columns": {"frame_index": [0, 1, 2, 0, 2]}}, "episode 1, cannot be read: frames are missing or out of order"),
    ({"columns": {"episode_index": [0, 0, 0, 2, 2]}}, "found episode 2; expected is episode 1"),
    ({"columns": {"next.reward": [0, np.nan, 0, 0, 0.0]}}, r"episode 0, .* next\.reward of frame 1 is not finite"),
    ({"columns": {"next.reward": [0, None, 0, 0, 0.0]}}, r"episode 0, .* next\.reward lacks values"),
    ({"columns": {"action": [[0.0]] * 5}}, "episode 0, cannot be read"),
    ({"features": {"action": {"dtype": "float32", "shape": [1 << 40]}}}, "which is not read"),
    ({"features": {"action": {"dtype": "object", "shape": [2]}}}, "which is not read"),
    ({"features": {"observation.images.top": {"dtype": "image", "shape": [9, 9, 3]}}}, r"its size is \(8, 6\)"),
    ({"columns": {"observation.images.top": [{"bytes": b"no", "path": None}] * 5}}, "an image of .* cannot be read"),
    ({"columns": {"observation.images.top": [{"bytes": None, "path": "x.png"}] * 5}}, r"refers to the file x\.png"),
    ({"features": []}, "is damaged, or describes no dataset"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG)
def test_what_is_wrong_is_named_before_any_session_is_returned(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    if changed == {"features": []}:
        folder = foreign(tmp_path / "theirs")
        (folder / "meta/info.json").write_text('{"codebase_version": "v3.0", "features": []}')
    else:
        folder = foreign(tmp_path / "theirs", **changed)
    with pytest.raises(StorageError, match=message):
        read_lerobot(folder)


@pytest.mark.parametrize("file", ["data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"])
@pytest.mark.parametrize("part", [0.0, 0.4, 0.99])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, file: str, part: float) -> None:
    write_lerobot(tmp_path / "made", [make_session((BOX, BOX), 50, number) for number in range(5)], (BOX, BOX))
    path = tmp_path / "made" / file
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(StorageError, match=r"file-000\.parquet is damaged, or cut short"):
        read_lerobot(tmp_path / "made")


def test_a_changed_byte_is_named(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "made", [make_session((BOX, BOX), 500, number) for number in range(5)], (BOX, BOX))
    path = tmp_path / "made/data/chunk-000/file-000.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"file-000\.parquet is damaged"):
        read_lerobot(tmp_path / "made")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "made", [make_session((BOX, BOX), 5, 1)], (BOX, BOX))
    (tmp_path / "made/data/chunk-000/file-000.parquet").unlink()
    with pytest.raises(StorageError, match=r"the data have 0 episodes, meta/episodes has 1, .* files are missing"):
        read_lerobot(tmp_path / "made")
    with pytest.raises(StorageError, match="is no LeRobot dataset"):
        read_lerobot(tmp_path)


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> Any:
        yield make_session((BOX, BOX), 5, 1)
        raise StorageError("the source is damaged")

    with pytest.raises(StorageError, match="the source is damaged"):
        write_lerobot(tmp_path / "made", broken(), (BOX, BOX))
    with pytest.raises(StorageError, match="there is no session to write"):
        write_lerobot(tmp_path / "made", [], (BOX, BOX))
    different = [make_session((BOX, BOX), 5, 1), make_session((BOX, ONE), 5, 1)]
    with pytest.raises(StorageError, match="session 1 differs from the first one in action"):
        write_lerobot(tmp_path / "made", different, (BOX, BOX))
    text = Session(observations=["a", "b"], actions=np.zeros((1, 3)), rewards=np.zeros(1))
    with pytest.raises(StorageError, match=r"observation\.state holds values that are no arrays"):
        write_lerobot(tmp_path / "made", [text], (BOX, BOX))
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[lerobot\]"):
        write_lerobot(tmp_path / "made", [], (BOX, BOX))
