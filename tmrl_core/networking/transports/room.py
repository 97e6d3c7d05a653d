"""Transports of this package that need no extra."""

TRANSPORTS = {
    "tls": "tmrl_core.networking.transports.tls_access:TlsKind",
    "local": "tmrl_core.networking.transports.local:LocalKind",
}
