"""Running updates: rollback of those that are not finite, compilation, CUDA graphs."""
