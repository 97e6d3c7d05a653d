"""Link of a training object, with the committed offsets of its streams and the acknowledgement of samples."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tmrl_core.config import Config
from tmrl_core.config.differing import differing, every_setting
from tmrl_core.envs.identity import identity_of_spaces
from tmrl_core.errors import ConfigError
from tmrl_core.metrics.latest import LatestSink
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.protocol.messages import Progress
from tmrl_core.samples.images import MAX_DECODED_BYTES, ImageDecoder, need_pillow
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.contracts import TrainingLoop

if TYPE_CHECKING:
    from tmrl_core.training.remote.interface import RemoteInterface

logger = logging.getLogger(__name__)


class LinkedTraining:
    """Link of a Trainer's training object.

    Args:
        settings: settings of the link.
        config: the configuration.
        run_name: name of the run.
        on_publish: called with the training object after each published policy.

    Attributes:
        interface: the training object's interface to the Server; None before the first link. It remains after `close`.
        settings: those of the next link.
        make_interface: makes it, with the arguments of `RemoteInterface`; None: that class.
    """

    def __init__(
        self, settings: LinkSettings, config: Config, run_name: str, on_publish: Callable[[TrainingLoop], object]
    ) -> None:
        self.interface: RemoteInterface | None = None
        self.settings = settings
        self._config = config
        self._run_name = run_name
        self._on_publish = on_publish
        self._link: TrainerLink | None = None
        self._stopping = False
        self.make_interface: Callable[..., RemoteInterface] | None = None

    def open(self, training: TrainingLoop, recorder: Recorder, latest: LatestSink | None = None) -> RemoteInterface:
        """Connect to the Server and resume at the training object's offsets. Return without waiting for the link.

        Args:
            training: the training object.
            recorder: receives the run's records.
            latest: its sink whose values viewers see; None: viewers see nothing.
        """
        from tmrl_core.samples.codec import decoded_bytes
        from tmrl_core.training.loops.evaluation import Evaluator
        from tmrl_core.training.remote.delivery_log import DeliveryLog
        from tmrl_core.training.remote.interface import RemoteInterface
        from tmrl_core.training.remote.telemetry import RunTelemetry

        config = self._config
        delivery = training.delivery
        link = TrainerLink(
            self.settings,
            name="trainer",
            run=self._run_name,
            inbox_bytes=config.trainer.inbox_bytes,
            incarnation=delivery.get("incarnation", 0),
            counter=training.versions_before,
            offsets=delivery.get("marks", {}),
            refusals=delivery.get("refusals", {}),
            gaps=(delivery.get("gap_messages", 0), delivery.get("gap_samples", 0)),
            cost_of=decoded_bytes,
        )
        settings = config.trainer.evaluation
        wanted = settings.every_updates or settings.target_return is not None or settings.time_limit_s is not None
        identity = training.environment_identity
        interface = (self.make_interface or RemoteInterface)(
            link,
            recorder=recorder,
            target_return=settings.target_return,
            time_limit_s=settings.time_limit_s,
            identity=identity or _spaces_of(training.agent),
            check_environment=bool(identity) and config.trainer.check_environment,
            on_publish=lambda actor: self._on_publish(training),
            # In a resumed run, records before the first round continue with the earlier counters.
            progress=Progress(samples=training.total_samples, updates=training.total_updates),
        )
        if wanted:
            evaluator = Evaluator(
                settings.episodes,
                settings.first_seed,
                settings.every_updates,
                interface.ask,
                origin=link.trainer.origin,
                plays=interface.plays,
                on_silent=interface.note_silence,
            )
            if settings.every_updates:
                done = training.total_updates
                evaluator.due_updates = done - done % settings.every_updates + settings.every_updates
            interface.evaluator = evaluator
        else:
            logger.info("no policy is evaluated: trainer.evaluation.every_updates is 0 and there is no time_limit_s")
        if config.worker.images is not None:
            interface.images = _image_decoder(training.agent)
        memory = training.training_memory
        if memory is not None and memory.disk is not None:
            interface.keep = DeliveryLog(training, memory, link).keep
        interface.on_hold = lambda: training.update_buffer(interface)
        if latest is not None:
            link.trainer.telemetry = RunTelemetry(
                link,
                latest,
                interface.progressing,
                lambda: recorder.elapsed_s,
                differing(config),
                every_setting(config),
            )
        self.interface, self._link = interface, link
        if self._stopping:
            interface.stop()
        link.start()
        return interface

    def stop(self) -> None:
        """End training in order, over this link and every later one. Safe from any thread."""
        self._stopping = True
        if self.interface is not None:
            self.interface.stop()

    @property
    def stopping(self) -> bool:
        """True after `stop`."""
        return self._stopping

    def close(self) -> None:
        """Close the link, if there is one."""
        if self._link is not None:
            self._link.close()

    def note_delivery(self, training: TrainingLoop, recorder: Recorder | None) -> None:
        """Copy the streams' offsets, the link's counters and the position of the records into the training object."""
        metrics = training.delivery.get("metrics")
        if self.interface is not None:
            self.commit(training)
            link = self.interface.link
            training.own.delivery = {
                "incarnation": link.trainer.incarnation,
                # If nothing was published yet, the next process begins with the number that this process would have
                # used.
                "counter": max(link.trainer.version[1], training.delivery.get("counter", 0)),
                "marks": {stream: tuple(offset) for stream, offset in link.trainer.offsets.items()},
                "refusals": link.trainer.refusals,
                "gap_messages": link.counts.gap_messages,
                "gap_samples": link.counts.gap_samples,
            }
        if recorder is not None:
            training.own.elapsed_s = recorder.elapsed_s
            metrics = recorder.position() or metrics
        if metrics is not None:
            training.own.delivery = {**training.delivery, "metrics": metrics}

    def commit(self, training: TrainingLoop) -> None:
        """Acknowledge inserted samples that the memory's disk has stored. Workers keep the others."""
        if self.interface is not None:
            training.commit(self.interface)


def _image_decoder(agent: object) -> ImageDecoder:
    """Return the decoder of an agent's observations.

    Raises:
        ConfigError: the agent does not declare them.
        MissingExtraError: Pillow is not installed.
    """
    need_pillow("worker.images")
    if not isinstance(agent, TrainingAgent):
        raise ConfigError(
            f"worker.images: found the agent {type(agent).__name__}; allowed: one that is derived from "
            "tmrl_core.training:TrainingAgent, whose observation space says what the images are"
        )
    return ImageDecoder(agent.observation_space, MAX_DECODED_BYTES)


def _spaces_of(agent: object) -> dict[str, str]:
    """Return the spaces as text, if the agent declares them."""
    if not isinstance(agent, TrainingAgent):
        return {}
    return identity_of_spaces(agent.observation_space, agent.action_space)
