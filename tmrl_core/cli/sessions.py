"""`python -m tmrl_core --sessions`: recorded sessions, and the datasets of other tools."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_core.cli.main import set_up_logging, shown
from tmrl_core.config.loading import expanded
from tmrl_core.errors import ConfigError

if TYPE_CHECKING:
    from tmrl_core.sessions.formats import Options, SessionFormat

logger = logging.getLogger(__name__)

FIRST = "0-9"
"""Sessions that are shown by default: a recording may have thousands."""
COMMON = ("command", "folder", "dataset", "format", "spaces", "skip_bad_episodes")
"""Options of all formats."""


def parser(formats: Mapping[str, SessionFormat]) -> argparse.ArgumentParser:
    """The grammar of a command line after `--sessions`, with these formats of datasets."""
    needs = [f"A dataset of {one.title} needs {one.needs}." for one in formats.values()]
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --sessions",
        description="Show recorded sessions, and exchange them with other tools.",
        epilog="\n".join([*needs, "A command that fails leaves nothing of its target."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    showing = commands.add_parser("list", help="print the number of sessions, their ends and returns")
    showing.add_argument("folder", help="a recording")
    viewing = commands.add_parser("view", help="show a recording in the viewer rerun, or write it to a file for it")
    viewing.add_argument("folder", help="a recording")
    viewing.add_argument(
        "--only",
        default=FIRST,
        metavar="NUMBERS",
        help="sessions to show, from 0, such as 3, 0-9, or 20- (default: %(default)s)",
    )
    viewing.add_argument("--out", metavar="FILE", help="write this .rrd file instead, for a machine without a display")
    writing = commands.add_parser("export", help="write a recording as a new dataset")
    writing.add_argument("folder", help="a recording")
    writing.add_argument("dataset", help="the dataset's folder, which must not exist")
    writing.add_argument("--format", required=True, help=f"of the dataset: {', '.join(formats)}")
    titles = " or ".join(one.title for one in formats.values())
    reading = commands.add_parser("import", help=f"write a dataset of {titles or 'another tool'} as a recording")
    reading.add_argument("dataset", help="the dataset's folder")
    reading.add_argument("folder", help="the recording, which must not exist")
    reading.add_argument(
        "--spaces", metavar="FILE", help="spaces.json of a recording in the same environment: spaces with bounds"
    )
    reading.add_argument(
        "--skip-bad-episodes", action="store_true", help="leave out inconsistent episodes, and say how many"
    )
    for one in formats.values():
        for command, options in ((writing, one.write_options), (reading, one.read_options)):
            for flag, words in options.items():
                # Absent if it is not given: the function that takes it has the default.
                told = f"{one.title}: {words['help']}"
                command.add_argument(flag, **{**words, "default": argparse.SUPPRESS, "help": told})
    return made


def run_sessions(arguments: Sequence[str]) -> int:
    """Run a command line with `--sessions`.

    Raises:
        ConfigError: an option's value is impossible.
        StorageError: files are missing, damaged, in the way, or cannot be written.
        MissingExtraError: the package of a dataset is not installed.
    """
    from tmrl_core.sessions.formats import session_formats

    formats = session_formats()
    options = parser(formats).parse_args([word for word in arguments if word != "--sessions"])
    set_up_logging("info")
    if options.command == "list":
        return show(options)
    if options.command == "view":
        return view(options)
    return (export if options.command == "export" else import_)(options, formats)


def show(options: argparse.Namespace) -> int:
    """Print the content of a recording."""
    from tmrl_core.sessions import read_sessions, read_spaces
    from tmrl_core.sessions.session_files import read_action_ranges

    observation_space, action_space = read_spaces(options.folder)
    ranges = read_action_ranges(options.folder)
    ends: Counter[str] = Counter()
    ticks, returns, sources = 0, [], set()
    for session in read_sessions(options.folder):
        ends["terminated" if session.terminated else "truncated" if session.truncated else "unfinished"] += 1
        ticks += len(session)
        returns.append(session.episode_return)
        sources.add(session.source)
    print(shown(f"observations: {observation_space}"))
    print(shown(f"actions:      {action_space}"))
    how = ", ".join(f"{number} {end}" for end, number in ends.items())
    print(f"sessions:     {len(returns)}{f' ({how})' if returns else ''}, {ticks} ticks")
    if returns:
        mean = sum(returns) / len(returns)
        print(f"returns:      mean {mean:.4g}, lowest {min(returns):.4g}, highest {max(returns):.4g}")
        print(shown(f"recorded by:  {', '.join(sorted(filter(None, sources))) or 'not stated'}"))
    for line in ranges.lines():
        print(shown(f"range:        {line}"))
    if problem := ranges.problem():
        print(shown(f"outside the action space: {problem}"))
    return 0


def view(options: argparse.Namespace) -> int:
    """Show sessions in the viewer rerun, or write them to a file for it."""
    from tmrl_core.sessions.rerun_view import view as view_sessions

    match = re.fullmatch(r"(\d+)(?:(-)(\d+)?)?", options.only)
    first = int(match[1]) if match else 0
    last = None if match and match[2] and not match[3] else int(match[3] or match[1]) if match else 0
    if match is None or (last is not None and last < first):
        raise ConfigError(f"--only: found {options.only}, allowed: a number, or a range such as 0-9 or 20-")
    out = None if options.out is None else expanded(options.out)
    if out is None and sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        raise ConfigError(
            "there is no display here for the viewer: write a file with --out sessions.rrd, and open it on a machine "
            "that has one: rerun sessions.rrd"
        )
    chosen = range(first, sys.maxsize if last is None else last + 1)
    count, ticks = view_sessions(options.folder, chosen, last, out)
    print(shown(f"{options.out or 'the viewer'}: {count} sessions, {ticks} ticks"))
    if count == len(chosen) and options.only == FIRST:
        print("--only 10-19 shows the next ones, --only 0- all")
    return 0


def export(options: argparse.Namespace, formats: Mapping[str, SessionFormat]) -> int:
    """Write a recording as a dataset."""
    from tmrl_core.sessions import read_sessions, read_spaces

    if options.format not in formats:
        raise ConfigError(
            f"--format: found {options.format}, allowed: {', '.join(formats) or 'none'}. There is no package "
            f"tmrl_core.sessions.{options.format} here, and no other installed package adds this format"
        )
    chosen = formats[options.format]
    further = _further(options, chosen, chosen.write_options, options.format)
    of, sessions = read_spaces(options.folder), read_sessions(options.folder)
    count = chosen.write(options.dataset, sessions, of, **further)
    print(shown(f"{options.dataset}: {count} sessions"))
    return 0


def _further(options: argparse.Namespace, chosen: SessionFormat, known: Options, found: str) -> dict[str, Any]:
    """Return the options of a format that are given, as keyword arguments."""
    names = {flag.removeprefix("--").replace("-", "_") for flag in known}
    given = {name: value for name, value in vars(options).items() if name not in COMMON}
    if wrong := sorted(given.keys() - names):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
        raise ConfigError(f"{flags}: not for datasets of {chosen.title}, and {found} is one")
    return given


def import_(options: argparse.Namespace, formats: Mapping[str, SessionFormat]) -> int:
    """Write a dataset as a recording."""
    from tmrl_core.sessions import SessionWriter
    from tmrl_core.sessions.formats import format_of
    from tmrl_core.sessions.session_files import read_action_ranges, read_spaces_file
    from tmrl_core.sessions.spaces import bounded
    from tmrl_core.sessions.whole_folder import whole_folder

    given = None if options.spaces is None else read_spaces_file(Path(options.spaces))
    chosen = format_of(options.dataset, formats)
    further = _further(options, chosen, chosen.read_options, options.dataset)
    of, sessions = chosen.read(options.dataset, of=given, skip_bad=options.skip_bad_episodes, **further)
    count = 0
    with whole_folder(Path(options.folder)) as folder, SessionWriter(folder, *of) as writer:
        for session in sessions:
            writer.write(session)
            count += 1
    print(shown(f"{options.folder}: {count} sessions"))
    if not bounded(of[1]):
        logger.warning(
            "%s: the dataset states no bounds of the actions, which most policies need: train with the environment "
            "that has them, or import with --spaces%s",
            options.folder,
            f" or {chosen.bounds}" if chosen.bounds else "",
        )
    if problem := read_action_ranges(options.folder).problem():
        logger.warning(
            "%s: actions outside their space need memory.recorded_actions: clip to be trained on: %s",
            options.folder,
            problem,
        )
    return 0
