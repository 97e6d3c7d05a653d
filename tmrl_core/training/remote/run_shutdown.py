"""The end of a run: evaluate the final policy, then finish the workers."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

from tmrl_core.errors import NetworkError
from tmrl_core.training.contracts import TrainingLoop, actor_of

if TYPE_CHECKING:
    from tmrl_core.training.remote.interface import RemoteInterface

logger = logging.getLogger(__name__)

FINAL_EVALUATION_S = 120.0
"""Maximum wait in seconds for the evaluation of the final policy."""
DRAIN_S = 10.0
"""Maximum wait in seconds for workers to finish."""
SERVER_S = 60.0
"""Maximum wait in seconds for an unavailable Server at the end of the run, which has to inform the workers."""
RETURN_S = 3.0
"""Seconds in which workers find a Server that has returned: their maximum wait between two attempts."""
QUIET_S = 2.0
"""Seconds without samples after which workers count as finished."""


class RunShutdown:
    """Closing exchange with the workers at the end of training.

    Args:
        training: training object, which inserts remaining samples.
        interface: interface to the Server.
    """

    def __init__(self, training: TrainingLoop, interface: RemoteInterface) -> None:
        self._training = training
        self._interface = interface

    def evaluate(self) -> None:
        """Publish the current policy and evaluate it while training is paused."""
        interface = self._interface
        interface.ending = True
        try:
            actor = actor_of(self._training)
            if actor is None:
                return
            interface.broadcast_model(actor)
            evaluator = interface.evaluator
            if evaluator is None or not interface.link.members:
                return
            interface.evaluate_now()
            deadline = time.monotonic() + FINAL_EVALUATION_S
            while evaluator.is_open and interface.link.members and time.monotonic() < deadline:
                if interface.stop_requested:
                    return
                self._take_samples()
                interface.link.wait(0.1)
            if evaluator.is_open:
                logger.warning("the policy was not evaluated: the workers left, or took too long")
        finally:
            interface.ending = False

    def finish_workers(self, just_come: bool = False) -> None:
        """Notify the workers of the run's end, and insert the samples that they still send.

        Args:
            just_come: True: this trainer has just connected and may not know all workers.
        """
        interface = self._interface
        interface.ending = True
        interface.finish()
        came_back = self._await_server() or just_come
        # Notified workers send their remaining samples and disconnect. There is no wait for silent workers.
        now = time.monotonic()
        deadline, quiet = now + DRAIN_S, now + (RETURN_S if came_back else QUIET_S)
        while (interface.link.members or came_back) and time.monotonic() < min(deadline, quiet):
            if interface.link.wait(0.1):
                quiet = time.monotonic() + QUIET_S
            self._take_samples()
        self.take_arrived()

    def _await_server(self) -> bool:
        """Wait for a lost Server, because workers that are not notified of the end would wait forever.

        Returns:
            True if the Server has returned. It stores the message for workers that connect later.
        """
        link = self._interface.link
        if link.connected or not link.was_connected:
            return False
        logger.warning(
            "the Server is away: waiting up to %g s for it, so that workers hear that the run is over", SERVER_S
        )
        deadline = time.monotonic() + SERVER_S
        with contextlib.suppress(NetworkError):  # the Server refuses this trainer now, so no worker can be notified
            while not self._interface.stop_requested and time.monotonic() < deadline:
                if link.wait_connected(0.1):
                    return True
        logger.warning("workers that still wait for this trainer have to be stopped by hand: the Server is away")
        return False

    def take_arrived(self) -> None:
        """Insert all samples that have arrived before this call, however long that takes.

        That is up to 1 GB (decompressed) of each certificate, or 16 GB of one without others (`inbox`): seconds,
        or half a minute for each GB if a hostile worker has chosen what takes longest.
        """
        link = self._interface.link
        arrived = link.trainer.inbox.appended
        while link.trainer.has_of_first(arrived):
            received = link.trainer.inbox.taken
            self._take_samples()
            if link.trainer.inbox.taken == received:
                return  # nothing was taken: the memory's disk does not accept samples

    def _take_samples(self) -> None:
        """Insert samples that have arrived, for a bounded time."""
        self._training.update_buffer(self._interface)
