"""`--sessions`: a recording goes to a dataset and back, and failures leave nothing of their target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from tests.sessions.made_sessions import assert_same, make_session
from tmrl_core.cli.main import main
from tmrl_core.sessions import Session, SessionWriter, read_sessions, read_spaces

OF = (
    spaces.Dict(state=spaces.Box(-1, 1, (3,), np.float32), kind=spaces.Discrete(3)),
    spaces.Box(-1, 1, (2,), np.float32),
)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    with SessionWriter(tmp_path / "recording", *OF) as writer:
        for session in made():
            writer.write(session)
    return tmp_path / "recording"


def made() -> list[Session]:
    return [
        make_session(OF, 5, 1, terminated=True, source="robot7", seed=3),
        make_session(OF, 9, 2, truncated=True, source="robot7"),
    ]


def test_a_list_shows_numbers_ends_and_returns(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sessions", "list", str(recording)]) == 0
    lines = capsys.readouterr().out.splitlines()
    low, high = sorted(session.episode_return for session in made())
    assert lines[0] == f"observations: {OF[0]}"
    assert lines[2] == "sessions:     2 (1 terminated, 1 truncated), 14 ticks"
    assert lines[3] == f"returns:      mean {(low + high) / 2:.4g}, lowest {low:.4g}, highest {high:.4g}"
    assert lines[4] == "recorded by:  robot7"
    assert lines[5:] == [
        "range:        action[0] -1.88901 to 1.80142",
        "range:        action[1] -2.71116 to 2.11784",
        "outside the action space: action[0] is -1.88901 to 1.80142, allowed: -1 to 1; "
        "action[1] is -2.71116 to 2.11784, allowed: -1 to 1",
    ]


@pytest.mark.parametrize(("name", "package"), [("minari", "h5py"), ("lerobot", "pyarrow")])
def test_a_recording_goes_to_a_dataset_and_back(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str], name: str, package: str
) -> None:
    pytest.importorskip(package)
    dataset, back = tmp_path / "dataset", tmp_path / "back"
    assert main(["--sessions", "export", str(recording), str(dataset), "--format", name]) == 0
    assert main(["--sessions", "import", str(dataset), str(back)]) == 0
    assert capsys.readouterr().out == f"{dataset}: 2 sessions\n{back}: 2 sessions\n"
    assert read_spaces(back) == OF
    for one, other in zip(read_sessions(back), made(), strict=True):
        assert_same(one, other)


def test_an_import_takes_bounds_and_leaves_out_bad_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    from tests.sessions.lerobot.test_dataset import foreign

    dataset = foreign(
        tmp_path / "theirs",
        columns={"next.reward": [0, np.nan, 0, 0, 0.0], "observation.images.top": None},
        features={"observation.images.top": None},
    )
    (dataset / "meta" / "stats.json").write_text('{"action": {"min": [-9, -9], "max": [9, 9]}}')
    arm = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(-0.01, 0.01, (2,), np.float32)
    with SessionWriter(tmp_path / "arm", *arm):
        pass
    words = ["--sessions", "import", str(dataset)]
    assert main([*words, str(tmp_path / "new")]) in (1, 2)
    assert "episode 0, cannot be read: next.reward of frame 1 is not finite" in capsys.readouterr().err
    words += ["--skip-bad-episodes"]
    assert main([*words, str(tmp_path / "free")]) == 0
    assert "states no bounds of the actions" in capsys.readouterr().err
    assert len(list(read_sessions(tmp_path / "free"))) == 1
    assert main([*words, str(tmp_path / "of_arm"), "--spaces", str(tmp_path / "arm" / "spaces.json")]) == 0
    assert read_spaces(tmp_path / "of_arm") == arm
    assert "of_arm: actions outside their space need memory.recorded_actions: clip" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "of_stats"), "--bounds-of-stats"]) == 0
    assert read_spaces(tmp_path / "of_stats")[1] == spaces.Box(-9, 9, (2,), np.float32)


def test_an_option_of_another_format_is_refused(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sessions", "export", str(recording), str(tmp_path / "x"), "--format", "minari", "--fps", "20"]
    assert main(words) == 2
    assert "--fps: not for datasets of Minari, and minari is one" in capsys.readouterr().err


def test_a_format_of_no_room_is_refused_with_the_known_ones(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--sessions", "export", str(recording), str(tmp_path / "x"), "--format", "rosbag"]) == 2
    assert (
        "--format: found rosbag, allowed: lerobot, minari. There is no package tmrl_core.sessions.rosbag here"
        in capsys.readouterr().err
    )


def test_failures_leave_nothing_of_their_target(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    for words, said in (
        (["list", str(tmp_path / "no")], "no does not exist"),
        (["export", str(tmp_path / "no"), str(tmp_path / "new"), "--format", "minari"], "no does not exist"),
        (["export", str(recording), str(tmp_path / "new"), "--format", "lerobot", "--fps", "0"], "fps: found 0"),
        (
            ["import", str(recording), str(tmp_path / "new")],
            "of no known format (LeRobot: meta/info.json; Minari: ",
        ),
    ):
        assert main(["--sessions", *words]) in (1, 2)
        assert said in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
