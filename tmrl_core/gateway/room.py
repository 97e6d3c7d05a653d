"""The gateway: environments as HTTP and WebSocket clients."""

SECTIONS = {"gateway": "tmrl_core.gateway.settings:GatewaySection"}
