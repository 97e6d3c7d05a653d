"""The import paths, positional orders and attributes of scripts written for `tmrl`, over the project's own classes.

Replace `tmrl.` by `tmrl_core.compat.` in the import lines of a script. README.md lists the deliberate differences.
"""

# Theory of operation
#
# The modules have tmrl's paths below `tmrl_core.compat`. Each is a thin layer over the project's classes: a subclass
# where positional order, a default, a settable attribute or a hook differ (`TrainingOffline` as a data class with
# `check_ratio`, agents with `pi_optimizer`), the class itself elsewhere. Where a subclass needs a value of a part, the
# part has a public attribute (`Uplink.files`, `RunCheckpoints.dump`); so nothing below knows of tmrl.
#
# Weights have the project's names, so that they are exchanged with other scripts and with the NumPy backend. The worker
# acts with the project's policy, which has the same weights and needs no torch. Models have separate critics (`q1`,
# `q2`, `qs`), because scripts pass their parameters to optimizers; the project's own compute all critics in one
# product.
#
# Configuration: one table (`config/settings.py`) maps tmrl's keys in both directions. Each key is checked by itself, so
# that a value that is refused costs no other. `tests/compat/signatures.json` has the names and signatures of tmrl 0.7;
# a test compares ours with them, and requires that README.md names each one that is left out.
#
# Rejected: aliases of tmrl's names in the project's own classes (two names for one thing); pandas rows; a module of
# constants that reads a file on import.

from __future__ import annotations

from tmrl_core.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, {"envs": "GenericGymEnv get_environment"})
