"""Training over a link to the Server."""
