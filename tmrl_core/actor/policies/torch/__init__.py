"""Policies that run with torch."""
