"""A training object's link tells evaluations whose certificate a stream has."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from tests.training.loops.test_episode_metrics import SPACES, Idle
from tmrl_core.config import from_values
from tmrl_core.metrics import MemorySink, Recorder
from tmrl_core.networking.links import LinkSettings
from tmrl_core.networking.trainer import Member
from tmrl_core.training import ReplayMemory, TrainingOffline
from tmrl_core.training.remote.linked_training import LinkedTraining

THIEF, OTHER, HONEST = (bytes([number]) * 16 for number in range(3))


def test_evaluations_know_the_certificate_of_each_stream(caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL)  # nothing listens
    training = TrainingOffline(
        SPACES,
        partial(ReplayMemory, memory_size=100, batch_size=2),
        Idle,
        epochs=1,
        rounds=1,
        steps=10,
        device="cpu",
    )
    config = from_values({"trainer": {"evaluation": {"every_updates": 1}}})
    recorder = Recorder([MemorySink()])
    linked = LinkedTraining(LinkSettings(transport="local", port=1), config, "run", lambda _: None)
    interface = linked.open(training, recorder)
    try:
        state = interface.link.trainer
        state.names.update({THIEF: "thief", OTHER: "thief", HONEST: "robot"})  # stand for the names in certificates
        for stream in (THIEF, OTHER, HONEST):
            state.members[stream] = Member(stream, "robot", b"", 0.0)
        interface.evaluate_now()
        assert state.directives[THIEF].evaluation is not None
        del state.members[THIEF]
        interface.receive()
        assert OTHER not in state.directives, "one certificate has failed"
        assert state.directives[HONEST].evaluation is not None
    finally:
        linked.close()
        recorder.close()
