from __future__ import annotations

from typing import Any

from tmrl_core.config import from_values
from tmrl_core.config.resuming import changes_since, in_force, plain


def test_changes_are_named_with_both_values() -> None:
    stored = plain(from_values({"agent": {"kwargs": {"lr_actor": 1e-3}}, "server": {"port": 1}}))
    del stored["memory"]["batch_size"]  # a stored configuration may lack keys
    today = from_values({"agent": {"kwargs": {"lr_critic": 0.5}}, "trainer": {"limiter": {"samples_per_insert": 4.0}}})
    assert [str(change) for change in changes_since(stored, today)] == [
        "agent.kwargs.lr_actor: 0.001 in the checkpoint, left out now",
        "agent.kwargs.lr_critic: left out in the checkpoint, 0.5 now",
        "trainer.limiter.samples_per_insert: None in the checkpoint, 4.0 now",
    ]


def test_some_keys_must_not_change_and_some_keep_their_first_value() -> None:
    def made(seed: int, **sections: Any) -> Any:
        kwargs = {"alpha": seed / 10, "activation": "relu", "hidden_sizes": [seed]}
        return from_values({"run": {"seed": seed}, "agent": {"kwargs": kwargs}, **sections})

    stored = plain(made(1))
    today = made(2, memory={"n_step": 3})
    fixed = {change.key for change in changes_since(stored, today) if change.fixed}
    assert fixed == {"memory.n_step"}
    found = in_force(stored, today)
    assert (found.run.seed, found.agent.kwargs["alpha"]) == (1, 0.1)
    assert (found.memory.n_step, found.agent.kwargs["hidden_sizes"]) == (3, [2])
    assert in_force(plain(today), today) is today


def test_an_agent_keeps_its_policy_and_memory_in_a_run() -> None:
    def made(**section: Any) -> Any:
        policies = {name: {"algorithm": "a:B", "memory": "all"} for name in ("x", "y")}
        worker, lockstep = {"collection": "lockstep"}, {"steps_per_round": None, "episodes_per_round": 1}
        many = {"agents": {"one": "x", "two": "y"}, "policies": policies, **section}
        return from_values({"multiagent": many, "worker": worker, "trainer": {"lockstep": lockstep}})

    def changed(**section: Any) -> dict[str, bool]:
        return {change.key: bool(change.fixed) for change in changes_since(plain(made()), made(**section))}

    assert changed(agents={"one": "y", "two": "x", "three": "x"}) == {
        "multiagent.agents.one": True,
        "multiagent.agents.two": True,
        "multiagent.agents.three": False,  # a new agent
    }
    policies = {
        "x": {"algorithm": "a:B", "kwargs": {"lr": 0.1}, "memory": "all"},
        "y": {"algorithm": "a:B", "parameters": {"batch_size": 9, "capacity": 7}},
    }
    assert changed(policies=policies) == {
        "multiagent.policies.x.kwargs.lr": False,
        "multiagent.policies.y.memory": True,
        "multiagent.policies.y.parameters.batch_size": False,
        "multiagent.policies.y.parameters.capacity": True,
    }
    assert "multiagent" in {change.key for change in changes_since(plain(from_values({})), made()) if change.fixed}


def test_an_agent_keeps_its_policy_whatever_pattern_names_it() -> None:
    def made(**many: Any) -> Any:
        lockstep = {"steps_per_round": None, "episodes_per_round": 1}
        many["policies"] = {name: {"algorithm": "a:b"} for name in sorted(set(many["agents"].values()))}
        return from_values(
            {"multiagent": many, "worker": {"collection": "lockstep"}, "trainer": {"lockstep": lockstep}}
        )

    ids = ["p1", "p2"]
    first = plain(made(agents={"p*": "x"}, agent_ids=ids))
    same = made(agents={"p1": "x", "p2": "x"})
    other = made(agents={"p1": "x", "p?": "y"}, agent_ids=ids)
    assert not [change for change in changes_since(first, same) if change.fixed]
    assert [change.key for change in changes_since(first, other) if change.fixed] == ["multiagent.agents.p2"]
