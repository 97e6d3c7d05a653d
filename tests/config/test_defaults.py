"""Defaults that constructors repeat for use without a configuration are those of the sections."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from tmrl_core.config.sections import (
    CheckpointSection,
    LimiterSection,
    LockstepSection,
    MemorySection,
    MetricsSection,
    NetworkSection,
    Section,
    ServerSection,
    TrainerSection,
    WorkerSection,
)
from tmrl_core.metrics.standard import open_sinks
from tmrl_core.networking.links import TrainerLink, WorkerLink
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.relay import RelaySettings
from tmrl_core.networking.security.admission import AdmissionSettings
from tmrl_core.networking.transports.tlspyo.settings import TlspyoKeys
from tmrl_core.networking.transports.tlspyo.transport import TlspyoTransport
from tmrl_core.roles.rollout_worker import RolloutWorker
from tmrl_core.training.checkpoints.checkpoint_store import CheckpointStore
from tmrl_core.training.loops.lockstep import TrainingLockstep
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.generic import GenericTorchMemory
from tmrl_core.training.memories.replay import ReplayMemory

REPEATED: list[tuple[Any, tuple[type[Section], ...]]] = [
    (TrainingOffline, (TrainerSection, LimiterSection)),
    (TrainingLockstep, (TrainerSection, LockstepSection)),
    (ReplayMemory, (MemorySection,)),
    (GenericTorchMemory, (MemorySection,)),
    (CheckpointStore, (CheckpointSection,)),
    (RolloutWorker, (WorkerSection,)),
    (WorkerLink, (WorkerSection,)),
    (TrainerLink, (TrainerSection,)),
    (Connection, (ServerSection, NetworkSection)),
    (RelaySettings, (ServerSection, NetworkSection)),
    (AdmissionSettings, (ServerSection,)),
    (TlspyoTransport, (NetworkSection, TlspyoKeys)),
    (open_sinks, (MetricsSection,)),
]

OTHERWISE = {
    (TrainingOffline, "start_training"),  # as in tmrl: without a configuration, training begins at once
    (TrainingLockstep, "steps"),  # not used
    (TrainingLockstep, "steps_per_round"),  # one of the two has to be chosen
    (ReplayMemory, "priority"),  # given for prioritized sampling only
    (RolloutWorker, "max_samples_per_episode"),  # as in tmrl: infinite
    (WorkerLink, "when_full"),  # a role decides for `auto`
    (TlspyoTransport, "hostname"),  # tlspyo's own
    (open_sinks, "wandb"),  # its settings, not a flag
}


@pytest.mark.parametrize(("made", "sections"), REPEATED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_default_is_that_of_the_key_of_the_same_name(made: Any, sections: tuple[type[Section], ...]) -> None:
    keys = {one.name: one.default for section in sections for one in msgspec.structs.fields(section)}
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(made).parameters.items()
        if name in keys and parameter.default is not parameter.empty
    }
    assert defaults
    differing = {name for name, value in defaults.items() if repr(value) not in (repr(keys[name]), "cfg")}
    assert differing == {name for owner, name in OTHERWISE if owner is made}
