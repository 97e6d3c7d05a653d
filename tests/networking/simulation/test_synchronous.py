"""Synchronous collection under faults goes on, or ends with its error on both sides; it never stands still."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from tests.networking.simulation.actors import Trainer
from tests.networking.simulation.memory import Memory
from tests.networking.simulation.network import Network, Route
from tests.networking.simulation.synchronous import LinkView, SynchronousScenario, simulate_synchronous
from tmrl_core.errors import StarvedError
from tmrl_core.networking.protocol.messages import Progress
from tmrl_core.networking.relay import RelaySettings
from tmrl_core.networking.trainer import Member
from tmrl_core.training.remote.interface import AWAY_S, STARVED_S, RemoteInterface

SEEDS, SEEDS_FULL = 20, 600


@pytest.mark.timeout(900)
def test_the_run_continues_or_reports_the_reason(full: bool) -> None:
    gave_up = {False: 0, True: 0}
    for seed in range(SEEDS_FULL if full else SEEDS):
        scenario = simulate_synchronous(seed)
        assert not scenario.result.failure, f"seed {seed}: {scenario.result.failure}"
        gave_up[scenario.surplus > 1] += scenario.gave_up()
    assert gave_up[False], "workers and trainers whose ratios starve each other are among them"


def test_members_that_start_after_the_last_fault_have_good_links() -> None:
    scenario = SynchronousScenario(0)
    scenario.new_trainer(Memory(durable=True)).kill()
    scenario.end_faults()
    assert len(scenario.trainers) == 2
    assert len(scenario.workers) == 1
    assert {client.route.window_bytes for client in (*scenario.workers, *scenario.trainers)} == {131_072}


def test_a_trainer_waits_for_a_disconnected_worker_before_it_gives_up() -> None:
    network = Network(Random(0), RelaySettings())
    trainer = Trainer(network, Route(0.0, 0.0, 0.0, 1), Memory(durable=True), inbox_bytes=1)
    now = 0.0
    interface = RemoteInterface(cast(Any, LinkView(trainer)), clock=lambda: now)
    interface.report(Progress(lack="samples"))
    for stream in (b"stays", b"goes"):
        trainer.state.members[stream] = Member(stream, stream.decode(), b"", 0.0)
        trainer.state.waits[stream] = "for a model"
    interface._check_starvation()
    now = STARVED_S - 1
    interface._check_starvation()
    del trainer.state.members[b"goes"]
    interface._check_starvation()
    now += AWAY_S - 0.1
    interface._check_starvation()
    now += 0.2
    interface._check_starvation()
    now += STARVED_S - 0.1
    interface._check_starvation()
    now += 0.2
    with pytest.raises(StarvedError, match="All 1 workers: stays: for a model"):
        interface._check_starvation()
    assert interface.progress.gave_up, "workers are told"
