"""The gateway: environments as HTTP and WebSocket clients."""

ROLES = {"gateway": "tmrl_core.gateway.role:ROLE"}
SECTIONS = {"gateway": "tmrl_core.gateway.settings:GatewaySection"}
PAGES = {"gateway": "tmrl_core.gateway.settings:page"}
EXPORTS = {"tmrl_core.envs.ShepherdEnv": "tmrl_core.gateway.shepherd:ShepherdEnv"}
CREDENTIALS = {"key": "tmrl_core.gateway.api_key_command:KEY"}
