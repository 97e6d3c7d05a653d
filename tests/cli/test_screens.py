"""Screens of the roles: a panel that fits a terminal, and lines where there is none."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.networking.end_to_end.ends import Ends
from tmrl_core.cli.screens import Screen, ServerLines, TrainerDisplay, WorkerDisplay
from tmrl_core.config import Config, from_values
from tmrl_core.errors import ForgedError
from tmrl_core.metrics import JsonLinesSink, Recorder
from tmrl_core.metrics.text import clock_text
from tmrl_core.networking import RolloutWorker, Server
from tmrl_core.networking.links import WorkerLink

PENDULUM = "tmrl_core:GenericGymEnv"


def config(folder: Path, **changes: dict[str, Any]) -> Config:
    values: dict[str, Any] = {
        "run": {"name": "r", "folder": str(folder)},
        "network": {"transport": "local"},
        "server": {"port": 0},
        "environment": {"cls": PENDULUM, "kwargs": {"id": "Pendulum-v1"}},
    }
    return from_values(values | changes)


class Lines(logging.Handler):
    """Log messages, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._more = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._more:
            self.said.append(record.getMessage())
            self._more.notify_all()

    def wait(self, condition: Callable[[list[str]], bool]) -> None:
        with self._more:
            assert self._more.wait_for(lambda: condition(self.said), 20.0), self.said


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("tmrl_core.cli.screens")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def drawn(panel: Any, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(panel)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def worker(made: Config, **changes: Any) -> RolloutWorker:
    from tmrl_core.config import environment_maker

    env = environment_maker(made.environment.cls, made.environment.kwargs)
    actor = "tmrl_core.actor:SquashedGaussianMLPActor"
    return RolloutWorker(env, actor, model_path=None, config=made, name="robot7", **changes)


def test_a_worker_shows_its_link_its_episodes_and_its_queue(tmp_path: Path) -> None:
    with Server(config=config(tmp_path)) as server, worker(config(tmp_path), server_port=server.port) as made:
        clock = [10.0]
        display = WorkerDisplay(made, "server.example.org port 55555", "r", lambda: clock[0])
        assert "link none for 0:00, trying server.example.org port 55555 again and again" in display.line()
        assert re.match(r"│  link          none for 0:00, trying", drawn(display.panel())[1])
        assert isinstance(made.link, WorkerLink)
        assert made.link.wait_connected(20.0)
        clock[0] += 5.0
        display.refresh()
        made.collect_train_episode()
        clock[0] += 5.0
        display.refresh()
        line = display.line()
        assert line.startswith("0:10 | link server.example.org port 55555 for 0:05 | episodes 1 | steps 201 (")
        assert re.search(
            r"\| return -\S+ in 200 steps \| policy none from the trainer yet \| queued 0 samples, 0 B \|", line
        )
        shown = drawn(display.panel())
        assert len(shown) <= 24
        for text in ("robot7, run r", "0:10", "acknowledged", "trainer"):
            assert text in "\n".join(shown)


def test_a_worker_shows_forged_and_outdated_messages(tmp_path: Path) -> None:
    with worker(config(tmp_path), server_port=1) as made:
        assert isinstance(made.link, WorkerLink)
        display = WorkerDisplay(made, "server.example.org port 55555", "r")
        assert not re.search("forged|outdated", display.line())
        trainer = Ends().trainer
        made.link._worker.seal = seal = Ends().worker
        for _ in range(3):
            with pytest.raises(ForgedError):
                seal.open_report(b"no trainer has made this")
        for incarnation in (2, 1):  # older than the accepted card
            assert not seal.announced(trainer.card(incarnation))
        assert "| forged 3 messages ignored; see the log | outdated 2 messages ignored |" in display.line()
        shown = "\n".join(drawn(display.panel()))
        assert re.search(r"forged +3 messages ignored; see the log", shown)
        assert re.search(r"outdated +2 messages ignored", shown)


def test_the_display_shows_a_worker_without_a_server(tmp_path: Path) -> None:
    with worker(config(tmp_path), standalone=True) as made:
        assert (
            "link none: this worker is on its own | episodes 0 | steps 0 (0/s)" in WorkerDisplay(made, "", "r").line()
        )


def test_without_a_terminal_lines_are_logged_during_the_run_and_at_its_end(tmp_path: Path, lines: Lines) -> None:
    made = config(tmp_path)
    with Recorder([JsonLinesSink(made.metrics_path)]) as recorder:
        display = TrainerDisplay(made)
        with Screen(display, line_every_s=0.0, refresh_s=0.01):
            recorder.event("phase", step=0, phase="collecting")
            lines.wait(lambda said: any("collecting" in line for line in said))
            recorder.event("end", step=7, phase="done")
            recorder.flush()
    assert "done | workers 0 | samples 0 (0/s) | updates 7" in lines.said[-1]


def test_a_trainer_shows_the_duration_of_a_lost_link(tmp_path: Path) -> None:
    clock, connected = [0.0], [True]
    display = TrainerDisplay(config(tmp_path), lambda: connected[0], lambda: clock[0])
    for second, now, shown in ((1.0, True, False), (2.0, False, True), (22.0, False, True), (23.0, True, False)):
        clock[0], connected[0] = second, now
        display.refresh()
        assert ("no link to the Server at" in display.line()) is shown
        text = f"no link to the Server at 127.0.0.1 port 0 for {clock_text(second - 2)}"
        assert (text in " ".join(drawn(display.panel()))) is shown


def test_a_display_that_fails_ends_no_role(lines: Lines) -> None:
    class Broken:
        def refresh(self) -> None:
            raise RuntimeError("broken")

        line = panel = refresh

    with Screen(Broken(), refresh_s=0.01):  # type: ignore[arg-type]
        lines.wait(lambda said: bool(said))
    assert lines.said == ["the display has failed; the role continues without it"]


def test_a_server_logs_a_line_each_minute_and_when_a_peer_joins(tmp_path: Path, lines: Lines) -> None:
    clock = [0.0]
    with Server(config=config(tmp_path)) as server:
        shown = ServerLines(server, lambda: clock[0])
        for second in (1.0, 59.0, 60.0, 61.0):
            clock[0] = second
            shown.refresh()
        assert lines.said == ["0 workers, no trainer; 0 samples relayed (0/s)"]
        with worker(config(tmp_path), server_port=server.port) as made:
            assert isinstance(made.link, WorkerLink)
            assert made.link.wait_connected(20.0)
            for second in (62.0, 66.0):
                clock[0] = second
                shown.refresh()
    assert lines.said[1:] == ["1 worker, no trainer; 0 samples relayed (0/s)"]
