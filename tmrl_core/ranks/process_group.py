"""Ranks as processes, over torch.distributed: gloo between CPUs, NCCL between GPUs."""

# Theory of operation
#
# The ranks find each other at a store (torch's TCPStore), which the launcher or rank 0 opens, and then connect to each
# other. Collective calls are torch's; this file adds three things.
#
# A store of one's own for each attempt. torchrun (2.13) gives the ranks of a restart the same store as those before,
# without a prefix, so that a new rank finds the address of a dead one and fails with "connectFullMesh ... refused", or
# does not return (benchmarks/results/rank_updates_epyc2core_202611.md). Here each restart has its own prefix.
#
# Heartbeats. A collective call waits for ever for a rank that stands still, and gloo's own limit of 30 minutes names
# nobody. Each rank has a thread that writes "alive, n calls made" to the store every `BEAT_S`. A rank that has waited
# for `NAMED_S` in a call reads the others' lines and logs who has not come, and whether they are alive. A rank that is
# silent for `LOST_S` counts as lost: the call raises. A rank that is alive and busy (rank 0 during an evaluation, a
# compiler, a slow disk) is waited for. In numbers: SIGSTOP to rank 2 of 4 is logged by the others within 12 s and ends
# them after 30 s.
#
# Forming in a thread. Nothing interrupts torch while it waits for the others: its constructor ignores the time limit of
# the store, and Python handlers of signals do not run. A rank that waited for one that had been killed did not obey
# torchrun's SIGTERM, and restarts took 33 s, because SIGKILL follows after 30 s. So a thread waits inside torch, and
# the main thread for it. A rank that is asked to end meanwhile gives the others `STOP_S`: if they come, all end at one
# update, as later; else it ends alone.
#
# One message for all gradients. They are copied into one flat tensor, summed, divided, and copied back: 0.1 ms for the
# 70,000 numbers of two layers of 256 against the 8 messages of a tensor each. Rejected: DistributedDataParallel, which
# wraps modules and hooks their backward passes; an update here has several losses and passes of one module, whose
# gradients it would reduce one by one. All ranks get the same bits: each number is summed at one place and then sent.
#
# Not protected: the connections between ranks are plain TCP without authentication, as torch's are. They belong into
# one machine or a private network (docs/rooms.md).

from __future__ import annotations

import atexit
import contextlib
import datetime
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import TCPStore  # type: ignore[attr-defined]

from tmrl_core.errors import RankLostError
from tmrl_core.ranks.place import Place
from tmrl_core.ranks.thread_group import fill
from tmrl_core.training.rank_group import RANK_GROUP, RankGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")

FORM_S = 120.0
"""Maximum wait in seconds for all ranks to start."""
STOP_S = 3.0
"""Maximum wait in seconds for all ranks to start after a request to end."""
BEAT_S = 2.0
"""Seconds between two signs of life."""
NAMED_S = 10.0
"""Seconds in a call after which the ranks that have not come are logged; then again after twice as long, and so on."""
LOST_S = 25.0
"""Seconds of silence after which a rank counts as lost."""
SLICE_S = 0.5
"""Seconds between two looks at the other ranks while a call waits."""
BLOCK_BYTES = 1024
"""Size of the block in which `exchange` sends its data; longer data need a second message."""
_HEAD = 4


class ProcessGroup(RankGroup):
    """One rank of a group of processes.

    Args:
        place: place of this process.
        backend: of torch.distributed: `gloo`, or `cpu:gloo,cuda:nccl`.
        form_s: maximum wait in seconds for all ranks to start.
        stopping: returns True once this process is asked to end.

    Raises:
        RankLostError: the ranks did not find each other in time.
        StoppedWhileFormingError: this process was asked to end before they did.
    """

    def __init__(
        self,
        place: Place,
        backend: str = "gloo",
        form_s: float = FORM_S,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.rank, self.size = place.rank, place.size
        self._calls = 0
        logger.info("rank %d of %d waits for the others at %s port %d", place.rank, place.size, place.host, place.port)
        try:
            self._beats = in_time(lambda: self._form(place, backend, form_s), form_s, stopping)
        except StoppedWhileFormingError:
            atexit.register(_leave, 0)  # a thread is inside torch
            raise
        except (RuntimeError, ValueError, TimeoutError) as exc:
            atexit.register(_leave, 1)
            raise RankLostError(
                f"rank {place.rank} of {place.size} does not reach the others at {place.host} port {place.port}: "
                f"{_first_line(exc)}. Start all {place.size} ranks, within {form_s:g} s, with the same command"
            ) from exc
        # Errors of a missing rank appear in the first call otherwise, far from their reason.
        self.exchange(b"")

    def _form(self, place: Place, backend: str, form_s: float) -> Heartbeats:
        store = self._store(place, form_s, serves=place.serves)
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.size,
            # Longer than any wait for a busy rank: `_wait` is the limit.
            timeout=datetime.timedelta(days=7),
        )
        return Heartbeats(self._store(place, form_s), self.rank, self.size, lambda: self._calls)

    @staticmethod
    def _store(place: Place, form_s: float, *, serves: bool = False) -> Store:
        timeout = datetime.timedelta(seconds=form_s)
        store = TCPStore(place.host, place.port, place.size, is_master=serves, timeout=timeout, wait_for_workers=False)
        return PrefixStore(f"tmrl_core/{place.attempt}", store)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the ranks."""
        with torch.no_grad():
            flat = tensors[0].detach().reshape(-1) if len(tensors) == 1 else torch.cat([t.reshape(-1) for t in tensors])
            flat = flat.contiguous()
            # On a GPU, the call only joins the queue of the device: nothing waits for it here.
            self._wait(lambda: dist.all_reduce(flat, async_op=not flat.is_cuda))
            flat /= self.size
            fill(tensors, flat)

    def exchange(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks."""
        head = len(data).to_bytes(_HEAD, "little")
        first = self._gather((head + data[: BLOCK_BYTES - _HEAD]).ljust(BLOCK_BYTES, b"\0"))
        lengths = [int.from_bytes(block[:_HEAD], "little") for block in first]
        rest = max(lengths) - (BLOCK_BYTES - _HEAD)
        further = self._gather(data[BLOCK_BYTES - _HEAD :].ljust(rest, b"\0")) if rest > 0 else [b""] * self.size
        return [(block[_HEAD:] + more)[:length] for block, more, length in zip(first, further, lengths, strict=True)]

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of rank 0."""
        with torch.no_grad():
            for tensor in tensors:
                whole = tensor.detach().contiguous()
                self._wait(lambda whole=whole: dist.broadcast(whole, 0, async_op=True))  # type: ignore[misc]
                tensor.copy_(whole)

    def close(self) -> None:
        """Leave the group in order, when all ranks do."""
        self._beats.close()
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()

    def abandon(self) -> None:
        """Give the group up after an error: the end of this process does not wait for the other ranks."""
        self._beats.close()
        # The destructor of gloo's group, and its `abort` too, wait for a call that a stopped rank will never answer.
        # The error has been reported by then; this goes before the destructors.
        atexit.register(_leave, 1)

    def _gather(self, block: bytes) -> list[bytes]:
        own = torch.frombuffer(bytearray(block), dtype=torch.uint8)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        self._wait(lambda: dist.all_gather(parts, own, async_op=True))
        return [part.numpy().tobytes() for part in parts]

    def _wait(self, begin: Callable[[], dist.Work | None]) -> None:
        """Begin a collective call and wait for it.

        Raises:
            RankLostError: a rank has ended or is silent.
        """
        self._calls += 1
        try:
            work = begin()
            if work is not None:
                self._wait_in_slices(work)
        except RuntimeError as exc:
            # The reason of gloo is the address of a socket.
            raise RankLostError(
                f"the connection to another rank broke: {_first_line(exc)}. See the log of the rank that ended first; "
                "all ranks started again resume from the latest checkpoint that all have"
            ) from exc

    def _wait_in_slices(self, work: dist.Work) -> None:
        began = time.monotonic()
        named_at = began + NAMED_S
        slice_ = datetime.timedelta(seconds=SLICE_S)
        while not ended(work, slice_):
            late = self._beats.late(self._calls)
            lost = [rank for rank, silent_s in late.items() if silent_s >= LOST_S]
            now = time.monotonic()
            if lost:
                raise RankLostError(f"{_ranks(lost)} gave no sign of life for {LOST_S:g} s; {_ADVICE}")
            if now >= named_at and late:
                named_at = now + 2 * (now - began)
                logger.warning(
                    "rank %d has waited for %.0f s: %s not come; %s",
                    self.rank,
                    now - began,
                    f"{_ranks(sorted(late))} {'has' if len(late) == 1 else 'have'}",
                    ", ".join(f"rank {rank} last heard {silent_s:.0f} s ago" for rank, silent_s in late.items()),
                )


class StoppedWhileFormingError(Exception):
    """This process was asked to end before the ranks had found each other."""


def in_time(form: Callable[[], T], form_s: float, stopping: Callable[[], bool]) -> T:
    """Call `form` in a thread, and return its result.

    Raises:
        StoppedWhileFormingError: it has not ended `STOP_S` after a request to end.
        TimeoutError: it has not ended within the limit.
        BaseException: it has failed.
    """
    formed: Future[T] = Future()

    def run() -> None:
        try:
            formed.set_result(form())
        except BaseException as exc:
            formed.set_exception(exc)

    # No executor, because the interpreter waits for its threads when it ends.
    threading.Thread(target=run, name="tmrl-forming", daemon=True).start()
    # Errors of the store, which has the same limit, say more than this one.
    at = time.monotonic() + form_s + SLICE_S
    asked = False
    while not wait([formed], SLICE_S).done:
        if not asked and stopping():
            asked, at = True, time.monotonic() + STOP_S
        if time.monotonic() >= at:
            raise StoppedWhileFormingError if asked else TimeoutError("not all of them have come")
    return formed.result()


def ended(work: dist.Work, limit: datetime.timedelta) -> bool:
    """Wait for a collective call; return False if it has not ended within a limit.

    Raises:
        RuntimeError: it has failed.
    """
    try:
        work.wait(limit)
    except RuntimeError as exc:
        if "timed out" not in str(exc).lower():
            raise
        if not work.is_completed():
            return False
        # It has ended since then, on a busy machine: that was no failure. Its own one is raised again here.
        work.wait()
    return True


_ADVICE = "its machine or network may be gone, or its process is stopped"


class Heartbeats:
    """Signs of life of all ranks, in the store.

    Args:
        store: a client of the store that nothing else uses, since its calls exclude each other.
        rank: number of this rank.
        size: number of ranks.
        calls: returns the number of collective calls that this rank has begun.
    """

    def __init__(self, store: Store, rank: int, size: int, calls: Callable[[], int]) -> None:
        self._store, self._rank, self._size, self._calls = store, rank, size, calls
        self._lock = threading.Lock()
        # `_lock` guards the table of the others: their latest beat, their calls, and when that beat was first seen.
        self._seen: dict[int, tuple[int, int, float]] = {}
        self._ended = threading.Event()
        self._number = 0
        self._beat()
        self._thread = threading.Thread(target=self._run, name="tmrl-ranks", daemon=True)
        self._thread.start()

    def late(self, calls: int) -> dict[int, float]:
        """Return the ranks that have begun fewer calls, and the seconds since each one's latest sign of life."""
        now = time.monotonic()
        with self._lock:
            return {rank: now - at for rank, (_, made, at) in sorted(self._seen.items()) if made < calls}

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        # The store ends with the rank or the launcher that opened it; the calls then fail by themselves.
        with contextlib.suppress(RuntimeError):
            while not self._ended.wait(BEAT_S):
                self._beat()
                self._look()

    def _beat(self) -> None:
        self._number += 1
        self._store.set(f"beat/{self._rank}", f"{self._number} {self._calls()}")

    def _look(self) -> None:
        now = time.monotonic()
        for rank in range(self._size):
            key = f"beat/{rank}"
            if rank == self._rank or not self._store.check([key]):
                continue
            number, calls = map(int, self._store.get(key).split())
            with self._lock:
                before = self._seen.get(rank)
                at = before[2] if before is not None and before[0] == number else now
                self._seen[rank] = (number, calls, at)


@contextlib.contextmanager
def joined(place: Place, backend: str = "gloo", stopping: Callable[[], bool] = lambda: False) -> Iterator[ProcessGroup]:
    """Form the group, and let this thread train in it, within a `with` block.

    Raises:
        RankLostError: the ranks did not find each other in time.
        StoppedWhileFormingError: this process was asked to end before they did.
    """
    group = ProcessGroup(place, backend, stopping=stopping)
    token = RANK_GROUP.set(group)
    try:
        yield group
        group.close()
    except BaseException:
        group.abandon()
        raise
    finally:
        RANK_GROUP.reset(token)


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))}"


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip() or type(exc).__name__).splitlines()[0][:300]
