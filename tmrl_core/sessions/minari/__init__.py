"""Datasets of Minari as recorded sessions; `tmrl_core.sessions` exports `read_minari` and `write_minari`."""
