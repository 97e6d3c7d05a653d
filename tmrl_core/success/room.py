"""Success classifiers as rewards: the command `--label`, and an environment that configurations name by reference."""

COMMANDS = {"label": "tmrl_core.success.commands:LABEL"}
