"""Functions of `tmrl.custom.tm`."""
