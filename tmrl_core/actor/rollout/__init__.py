"""Collection: the parts of a worker, its schedule with three rules, and the class that composes them."""
