"""The table of mutations fits the code, and the script tells found ones from those that prove nothing.

That the tests find them is shown by `python scripts/mutations.py`, which takes minutes.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "mutations.py"


def test_each_promise_has_some() -> None:
    assert len(MUTATIONS) >= 40
    assert [name for name, count in Counter(one.name for one in MUTATIONS).items() if count > 1] == []
    numbers = Counter(one.promise.partition(":")[0] for one in MUTATIONS)
    least = {"1": 8, "2": 5, "3": 5, "4": 4, "5": 4, "6": 3, "7": 5, "8": 5, "security": 8, "learning": 15}
    assert {promise: numbers[promise] for promise, count in least.items() if numbers[promise] < count} == {}
    assert numbers.keys() == least.keys()


def test_each_fits_the_code_and_names_tests() -> None:
    for mutation in MUTATIONS:
        source = (ROOT / mutation.file).read_text(encoding="utf-8")
        changed = mutation.applied(source)
        assert changed != source, mutation.name
        compile(changed, mutation.file, "exec")
        assert mutation.tests, mutation.name
        for test in mutation.tests:
            file, _, name = test.partition("::")
            assert name.partition("[")[0] in functions(file), f"{mutation.name}: {test}"


@functools.cache
def functions(file: str) -> set[str]:
    """Return the names of a module's functions."""
    return set(re.findall(r"^(?:async )?def (\w+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))


def test_a_text_that_is_not_there_once_is_an_error() -> None:
    mutation = Mutation("m", "p", "f.py", "a", "b", ())
    assert mutation.applied("x = a") == "x = b"
    for source in ("", "a = a"):
        with pytest.raises(ValueError, match="m: its text occurs"):
            mutation.applied(source)


UNITS = """
import pytest
from package import value

def test_one():
    assert value() == 1

@pytest.mark.parametrize("number", [1, 2])
def test_positive(number):
    assert value() * number > 0

@pytest.fixture
def one():
    if value() == 5:
        raise ValueError("five")

def test_with_a_fixture(one):
    pass
"""


def test_only_a_failure_in_its_own_call_counts(tmp_path: Path) -> None:
    """In a copy of a tiny tree; the mutation is undone afterwards."""
    (tmp_path / "package.py").write_text("def value():\n    return 1\n", encoding="utf-8")
    (tmp_path / "test_units.py").write_text(UNITS, encoding="utf-8")
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "from pathlib import Path\n"
        "import mutations\n"
        "for new, *names in (('0', 'one', 'positive', 'positive[2]'), ('3', 'one', 'positive'),\n"
        "                    ('5', 'one', 'with_a_fixture'), ('missing', 'one')):\n"
        "    tests = tuple(f'test_units.py::test_{name}' for name in names)\n"
        "    one = mutations.Mutation('m', 'p', 'package.py', 'return 1', f'return {new}', tests)\n"
        f"    found, row = mutations.attempt(Path({str(tmp_path)!r}), one)\n"
        "    print(found, row.split(' | ')[2])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert ran.stdout.splitlines() == ["True found", "False NOT FOUND", "False BROKEN", "False BROKEN"], ran.stderr
    assert (tmp_path / "package.py").read_text(encoding="utf-8") == "def value():\n    return 1\n"


def test_an_unknown_name_is_an_error(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "nothing"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 2
    assert "unknown: nothing" in ran.stderr
