"""Runs side by side: one line for each group of seeds, and statistics over the seeds."""
