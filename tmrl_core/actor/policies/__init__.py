"""Policies and what their backends share."""
