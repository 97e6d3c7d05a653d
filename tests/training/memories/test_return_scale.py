from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.training.test_parameters import Worker
from tmrl_core.errors import StorageError
from tmrl_core.samples import Buffer
from tmrl_core.training import GenericTorchMemory, ReplayMemory
from tmrl_core.training.agents.flashsac import FlashSACAgent
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.memories.interventions import InterventionMemory
from tmrl_core.training.memories.mixed import MixedMemory
from tmrl_core.training.memories.return_scale import LEARNED, ReturnScale

GAMMA, BOUND = 0.9, 5.0
BOX = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)


def agent(**more: Any) -> FlashSACAgent:
    return FlashSACAgent(*BOX, "cpu", width=8, critic_width=8, bins=11, gamma=GAMMA, **more)


def memory(**more: Any) -> ReplayMemory:
    made = ReplayMemory(**{"memory_size": 1000, "batch_size": 8, "seed": 1, **more})
    made.expect_agent(agent())
    return made


def chunks(count: int, number: int = 1) -> list[Any]:
    """Messages of one stream, with several episodes, of which some end without a flag."""
    worker = Worker(number, "box", False)
    return [worker.take((1, 1), 5 + at % 4) for at in range(count)]


def message(*rewards: float) -> Any:
    """A chunk of one episode of one stream."""
    buffer = Buffer(maxlen=None)
    buffer.start_episode(0)
    obs, act = np.zeros(4, np.float32), np.zeros(2, np.float32)
    buffer.append_sample((None, obs, 0.0, False, False, {}))
    for reward in rewards:
        buffer.append_sample((act, obs, reward, False, False, {}))
    [chunk] = buffer.take()[0]
    return chunk


def returns_of(rewards: list[float], running: float = 0.0) -> list[float]:
    found = []
    for reward in rewards:
        running = GAMMA * running + reward
        found.append(running)
    return found


def scale_of(values: list[float]) -> float:
    return max(float(np.sqrt(np.var(values) + 1e-8)), max(map(abs, values)) / BOUND)


def slow(messages: list[Any]) -> tuple[int, float]:
    """Count and scale, transition by transition, with the rule of the limit."""
    values: list[float] = []
    last: dict[bytes, Any] = {}
    for buffer in messages:
        for chunk in buffer.chunks:
            for row in range(chunk.rows):
                place = (int(chunk.episode[row]), int(chunk.step[row]))
                before = last.get(chunk.stream)
                if before is not None and before[0] == (place[0], place[1] - 1) and chunk.action_present[row]:
                    greatest = max(map(abs, values), default=0.0)
                    reward = float(chunk.reward[row])
                    limited = np.clip(reward, -2 * greatest, 2 * greatest) if greatest else reward
                    running = GAMMA * before[1] + limited
                    values.append(running)
                else:
                    running = 0.0
                last[chunk.stream] = (place, running)
                if chunk.terminated[row] or chunk.truncated[row]:
                    del last[chunk.stream]
    return len(values), scale_of(values)


def test_it_is_that_of_the_returns_of_each_stream_pooled_and_begun_anew_at_ends_and_gaps() -> None:
    one, other = chunks(30), chunks(30, 2)
    mixed = [message for at, pair in enumerate(zip(one, other, strict=True)) for message in pair if at % 7 != 3]
    tested = memory()
    for each in mixed:
        tested.append(each)
    assert tested.returns is not None
    count, scale = slow(mixed)
    assert tested.returns.count == count == tested.written
    assert tested.returns.scale == pytest.approx(scale)


def test_its_parts_are_the_deviation_and_the_greatest_return() -> None:
    returns = ReturnScale(GAMMA, BOUND)
    assert returns.scale == 1.0
    returns.add(message(*[1.0] * 500))
    assert returns.scale == pytest.approx(10 / BOUND)
    rewards = [1.0, -1.0] * 50
    returns = ReturnScale(GAMMA, 1000.0)
    returns.add(message(*rewards))
    assert returns.scale == pytest.approx(np.sqrt(np.var(returns_of(rewards)) + 1e-8))


def test_one_absurd_reward_is_bounded_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    returns, normal = ReturnScale(GAMMA, BOUND), ReturnScale(GAMMA, BOUND)
    rewards = np.random.default_rng(0).uniform(-1, 1, LEARNED + 200).tolist()
    normal.add(message(*rewards))
    rewards[LEARNED + 100] = 1e12
    with caplog.at_level(logging.WARNING):
        returns.add(message(*rewards))
    assert returns.bounded - normal.bounded == 1
    assert "a reward of 1e+12 is beyond 2 times the greatest discounted return so far" in caplog.text
    assert normal.scale <= returns.scale <= 3 * normal.scale


def test_rewards_that_really_grow_catch_up() -> None:
    returns = ReturnScale(GAMMA, BOUND)
    returns.add(message(*[-1.0] * 500))
    assert returns.greatest == pytest.approx(10.0)
    for _ in range(20):
        returns.add(message(*[-1.0] * 50, 1000.0))
    assert returns.greatest > 900


def test_odd_numbers_leave_it_finite() -> None:
    returns = ReturnScale(GAMMA, BOUND)
    returns.add(message(float("nan"), float("inf"), 1.0, float("-inf"), float("nan")))
    assert returns.count == 5
    assert 0 < returns.scale < 1


def test_rewards_of_batches_are_divided_as_they_are_drawn() -> None:
    tested, plain = memory(), ReplayMemory(memory_size=1000, batch_size=8, seed=1)
    plain.expect_agent(SacAgent(*BOX, "cpu", hidden_sizes=(8,)))
    for at, each in enumerate(chunks(20)):
        tested.append(each)
        plain.append(each)
        if at:
            for _ in range(3):
                assert tested.returns is not None
                scaled, whole = tested.sample(), plain.sample()
                torch.testing.assert_close(scaled[2], whole[2] / tested.returns.scale)
                assert torch.equal(scaled[0], whole[0])
    assert plain.returns is None
    assert tested.get_transition(3)[2] == plain.get_transition(3)[2]


def test_a_resumed_memory_counts_each_transition_once() -> None:
    messages = chunks(40)
    whole, first, second = memory(), memory(), memory()
    for each in messages:
        whole.append(each)
    for each in messages[:20]:
        first.append(each)
    rows = [array[: len(first)] for array in first.row_arrays]
    second.load_state_dict(first.state_dict(), rows)
    for each in messages[20:]:
        second.append(each)
    assert second.returns is not None
    assert whole.returns is not None
    assert second.returns.state() == whole.returns.state()


@pytest.mark.parametrize("deferred", [False, True])
def test_on_disk_it_lies_with_the_transitions_that_it_has_counted(tmp_path: Path, deferred: bool) -> None:
    messages = chunks(40)
    whole = memory()
    for each in messages:
        whole.append(each)
    first = memory(storage="disk", folder=tmp_path)
    first.deferred = deferred
    for each in messages[:20]:
        first.append(each)
    first.commit()
    if deferred:
        first.append(messages[20])  # not written
    first.close()
    second = memory(storage="disk", folder=tmp_path)
    for each in messages[20:]:
        second.append(each)
    assert second.returns is not None
    assert whole.returns is not None
    assert second.returns.state() == whole.returns.state()
    assert second.recorded is None or "returns" not in second.recorded[1]
    second.close()


def test_a_disk_that_refuses_an_append_leaves_it_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = chunks(3)
    tested = memory(storage="disk", folder=tmp_path)
    tested.append(messages[0])
    assert tested.returns is not None
    before = tested.returns.state()

    def refuse(*_: Any) -> None:
        raise StorageError("full")

    with monkeypatch.context() as patch:
        patch.setattr(tested.disk, "commit", refuse)
        with pytest.raises(StorageError, match="full"):
            tested.append(messages[1])
    assert tested.returns.state() == before
    tested.close()


def test_a_memory_that_does_not_scale_rewards_says_so(caplog: pytest.LogCaptureFixture) -> None:
    tested = GenericTorchMemory(memory_size=10, batch_size=2)
    with caplog.at_level(logging.WARNING):
        tested.expect_agent(SacAgent(*BOX, "cpu", hidden_sizes=(8,)))
        assert not caplog.records
        tested.expect_agent(agent())
    assert "FlashSACAgent expects scaled rewards, and GenericTorchMemory does not scale them" in caplog.text


def test_an_invalid_scale_on_disk_is_refused(tmp_path: Path) -> None:
    first = ReplayMemory(memory_size=10, batch_size=2, storage="disk", folder=tmp_path)
    assert first.disk is not None
    first.disk.states.values["returns"] = ["odd"]
    with pytest.raises(StorageError, match="holds an invalid scale of rewards"):
        first.expect_agent(agent())
    first.close()


def test_a_state_without_a_scale_begins_a_new_one() -> None:
    plain, tested = ReplayMemory(memory_size=1000, batch_size=8, seed=1), memory()
    plain.append(chunks(1)[0])
    tested.load_state_dict(plain.state_dict(), [array[: len(plain)] for array in plain.row_arrays])
    assert tested.returns is not None
    assert tested.returns.count == 0


def test_recorded_and_live_rewards_have_one_scale() -> None:
    make = partial(ReplayMemory, memory_size=1000, seed=1)
    tested = MixedMemory(make, make, batch_size=8)
    tested.expect_agent(agent())
    assert tested.recorded_sessions is not None
    live, recorded = chunks(10), chunks(10, 2)
    for one, other in zip(live, recorded, strict=True):
        tested.append(one)
        tested.recorded_sessions.append(other)
    assert tested.live.returns is not None
    assert tested.live.returns is tested.recorded_sessions.returns
    assert tested.live.returns.count == tested.live.written + tested.recorded_sessions.written
    assert "returns" in tested.live.state_dict()
    assert "returns" not in tested.recorded_sessions.state_dict()


def test_interventions_are_counted_with_the_live_samples_that_they_are_copies_of(make_buffer: Any) -> None:
    make, make_copies = (partial(kind, memory_size=1000, seed=1) for kind in (ReplayMemory, InterventionMemory))
    plain = memory()
    mixed = MixedMemory(
        make, make_interventions=make_copies, batch_size=8, shares={"online": 0.5, "interventions": 0.5}
    )
    mixed.expect_agent(agent())
    for buffer in chunks(20):
        plain.append(buffer)
        taken = [np.arange(chunk.rows) % 3 == 1 for chunk in buffer.chunks]
        marked = [replace(c, extras={"is_intervention": t}) for c, t in zip(buffer.chunks, taken, strict=True)]
        mixed.append(make_buffer(marked))
    assert mixed.interventions is not None
    assert len(mixed.interventions) > 20
    assert plain.returns is not None
    assert mixed.live.returns is mixed.interventions.returns
    assert mixed.live.returns is not None
    assert mixed.live.returns.state() == plain.returns.state()


def test_memories_of_several_ranks_agree_on_the_scale_of_all_returns() -> None:
    whole, *parts = (ReturnScale(GAMMA, BOUND) for _ in range(4))
    for part, rewards in zip(
        parts, [(1.0, 1.5, 1.0), (1.2, -2.0, 0.5, 0.1)], strict=False
    ):  # the third one has no sample yet
        for one in (part, whole):
            one.add(message(*rewards))
    moments = [part.moments for part in parts]
    for part in parts:
        part.agree(moments)
    assert len({part.scale for part in parts}) == 1
    assert parts[0].scale == pytest.approx(whole.scale, rel=1e-12)
    empty = ReturnScale(GAMMA, BOUND)
    empty.agree([empty.moments])
    assert empty.scale == 1.0
