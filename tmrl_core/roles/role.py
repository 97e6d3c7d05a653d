"""A role that a room or another package adds to the command line, as `--NAME`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

from tmrl_core.config import Config
from tmrl_core.roles.shutdown import ShutdownSignal


@dataclass(frozen=True)
class Role:
    """A role, registered as an entry of `roles`, see `tmrl_core.rooms`.

    Its module imports nothing heavy, because `--help` needs it.

    Args:
        help: its line in `--help`.
        run: runs until a stop is requested, and returns the exit status.
        takes: options that go with it, besides those of all roles, such as `seed`.
        options: adds options of its own, which `takes` names too.
        client: True: it connects to a Server.
        weighted: True: `--credentials bundle NAME` makes a bundle for it, a worker's whose weight may be set.
        local_text: returns the line that `--local` prints if it runs this role too; None: it runs by itself only. With
            `--local`, its clients replace workers.
        watches: True: it has no clients that collect, so `--local` starts workers as without it; its failure does not
            end the run, and it ends after the trainer.
        local_changes: returns changes of the configuration for `--local`, in the form of `--set`.
    """

    help: str
    run: Callable[[Config, argparse.Namespace, ShutdownSignal], int]
    takes: tuple[str, ...] = ()
    options: Callable[[argparse.ArgumentParser], object] = lambda parser: None
    client: bool = False
    weighted: bool = False
    local_text: Callable[[Config], str] | None = None
    watches: bool = False
    local_changes: Callable[[Config], list[str]] = lambda config: []


def one_thread() -> None:
    """Limit numerical libraries to one thread, unless the user has set a number. Call it before their import.

    For a policy that acts on one observation at a time, a second thread only makes it slower.
    """
    from tmrl_core.blas_threads import THREAD_VARIABLES

    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
