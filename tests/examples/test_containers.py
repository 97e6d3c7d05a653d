"""The container scenario: its rules, its hand-written policies, and that it is fair to whoever plays it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "containers"


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


def make(**config: Any) -> Any:
    from containers import ContainerInventory  # type: ignore[import-not-found,unused-ignore]

    return ContainerInventory(config)


def play(env: Any, choose: Callable[[Any], int], seed: int | None = 0) -> list[Any]:
    """Play an episode and return its events. The episode's figures stay in the environment."""
    if seed is not None:
        env.set_seed(seed)
    events = []
    _, event, over = env.step(None)
    while not over:
        events.append(event)
        _, event, over = env.step(choose(event))
    assert event is None
    return events


def drawn(seed: int) -> Callable[[Any], int]:
    draw = random.Random(seed)
    return lambda event: draw.randint(-event.loadable, event.dischargeable)


def extreme(seed: int) -> Callable[[Any], int]:
    draw = random.Random(seed)
    return lambda event: draw.choice((-event.loadable, event.dischargeable))


@pytest.mark.parametrize("choose", [drawn, extreme])
@pytest.mark.parametrize("settings", [{}, {"containers": 30_000}, {"orders": 400.0}, {"containers": 0}])
def test_containers_and_orders_are_conserved(choose: Any, settings: dict[str, Any]) -> None:
    env = make(**settings)
    capacity = {ship.name: ship.capacity for ship in env.config.ships}
    for seed in range(2):
        play(env, choose(seed), seed)
        history = env.snapshot_list
        ports, ships = [*history.ports.values()], [*history.ships.values()]
        for tick in range(env.config.ticks):
            ashore = sum(port[tick].empty + port[tick].waiting + port[tick].returning for port in ports)
            afloat = sum(ship[tick].full + ship[tick].empty for ship in ships)
            assert ashore + afloat == env.config.containers
        assert all(min(state) >= 0 for port in ports for state in port)
        for name, states in history.ships.items():
            assert all(
                min(state.full, state.empty) >= 0 and state.full + state.empty <= capacity[name] for state in states
            )
        metrics = env.metrics
        assert metrics["orders"] == sum(state.orders for port in ports for state in port)
        assert metrics["shortage"] == sum(state.shortage for port in ports for state in port)
        for name, states in history.ports.items():
            found = metrics["ports"][name]
            assert found["orders"] == sum(state.orders for state in states)
            assert found["shortage"] == sum(state.shortage for state in states) <= found["orders"]
            assert found["fulfilment"] == pytest.approx(1 - found["shortage"] / max(found["orders"], 1))
        env.reset()


def test_a_seed_repeats_an_episode_and_its_orders_do_not_depend_on_the_actions() -> None:
    env, other = make(), make()
    assert play(env, drawn(1), 7) == play(other, drawn(1), 7)
    assert (env.metrics, env.snapshot_list) == (other.metrics, other.snapshot_list)
    first = env.metrics
    orders = {name: [state.orders for state in states] for name, states in env.snapshot_list.ports.items()}
    env.reset()
    play(env, extreme(2), 7)
    assert {name: [state.orders for state in states] for name, states in env.snapshot_list.ports.items()} == orders
    assert env.metrics["shortage"] != first["shortage"]
    env.reset()
    play(env, drawn(1), 8)
    assert env.metrics["orders"] != first["orders"]
    env.reset()
    other.reset()
    play(env, drawn(1), None)
    play(other, drawn(1), 7)
    assert env.metrics["orders"] != other.metrics["orders"], "without a seed, another episode"


def test_events_are_the_calls_of_the_ships_in_order() -> None:
    env = make()
    events = play(env, drawn(0))
    place = {ship.name: at for at, ship in enumerate(env.config.ships)}
    order = [(event.tick, place[event.ship]) for event in events]
    assert order == sorted(order)
    expected = {
        (tick, ship.route[((tick - ship.first) // ship.leg) % len(ship.route)], ship.name)
        for ship in env.config.ships
        for tick in range(ship.first, env.config.ticks, ship.leg)
    }
    assert len(events) == len(expected)
    assert {(event.tick, event.agent, event.ship) for event in events} == expected
    assert {event.agent for event in events} == set(env.names)
    assert len(env.names) >= 5
    assert env.config.ticks == 100


def test_the_history_reaches_to_the_tick_of_the_event() -> None:
    env = make()
    env.set_seed(0)
    _, event, over = env.step(None)
    while not over:
        history = env.snapshot_list
        assert {len(states) for states in [*history.ports.values(), *history.ships.values()]} == {event.tick + 1}
        state = history.ships[event.ship][event.tick]
        assert (state.port, state.tick) == (event.agent, event.tick)
        _, event, over = env.step(0)
    assert {len(states) for states in env.snapshot_list.ports.values()} == {env.config.ticks}


@pytest.mark.parametrize("action", ["0", 0.0, True, None, -1_000_000, 1_000_000])
def test_an_invalid_action_is_refused_and_changes_nothing(action: Any) -> None:
    env, other = make(), make()
    for each in (env, other):
        each.set_seed(3)
        _, event, _ = each.step(None)
    with pytest.raises((ValueError, RuntimeError), match=r"integer|must be between -\d+ and \d+|running"):
        env.step(action)
    assert env.step(-event.loadable) == other.step(-event.loadable)


def test_the_range_of_an_event_is_exact() -> None:
    chosen: list[Callable[[Any], int]] = [lambda event: -event.loadable, lambda event: int(event.dischargeable)]
    for choose in chosen:
        env = make()
        env.set_seed(0)
        _, event, over = env.step(None)
        while not over:
            for outside in (-event.loadable - 1, event.dischargeable + 1):
                with pytest.raises(ValueError, match="must be between"):
                    env.step(outside)
            _, event, over = env.step(choose(event))


def test_steps_out_of_turn_are_refused() -> None:
    env = make(ticks=5)
    with pytest.raises(RuntimeError, match=r"step\(None\)"):
        env.step(0)
    play(env, lambda event: 0)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    env.reset()
    assert play(env, lambda event: 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tick": 3}, "tick"),
        ({"ticks": 0}, "ticks must be at least 1"),
        ({"ticks": "3"}, "ticks"),
        ({"season": 1.5}, "season must be between 0 and 1"),
        ({"ports": [{"name": "a", "exports": 1.0, "imports": -1.0}], "ships": []}, "port a"),
        ({"ports": [], "ships": []}, "at least one port"),
        ({"ships": [{"name": "one", "route": ["shanghai", "nowhere"]}]}, "two or more different ports of shanghai"),
        ({"ships": [{"name": "one", "route": ["shanghai", "santos"], "leg": 0}]}, "leg must be at least 1"),
        ({"ships": [{"name": "one", "route": ["shanghai", "santos"]}] * 2}, "same name"),
    ],
)
def test_an_impossible_configuration_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**config)


def test_doing_nothing_is_bad_random_is_better_and_the_rule_is_best() -> None:
    from container_baselines import at_random, nothing, play, rule  # type: ignore[import-not-found,unused-ignore]

    env, seeds = make(), range(1000, 1005)
    lost = [
        sum(play(env, policy(seed), seed)["shortage"] for seed in seeds)
        for policy in (lambda _: nothing, at_random, lambda _: rule)
    ]
    orders = sum(play(env, nothing, seed)["orders"] for seed in seeds)
    assert lost[0] > 0.3 * orders
    assert lost[1] < 0.7 * lost[0]
    assert lost[2] < 0.6 * lost[1]
    assert lost[2] > 0.03 * orders, "there is room above the rule"
