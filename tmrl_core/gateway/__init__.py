"""The gateway: environments as HTTP and WebSocket clients that exchange observations for actions."""
