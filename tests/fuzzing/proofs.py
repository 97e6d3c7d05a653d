"""Input of the checks of origin at both ends, from a taken-over Server or a worker with a certificate."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import msgspec

from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target
from tmrl_core.errors import ForgedError, UnknownRunKeyError
from tmrl_core.networking.end_to_end.identity import Signer, Verifier
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.statements import RunCard, StreamRecord, decode_statement, encode_statement
from tmrl_core.networking.protocol.messages import MessageHead
from tmrl_core.networking.security.certificates import make_authority, make_client_certificate
from tmrl_core.networking.trainer.seal import TrainerSeal
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

HEAD = MessageHead(3, 1, 40, 10)
BODY = bytes(range(200))
MODES: tuple[Mode, ...] = ("authenticate", "encrypt")


class Proofs(Target):
    """Cards, records, certificates, samples, policies, directives, reports and tags of acknowledgements."""

    name = "proofs"
    allowed = (ForgedError, UnknownRunKeyError)

    def __init__(self) -> None:
        later = datetime.now(timezone.utc) + timedelta(days=30)
        authority = make_authority(later)
        made = {role: make_client_certificate(authority, role, role, later) for role in ("worker", "trainer")}
        self._signers = {role: Signer(signed.certificate, signed.key) for role, signed in made.items()}
        self._verifier = Verifier(authority.certificate)
        self._trainer = TrainerSeal("run", self._signers["trainer"], self._verifier, RunKey(bytes(32)))
        self._card = self._trainer.card(3)
        self._worker = self._new_worker("authenticate")
        self._stream = self._worker.new_stream()
        self._worker.announced(self._card)
        self._record = self._worker.record(self._stream, b"signature")
        self._opened = self._trainer.open_record(self._stream, self._record)
        self._tag = self._opened.ack_tag(4, ((2, "no room"),))
        self._policy = b"".join(self._trainer.seal_policy((3, 1), BODY))
        self._opened.prove_policy((3, 1), memoryview(BODY))
        self._letter = self._opened.letter(3, BODY)
        self._honest = {
            b"c": self._card,
            b"r": self._record,
            b"x": self._signers["worker"].certificate,
            b"m": self._sealed(self._worker),
            b"p": self._policy,
            b"d": self._letter,
            b"D": self._trainer.seal_directive(3, BODY),
            b"t": self._trainer.seal_report(3, BODY),
            b"a": self._tag,
        }

    def _new_worker(self, mode: Mode) -> WorkerSeal:
        return WorkerSeal("run", self._signers["worker"], self._verifier, mode=mode)

    def _sealed(self, worker: WorkerSeal) -> bytes:
        parts = worker.seal(self._stream, HEAD, [BODY])
        assert parts is not None
        return b"".join(parts)

    def make(self, mutator: Mutator) -> bytes:
        if mutator.random() < 0.1:
            return self._signed(mutator)
        kind: bytes = mutator.pick(list(self._honest))
        if kind == b"m":
            self._worker.mode = mutator.pick(MODES)
            return kind + mutator.mutate(self._sealed(self._worker))
        return kind + mutator.mutate(self._honest[kind])

    def _signed(self, mutator: Mutator) -> bytes:
        """Return a card or record whose fields are mutated and whose proof is right."""
        if mutator.random() < 0.5:
            card = decode_statement(self._card, RunCard)
            card = msgspec.structs.replace(
                card,
                incarnation=mutator.below(1 << 40),
                run_key=mutator.mutate(card.run_key),
                signing_key=mutator.mutate(card.signing_key),
            )
            proof = self._signers["trainer"].sign(card.covered())
            return b"C" + encode_statement(msgspec.structs.replace(card, proof=proof))
        record = decode_statement(self._record, StreamRecord)
        record = msgspec.structs.replace(
            record, signature=mutator.bytes(mutator.below(100)), key=mutator.pick((record.key, mutator.bytes(32)))
        )
        proof = self._signers["worker"].sign(record.covered("run", self._stream))
        return b"R" + encode_statement(msgspec.structs.replace(record, proof=proof))

    def run(self, case: bytes) -> None:
        kind, data = case[:1], case[1:]
        if kind in b"cC":
            worker = self._new_worker("authenticate")
            if not worker.announced(data):
                assert (worker.ready, worker.forged) == (False, 1)
                raise ForgedError("refused")
            assert kind == b"C" or data == self._card
        elif kind in b"rR":
            opened = self._trainer.open_record(self._stream, data)
            assert kind == b"R" or data == self._record
            assert opened.peer.name == "worker"
        elif kind == b"x":
            peer = self._verifier.check(data, ("worker",))
            assert (peer.name, peer.key) == (self._opened.peer.name, self._opened.peer.key)
        elif kind == b"m":
            assert self._opened.open(HEAD, memoryview(data)) == BODY
        elif kind == b"p":
            worker = self._new_worker("authenticate")
            worker.announced(self._card)
            self._expect_body(worker.open_policy((3, 1), memoryview(data)))
        elif kind == b"d":
            self._expect_body(self._worker.open_directive(self._stream, data))
        elif kind == b"D":
            self._expect_body(self._worker.open_directive(None, data))
        elif kind == b"t":
            self._expect_body(self._worker.open_report(data))
        elif kind == b"a":
            if not self._worker.check_ack(self._stream, 4, ((2, "no room"),), data):
                raise ForgedError("refused")
            assert data == self._tag

    def _expect_body(self, content: bytes | memoryview | None) -> None:
        if content is None:
            raise ForgedError("ignored, because it names an earlier trainer")
        assert content == BODY

    def limit_bytes(self, case: bytes) -> int:
        return 20 * len(case) + (1 << 18)
