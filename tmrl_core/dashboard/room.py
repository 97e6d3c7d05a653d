"""The live page of a run."""

ROLES = {"dashboard": "tmrl_core.dashboard.role:ROLE"}
SECTIONS = {"dashboard": "tmrl_core.dashboard.settings:DashboardSection"}
PAGES = {"dashboard": "tmrl_core.dashboard.settings:page"}
