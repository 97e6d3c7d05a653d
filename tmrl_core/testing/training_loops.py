"""Promises of a training loop, as tests for pytest to collect.

class TestMyLoop(LoopSuite):
    def make_loop(self):
        return MyLoop((self.observation_space, self.action_space))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym

from tmrl_core.testing.random_samples import ACTIONS, OBSERVATIONS, EndlessInterface
from tmrl_core.training.contracts import LoopLike, as_loop
from tmrl_core.training.interface import LocalInterface


class LoopSuite:
    """Subclass it in a test file and implement `make_loop`."""

    observation_space: gym.Space[Any] = OBSERVATIONS
    action_space: gym.Space[Any] = ACTIONS

    def make_loop(self) -> LoopLike:
        """Make a training loop of at least two short epochs."""
        raise NotImplementedError("implement make_loop")

    def make_interface(self) -> EndlessInterface:
        """Make an interface that always has samples."""
        return EndlessInterface(self.observation_space, self.action_space)

    def test_a_new_loop_has_done_nothing(self) -> None:
        """Counters begin at zero, and no stream has an offset."""
        loop = self.make_loop()
        assert (loop.epoch, loop.total_updates, loop.total_samples) == (0, 0, 0)
        assert loop.epochs >= 2
        assert not loop.delivery.get("marks")

    def test_an_epoch_is_counted_and_trains(self) -> None:
        """The numbers of updates and samples only grow."""
        loop, interface = self.make_loop(), self.make_interface()
        for epoch in (1, 2):
            before = loop.total_updates, loop.total_samples
            loop.run_epoch(interface)
            assert loop.epoch == epoch
            assert loop.total_updates > before[0]
            assert loop.total_samples >= before[1]

    def test_each_delivery_is_accepted_or_refused(self) -> None:
        """Every delivery is accepted or refused: others would be sent again and delay later samples."""
        loop, interface = self.make_loop(), self.make_interface()
        loop.run_epoch(interface)
        interface.commit()
        refused = sum(chunk.rows for chunk, _ in interface.refused)
        assert interface.samples_committed + refused == interface.delivered > 0
        assert loop.total_samples == interface.samples_committed

    def test_a_policy_is_published(self) -> None:
        """A policy is published, because workers wait for the first one."""
        loop, interface = self.make_loop(), self.make_interface()
        loop.run_epoch(interface)
        assert interface.version[1] >= 1
        assert interface.actor is not None

    def test_a_stop_ends_an_epoch(self) -> None:
        """A stop takes effect even while the loop waits for samples."""
        loop, interface = self.make_loop(), LocalInterface()
        interface.stop()
        loop.run_epoch(interface)
        assert (loop.epoch, loop.total_updates) == (0, 0)

    def test_a_checkpoint_restores_progress_and_offsets(self, tmp_path: Path) -> None:
        """A resumed run continues at its previous state, and so do the streams of its workers."""
        loop, interface = self.make_loop(), self.make_interface()
        loop.run_epoch(interface)
        loop.delivery = {**loop.delivery, "marks": {b"s" * 16: (7, 70)}}
        loop.elapsed_s = 12.5
        loop.save(tmp_path / "checkpoint")
        resumed = self.make_loop()
        resumed.load(tmp_path / "checkpoint")
        for of in (loop, resumed):
            assert {name: tuple(mark) for name, mark in of.delivery["marks"].items()} == {b"s" * 16: (7, 70)}
        assert resumed.elapsed_s == 12.5
        counts = [(one.epoch, one.total_updates, one.total_samples) for one in (loop, resumed)]
        assert counts[0] == counts[1]
        as_loop(resumed).run_epoch(self.make_interface())
        assert resumed.epoch == loop.epoch + 1
