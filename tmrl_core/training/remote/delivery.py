"""A training object that learns over a link: where its streams of samples stand, and how they are acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tmrl_core.config import Config
from tmrl_core.errors import StorageError
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.protocol.messages import Progress

if TYPE_CHECKING:
    from tmrl_core.training.remote.interface import RemoteInterface

logger = logging.getLogger(__name__)


class LinkedTraining:
    """The link of a Trainer's training object.

    Args:
        settings: of the link.
        config: the configuration.
        run_name: name of the run.
        on_publish: called with the training object after each published policy.

    Attributes:
        interface: what the training object sees of the Server; None before the first link. It stays after `close`.
    """

    def __init__(
        self, settings: LinkSettings, config: Config, run_name: str, on_publish: Callable[[Any], object]
    ) -> None:
        self.interface: RemoteInterface | None = None
        self._settings = settings
        self._config = config
        self._run_name = run_name
        self._on_publish = on_publish
        self._link: TrainerLink | None = None
        self._stopping = False

    def open(self, training: Any, recorder: Recorder) -> RemoteInterface:
        """Dial the Server, and go on where the training object stands; returns without waiting for the link."""
        from tmrl_core.training.loops.evaluation import Evaluator
        from tmrl_core.training.remote.delivery_log import DeliveryLog
        from tmrl_core.training.remote.interface import RemoteInterface

        config = self._config
        delivery = getattr(training, "delivery", {})
        link = TrainerLink(
            self._settings,
            name="trainer",
            run=self._run_name,
            inbox_bytes=config.trainer.inbox_bytes,
            incarnation=delivery.get("incarnation", 0),
            counter=getattr(training, "versions_before", delivery.get("counter", 0)),
            marks=delivery.get("marks", {}),
            refusals=delivery.get("refusals", {}),
            gaps=(delivery.get("gap_messages", 0), delivery.get("gap_samples", 0)),
        )
        settings = config.trainer.evaluation
        wanted = settings.every_updates or settings.target_return is not None or settings.time_limit_s is not None
        agent = getattr(training, "agent", None)
        interface = RemoteInterface(
            link,
            recorder=recorder,
            max_message_bytes=config.network.max_message_bytes,
            target_return=settings.target_return,
            time_limit_s=settings.time_limit_s,
            signature={
                name: repr(getattr(agent, name))
                for name in ("observation_space", "action_space")
                if hasattr(agent, name)
            },
            on_publish=lambda actor: self._on_publish(training),
        )
        # A run that goes on is no new one: what is recorded before its first round has the numbers it had.
        interface.progress = Progress(
            samples=getattr(training, "total_samples", 0), updates=getattr(training, "total_updates", 0)
        )
        if wanted:
            evaluator = Evaluator(settings.episodes, settings.first_seed, settings.every_updates, interface.ask)
            if settings.every_updates:
                done = getattr(training, "total_updates", 0)
                evaluator.due_updates = done - done % settings.every_updates + settings.every_updates
            interface.evaluator = evaluator
        else:
            logger.info("no policy is evaluated: trainer.evaluation.every_updates is 0 and there is no time_limit_s")
        if getattr(getattr(training, "memory", None), "disk", None) is not None:
            interface.keep = DeliveryLog(training, link).keep
        self.interface, self._link = interface, link
        if self._stopping:
            interface.stop()
        link.start()
        return interface

    def stop(self) -> None:
        """Have training over this link end in order, and over each that is opened later. From any thread."""
        self._stopping = True
        if self.interface is not None:
            self.interface.stop()

    def close(self) -> None:
        """Close the link, if there is one."""
        if self._link is not None:
            self._link.close()

    def note_delivery(self, training: Any, recorder: Recorder | None) -> None:
        """What a checkpoint holds besides the training object's own state: where the streams of samples stand."""
        if self.interface is not None:
            self.commit(training)
            link = self.interface.link
            training.delivery = {
                "incarnation": link.incarnation,
                # Where nothing was published yet, the next process begins where this one would have.
                "counter": max(link.version[1], getattr(training, "delivery", {}).get("counter", 0)),
                "marks": {stream: tuple(mark) for stream, mark in link.marks.items()},
                "refusals": link.refusals,
                "gap_messages": link.counts.gap_messages,
                "gap_samples": link.counts.gap_samples,
            }
        if recorder is not None:
            training.elapsed_s = recorder.elapsed_s

    def commit(self, training: Any) -> None:
        """Acknowledge what was taken, as far as the memory's disk takes it; what it does not stays with its workers."""
        if self.interface is None:
            return
        commit = getattr(training, "commit", None)
        if commit is not None:
            commit(self.interface)
            return
        try:
            self.interface.commit()
        except StorageError as exc:
            logger.error(
                "samples cannot be kept: %s. They are not acknowledged, so their workers keep them.",
                str(exc).rstrip("."),
            )
