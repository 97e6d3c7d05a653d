"""Training loops, evaluation and the rate limiter."""
