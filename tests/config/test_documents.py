"""Configuration files as people write them: YAML's traps, duplicate keys, broken texts with their place."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tmrl_core.config.documents import format_yaml, parse_json, parse_yaml, read_document
from tmrl_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1e6),
        ("1e-3", 1e-3),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("1_000", 1000),
        ("010", 10),
        ("0x1f", 31),
        ("-3", -3),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        (".inf", math.inf),
        ('"1"', "1"),
        ("1.2.3.4", "1.2.3.4"),
        ("[1, 2]", [1, 2]),
    ],
)
def test_yaml_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    found = parse_yaml(f"key: {text}\n", "x")["key"]
    assert found == value
    assert type(found) is type(value)


@given(
    st.one_of(
        st.text(st.characters(codec="utf-8")),
        st.text("\x85\u2028\u2029\ufeff\r\n\t a:-#'\""),
        st.from_regex(r"[-+.]?[0-9_]{1,3}[.eExX0-9_+-]{0,5}"),
    )
)
@example("1e999")
@example("1_000")
@example("0x1f")
@example("no")
@example("")
@example("\x85z")
def test_a_text_stays_one_when_it_is_written_and_read(text: str) -> None:
    values = {"key": [text], "also": {text: 1e5, "is not text": 1e-6}}
    assert parse_yaml(format_yaml(values), "x") == values


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a:\n  b: 1\n  b: 2\n", "line 3, column 3"),
        ("a: 1\na: 2\n", "line 2, column 1"),
        ("a: [1, 2\nb: 3\n", "line 2"),
        ("a: 1\n\tb: 2\n", "line 2"),
        ("a: !!python/object/apply:os.system [x]\n", "line 1"),
        ("a: !!set {x}\n", "line 1"),
        ("a: !!omap [x: 1]\n", "line 1"),
        ("a: !!pairs [x: 1]\n", "line 1"),
        ("a: !!binary eA==\n", "line 1"),
        ("a: !!timestamp 2024-01-01\n", "line 1"),
        ("1: a\n", "line 1"),
        ("a: &x [*x, *y]\n", "line 1"),
        ("a: 1\n---\nb: 2\n", "line 2"),
    ],
)
def test_broken_yaml_is_named_with_its_place(text: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "my.yaml")
    assert str(caught.value).startswith("my.yaml: ")
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a" 1}', "line 1, column 6"),
        ('{\n"a": }', "line 2, column 6"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_json_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json(text, "my.json")
    assert said in str(caught.value)


@given(st.text())
def test_any_text_gives_values_or_a_config_error(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        with contextlib.suppress(ConfigError):
            parse(text, "x")


@pytest.mark.parametrize("path", [r"C:\Sessions", r"C:\users", r"C:\Users"])
def test_an_error_in_a_windows_path_says_how_to_write_it(path: str) -> None:
    with pytest.raises(ConfigError, match="put a Windows path in single quotes, or write it with /"):
        parse_yaml(f'folder: "{path}"', "my.yaml")
    with pytest.raises(
        ConfigError, match=r"Invalid \\\S* ?escape\. Write a Windows path with / or with each backslash"
    ):
        parse_json(f'{{"folder": "{path}"}}', "my.json")
    assert parse_yaml(f"folder: '{path}'", "my.yaml") == {"folder": path}


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json", "A.YAML"])
def test_the_extension_determines_the_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('{"run": {"name": "x"}}', encoding="utf-8")
    assert read_document(path) == {"run": {"name": "x"}}


def test_a_byte_order_mark_and_an_empty_file_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfrun: {name: x}\r\n")
    assert read_document(path) == {"run": {"name": "x"}}
    path.write_text("# nothing\n", encoding="utf-8")
    assert read_document(path) == {}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", b"x", "ends in .yaml, .yml, .json"),
        ("a.yaml", b"- 1\n", "a mapping of sections, found list"),
        ("a.json", b"3", "a mapping of sections, found int"),
        ("a.yaml", "run: {}".encode("utf-16"), "is not UTF-8 text (byte 0). Save it as UTF-8"),
    ],
)
def test_invalid_configuration_files_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    assert said in str(caught.value)


def test_the_error_for_a_missing_file_lists_existing_ones(tmp_path: Path) -> None:
    (tmp_path / "right.yaml").touch()
    with pytest.raises(ConfigError, match=r"wrong\.yaml: no such file.*right\.yaml"):
        read_document(tmp_path / "wrong.yaml")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(tmp_path / "a.yaml")


def test_aliases_to_aliases_do_not_multiply() -> None:
    lines = [
        "a0: &a0 [x, x, x, x]",
        *[f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 30)],
    ]
    with pytest.raises(ConfigError, match="more than 100000 values"):
        parse_yaml("\n".join(lines), "my.yaml")
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}", "my.yaml") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


@pytest.mark.parametrize("parse", [parse_yaml, parse_json])
@pytest.mark.parametrize("text", ['{"a": ["\\ud800"]}', '{"\\ud800": 1}'])
def test_lone_surrogates_are_refused(parse: Callable[[str, str], object], text: str) -> None:
    with pytest.raises(ConfigError, match="lone surrogate"):
        parse(text, "my.json")
