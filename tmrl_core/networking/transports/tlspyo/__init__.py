"""The transport over tlspyo."""
