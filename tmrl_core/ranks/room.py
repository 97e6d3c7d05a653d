"""Declaration of this room, see `tmrl_core.rooms`."""

TRAINERS = {"ranks": "tmrl_core.ranks.place:make_trainer"}
