"""Datasets of Minari as recorded sessions."""

SESSION_FORMATS = {"minari": "tmrl_core.sessions.minari.dataset:FORMAT"}
EXPORTS = {
    f"tmrl_core.sessions.{name}": f"tmrl_core.sessions.minari.dataset:{name}"
    for name in ("read_minari", "write_minari")
}
