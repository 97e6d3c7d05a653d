"""Deliveries between an interface and a training loop."""

from __future__ import annotations

from typing import Any

from tmrl_core.samples import Buffer
from tmrl_core.training.interface import LocalInterface


def put(interface: LocalInterface, make_rows: Any, *streams: int) -> None:
    buffer = Buffer(maxlen=None)
    buffer.extend([make_rows(stream, 0, 0, 3) for stream in streams])
    interface.put(buffer)


def test_accepted_deliveries_are_committed(make_rows: Any) -> None:
    interface = LocalInterface()
    put(interface, make_rows, 1, 2)
    first, second = interface.receive()
    first.accept()
    second.accept()
    interface.commit()
    interface.commit()
    assert interface.samples_committed == 6


def test_a_refused_delivery_keeps_its_first_reason(make_rows: Any) -> None:
    interface = LocalInterface()
    put(interface, make_rows, 1)
    (delivery,) = interface.receive()
    delivery.refuse("first")
    delivery.refuse("second")
    delivery.accept()
    interface.commit()
    assert interface.samples_committed == 0
    ((chunk, reason),) = interface.refused
    assert (chunk.rows, reason) == (3, "first")


def test_an_undecided_delivery_delays_later_ones(make_rows: Any) -> None:
    interface = LocalInterface()
    put(interface, make_rows, 1, 2)
    first, second = interface.receive()
    second.accept()
    assert interface.receive() == []
    assert interface.samples_committed == 0
    first.accept()
    interface.commit()
    assert interface.samples_committed == 6


def test_a_retrieved_buffer_is_committed_by_the_next_call(make_rows: Any) -> None:
    interface = LocalInterface()
    put(interface, make_rows, 1, 2)
    assert len(interface.retrieve_buffer()) == 6
    assert interface.samples_committed == 0
    assert len(interface.retrieve_buffer()) == 0
    assert interface.samples_committed == 6
