"""Promises to honest workers beside one member that says whatever is valid, and the mutations they notice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.networking.simulation.hostile import MOODS
from tests.networking.simulation.mutations import HOSTILE, SHOWN_BY, candidates
from tests.networking.simulation.scenario import Scenario, simulate

BLOCKS = 4
SEEDS_OF_A_BLOCK = 500
SEEDS = 60
SEEDS_OF_A_MOOD, SEEDS_OF_A_MOOD_FULL = 2, 5
# With each seed that breaks a promise as soon as a protection is removed.
QUICK = sorted({*range(4), *(seed for name, seed in SHOWN_BY.items() if name in HOSTILE)})


def keeps_every_promise(seeds: Iterable[int]) -> Counter[str]:
    """Simulate these seeds; return the thieves' moods."""
    moods: Counter[str] = Counter()
    for seed in seeds:
        result = simulate(seed, hostile=True)
        assert not result.failure, f"python scripts/simulate.py --hostile --first {seed} --trace: {result.failure}"
        assert result.said > 10
        moods[result.thief] += 1
    return moods


def test_every_promise_to_honest_workers_is_kept() -> None:
    keeps_every_promise(QUICK)


@pytest.mark.full
@pytest.mark.timeout(1_800)  # on a machine that does other things too
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_to_honest_workers_is_kept_for_many_seeds(block: int) -> None:
    moods = keeps_every_promise(range(block * SEEDS_OF_A_BLOCK, (block + 1) * SEEDS_OF_A_BLOCK))
    assert moods.keys() == MOODS.keys()


SLOW = [pytest.param(seed, marks=pytest.mark.full) for seed in (79, 121, 669, 741, 6252)]


@pytest.mark.parametrize("seed", [8, 16, 37, 42, 43, 57, 59, 102, 112, 420_727, *SLOW])
def test_found_attacks_stay_closed(seed: int) -> None:
    """Each is a way in which one member kept credit, memory or the trainer's link, or made the trainer forget.

    They were found beside a member that signs nothing. With an even seed, machines authenticate each other.
    """
    assert not simulate(seed, hostile=True, unsigned=True).failure


def test_who_lost_everything_may_repeat_a_number_that_the_first_trainer_had_left() -> None:
    """The check knew only numbers that a trainer still held when the Server accepted them, and gave a false alarm."""
    assert not simulate(401_580, hostile=True, unsigned=True).failure


def test_credit_of_a_new_epoch_is_not_the_unused_one_of_the_last() -> None:
    """Another false alarm: the trainer's link had ended between two checks, and the same credit was granted again."""
    assert not simulate(410_205, hostile=True).failure


def test_an_implausible_record_does_not_give_an_incarnation_twice() -> None:
    assert not simulate(700_078, hostile=True).failure


def test_a_link_that_ends_costs_the_same_with_a_hundred_messages_in_the_server() -> None:
    assert not simulate(426_162, hostile=True, unsigned=True).failure


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", HOSTILE)
def test_the_simulation_notices_a_removed_protection(name: str) -> None:
    with HOSTILE[name]():
        results = (simulate(seed, hostile=True) for seed in candidates(name, SEEDS))
        found = next((result for result in results if result.failure), None)
    assert found is not None, f"{SEEDS} seeds without {name} broke no promise"
    assert not found.crashed, f"{name} is no mutation, it fails: {found.failure}"


@pytest.mark.parametrize("mood", ["hoards credit", "sends"])
@pytest.mark.parametrize("signed", [False, True])
def test_the_thief_gets_what_an_honest_worker_gets(signed: bool, mood: str, full: bool) -> None:
    """Its harm is void unless the trainer takes its streams, the relay grants it credit, and its samples arrive."""
    seeds = SEEDS_OF_A_MOOD_FULL if full else SEEDS_OF_A_MOOD
    drawn = (seed for seed in range(1_000 + (not signed), 2_000, 2) if is_drawn(seed, mood, signed))
    gains = [simulate(seed, hostile=True).gains for seed in itertools.islice(drawn, seeds)]
    assert sum(one.resumed for one in gains) > 100
    assert sum(one.credit_bytes for one in gains) > 10_000
    assert sum(one.reserved_bytes > 0 for one in gains) > seeds // 2
    assert mood != "sends" or sum(one.acknowledged for one in gains) > 10


def is_drawn(seed: int, mood: str, signed: bool) -> bool:
    """Return True if the thief of a seed has that mood, and signs its streams or not."""
    drawn = Scenario(seed, hostile=True).result
    return drawn.thief == mood and drawn.signed is signed


@pytest.mark.parametrize("seed", [3, 34])
def test_a_seed_repeats_the_hostile_simulation(seed: int) -> None:
    result = simulate(seed, hostile=True)
    assert result.signed is (seed == 34)
    assert result.digest == simulate(seed, hostile=True).digest != simulate(seed).digest
