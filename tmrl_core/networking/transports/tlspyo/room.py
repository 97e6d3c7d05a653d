"""Transport for users of tlspyo."""

TRANSPORTS = {"tlspyo": "tmrl_core.networking.transports.tlspyo.selection:TlspyoKind"}
