"""Options of the roles. A role says which of them it takes (`Role.takes`); those that no role names go with all."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tmrl_core.errors import ConfigError
from tmrl_core.roles.role import Role


class Option(NamedTuple):
    """An option of the command line.

    Args:
        written: `--NAME`, and the name of its argument; without one it is a flag.
        help: its line in `--help`.
        type: makes a value of the argument.
    """

    written: str
    help: str
    type: Callable[[str], Any] = str

    @property
    def flag(self) -> str:
        """`--NAME`."""
        return self.written.partition(" ")[0]

    @property
    def name(self) -> str:
        """Name under which its value is parsed."""
        return self.flag.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--wandb", "send metrics to Weights & Biases (metrics.wandb)"),
    Option("--new", "a new run: another run.name if there is a run of this name"),
    Option("--seed N", "seed of everything random (run.seed)", int),
    Option("--workers N", "number of RolloutWorkers of --local (default: {workers}) and of --worker (default: 1)", int),
    Option("--single-process", "threads instead of processes, for debugging"),
    Option("--ranks N", "processes of the trainer, each with a Server (default: 1)", int),
    Option("--seeds 0-4", "one run for each seed, then `--plot` of all"),
    Option("--at-once N", "runs of --seeds at a time (default: 1)", int),
    Option("--quickstart", "start a new run, and print the next steps at its end"),
    Option("--small", "a short run that tests the installation, not the learning"),
    Option(
        "--record DIR", "record the sessions into DIR too (worker.record); --expert with --episodes needs no Server"
    ),
    Option("--episodes N", "episodes of a test (default: 10) or a recording", int),
    Option("--steps N", "steps of a benchmark (default: 10000, or 10 s of real time)", int),
    Option("--render", "show the environment in a window (render_mode human)"),
    Option("--video PATH", "film: a file such as test.mp4, or a folder"),
    Option("--json", "JSON instead of tables"),
    Option("--watch SECONDS", "repeat every SECONDS", float),
    Option(
        "--announce",
        "for supervisors: print the port as a line of JSON once it listens; a Server takes a free port if the default "
        "one is taken",
    ),
    Option("--control", "for supervisors: end the role in order at the line `stop` or the end of standard input"),
    Option("--remarks FILE", "for supervisors: write what hinders the role into FILE, for a display"),
)


def takers(name: str, roles: Mapping[str, Role]) -> list[str]:
    """Return the roles that take an option, as they are written; empty: all do."""
    return [f"--{role}" for role, one in roles.items() if name in one.takes]


def add_options(parser: argparse.ArgumentParser, roles: Mapping[str, Role]) -> None:
    """Add the options to a parser, in groups by the roles that take them."""
    beside = [f"with --{name}: 0" for name, one in roles.items() if one.local_text is not None and not one.watches]
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        title = f"with {', '.join(takers(option.name, roles)) or 'any role'}"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        text = option.help.format(workers="; ".join(["2", *beside]))
        if argument := option.written.partition(" ")[2]:
            groups[title].add_argument(option.flag, type=option.type, metavar=argument, help=text)
        else:
            groups[title].add_argument(option.flag, action="store_true", help=text)
    parser.add_argument("--num-workers", type=int, dest="workers", metavar="N", help=argparse.SUPPRESS)


def check_options(options: argparse.Namespace, roles: Mapping[str, Role]) -> None:
    """Reject options that have no meaning with this role, instead of ignoring them.

    Raises:
        ConfigError: the message names the option and its role.
    """
    names = [*(option.name for option in OPTIONS), *(name for one in roles.values() for name in one.takes)]
    allowed = {name: takers(name, roles) for name in names}
    allowed |= {name: ["--local"] for name, one in roles.items() if one.local_text is not None}
    role = f"--{options.role}"
    for name, own in allowed.items():
        value = vars(options)[name]
        flag = "--" + name.replace("_", "-")
        if value is not None and value is not False and own and role not in own:
            raise ConfigError(f"{flag} goes with {' or '.join(own)}, not {role}")
        if isinstance(value, int) and not isinstance(value, bool) and value < 1 and name != "seed":
            raise ConfigError(f"{flag}: found {value}, allowed: a whole number of at least 1")
    if options.role == "expert" and options.episodes is not None and options.record is None:
        raise ConfigError(
            "--episodes: with --expert it is the number of episodes to record without a Server; add --record DIR"
        )
    if options.render and options.video is not None:
        raise ConfigError("--render shows a window, and --video films without one: leave one of the two out")
    if options.watch is not None and not 0.2 <= options.watch <= 86_400:
        raise ConfigError(f"--watch: found {options.watch:g}, allowed: 0.2 to 86400 seconds")
