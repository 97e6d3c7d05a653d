from __future__ import annotations

import json
import math
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.envs.json_spaces import Encoding, action_writer, number_count, observation_reader, space_from_json
from tmrl_core.errors import ConfigError, ObservationError, PolicyFailedError

FULL = spaces.Dict(
    {
        "box": spaces.Box(-1, 1, (2, 3), np.float32),
        "scalar": spaces.Box(-1, 1, (), np.float64),
        "picture": spaces.Box(0, 255, (2, 2), np.uint8),
        "flags": spaces.Box(0, 1, (2,), np.bool_),
        "choice": spaces.Discrete(3, start=5),
        "bits": spaces.MultiBinary(3),
        "digits": spaces.MultiDiscrete([2, 10]),
        "pair": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float16))),
    }
)


def as_json(value: Any) -> Any:
    """Return the value that a client sends: `tolist` of every array."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [as_json(inner) for inner in value]
    return np.asarray(value).tolist()


def equal(one: Any, two: Any) -> bool:
    """Equal values, types, dtypes and shapes."""
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, tuple):
        return type(two) is tuple and all(map(equal, one, two))
    one, two = np.asarray(one), np.asarray(two)
    return one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())


@pytest.mark.parametrize(
    ("value", "space"),
    [
        (2, spaces.Discrete(2)),
        ([[4], -1, 1], spaces.Box(-1, 1, (4,), np.float32)),
        ([3, -1, 1], spaces.Box(-1, 1, (3,), np.float32)),
        ([[], 16, 24.5], spaces.Box(16, 24.5, (), np.float32)),
        (
            [[2], [0, None], [1, None]],
            spaces.Box(np.array([0, -np.inf], np.float32), np.array([1, np.inf], np.float32)),
        ),
        ([[2, 1], None, 1e300], spaces.Box(-np.inf, np.inf, (2, 1))),
        ({"b": 2, "a": [1, 0, 1]}, spaces.Dict({"a": spaces.Box(0, 1, (1,)), "b": spaces.Discrete(2)})),
    ],
)
def test_a_space_is_made_of_json(value: Any, space: gymnasium.Space[Any]) -> None:
    assert space_from_json(value) == space


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "gateway.x is 0"),
        (True, "gateway.x is True"),
        ("CartPole", "allowed are a number n"),
        ({}, "allowed are a number n"),
        ([1, 2], "allowed are a number n"),
        ({"a": [1, 2]}, r"gateway\.x\.a is \[1, 2\]"),
        ([[0], 0, 1], "shape"),
        ([[2.0], 0, 1], "shape"),
        ([2, [0, 1, 2], 1], "low of gateway.x does not fit the shape"),
        ([2, [0, [1]], 1], "does not fit"),
        ([1, "0", 1], "contains '0'"),
        ([1, 0, math.nan], "high of gateway.x contains nan"),
        ([1, 2, 1], "low exceeds high"),
    ],
)
def test_anything_else_is_refused(value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        space_from_json(value, "gateway.x")


@pytest.mark.parametrize("seed", range(5))
def test_an_observation_survives_json(seed: int) -> None:
    FULL.seed(seed)
    obs = FULL.sample()
    read = observation_reader(FULL)(json.dumps(as_json(obs)))
    assert equal(read, obs)
    assert FULL.contains(read)


def test_entries_come_in_the_order_of_the_space() -> None:
    assert list(observation_reader(FULL)(json.dumps(dict(reversed(as_json(FULL.sample()).items()))))) == list(
        FULL.spaces
    )


def test_a_box_takes_integers_and_booleans_and_leaves_bounds_to_the_environment() -> None:
    read = observation_reader(space_from_json([3, -1, 1]))
    assert equal(read("[5, true, 0.5]"), np.array([5, 1, 0.5], np.float32))


@pytest.mark.parametrize(
    ("space", "value"), [(spaces.Box(-1, 1, (2,)), [0.5, -10.5]), (spaces.Box(0, 255, (1,), np.uint8), [11])]
)
def test_numbers_of_a_box_may_be_limited(space: spaces.Box, value: Any) -> None:
    reader = observation_reader(spaces.Dict({"a": spaces.Tuple((space,))}), largest=10.0, setting="gateway.max_number")
    assert reader(json.dumps({"a": [[10] * len(value)]}))
    with pytest.raises(ObservationError, match=r"obs\.a\[0\]\[.\]: .* [<>]= -?10.* at most 10 \(gateway.max_number\)"):
        reader(json.dumps({"a": [value]}))


@pytest.mark.parametrize(
    ("space", "value", "said"),
    [
        ([2, -1, 1], [1.0], r"obs: expected `array` of length >= 2; the space wants float32 of shape \[2\]"),
        ([2, -1, 1], [1.0, [2.0]], r"obs\[1\]: expected .*float.*, got `array`"),
        ([2, -1, 1], [1.0, "2"], r"obs\[1\]: .*got `str`"),
        ([2, -1, 1], [None, 1.0], r"obs\[0\]: .*got `null`"),
        ([2, -1, 1], [math.nan, 1.0], r"obs\[0\]: expected `float` >= -3\.4"),
        ([2, -1, 1], [1.0, -math.inf], r"obs\[1\]"),
        ([2, -1, 1], [1.0, 1e39], r"obs\[1\]"),
        ([2, -1, 1], [1.0, 10**400], r"obs\[1\]: number out of range"),
        ([2, -1, 1], {"a": 1}, "obs: expected `array`, got `object`"),
        ([[], -1, 1], [1.0], "obs: .*got `array`"),
        (3, 3, "obs: expected `int` <= 2; the space wants an integer from 0 to 2"),
        (3, -1, "obs"),
        (3, 1.5, "obs: .*got `float`"),
        (3, True, "obs: .*got `bool`"),
        (3, 10**30, "obs"),
        ({"a": 2, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}}, r"obs\.b\.c: expected `int` <= 1"),
        ({"a": 2, "b": 2}, {"a": 1}, r"obs lacks \['b'\]"),
        ({"a": 2}, {"a": 1, "x": 1}, "obs has the key 'x'"),
        ({"a": 2}, [1], r"obs: expected `object`, got `array`; the space wants an object with the keys \['a'\]"),
    ],
)
def test_the_value_that_does_not_fit_is_named(space: Any, value: Any, said: str) -> None:
    encoding: Encoding = "msgpack" if "inf" in repr(value) or "nan" in repr(value) else "json"
    data = json.dumps(value) if encoding == "json" else msgspec.msgpack.encode(value)
    with pytest.raises(ObservationError, match=said):
        observation_reader(space_from_json(space), encoding=encoding)(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x92\x01", b"\x92\x01\xa1\xff", b"\x81\x05\x01", b"\x92\xc1\x01", b"\xc4\x01a", b"\x91" * 10_000]
)
@pytest.mark.parametrize("space", [2, [2, -1, 1], [[2, 40], -1, 1], {"a": 2}])
def test_damaged_messagepack_is_refused(space: Any, data: bytes) -> None:
    with pytest.raises(ObservationError):
        observation_reader(space_from_json(space), encoding="msgpack")(data)


@pytest.mark.parametrize("text", ["", "[1,", "[1,,2]", "[1, NaN]", '{"a": \x01}', "[" * 10_000, '"\\ud800"'])
@pytest.mark.parametrize("space", [2, [2, -1, 1], [[2, 40], -1, 1], {"a": 2}])
def test_damaged_json_is_refused(space: Any, text: str) -> None:
    with pytest.raises(ObservationError):
        observation_reader(space_from_json(space))(text)


def test_numbers_are_counted() -> None:
    assert number_count(FULL) == 6 + 1 + 4 + 2 + 1 + 3 + 2 + 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("picture", [[0, 1], [2, 256]]),
        ("picture", [[0, 1], [2, 0.5]]),
        ("bits", [0, 1, 2]),
        ("digits", [0, 10]),
        ("choice", 4),
        ("pair", [1]),
        ("pair", [1, [70000.0]]),
        ("flags", [0, 2]),
    ],
)
def test_integers_outside_of_their_space_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ObservationError, match=rf"obs\.{key}"):
        observation_reader(FULL)(json.dumps({**as_json(FULL.sample()), key: value}))


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Discrete(5), 3.0, np.int64(3)),
        (spaces.Discrete(2, start=-1), -1.0, np.int64(-1)),
        (spaces.MultiDiscrete([3, 4]), [2.0, 1], np.array([2, 1])),
        (spaces.MultiBinary(2), [1.0, True], np.array([1, 1], np.int8)),
        (spaces.Box(0, 255, (1, 2), np.uint8), [[255.0, 0]], np.array([[255, 0]], np.uint8)),
        (spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64), [2**53 + 1, 2.0], np.array([2**53 + 1, 2])),
    ],
)
def test_a_whole_number_with_a_point_is_an_integer_as_in_json_schema(
    space: gymnasium.Space[Any], value: Any, expected: Any, encoding: Encoding
) -> None:
    data = json.dumps(value) if encoding == "json" else msgspec.msgpack.encode(value)
    found = observation_reader(space, encoding=encoding)(data)
    assert equal(found, expected)
    assert found.dtype == space.dtype


@pytest.mark.parametrize("value", [5.0, -1.0, 2.5, 1e300, 2.0**63])
def test_a_number_with_a_point_outside_of_the_space_is_refused(value: float) -> None:
    with pytest.raises(ObservationError, match="obs: expected `int`, got `float`; the space wants an integer from 0"):
        observation_reader(spaces.Discrete(5))(json.dumps(value))
    with pytest.raises(ObservationError):
        observation_reader(spaces.MultiDiscrete([5]))(json.dumps([value]))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
)


@given(st.sampled_from(list(FULL.spaces)), JSON_VALUES, st.booleans())
def test_any_value_is_of_the_space_or_an_error(key: str, value: Any, as_text: bool) -> None:
    space = FULL[key]
    data = msgspec.json.encode(value) if as_text else msgspec.msgpack.encode(value)
    try:
        obs = observation_reader(space, encoding="json" if as_text else "msgpack")(data)
    except ObservationError:
        return
    if isinstance(space, spaces.Box):
        assert obs.shape == space.shape
        assert obs.dtype == space.dtype
        assert np.isfinite(obs).all()
    else:
        assert space.contains(obs)


@pytest.mark.parametrize(
    ("space", "of_wire"),
    [
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), "u1"),
        (spaces.Box(-1, 1, (3,), np.float32), "<f4"),
        (spaces.Box(-1, 1, (2, 20), np.float64), "<f8"),
        (spaces.Box(0, 1, (2,), np.bool_), "u1"),  # type: ignore[arg-type]
        (spaces.MultiBinary(4), "i1"),
        (spaces.MultiDiscrete([3, 9]), "<i8"),
    ],
)
def test_an_array_in_messagepack_may_be_its_bytes(space: gymnasium.Space[Any], of_wire: str) -> None:
    space.seed(1)
    value = space.sample()
    read = observation_reader(space, largest=1e6, encoding="msgpack")
    found = read(msgspec.msgpack.encode(value.astype(of_wire).tobytes()))
    assert (found.dtype, found.shape, found.flags.writeable) == (value.dtype, value.shape, True)
    np.testing.assert_array_equal(found, value)
    with pytest.raises(ObservationError, match=r"bytes, in the order of C; found 1$"):
        read(msgspec.msgpack.encode(b"1"))


@pytest.mark.parametrize(
    ("space", "sent"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.array([0, np.nan], "<f4")),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([0, 2e6], "<f4")),
        (spaces.Box(-1, 1, (2, 9), np.float32), np.full((2, 9), np.inf, "<f4")),
        (spaces.Box(0, 9, (2,), np.int64), np.array([0, 2e6], "<i8")),
        (spaces.Box(0, 1, (2,), np.bool_), np.array([0, 2], "u1")),  # type: ignore[arg-type]
        (spaces.MultiBinary(2), np.array([0, 2], "i1")),
        (spaces.MultiDiscrete([3, 9]), np.array([3, 1], "<i8")),
    ],
)
def test_bytes_of_an_array_are_checked_as_its_numbers_are(space: gymnasium.Space[Any], sent: Any) -> None:
    with pytest.raises(ObservationError, match="obs"):
        observation_reader(space, largest=1e6, encoding="msgpack")(msgspec.msgpack.encode(sent.tobytes()))


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2))])
def test_spaces_without_arrays_are_refused(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        observation_reader(space)
    with pytest.raises(ConfigError, match="cannot be"):
        action_writer(space)


@pytest.mark.parametrize("seed", range(5))
def test_an_action_survives_json(seed: int) -> None:
    FULL.seed(seed)
    action = FULL.sample()
    written = json.dumps(action_writer(FULL)(action))
    assert equal(observation_reader(FULL)(written), action)


def test_scalar_actions_are_numbers() -> None:
    number = action_writer(spaces.Discrete(2))(np.int64(1))
    assert type(number) is int
    target = action_writer(space_from_json([[], 16, 24]))(np.array(20.5, np.float32))
    assert type(target) is float


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_action_that_is_not_finite_is_never_written(value: float) -> None:
    with pytest.raises(PolicyFailedError, match="not finite"):
        action_writer(space_from_json([2, -1, 1]))(np.array([0.0, value]))
