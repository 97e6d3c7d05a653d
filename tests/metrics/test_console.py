from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.config import Config, from_values
from tmrl_core.envs import GenericGymEnv
from tmrl_core.metrics.console import hide_messages, show_messages
from tmrl_core.networking import RolloutWorker, Server, Trainer


@contextlib.contextmanager
def bare_logging() -> Iterator[None]:
    """Logging as a script finds it that has set up nothing: pytest's own handlers are put aside.

    No fixture: pytest adds its handlers after fixtures have run.
    """
    root, package = logging.getLogger(), logging.getLogger("tmrl_core")
    kept = root.handlers[:], root.level, package.handlers[:], package.level
    root.handlers[:], package.handlers[:] = [], []
    package.setLevel(logging.NOTSET)
    try:
        yield
    finally:
        root.handlers[:], package.handlers[:] = kept[0], kept[2]
        root.setLevel(kept[1])
        package.setLevel(kept[3])


def say(text: str) -> None:
    logging.getLogger("tmrl_core.somewhere").info("%s", text)


@bare_logging()
def test_messages_are_shown_without_logging_setup(capsys: pytest.CaptureFixture[str]) -> None:
    say("before")
    assert show_messages()
    say("after")
    shown = capsys.readouterr().err
    assert shown.endswith(" after\n")
    assert "before" not in shown


@bare_logging()
def test_a_second_call_does_not_double_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_messages()
    assert show_messages()
    say("once")
    assert capsys.readouterr().err.count("once") == 1


@bare_logging()
def test_messages_follow_a_replaced_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_messages()
    other = io.StringIO()
    monkeypatch.setattr(sys, "stderr", other)
    say("there")
    assert "there" in other.getvalue()
    assert capsys.readouterr().err == ""


@bare_logging()
@pytest.mark.parametrize("what", ["root handler", "package handler", "package level"])
def test_an_application_that_set_up_logging_is_left_alone(what: str) -> None:
    package = logging.getLogger("tmrl_core")
    if what == "root handler":
        logging.getLogger().addHandler(logging.NullHandler())
    elif what == "package handler":
        package.addHandler(logging.NullHandler())
    else:
        package.setLevel(logging.ERROR)
    before = package.handlers[:], package.level
    assert not show_messages()
    assert (package.handlers, package.level) == before


@bare_logging()
def test_later_logging_setup_of_the_application_takes_over(capsys: pytest.CaptureFixture[str]) -> None:
    show_messages()
    own = io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(own))
    say("first")
    say("second")
    assert capsys.readouterr().err == ""
    assert "first" in own.getvalue()
    package = logging.getLogger("tmrl_core")
    assert (package.handlers, package.level) == ([], logging.NOTSET)


@bare_logging()
def test_hiding_undoes_showing() -> None:
    show_messages()
    hide_messages()
    package = logging.getLogger("tmrl_core")
    assert (package.handlers, package.level) == ([], logging.NOTSET)


def test_a_plain_script_sees_its_rounds() -> None:
    script = """
from tmrl_core.metrics import ConsoleSink, Recorder, show_messages
show_messages()
with Recorder([ConsoleSink()]) as recorder:
    recorder.record("round", {"return_test": -187.25}, step=2000)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    assert "2,000 updates" in done.stderr
    assert "-187" in done.stderr


def make(kind: str, config: Config) -> None:
    if kind == "server":
        Server(port=0, config=config).close()
    elif kind == "worker":
        RolloutWorker(GenericGymEnv, NumpySquashedGaussianMLPActor, standalone=True, config=config).close()
    else:
        Trainer(config=config).close()


@bare_logging()
@pytest.mark.parametrize("kind", ["server", "worker", "trainer"])
def test_scripts_without_logging_setup_see_messages_of_the_public_classes(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = from_values({"run": {"folder": str(tmp_path), "name": "run"}, "network": {"transport": "local"}})
    make(kind, config)
    say("this was seen")
    out, err = capsys.readouterr()
    assert "this was seen" in err
    assert out == ""
    hide_messages()
    own = io.StringIO()
    logging.basicConfig(level=logging.INFO, stream=own, format="by the application: %(message)s")
    make(kind, config)
    say("this was seen")
    assert "by the application: this was seen" in own.getvalue()
    assert "this was seen" not in capsys.readouterr().err


def test_importing_the_package_is_light() -> None:
    script = """
import sys, threading, logging
import tmrl_core.metrics as metrics
for name in metrics.__all__:
    if name != "draw":
        getattr(metrics, name)
heavy = {"torch", "wandb", "tensorboard", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
metrics.draw
assert "matplotlib" not in sys.modules
assert threading.active_count() == 1
assert not logging.getLogger("tmrl_core").handlers
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
