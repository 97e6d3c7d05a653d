"""The gateway: environments as HTTP and WebSocket clients."""

ROLES = {"gateway": "tmrl_core.gateway.role:ROLE"}
SECTIONS = {"gateway": "tmrl_core.gateway.settings:GatewaySection"}
