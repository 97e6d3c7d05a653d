"""The command `--plot`, for `--help`: the module that runs it needs NumPy."""

from tmrl_core.roles.command import Command

PLOT = Command(
    "draw runs side by side, a line for each group of seeds; see `--plot --help`",
    "tmrl_core.plots.command:run_plot",
    "RUN",
)
