"""Collection: the parts of a worker, the three schedules and the class that composes them."""
