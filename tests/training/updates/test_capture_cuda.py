"""The order in which a CUDA graph is recorded. What stands for CUDA keeps books of its streams, and does no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tmrl_core.training.memories.prefetch import BESIDE
from tmrl_core.training.updates.cuda_graphs import capture_cuda

DEVICE = torch.device("cuda:1")


class Stream:
    def __init__(self, books: Books) -> None:
        self.device = books.device
        self.waited_for: list[Stream] = []

    def wait_stream(self, stream: Stream) -> None:
        self.waited_for.append(stream)


class CUDAGraph:
    replayed = 0

    def replay(self) -> None:
        self.replayed += 1


class Books:
    """Stands for torch.cuda: which device and which stream are current, and what is recorded."""

    def __init__(self, fails: bool) -> None:
        self.device: Any = torch.device("cuda:0")
        self.fails = fails
        self.recording: Stream | None = None
        self.current = self.default = Stream(self)
        self.done: list[tuple[Any, Stream, bool]] = []
        """Of each piece of work: the device, the stream, and whether it was recorded."""

    def work(self) -> list[torch.Tensor]:
        self.done.append((self.device, self.current, self.recording is self.current))
        return [torch.zeros(())]

    @contextmanager
    def on(self, device: Any) -> Iterator[None]:
        before, self.device = self.device, device
        yield
        self.device = before

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(self, graph: CUDAGraph, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local", "what other threads do is their own"
        assert BESIDE.locked(), "threads that prepare batches wait"
        before, self.current, self.recording = self.current, stream, stream
        try:
            yield
        finally:
            self.recording = None
        if self.fails:
            # As torch 2.13 does it: the stream is left in place.
            raise RuntimeError("operation failed due to a previous error during capture")
        self.current = before

    def set_stream(self, stream: Stream) -> None:
        self.current = stream


@pytest.fixture(params=[False, True], ids=["succeeds", "fails"])
def books(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Books:
    books = Books(request.param)
    for name, stand_in in {
        "device": books.on,
        "current_stream": lambda: books.current,
        "Stream": lambda: Stream(books),
        "stream": books.stream,
        "CUDAGraph": CUDAGraph,
        "graph": books.graph,
        "set_stream": books.set_stream,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return books


def test_capture_uses_its_own_stream_and_restores_the_current_one(books: Books) -> None:
    if books.fails:
        with pytest.raises(RuntimeError, match="during capture"):
            capture_cuda(books.work, DEVICE)
    else:
        replay, results = capture_cuda(books.work, DEVICE)
        replay()
        assert len(results) == 1
    devices, streams, recorded = zip(*books.done, strict=True)
    assert set(devices) == {DEVICE}, "not on the device that happens to be the current one"
    assert recorded == (False, True)
    [stream] = set(streams)
    assert stream.device == DEVICE
    # What was tried comes after what was done before, and before what is done then.
    assert stream.waited_for == [books.default]
    assert books.default.waited_for == [stream]
    assert books.current is books.default
    assert not BESIDE.locked()
