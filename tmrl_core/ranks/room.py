"""Declaration of this room, see `tmrl_core.rooms`."""

TRAINERS = {"ranks": "tmrl_core.ranks.launch:make_trainer"}
