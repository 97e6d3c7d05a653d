"""`python -m tmrl_core --sessions`: recorded sessions, and the datasets of other tools."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tmrl_core.cli.main import set_up_logging, shown
from tmrl_core.errors import ConfigError

logger = logging.getLogger(__name__)

EPILOG = """\
A dataset of Minari needs the extra `minari`, one of LeRobot (v3) the extra `lerobot`, or `lerobot-video`
if it has videos.
A command that fails leaves nothing of its target.
"""


def parser() -> argparse.ArgumentParser:
    """The grammar of a command line after `--sessions`."""
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --sessions",
        description="Show recorded sessions, and exchange them with other tools.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    showing = commands.add_parser("list", help="print the number of sessions, their ends and returns")
    showing.add_argument("folder", help="a recording")
    writing = commands.add_parser("export", help="write a recording as a new dataset")
    writing.add_argument("folder", help="a recording")
    writing.add_argument("dataset", help="the dataset's folder, which must not exist")
    writing.add_argument("--format", required=True, choices=["minari", "lerobot"], help="of the dataset")
    writing.add_argument("--fps", type=int, default=30, metavar="N", help="LeRobot: ticks per second (default: 30)")
    writing.add_argument(
        "--task", default="recorded", metavar="TEXT", help="LeRobot: text of the task (default: recorded)"
    )
    reading = commands.add_parser("import", help="write a dataset of Minari or LeRobot as a recording")
    reading.add_argument("dataset", help="the dataset's folder")
    reading.add_argument("folder", help="the recording, which must not exist")
    reading.add_argument(
        "--spaces", metavar="FILE", help="spaces.json of a recording in the same environment: spaces with bounds"
    )
    reading.add_argument(
        "--bounds-of-stats",
        action="store_true",
        help="LeRobot: actions without bounds get those of the values in meta/stats.json",
    )
    reading.add_argument(
        "--skip-bad-episodes", action="store_true", help="leave out inconsistent episodes, and say how many"
    )
    return made


def run_sessions(arguments: Sequence[str]) -> int:
    """Run a command line with `--sessions`.

    Raises:
        ConfigError: an option's value is impossible.
        StorageError: files are missing, damaged, in the way, or cannot be written.
        MissingExtraError: the package of a dataset is not installed.
    """
    options = parser().parse_args([word for word in arguments if word != "--sessions"])
    set_up_logging("info")
    return {"list": show, "export": export, "import": import_}[options.command](options)


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


def export(options: argparse.Namespace) -> int:
    """Write a recording as a dataset."""
    from tmrl_core.sessions import read_sessions, read_spaces, write_lerobot, write_minari

    if not 1 <= options.fps <= 1_000_000:
        raise ConfigError(f"--fps: found {options.fps}, allowed: 1 to 1000000")
    of, sessions = read_spaces(options.folder), read_sessions(options.folder)
    if options.format == "minari":
        count = write_minari(options.dataset, sessions, of)
    else:
        count = write_lerobot(options.dataset, sessions, of, fps=options.fps, task=options.task)
    print(shown(f"{options.dataset}: {count} sessions"))
    return 0


def import_(options: argparse.Namespace) -> int:
    """Write a dataset as a recording."""
    from tmrl_core.sessions import SessionWriter, read_lerobot, read_minari
    from tmrl_core.sessions.lerobot import is_lerobot
    from tmrl_core.sessions.session_files import read_action_ranges, read_spaces_file
    from tmrl_core.sessions.spaces import bounded
    from tmrl_core.sessions.whole_folder import whole_folder

    given = None if options.spaces is None else read_spaces_file(Path(options.spaces))
    if is_lerobot(options.dataset):
        of, sessions = read_lerobot(
            options.dataset, of=given, bounds_of_stats=options.bounds_of_stats, skip_bad=options.skip_bad_episodes
        )
    elif options.bounds_of_stats:
        raise ConfigError(f"--bounds-of-stats is for datasets of LeRobot, and {options.dataset} is none")
    else:
        of, sessions = read_minari(options.dataset, of=given, skip_bad=options.skip_bad_episodes)
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
            " or --bounds-of-stats" if is_lerobot(options.dataset) else "",
        )
    if problem := read_action_ranges(options.folder).problem():
        logger.warning(
            "%s: actions outside their space need memory.recorded_actions: clip to be trained on: %s",
            options.folder,
            problem,
        )
    return 0
