"""Scripts and files written for tmrl."""

COMMANDS = {
    "import-config": "tmrl_core.compat.commands:IMPORT_CONFIG",
    "import-weights": "tmrl_core.compat.commands:IMPORT_WEIGHTS",
}
