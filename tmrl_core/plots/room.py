"""Pictures and statistics of several runs: the command `--plot`."""

COMMANDS = {"plot": "tmrl_core.plots.commands:PLOT"}
