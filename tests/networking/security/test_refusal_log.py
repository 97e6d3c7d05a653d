from __future__ import annotations

import logging

import pytest

from tmrl_core.networking.security.refusal_log import LINES_AT_ONCE, LINES_PER_S, MOST_REMEMBERED, Refusals


def test_a_hosts_first_refusal_is_logged_immediately_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    refusals = Refusals(clock=lambda: now_s)
    for port in range(300):
        refusals(f"10.0.0.1:{port}", "no token")
    refusals("10.0.0.2:1", "no token")
    refusals("10.0.0.1:1", "garbage")
    assert [record.getMessage() for record in caplog.records] == [
        "refused a connection from 10.0.0.1:0: no token",
        "refused a connection from 10.0.0.2:1: no token",
        "refused a connection from 10.0.0.1:1: garbage",
    ]
    now_s = 61.0
    refusals("10.0.0.1:5", "no token")
    assert caplog.messages[-1].endswith("10.0.0.1:5: no token (and 299 more from there since the last message)")
    assert refusals.count == 303


def test_the_count_follows_the_line() -> None:
    refusals = Refusals()
    counts: list[int] = []
    handler = logging.Handler()
    handler.emit = lambda record: counts.append(refusals.count)  # type: ignore[method-assign]
    logger = logging.getLogger("tmrl_core.networking.security.refusal_log")
    logger.addHandler(handler)
    refusals("10.0.0.1:1", "no token")
    assert (counts, refusals.count) == ([0], 1)


def test_numbers_that_a_peer_chooses_are_no_new_reason(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(clock=lambda: 0.0)
    for length in range(50):
        refusals("10.0.0.1:1", f"a frame of {length} bytes was announced")
    assert len(caplog.records) == 1


def test_texts_that_a_peer_chooses_are_no_new_reason(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(lambda: 0.0)
    for word in ("ab", "c'd'e", "f"):
        refusals("192.0.2.1:1", f"a control message could not be decoded: Invalid value '{word}' - at `$[0]`")
    assert len(caplog.messages) == 1


def test_the_memory_of_refusals_is_bounded() -> None:
    now_s = [0.0]
    refusals = Refusals(clock=lambda: now_s[0])
    for host in range(2 * MOST_REMEMBERED):
        now_s[0] += 1 / LINES_PER_S
        refusals(f"host{host}:1", "no token")
    assert len(refusals._said) == MOST_REMEMBERED
    assert refusals.count == 2 * MOST_REMEMBERED


def test_many_hosts_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    refusals = Refusals(clock=lambda: now_s[0])
    for host in range(10_000):
        refusals(f"10.1.{host >> 8}.{host & 255}:1", "no token")
    assert len(caplog.records) == LINES_AT_ONCE
    now_s[0] = 10.0
    refusals("192.0.2.1:1", "no token")
    assert caplog.messages[-1].endswith(f"(and {10_000 - LINES_AT_ONCE} of other hosts that were not logged)")
    assert refusals.count == 10_001


def test_the_addresses_of_one_ipv6_network_are_one_host(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(clock=lambda: 0.0)
    for host in range(1, 50):
        refusals(f"2001:db8:1:2::{host:x}:1", "no token")
    assert len(caplog.records) == 1
