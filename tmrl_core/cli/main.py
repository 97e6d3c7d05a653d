"""The command line: `python -m tmrl_core`, also installed as `tmrl-core`.

Exit statuses: 0 in order (also after a requested stop), 1 an error of tmrl_core, 2 an invalid command line or
configuration, 3 a worker that ended in order but dropped samples, 130 ended immediately by a second request.
"""

# Theory of operation
#
# This is the edge of the package: only here is logging set up, are secrets and hosts read from the environment, signal
# handlers installed, text printed and exit statuses set. Everything below gets objects. Unexpected exceptions keep
# their traceback, because they are ours; errors of the hierarchy are one message.
#
# Three kinds of words: an option such as `--seed`; a role, which excludes other roles; and a command such as
# `--credentials`, which has options of its own and a parser of its own, so it is found before anything is parsed. Rooms
# and installed packages add roles and commands by their declarations (`roles/role.py`, `roles/command.py`), which
# `--help` reads; the modules that do the work are imported when they run. Imports within functions serve the same:
# `--help` must not pay for NumPy, nor a Server for torch.
#
# Order in `run`: options are checked before logging starts, since such an error needs no log; paths from the
# environment become absolute and the configuration is loaded before any other people's code, which may change the
# working folder; signal handlers last, for the time of the role only. A run name that was claimed for a new run is
# given back if the role has written nothing.
#
# Options without a meaning for a role are refused and not ignored: `--render` with a trainer would otherwise be a
# silent nothing.

from __future__ import annotations

import argparse
import contextlib
import difflib
import faulthandler
import gc
import importlib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tmrl_core import __version__, rooms
from tmrl_core.cli.options import add_options, check_options
from tmrl_core.config import Config, find_config_file, load, use
from tmrl_core.config.loading import expanded
from tmrl_core.config.room_sections import config_type, kind_of_run, room_sections
from tmrl_core.config.sections import NAMES_OF, RoomSection, Section
from tmrl_core.errors import ConfigError, RankLostError, TmrlError
from tmrl_core.roles.call_watch import CallWatch
from tmrl_core.roles.command import Command
from tmrl_core.roles.kinds_of_run import parts_of
from tmrl_core.roles.role import Role, one_thread
from tmrl_core.roles.shutdown import DROPPED_SAMPLES, ShutdownSignal
from tmrl_core.terminal_log import TerminalHandler

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""Switch interval of the interpreter's threads: the I/O thread must answer while Python code computes."""

COMMANDS = {
    "credentials": Command(
        "manage certificates and tokens: create, bundle, install, show, ...; see `--credentials --help`",
        "tmrl_core.cli.credentials:run_credentials",
        "COMMAND",
    ),
    "doctor": Command(
        "check the path from this machine to the Server; see `--doctor --help`", "tmrl_core.cli.doctor:run_doctor"
    ),
    "sessions": Command(
        "show recorded sessions, and exchange them with other tools; see `--sessions --help`",
        "tmrl_core.cli.sessions:run_sessions",
        "COMMAND",
    ),
    "metrics": Command(
        "send the records of a run to wandb or TensorBoard; see `--metrics --help`",
        "tmrl_core.cli.metrics:run_metrics",
        "COMMAND",
    ),
}
"""Options with options of their own, besides those of rooms."""

EPILOG = """\
examples:
  python -m tmrl_core --local -c config/pendulum_sac.yaml       all roles on this machine, over TLS
  python -m tmrl_core --server -c my.yaml                       one role, where the others can reach it
  python -m tmrl_core --worker -c my.yaml --set worker.name=robot7
  python -m tmrl_core --trainer -c my.yaml --wandb
  python -m tmrl_core --status -c my.yaml --watch 2             what the Server sees; --json for programs
  python -m tmrl_core --credentials create --host server.example.org
  python -m tmrl_core --credentials bundle worker --name robot7
  python -m tmrl_core --doctor -c my.yaml                       check the path from this machine to the Server
docs/configuration.md lists every key of the configuration.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one role and return the exit status.

    Args:
        arguments: the command line without the program's name; None: this process's.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        for word in given:
            if (command := command_of(word)) is not None:
                return command.run(given)
        return run(parsed(given), own_process=arguments is None)
    except (TmrlError, FileNotFoundError) as exc:
        # Torch needs a folder for temporary files when it is imported, and may be imported by any role or environment.
        missing = isinstance(exc, FileNotFoundError) or isinstance(exc.__cause__, FileNotFoundError)
        if missing and (problem := _temporary_folder_problem()):
            print(shown(f"ConfigError: {problem}"), file=sys.stderr)
            logger.debug("", exc_info=exc)
            return 2
        if not isinstance(exc, TmrlError):
            raise
        print(shown(f"{type(exc).__name__}: {exc}"), file=sys.stderr)
        return 2 if isinstance(exc, ConfigError) else 1
    except PermissionError as exc:  # a folder of another user, or a device of an environment
        from tmrl_core.config.references import place_of

        logger.debug("", exc_info=exc)
        place = place_of(exc, is_own=True)
        print(shown(f"{place}PermissionError: {exc}. This user may not use it, or a folder above it"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has closed it (`... | head`), which needs no traceback, not even while flushing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        use(None)


def _temporary_folder_problem() -> str:
    """Return a message if no folder takes temporary files, as on a read-only root file system; else an empty one."""
    import tempfile

    try:
        tempfile.gettempdir()
    except FileNotFoundError as exc:
        return f"{exc.strerror}. Set TMPDIR to a folder that can be written."
    return ""


def parsed(given: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; unknown options are reported before missing ones."""
    made = parser()
    options, unknown = made.parse_known_args(given)
    # Roles of installed packages are looked for only if an option is unknown: reading the packages' metadata takes
    # longer than all else here.
    if further := roles_of_packages(unknown):
        made = parser(options.added | further)
        options, unknown = made.parse_known_args(given)
    if unknown:
        wrong = unknown[0]
        known = sorted(set(re.findall(r"--[a-z][a-z-]+", made.format_usage())))
        matches = difflib.get_close_matches(wrong if wrong.startswith("-") else f"--{wrong}", known, n=2, cutoff=0.7)
        if Path(wrong).suffix in (".yaml", ".yml", ".json"):
            matches = [f"-c {wrong}"]
        hint = f"did you mean {' or '.join(matches)}?" if matches else "see --help"
        made.error(f"{wrong}: no such option; {hint}")
    # Such an option is a role by itself, and with `--local` it adds one: a flag for argparse, the role only here.
    if options.role is None and (beside := roles_beside(options)):
        options.role = beside[0]
        setattr(options, options.role, False)
    if options.role is None:
        made.error("name a role to run: --local, --server, --worker, --trainer, or another role of --help")
    return options


def command_of(word: str) -> Command | None:
    """Return the command that a word of the command line names, as `--NAME` or `--NAME=ARGUMENT`."""
    name = word.removeprefix("--").partition("=")[0]
    if not word.startswith("--"):
        return None
    if (entry := rooms.entries("commands").get(name)) is None:
        return COMMANDS.get(name)
    found: Command = entry.load()
    return found


def of_rooms(kind: rooms.Kind) -> dict[str, Any]:
    """Return the objects that rooms add, by name. Broken rooms are left out, with a warning."""
    found = {}
    for name, entry in rooms.entries(kind).items():
        try:
            found[name] = entry.load()
        except TmrlError as exc:
            logger.warning("%s", exc)
    return found


def roles_of_packages(words: Sequence[str]) -> dict[str, Role]:
    """Return the roles of installed packages that options name."""
    names = [word[2:] for word in words if re.fullmatch(r"--[a-z][a-z-]*", word)]
    return {name: entry.load() for name in names if (entry := rooms.find("roles", name)) is not None}


def roles_beside(options: argparse.Namespace) -> list[str]:
    """Return the names of the roles that `--local` is to run too."""
    return [name for name, role in options.added.items() if role.local_text is not None and vars(options)[name]]


def common_options() -> argparse.ArgumentParser:
    """Return the options of every command, with the defaults of those that set a key of the configuration."""
    common = argparse.ArgumentParser(add_help=False)
    common.set_defaults(seed=None, wandb=False, record=None)
    common.add_argument("-c", "--config", metavar="FILE", help="configuration, JSON or YAML by its extension")
    common.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="set one key of the configuration, the value as YAML; may be repeated",
    )
    common.add_argument(
        "--log-level",
        default="info",
        type=str.lower,
        choices=["debug", "info", "warning", "error"],
        help="lowest level of the messages on standard error (default: %(default)s)",
    )
    return common


def parser(added: Mapping[str, Role] | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line, except for the arguments after `--credentials`.

    Args:
        added: roles of rooms and of other packages; None: those of all rooms.
    """
    added = of_rooms("roles") if added is None else added
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core",
        description="Distributed reinforcement learning over TLS: rollout workers, one server, one trainer.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common_options()],
        allow_abbrev=False,
    )
    role = made.add_mutually_exclusive_group()
    for name, one in added.items():
        if one.local_text is not None:  # not exclusive: with --local, it adds a role
            made.add_argument(f"--{name}", action="store_true", help=one.help)
        else:
            role.add_argument(f"--{name}", dest="role", action="store_const", const=name, help=one.help)
    texts = {name: one.help for name, one in ROLES.items()}
    texts |= {"config-schema": "print the configuration's JSON Schema", "version": "print the version"}
    for name, text in texts.items():
        role.add_argument(f"--{name}", dest="role", action="store_const", const=name, help=text)
    commands: dict[str, Command] = COMMANDS | of_rooms("commands")
    for name, command in commands.items():
        # Never parsed here, because `main` runs commands itself. They are for `--help` and for hints after an error.
        if command.metavar is None:
            role.add_argument(f"--{name}", action="store_true", help=command.help)
        else:
            role.add_argument(f"--{name}", metavar=command.metavar, help=command.help)
    add_options(made, {**ROLES, **added})
    for one in added.values():
        one.options(made)
    made.set_defaults(added=added)
    return made


def run(options: argparse.Namespace, *, own_process: bool = False) -> int:
    """Run the parsed command line. `own_process`: True if the process ends afterwards."""
    if options.role == "version":
        print(f"tmrl_core {__version__}")
        return 0
    if options.role == "config-schema":
        print(json.dumps(config_schema(), indent=2))
        return 0
    roles: dict[str, Role] = ROLES | options.added
    role = roles[options.role]
    check_options(options, roles)
    set_up_logging(options.log_level)
    if own_process and sys.stderr is not None:
        # If a library or an environment crashes the interpreter, the log shows each thread's place.
        faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for name in ("TMRL_CORE_HOME", "TMRL_CORE_TOKEN_FILE"):
        # Links read them when the environment may have changed the working folder.
        if written := os.environ.get(name):
            os.environ[name] = str(expanded(written).absolute())
    config = load_config(options)
    is_new = options.new or options.quickstart
    if is_new:
        from tmrl_core.config.run_folder import claim_run_name, forget_unused

        options.overrides = [*options.overrides, f"run.name={claim_run_name(config)}"]
        config = load_config(options)
        logger.info("this run is called %s (other machines need --set run.name=%s)", config.run.name, config.run.name)
    if source := config_file(options):
        # Logged before its references are imported: without `-c` the file may be another user's.
        logger.info("configuration: %s", source.absolute())
    if config.network.transport == "local" and (options.role == "server" or role.client) and options.role != "status":
        raise ConfigError(
            f"network.transport: local connects threads of one process, and --{options.role} is a process of its own; "
            "take --local --single-process, or network.transport: tls"
        )
    if role.client:
        from tmrl_core.config.server_port import with_port_of_run

        config = with_port_of_run(config)
    for section in room_sections(config):
        section.refuse_options(vars(options))
    use(config)
    try:
        with (
            ShutdownSignal(control=options.role if options.control else "", last=own_process) as shutdown,
            call_watch(config, options) as watch,
        ):
            shutdown.calls(watch.ending)
            status: int = role.run(config, options, shutdown)
            return status
    finally:
        if is_new:
            forget_unused(config)


def call_watch(config: Config, options: argparse.Namespace) -> CallWatch:
    """Return the watch of the environment's calls."""
    return CallWatch(
        config.worker.drain_timeout_s,
        limit_s=config.environment.probe_timeout_s if options.role == "probe" else math.inf,
        main_only=options.role == "local",  # the roles are threads, which it leaves behind
        file=Path(options.remarks) if options.remarks else None,
    )


def config_schema() -> dict[str, object]:
    """Return the JSON Schema of the configuration."""
    import msgspec

    from tmrl_core.config.descriptions import texts_of

    schema = msgspec.json.schema(config_type())
    kinds = [Section]
    for kind in kinds:  # which grows meanwhile
        kinds += kind.__subclasses__()
    texts = {kind.__name__: texts_of(kind) for kind in kinds}
    for name, section in schema["$defs"].items():
        for key, about in section["properties"].items():
            if names := about.pop(NAMES_OF, None):
                about["examples"] = sorted(rooms.entries(names))
            if text := texts[name].get(key):
                section["properties"][key] = {"description": text, **about}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tmrl_core configuration", **schema}


def set_up_logging(level: str) -> None:
    """Send log messages to standard error. Only the command line sets up handlers."""
    handler = TerminalHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tmrl_core").setLevel(level.upper())


class _Formatter(logging.Formatter):
    """Formatter of printable one-line messages, which may quote names and reasons that peers choose.

    A line with the date comes before the first message of a day, since roles run for weeks, and after a change to
    summer time; in a terminal not before the first message of all.
    """

    _day = ""

    def format(self, record: logging.LogRecord) -> str:
        day = self.formatTime(record, "%Y-%m-%d, UTC%z")
        before, self._day = self._day, day
        is_new = day != before and (before or not sys.stderr.isatty())
        return f"{day}\n{super().format(record)}" if is_new else super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shown(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return shown(super().formatException(ei))


def shown(text: str) -> str:
    """Return printable text without control characters.

    Further lines are indented, so that they do not look like messages.
    """
    lines = ("".join(one if one.isprintable() or one == "\t" else "?" for one in line) for line in text.split("\n"))
    return "\n    ".join(lines)


def load_config(options: argparse.Namespace) -> Config:
    """Load the configuration, and add its folder to `sys.path` for the references in it.

    Raises:
        ConfigError: the configuration is missing or invalid.
    """
    path = config_file(options)
    for folder in module_folders(path):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return load(path, all_overrides(options), built_in=True)


def config_file(options: argparse.Namespace) -> Path | None:
    """Return the configuration file of these options; None: the built-in defaults."""
    return expanded(options.config) if options.config else find_config_file()


def module_folders(path: Path | None) -> list[Path]:
    """Return the folder to search, besides `sys.path`, for modules that a configuration file names."""
    # The console script does not add the current folder to `sys.path` as `python -m` does.
    return [Path.cwd(), *([path.resolve().parent] if path is not None else [])]


def all_overrides(options: argparse.Namespace) -> list[str]:
    """Return the overrides of `--set` and of the options that set a key."""
    return [
        *options.overrides,
        *(["metrics.wandb=true"] if options.wandb else []),
        *([f"run.seed={options.seed}"] if options.seed is not None else []),
        *([f"worker.record={json.dumps(options.record)}"] if options.record is not None else []),
    ]


# --- roles ------------------------------------------------------------------------------------------------------------


def server(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--server`: serve until a stop is requested."""
    from tmrl_core.cli.screens import ServerLines
    from tmrl_core.roles import from_config as roles

    roles.ensure_credentials(config)
    # With --announce, the default port is not a promise: the supervisor passes the printed one on.
    with roles.make_server(config, any_port=options.announce) as made:
        if options.announce:
            print(json.dumps({"port": made.port}), flush=True)
        lines = ServerLines(made)
        while not shutdown.wait(0.5):
            lines.refresh()
            if made.wait(0):
                break
    return 0


def worker(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--worker`, `--expert`: collect until the trainer finishes, a limit is reached, or a stop is requested."""
    from tmrl_core.roles import from_config as roles

    one_thread()
    if options.workers is not None and options.workers > 1:
        from tmrl_core.local.fleet import run_fleet

        return run_fleet(config, ["--worker", *passed_on(options)], shutdown, options.workers)
    if options.role == "expert" and options.episodes is not None:
        return record_expert(config, options.episodes, shutdown)
    from tmrl_core.cli.screens import Screen, WorkerDisplay
    from tmrl_core.roles.rollout_worker import RolloutWorker

    roles.ensure_credentials(config)

    def told() -> None:
        """Tell a supervisor by an empty file of remarks that the environment is in use, so other roles can start."""
        if options.remarks:
            with contextlib.suppress(OSError):
                Path(options.remarks).touch()

    made, collect = roles.worker_of_run(config, expert=options.role == "expert", in_use=told)
    try:
        shutdown.calls(made.stop)
        server = made.server if isinstance(made, RolloutWorker) else config.server
        where = f"{server.host} port {server.tcp_port}"
        with Screen(WorkerDisplay(made, where, config.run.name)):
            collect()
    finally:
        # Closing drains. A second request to end interrupts it.
        made.close()
    link = made.uplink.link
    return DROPPED_SAMPLES if link is not None and link.counts.samples_dropped else 0


def record_expert(config: Config, episodes: int, shutdown: ShutdownSignal) -> int:
    """`--expert --record DIR --episodes N`: record without a Server; prints each return and their mean."""
    from tmrl_core.roles import from_config as roles

    with roles.make_worker(config, standalone=True) as made:
        shutdown.calls(made.stop)

        def record(index: int) -> tuple[float, int]:
            made.collect_train_episode()
            made.send_and_clear_buffer()
            return made.buffer.stat_train_return, made.buffer.stat_train_steps

        play(episodes, record, shutdown)
    return 0


def play(episodes: int, one: Callable[[int], tuple[float, int] | None], shutdown: ShutdownSignal) -> None:
    """Play episodes, and print the return of each and their mean.

    Args:
        episodes: their number.
        one: plays an episode, and returns its return and its steps; None: it was ended, and no other follows.
        shutdown: ends them.
    """
    from tmrl_core.metrics.text import return_text

    returns: list[float] = []
    for index in range(episodes):
        if shutdown.requested or (played := one(index)) is None:
            break
        returns.append(played[0])
        print(f"episode {index + 1}: return {return_text(played[0])}, {played[1]} steps", flush=True)
    if returns:
        print(f"mean return of {len(returns)} episodes: {return_text(sum(returns) / len(returns))}", flush=True)


def trainer(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--trainer`: train until training ends or a stop is requested; a checkpoint is written in both cases."""
    from tmrl_core.cli.screens import Screen, TrainerDisplay
    from tmrl_core.local import outcome
    from tmrl_core.roles import from_config as roles

    if config.trainer.offline is None:
        roles.ensure_credentials(config)
    if outcome.is_finished(config):
        # The trainer goes on nevertheless: it notifies workers that wait for this run.
        logger.info("%s", outcome.FINISHED_BEFORE)
    load_torch()
    made = roles.make_trainer(config)
    drawn = True
    try:
        shutdown.calls(made.stop)
        shutdown.calls_for_checkpoint(made.checkpoint)
        display = TrainerDisplay(config, lambda: made.interface.link.connected if made.interface else None)
        with Screen(display) if made.leads else contextlib.nullcontext():
            roles.run_trainer(made, config)
    except RankLostError:
        drawn = False  # the launcher waits for this rank's end and starts all again
        raise
    finally:
        made.close()
        if made.leads and drawn and made.training is not None:
            draw_curve(config)
    return 0


def draw_curve(config: Config) -> None:
    """Draw the run's learning curve beside its metrics. A picture that cannot be drawn changes no exit status."""
    from tmrl_core.local import outcome

    if missing := outcome.draw_curve(config):
        logger.warning("%s", missing)
    elif (path := config.run_folder / "learning_curve.png").exists():
        logger.info("%s shows the run; `python -m tmrl_core --plot` draws it again", path)


def load_torch() -> None:
    """Import the parts of torch that training uses, if it is installed, and exclude them from garbage collection.

    Otherwise Python searches these modules for garbage during the import, which takes a quarter of its time, and at the
    end of the process, which takes most of its time.
    """
    gc.disable()
    try:
        # Optimizers load this with their first step.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("torch._dynamo")
    finally:
        gc.freeze()
        gc.enable()


def local(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--local`: run all roles on this machine."""
    from tmrl_core.local.pipeline import run_local

    if options.seeds is not None:
        return with_seeds(config, options, shutdown)
    if options.at_once is not None:
        raise ConfigError("--at-once is the number of runs of --seeds at a time; add --seeds, such as --seeds 0-4")
    beside = {name: options.added[name] for name in roles_beside(options)}
    ranks = options.ranks or 1
    return run_local(
        config,
        passed_on(options),
        shutdown,
        workers=options.workers or (2 * ranks if all(role.watches for role in beside.values()) else 0),
        beside=beside,
        single_process=options.single_process,
        quickstart=options.quickstart,
        new=options.new,
        small=options.small,
        ranks=ranks,
    )


def with_seeds(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--local --seeds`: one run for each seed, then their picture and statistics, if the package that draws is here.

    Raises:
        ConfigError: the seeds are no list of seeds, or an option does not go with it.
    """
    from tmrl_core.local.seeds import run_seeds, seeds_of

    for name in ("seed", "new", "quickstart", "single_process", "ranks", *roles_beside(options)):
        if vars(options)[name] not in (None, False):
            raise ConfigError(f"--{name.replace('_', '-')} does not go with --seeds, which starts a --local of its own")
    passed = [*passed_on(options), *(["--small"] if options.small else [])]
    if options.workers is not None:
        passed += ["--workers", str(options.workers)]
    status, folders = run_seeds(config, passed, shutdown, seeds_of(options.seeds), options.at_once or 1)
    plot = of_rooms("commands").get("plot")
    # Runs that were stopped are not compared; the same command goes on with them.
    if folders and plot is not None and not shutdown.requested:
        out = config.run_folder.parent / config.run.name
        plot.run(["--plot", *map(str, folders), "--out", str(out), "--stats"])
    return status


def passed_on(options: argparse.Namespace) -> list[str]:
    """Return the command line that gives child processes the same configuration."""
    passed = ["--log-level", options.log_level]
    path = options.config or find_config_file()
    passed += ["-c", str(path)] if path is not None else []
    for override in all_overrides(options):
        passed += ["--set", override]
    return passed


def test(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--test`: run the saved policy without exploration, and print each return and their mean."""
    from tmrl_core.envs.filmed import SUFFIXES, Filmed, check_encoder
    from tmrl_core.roles import from_config as roles

    one_thread()
    episodes = options.episodes or 10
    if (kind := kind_of_run(config)) is not None:
        return test_kind(kind, config, roles.saved_policy(config, config_file(options)), episodes, shutdown)
    video = config.absolute(expanded(options.video)) if options.video else None
    if video is not None:
        if video.suffix not in ("", *SUFFIXES):
            raise ConfigError(f"--video: found {options.video}, allowed: a file {' or '.join(SUFFIXES)}, or a folder")
        check_encoder("--video")
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if options.render and sys.platform == "linux" and not any(map(os.environ.get, displays)):
        # SDL then draws into memory, and says nothing.
        logger.warning("--render: this machine has no display, so no window may be seen; --video FOLDER films instead")
    made = roles.make_worker(
        config,
        standalone=True,
        model_path=roles.saved_policy(config, config_file(options)),
        render_mode="rgb_array" if video is not None else "human" if options.render else None,
    )

    def one(index: int) -> tuple[float, int]:
        if video is not None and isinstance(made.env, Filmed):
            if not video.suffix:
                made.env.start(video / f"episode-{index + 1}.mp4")
            elif index == 0:
                made.env.start(video)  # all episodes in sequence
        made.run_episode(train=False)
        played = made.buffer.stat_test_return, made.buffer.stat_test_steps
        made.buffer.clear()
        return played

    with made:
        shutdown.calls(made.stop)
        play(episodes, one, shutdown)
    if video is not None:
        print(f"video: {options.video}" if video.exists() else f"there is no video {options.video}", flush=True)
        return 0 if video.exists() else 1
    return 0


def test_kind(kind: RoomSection, config: Config, policy: Path, episodes: int, shutdown: ShutdownSignal) -> int:
    """`--test` of a run of another kind: print the score of each episode and their mean."""
    with parts_of(kind).make_worker(config, standalone=True, model_path=policy) as made:
        shutdown.calls(made.stop)

        def one(index: int) -> tuple[float, int] | None:
            played = made.recorder.buffer
            return (played.stat_test_return, played.stat_test_steps) if made.run_episode() else None

        play(episodes, one, shutdown)
    return 0


def benchmark(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--benchmark`: measure the speed of the environment and the policy on this machine."""
    from tmrl_core.actor.rollout.lateness import lateness_text
    from tmrl_core.actor.rollout.real_time import benchmark_lines
    from tmrl_core.roles import from_config as roles

    one_thread()
    made = roles.make_worker(config, standalone=True)
    real_time, time_step = made.loop.environment.real_time, made.loop.environment.time_step
    if real_time is not None:
        real_time.benchmark = True
    try:
        shutdown.calls(made.stop)
        steps = 10_000 if time_step is None else max(1, round(10 / time_step[0]))
        result = made.run_env_benchmark(options.steps or steps, verbose=False)
    finally:
        made.close()
    if made.lateness is not None:
        print(lateness_text(made.lateness))
    if real_time is not None:
        print("\n".join(benchmark_lines(result)))
    elif isinstance(result, dict):
        for name, value in result.items():
            print(f"{name}: {value:,.0f}" if isinstance(value, float) else f"{name}: {value}")
    else:
        print(result)
    return 0


def status(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--status`: show the Server's status."""
    from tmrl_core.cli import status as cli_status

    return cli_status.status(config, options, shutdown)


def probe(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--probe`: make the environment, reset it once and close it."""
    from tmrl_core.roles import environment_probe as trial

    one_thread()
    shutdown.calls(lambda: os._exit(1))  # its supervisor has no use for it any more, whatever the environment does
    trial.probe_environment(config)
    print(f"\n{trial.PROBED}", file=sys.stderr, flush=True)
    os._exit(0)  # threads of the environment, or its exit functions, may never end


ROLES: dict[str, Role] = {
    "server": Role("the Server: relays between workers and trainer; the only role that listens", server, ("announce",)),
    "worker": Role(
        "a RolloutWorker: collects samples in the environment", worker, ("workers", "record", "seed"), client=True
    ),
    "trainer": Role("the Trainer: learns and publishes the policy", trainer, ("wandb", "new", "seed"), client=True),
    "local": Role(
        "all roles on this machine",
        local,
        ("workers", "single_process", "ranks", "seeds", "at_once", "quickstart", "small", "wandb", "new", "seed"),
    ),
    "expert": Role(
        "a RolloutWorker whose policy never changes: collects demonstrations",
        worker,
        ("episodes", "record", "seed"),
        client=True,
    ),
    "test": Role("run the saved policy, without a server", test, ("episodes", "render", "video", "seed")),
    "probe": Role("make the environment, reset it once and close it, as --local does before it starts roles", probe),
    "benchmark": Role("measure the environment's and the policy's step rate", benchmark, ("steps", "seed")),
    "status": Role(
        "print the Server's status: peers, streams, versions, budgets, rates, drops",
        status,
        ("json", "watch"),
        client=True,
    ),
}
"""Roles, besides those of rooms."""
