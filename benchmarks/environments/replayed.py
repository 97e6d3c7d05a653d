"""Record episodes of an environment through the product, and replay them by seed and actions in the bare environment.

`try_families.py` starts this in the virtual environment of a family, once to record and once to replay:

    python replayed.py record CASE.json FOLDER
    python replayed.py replay CASE.json FOLDER
    python replayed.py probe CASE.json FOLDER

`probe` looks at the bare environment alone: what reset's seed fixes, and what a step does to arrays that it was given
or has returned. The last line of the output is JSON. Replaying uses nothing of tmrl_core but the reader of recordings.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_core.actor import ActorModule

EPISODES, STEPS = 5, 1000
SEND_EVERY = (0, 7)
SEED = 1


class RandomActor(ActorModule):
    """Draw actions from the action space.

    Args:
        observation_space: of the environment.
        action_space: likewise.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.action_space.seed(SEED)

    def act(self, obs: Any, test: bool = False) -> Any:
        return self.action_space.sample()

    def dumps(self) -> bytes:
        return b""

    def loads(self, weights: bytes) -> None:
        pass


# --- recording --------------------------------------------------------------------------------------------------------


def record(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Record one case for each `send_every`; return its spaces."""
    from tmrl_core.config import from_values, use
    from tmrl_core.roles.from_config import make_worker

    told: dict[str, Any] = {"episodes": {}}
    for send_every in SEND_EVERY:
        own = folder / str(send_every)
        config = from_values(
            {
                "run": {"name": "replayed", "folder": str(own / "runs"), "seed": SEED},
                "environment": dict(case["environment"]),
                "actor": {"cls": "replayed:RandomActor"},
                "worker": {"record": str(own / "recorded"), "send_every": send_every, "max_samples_per_episode": STEPS},
            }
        )
        use(config)
        with make_worker(config, standalone=True) as worker:
            told["observations"] = space_text(worker.env.observation_space)
            told["actions"] = space_text(worker.env.action_space)
            while worker.episodes < EPISODES and worker.steps_collected < STEPS:
                worker.run(nb_episodes=1, expert=True, verbose=False)
            told["episodes"][str(send_every)] = worker.episodes
    return told


def space_text(space: Any) -> str:
    """Return a space in a few words, without its bounds."""
    spaces: Any = getattr(space, "spaces", None)
    if isinstance(spaces, Mapping):
        return "{" + ", ".join(f"{key}: {space_text(each)}" for key, each in spaces.items()) + "}"
    if spaces is not None:
        return "(" + ", ".join(map(space_text, spaces)) + ")"
    if "Box" in (kind.__name__ for kind in type(space).__mro__):
        shape = "x".join(map(str, space.shape)) or "number"
        return f"{space.dtype} {shape}"
    return str(space).removeprefix("gymnasium.spaces.")


# --- replaying --------------------------------------------------------------------------------------------------------


def replay(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Compare the recordings of a case with the bare environment."""
    from tmrl_core.sessions import read_sessions

    found: dict[str, Any] = {}
    for send_every in SEND_EVERY:
        env = bare(case["environment"])
        differences: dict[str, str] = {}
        steps = sessions = 0
        for number, session in enumerate(read_sessions(folder / str(send_every) / "recorded")):
            sessions += 1
            steps += len(session)
            for what, where in compared(env, session):
                differences.setdefault(what, f"episode {number + 1}, {where}")
        found[str(send_every)] = {"sessions": sessions, "steps": steps, "differences": differences}
        env.close()
    return found


def bare(environment: Mapping[str, Any]) -> Any:
    """Make the environment without the product."""
    kwargs = dict(environment.get("kwargs") or {})
    module, _, name = environment["cls"].partition(":")
    if module != "tmrl_core.envs" or name == "OldGym":
        return getattr(import_module(module), name)(**kwargs)
    import gymnasium

    return gymnasium.make(kwargs["id"], **{"disable_env_checker": True, **kwargs.get("gym_kwargs", {})})


def compared(env: Any, session: Any) -> Iterator[tuple[str, str]]:
    """Yield what differs, and where."""
    if session.first_step:
        yield "cut", f"a session begins with step {session.first_step}"
        return
    observation, _ = env.reset(seed=session.seed)
    if what := different(row(session.observations, 0), observation):
        yield what, "reset"
    last = len(session) - 1
    for tick in range(len(session)):
        action = row(session.actions, tick)
        if type(env.action_space).__name__ == "Discrete":
            action = int(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        where = f"step {tick + 1}"
        if what := different(row(session.observations, tick + 1), observation):
            yield what, where
        if session.rewards[tick] != np.float64(float(reward)):
            yield "reward", where
        if bool(terminated) != (session.terminated and tick == last):
            yield "terminated", where
        # The recording is cut at STEPS, whatever the environment says.
        if bool(truncated) != (session.truncated and tick == last) and tick + 1 < STEPS:
            yield "truncated", where
        if terminated or truncated:
            return  # a step after the end is no valid call


def row(tree: Any, index: int) -> Any:
    """Return one row of recorded columns."""
    if isinstance(tree, Mapping):
        return {key: row(each, index) for key, each in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row(each, index) for each in tree)
    return tree[index]


def different(recorded: Any, seen: Any) -> str:
    """Return what differs between two observations; empty: nothing."""
    if same(recorded, seen):
        return ""
    if isinstance(seen, Mapping) and sorted(recorded) == sorted(seen):
        return "order of keys" if same(recorded, {key: seen[key] for key in recorded}) else "observation"
    return "observation"


def same(recorded: Any, seen: Any) -> bool:
    """Return True if two observations are equal bit by bit, dtypes of arrays and order of keys included."""
    if isinstance(seen, Mapping):
        return list(recorded) == list(seen) and all(same(recorded[key], seen[key]) for key in seen)
    if isinstance(seen, tuple):
        return len(recorded) == len(seen) and all(map(same, recorded, seen))
    left, right = np.asarray(recorded), np.asarray(seen)
    if isinstance(seen, np.ndarray) and left.dtype != right.dtype:
        return False
    return left.shape == right.shape and left.tobytes() == right.astype(left.dtype).tobytes()


# --- probing ----------------------------------------------------------------------------------------------------------


def probe(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return what surprises about the bare environment; empty: nothing."""
    env = bare(case["environment"])
    env.action_space.seed(SEED)
    actions = [env.action_space.sample() for _ in range(PROBED)]
    first, found = trajectory(env, SEED, actions)
    second, _ = trajectory(env, SEED, actions)
    other, _ = trajectory(env, SEED + 1, actions)
    env.close()
    if differs := first_difference(first, second):
        found["the same seed in the same object"] = differs
    fresh = bare(case["environment"])
    third, _ = trajectory(fresh, SEED, actions)
    fresh.close()
    if differs := first_difference(first, third):
        found["the same seed in a fresh object"] = differs
    if not first_difference(first, other):
        found["another seed"] = "changes nothing"
    return found


PROBED = 300
"""Steps of a trajectory, less if the episode ends."""


def trajectory(env: Any, seed: int, actions: list[Any]) -> tuple[list[Any], dict[str, str]]:
    """Return copies of observations and rewards of one episode, and what a step did beside that."""
    found: dict[str, str] = {}
    observation, _ = env.reset(seed=seed)
    steps = [copy.deepcopy(observation)]
    kinds: list[str] = []
    for number, action in enumerate(actions, 1):
        if not env.observation_space.contains(observation):
            found.setdefault("observations outside their space", f"first at step {number - 1}")
        given = copy.deepcopy(action)
        seen, kept = observation, steps[-1] if number == 1 else steps[-1][0]
        observation, reward, terminated, truncated, _ = env.step(action)
        if not same(kept, seen):
            found.setdefault("the observation of the step before changes", f"first at step {number}")
        if not same(given, action):
            found.setdefault("the given action is changed", f"first at step {number}")
        if type(reward).__name__ not in kinds:
            kinds.append(type(reward).__name__)
        steps.append((copy.deepcopy(observation), float(reward)))
        if terminated or truncated:
            break
    if len(kinds) > 1:
        found["types of rewards"] = ", ".join(kinds)
    return steps, found


def first_difference(left: list[Any], right: list[Any]) -> str:
    """Return where two trajectories differ; empty: nowhere."""
    if not same(left[0], right[0]):
        return "differs at reset"
    for number, (one, two) in enumerate(zip(left[1:], right[1:], strict=False), 1):
        if not same(one[0], two[0]) or one[1] != two[1]:
            return f"differs at step {number}"
    return "" if len(left) == len(right) else "another length"


# --- many agents ------------------------------------------------------------------------------------------------------


def record_agents(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Play the turns of an environment of many agents through the product, and write them down."""
    from tmrl_core.multiagent.pettingzoo import PettingZooEnvironment

    env = PettingZooEnvironment(**case["environment"]["kwargs"])
    rng = np.random.default_rng(SEED)
    turns: list[Any] = []
    for episode in range(EPISODES):
        if not episode:
            env.set_seed(SEED)
        metrics, turn, done = env.step(None)
        turns.append(("reset", SEED if not episode else None))
        while not done and turn is not None and len(turns) < STEPS:
            space = env.action_space(turn.agent)
            state = turn.state
            mask = state.get("action_mask") if isinstance(state, Mapping) else None
            space.seed(int(rng.integers(2**31)))
            action = space.sample() if mask is None else space.sample(np.asarray(mask, np.int8))
            turns.append((turn.agent, turn.observation, metrics["rewards"].get(turn.agent, 0.0), action))
            metrics, turn, done = env.step(action)
        if done:
            turns.append(("end", metrics["rewards"]))
        env.reset()
    folder.mkdir(parents=True, exist_ok=True)
    env.close()
    np.save(folder / "turns.npy", np.array([*turns, None], dtype=object), allow_pickle=True)  # of this process's own
    agent = next(iter(env.agents))
    return {"observations": space_text(env.observation_space(agent)), "actions": space_text(env.action_space(agent))}


def replay_agents(case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Compare the turns with the bare environment's."""
    turns = np.load(folder / "turns.npy", allow_pickle=True)[:-1]
    kwargs = case["environment"]["kwargs"]
    module, _, name = kwargs["env"].partition(":")
    env = getattr(import_module(module), name or "env")(**kwargs.get("kwargs", {}))
    parallel = not hasattr(env, "agent_selection") and hasattr(env, "state") and not hasattr(env, "last")
    differences: dict[str, str] = {}
    check = replay_parallel if parallel else replay_aec
    steps = 0
    for number, (what, where) in enumerate(check(env, turns)):
        differences.setdefault(what, f"{where} ({number + 1})")
    steps = sum(len(turn) == 4 for turn in turns)
    return {"0": {"sessions": EPISODES, "steps": steps, "differences": differences}}


def replay_aec(env: Any, turns: Any) -> Iterator[tuple[str, str]]:
    """Replay turns in an AEC environment."""
    for index, turn in enumerate(turns):
        where = f"turn {index}"
        if turn[0] == "reset":
            env.reset(seed=turn[1])
            continue
        ended = False
        while env.agents:
            observation, reward, terminated, truncated, _ = env.last()
            if not (terminated or truncated):
                break
            ended = True
            env.step(None)
        if turn[0] == "end":
            if env.agents or not ended:
                yield "end", where
            continue
        agent, seen, rewarded, action = turn
        if str(env.agent_selection) != agent:
            yield "agent", where
        if not same(seen, observation):
            yield "observation", where
        if not math.isclose(float(reward), rewarded, rel_tol=0, abs_tol=0):
            yield "reward", where
        env.step(int(action) if np.ndim(action) == 0 else action)


def replay_parallel(env: Any, turns: Any) -> Iterator[tuple[str, str]]:
    """Replay turns in a parallel environment: those of one tick together."""
    observations: Any = {}
    rewards: Any = {}
    chosen: dict[str, Any] = {}
    live: list[Any] = []
    for index, turn in enumerate(turns):
        where = f"turn {index}"
        if turn[0] == "reset":
            observations, _ = env.reset(seed=turn[1])
            rewards, chosen, live = {}, {}, list(env.agents)
        elif turn[0] == "end":
            if live:
                yield "end", where
        else:
            agent, seen, rewarded, action = turn
            if not same(seen, observations[agent]):
                yield "observation", where
            if float(rewards.get(agent, 0.0)) != rewarded:
                yield "reward", where
            chosen[agent] = int(action) if np.ndim(action) == 0 else action
            if set(chosen) == set(live):
                observations, rewards, _, _, _ = env.step(chosen)
                chosen, live = {}, list(env.agents)


def main() -> int:
    """Record or replay, and print the result."""
    what, path, folder = sys.argv[1:4]
    case = json.loads(Path(path).read_text(encoding="utf-8"))
    many = "multiagent" in case["environment"]["cls"]
    done = {
        "record": record_agents if many else record,
        "replay": replay_agents if many else replay,
        "probe": (lambda *_: {}) if many else probe,
    }[what]
    result = done(case, Path(folder))
    print(flush=True)
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
