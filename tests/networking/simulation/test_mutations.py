"""Proof that the simulation would notice: each safeguard that is taken out of the core is missed within 100 seeds."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.networking.simulation.mutations import HARMLESS, MUTATIONS, REQUIRED, candidates
from tests.networking.simulation.scenario import simulate
from tmrl_core.networking.protocol.delivery import StreamReceiver

SEEDS = 100


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_notices_a_removed_safeguard(name: str) -> None:
    with MUTATIONS[name]():
        results = map(simulate, candidates(name, SEEDS))
        found = next((result for result in results if result.failure), None)
    assert found is not None, f"{SEEDS} seeds without {name} broke no promise"
    assert not found.crashed, f"{name} is no mutation, it fails: {found.failure}"


def test_an_error_of_a_mutation_is_no_broken_promise() -> None:
    def fail(self: StreamReceiver) -> int:
        raise TypeError("too many arguments")

    with patch.object(StreamReceiver, "attach", fail):
        result = simulate(1)
    assert result.crashed
    assert "too many arguments" in result.failure


def test_mutations_are_undone_afterwards() -> None:
    for name in REQUIRED:
        with MUTATIONS[name]():
            pass
    assert not simulate(0).failure


@pytest.mark.parametrize("name", HARMLESS)
def test_redundant_safeguards_can_be_removed(name: str, full: bool) -> None:
    with HARMLESS[name]():
        for seed in range(20 if full else 5):
            result = simulate(seed)
            assert not result.failure, f"seed {seed}: {result.failure}"
