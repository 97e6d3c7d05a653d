"""Datasets of LeRobot as recorded sessions."""

SESSION_FORMATS = {"lerobot": "tmrl_core.sessions.lerobot.dataset:FORMAT"}
EXPORTS = {
    f"tmrl_core.sessions.{name}": f"tmrl_core.sessions.lerobot.dataset:{name}"
    for name in ("read_lerobot", "write_lerobot")
}
