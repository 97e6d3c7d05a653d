"""Log of trouble that others cause: lines for each of them, and the number of the rest."""

from __future__ import annotations

import logging

import pytest

from tests.networking.end_to_end.ends import Ends, signer, verifier
from tests.networking.test_unread_answers import give
from tmrl_core.networking.links.remark_log import LINES_AT_ONCE, MAX_SOURCES, SUMMARY_S, RemarkLog
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.framing import Kind, cut
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, MessageHead, StreamOpened, Welcome
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker.seal import WorkerSeal

logger = logging.getLogger(__name__)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(caplog: pytest.LogCaptureFixture) -> Clock:
    caplog.set_level(logging.WARNING)
    return Clock()


def test_many_remarks_about_one_member_hide_none_about_another(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = RemarkLog(logger, clock)
    for number in range(100):
        log.remark(f"remark {number}", "thief")
        log.forged(f"attempt {number}", "")
    log.remark("remark about another", "robot")
    assert len(caplog.records) == 2 * LINES_AT_ONCE + 1
    assert caplog.records[-1].getMessage() == "remark about another"
    assert "network.end_to_end" in caplog.text


def test_a_text_is_not_repeated_and_a_summary_counts_the_rest(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = RemarkLog(logger, clock)
    for _ in range(30):
        log.remark("the same", "thief\x1b[2J")
    log.summarize()
    assert [record.getMessage() for record in caplog.records] == ["the same"]
    clock.now = SUMMARY_S
    log.summarize()
    assert "were not logged: 29 (29 about thief?[2J)" in caplog.records[-1].getMessage()
    clock.now *= 2
    log.summarize()
    assert len(caplog.records) == 2


def test_many_certificates_fill_neither_the_log_nor_the_memory(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = RemarkLog(logger, clock)
    for number in range(1_000):
        for text in range(30):
            log.remark(str(text), f"robot{number}")
    assert len(caplog.records) <= LINES_AT_ONCE * (MAX_SOURCES + 1)
    assert len(log._sources) == MAX_SOURCES + 1
    clock.now = 1e6
    log.summarize()
    message = caplog.records[-1].getMessage()
    assert f"{30_000 - LINES_AT_ONCE * (MAX_SOURCES + 1):,}".replace(",", "") in message
    assert len(message) < 500
    log.remark("later", "robot999")
    assert caplog.records[-1].getMessage() == "later"


def test_forged_messages_of_one_certificate_hide_none_of_another(caplog: pytest.LogCaptureFixture) -> None:
    """A trainer's link: the streams of a thief contain nothing but invented messages."""
    ends = Ends()
    log = RemarkLog(logger)
    ends.trainer._on_forged = log.forged
    state = TrainerState(run="run", name="node", peer=bytes(16), inbox_bytes=1 << 20, seal=ends.trainer)
    state.on_remark = log.remark
    link = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    link.connected(Identity("Server"), 0.0)
    give(link, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
    thief = WorkerSeal("run", signer(name="thief"), verifier(), mode="authenticate")
    for channel, seal in enumerate([*[thief] * 40, ends.worker], 1):
        stream = seal.new_stream()
        give(link, StreamOpened(channel, stream, "robot", seal.record(stream, b"")))
        head = MessageHead(0, 0, 0, 1)
        body = bytes(60) + bytes((channel + 9,)) * 5
        for wire in iter(cut(Kind.DATA, SAMPLES_HEAD.pack(*head, len(body)), (body,), epoch=1, channel=channel)):
            data = bytes(wire)
            view = link.get_buffer()
            view[: len(data)] = data
            link.received(len(data), 0.0)
    assert ends.trainer.forged == 41
    said = [record.getMessage() for record in caplog.records]
    assert any("thief" in text for text in said)
    assert "robot" in said[-1]
    assert len(said) <= LINES_AT_ONCE + 1
