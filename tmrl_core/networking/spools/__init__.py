"""Spools: samples that the Server keeps for workers that have ended."""
