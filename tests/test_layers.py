"""Each test stays in its layer: units start no process and open no network socket."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import layers
from tests.layers import LAYERS, LayerError, kept_in, layer_of, raise_refused

ROOT = Path(__file__).resolve().parents[1]


def start_process() -> None:
    subprocess.run([sys.executable, "--version"], check=True)


def start_child() -> None:
    multiprocessing.get_context("spawn").Process(target=print).start()


def connect() -> None:
    with socket.socket() as opened:
        opened.connect(("127.0.0.1", 9))


def listen() -> None:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))


def resolve() -> None:
    socket.getaddrinfo("tmrl.example", 80)


SOCKETS = pytest.mark.skipif(sys.platform == "win32", reason="event loops open network sockets on Windows")


@pytest.mark.parametrize(
    "reach",
    [start_process, start_child, *(pytest.param(reach, marks=SOCKETS) for reach in (connect, listen, resolve))],
)
def test_a_unit_is_refused(reach: Callable[[], None]) -> None:
    with kept_in("unit") as refused:
        with pytest.raises(LayerError, match=r"tests/layers\.py"):
            reach()
        assert refused


@SOCKETS
def test_a_refusal_in_a_thread_counts() -> None:
    def swallow() -> None:
        with pytest.raises(LayerError):
            connect()

    with kept_in("unit") as refused:
        thread = threading.Thread(target=swallow)
        thread.start()
        thread.join()
        assert refused == ["socket.connect"]


def test_a_test_with_sockets_starts_no_process() -> None:
    with kept_in("socket") as refused:
        listen()
        with pytest.raises(LayerError):
            start_process()
        assert refused == ["subprocess.Popen"]


def test_layers_name_tests_that_exist() -> None:
    for names in LAYERS.values():
        for name in names:
            file, _, test = name.partition("::")
            assert (ROOT / file).exists(), name
            assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_no_test_has_two_layers() -> None:
    names = [name for layer in LAYERS.values() for name in layer]
    assert len(names) == len(set(names))


def test_the_longest_name_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYERS, "process", ("tests/one", "tests/two/test_b.py::test_c"))
    monkeypatch.setitem(LAYERS, "slow", ("tests/one/test_a.py",))
    assert layer_of("tests/one/test_b.py::test_x") == "process"
    assert layer_of("tests/one/test_a.py::test_x") == "slow"
    assert layer_of("tests/two/test_b.py::test_c[1]") == "process"
    assert layer_of("tests/two/test_b.py::test_cd") == "unit"


def test_a_swallowed_refusal_fails_the_test() -> None:
    with kept_in("unit"):
        raise_refused()
        with pytest.raises(LayerError):
            start_process()
        with pytest.raises(LayerError):
            raise_refused()


def test_the_guard_is_on(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("unit")
    with pytest.raises(LayerError):
        start_process()
    layers._reached.clear()
