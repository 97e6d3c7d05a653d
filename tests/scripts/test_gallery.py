"""docs/learning_curves.md has each configuration, and its bad runs can be made."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tmrl_core.cli.main import all_overrides, parser
from tmrl_core.config import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`scripts/gallery.py`."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("gallery")


def test_each_configuration_has_a_pair_or_a_reason(gallery: ModuleType) -> None:
    told = sorted([*(f"{pair.name}.yaml" for pair in gallery.PAIRS), *gallery.WITHOUT])
    assert told == sorted(path.name for path in (ROOT / "config").iterdir())


def test_the_settings_of_each_run_are_accepted_and_end(gallery: ModuleType) -> None:
    for pair in gallery.PAIRS:
        words = [word for one in gallery.settings_of(pair, good=False) for word in ("--set", one)]
        path = ROOT / "config" / f"{pair.name}.yaml"
        config = load(path, all_overrides(parser().parse_args(["--local", *words])), {})
        assert config.run.seed == gallery.SEED
        assert config.trainer.evaluation.every_updates == pair.every, pair.name
        assert pair.seen, pair.name


def test_the_page_is_up_to_date(gallery: ModuleType) -> None:
    assert gallery.main(["--check"]) == 0, "run `python scripts/gallery.py`"


def test_pictures_are_small(gallery: ModuleType) -> None:
    pictures = [*gallery.PICTURES.iterdir()]
    assert len(pictures) > 5
    assert [picture.name for picture in pictures if picture.stat().st_size > 150_000] == []
