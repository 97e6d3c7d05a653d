from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tmrl_core.metrics.progress import LiveProgress, ProgressDisplay, shrink, sparkline
from tmrl_core.metrics.reading import follow
from tmrl_core.metrics.records import Kind, MetricRecord, encode_line, episode_values, record
from tmrl_core.metrics.text import bytes_text


def make(kind: Kind, at_s: float, step: int = 0, **values: object) -> MetricRecord:
    return record(kind, values, step=step, elapsed_s=at_s)


def episode(at_s: float, value: float, samples: int = 0, step: int = 0) -> MetricRecord:
    values = episode_values(worker="a", mode="train", episode_return=value, length=200, samples_received=samples)
    return make("episode", at_s, step, **values)


RUN = [
    make("event", 0, event="start", run_name="pendulum", return_target=-200.0),
    make("event", 1, event="worker_joined", worker="a"),
    make("event", 1, event="worker_joined", worker="b"),
    make("event", 2, event="phase", phase="learning"),
    *(episode(10 + index, -1000.0 + 10 * index, 200 * index, 100 * index) for index in range(20)),
    make("network", 30, 2000, samples_received=4200, samples_per_s=199.6, updates_per_s=150.0, policy_lag_mean=1.25,
         policy_lag_max=4, queue_bytes=38_200, samples_dropped=7, gaps=1, refused=0, workers=2),
    make("round", 31, 2000, return_test=-150.5),
    make("episode", 31, 2000, return_test=-150.5),
    make("evaluation", 32, 2000, return_evaluation=-250.0, return_evaluation_std=90.0),
    make("evaluation", 40, 2500, return_evaluation=-187.25, return_evaluation_std=80.0),
]  # fmt: skip


def display(records: list[MetricRecord], now_s: float = 41.0, **options: float) -> ProgressDisplay:
    clock_s = 1000.0
    shown = ProgressDisplay(clock=lambda: clock_s, **options)  # type: ignore[arg-type]
    for made in records:
        clock_s = 1000.0 + made.elapsed_s
        shown.update([made])
    clock_s = 1000.0 + now_s
    return shown


def drawn(shown: ProgressDisplay, width: int = 100, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(file=file, width=width, legacy_windows=False, color_system=None)
    console.print(shown)
    file.flush()
    raw = file.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode(encoding)


def row(text: str, label: str) -> str:
    (found,) = [line for line in text.splitlines() if f" {label} " in line]
    return " ".join(found.split())


def test_the_display_shows_all_values() -> None:
    text = drawn(display(RUN, time_limit_s=480.0))
    assert "pendulum" in text.splitlines()[0]
    assert "0:41 of 8:00" in text.splitlines()[-1]
    assert "◉ learning" in text
    for label, parts in {
        "samples": ["4,200", "200/s"],
        "updates": ["2,500", "150/s"],
        "workers": ["workers 2"],
        "policy lag": ["1.2", "highest 4"],
        "queue": ["38.2 kB"],
        "dropped": ["dropped 7", "gaps 1"],
        "training return": ["-855 latest 10"],
        "test return": ["-150"],
        "best evaluation": ["-187"],
        "target": ["-200 reached, confirming"],
    }.items():
        for part in parts:
            assert part in row(text, label)
    assert "▁" in text
    assert "█" in text


def test_a_standard_terminal_shows_all_of_it() -> None:
    waits = make("network", 40.5, 2500, waiting="2 of 2: " + 20 * "samples are above a limit ")
    shown = display([*RUN, make("event", 40.2, 2500, event="checkpoint", epoch=1), waits], time_limit_s=480.0)
    lines = drawn(shown, width=80).splitlines()
    assert len(lines) <= 24
    for text in (
        "training return  -855  latest 10",
        "checkpoint",
        "0:00 ago",
        "workers wait: 2 of 2: samples",
        "0.595 updates/sample",
    ):
        assert text in "\n".join(lines)


def test_it_fits_a_narrow_terminal_and_an_old_one() -> None:
    for width in (40, 60, 72, 100, 200):
        assert max(len(line) for line in drawn(display(RUN), width).splitlines()) <= min(width, 100)
    text = drawn(display(RUN), encoding="ascii")
    assert "> learning" in text
    assert "-187 +- 80" in text


def test_a_run_that_has_not_begun_is_shown() -> None:
    shown = display([], now_s=0.0)
    assert "◉ waiting for workers" in drawn(shown)
    assert shown.line() == "0:00 waiting for workers | workers 0 | samples 0 (0/s) | updates 0 (0/s)"


def test_the_line_has_the_same_values() -> None:
    assert display(RUN).line() == (
        "0:41 learning | workers 2 | samples 4,200 (200/s) | updates 2,500 (150/s) | train -855 | test -150"
        " | evaluation -187 | target -200 reached, confirming | lag 1.2 | dropped 7 | gaps 1"
    )


def test_the_phase_is_inferred_until_it_is_recorded() -> None:
    shown = display([])
    phases = []
    for made in (
        make("network", 1, samples_received=0),
        make("network", 2, samples_received=10),
        make("network", 3, 5, samples_received=20),
        make("event", 4, 5, event="phase", phase="evaluating"),
        make("network", 5, 6, samples_received=30),
        make("event", 6, 6, event="phase", phase="unheard of"),
        make("event", 7, 6, event="end"),
    ):
        shown.update([made])
        phases.append(shown.phase)
    assert phases == ["waiting", "collecting", "learning", "evaluating", "evaluating", "evaluating", "done"]


def test_returns_of_episodes_that_were_cut_are_left_out() -> None:
    shown = display([episode(1, -200.0), episode(2, -300.0)])
    values = episode_values(
        worker="a", mode="train", episode_return=-7.0, length=3, samples_received=900, end="aborted"
    )
    test = episode_values(worker="a", mode="test", episode_return=-7.0, length=3, samples_received=900, end="aborted")
    shown.update([record("episode", made, step=0, elapsed_s=3.0) for made in (values, test)])
    line = shown.line()
    assert "train -250" in line
    assert "test" not in line
    assert "samples 900" in line


def test_the_clock_stops_at_the_end_of_the_run() -> None:
    shown = display([*RUN, make("event", 50, 2500, event="end", message="learned")], now_s=500.0)
    assert shown.elapsed_s == 50.0
    assert "learned" in drawn(shown)
    shown.update([make("event", 51, 2500, event="start")])
    assert shown.elapsed_s == 51.0


def test_the_clock_of_a_display_that_waited_for_the_run_does_not_jump_back() -> None:
    now_s = 1000.0
    shown = ProgressDisplay(clock=lambda: now_s)
    now_s = 1005.0
    assert shown.elapsed_s == 5.0
    shown.update([record("event", {"event": "start"}, step=0, elapsed_s=0.0)])
    assert shown.elapsed_s == 5.0
    now_s = 1009.0
    shown.update([record("network", {}, step=1, elapsed_s=4.0)])
    assert shown.elapsed_s == 9.0


def test_the_clock_of_a_resumed_run_includes_its_earlier_time() -> None:
    shown = ProgressDisplay(clock=lambda: 1000.0)
    shown.update([record("event", {"event": "start"}, step=100, elapsed_s=60.0)])
    assert shown.elapsed_s == 60.0


def test_the_clock_restarts_with_a_new_run_in_the_same_file() -> None:
    shown = ProgressDisplay(clock=lambda: 1000.0)
    shown.update([make("event", 900, 5, event="end")])
    shown.update([make("event", 40, event="start")])
    assert shown.elapsed_s == 40.0


@pytest.mark.parametrize("set_s", [-3 * 3600.0, 30 * 3600.0])
def test_setting_the_wall_clock_moves_no_time_and_no_rate(set_s: float) -> None:
    now_s = 1000.0
    shown = ProgressDisplay(clock=lambda: now_s)
    for at_s in range(11):
        now_s = 1000.0 + at_s
        wall_s = 1_700_000_000.0 + at_s + (set_s if at_s >= 5 else 0.0)
        values = {"samples_received": 20 * at_s}
        shown.update([record("network", values, step=10 * at_s, elapsed_s=float(at_s), time_s=wall_s)])
        if at_s == 6:
            shown.update([record("event", {"event": "checkpoint"}, step=60, elapsed_s=6.0, time_s=wall_s)])
    assert shown.elapsed_s == 10.0
    assert shown.rates() == (20.0, 10.0)
    assert "0:04 ago" in row(drawn(shown), "checkpoint")


def test_a_resumed_run_goes_back_to_its_checkpoint() -> None:
    now_s = 1000.0
    shown = ProgressDisplay(clock=lambda: now_s)
    shown.update([make("network", 90, 900, samples_received=9000)])
    now_s = 1030.0
    shown.update([make("event", 60, 600, event="start"), make("network", 60, 600, samples_received=6000)])
    now_s = 1032.0
    shown.update([make("network", 62, 620, samples_received=6200)])
    assert shown.elapsed_s == 62.0
    assert shown.rates() == (100.0, 10.0)


def test_names_that_workers_choose_are_not_kept() -> None:
    made_up: list[dict[str, Any]] = [{f"rollout/ep_info/made_up_{n}": 1.0} for n in range(1_000)]
    shown = display([make("episode", 1.0, **values) for values in made_up])
    assert len(shown._latest) < 10


def test_missing_rates_are_computed() -> None:
    shown = display([make("network", second, 50 * second, samples_received=100 * second) for second in range(30)])
    assert shown.rates() == (100.0, 50.0)
    assert display([]).rates() == (0.0, 0.0)


def test_workers_are_counted_from_events_without_network_records() -> None:
    assert "workers 2" in display(RUN[:4]).line()
    assert "workers 1" in display([*RUN[:4], make("event", 3, event="worker_left", worker="b")]).line()


def test_the_wait_reason_of_training_is_shown_until_it_continues() -> None:
    shown = display([make("network", 1, 5, samples_received=9, lack="400 more samples")])
    assert "training waits: 400 more samples" in drawn(shown)
    assert "waits: 400 more samples" in shown.line()
    shown.update([make("network", 2, 6, samples_received=900)])
    assert "waits" not in drawn(shown) + shown.line()


def test_compiling_is_shown_until_updates_go_on() -> None:
    compiling = make("event", 1, event="compiling", message="compiling this agent's update for cpu")
    samples = make("episode", 2, samples_received=9)
    shown = display([compiling, samples])
    assert "training waits: compiling this agent's update for cpu" in drawn(shown)
    assert "waits: compiling this agent's update for cpu" in shown.line()
    assert "waits" not in display([compiling, make("event", 3, event="compiled", message="compiled in 9 s")]).line()
    assert "waits" not in display([compiling, make("round", 3, 16)]).line()


def test_numbers_that_are_not_finite_are_displayed() -> None:
    shown = display([*RUN, make("round", 42, 2500, policy_lag_mean=None, return_train=float("nan"))])
    assert "lag 1.2" in shown.line()


def test_lines_are_printed_every_few_seconds_without_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    now = [0.0]
    out = io.StringIO()
    progress = LiveProgress(
        display([]), follow(path), console=Console(file=out, width=20), line_every_s=5.0, clock=lambda: now[0]
    )
    with progress as live:
        for second in range(11):
            now[0] = float(second)
            live.refresh()
            if second == 2:
                path.write_bytes(encode_line(RUN[0]))
        path.write_bytes(b"".join(map(encode_line, RUN)))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3  # at 0 and 5 seconds, not at 10, where it would say the same, and at the end
    assert "updates 0" in lines[1]
    assert "updates 2,500" in lines[2]


def test_the_display_is_updated_in_place_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, legacy_windows=False, _environ={"TERM": "xterm"})
    with LiveProgress(display([]), follow(path), console=console) as live:
        path.write_bytes(b"".join(map(encode_line, RUN)))
        live.refresh()
        assert "2,500" in out.getvalue()
    text = out.getvalue()
    assert "\x1b[1A" in text  # the cursor went up to draw over the first picture
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")  # and is visible again


def test_the_terminal_is_released_when_the_loop_fails(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, legacy_windows=False, _environ={"TERM": "xterm"})

    def fail() -> None:
        with LiveProgress(display([]), follow(tmp_path / "metrics.jsonl"), console=console):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_shrinking_keeps_the_mean_of_equal_runs() -> None:
    assert shrink([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert shrink([1.0, 2.0], 5) == [1.0, 2.0]
    assert len(shrink([0.0] * 101, 10)) == 10


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0], 0.0, 1.0) == "▁█"
    assert sparkline([3.0, 3.0], 3.0, 3.0) == "▅▅"
    assert sparkline([-1e308, 1e308], -1e308, 1e308) == "▅▅"
    assert sparkline([], 0.0, 1.0) == ""


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (38_200, "38.2 kB"), (5e6, "5.0 MB"), (7.2e9, "7.2 GB")]
)
def test_bytes_as_text(count: float, text: str) -> None:
    assert bytes_text(count) == text
