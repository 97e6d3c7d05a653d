from __future__ import annotations

from typing import Any

from tmrl_core.config import from_values
from tmrl_core.config.resuming import changes_since, in_force, plain


def test_changes_are_named_with_both_values() -> None:
    stored = plain(from_values({"agent": {"kwargs": {"lr_actor": 1e-3}}, "server": {"port": 1}}))
    del stored["memory"]["batch_size"]  # as a release before this key had written it
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
