from __future__ import annotations

import itertools
import json
import logging
import math
import os
import random
import resource
import shutil
import threading
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.training.checkpoints.manifests import change_manifest
from tmrl_core.errors import CheckpointError
from tmrl_core.samples import Buffer, EpisodeRecord
from tmrl_core.training import (
    CheckpointStore,
    GenericTorchMemory,
    ReplayMemory,
)
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.checkpoints.checked_files import parse_safetensors, parse_state
from tmrl_core.training.checkpoints.checkpoint_folder import load_training, save_training
from tmrl_core.training.interface import Delivery, LocalInterface
from tmrl_core.training.loops import training_loop
from tmrl_core.training.loops.training_loop import TrainingOffline

SPACES = (
    gym.spaces.Box(-10, 10, (3,), np.float32),
    gym.spaces.Box(-1, 1, (1,), np.float32),
)


def make_training(
    memory_cls: Callable[..., Any] = ReplayMemory, agent_cls: Any = SacAgent, memory_size: int = 60, hidden: int = 8
) -> TrainingOffline:
    """A small agent; everything random comes from torch's global generator."""

    def make_memory(nb_steps: int, device: Any) -> Any:
        return memory_cls(nb_steps=nb_steps, device=device, memory_size=memory_size, batch_size=16)

    def make_agent(**kwargs: Any) -> Any:
        return (
            agent_cls(**kwargs, model_kwargs={"hidden_sizes": (hidden, hidden)})
            if agent_cls is SacAgent
            else agent_cls(**kwargs)
        )

    return TrainingOffline(
        SPACES,
        make_memory,
        make_agent,
        epochs=6,
        rounds=2,
        steps=5,
        update_model_interval=3,
        update_buffer_interval=2,
        device="cpu",
    )


class Recorded(LocalInterface):
    """Hands over one recorded message each time that it is asked, from a position that can be chosen."""

    def __init__(self, make_rows: Any, position: int = 0, counter: int = 0) -> None:
        super().__init__(counter=counter)
        self.position = position
        self._make_rows = make_rows

    def receive(self) -> list[Delivery]:
        stream, number = self.position % 3 + 1, self.position // 3
        self.position += 1
        buffer = Buffer(maxlen=None)
        records = [EpisodeRecord("", float(number), 4, "train", "truncated")]
        buffer.extend([self._make_rows(stream, number // 2, 4 * (number % 2), 4)], records)
        return [Delivery(buffer.chunks, buffer.episodes)]


def weights(training: TrainingOffline) -> list[torch.Tensor]:
    agent = training.agent
    return [*agent.model.state_dict().values(), *agent.target_critics.state_dict().values(), agent.log_alpha.detach()]


def same(a: TrainingOffline, b: TrainingOffline) -> bool:
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


@pytest.mark.parametrize(
    ("memory_cls", "through_store"),
    [
        (ReplayMemory, True),
        (ReplayMemory, False),
        (GenericTorchMemory, False),
        pytest.param(GenericTorchMemory, True, marks=pytest.mark.full),
    ],
)
def test_resuming_equals_the_uninterrupted_run_bit_for_bit(
    tmp_path: Path, make_rows: Any, memory_cls: Any, through_store: bool
) -> None:
    torch.manual_seed(1)
    training = make_training(memory_cls)
    interface = Recorded(make_rows)
    store = CheckpointStore(tmp_path / "store")
    for _ in range(3):
        training.run_epoch(interface)
        store.save(training, wait=True)
    training.save(tmp_path / "alone")
    position = interface.position
    expected_rows = [row for _ in range(3) for row in training.run_epoch(interface)]

    torch.manual_seed(99)
    random.seed(99)
    if through_store:
        resumed = CheckpointStore(tmp_path / "store").restore(lambda: make_training(memory_cls))
        assert resumed is not None
    else:
        resumed = make_training(memory_cls)
        resumed.load(tmp_path / "alone")
    assert (resumed.epoch, resumed.total_updates) == (3, 30)
    interface = Recorded(make_rows, position)
    rows = [row for _ in range(3) for row in resumed.run_epoch(interface)]
    assert same(training, resumed)
    for expected, found in zip(expected_rows, rows, strict=True):
        for name in ("loss_critic", "loss_actor", "memory_len", "samples_received", "return_train", "epoch", "round"):
            assert expected[name] == found[name]


@pytest.mark.parametrize(
    "memory_cls",
    [
        partial(ReplayMemory, priority={}),
        *(pytest.param(memory, marks=pytest.mark.full) for memory in (ReplayMemory, GenericTorchMemory)),
    ],
)
def test_a_checkpoint_within_a_round_resumes_bit_for_bit(
    tmp_path: Path, make_rows: Any, memory_cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_loop, "NOTED_S", 0.0)  # rests after each update
    updates = (0, 3, 5, 7, 12)

    class Rested(Recorded):
        def rest(self) -> None:
            update = training.total_updates
            if update in updates and len(training.memory) and update not in taken:
                store.save(training, wait=True)
                shutil.copytree(tmp_path / "store", tmp_path / str(update))
                taken[update] = self.position

    def make() -> TrainingOffline:
        training = make_training(memory_cls, lambda **kwargs: SacAgent(**kwargs, hidden_sizes=(8, 8)))
        training.epochs = 3
        return training

    def run(training: TrainingOffline, interface: Recorded) -> None:
        while not training.finished:
            training.run_epoch(interface)

    store = CheckpointStore(tmp_path / "store")
    taken: dict[int, int] = {}
    torch.manual_seed(1)
    expected = make()
    run(expected, Recorded(make_rows))
    torch.manual_seed(1)
    training = make()
    run(training, Rested(make_rows))
    assert same(training, expected)
    assert tuple(taken) == updates
    for update, position in taken.items():
        torch.manual_seed(99)
        resumed = CheckpointStore(tmp_path / str(update)).restore(make)
        assert resumed is not None
        assert resumed.total_updates == update
        run(resumed, Recorded(make_rows, position))
        assert same(resumed, expected), f"from update {update}"


class Versioned(Recorded):
    """Counts versions on from where a run stood; what was handed over once is handed over again as it was."""

    def __init__(self, make_rows: Any, recording: list[Buffer], position: int = 0, counter: int = 0) -> None:
        super().__init__(make_rows, position, counter)
        self._recording = recording

    def receive(self) -> list[Delivery]:
        if self.position == len(self._recording):
            stream, number = self.position % 3 + 1, self.position // 3
            buffer = Buffer(maxlen=None)
            buffer.extend([self._make_rows(stream, number // 2, 4 * (number % 2), 4, version=self.version)], [])
            self._recording.append(buffer)
        self.position += 1
        buffer = self._recording[self.position - 1]
        return [Delivery(buffer.chunks, buffer.episodes)]


@pytest.mark.parametrize(
    ("settings", "priority"),
    [
        ({"max_drawn_lag": 2}, None),
        ({"max_drawn_lag": 2}, {}),
        ({"max_policy_lag": 0}, {}),
        pytest.param({"max_policy_lag": 0}, None, marks=pytest.mark.full),
    ],
)
def test_policy_lags_continue_over_an_interruption(
    tmp_path: Path, make_rows: Any, priority: Any, settings: dict[str, int]
) -> None:
    drawn_lag = settings.get("max_drawn_lag")
    memory_cls = partial(ReplayMemory, priority=priority, max_drawn_lag=drawn_lag)

    def make() -> TrainingOffline:
        training = make_training(memory_cls, memory_size=200)
        training.max_policy_lag = settings.get("max_policy_lag")
        return training

    torch.manual_seed(1)
    training = make()
    recording: list[Buffer] = []
    interface = Versioned(make_rows, recording)
    for _ in range(3):
        training.run_epoch(interface)
    CheckpointStore(tmp_path).save(training, wait=True)
    position, published = interface.position, interface.version[1]
    expected = [row for _ in range(3) for row in training.run_epoch(interface)]
    if drawn_lag is not None:
        assert 0 < training.memory.sampleable < len(training.memory)
        assert max(row["drawn_lag_max"] for row in expected) == drawn_lag

    torch.manual_seed(99)
    resumed = CheckpointStore(tmp_path).restore(make)
    assert resumed is not None
    assert resumed.versions_before == published - 1
    other = Versioned(make_rows, recording, position, resumed.versions_before)
    rows = [row for _ in range(3) for row in resumed.run_epoch(other)]
    assert other.version == interface.version
    assert same(training, resumed)
    for left, right in zip(expected, rows, strict=True):
        for name in ("loss_critic", "memory_len", "samples_stale", "policy_lag_mean", "drawn_lag_mean"):
            assert left.get(name) == right.get(name)


def test_a_checkpoint_writes_only_new_rows(tmp_path: Path, make_rows: Any) -> None:
    training = make_training(memory_size=10_000)
    store = CheckpointStore(tmp_path)
    training.memory.append_chunk(make_rows(1, 0, 0, 5000))
    store.save(training, wait=True)
    (first,) = (tmp_path / "replay").iterdir()
    before = first.stat().st_size
    training.memory.append_chunk(make_rows(1, 0, 5000, 10))
    store.save(training, wait=True)
    row_bytes = training.memory.layout.row_bytes + 16
    assert [file.name for file in (tmp_path / "replay").iterdir()] == [first.name]
    assert before > 4999 * row_bytes
    assert 10 * row_bytes <= first.stat().st_size - before < 10 * row_bytes + 500


class Many:
    """A training object with an agent and a memory for each of its policies."""

    def __init__(self) -> None:
        self.agents = {name: SacAgent(*SPACES, "cpu", hidden_sizes=(4,)) for name in ("walker", "runner")}
        self.memories = {name: ReplayMemory(memory_size=20, batch_size=4) for name in self.agents}


@pytest.mark.parametrize("through_store", [True, False])
def test_one_checkpoint_holds_several_policies_and_the_rows_of_each_memory(
    tmp_path: Path, make_rows: Any, through_store: bool
) -> None:
    training = Many()
    store = CheckpointStore(tmp_path / "store")
    for episode in range(3):
        training.memories["walker"].append_chunk(make_rows(1, episode, 0, 9))
        training.memories["runner"].append_chunk(make_rows(2, 10 * episode, 0, 5))
        store.save(training, wait=True)
    if through_store:
        found = CheckpointStore(tmp_path / "store").restore(Many)
        assert found is not None
    else:
        save_training(training, tmp_path / "alone")
        load_training(found := Many(), tmp_path / "alone")
    for name, memory in training.memories.items():
        expected = [memory.get_transition(i)[3].tolist() for i in range(len(memory))]
        assert len(expected) == {"walker": 20, "runner": 12}[name]
        assert [found.memories[name].get_transition(i)[3].tolist() for i in range(len(memory))] == expected
        pairs = zip(training.agents[name].model.parameters(), found.agents[name].model.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_rows_that_no_kept_checkpoint_needs_are_removed(
    tmp_path: Path, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_core.training.checkpoints.replay_rows.SEGMENT_BYTES", 1)  # a file of rows per checkpoint
    training = make_training(memory_size=20)
    store = CheckpointStore(tmp_path, keep_last=2, keep_best=False)
    for i in range(8):
        training.memory.append_chunk(make_rows(1, i, 0, 9))
        store.save(training, wait=True)
    assert store.counters() == [7, 8]
    # 20 rows of the newest checkpoint, and those of the one before, are in the last four files of eight rows each.
    assert len(list((tmp_path / "replay").iterdir())) == 4
    resumed = CheckpointStore(tmp_path).restore(lambda: make_training(memory_size=20))
    assert resumed is not None
    assert [resumed.memory.get_transition(i)[3][2] for i in range(20)] == [
        training.memory.get_transition(i)[3][2] for i in range(20)
    ]


def test_an_old_file_that_cannot_be_removed_fails_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "replay" / "rows-held.seg").mkdir(parents=True)
    store = CheckpointStore(tmp_path)
    written: list[int] = []
    store.save(make_training(), wait=True, on_written=lambda: written.append(1))
    assert (store.failures, store.written, written) == (0, 1, [1])


def test_the_best_checkpoint_is_kept_besides_the_last_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    training = make_training()
    for score in (None, -300.0, -100.0, -200.0, None, -150.0):
        store.save(training, score=score, wait=True)
    assert store.counters() == [3, 5, 6]


@pytest.mark.parametrize("absurd", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_not_the_best(tmp_path: Path, absurd: float) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    training = make_training()
    for score in (absurd, -100.0, -200.0, -300.0):
        store.save(training, score=score, wait=True)
    assert store.counters() == [2, 4]


def test_numbers_of_checkpoints_continue_after_a_restart(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(make_training(), wait=True)
    store = CheckpointStore(tmp_path)
    assert store.restore(make_training) is not None
    assert store.save(make_training(), wait=True) == 2


def test_load_returns_none_without_checkpoints(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "nothing").restore(make_training) is None


def test_the_previous_checkpoint_is_used_after_any_truncation(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    training = make_training()
    store = CheckpointStore(tmp_path / "good")
    for epoch in range(2):
        training.epoch = epoch
        training.memory.append_chunk(make_rows(1, epoch, 0, 9))
        store.save(training, wait=True)
    files = [path.relative_to(tmp_path / "good") for path in (tmp_path / "good" / "2").iterdir()]
    (rows,) = (tmp_path / "good" / "replay").iterdir()
    cuts = [(name, share) for name in files for share in (0.0, 0.3, 0.99)]
    cuts += [(rows.relative_to(tmp_path / "good"), 0.99)]  # within what only the second checkpoint has written
    for i, (name, share) in enumerate(cuts):
        copy = tmp_path / str(i)
        shutil.copytree(tmp_path / "good", copy)
        with (copy / name).open("r+b") as file:
            file.truncate(int((copy / name).stat().st_size * share))
        restored = CheckpointStore(copy).restore(make_training)
        assert restored is not None
        assert restored.epoch == 0
        assert len(restored.memory) == 8
        assert "checkpoint 2 cannot be used" in caplog.text
        caplog.clear()


def test_one_changed_byte_is_noticed(tmp_path: Path, make_rows: Any) -> None:
    training = make_training()
    training.memory.append_chunk(make_rows(1, 0, 0, 9))
    CheckpointStore(tmp_path).save(training, wait=True)
    for path in [*(tmp_path / "1").iterdir(), *(tmp_path / "replay").iterdir()]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="no checkpoint"):
            CheckpointStore(tmp_path).restore(make_training)
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert CheckpointStore(tmp_path).restore(make_training) is not None


@pytest.mark.parametrize("priority", [None, {}], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("kind", ["flipped", "missing"])
def test_training_can_continue_with_newer_rows_if_older_ones_are_damaged(
    tmp_path: Path, make_rows: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any, priority: Any, kind: str
) -> None:
    monkeypatch.setattr("tmrl_core.training.memories.row_files.RECORD_BYTES", 400)
    if kind == "missing":
        monkeypatch.setattr("tmrl_core.training.checkpoints.replay_rows.SEGMENT_BYTES", 1)
    make = partial(make_training, partial(ReplayMemory, priority=priority))
    training = make()
    store = CheckpointStore(tmp_path)
    for i in range(4):
        training.memory.append_chunk(make_rows(1, i, 0, 21))
        store.save(training, wait=True)
    whole = [training.memory.get_transition(item)[3].tolist() for item in range(len(training.memory))]
    assert len(whole) == 60
    rows = sorted((tmp_path / "replay").iterdir())
    if kind == "flipped":
        (file,) = rows
        data = bytearray(file.read_bytes())
        # A payload in the middle of those that are still needed, and one before.
        for part in (3, 5):
            data[data.index(b"REC1", len(data) * part // 8) + 200] ^= 1
        file.write_bytes(data)
    else:
        assert len(rows) > 2
        rows[1].unlink()
    with pytest.raises(CheckpointError, match=r"\(4.* 3: .* set checkpoint\.drop_damaged: true\.$"):
        CheckpointStore(tmp_path).restore(make)
    caplog.clear()
    store = CheckpointStore(tmp_path)
    restored = store.restore(make, drop_damaged=True)
    assert restored is not None
    memory = restored.memory
    kept = [memory.get_transition(item)[3].tolist() for item in range(len(memory))]
    assert 0 < len(kept) < len(whole)
    assert kept == whole[-len(kept) :]
    assert f"{60 - len(kept)} of 60 transitions are dropped" in caplog.text
    assert f"continues with the newest {len(kept)}" in caplog.text
    for _ in range(20):
        assert all(obs in kept for obs in memory.sample()[3].tolist())
    memory.append_chunk(make_rows(1, 9, 0, 5))
    store.save(restored, wait=True)
    again = CheckpointStore(tmp_path).restore(make)
    assert again is not None
    assert [again.memory.get_transition(item)[3].tolist() for item in range(len(kept))] == kept
    assert len(again.memory) == len(kept) + 4


def test_no_rows_are_kept_if_the_newest_are_damaged(tmp_path: Path, make_rows: Any) -> None:
    training = make_training()
    training.memory.append_chunk(make_rows(1, 0, 0, 9))
    CheckpointStore(tmp_path).save(training, wait=True)
    (file,) = (tmp_path / "replay").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="the newest replay rows are damaged too"):
        CheckpointStore(tmp_path).restore(make_training, drop_damaged=True)


def test_the_error_for_another_configuration_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path)
    for _ in range(2):
        store.save(make_training(), wait=True)
    with pytest.raises(
        CheckpointError, match=r"\(2 and 1: the checkpoint belongs .* differences\)\. Choose another run"
    ):
        CheckpointStore(tmp_path).restore(lambda: make_training(hidden=9))
    assert "configuration" not in caplog.text, "whoever catches the error says it"


def test_another_configuration_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    make_training().save(tmp_path / "one")
    for other, named in (
        (
            make_training(hidden=9),
            r"agent\.model\.actor\.net\.0\.weight was \[8, 3\] and is \[9, 3\], and \d+ more differences$",
        ),
        (make_training(memory_size=61), "memory.capacity was 60 and is 61"),
        (make_training(memory_cls=GenericTorchMemory), "memory was of type replay and is of type generic_torch_memory"),
    ):
        before = [tensor.clone() for tensor in weights(other)]
        with pytest.raises(CheckpointError, match=named):
            other.load(tmp_path / "one")
        assert all(torch.equal(a, b) for a, b in zip(before, weights(other), strict=True))
    store = CheckpointStore(tmp_path / "store")
    for _ in range(2):
        store.save(make_training(), wait=True)
    said = (
        r"\(2 and 1: the checkpoint .*memory\.capacity was 60 and is 61\)\. .*the folder away to start from scratch\.$"
    )
    for drop_damaged in (False, True):
        with pytest.raises(CheckpointError, match=said):
            store.restore(partial(make_training, memory_size=61), drop_damaged=drop_damaged)


class Odd(SacAgent):
    """Holds whatever no checkpoint can."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.chain = itertools.chain([1], [2])
        self.lines = (line for line in ["a"])
        self.lock = threading.Lock()
        self.file = open(os.devnull)  # noqa: SIM115
        self.call = lambda: 3
        self.layer = torch.nn.Linear
        self.handlers = {threading.Lock(), threading.Lock()}
        self.by_object = {object(): 1}
        self.words = np.array(["a", None], dtype=object)
        self.mixed: dict[str, Any] = {"lock": self.lock, "count": 0}
        self.endless: list[Any] = [0]
        self.endless.append(self.endless)
        self.hostile = Hostile()


class Hostile:
    """Neither lists, nor pickles, nor says what it is in."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no")

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("it is busy")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("nothing was saved of it")


def test_unsupported_values_are_skipped_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> TrainingOffline:
        return make_training(agent_cls=Odd)

    training = make()
    agent = training.agent
    agent.mixed |= {"count": 5, "later": threading.Lock()}
    agent.endless[0] = 7
    agent.later = itertools.count()
    store = CheckpointStore(tmp_path)
    store.save(training, wait=True)
    store.save(training, wait=True)
    (warning,) = [record.getMessage() for record in caplog.records if "cannot hold" in record.getMessage()]
    for path in (
        "agent.chain (itertools.chain)", "agent.lines (builtins.generator)", "agent.lock", "agent.file", "agent.later",
        "agent.handlers", "agent.by_object", "agent.words (an array of object)", "agent.mixed['later']",
        "RuntimeError: it is busy",
    ):  # fmt: skip
        assert path in warning
    assert "agent.layer" not in warning, "a class is no state"
    resumed = CheckpointStore(tmp_path).restore(make)
    assert resumed is not None
    assert same(training, resumed)
    found = resumed.agent
    assert [*found.chain, *found.lines, found.call(), len(found.handlers), len(found.by_object)] == [1, 2, "a", 3, 2, 1]
    assert found.layer is torch.nn.Linear
    assert found.mixed == {"lock": found.lock, "count": 5}
    assert found.endless[0] == 7
    assert found.endless[1] is found.endless
    assert not hasattr(found, "later")
    for one in (agent, found):
        one.file.close()


class Counter:
    """An object that saves itself."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "raw": b"\x00\xff"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["raw"] == b"\x00\xff"
        self.count = state["count"]


class Rich(TrainingAgent):
    """An agent with a bit of everything."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.net = torch.nn.Linear(2, 2)
        self.head = self.net
        self.parameters = list(self.net.parameters())
        self.optimizer = torch.optim.Adam(self.parameters)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.half = torch.zeros(2, dtype=torch.bfloat16)
        self.python = random.Random(0)
        self.numpy = np.random.default_rng(0)
        self.generator = torch.Generator().manual_seed(0)
        self.counter = Counter()
        self.numbers: list[Any] = []
        self.nested: dict[Any, Any] = {}
        self.nothing: Any = None
        self.shared = self.array = np.zeros(3)

    @cached_property
    def expensive(self) -> object:
        return object()

    def train(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_actor(self) -> Any:
        return None


def test_everything_reachable_is_saved(tmp_path: Path) -> None:
    training = make_training(agent_cls=Rich)
    agent = training.agent
    for _ in range(3):
        agent.optimizer.zero_grad()
        agent.net(torch.randn(5, 2)).square().sum().backward()
        agent.optimizer.step()
        agent.scheduler.step()
    agent.half += 1.5
    for draw in (agent.python.random, agent.numpy.random):
        draw()
    torch.rand(3, generator=agent.generator)
    agent.counter.count = 7
    agent.numbers = [math.inf, -0.5, *range(30), 2**70, True, "x", None]
    agent.nested = {1: (1, [2, {"a": np.float32(0.1)}]), "s": {3, 4}, (1, 2): b"\x01"}
    agent.nothing = 4
    agent.array += 2
    assert agent.expensive is not None
    training.save(tmp_path / "c")

    other = make_training(agent_cls=Rich)
    parameters = list(other.agent.net.parameters())
    other.load(tmp_path / "c")
    found = other.agent
    assert torch.equal(found.net.weight, agent.net.weight)
    assert found.head is found.net
    assert all(a is b for a, b in zip(found.parameters, parameters, strict=True))
    assert found.optimizer.param_groups[0]["params"][0] is parameters[0]
    assert torch.equal(
        found.optimizer.state[parameters[0]]["exp_avg"], agent.optimizer.state[agent.net.weight]["exp_avg"]
    )
    assert found.scheduler.last_epoch == 3
    assert torch.equal(found.half, agent.half)
    assert found.python.random() == agent.python.random()
    assert found.numpy.random() == agent.numpy.random()
    assert torch.equal(torch.rand(3, generator=found.generator), torch.rand(3, generator=agent.generator))
    assert found.counter.count == 7
    assert found.numbers == agent.numbers
    assert found.nested == agent.nested
    assert type(found.nested[1][1][1]["a"]) is np.float32
    assert found.nothing == 4
    assert found.array.tolist() == [2, 2, 2]
    assert found.shared is found.array
    assert "expensive" not in vars(found)


def test_settings_come_from_the_configuration_and_counters_from_the_checkpoint(tmp_path: Path) -> None:
    training = make_training()
    training.epoch = training.epochs = 6
    training.save(tmp_path / "c")
    longer = make_training()
    longer.epochs = 9
    longer.load(tmp_path / "c")
    assert (longer.epoch, longer.epochs, longer.finished) == (6, 9, False)


def test_a_full_disk_keeps_the_old_checkpoint_and_warns_each_time(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    training = make_training(memory_size=5000)
    store = CheckpointStore(tmp_path)
    training.memory.append_chunk(make_rows(1, 0, 0, 9))
    store.save(training, wait=True)
    training.epoch = 1
    training.memory.append_chunk(make_rows(1, 1, 0, 3000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        for failures in (1, 2):
            store.save(training, wait=True)
            assert store.failures == failures
            assert caplog.text.count("training continues") == failures
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.counters() == [1]
    old = CheckpointStore(tmp_path).restore(lambda: make_training(memory_size=5000))
    assert old is not None
    assert (old.epoch, len(old.memory)) == (0, 8)
    # There is room again: the next one is whole.
    with caplog.at_level(logging.INFO):
        store.save(training, wait=True)
    assert store.last_error == ""
    new = CheckpointStore(tmp_path).restore(lambda: make_training(memory_size=5000))
    assert new is not None
    assert (new.epoch, len(new.memory)) == (1, 8 + 2999)


def test_training_continues_while_a_checkpoint_is_written(tmp_path: Path, make_rows: Any) -> None:
    training = make_training(memory_size=200)
    store = CheckpointStore(tmp_path)
    training.memory.append_chunk(make_rows(1, 0, 0, 200))
    store.save(training)
    # More than the memory holds: these appends may overwrite a row only after it is written.
    for episode in range(1, 9):
        training.memory.append_chunk(make_rows(1, episode, 0, 100))
    assert store.wait(10)
    saved = CheckpointStore(tmp_path).restore(lambda: make_training(memory_size=200))
    assert saved is not None
    assert [saved.memory.get_transition(i)[3][2] for i in range(199)] == list(range(1, 200))


def test_an_unfinished_folder_is_not_a_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(make_training(), wait=True)
    (tmp_path / ".2-abc.tmp").mkdir()
    assert store.counters() == [1]
    store.save(make_training(), wait=True)
    assert not (tmp_path / ".2-abc.tmp").exists()


def test_a_checkpoint_of_a_store_without_any_rows_loads_alone(tmp_path: Path) -> None:
    training = make_training()
    CheckpointStore(tmp_path).save(training, wait=True)
    training.total_updates = 7
    load_training(training, tmp_path / "1")
    assert training.total_updates == 0


@pytest.mark.parametrize(
    "change", [{"stop": 1 << 60}, {"dtypes": ["<f4", "<f4"]}, {"dtypes": ["object"]}], ids=["many", "widths", "dtype"]
)
def test_impossible_rows_in_a_manifest_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    make_training().save(tmp_path / "alone")
    rows = {"start": 0, "stop": 5, "dtypes": ["<f4"], "widths": [3], "segments": [], **change}
    change_manifest(tmp_path / "alone", rows={"memory": rows})
    with pytest.raises(CheckpointError):
        load_training(make_training(), tmp_path / "alone")


@pytest.mark.parametrize("text", [b"[1]", b"{", b"[" * 100_000, b"\xff\xff"])
def test_a_state_that_is_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"does not hold what its manifest says"):
        parse_state(text, Path("state.json"))


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ([2], [0, 1 << 70]),
        ([1 << 62, 4], [0, 8]),
        ([-1], [0, 8]),
        ([2], [-8, 0]),
        ([2], [8, 16]),
        ([1.5], [0, "x"]),
        ([0], [1 << 40, 1 << 40]),
    ],
)
def test_arrays_at_impossible_positions_are_refused(shape: list[Any], offsets: list[Any]) -> None:
    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    with pytest.raises(CheckpointError, match="does not hold"):
        parse_safetensors(len(text).to_bytes(8, "little") + text + bytes(8), Path("a"))
    with pytest.raises(CheckpointError, match="does not hold"):
        parse_safetensors((1 << 63).to_bytes(8, "little") + text, Path("a"))
