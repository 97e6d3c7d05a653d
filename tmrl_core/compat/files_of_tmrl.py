"""`python -m tmrl_core --import-config` and `--import-weights`: files of tmrl become the project's."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from tmrl_core.cli.main import shown
from tmrl_core.config.documents import SUFFIXES
from tmrl_core.errors import ConfigError, StorageError, WeightsError
from tmrl_core.storage import write_whole

EPILOG = """\
examples:
  python -m tmrl_core --import-config config.json -o my.yaml
  python -m tmrl_core --import-weights model.tmod -o policy.tmod
  python -m tmrl_core --test -c my.yaml --set trainer.model_path=policy.tmod
Nothing in the files is run.
"""
MOST_BYTES = 1 << 20
"""Maximum size of a configuration."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of a command line with `--import-config` or `--import-weights`."""
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core",
        description="Convert a configuration or a policy of tmrl.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kind = made.add_mutually_exclusive_group(required=True)
    kind.add_argument("--import-config", metavar="FILE", help="tmrl's config.json")
    kind.add_argument("--import-weights", metavar="FILE", help="weights of tmrl's MLP policy (.tmod), which need torch")
    made.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write, which must not exist (default: the configuration to standard output; weights: required)",
    )
    return made


def run_import(arguments: Sequence[str]) -> int:
    """Run a command line with `--import-config` or `--import-weights`.

    Raises:
        ConfigError: a file is missing, or is not a configuration of tmrl.
        WeightsError: a file holds no weights of tmrl's MLP policy.
        StorageError: the output exists, or cannot be written.
    """
    # `--import-config --help` names no FILE, which the parser would report before it sees the request for help.
    asks_for_help = not {"-h", "--help"}.isdisjoint(arguments)
    options = parser().parse_args(["--help"] if asks_for_help else arguments)
    if options.import_config is not None:
        output = None if options.output is None else Path(options.output)
        return _import_config(Path(options.import_config), output)
    if options.output is None:
        raise ConfigError("--import-weights needs a file to write: add -o FILE")
    return _import_weights(Path(options.import_weights), Path(options.output))


def _import_config(path: Path, output: Path | None) -> int:
    from tmrl_core.compat.config.conversion import converted

    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"-o {output}: a configuration's name ends in {', '.join(SUFFIXES)}, not in {output.suffix!r}"
        )
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} has more than {MOST_BYTES} bytes: it is not a configuration")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as exc:
        raise ConfigError(
            f"{path} cannot be read: {exc.strerror}. tmrl has its configuration in TmrlData/config/config.json"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} is not valid JSON: {exc}") from exc
    try:
        values, notes = converted(content)
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    if output is not None and output.suffix.lower() == ".json":
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    else:
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if output is None:
        print(text, end="")
    else:
        _write(output, text.encode())
    for note in notes:
        print(shown(note), file=sys.stderr)
    if output is not None:
        print(shown(f"next: check {output}, then start the roles with -c {output}"))
    return 0


def _import_weights(path: Path, output: Path) -> int:
    from tmrl_core.compat.policy_files import MAX_BYTES, policy_weights, read_torch_format

    try:
        if path.stat().st_size > MAX_BYTES:
            raise WeightsError(f"{path} has more than {MAX_BYTES} bytes")
        data = path.read_bytes()
    except OSError as exc:
        raise WeightsError(f"{path} cannot be read: {exc.strerror}") from exc
    try:
        state = read_torch_format(data)
        weights = policy_weights(state)
    except WeightsError as exc:
        raise WeightsError(f"{path}: {exc}") from exc
    _write(output, weights)
    sizes = [len(value) for name, value in state.items() if name.startswith("net.") and name.endswith(".bias")]
    print(
        shown(
            f"{output}: weights for tmrl_core.actor:SquashedGaussianMLPActor with hidden_sizes: {sizes}. The file does "
            "not tell the activation: set actor.kwargs.activation if it was not relu."
        )
    )
    return 0


def _write(path: Path, data: bytes) -> None:
    """Write a new file.

    Raises:
        StorageError: it exists, or cannot be written.
    """
    if path.exists():
        raise StorageError(f"{path} exists; name a new file")
    try:
        write_whole(path, data)
    except OSError as exc:
        raise StorageError(f"{path} cannot be written: {exc.strerror}") from exc
