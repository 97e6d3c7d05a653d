"""Proof that the simulation would notice: each safeguard that is taken out of the core is missed within 100 seeds."""

from __future__ import annotations

import pytest

from tests.networking.simulation.mutations import HARMLESS, MUTATIONS, REQUIRED
from tests.networking.simulation.scenario import simulate

SEEDS = 100


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_notices_a_removed_safeguard(name: str) -> None:
    with MUTATIONS[name]():
        assert any(simulate(seed).failure for seed in range(SEEDS)), f"{SEEDS} seeds without {name} broke no promise"


def test_mutations_are_undone_afterwards() -> None:
    for name in REQUIRED:
        with MUTATIONS[name]():
            pass
    assert not simulate(0).failure


@pytest.mark.parametrize("name", HARMLESS)
def test_redundant_safeguards_can_be_removed(name: str) -> None:
    with HARMLESS[name]():
        for seed in range(20):
            result = simulate(seed)
            assert not result.failure, f"seed {seed}: {result.failure}"
