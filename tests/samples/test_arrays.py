"""Arrays as payloads: there and back, with and without the filter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tmrl_core.errors import CodecError
from tmrl_core.samples.arrays import PLAIN, PLANES, array_head, array_items, array_planes, decode_array
from tmrl_core.samples.supported_values import DTYPES, UncarriableError

arrays = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@given(arrays)
def test_planes_hold_each_byte_of_every_item(array: np.ndarray[Any, Any]) -> None:
    planes = array_planes(array)
    assert planes.shape == (array.itemsize, array.size)
    assert planes.T.tobytes() == array.tobytes()


@pytest.mark.parametrize("filter_", [PLAIN, PLANES])
@given(arrays)
def test_an_array_comes_back_exactly(filter_: int, array: np.ndarray[Any, Any]) -> None:
    items = array_items(array) if filter_ == PLAIN else array_planes(array).tobytes()
    back = decode_array(memoryview(array_head(array.dtype, array.shape, filter_) + bytes(items)))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_items_and_plain_payloads_are_not_copied() -> None:
    array = np.arange(10)
    assert np.shares_memory(np.frombuffer(array_items(array), np.uint8), array)
    payload = np.frombuffer(array_head(array.dtype, array.shape) + array.tobytes(), np.uint8)
    assert np.shares_memory(decode_array(payload.data), payload)


def test_every_payload_cut_short_is_refused() -> None:
    payload = array_head(np.dtype(np.float64), (2, 3)) + bytes(48)
    for length in range(len(payload)):
        with pytest.raises(CodecError):
            decode_array(memoryview(payload[:length]))


def test_shapes_and_dtypes_that_cannot_be_carried_are_refused() -> None:
    with pytest.raises(UncarriableError, match="shape"):
        array_head(np.dtype(np.uint8), (2**32,))
    with pytest.raises(UncarriableError, match="dtype object"):
        array_head(np.dtype(object), (1,))
