"""The gateway: environments as HTTP and WebSocket clients that exchange observations for actions."""

# Theory of operation
#
# In the gateway the roles are reversed: the environment is the client. It posts an observation and receives an action.
#
# A request goes from `app.py` (or `websocket.py`) to its `Session` (`client_session.py`, a sans-I/O state machine over
# a `Player`). A player is that of the central mode (`central.py`: recorder and runner of `actor/rollout`, one uplink
# for all sessions) or that of advice (`advice/`: a learner for each session, in a thread of its own). `contracts.py` is
# all that sessions know of them.
#
# Rejected: Django or Flask (no WebSocket and HTTP on one event loop).
