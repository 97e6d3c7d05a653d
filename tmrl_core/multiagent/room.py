"""Many agents in one environment."""

SECTIONS = {"multiagent": "tmrl_core.multiagent.settings:MultiAgentSection"}
