"""Models, algorithms and memories of `tmrl.custom`."""
