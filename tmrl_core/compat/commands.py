"""Commands that convert files of tmrl."""

from tmrl_core.roles.command import Command

_RUN = "tmrl_core.compat.files_of_tmrl:run_import"

IMPORT_CONFIG = Command("convert tmrl's configuration (config.json); see `--import-config --help`", _RUN, "FILE")
IMPORT_WEIGHTS = Command("convert tmrl's MLP policy (.tmod); see `--import-weights --help`", _RUN, "FILE")
