"""Delivery state that is stored with samples before they are acknowledged."""

# Theory of operation
#
# Acknowledged means committed. With a memory on disk, the samples, the offsets after them and the counters are one
# record, so a trainer that is killed at any moment finds in the file exactly what it had acknowledged, or more: a
# record that was written and not acknowledged is sent again and recognized as a duplicate by the offsets in it. The
# other order, acknowledge and then write, would lose the samples of that moment.
#
# A memory on disk is set to `deferred` here: its appends stay in RAM until `keep`, because only here the offsets are
# known.
#
# Messages that a worker dropped lie between the old and the new offset too. Example: offset 10 before, messages 10, 11
# and 14 committed, offset 15 after. 15 - 10 - 3 = 2 messages were dropped, and the same subtraction of positions and
# samples gives the samples.

from __future__ import annotations

from collections.abc import Sequence

from tmrl_core.networking.links import TrainerLink
from tmrl_core.networking.protocol.delivery import Received
from tmrl_core.training.contracts import TrainingLoop, TrainingMemory


class DeliveryLog:
    """Make a memory on disk write samples together with the offsets of their streams and the run's counters.

    Args:
        training: training object with the counters.
        memory: memory on disk.
        link: link that the samples came from.
    """

    def __init__(self, training: TrainingLoop, memory: TrainingMemory, link: TrainerLink) -> None:
        self._training = training
        self._memory = memory
        self._link = link
        delivery = training.delivery
        self.gap_messages: int = delivery.get("gap_messages", 0)
        self.gap_samples: int = delivery.get("gap_samples", 0)
        memory.deferred = True

    def keep(self, received: Sequence[Received]) -> None:
        """Write the samples since the last call, with the offsets that are valid once they are written.

        Args:
            received: the messages of these samples, refused ones included.

        Raises:
            StorageError: the samples cannot be written. Nothing may be acknowledged; the call must be repeated with the
                same messages.
        """
        link, training = self._link, self._training
        after = link.trainer.offsets_after(received)
        before = link.trainer.offsets_of(after)
        # Messages dropped by the worker lie between the committed ones, the arrived ones and the new offset.
        messages = sum(offset.next_number - before[stream].next_number for stream, offset in after.items())
        samples = sum(offset.position - before[stream].position for stream, offset in after.items())
        gap_messages = self.gap_messages + messages - len(received)
        gap_samples = self.gap_samples + samples - sum(one.samples for one in received)
        self._memory.commit(
            after,
            samples=training.total_samples,
            stale=training.samples_stale,
            incarnation=link.trainer.incarnation,
            counter=link.trainer.version[1],
            gap_messages=gap_messages,
            gap_samples=gap_samples,
        )
        self.gap_messages, self.gap_samples = gap_messages, gap_samples
