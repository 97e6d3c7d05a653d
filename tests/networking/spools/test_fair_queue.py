"""Jobs of one thread keep their order for each owner, and owners take turns."""

from __future__ import annotations

from functools import partial

from tmrl_core.networking.spools.fair_queue import FairQueue


def taken(jobs: FairQueue, most: int) -> None:
    for _ in range(most):
        job = jobs.get()
        if job is None:
            return
        job()


def test_owners_take_turns_by_the_costs_of_their_jobs() -> None:
    jobs, done = FairQueue(), list[tuple[str, int]]()
    for number in range(40):
        jobs.put("many", 1, partial(done.append, ("many", number)))
    for number in range(10):
        jobs.put("large", 4, partial(done.append, ("large", number)))
    taken(jobs, 20)
    assert 3 <= sum(owner == "large" for owner, _ in done) <= 5
    jobs.put("late", 1, partial(done.append, ("late", 0)))
    taken(jobs, 3)
    assert ("late", 0) in done
    jobs.end()
    taken(jobs, 100)
    for owner, most in (("many", 40), ("large", 10)):
        assert [number for name, number in done if name == owner] == list(range(most))


def test_a_job_can_wait_for_one_of_another_owner() -> None:
    jobs, done = FairQueue(), list[str]()
    for _ in range(5):
        turn = jobs.put("first", 10, partial(done.append, "first"))
    jobs.put("second", 1, partial(done.append, "second"), after=turn)
    jobs.end()
    taken(jobs, 100)
    assert done == ["first"] * 5 + ["second"]
