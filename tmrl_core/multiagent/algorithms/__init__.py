"""Algorithms of agents: those of named torch models, the training agents of this project, and fixed rules."""
