"""The keys of tmrl's config.json that only the transport tlspyo has."""

from __future__ import annotations

from tests.compat.config.test_conversion import FILE
from tmrl_core.compat.config.conversion import converted
from tmrl_core.compat.config.settings import KEYS, as_tmrl
from tmrl_core.config import from_values

OF_TLSPYO = {
    "LOCAL_PORT_SERVER": 1,
    "LOCAL_PORT_TRAINER": 2,
    "LOCAL_PORT_WORKER": 3,
    "BUFFER_SIZE": 1000,
    "HEADER_SIZE": 12,
}


def test_each_key_of_the_transport_is_there_and_back() -> None:
    assert FILE.keys() | OF_TLSPYO.keys() >= {key.name for key in KEYS}, "each key has a test"
    values, notes = converted(OF_TLSPYO)
    assert notes == ["ENV: left out: choose environment.cls and environment.kwargs"]
    assert as_tmrl(from_values(values)).items() >= OF_TLSPYO.items()
