"""Typed, frozen configuration from JSON or YAML, environment and command line.

`load` reads a file; `current` supplies the values of omitted arguments marked `CFG`; `resolve` returns the object of a
reference `package.module:Name`. Importing this package reads nothing.
"""

from tmrl_core.config.loading import (
    current,
    data_folder,
    find_config_file,
    find_credentials_folder,
    from_values,
    load,
    resolved,
    use,
    with_changes,
)
from tmrl_core.config.ratios import ratios_conflict, ratios_warning
from tmrl_core.config.references import environment_maker, is_own, locate, resolve, resolve_optional, resolve_with
from tmrl_core.config.sections import Config, is_loopback
from tmrl_core.config.sentinel import CFG, Cfg, given

__all__ = [
    "CFG",
    "Cfg",
    "Config",
    "current",
    "data_folder",
    "environment_maker",
    "find_config_file",
    "find_credentials_folder",
    "from_values",
    "given",
    "is_loopback",
    "is_own",
    "load",
    "locate",
    "ratios_conflict",
    "ratios_warning",
    "resolve",
    "resolve_optional",
    "resolve_with",
    "resolved",
    "use",
    "with_changes",
]
