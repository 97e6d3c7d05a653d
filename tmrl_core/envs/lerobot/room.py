"""Robots of lerobot as environments. Configurations name the environment by reference."""
