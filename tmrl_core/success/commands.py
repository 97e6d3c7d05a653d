"""The command `--label`, for `--help`: the module that runs it needs torch."""

from tmrl_core.roles.command import Command

LABEL = Command(
    "train a classifier of success on recorded sessions or labelled images, for rewards; see `--label --help`",
    "tmrl_core.success.command:run_label",
    "DIR",
)
