"""Server, RolloutWorker and Trainer, and the way from a configuration to each of them."""
