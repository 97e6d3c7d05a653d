"""The wire protocol without I/O: frames, messages, connections and delivery."""
