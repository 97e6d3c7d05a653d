"""Importing this package registers the environment `LineWalk-v0` with Gymnasium."""

import gymnasium

gymnasium.register("LineWalk-v0", entry_point="line_walk.environment:LineWalk")
