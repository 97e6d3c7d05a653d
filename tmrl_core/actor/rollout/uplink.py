"""Uplink: send samples; receive policies, directives and the end of the run.

It depends on neither sockets nor episodes: the link is any `RolloutLink`, or None for a worker without a Server.
Samples come from a recorder, policies go to a `PolicyTarget`. A worker has one of each, and so has a role with
hundreds of client sessions. One thread makes all calls, except `stop`, which any thread and any signal handler may
call.
"""

# Theory of operation
#
# Everything that passes between a worker and its link passes here: samples out; policies, directives and the end of the
# run in. The uplink knows no socket (a link may be a list in a test), no environment and no episode.
#
# State, all of the collecting thread but one:
#
# - `_stopping` is set once, by any thread or by a signal handler, and never cleared. So it needs no lock, and a stop
#   that comes before a `run` method ends that one too. `wake` ends a wait that has begun; it takes no lock either,
#   because a signal handler may interrupt the thread that holds one.
# - `latest_version` is of the latest policy that has *arrived*, `recorder.version` of the one that *acts*. They differ
#   while a policy is refused. A turn is compared with the first, so that a refused policy does not block the run.
# - `_versions_counted`, `_versions_taken` and `_versions_kept` are places on the link's counter of published versions,
#   which includes versions that were replaced before anybody took them. The worker may so count models it never saw:
#   with a limit of 10 steps a model, a worker that was away for 5 versions may make 50 steps. Counters are read
#   *before* the policy is taken: a version that arrives in between is counted next time, never lost, never counted
#   twice.
#
# Samples are sent one chunk at a time, each with a wait of `FULL_S` at most. A full queue of a link that blocks is no
# error: the uplink tries again until there is space or the run ends. What was not sent goes back to the recorder, in
# order, so `close` can still hand it over. Records go with the last chunk: their episodes end in it, and a trainer that
# has the record has the rows.
#
# A policy that does not fit (another architecture, numbers that are not finite, bytes that cannot be read) is refused,
# and the old one acts on. The reason is logged once, not once a second. While no policy of the trainer has ever fitted
# and the trainer refuses the samples, the worker rests (`unfit`): samples of its own first policy would use bandwidth
# only.
#
# An evaluation is due once for each id, and only when its policy acts. If it fails in the middle (an action that is not
# finite), it is due again with the next policy, and not with the same one, which would fail again.
#
# At the end: `close` first takes what is recorded, then gives the link what is left of `drain_timeout_s`. The report
# adds what never reached the link, so that acknowledged + handed over + lost is all that was collected.
#
# Rejected: the uplink as a thread that pulls from the recorder (the Buffer would need a lock in each step); a policy
# loaded by the I/O thread (weights would change in the middle of an action).

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from tmrl_core.actor.rollout.link import RolloutLink
from tmrl_core.actor.rollout.pictures import WorkerPictures
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.recorder import StepRecorder, steps_in
from tmrl_core.actor.rollout.recording import Recording
from tmrl_core.errors import LinkClosedError, RemoteProtocolError, TmrlError, WeightsError
from tmrl_core.networking.protocol.delivery import CloseReport
from tmrl_core.networking.protocol.messages import Blob, Evaluation, PolicyUpdate, Version

logger = logging.getLogger(__name__)

WAIT_S = 0.1 if os.name == "nt" else 1.0
"""Maximum wait of an idle worker, for what depends on time: what arrives ends it, and so does `stop`. On Windows, no
signal handler runs during a wait."""


class PolicyTarget(Protocol):
    """Target of new weights. `PolicyRunner` implements it."""

    def load_policies(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> None:
        """Load one version.

        Args:
            policies: weights by the policy's name.
            exploration: the version's exploration parameters; empty: unchanged.

        Raises:
            WeightsError: a part does not fit. Nothing is changed.
        """

    def file_content(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> bytes:
        """Return a version that was just loaded as the content of a file, for `load_file`."""

    def load_file(self, path: Path) -> None:
        """Load weights that `PolicyFiles` has stored. Raises the errors of the actor's `load`."""


class Uplink:
    """Send the samples of a recorder, and load received policies into a target.

    Args:
        link: link to the Server; None: no Server.
        recorder: source of the samples and records, which carry the version of the acting policy.
        target: target of the policies.
        files: store of the policy; None: it is not stored.
        drain_timeout_s: maximum wait of `close` for space in the link's queue, in seconds.
        needs_policy: True: a stored policy that does not fit is an error, because no other will arrive.

    Raises:
        WeightsError: a stored policy does not fit, and no other will arrive. Also the errors of the actor's `load`.

    Attributes:
        link: link to the Server; None: no Server.
        files: store of the policy.
        policies_refused: number of versions that could not be read, are not finite or do not fit.
        refusal: reason of the latest refusal of a policy, which is logged once; empty: the latest one fits.
        latest_version: version of the latest policy that has arrived, including refused ones.
        sent_at: `time.perf_counter` at the latest `send`.
        pictures: shows this worker to viewers; None: it has nothing to show.
        steps_sent: number of environment steps passed to the link; a reset is none.
    """

    def __init__(
        self,
        link: RolloutLink | None,
        recorder: StepRecorder,
        target: PolicyTarget,
        *,
        files: PolicyFiles | None = None,
        drain_timeout_s: float = 10.0,
        needs_policy: bool = False,
        recording: Recording | None = None,
    ) -> None:
        self.link = link
        self.policies_refused = 0
        self.latest_version: Version = (0, 0)
        self.sent_at = -math.inf
        self.steps_sent = 0
        self._recorder = recorder
        self._target = target
        self.files = files if files is not None else PolicyFiles(None)
        self._drain_timeout_s = drain_timeout_s
        self._recording = recording
        self.pictures: WorkerPictures | None = None
        self._stopping = False
        self._versions_counted = 0
        self._versions_taken = self._versions_kept = 0
        self._evaluated: int | None = None
        """Id of the latest evaluation that `due_evaluation` has returned; None: also after it was postponed."""
        self._postponed: Version | None = None
        """Version of the policy that the latest postponed evaluation failed with."""
        self.refusal = ""
        self._finish_logged = False
        self._keep_failed = False
        """True: the latest policy could not be kept, which is logged once until one can be."""
        self._load_kept_policy(needs_policy)

    @property
    def name(self) -> str:
        """Return the worker's label."""
        return self._recorder.name

    # --- the end of the run -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End all waits, now and later."""
        self._stopping = True
        if self.link is not None:
            self.link.wake()

    def ending(self) -> bool:
        """Return True if the run ends: after `stop`, or when the trainer has finished.

        Raises:
            TmrlError: the link has failed permanently.
        """
        if self._stopping:
            return True
        link = self.link
        if link is None:
            return False
        if link.finished:
            if not self._finish_logged:
                logger.info("the trainer has finished; worker %s ends", self._recorder.name)
                self._finish_logged = True
            return True
        link.check()
        # Every loop asks between two slices, in the environment's thread: the place where nobody is in a step.
        if self.pictures is not None and (wanted := link.directive.wanted) is not None:
            self.pictures.look(wanted)
        return False

    def wait(self) -> None:
        """Wait until a policy, directive, progress or acknowledgement arrives or the run ends, at most `WAIT_S`."""
        if self.link is not None:
            self.link.wait_change(WAIT_S)

    def close(self) -> CloseReport | None:
        """Send the remaining samples, wait for acknowledgements and close the link.

        Returns:
            Numbers of samples acknowledged, handed over and lost; None: no Server.
        """
        self._stopping = True
        try:
            return self._close_link()
        finally:
            if self.pictures is not None:
                self.pictures.close()
            if self._recording is not None:
                self._recording.close()

    def _close_link(self) -> CloseReport | None:
        if self.link is None:
            if self._recording is not None:
                self._recording.put(*self._recorder.take())
            return None
        left = 0
        deadline = time.monotonic() + self._drain_timeout_s
        chunks, records = self._recorder.take()
        if self._recording is not None:
            self._recording.put(chunks, records)
        while chunks or records:
            piece, chunks = chunks[:1], chunks[1:]
            try:
                self.link.send(piece, [] if chunks else records, timeout_s=max(0.0, deadline - time.monotonic()))
            except TmrlError:
                left += sum(chunk.rows for chunk in piece)
            records = records if chunks else []
        acknowledged, handed_over, lost = self.link.close()
        report = CloseReport(acknowledged, handed_over, lost + left)
        refused, dropped = self.link.counts.samples_refused, self.link.counts.samples_dropped
        # `lost` counts what ends with this process. Earlier drops are no less lost to the trainer.
        more = (
            f", {dropped} dropped earlier for lack of space (worker.queue_bytes, worker.spool_bytes)" if dropped else ""
        )
        more += f", {refused} refused by the trainer" if refused else ""
        logger.log(
            logging.WARNING if report.lost or refused or dropped else logging.INFO,
            "worker %s ends: %d samples acknowledged, %d handed over to the Server, %d lost%s",
            self._recorder.name,
            *report,
            more,
        )
        return report

    # --- samples out --------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send the recorded samples, as `Worker.send_and_clear_buffer` documents."""
        self.sent_at = time.perf_counter()
        if self.link is None:
            if self._recording is not None:
                self._recording.put(*self._recorder.take())
            self._recorder.discard()
            return
        chunks, records = self._recorder.take()
        while chunks or records:
            piece, rest = chunks[:1], chunks[1:]
            ended = [] if rest else records
            try:
                self.link.send(piece, ended, timeout_s=WAIT_S)
            except TmrlError as exc:
                closed = isinstance(exc, LinkClosedError)
                if closed and not self.link.closed and not self._stopping:
                    continue  # the queue is full
                self._recorder.put_back(chunks, records)
                if closed and self._stopping:
                    return
                raise
            self.steps_sent += steps_in(piece)
            if self._recording is not None:
                self._recording.put(piece, ended)
            chunks, records = rest, records if rest else []

    def steps_that_count(self) -> int:
        """Return the number of samples collected, without those that were dropped or refused."""
        lost = self._recorder.samples_lost
        if self.link is not None:
            counts = self.link.counts
            lost += counts.samples_dropped + counts.samples_refused
        return self._recorder.steps_collected - lost

    # --- directives in ------------------------------------------------------------------------------------------------

    def due_evaluation(self) -> Evaluation | None:
        """Return the evaluation that the trainer requests, once, as soon as its policy has arrived."""
        evaluation = self.next_evaluation()
        if evaluation is not None:
            self._evaluated = evaluation.id
        return evaluation

    def next_evaluation(self) -> Evaluation | None:
        """Return the evaluation that `due_evaluation` would return."""
        evaluation = self.link.directive.evaluation if self.link is not None else None
        if evaluation is None or evaluation.id == self._evaluated:
            return None
        # A policy of another incarnation may be older with a higher number: see `Welcome.anew`.
        version = self._recorder.version
        if version < evaluation.version or version[0] != evaluation.version[0]:
            self.take_policy(verbose=False)
            if self._recorder.version < evaluation.version:
                return None
        return None if self._recorder.version == self._postponed else evaluation

    def postpone_evaluation(self) -> None:
        """Make the latest evaluation due again with the next policy, because the present one has failed in it."""
        self._evaluated, self._postponed = None, self._recorder.version

    @property
    def unfit(self) -> bool:
        """True: none of the trainer's policies fits this worker, and its samples are refused."""
        link = self.link
        return (
            link is not None
            and bool(self.refusal)
            and not any(self._recorder.version)
            and link.counts.samples_refused > 0
        )

    # --- policies in --------------------------------------------------------------------------------------------------

    def update_policy(self, verbose: bool = True, blocking: bool = False) -> int:
        """Load the latest policy, as `Worker.update_actor_weights` documents."""
        link = self.link
        if link is None:
            return 0
        while True:
            published = link.versions_published - self._versions_counted  # read before the update
            self.take_policy(verbose)
            if published > 0 or not blocking or self.ending():
                self._versions_counted += published
                return published
            self.wait()

    def ignore_policy(self) -> int:
        """Discard waiting policies, as experts do; return the number of versions published since the last call."""
        link = self.link
        if link is None:
            return 0
        with contextlib.suppress(RemoteProtocolError):  # the update is ignored
            link.take_policy()
        published = link.versions_published - self._versions_counted
        self._versions_counted += published
        return published

    def take_policy(self, verbose: bool) -> None:
        """Load the latest policy if it is new, without counting versions. If it does not fit, log that."""
        if self.link is None:
            return
        self._versions_taken = self.link.versions_published
        name = "a version"
        try:
            update = self.link.take_policy()
            if update is None:
                return
            self.latest_version = update.version
            name = f"version {update.version[0]}.{update.version[1]}"
            if not all(map(math.isfinite, update.exploration.values())):
                raise WeightsError(f"its exploration parameters are not finite: {update.exploration}")
            self._load(update)
        except (WeightsError, RemoteProtocolError) as exc:
            self.policies_refused += 1
            if str(exc) != self.refusal:
                self.refusal = str(exc)
                logger.error("%s of the policy is refused, the old one stays: %s", name, exc)
            return
        self.refusal = ""
        self._recorder.set_version(update.version)
        if verbose:
            logger.info("worker %s acts with version %d.%d of the policy", self._recorder.name, *update.version)

    def await_policy(self) -> None:
        """Send samples, then wait until a newer version is published or the run ends."""
        link = self.link
        while link is not None and link.versions_published == self._versions_taken and not self.ending():
            self.send()
            self.wait()

    def _load(self, update: PolicyUpdate) -> None:
        self._target.load_policies(update.policies, update.exploration)
        try:
            # At least this one: a version that came after the count belongs to the next.
            copy = self.files.keep(
                partial(self._target.file_content, update.policies, update.exploration),
                max(1, self._versions_taken - self._versions_kept),
            )
        except OSError as exc:
            if not self._keep_failed:
                logger.warning("the policy could not be kept in %s: %s", self.files.path, exc)
            self._keep_failed = True
            return
        self._keep_failed = False
        self._versions_kept = max(self._versions_taken, self._versions_kept + 1)
        if copy is not None:
            logger.info("the policy was saved as %s", copy)

    def _load_kept_policy(self, needed: bool) -> None:
        path = self.files.path
        if path is None or not path.is_file():
            return
        try:
            self._target.load_file(path)
        except NotImplementedError as exc:
            logger.info("the policy in %s is left aside: %s", path, exc)
        except Exception as exc:  # a custom `load` may raise any error, and the stored file may have another format
            if needed:
                raise
            logger.warning("the policy in %s is left aside, the trainer will send one: %s", path, exc)
        else:
            logger.info("the policy was loaded from %s", path)


def close_unreferenced(worker: object, close_environment: Callable[[], object], uplink: Uplink) -> None:
    """Close a worker when nothing refers to it any more: a script or a notebook has made another one in its place.

    Otherwise the thread of its link would keep it joined, idle, until the process ends.

    Args:
        worker: the worker.
        close_environment: closes its environment; must not refer to the worker.
        uplink: its uplink.
    """
    weakref.finalize(worker, _close_parts, close_environment, uplink).atexit = False


def _close_parts(close_environment: Callable[[], object], uplink: Uplink) -> None:
    # In any thread, also in the link's: nothing here may wait for it.
    link = uplink.link
    if link is None or link.closed:
        return
    logger.warning(
        "worker %s is closed, because nothing refers to it any more: close() does that in order", uplink.name
    )
    try:
        close_environment()
    except Exception:
        logger.exception("the environment of worker %s could not be closed", uplink.name)
    link.close_soon()
