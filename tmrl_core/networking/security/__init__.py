"""Credentials, certificates, admission and revocation."""
