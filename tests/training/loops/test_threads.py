"""Torch's number of threads, on simulated machines whose load changes, and in training loops."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from tmrl_core.training.loops.threads import Threads, ThreadTuner, available_cores

Machine = Callable[[int, float], float]
"""`(threads, now)` gives the seconds of an update."""
ALONE_S = 0.011


def free(threads: int, now: float) -> float:
    return {1: ALONE_S, 2: ALONE_S * 0.8, 4: ALONE_S * 0.7, 8: ALONE_S * 0.75}[threads]


def busy(threads: int, now: float) -> float:
    """Two threads wait for each other: an update takes most of a second."""
    return ALONE_S if threads == 1 else 0.75


def small_networks(threads: int, now: float) -> float:
    return 0.001 * (0.4 + 0.6 * threads)


class Run:
    """Training on a simulated machine.

    Args:
        machine: how long updates take.
        seconds: simulated ones; none of them is slept.
        most: threads at most.
        cores: whether more threads than one have cores, as the probe finds it, by time.
    """

    def __init__(
        self,
        machine: Machine,
        seconds: float,
        *,
        most: int = 2,
        cores: Callable[[float], bool] = lambda now: True,
        noise: float = 0.1,
    ) -> None:
        generator = random.Random(1)
        self.now = 0.0
        self.updates = 0
        self.set = 1
        self.at: list[tuple[float, int]] = []
        """When updates began, and with how many threads."""

        def have_cores(threads: int) -> bool:
            self.now += 0.008 if cores(self.now) else 0.03
            return cores(self.now)

        def set_threads(threads: int) -> None:
            self.set = threads

        tuner = ThreadTuner(most, set_threads, have_cores, clock=lambda: self.now)
        tuner.begin()
        while self.now < seconds:
            took = machine(self.set, self.now) * generator.uniform(1 - noise, 1 + noise)
            self.at.append((self.now, self.set))
            self.now += took
            self.updates += 1
            tuner.note(1, took)
        self.threads = tuner.threads

    def rate(self, machine: Machine, threads: int) -> float:
        """Updates as a share of what so many threads would have made all the time."""
        now = made = 0.0
        while now < self.now:
            now += machine(threads, now)
            made += 1
        return self.updates / made

    def first(self, threads: int, after: float) -> float:
        """When so many threads were first used for 60 updates in a row after `after`."""
        begun, updates = float("inf"), 0
        for now, count in self.at:
            if now < after or count != threads:
                updates = 0
                continue
            begun = begun if updates else now
            updates += 1
            if updates == 60:
                return begun
        return float("inf")


@pytest.mark.parametrize(
    ("machine", "most", "best"), [(free, 2, 2), (free, 8, 4), (small_networks, 8, 1), (busy, 2, 1), (free, 1, 1)]
)
def test_the_best_number_is_found_and_costs_little(machine: Machine, most: int, best: int) -> None:
    run = Run(machine, 120, most=most)
    assert run.threads == best
    assert run.rate(machine, best) > 0.97


def test_the_probe_keeps_a_short_run_at_one_thread_on_a_busy_machine() -> None:
    run = Run(busy, 20, cores=lambda now: False)
    assert {threads for _, threads in run.at} == {1}
    assert run.rate(busy, 1) > 0.98


def test_the_number_of_threads_follows_changing_load() -> None:
    def machine(threads: int, now: float) -> float:
        return busy(threads, now) if 60 <= now < 120 else free(threads, now)

    run = Run(machine, 180, cores=lambda now: not 60 <= now < 120)
    assert run.first(2, 0) < 3
    assert run.first(1, 60) < 63, "two updates of 0.75 s are enough to know"
    assert run.first(2, 120) < 130
    assert run.rate(machine, 1) > 1.0


@pytest.mark.parametrize("period_s", [1.0, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("slow_s", [0.03, 0.75])
def test_it_is_never_much_slower_than_one_thread(period_s: float, slow_s: float) -> None:
    def loaded(now: float) -> bool:
        return now % period_s > period_s / 2

    def machine(threads: int, now: float) -> float:
        return slow_s if threads > 1 and loaded(now) else free(threads, now)

    run = Run(machine, 300, cores=lambda now: not loaded(now))
    assert run.rate(machine, 1) > 0.95


def test_noise_alone_does_not_increase_the_number_of_threads() -> None:
    run = Run(lambda threads, now: ALONE_S, 300, most=4, noise=0.3)
    assert sum(threads == 1 for _, threads in run.at) > 0.9 * len(run.at)


def test_a_pause_such_as_compiling_changes_nothing_for_long() -> None:
    paused: list[float] = []

    def machine(threads: int, now: float) -> float:
        if now > 30 and not paused:
            paused.append(now)
            return 40.0
        return free(threads, now)

    run = Run(machine, 130)
    assert run.first(2, 71) < 85


def test_torch_s_number_is_left_as_it_was() -> None:
    before = torch.get_num_threads()
    with Threads(3, "cpu"):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    with Threads(3, torch.device("cuda")):
        assert torch.get_num_threads() == before, "on other devices it is left alone"


def test_a_scripts_setting_is_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_core.training.loops.threads.available_cores", lambda: 8)
    torch.set_num_threads(2)
    try:
        with Threads(None, None) as threads:
            used = set()
            for _ in range(200):
                used.add(torch.get_num_threads())
                threads.note(1, 0.01 / torch.get_num_threads())
        assert used <= {1, 2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_cores_are_those_of_this_process() -> None:
    assert available_cores() >= 1
