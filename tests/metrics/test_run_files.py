from __future__ import annotations

import os
from pathlib import Path

from tmrl_core.metrics.run_files import RunFiles


def film(folder: Path, number: int, changed_s: float) -> None:
    path = folder / "worker" / "videos" / f"evaluation-{number}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"film")
    os.utime(path, (changed_s, changed_s))


def test_a_video_is_taken_once_when_it_is_complete_and_its_evaluation_has_ended(tmp_path: Path) -> None:
    film(tmp_path, 1, 10.0)
    files = RunFiles(tmp_path, tmp_path / "policy.tmod", now=lambda: 100.0)
    film(tmp_path, 10, 97.0)
    film(tmp_path, 9, 97.0)
    film(tmp_path, 11, 99.0)
    film(tmp_path, 12, 50.0)
    (tmp_path / "worker" / "videos" / "evaluation-mine.mp4").write_bytes(b"another")
    assert [number for number, _ in files.new_videos({9, 10, 11})] == [9, 10]
    assert files.new_videos({9, 10, 11}) == []
    assert [path.name for _, path in files.new_videos(None)] == ["evaluation-11.mp4", "evaluation-12.mp4"]


def test_a_run_without_videos_has_none(tmp_path: Path) -> None:
    assert RunFiles(tmp_path, tmp_path / "policy.tmod").new_videos(None) == []
