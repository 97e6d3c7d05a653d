"""Devices with which a person takes over: keyboard, gamepad, SpaceMouse. Configurations name them by reference."""
