"""Keys of a run follow from its secret."""

from __future__ import annotations

import pytest

from tmrl_core.networking.end_to_end.run_key import RunKey, key_id_of


def test_the_same_secret_gives_the_same_keys() -> None:
    """Recorded: a stored secret must give the keys that workers and spooled messages know."""
    key = RunKey(bytes(range(32)))
    assert key.public.hex() == "3a810d8784c8b5f1163d4b0aed77a321610072510d2ad304d52dd69a3a565024"
    assert key.signing_public.hex() == "03ee099cff35dd6ecbe55832277bad08fb1e65c8fdb6d70450c50a815f7a376948"
    assert key.id.hex() == "e5f18a4e6385fb81"
    assert key_id_of(key.public) == key.id


def test_other_secrets_give_other_keys() -> None:
    keys = [RunKey(bytes([value]) * 32) for value in range(5)]
    for name in ("public", "signing_public", "id"):
        assert len({getattr(key, name) for key in keys}) == 5


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        RunKey(bytes(size))


def test_its_text_hides_the_secret() -> None:
    key = RunKey(bytes(range(32)))
    assert repr(key) == f"RunKey({key.id.hex()})"
