"""Checkpoints: captured state, files and the store of a run."""
