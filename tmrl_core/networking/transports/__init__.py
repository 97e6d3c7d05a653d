"""The seam to sockets: a `Transport` listens or dials, and moves the bytes of sans-I/O connections."""
