"""The public Buffer: its capacity is the configuration's where it is left out."""

from __future__ import annotations

from tmrl_core import config
from tmrl_core.networking import Buffer


def test_maxlen_left_out_comes_from_the_configuration() -> None:
    assert Buffer().maxlen == config.current().worker.buffer_maxlen
    assert Buffer(config.CFG).maxlen == config.current().worker.buffer_maxlen


def test_an_explicit_none_means_no_limit() -> None:
    assert Buffer(None).maxlen is None
