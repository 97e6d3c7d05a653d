"""The same core and the same checks, with the order of everything chosen by hypothesis, which shrinks what it finds."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.networking.simulation.memory import Memory
from tests.networking.simulation.scenario import FAULTS, Scenario

FULL = os.environ.get("FULL_TESTS") == "1"


class Delivery(RuleBasedStateMachine):
    """Workers, a Server and a trainer; rules are what their users and the world may do to them."""

    scenario: Scenario

    @initialize(seed=st.integers(0, 1 << 32), workers=st.integers(1, 4))
    def begin(self, seed: int, workers: int) -> None:
        self.scenario = Scenario(seed)
        self.scenario.new_trainer(Memory(self.scenario.durable))
        for _ in range(workers):
            self.scenario.new_worker()

    @rule(seconds=st.sampled_from((0.01, 0.1, 0.5, 3.0, 11.0)))
    def time_passes(self, seconds: float) -> None:
        self.scenario.network.run(lambda: False, seconds)

    @precondition(lambda self: bool(self.scenario.living()))
    @rule(which=st.integers(0, 11), messages=st.integers(1, 5))
    def hand_over(self, which: int, messages: int) -> None:
        living = self.scenario.living()
        worker = living[which % len(living)]
        for _ in range(messages):
            if not worker.state.ending:
                self.scenario.make(worker)

    @rule(kind=st.sampled_from(sorted(FAULTS)))
    def fault(self, kind: str) -> None:
        FAULTS[kind](self.scenario)

    @precondition(lambda self: self.scenario.any_trainer)
    @rule()
    def checkpoint(self) -> None:
        self.scenario.trainer.checkpoint()

    @precondition(lambda self: self.scenario.any_trainer)
    @rule()
    def publish(self) -> None:
        self.scenario.publish(self.scenario.trainer)

    @invariant()
    def sums_are_sums(self) -> None:
        if hasattr(self, "scenario"):
            self.scenario.checker.audit(self.scenario.network.relay, self.scenario.workers)

    def teardown(self) -> None:
        if hasattr(self, "scenario"):
            self.scenario.finish()


Delivery.TestCase.settings = settings(
    max_examples=300 if FULL else 25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDelivery = pytest.mark.timeout(900)(Delivery.TestCase)
