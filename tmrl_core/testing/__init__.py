"""Tools for testing: conformance suites and a proxy that degrades connections."""
