"""Policies that run with NumPy alone."""
