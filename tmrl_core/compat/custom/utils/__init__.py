"""Helpers of `tmrl.custom.utils`."""
