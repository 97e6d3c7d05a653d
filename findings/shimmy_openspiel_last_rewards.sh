#!/usr/bin/env bash
# Shimmy's adapter of OpenSpiel gives the second player the last reward of a game twice, the third three times, and so on.
#
# Guess: the rewards that a player gets with its turns (`last()`) add up to the game's own returns, and to zero in a
#   zero-sum game.
# Seen: shimmy 2.0.1, open_spiel 2.0.2, pettingzoo 1.27.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026.
#   A hand of Leduc poker that ends +3, -3 gives +3, -6. One of three players, +6, -3, -3, gives +6, -6, -9: a sum of -9.
#   At the end each player gets a turn in which it does not act; the adapter's `step` adds the last rewards once more to
#   those of all players whose turn is still to come. OpenSpiel's `returns()` are right.
# Matters for: whatever reads `last()`, as PettingZoo's loops do. The second player of a zero-sum game learns from other
#   rewards than the first one, and ratings by returns favour the first seat: losses and wins of the others count more.
#   docs/environments.md has a class that clears the rewards before these turns.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet --no-compile shimmy==2.0.1 open_spiel==2.0.2 pettingzoo==1.27.0 \
  gymnasium==1.4.0 numpy==2.4.6 || exit 2
cat > "$folder/hands.py" <<'PYTHON'
import numpy as np
from shimmy.openspiel_compatibility import OpenSpielCompatibilityV0

HANDS = 20


def played(players, seed):
    """Return what the players of one hand of Leduc poker got with their turns, and the game's returns."""
    env = OpenSpielCompatibilityV0(game_name="leduc_poker", config={"players": players})
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    got = dict.fromkeys(env.possible_agents, 0.0)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        got[agent] += reward
        env.step(None if terminated or truncated else int(rng.choice(np.flatnonzero(info["action_mask"]))))
    return list(got.values()), list(env.game_state.returns())


same = True
for players in (2, 3, 4):
    hands = [played(players, seed) for seed in range(HANDS)]
    times = [1 + number for number in range(players)]
    same = same and all(got == [n * value for n, value in zip(times, right)] for got, right in hands)
    same = same and any(any(right) for _, right in hands)
    got, right = next(hand for hand in hands if all(hand[1]))
    print(f"{players} players, returns {right}: with their turns they got {got}, in all {sum(got)}")
print(f"in each of {3 * HANDS} hands, player n got the last reward n times: {same}")
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/hands.py"
