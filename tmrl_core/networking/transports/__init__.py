"""The seam to sockets: a `Transport` listens or dials, and drives sans-I/O connections with what it carries."""
