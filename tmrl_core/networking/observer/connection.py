"""An observer's end of a link, which only requests the Server's status. Sans-I/O."""

from __future__ import annotations

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.client import ClientConnection, ClientState
from tmrl_core.networking.protocol.messages import LEGAL, Control, StatusPage, StatusRequest, Welcome, decode_body
from tmrl_core.networking.protocol.status import MAX_STATUS_BYTES, ServerStatus


class ObserverState(ClientState):
    """State of an observer, with the last answer."""

    role = "observer"

    def __init__(self, *, run: str, name: str, peer: bytes, token: str = "") -> None:
        super().__init__(run=run, name=name, peer=peer, token=token)
        self.answers = 0
        """Number of snapshots that have arrived."""
        self.status: ServerStatus | None = None
        """The latest snapshot."""


class ObserverConnection(ClientConnection):
    """An observer's end of one link."""

    LEGAL = LEGAL["observer"]

    def __init__(self, state: ObserverState, **times: float) -> None:
        super().__init__(state, **times)
        self.observer = state
        self._asking = False
        self._pages: list[bytes] = []
        self._size = 0

    def request_status(self) -> None:
        """Request a snapshot, once the Server has welcomed this link; one request at a time."""
        if not self._asking:
            self._asking = True
            if self.state == "open":
                self._ask(0)

    def _ask(self, page: int) -> None:
        self.send(StatusRequest(page))

    def _on_control(self, message: Control) -> None:
        match message:
            case Welcome():
                self._welcomed(message)
                if self._asking:
                    self._ask(0)
                self.observer.on_change()
            case StatusPage():
                self._seen(message)

    def _seen(self, message: StatusPage) -> None:
        if not self._asking or message.page != len(self._pages) or message.page >= message.pages:
            raise RemoteProtocolError(f"page {message.page} of {message.pages} was not requested")
        self._size += len(message.body)
        if self._size > MAX_STATUS_BYTES:
            raise RemoteProtocolError(f"a status of more than {MAX_STATUS_BYTES} bytes")
        self._pages.append(message.body)
        if len(self._pages) < message.pages:
            self._ask(len(self._pages))
            return
        body = b"".join(self._pages)
        self._asking = False
        self._pages = []
        self._size = 0
        self.observer.status = decode_body(body, ServerStatus)
        self.observer.answers += 1
        self.observer.on_change()
