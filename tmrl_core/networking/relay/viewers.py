"""Observers that watch a run: what its trainer shows them, and what they ask of it. Sans-I/O."""

# Theory of operation
#
# The telemetry of a run (`protocol/telemetry.py`) is a last value in two parts, which only the trainer of that run may
# replace: the relay takes the run from the trainer's link, never from a message. It keeps both parts of `MAX_RUNS`
# runs, so that a viewer that joins sees something at once, and sees the end of a run whose trainer has left. That is at
# most 4 MB; the run that was shown longest ago goes first.
#
# A viewer names the run that it watches. Without a name, it watches whichever run is trained, and changes with it.
#
# The trainer is told how many watch, so that nothing is made for nobody. `joined` grows with each viewer that comes: a
# trainer that sees it grow sends the curves, which it does not send each second.
#
# Commands are forwarded unread: an order is proved to the trainer (`end_to_end/signed.py`), and the relay could neither
# make nor change one. It limits their number, because the proof of each costs the trainer the time of two signatures.
# A command that cannot be forwarded is answered, since nobody else would.
#
# Pictures of workers (`protocol/pictures.py`) are passed on and not kept: a viewer holds the latest of each kind and
# part, whichever worker it is of, so at most 660 kB.

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.messages import MAX_BODY_BYTES, Command, Control, Film, Show, Undelivered, Watched
from tmrl_core.networking.protocol.pictures import PIECES_AT_ONCE, PIECES_PER_S
from tmrl_core.token_bucket import TokenBucket

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection

MAX_RUNS = 32
"""Maximum number of runs whose telemetry is kept."""
COMMANDS_AT_ONCE, COMMANDS_PER_S = 10, 1.0
"""Maximum rate of commands of one principal, after a burst."""
COMMAND_S = 500e-6
"""Price, in the trainer's time, of a command (the checks of a certificate and of a signature), and of a viewer that
comes."""
_MAX_UNREAD_BYTES = 1 << 20
"""Unread control bytes of a trainer above which no command is forwarded."""


class Viewers:
    """Links of observers that watch, and the latest telemetry of each run."""

    def __init__(self) -> None:
        self._links: dict[RelayConnection, str] = {}
        """Run that each watches; empty: the one that is trained."""
        self._shown: OrderedDict[str, dict[str, Show]] = OrderedDict()
        """Latest parts of each run; the run that was shown last is at the end."""
        self._trainer: RelayConnection | None = None
        self._joined = 0
        # As many as there are certificates and tokens of observers.
        self._commands = defaultdict[str, TokenBucket](lambda: TokenBucket(COMMANDS_PER_S, COMMANDS_AT_ONCE))
        self._pieces: WeakKeyDictionary[RelayConnection, TokenBucket] = WeakKeyDictionary()

    def __contains__(self, link: RelayConnection) -> bool:
        """Return True for a link that watches."""
        return link in self._links

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the telemetry that is kept."""
        return sum(len(show.body) for parts in self._shown.values() for show in parts.values())

    def run_of(self, link: RelayConnection) -> str:
        """Return the run that a link watches; empty: none was trained yet."""
        if self._links[link]:
            return self._links[link]
        return self._trainer.run if self._trainer is not None else next(reversed(self._shown), "")

    def of_run(self, run: str) -> list[RelayConnection]:
        """Return the links that watch a run."""
        return [link for link in self._links if self.run_of(link) == run]

    def watch(self, link: RelayConnection, run: str) -> None:
        """Show a link the latest telemetry of a run, and what follows."""
        before = self.run_of(link) if link in self._links else None
        self._links[link] = run
        self._send_latest(link)
        link.trainer_s += COMMAND_S
        if self._trainer is not None and before != self._trainer.run == self.run_of(link):
            self._joined += 1
        self._tell_trainer()

    def _send_latest(self, link: RelayConnection) -> None:
        for part, show in self._shown.get(self.run_of(link), {}).items():
            link.put(part, show)

    def show(self, trainer: RelayConnection, message: Show) -> None:
        """Keep and forward a part of the telemetry of the trainer's run."""
        self._shown.setdefault(trainer.run, {})[message.part] = message
        self._shown.move_to_end(trainer.run)
        if len(self._shown) > MAX_RUNS:
            self._shown.popitem(last=False)
        for link in self.of_run(trainer.run):
            link.put(message.part, message)

    def film(self, worker: RelayConnection, message: Film) -> None:
        """Forward a piece of a picture to the links that watch the worker's run, unless it sends too many."""
        bucket = self._pieces.setdefault(worker, TokenBucket(PIECES_PER_S, PIECES_AT_ONCE))
        if bucket.take(worker.now):
            for link in self.of_run(worker.run):
                link.put(("film", message.kind, message.part), message)

    def command(self, link: RelayConnection, message: Command) -> None:
        """Forward a command to the trainer of the run that the link watches, or say why not.

        Raises:
            RemoteProtocolError: it sends commands, and does not read the answers.
        """
        if link.unread_bytes > MAX_BODY_BYTES:
            raise RemoteProtocolError("commands are sent faster than the answers are read")
        trainer, run = self._trainer, self.run_of(link) if link in self._links else ""
        if not self._commands[link.principal].take(link.now):
            reason = f"more than {COMMANDS_PER_S:g} order each second from one machine: try again in a while"
        elif trainer is None:
            reason = "no trainer is connected to the Server: start it, or wait until it returns"
        elif trainer.run != run:
            reason = f"the Server's trainer is of run {trainer.run!r}, and you watch {run!r}"
        elif trainer.unread_bytes > _MAX_UNREAD_BYTES:
            reason = "the trainer does not read what the Server sends it: try again in a while"
        else:
            link.trainer_s += COMMAND_S
            trainer.send(message)
            return
        link.send(Undelivered(message.number, reason))

    def announce(self, run: str, card: Control) -> None:
        """Send the card of a run's trainer to those that watch the run."""
        for link in self.of_run(run):
            link.put("announce", card)

    def trainer_came(self, trainer: RelayConnection) -> None:
        """Handle the admission of a trainer."""
        self._trainer = trainer
        self._joined = 0
        for link, run in self._links.items():
            if not run:  # it may have watched another one
                self._send_latest(link)
        if self.of_run(trainer.run):
            self._tell_trainer()

    def trainer_left(self) -> None:
        """Handle the end of the trainer's link. Those without a run's name go on to watch the run."""
        if self._trainer is not None and self._trainer.run in self._shown:
            self._shown.move_to_end(self._trainer.run)
        self._trainer = None

    def left(self, link: RelayConnection) -> None:
        """Handle the end of an observer's link."""
        if self._links.pop(link, None) is not None:
            self._tell_trainer()

    def _tell_trainer(self) -> None:
        if self._trainer is not None:
            viewers = len(self.of_run(self._trainer.run))
            self._trainer.put("watched", Watched(viewers, self._joined))
