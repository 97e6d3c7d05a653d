"""Trainer's end: check the samples of each stream; prove acknowledgements, policies, directives and reports."""

# Theory of operation
#
# `TrainerSeal` is the trainer's end of the authentication: it checks whose samples come, and proves what goes to the
# workers. As in `worker/seal.py`, the relay between them is assumed to lie, and nothing here talks to anybody.
#
# For each stream, `open_record` checks its announcement: the CA has signed the certificate, the role is worker, the id
# of the stream follows from the run, that certificate's name and the key, and the certificate has signed all of it. An
# `OpenedStream` then has the keys that this worker and this trainer share. It opens messages, makes the tags of
# acknowledgements, and the letters that this worker alone can read.
#
# What goes to all workers (policies, reports, directives) and to viewers (telemetry) is signed with the run's signing
# key, which the card names.
# Rejected: a MAC under one key of the run, which any worker could forge for the others, and signing with the
# certificate's key, after whose renewal stored policies and directives would be invalid.
#
# With `encrypt`, what goes to all is encrypted under a group key first, then signed. Workers get the key in their
# letters. It is random for each process and renewed before a link that opens after a revocation, so a revoked worker
# reads nothing that is newer. The last policy keeps the key that it was encrypted under, and is never encrypted again
# under the same version: a worker that joins gets both keys. Rejected: a group key derived from the run's secret (a
# revoked worker would have it until the trainer restarts), and one in the bundles (one stolen bundle would reveal every
# stored policy for ever).
#
# A trainer that restarts has the same run key, from its credentials folder, so that it opens what was stored for weeks.
# `older` keys are for samples that were sealed for a trainer on another machine. Letters therefore need random nonces:
# the same keys come back without the counter. Numbers of directives and reports begin again, under a higher
# incarnation.
#
# A policy is hashed and encrypted once, however often its incarnation is raised: only the trailer is made again.

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from tmrl_core.errors import ForgedError, UnknownRunKeyError
from tmrl_core.networking.end_to_end.group_key import GroupKey
from tmrl_core.networking.end_to_end.identity import Peer, Signer, Verifier, digest, is_signed, sign
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.signed import check_message
from tmrl_core.networking.end_to_end.statements import (
    Letter,
    PolicyTag,
    RunCard,
    Signature,
    StreamRecord,
    broadcast_statement,
    decode_statement,
    encode_letter,
    encode_statement,
    encode_trailer,
    stream_id,
)
from tmrl_core.networking.end_to_end.stream_keys import NONCE_BYTES, SIGNED, Sealed, StreamKeys
from tmrl_core.networking.protocol.delivery import Body
from tmrl_core.networking.protocol.messages import MessageHead, Version
from tmrl_core.networking.protocol.telemetry import OrderEnvelope

Mode = Literal["authenticate", "encrypt"]


class TrainerSeal:
    """A trainer's end of authentication and encryption, for the life of the process.

    Args:
        run: name of the run.
        signer: the trainer's certificate.
        verifier: check of the workers' certificates.
        run_key: the key that workers use from now on.
        older: earlier keys of this run, for stored messages.
        mode: `encrypt`: the relay cannot read what this trainer sends.
        on_forged: called for each attempt with a text and the name in the certificate of the stream (empty: it has no
            valid record). The callee limits the rate of its log.

    Thread-safe as far as a policy may be sealed by another thread than the link's; the owner serialises other calls.
    """

    def __init__(
        self,
        run: str,
        signer: Signer,
        verifier: Verifier,
        run_key: RunKey,
        *,
        older: Iterable[RunKey] = (),
        mode: Mode = "authenticate",
        on_forged: Callable[[str, str], None] = lambda text, name: None,
    ) -> None:
        self.run = run
        self.signer = signer
        """May be replaced by a renewed certificate; then the card changes, which must be announced."""
        self.run_key = run_key
        self.run_keys = {key.id: key for key in (*older, run_key)}
        self.forged = 0
        """Number of records and messages without a valid proof of their origin."""
        self.unknown_keys = 0
        """Number of messages that were sealed for a run key that this trainer does not have."""
        self._verifier = verifier
        self._on_forged = on_forged
        self._sealed = 0
        self._group = GroupKey() if mode == "encrypt" else None
        self._policy_key = self._group
        """Key of the last policy."""
        self._policy: tuple[bytes, tuple[bytes, ...], bytes] | None = None
        """The last policy's body, its buffers as they are sent, and their digest."""

    def card(self, incarnation: int) -> bytes:
        """Return the card to announce to workers."""
        card = RunCard(self.run, incarnation, self.run_key.public, self.run_key.signing_public, self.signer.certificate)
        return encode_statement(msgspec.structs.replace(card, proof=self.signer.sign(card.covered())))

    def open_record(self, stream: bytes, signature: bytes, *, stored: bool = False) -> OpenedStream:
        """Check the record of a stream, in the field `signature` of its announcement.

        Args:
            stream: its id.
            signature: the field of its announcement.
            stored: True: the Server's spool holds it, so its certificate may have expired since it began.

        Raises:
            ForgedError: there is no record, or no worker with a valid certificate made it for this run and stream.
        """
        try:
            record = decode_statement(signature, StreamRecord)
            # A certificate may end while a spool holds the samples. A live worker needs a valid one.
            used_s = float(record.started_s) if stored else None
            peer = self._verifier.check(record.certificate, ("worker",), used_s=used_s)
            if stream != stream_id(self.run, peer.identity, record.key, record.started_s) or not is_signed(
                peer.key, record.proof, record.covered(self.run, stream)
            ):
                raise ForgedError(f"the record of a stream of {peer.name} has a wrong signature, or is of another run")
            return OpenedStream(self, stream, record, peer)
        except ForgedError as exc:
            self.count(str(exc))
            raise

    def seal_policy(self, version: Version, body: bytes) -> Body:
        """Return a policy with its proof."""
        if (
            self._policy is None or self._policy[0] is not body
        ):  # encrypted and hashed once, also if its incarnation is raised
            group = self._group  # may be renewed meanwhile
            parts = (body,) if group is None else group.encrypt(self.run, "policy", body)
            self._policy = body, parts, digest(*parts)
            self._policy_key = group
        return [*self._policy[1], self._trailer("policy", version, self._policy[2])]

    def seal_directive(self, incarnation: int, body: bytes, *, readable: bool = False) -> bytes:
        """Return a directive for all workers, with its proof.

        Args:
            readable: do not encrypt it: workers without the group key need it too.
        """
        return self._numbered("directive", incarnation, body if readable else self._secret("directive", body))

    def seal_report(self, incarnation: int, body: bytes) -> bytes:
        """Return a report with its proof."""
        return self._numbered("report", incarnation, self._secret("report", body))

    def seal_telemetry(self, incarnation: int, part: str, body: bytes) -> bytes:
        """Return a scene or history with its proof. It is readable, because viewers have no key of the run."""
        return self._numbered(part, incarnation, body)

    def check_order(self, envelope: OrderEnvelope) -> str:
        """Return the name of the operator that has signed an order.

        Raises:
            ForgedError: no operator with a valid certificate has signed it.
        """
        return check_message(envelope, self._verifier).name

    @property
    def encrypts(self) -> bool:
        """Return True if the relay cannot read what this trainer sends."""
        return self._group is not None

    def renew_group_key(self) -> None:
        """Encrypt under another key from now on. Streams must be opened again: their letters contain it."""
        if self._group is not None:
            self._group = GroupKey()

    @property
    def group_keys(self) -> tuple[bytes, ...]:
        """Return the secrets of the group key, and of the last policy's if it is another one."""
        return tuple({key.secret: None for key in (self._policy_key, self._group) if key is not None})

    def _secret(self, subject: str, body: bytes) -> bytes:
        return body if self._group is None else b"".join(self._group.encrypt(self.run, subject, body))

    def next_version(self, incarnation: int) -> Version:
        """Return the place of the next directive or report in their order."""
        self._sealed += 1
        return incarnation, self._sealed

    def _numbered(self, subject: str, incarnation: int, body: bytes) -> bytes:
        return body + self._trailer(subject, self.next_version(incarnation), digest(body))

    def _trailer(self, subject: str, version: Version, hashed: bytes) -> bytes:
        covered = broadcast_statement(subject, self.run, version, hashed)
        return encode_trailer(Signature(version, sign(self.run_key.signing, covered)))

    def count(self, text: str, name: str = "") -> None:
        """Count an attempt; `name`: the one in the certificate of its stream."""
        self.forged += 1
        self._on_forged(text, name)


class OpenedStream:
    """A stream whose record is valid.

    Attributes:
        signature: the application's signature of the stream.
        peer: the worker.
        name: name in its certificate.
        incarnation: highest incarnation of a trainer that the worker had accepted.
    """

    def __init__(self, seal: TrainerSeal, stream: bytes, record: StreamRecord, peer: Peer) -> None:
        self.signature = record.signature
        self.peer = peer
        self.name = peer.name
        self.incarnation = record.incarnation
        self._seal = seal
        self._stream = stream
        self._key = record.key
        self._keys = {seal.run_key.id: self._derive(seal.run_key)}
        self._policy: PolicyTag | None = None

    def open(self, head: MessageHead, body: memoryview) -> memoryview:
        """Return the content of a message of samples. It may be a part of `body`.

        Raises:
            ForgedError: the worker did not send this message.
            UnknownRunKeyError: it is sealed for another run key. It must not be acknowledged.
        """
        try:
            sealed = Sealed(body)
            if sealed.mode != SIGNED and sealed.key_id not in self._keys and sealed.key_id in self._seal.run_keys:
                self._keys[sealed.key_id] = self._derive(self._seal.run_keys[sealed.key_id])
            return sealed.open(self._stream, head, self.peer.key, self._keys.get(sealed.key_id))
        except UnknownRunKeyError:
            self._seal.unknown_keys += 1
            raise
        except ForgedError as exc:
            self._seal.count(f"{self.name}: {exc}", self.name)
            raise

    def ack_tag(self, next_number: int, refused: Sequence[tuple[int, str]]) -> bytes:
        """Return the proof of an acknowledgement."""
        return self._today.ack_tag(next_number, refused)

    def prove_policy(self, version: Version, *content: bytes | memoryview) -> None:
        """Compute the MAC of a policy without its trailer for this stream, which the next letters contain."""
        nonce = os.urandom(NONCE_BYTES)
        self._policy = PolicyTag(version, nonce, self._today.policy_tag(nonce, version, *content))

    def letter(self, incarnation: int, directive: bytes) -> bytes:
        """Return a directive for this stream (empty: there is none) with what else this stream alone receives.

        It is empty if there is nothing for it.
        """
        keys = self._seal.group_keys
        # An empty letter would cost each worker a message and a decryption for nothing.
        if not directive and self._policy is None and not keys:
            return b""
        return encode_letter(Letter(self._seal.next_version(incarnation), directive, self._policy, keys), self._today)

    @property
    def _today(self) -> StreamKeys:
        return self._keys[self._seal.run_key.id]

    def _derive(self, run_key: RunKey) -> StreamKeys:
        return StreamKeys(
            run_key.private,
            self._key,
            run=self._seal.run,
            stream=self._stream,
            stream_key=self._key,
            run_key=run_key.public,
            key_id=run_key.id,
        )
