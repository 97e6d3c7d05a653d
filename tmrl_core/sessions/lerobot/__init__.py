"""Datasets of LeRobot as recorded sessions; `tmrl_core.sessions` exports `read_lerobot` and `write_lerobot`."""
