"""The import paths, positional orders and attributes of scripts written for `tmrl`, over the project's own classes.

Replace `tmrl.` by `tmrl_core.compat.` in the import lines of a script. docs/tmrl.md lists the deliberate differences.
"""

from __future__ import annotations

from tmrl_core.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, {"envs": "GenericGymEnv get_environment"})
