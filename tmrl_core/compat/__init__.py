"""The layout that scripts written for `tmrl` import from; nothing here has a mind of its own."""
