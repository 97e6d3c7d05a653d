"""Sessions that learn by themselves: a learner for each, shared saves, and advice of other running sessions."""
