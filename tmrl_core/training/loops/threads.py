"""Number of torch's threads, chosen by measuring real updates on this machine."""

# Theory of operation
#
# The threads of one update synchronize some hundred times. On free cores this costs little. If another process is busy,
# each synchronization may take a time slice, and an update takes a hundred times as long. The best number of threads
# therefore changes over time.
#
# `ThreadTuner` uses one number and sometimes compares it with its half or its double. Both compute updates alternately,
# in short slices, until one is clearly faster. A larger number must be faster by a margin. The next comparison begins
# when the time that the last one lost is `SHARE` of the total, and later after each comparison without a change. It
# begins earlier if the duration of updates has changed markedly since the number was chosen. It begins immediately if
# several threads take at least twice as long. Before updates try more threads, a probe of some milliseconds checks that
# cores are free for them.
#
# After a round, torch's own number is restored, since it belongs to the program. Another number may round sums
# differently, so a seeded run in synchronous or lockstep collection uses one thread; in asynchronous collection,
# arrival times determine the result anyway.
#
# Rejected: the cores that other roles on this machine leave free (other processes are unknown); the load of the system
# (a container sees the load of its host, and the load says nothing about small networks).

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmrl_core.training.value_types import Device

START_S = 0.3
"""Seconds of updates before the first comparison, because the first updates are slow."""
SLICE_S = 0.1
WINDOW_S = 0.5
CHANGED = 1.3
"""Factor by which the time of updates must change, in either direction, to count as changed."""
MARGINS = (1.5, 1.3, 1.2, 1.15, 1.12, 1.1, 1.08)
"""Factor by which one side must be faster to win after this number of slices each; one more slice decides."""
GAIN, KEPT_GAIN = 1.03, 1.01
"""Factor by which more threads must be faster than fewer to be chosen, and to be kept."""
SHARE = 0.01
"""Share of the total time that comparisons may lose."""
MIN_WAIT_S = 5.0
MAX_WAIT_S = 120.0
PROBE_VALUES = 1 << 16
"""Number of values that each thread of a probe computes, `PROBE_TIMES` times. torch gives a thread at least half as
many."""
PROBE_TIMES = 16


class _Slice:
    """A number of updates and their duration in seconds."""

    def __init__(self) -> None:
        self.updates = 0
        self.seconds = 0.0

    def add(self, updates: int, seconds: float) -> None:
        self.updates += updates
        self.seconds += seconds

    @property
    def mean(self) -> float:
        return self.seconds / max(1, self.updates)


class _Contest:
    """Comparison of the current number of threads with another, slice by slice.

    Args:
        kept: current number.
        challenger: the other number.
        recent: latest times of the current number, used as its first slice.
    """

    def __init__(self, kept: int, challenger: int, recent: _Slice) -> None:
        self.kept = kept
        self.challenger = challenger
        self.slices = {kept: [recent] if recent.updates else [], challenger: [_Slice()]}
        self.current = challenger

    def note(self, updates: int, seconds: float) -> int | None:
        """Count updates of the current side. Return the faster number of threads once it is clear."""
        slice_ = self.slices[self.current][-1]
        slice_.add(updates, seconds)
        if slice_.seconds < SLICE_S:
            return None
        winner = self._winner()
        if winner is None:
            self.current = self.kept if self.current == self.challenger else self.challenger
            self.slices[self.current].append(_Slice())
        return winner

    def _winner(self) -> int | None:
        rounds = min(len(slices) for slices in self.slices.values())
        if rounds == 0:
            return None
        fewer, more = sorted(self.slices)
        faster = self.mean(fewer) / max(self.mean(more), 1e-9)
        if rounds <= len(MARGINS):
            margin = MARGINS[rounds - 1]
            return more if faster >= margin else fewer if faster <= 1.0 / margin else None
        return more if faster >= (KEPT_GAIN if more == self.kept else GAIN) else fewer

    def mean(self, threads: int) -> float:
        """Seconds per update, without the slowest of several slices, which other processes may have delayed."""
        slices = sorted(self.slices[threads], key=lambda slice_: slice_.mean)
        total = _Slice()
        for slice_ in slices[:-1] if len(slices) > 2 else slices:
            total.add(slice_.updates, slice_.seconds)
        return total.mean

    @property
    def lost_s(self) -> float:
        """Extra seconds of the challenger's updates compared with the number in use."""
        slices = self.slices[self.challenger]
        return sum(max(0.0, slice_.seconds - slice_.updates * self.mean(self.kept)) for slice_ in slices)


class ThreadTuner:
    """Measure updates and set the number of threads for the next ones. Sans-I/O.

    Args:
        most: maximum number of threads.
        set_threads: sets torch's number of threads.
        have_cores: returns True if cores are free for that number of threads.
        clock: seconds.

    Attributes:
        threads: the chosen number; during a comparison, updates may use another one.
    """

    def __init__(
        self,
        most: int,
        set_threads: Callable[[int], None],
        have_cores: Callable[[int], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.most = most
        self.threads = 1
        self._set = set_threads
        self._have_cores = have_cores
        self._clock = clock
        self._contest: _Contest | None = None
        self._window = self._recent = _Slice()
        self._usual_s: float | None = None
        """Seconds of an update when the number was chosen."""
        self._rested_s = 0.0
        self._wait_s = START_S
        self._least_s = 0.0
        """Seconds of updates before the next comparison, in proportion to the time that the last one lost."""
        self._upwards = True

    def begin(self) -> None:
        """Set the best number found so far."""
        self._set(self._contest.current if self._contest else self.threads)

    def note(self, updates: int, seconds: float) -> None:
        """Record the time of updates; may set another number of threads for the next ones."""
        if self.most < 2 or updates < 1:
            return
        if self._contest is not None:
            winner = self._contest.note(updates, seconds)
            if winner is None:
                self._set(self._contest.current)
            else:
                self._end(self._contest, winner)
            return
        self._rested_s += seconds
        self._window.add(updates, seconds)
        if self._window.seconds >= WINDOW_S:
            self._recent, self._window = self._window, _Slice()
            self._look_for_change(self._recent.mean)
        if self._rested_s >= max(self._wait_s, self._least_s):
            self._begin_contest()

    def _look_for_change(self, mean_s: float) -> None:
        if self._usual_s is None or 1 / CHANGED < mean_s / self._usual_s < CHANGED:
            return
        slower = mean_s > self._usual_s
        if self.threads > 1 or not slower:
            self._upwards = not slower
            self._wait_s = 0.0
        if self.threads > 1 and mean_s > 2.0 * self._usual_s:
            self._least_s = 0.0  # the current number may cost far more than a comparison
        self._usual_s = mean_s

    def _begin_contest(self) -> None:
        self._rested_s, self._least_s = 0.0, 0.0
        self._wait_s = max(self._wait_s, MIN_WAIT_S)
        upwards = self.threads < self.most and (self._upwards or self.threads == 1)
        self._upwards = not upwards
        if upwards:
            before = self._clock()
            found = self._have_cores(min(2 * self.threads, self.most))
            self._set(self.threads)
            if not found:
                self._least_s = (self._clock() - before) / SHARE
                return
        challenger = min(2 * self.threads, self.most) if upwards else _half(self.threads)
        self._contest = _Contest(self.threads, challenger, self._recent)
        self._set(challenger)

    def _end(self, contest: _Contest, winner: int) -> None:
        self._contest = None
        self._window = self._recent = _Slice()
        self._usual_s = contest.mean(winner)
        if winner == self.threads:
            self._least_s = contest.lost_s / SHARE
            self._wait_s = min(2.0 * self._wait_s, MAX_WAIT_S)
        else:
            # Continue in the same direction within the limits.
            self._upwards = winner > self.threads
            self._wait_s = START_S if 1 < winner < self.most else MIN_WAIT_S
            self.threads = winner
        self._set(winner)


def _half(threads: int) -> int:
    """Return the next smaller power of two."""
    half = 1
    while 2 * half < threads:
        half *= 2
    return half


# --- torch and this machine -------------------------------------------------------------------------------------------


class Threads:
    """Set torch's number of threads within a `with` block, and restore it afterwards.

    Args:
        fixed: the number; None: chosen by measurement, at most torch's setting and the number of this process's cores.
        device: device of the updates; on any but a CPU nothing is set.
    """

    def __init__(self, fixed: int | None, device: Device) -> None:
        # Training without torch has no threads to set and must not import torch.
        self._torch: Any = sys.modules.get("torch") if str(device or "cpu").startswith("cpu") else None
        self._fixed = fixed
        self._before = 0
        self._tuner: ThreadTuner | None = None

    def __enter__(self) -> Threads:
        if self._torch is None:
            return self
        self._before = self._torch.get_num_threads()
        if self._fixed is not None:
            self._torch.set_num_threads(self._fixed)
            return self
        most = min(self._before, available_cores())
        if self._tuner is None or self._tuner.most != most:
            self._tuner = ThreadTuner(most, self._torch.set_num_threads, have_cores)
        self._tuner.begin()
        return self

    def __exit__(self, *error: object) -> None:
        if self._torch is not None:
            self._torch.set_num_threads(self._before)

    def note(self, updates: int, seconds: float) -> None:
        """Record the time of updates."""
        if self._tuner is not None:
            self._tuner.note(updates, seconds)


def have_cores(threads: int) -> bool:
    """Run a computation with one and with `threads` threads, some milliseconds each.

    True: several threads are faster.
    """
    import torch

    # The computation uses torch's own threads. The use of threads for matrix products depends on the platform.
    values = torch.ones(PROBE_VALUES * threads)

    def seconds(count: int, most_s: float) -> float:
        torch.set_num_threads(count)
        started = time.perf_counter()
        for _ in range(PROBE_TIMES):
            values.tanh()
            if time.perf_counter() - started > most_s:
                break
        return time.perf_counter() - started

    values.tanh()  # warm up
    alone_s = seconds(1, float("inf"))
    return seconds(threads, alone_s) < 0.9 * alone_s


def available_cores() -> int:
    """Return the number of cores that this process may use: its affinity, within the limit of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join((Path("/sys/fs/cgroup") / name).read_text() for name in files).split()
            quota, period = int(words[0]), int(words[1])
        except (OSError, ValueError, IndexError):
            continue  # no such file, or no limit (max)
        if quota > 0:
            cores = min(cores, max(1, round(quota / period)))
    return cores
