"""A policy's frames become its body again, in memory that is used again once nobody looks at the last one."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import FrameReader, Kind, cut
from tmrl_core.networking.protocol.messages import POLICY_HEAD
from tmrl_core.networking.worker.connection import PolicyReceiver


def send(receiver: PolicyReceiver, version: tuple[int, int], body: bytes) -> memoryview:
    reader = FrameReader()
    update = None
    for wire in cut(Kind.WEIGHTS, POLICY_HEAD.pack(*version, len(body)), [body], epoch=0, channel=0):
        data = memoryview(bytes(wire))
        while data:
            buffer = reader.get_buffer()
            n = min(len(buffer), len(data))
            buffer[:n] = data[:n]
            data = data[n:]
            for frame in reader.received(n):
                assert update is None
                update = receiver.frame(frame)
    assert update is not None
    assert update[0] == version
    return update[1]


def address(body: memoryview) -> int:
    return int(np.asarray(body).__array_interface__["data"][0])


def test_a_policys_memory_is_reused_but_never_while_referenced(collect_garbage: Callable[[], object]) -> None:
    receiver = PolicyReceiver(1 << 30)
    bodies = [os.urandom(300_000 + i) for i in range(3)]
    first = send(receiver, (1, 1), bodies[0])
    second = send(receiver, (1, 2), bodies[1])
    assert bytes(first) == bodies[0], "the next one has not overwritten it"
    place = address(first)
    del first
    collect_garbage()
    third = send(receiver, (1, 3), bodies[2])
    assert address(third) == place
    assert (bytes(second), bytes(third)) == (bodies[1], bodies[2])


@pytest.mark.parametrize("version", [(1, (1 << 64) - 1), (1 << 62, 1)])
def test_a_version_that_cannot_be_confirmed_is_the_servers_fault(version: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="is out of range"):
        send(PolicyReceiver(1 << 30), version, b"body")
