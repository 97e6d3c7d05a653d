"""Picture of a run: `learning_curve.png`, drawn from its `metrics.jsonl`."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tmrl_core.metrics import names
from tmrl_core.metrics.figure import FAINT, INK, new_figure, style_axes, write
from tmrl_core.metrics.reading import iter_records
from tmrl_core.metrics.records import Axis, MetricRecord, Value
from tmrl_core.metrics.text import clock_text, return_text

_Floats = npt.NDArray[np.float64]

# Colours that also differ in lightness, so that they can be told apart in grey and with colour-blind eyes.
_TRAIN = "#4c78a8"
_TRAIN_POINT = "#9db9d6"
_TEST = "#e39b2d"
_EVALUATION = "#b0305c"
_TARGET = "#2f855a"
_SAMPLES = "#3f7f93"
_UPDATES = "#8a5fa8"
_MINUS = "\N{MINUS SIGN}"
_MOST_POINTS = 20_000
_LARGEST = 1e30
_NOTHING: dict[str, Value] = {}
_SHOWN = frozenset(
    {
        names.RETURN_TRAIN, names.RETURN_TEST, names.RETURN_EVALUATION, names.RETURN_EVALUATION_STD,
        names.RETURN_TARGET, names.EPISODES, names.SAMPLES_PER_S, names.UPDATES_PER_S, names.POLICY_LAG_MEAN,
        names.POLICY_LAG_MAX, names.WORKER, names.EVENT, names.RUN_NAME,
    }
)  # fmt: skip
"""Names of the values that a picture shows."""
_AXIS_LABELS: dict[Axis, str] = {
    "env_steps": "environment steps",
    "updates": "updates",
    "wall_time": "minutes",
}


def draw(
    run_folder: str | os.PathLike[str],
    *,
    run_name: str | None = None,
    return_target: float | None = None,
    x_axis: Axis = "env_steps",
) -> Path:
    """Draw a run's learning curve into its folder and return the picture's path.

    Above: the return of every training episode of every worker, their moving average, the workers' test episodes and
    the evaluations with their spread and target, over environment steps, updates or minutes. Below: samples and updates
    per second, or the policy lag if no rates were recorded.

    Args:
        run_folder: folder with `metrics.jsonl`, which may still be growing.
        run_name: name in the title; None: from the records, else the folder's name.
        return_target: value of the target line; None: from the records.
        x_axis: horizontal axis; without counts of environment steps, updates are used.

    Raises:
        FileNotFoundError: there is no `metrics.jsonl`.
        MissingExtraError: matplotlib is not installed.
        OSError: the picture cannot be written.
    """
    figure = _figure("trainer")
    folder = Path(run_folder)
    records = latest_run(list(_drawable(iter_records(folder / "metrics.jsonl"))))
    for record in records:
        if run_name is None and record.text(names.RUN_NAME):
            run_name = record.text(names.RUN_NAME)
        if return_target is None:
            return_target = record.number(names.RETURN_TARGET)
    _draw(figure, records, run_name or folder.resolve().name, return_target, x_axis, "workers")
    path = folder / "learning_curve.png"
    write(figure, path)
    return path


def picture(records: Sequence[MetricRecord], title: str, *, collectors: str, extra: str) -> bytes:
    """Return the learning curve of records as PNG, over environment steps.

    Args:
        records: see `draw`.
        title: the title.
        collectors: word for the sources of episodes in the legend.
        extra: name of the extra in the error if matplotlib is missing.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = _figure(extra)
    _draw(figure, list(_drawable(records)), title, None, "env_steps", collectors)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _figure(extra: str) -> Any:
    return new_figure("Drawing the learning curve", 9.6, 6.4, extra=extra)


def _draw(
    figure: Any,
    records: Sequence[MetricRecord],
    title: str,
    return_target: float | None,
    x_axis: Axis,
    collectors: str,
) -> None:
    series = _Series(records, x_axis)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.4, 1), gridspec_kw={"hspace": 0.08})
    figure.subplots_adjust(left=0.095, right=0.905, top=0.845, bottom=0.09)
    _draw_returns(upper, series, return_target, collectors)
    _draw_rates(lower, series)
    lower.set_xlabel(series.axis_label, color=INK)
    if series.last_x > 0:
        lower.set_xlim(0, series.last_x * 1.015)
        lower.xaxis.get_major_locator().set_params(integer=series.axis != "wall_time")
        lower.xaxis.set_major_formatter(lambda x, _: f"{x:,.6g}")
    else:
        lower.set_xticks([])
    figure.text(0.095, 0.947, title, fontsize=15, fontweight="bold", color=INK)
    figure.text(0.095, 0.91, _summary(records, series), fontsize=9.5, color=FAINT)


def latest_run(records: Sequence[MetricRecord]) -> Sequence[MetricRecord]:
    """Return the records from the last start at update 0 on: a name may have been used for several runs."""
    for index in range(len(records) - 1, 0, -1):
        record = records[index]
        if record.kind == "event" and record.step == 0 and record.text(names.EVENT) == names.EVENT_START:
            return records[index:]
    return records


def _drawable(records: Iterable[MetricRecord]) -> Iterator[MetricRecord]:
    """Yield the records with nothing but the values that a picture shows: a file of a long run has gigabytes.

    Left out are numbers that are too large for axes, which any worker can report, and cut episodes. Of records in a row
    that show nothing, the first and the last are yielded: they tell steps and times, and where others stand between
    them.
    """
    last: MetricRecord | None = None
    row = False
    for record in records:
        shown = {name: value for name, value in record.values.items() if name in _SHOWN} if not record.is_cut else {}
        for name, value in record.numbers().items() if shown else ():
            if abs(value) > _LARGEST:
                shown.pop(name, None)
        made = msgspec.structs.replace(record, values=shown or _NOTHING)
        if shown:
            if last is not None:
                yield last
            last, row = None, False
            yield made
        elif row:
            last = made
        else:
            row = True
            yield made
    if last is not None:
        yield last


class _Series:
    """Return the columns over one axis: the requested one, or updates without counts of environment steps."""

    def __init__(self, records: Sequence[MetricRecord], axis: Axis) -> None:
        known = sorted((record.elapsed_s, record.env_steps) for record in records if record.env_steps is not None)
        self.env_steps = max((steps for _, steps in known), default=None)
        self.axis: Axis = "updates" if axis == "env_steps" and self.env_steps is None else axis
        self.axis_label = _AXIS_LABELS[self.axis]
        self._known_s = np.array([elapsed for elapsed, _ in known])
        self._known_steps = np.array([steps for _, steps in known])
        self._records = records
        self.last_x = max((self.x(record) for record in records), default=0.0)

    def x(self, record: MetricRecord) -> float:
        place = record.at(self.axis)
        if place is None:
            return float(np.interp(record.elapsed_s, self._known_s, self._known_steps))
        return place / 60.0 if self.axis == "wall_time" else float(place)

    def of(self, kinds: Iterable[str], name: str) -> tuple[_Floats, _Floats]:
        """Return [points] positions on the axis and [points] values of one name, in order of positions."""
        points = [
            (self.x(record), value)
            for record in self._records
            if record.kind in kinds and (value := record.number(name)) is not None
        ]
        points.sort(key=lambda point: point[0])
        table = np.array(points, dtype=np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def evaluations(self) -> list[MetricRecord]:
        found = [
            record
            for record in self._records
            if record.kind == "evaluation" and record.number(names.RETURN_EVALUATION) is not None
        ]
        return sorted(found, key=self.x)

    def workers(self) -> int:
        return len(
            {
                record.text(names.WORKER)
                for record in self._records
                if record.kind == "episode" and names.RETURN_TRAIN in record.values
            }
        )


def moving_average(values: _Floats, window: int) -> _Floats:
    """Return [points] means of the latest `window` values at each point, or of fewer at the start."""
    # Running sums are not subtracted, because one huge value would cancel all later ones.
    sums = np.convolve(values, np.ones(window))[: len(values)]
    means: _Floats = sums / np.minimum(np.arange(1, len(values) + 1), window)
    return means


def _draw_returns(axes: Any, series: _Series, return_target: float | None, collectors: str) -> None:
    train_x, train = series.of(["episode"], names.RETURN_TRAIN)
    if not len(train):
        train_x, train = series.of(["round"], names.RETURN_TRAIN)
    test_x, test = series.of(["episode"], names.RETURN_TEST)
    if not len(test):
        test_x, test = series.of(["round"], names.RETURN_TEST)

    style_axes(axes)
    axes.set_ylabel("return of an episode", color=INK)
    axes.tick_params(labelbottom=False)
    if len(train):
        _draw_training(axes, train_x, train, series.workers(), collectors)
    if len(test):
        crowd = _crowd(len(test))
        axes.scatter(
            test_x, test, s=28 * crowd, marker="D", facecolors="white", edgecolors=_TEST, linewidths=1.3 * crowd,
            zorder=4, label="test episodes",
        )  # fmt: skip
    evaluations = series.evaluations()
    if evaluations:
        _draw_evaluations(axes, series, evaluations)
    if return_target is not None:
        from matplotlib.patheffects import withStroke

        axes.axhline(return_target, color=_TARGET, linewidth=1.3, linestyle=(0, (6, 4)), zorder=2)
        axes.annotate(
            f"target {_number(return_target)}", (0.006, return_target), xycoords=("axes fraction", "data"),
            xytext=(0, 4), textcoords="offset points", ha="left", va="bottom", color=_TARGET, fontsize=9.5, zorder=7,
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )  # fmt: skip
    means = np.array([record.number(names.RETURN_EVALUATION) for record in evaluations], dtype=np.float64)
    spread = np.array([record.number(names.RETURN_EVALUATION_STD) or 0.0 for record in evaluations])
    target = np.array([] if return_target is None else [return_target])
    # With the whole error bars: one that ends at the frame looks shorter than it is.
    _limit_returns(axes, train, [test, means - spread, means + spread, target])
    if not (len(train) or len(test) or len(means)):
        _say_empty(axes, "no episode has ended yet")
        return
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.6g}".replace("-", _MINUS))
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.012, 1.0), ncols=4, frameon=False, fontsize=9, labelcolor=INK,
        handletextpad=0.5, columnspacing=1.8,
    )  # fmt: skip


def _draw_training(axes: Any, x: _Floats, returns: _Floats, workers: int, collectors: str) -> None:
    step = 1 + len(returns) // _MOST_POINTS
    label = f"training episodes of {workers} {collectors}" if workers > 1 else "training episodes"
    crowd = _crowd(len(returns) // 4)
    axes.scatter(
        x[::step], returns[::step], s=20 * crowd, color=_TRAIN_POINT, alpha=0.25 + 0.6 * crowd**3, linewidths=0,
        label=label,
    )  # fmt: skip
    window = int(np.clip(len(returns) // 20, 5, 200))
    if len(returns) >= 2 * window:
        # The first means cover too few episodes.
        shown = slice(window // 3, None, step)
        smooth = moving_average(returns, window)
        axes.plot(x[shown], smooth[shown], color=_TRAIN, linewidth=1.9, label=f"mean of the latest {window}", zorder=3)


def _draw_evaluations(axes: Any, series: _Series, evaluations: Sequence[MetricRecord]) -> None:
    x = np.array([series.x(record) for record in evaluations])
    means = np.array([record.number(names.RETURN_EVALUATION) for record in evaluations], dtype=np.float64)
    spread = np.array([record.number(names.RETURN_EVALUATION_STD) or 0.0 for record in evaluations])
    crowd = _crowd(len(means))
    label = "evaluations (mean ± std)" if spread.any() else "evaluations"
    marker: dict[str, Any] = {
        "color": _EVALUATION, "linewidth": 1.6, "marker": "o", "markersize": 7 * crowd, "markeredgecolor": "white",
        "markeredgewidth": 1.0 * crowd, "zorder": 6, "label": label,
    }  # fmt: skip
    if spread.any() and len(means) > 30:
        axes.fill_between(x, means - spread, means + spread, color=_EVALUATION, alpha=0.15, linewidth=0, zorder=5)
        axes.plot(x, means, **marker)
    else:
        axes.errorbar(x, means, yerr=spread if spread.any() else None, elinewidth=1.1, capsize=3, **marker)
    axes.annotate(
        _number(means[-1]), (1.0, means[-1]), xycoords=("axes fraction", "data"), xytext=(5, 0),
        textcoords="offset points", ha="left", va="center", color=_EVALUATION, fontsize=10, fontweight="bold",
        annotation_clip=False,
    )  # fmt: skip


def _crowd(count: int) -> float:
    """Return a size factor for this number of markers: 1 for a few, down to 0.4."""
    return float(np.clip(1.15 - 0.15 * np.log2(max(1, count) / 12), 0.4, 1.0))


def _limit_returns(axes: Any, train: _Floats, strong: Sequence[_Floats]) -> None:
    """Set limits that show all strong points, and all training points except for outliers of one percent."""
    values = np.concatenate([np.percentile(train, [1, 99.5]) if len(train) >= 20 else train, *strong])
    if len(values):
        low, high = float(values.min()), float(values.max())
        margin = 0.07 * (high - low) or max(1.0, abs(high) * 0.1)
        axes.set_ylim(low - margin, high + margin)


def _draw_rates(axes: Any, series: _Series) -> None:
    style_axes(axes)
    rates = _lines(series, ((names.SAMPLES_PER_S, "samples/s", _SAMPLES), (names.UPDATES_PER_S, "updates/s", _UPDATES)))
    lags = _lines(series, ((names.POLICY_LAG_MEAN, "mean", _SAMPLES), (names.POLICY_LAG_MAX, "highest", _UPDATES)))
    lines = rates or lags
    if not lines:
        _say_empty(axes, "no rates recorded")
        return
    tops = [max(float(np.percentile(y, 99)), float(np.median(y))) for _, y, _, _ in lines]
    together = bool(lags and not rates) or min(tops) * 8 >= max(tops)
    sides = [axes if together or index == 0 else axes.twinx() for index in range(len(lines))]
    for (x, y, label, color), side in zip(lines, sides, strict=True):
        if len(y) >= 40:
            side.plot(x, y, color=color, linewidth=0.7, alpha=0.25)
            y = moving_average(y, max(2, len(y) // 40))
        few = len(y) < 12
        side.plot(x, y, color=color, linewidth=1.6, marker="o" if few else None, markersize=3.5, label=label)
    for side, (_, _, label, color), top in zip(sides, lines, tops, strict=True):
        side.set_ylim(0, 1.2 * (max(tops) if together else top) or 1.0)
        side.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        side.locator_params(axis="y", nbins=4)
        if not together:
            side.set_ylabel(label, color=color)
            side.tick_params(axis="y", colors=color, length=0, labelsize=9)
        if side is not axes:
            for spine in side.spines.values():
                spine.set_visible(False)
    if together:
        axes.set_ylabel("per second" if rates else "policy lag\n(versions)", color=INK)
        axes.legend(
            loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=2, frameon=False, fontsize=9, labelcolor="linecolor",
            borderaxespad=0.2, handlelength=1.2, handletextpad=0.5, columnspacing=1.5,
        )  # fmt: skip


def _lines(series: _Series, wanted: Sequence[tuple[str, str, str]]) -> list[tuple[_Floats, _Floats, str, str]]:
    found = []
    for name, label, color in wanted:
        x, y = series.of(("network",), name)
        if not len(y):
            x, y = series.of(("round",), name)
        if y.any():
            found.append((x, y, label, color))
    return found


def _say_empty(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=11)
    axes.set_yticks([])
    axes.grid(visible=False)


def _number(value: float) -> str:
    return return_text(float(value)).replace("-", _MINUS)


def _summary(records: Sequence[MetricRecord], series: _Series) -> str:
    if not records:
        return "no records yet"
    parts = []
    if series.env_steps is not None:
        parts.append(f"{series.env_steps:,} environment steps")
    if updates := max(record.step for record in records):
        parts.append(f"{updates:,} updates")
    parts.append(f"{clock_text(max(record.elapsed_s for record in records))} elapsed")
    evaluations = series.evaluations()
    if evaluations:
        last = evaluations[-1]
        text = f"last evaluation {_number(last.number(names.RETURN_EVALUATION) or 0.0)}"
        if (spread := last.number(names.RETURN_EVALUATION_STD)) is not None:
            text += f" ± {_number(spread)}"
        if (episodes := last.number(names.EPISODES)) is not None:
            text += f" over {episodes:.0f} episodes"
        parts.append(text)
    return "   ·   ".join(parts)
