"""Exceptions: every error that tmrl_core raises deliberately derives from `TmrlError`.

A message has the finding, the allowed values and the next step.
"""

from __future__ import annotations

from typing import Literal


class TmrlError(Exception):
    """Base of every error that tmrl_core raises deliberately."""


class ConfigError(TmrlError, ValueError):
    """A setting is unknown, of the wrong type, impossible, or contradicts another one."""


class CodecError(TmrlError, ValueError):
    """A value cannot be encoded, or bytes were not written by the codec."""


class CredentialsError(TmrlError):
    """Keys, certificates or tokens are missing, unreadable, expired or of the wrong kind."""


class NetworkError(TmrlError):
    """A failure of the communication between two machines."""


class PortInUseError(NetworkError):
    """Another process, or another Server of this one, listens on the port."""


class LocalProtocolError(NetworkError):
    """Misuse of the protocol by this side: a defect of this package, never the peer's fault."""


class RemoteProtocolError(NetworkError):
    """The peer sent data that the protocol does not allow. Its connection is closed."""


class ForgedError(NetworkError):
    """Data has no valid proof of its origin. It is discarded; the link stays open."""


class UnknownRunKeyError(NetworkError):
    """A worker sealed a message for a trainer with another run key. It is kept for that trainer.

    Args:
        key_id: id of that run key.
    """

    def __init__(self, key_id: bytes) -> None:
        super().__init__(f"a message is sealed for run key {key_id.hex()}, which this trainer does not have")
        self.key_id = key_id


class UnknownGroupKeyError(NetworkError):
    """A trainer encrypted a message for its workers under a key that this worker has not received yet.

    Args:
        key_id: id of that key.
    """

    def __init__(self, key_id: bytes) -> None:
        super().__init__(f"a message is encrypted under group key {key_id.hex()}, which this worker does not have")
        self.key_id = key_id


class HandshakeError(NetworkError):
    """A link cannot be established because of credentials, so that another attempt is useless.

    Args:
        text: the finding and the remedy.
        about: its subject, if known: the Server's certificate, or the client's password.
    """

    def __init__(self, text: str, about: Literal["certificate", "password"] | None = None) -> None:
        super().__init__(text)
        self.about = about


class RefusedError(NetworkError):
    """The Server refused this peer.

    Args:
        code: one of `tmrl_core.networking.protocol.messages.RefusalCode`.
        reason: the Server's reason.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class LinkClosedError(NetworkError):
    """The link was closed before or during the call."""


class SessionClosedError(TmrlError):
    """A client session has ended: one side closed it, it expired, or its learner failed."""


class SampleRefusedError(TmrlError, ValueError):
    """A memory cannot store these samples (their shapes or dtypes differ from its own)."""


class StorageError(TmrlError):
    """A file of records cannot be read or written. After a failed write, its earlier content is unchanged."""


class StorageFullError(StorageError):
    """The disk, a quota or a limit on file sizes is exhausted. The same write may be tried again with more space."""


class FolderLockedError(StorageError):
    """Another process uses the folder.

    Args:
        message: the whole message.
        holder: its process, for another message.
    """

    def __init__(self, message: str, holder: str = "another process") -> None:
        super().__init__(message)
        self.holder = holder


class CheckpointError(TmrlError):
    """A checkpoint cannot be written, is cut short, or belongs to another configuration."""


class EnvironmentFailedError(TmrlError):
    """The environment failed more often in a row than `worker.max_failures` allows."""


class ContractError(ConfigError, EnvironmentFailedError):
    """The environment is not one that Gymnasium's interface describes, so that each further attempt would fail too."""


class ObservationError(TmrlError, ValueError):
    """An observation does not belong to its space, or allows no action; the message names what does not fit."""


class PolicyFailedError(TmrlError):
    """The policy's action is not finite, and no better policy can be expected. The action was not executed."""


class TakeoverError(TmrlError):
    """A person cannot take over: the source of interventions has failed, or its action is none of the action space."""


class EpisodeError(TmrlError):
    """An episode of many agents cannot be used: an agent, a shaper or a value in it is wrong, or it has no end."""


class WrongModeError(TmrlError):
    """A manager of agents was asked for what only its other mode does (`inference` or `training`)."""


class RankLostError(TmrlError):
    """Another rank of this learner has ended or does not answer, so that no rank can train on."""


class StarvedError(TmrlError):
    """The ratios of workers and trainer make both wait for each other forever."""


class MissingExtraError(TmrlError, ImportError):
    """A required optional package is not installed. The message names the extra to install."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it with `pip install 'tmrl_core[{extra}]'`."
        )
        self.package = package
        self.extra = extra


class WeightsError(TmrlError, ValueError):
    """Weights are invalid, or belong to a policy of another architecture."""


class BadUpdatesError(TmrlError):
    """Too many consecutive updates produced NaN or Inf. Training has stopped with the state before them."""
