"""Algorithms with their networks, losses and optimizers."""
