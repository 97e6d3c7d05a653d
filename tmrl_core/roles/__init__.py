"""The roles Server, RolloutWorker and Trainer, and their construction from a configuration."""
