"""--help of each command: it ends with status 0 and names each option with a description."""

from __future__ import annotations

import re

import pytest

from tmrl_core.cli import main as cli

COMMON = "--help --config --set --log-level"
NAMED = {
    "": (
        f"{COMMON} --gateway --server --worker --trainer --local --expert --test --benchmark --status --config-schema "
        "--version --credentials --doctor --sessions --metrics --import-config --import-weights --wandb --new --seed "
        "--workers --single-process --quickstart --small --record --episodes --steps --render --video --json --watch "
        "--control --announce"
    ),
    "--doctor": f"{COMMON} --role --timeout --json",
    "--sessions": "list view export import",
    "--sessions view": "folder --help --only --out",
    "--sessions list": "folder --help",
    "--sessions export": "folder dataset --help --format",
    "--sessions import": "dataset folder --help",
    "--metrics": "send",
    "--metrics send": "run --help --to --id",
    "--credentials": "create bundle install show revoke renew rotate-token key",
    "--credentials create": f"{COMMON} --host --days --overwrite",
    "--credentials bundle": f"ROLE {COMMON} --name --weight --out --days",
    "--credentials install": f"FILE {COMMON} --overwrite",
    "--credentials show": COMMON,
    "--credentials revoke": f"NAME {COMMON} --of-role",
    "--credentials renew": f"NAME {COMMON} --all --out --days",
    "--credentials rotate-token": f"ROLE {COMMON}",
    "--credentials key": f"AGENT {COMMON}",
}
"""Options and positional arguments of each command; subcommands of a group."""


@pytest.mark.parametrize("command", NAMED)
def test_help_names_each_option(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_help(command, NAMED[command], monkeypatch, capsys)


def check_help(command: str, names: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the help of a command describes these options and positional arguments."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([*command.split(), "--help"])
    out, err = capsys.readouterr()
    assert (err, out.startswith(f"usage: python -m tmrl_core {command}".rstrip())) == ("", True)
    described = re.findall(r"^ +(?:-\w(?: \S+)?, )?([\w-]+)", out, re.MULTILINE)
    assert [name for name in names.split() if name not in described] == []
