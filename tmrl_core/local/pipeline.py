"""All roles on this machine: `--local`."""

# Theory of operation
#
# By default the roles are processes that communicate over TLS on loopback, exactly as they would between machines, so
# that what works here works there. With `--single-process` they are threads over the transport `local`, for debugging.
# This file decides what is started and what the user sees; `supervision.py` keeps it running.
#
# Order before the start. Everything that can be refused without a process is refused first: conflicting options,
# devices, ratios that would starve both sides, a run that is finished. The environment is then tried in a child while
# this process imports its display, which takes about as long. Only then is the run's folder written to.
#
# Example of ratios: a trainer that makes at most half an update per environment step, and workers that take at most one
# step per update, would wait for each other for ever; `check_without_environment` says so before anything runs.
#
# With `--ranks N`, N Servers and N processes of the trainer are started; names of workers are chosen so that each
# Server has as many as the others.
#
# The configuration of one machine differs from that of several: addresses become loopback, and lockstep's first round
# waits for all workers that are started here, so that its assignments do not depend on their order. These changes go to
# the children as `--set` options (`there`), so their logs and the run's `config.yaml` show them.
#
# The display reads the run's `metrics.jsonl`, which the trainer writes; there is no other channel between the two, so
# it shows what any other reader of the file would see.

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tmrl_core.config import Config, is_loopback, ratios_conflict, ratios_warning, use, with_changes
from tmrl_core.config.run_folder import check_run_folder
from tmrl_core.errors import ConfigError
from tmrl_core.local.outcome import FINISHED_BEFORE, Outcome, draw_curve, files, has_checkpoint, is_finished, what_next
from tmrl_core.local.probe_process import Probe
from tmrl_core.local.supervision import Group, Pipeline, Threads, watch
from tmrl_core.roles import from_config as roles
from tmrl_core.roles.devices import check_device
from tmrl_core.roles.environment_probe import is_probed
from tmrl_core.roles.role import Role
from tmrl_core.roles.shutdown import ShutdownSignal

logger = logging.getLogger(__name__)

SMALL = [
    "trainer.epochs=1",
    "trainer.rounds=2",
    "trainer.steps=200",
    "trainer.start_training=300",
    "trainer.evaluation.episodes=2",
    "trainer.evaluation.every_updates=200",
    "trainer.evaluation.target_return=null",
    "trainer.evaluation.time_limit_s=120",
]
"""Settings of `--small`."""


def run_local(
    config: Config,
    passed: Sequence[str],
    shutdown: ShutdownSignal,
    *,
    workers: int = 2,
    beside: Mapping[str, Role] | None = None,
    single_process: bool = False,
    quickstart: bool = False,
    new: bool = False,
    small: bool = False,
    ranks: int = 1,
) -> int:
    """Run all roles here until training ends or a stop is requested.

    Args:
        config: the configuration that `passed` gives.
        passed: command line that gives the child processes the same configuration.
        shutdown: requests the end of the run.
        workers: number of RolloutWorkers.
        beside: roles of rooms to run too, by name. They end with training.
        single_process: True: threads instead of processes.
        quickstart: True: use a free port, and print the next steps. `config` has the name of a new run.
        new: True: `config` has the name of a new run.
        small: True: a few hundred updates and no target.
        ranks: number of processes of the trainer, each with a Server of its own.

    Returns:
        Exit status: 0: learned, no target was set, or a stop was requested; 1: not learned.

    Raises:
        ConfigError: the ratios would starve both sides, or the transport does not connect processes.
        TmrlError: a role failed; the message includes its last log lines.
    """
    beside = beside or {}
    if ranks > 1 and single_process:
        raise ConfigError("--ranks are processes: leave --single-process out")
    if ranks > workers and not beside:
        raise ConfigError(f"--ranks: found {ranks}, and {workers} workers; each rank needs one: add --workers {ranks}")
    if beside and single_process:
        raise ConfigError(f"--{next(iter(beside))} is a process of its own: leave --single-process out")
    changes = changes_for_this_machine(config, workers, single_process=single_process, quickstart=quickstart)
    changes += SMALL if small else []
    for role in beside.values():
        changes += role.local_changes(config)
    config = with_changes(config, changes)
    there = [*passed, *(word for change in changes for word in ("--set", change))]
    watchers = tuple(name for name, role in beside.items() if role.watches)
    check_without_environment(config, workers, waits=len(watchers) == len(beside))
    if is_finished(config):
        print(f"\n{files(config.run_folder)}\n\nNothing was trained: {FINISHED_BEFORE}", flush=True)
        return 0 if config.trainer.evaluation.target_return is None else 1
    with contextlib.ExitStack() as tried:
        probe = tried.enter_context(Probe(config, there)) if is_probed(config) else None
        use(config)
        view = View(config)  # its imports take about as long as the trial
        if probe is not None and not probe.wait(shutdown):
            return 0
    check_run_folder(config)  # before any role starts, because all roles write into that folder
    if single_process:
        group: Group = Threads(config, workers)
    else:
        if roles.ensure_credentials(config):
            logger.info("made credentials for this machine")
        collectors = tuple(name for name in beside if name not in watchers)
        group = Pipeline(config, there, workers, beside=collectors, watchers=watchers, ranks=ranks)
    shutdown.kill_on_second(group.kill)
    shutdown.calls_for_checkpoint(group.checkpoint)
    with view:
        try:
            group.start(view)
            for role in beside.values():
                if role.local_text is not None:
                    view.say(role.local_text(config))
            watch(group, view, shutdown)
        finally:
            group.end(view)
    if group.failed is not None:
        raise group.failed
    return tell(config, view, shutdown, quickstart=quickstart, new=new or quickstart)


def check_without_environment(config: Config, workers: int, *, waits: bool) -> None:
    """Check what needs no environment.

    Args:
        config: the configuration.
        workers: number of RolloutWorkers.
        waits: False: samples come from clients that never wait for the trainer.

    Raises:
        ConfigError: a device is missing, or the ratios would starve both sides.
    """
    check_device(config.worker.device, "worker.device")
    check_device(config.trainer.device, "trainer.device")
    if waits:
        conflict = ratios_conflict(config, workers, roles.longest_episode(config))
        if conflict is not None:
            raise ConfigError(conflict)
        warning = ratios_warning(config, workers, roles.longest_episode(config))
        if warning is not None:
            logger.warning("%s", warning)


def tell(config: Config, view: View, shutdown: ShutdownSignal, *, quickstart: bool, new: bool) -> int:
    """Report the outcome. Return the exit status."""
    outcome = view.outcome
    missing = draw_curve(config)
    say = view.say
    say("")
    say(files(config.run_folder))
    if missing:
        say(missing)
    if quickstart:
        say("")
        say(what_next(config))
    say("")
    if shutdown.requested and not outcome.reached:
        say(ended(config, new))
        return 0
    say(outcome.sentence())
    if advice := outcome.advice(config.worker):
        say(advice)
    return 0 if outcome.learned else 1


def ended(config: Config, new: bool) -> str:
    """Return the effect of repeating the command after a run that was stopped."""
    if has_checkpoint(config.checkpoint_path):
        how = f"without --new or --quickstart, and with --set run.name={config.run.name}, " if new else ""
        return f"Ended on request; {how}the same command resumes from the checkpoint."
    return "Ended on request; there is no checkpoint, so the same command starts again."


# --- the configuration of one machine ---------------------------------------------------------------------------------


def changes_for_this_machine(config: Config, workers: int, *, single_process: bool, quickstart: bool) -> list[str]:
    """Return the configuration changes for running all roles on this machine, in the form of `--set`.

    Raises:
        ConfigError: the transport does not connect processes, or there are fewer workers than the first round waits
            for.
    """
    changes = []
    least = config.trainer.lockstep.min_workers
    if config.worker.collection == "lockstep" and workers > least:
        # All workers are started here, so the first round can wait for all of them and does not depend on their order.
        changes.append(f"trainer.lockstep.min_workers={workers}")
    elif config.worker.collection == "lockstep" and 0 < workers < least:
        raise ConfigError(
            f"trainer.lockstep.min_workers: the first round waits for {least} workers, and {workers} would be started "
            "here; lower it, or add --workers"
        )
    if single_process:
        changes.append("network.transport=local")
    elif config.network.transport == "local":
        raise ConfigError(
            "network.transport: local connects threads of one process; use tls, or add --single-process to --local"
        )
    if config.server.endpoints:
        changes.append("server.endpoints=[]")  # the Servers of this run are here
    if not is_loopback(config.server.host):
        changes += ["server.host=127.0.0.1", "network.hostname=null"]
    if config.server.bind is not None and not is_loopback(config.server.bind):
        changes.append("server.bind=127.0.0.1")
    if quickstart:
        changes.append("server.port=0")
    return changes


ADVICE_S = 30.0
"""Time of training after which a ratio of steps to updates is believed."""


# --- display ----------------------------------------------------------------------------------------------------------


class View:
    """Live display of the run's records, which also feed the summary."""

    def __init__(self, config: Config) -> None:
        from tmrl_core.metrics import LiveProgress, ProgressDisplay, follow

        evaluation = config.trainer.evaluation
        # With a target or a time limit, at least the final policy is evaluated.
        limits = (evaluation.target_return, evaluation.time_limit_s)
        wanted = evaluation.every_updates > 0 or any(limit is not None for limit in limits)
        self.outcome = Outcome(evaluation.target_return, evaluates=wanted)
        self._worker = config.worker
        self._advised = False
        self.display = ProgressDisplay(
            config.run.name, return_target=evaluation.target_return, time_limit_s=evaluation.time_limit_s
        )
        self._live = LiveProgress(self.display)
        self._reader = follow(config.metrics_path)
        with contextlib.suppress(OSError):  # the trainer writes the file and reports its problems
            self._reader.skip()  # records of an earlier process are not displayed as news

    def __enter__(self) -> View:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.refresh()
        with contextlib.suppress(OSError):
            self._live.__exit__(*error)

    @property
    def starving(self) -> bool:
        """True: the trainer waits for samples."""
        return bool(self.outcome.lack)

    def refresh(self) -> None:
        """Read new records and show them."""
        with contextlib.suppress(OSError):
            records = self._reader.read()
            self.outcome.take(records)
            self.display.update(records)
            # During the run and not at its end alone: who would wait for an hour for an agent that cannot learn?
            if (
                not self._advised
                and self.outcome.trained_s >= ADVICE_S
                and (advice := self.outcome.advice(self._worker))
            ):
                self._advised = True
                self.say(advice)
        with contextlib.suppress(OSError):  # the terminal is closed; the roles still end in order
            self._live.refresh()

    def say(self, text: str) -> None:
        """Print a line, above the live display if there is one."""
        with contextlib.suppress(OSError):
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def hinder(self, text: str) -> None:
        """Show what hinders the roles, in the display."""
        self.display.trouble = text
