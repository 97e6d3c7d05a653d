"""Samples reach the trainer only as their worker sent them, in their place of their stream."""

from __future__ import annotations

import pytest

from tests.networking.end_to_end.ends import BODY, HEAD, Ends
from tmrl_core.networking.end_to_end.worker import Mode

MODES: tuple[Mode, ...] = ("authenticate", "encrypt")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [0, 1, 1_000, 32_768, 32_769, 1_000_000])
def test_a_sealed_message_opens(mode: Mode, size: int) -> None:
    ends = Ends(mode)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sealed = ends.sealed(body)
    assert len(sealed) == size + ends.worker.seal_bytes
    assert ends.opened().open(HEAD, sealed) == body
    assert ends.trainer.forged == 0


def test_without_a_card_messages_are_signed() -> None:
    ends = Ends()
    ends.worker._card = None
    sealed = ends.sealed()
    assert len(sealed) == len(BODY) + ends.worker.seal_bytes
    assert ends.opened().open(HEAD, sealed) == BODY


def test_acknowledgements_policies_directives_and_reports_are_accepted() -> None:
    ends = Ends()
    opened = ends.opened()
    assert (opened.signature, opened.peer.name, opened.incarnation) == (b"signature", "robot", 3)
    refused = ((4, "no room"),)
    assert ends.worker.check_ack(ends.stream, 5, refused, opened.ack_tag(5, refused))
    policy = ends.worker.open_policy((3, 1), memoryview(b"".join(ends.trainer.seal_policy((3, 1), b"weights"))))
    assert policy is not None
    assert bytes(policy) == b"weights"
    assert ends.worker.open_directive(ends.stream, ends.trainer.seal_directive(ends.stream, 3, b"own")) == b"own"
    assert ends.worker.open_directive(None, ends.trainer.seal_directive(None, 3, b"all")) == b"all"
    assert ends.worker.open_report(ends.trainer.seal_report(3, b"report")) == b"report"
    assert (ends.worker.forged, ends.worker.outdated, ends.trainer.forged) == (0, 0, 0)
