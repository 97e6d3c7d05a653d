"""`python -m tmrl_core --doctor`: diagnosis of the connection between this machine and the Server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

import msgspec

from tmrl_core.cli.main import all_overrides, common_options, config_file, module_folders, set_up_logging, shown
from tmrl_core.config import Config, load
from tmrl_core.config.endpoints import at_endpoint, endpoint_of
from tmrl_core.config.server_port import with_port_of_run
from tmrl_core.doctor import Step, examine
from tmrl_core.errors import ConfigError, TmrlError

EPILOG = """\
Run it on the machine of a worker, a trainer or an operator. It does not disturb a run in progress.
It imports only tmrl_core's own code; other names in the configuration are searched for, not imported.
Exit status: 0 if all checks pass, 1 if one fails.
"""
MOST_S = 600.0
_SIGNS = {"ok": "ok      ", "failed": "FAILED  ", "skipped": "skipped "}


def parser() -> argparse.ArgumentParser:
    """Return the parser of a command line with `--doctor`."""
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --doctor",
        description="Check step by step that a worker, trainer or operator on this machine can work with the Server.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common_options()],
        allow_abbrev=False,
    )
    made.add_argument("--doctor", action="store_true", help=argparse.SUPPRESS)
    made.add_argument(
        "--role",
        choices=["worker", "trainer", "operator"],
        help="role to check (default: the role of the credentials on this machine)",
    )
    made.add_argument(
        "--timeout", type=float, default=5.0, metavar="S", help="longest time for each step, in seconds (default: 5)"
    )
    made.add_argument("--json", action="store_true", help="print the steps as JSON")
    return made


def each_server(load: Callable[[], Config]) -> list[Callable[[], Config]]:
    """Return, for each Server of a configuration, a function that loads it for that Server."""
    try:
        servers = load().server.endpoints
    except TmrlError:  # which the first step reports
        servers = ()
    return [partial(_at, load, text) for text in servers] or [load]


def _at(load: Callable[[], Config], server: str) -> Config:
    return at_endpoint(load(), endpoint_of(server))


def run_doctor(arguments: Sequence[str]) -> int:
    """Run the checks, print each result immediately, and return the exit status.

    Raises:
        ConfigError: an option's value is impossible.
    """
    options = parser().parse_args(arguments)
    if not 0.1 <= options.timeout <= MOST_S:
        raise ConfigError(f"--timeout: found {options.timeout:g}, allowed: 0.1 to {MOST_S:g} seconds")
    set_up_logging("error" if options.log_level == "info" else options.log_level)
    path = config_file(options)
    steps: list[Step] = []

    def load_it() -> Config:
        return with_port_of_run(load(path, all_overrides(options)))

    def steps_of(load: Callable[[], Config]) -> Iterator[Step]:
        return examine(
            load,
            source=str(path) if path is not None else "built-in defaults",
            folders=module_folders(path),
            role=options.role,
            timeout_s=options.timeout,
        )

    for step in chain.from_iterable(map(steps_of, each_server(load_it))):
        steps.append(step)
        if not options.json:
            print(_SIGNS[step.state] + shown(f"{step.name}: {step.found}"), flush=True)
            if step.todo:
                print(f"        -> {shown(step.todo)}", flush=True)
    failed = [step.name for step in steps if step.state == "failed"]
    if options.json:
        print(json.dumps({"ok": not failed, "steps": msgspec.to_builtins(steps)}, indent=2))
    elif failed:
        print(f"Failed: {', '.join(failed)}.")
    elif any(step.todo for step in steps):
        print("This machine can connect; see the lines that begin with ->.")
    else:
        print("All checks passed.")
    return 1 if failed else 0
