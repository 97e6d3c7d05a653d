"""Replay memories: stores, sampling and row layouts."""
