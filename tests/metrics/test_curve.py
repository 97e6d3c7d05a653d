from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from tmrl_core.errors import MissingExtraError
from tmrl_core.metrics.curve import draw, latest_run, moving_average
from tmrl_core.metrics.records import Axis, MetricRecord, encode_line, episode_values, record


def write(folder: Path, records: list[MetricRecord]) -> None:
    (folder / "metrics.jsonl").write_bytes(b"".join(map(encode_line, records)))


def start(step: int = 0, name: str = "my run") -> MetricRecord:
    return record("event", {"event": "start", "run_name": name, "return_target": -200.0}, step=step, elapsed_s=0.0)


def episode(index: int, mode: str = "train") -> MetricRecord:
    values = episode_values(
        worker=f"worker{index % 2}",
        mode="train" if mode == "train" else "test",
        episode_return=-1000.0 + 10.0 * index,
        length=200,
        samples_received=200 * (index + 1),
    )
    return record("episode", values, step=100 * index, elapsed_s=float(index))


def network(index: int, **values: float) -> MetricRecord:
    return record("network", {"samples_received": 200 * index, **values}, step=100 * index, elapsed_s=index)


def evaluation(index: int, **values: float) -> MetricRecord:
    values = {"return_evaluation": -500.0 + index, "samples_received": 200.0 * index, **values}
    return record("evaluation", values, step=100 * index, elapsed_s=float(index))


def cut(index: int, mode: str = "train") -> MetricRecord:
    made = episode(index, mode)
    return msgspec.structs.replace(made, values={**made.values, "worker": "late", "end": "aborted"})


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved, to look at what it shows."""
    figures: list[Figure] = []
    original: Callable[..., None] = Figure.savefig

    def keep(figure: Figure, *args: object, **kwargs: object) -> None:
        figures.append(figure)
        original(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def texts(figure: Figure) -> list[str]:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
        found += [axes.get_xlabel(), axes.get_ylabel()]
        found += axes.get_legend_handles_labels()[1]
    return found


def test_a_whole_run(tmp_path: Path, drawn: list[Figure]) -> None:
    records = [start()]
    for index in range(60):
        records += [episode(index), network(index, samples_per_s=200.0, updates_per_s=150.0)]
        if index % 10 == 0:
            records += [episode(index, "test"), evaluation(index, return_evaluation_std=50.0, episodes=10)]
    write(tmp_path, records)
    path = draw(tmp_path)
    assert path == tmp_path / "learning_curve.png"
    assert imread(path).shape == (960, 1440, 4)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["learning_curve.png", "metrics.jsonl"]
    shown = texts(drawn[0])
    for text in (
        "my run", "training episodes of 2 workers", "mean of the latest 5", "test episodes",
        "evaluations (mean ± std)", "target \N{MINUS SIGN}200", "\N{MINUS SIGN}450", "samples/s", "updates/s",
        "environment steps", "return of an episode",
    ):  # fmt: skip
        assert text in shown
    (summary,) = [text for text in shown if "elapsed" in text]
    for text in (
        "12,000 environment steps",
        "5,900 updates",
        "0:59 elapsed",
        "\N{MINUS SIGN}450 ± 50 over 10 episodes",
    ):
        assert text in summary
    upper = drawn[0].axes[0]
    assert np.asarray(upper.collections[0].get_offsets()).shape == (60, 2)
    low, high = upper.get_ylim()
    assert low < -1000 < -200 < high


def test_episodes_that_were_cut_are_not_drawn(tmp_path: Path, drawn: list[Figure]) -> None:
    records = [start(), *map(episode, range(0, 20, 2)), cut(30), cut(31, "test"), cut(59)]
    write(tmp_path, records)
    draw(tmp_path)
    upper = drawn[0].axes[0]
    assert np.asarray(upper.collections[0].get_offsets())[:, 1].tolist() == [
        -1000.0 + 10.0 * index for index in range(0, 20, 2)
    ]
    shown = texts(drawn[0])
    assert "training episodes" in shown
    assert "test episodes" not in shown
    (summary,) = [text for text in shown if "elapsed" in text]
    assert "12,000 environment steps" in summary
    assert "0:59 elapsed" in summary


@pytest.mark.parametrize(
    "records",
    [
        [],
        [start()],
        [episode(0)],
        [start(), episode(0), episode(1)],
        [evaluation(3)],
        [record("round", {"return_train": -5.0, "memory_len": 1}, step=10, elapsed_s=1.0)],
        [network(1, samples_per_s=0.0, updates_per_s=0.0)],
        [episode(index) for index in range(8)] + [evaluation(index, return_evaluation_std=1.0) for index in range(99)],
    ],
    ids=["nothing", "a start", "one episode", "two episodes", "one evaluation", "one round", "no rates", "many"],
)
def test_few_or_unusual_points_are_drawn(tmp_path: Path, records: list[MetricRecord]) -> None:
    write(tmp_path, records)
    assert imread(draw(tmp_path)).shape == (960, 1440, 4)


def test_huge_numbers_neither_end_the_drawing_nor_hide_the_rest(tmp_path: Path, drawn: list[Figure]) -> None:
    huge = [1e308, -1e308, 1e30]
    odd = [record("episode", {"rollout/ep_rew": value, "worker": "wolf"}, step=1, elapsed_s=1.0) for value in huge]
    write(
        tmp_path, [start(), *odd, *(evaluation(i, return_evaluation=huge[i]) for i in (0, 1)), *map(episode, range(40))]
    )
    draw(tmp_path)
    assert len(drawn) == 1
    smooth = moving_average(np.array([1e30, *[-200.0] * 9]), 3)
    assert smooth[3:].tolist() == [-200.0] * 7


def test_a_curve_without_records_reports_it(tmp_path: Path, drawn: list[Figure]) -> None:
    write(tmp_path, [])
    draw(tmp_path)
    shown = texts(drawn[0])
    for text in (tmp_path.name, "no records yet", "no episode has ended yet", "no rates recorded"):
        assert text in shown


def test_names_and_targets_may_be_given(tmp_path: Path, drawn: list[Figure]) -> None:
    write(tmp_path, [start(), episode(0)])
    draw(tmp_path, run_name="another", return_target=-5.0)
    assert {"another", "target \N{MINUS SIGN}5"} <= set(texts(drawn[0]))


def test_rates_of_different_sizes_have_axes_of_their_own(tmp_path: Path, drawn: list[Figure]) -> None:
    write(tmp_path, [network(index, samples_per_s=50_000.0, updates_per_s=200.0) for index in range(5)])
    draw(tmp_path)
    _, lower, other = drawn[0].axes
    assert (lower.get_ylabel(), other.get_ylabel()) == ("samples/s", "updates/s")
    assert lower.get_ylim()[1] > 50_000 > 1000 > other.get_ylim()[1] > 200


def test_policy_lag_is_shown_without_rates(tmp_path: Path, drawn: list[Figure]) -> None:
    write(tmp_path, [network(index, policy_lag_mean=1.5, policy_lag_max=4.0) for index in range(5)])
    draw(tmp_path)
    assert drawn[0].axes[1].get_ylabel() == "policy lag\n(versions)"


def test_records_that_do_not_count_steps_are_placed_by_their_time(tmp_path: Path, drawn: list[Figure]) -> None:
    middle = record("evaluation", {"return_evaluation": -3.0}, step=5, elapsed_s=5.0)
    write(tmp_path, [network(0), middle, network(10)])
    draw(tmp_path)
    (line,) = [line for line in drawn[0].axes[0].lines if line.get_marker() == "o"]
    assert np.asarray(line.get_xdata()).tolist() == [1000.0]


def test_records_that_show_nothing_place_others_exactly(tmp_path: Path, drawn: list[Figure]) -> None:
    def at(elapsed_s: float, steps: int) -> MetricRecord:
        return record("network", {"samples_received": steps}, step=1, elapsed_s=elapsed_s)

    def without_steps(elapsed_s: float) -> MetricRecord:
        return record("evaluation", {"return_evaluation": -3.0}, step=1, elapsed_s=elapsed_s)

    before, between, after = [(0, 0), (1, 0), (2, 100)], [(4, 200), (5, 900), (6, 1000)], [(8, 1100), (9, 5000)]
    places = [
        *(at(*one) for one in before), without_steps(3), *(at(*one) for one in between), without_steps(7),
        *(at(*one) for one in after),
    ]  # fmt: skip
    write(tmp_path, places)
    draw(tmp_path)
    axes = drawn[0].axes[0]
    (line,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert np.asarray(line.get_xdata()).tolist() == [150.0, 1050.0]
    assert axes.get_xlim()[1] == pytest.approx(5000 * 1.015)


def test_a_name_that_is_used_again_shows_the_latest_run(tmp_path: Path) -> None:
    first = [start(name="old"), episode(0), episode(1)]
    second = [start(name="new"), episode(0)]
    assert latest_run(first + second) == second
    resumed = [*first, start(step=100), episode(2)]
    assert latest_run(resumed) == resumed
    assert latest_run([]) == []


def test_the_old_picture_stays_when_drawing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [start()])
    before = draw(tmp_path).read_bytes()

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        draw(tmp_path)
    assert (tmp_path / "learning_curve.png").read_bytes() == before


def test_no_records_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        draw(tmp_path)


def test_without_matplotlib_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[trainer\]"):
        draw(tmp_path)


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    write(tmp_path, [start(), episode(0)])
    script = (
        "import sys; from tmrl_core.metrics.curve import draw; draw(sys.argv[1]); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=100, check=True)


@pytest.mark.parametrize("window", [1, 2, 3, 10])
def test_the_moving_average_is_that_of_a_slow_loop(window: int) -> None:
    values = np.random.default_rng(0).normal(size=9)
    slow = [float(np.mean(values[max(0, end - window) : end])) for end in range(1, 10)]
    assert np.allclose(moving_average(values, window), slow)


@pytest.mark.parametrize(
    ("axis", "label", "last"),
    [("env_steps", "environment steps", 400), ("updates", "updates", 100), ("wall_time", "minutes", 1 / 60)],
)
def test_the_axis_is_chosen(tmp_path: Path, drawn: list[Figure], axis: Axis, label: str, last: float) -> None:
    write(tmp_path, [start(), episode(0), episode(1)])
    draw(tmp_path, x_axis=axis)
    assert drawn[0].axes[1].get_xlabel() == label
    assert np.asarray(drawn[0].axes[0].collections[0].get_offsets())[-1, 0] == pytest.approx(last)
