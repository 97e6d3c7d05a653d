"""A player with a link: samples out, policies and directives in, and an end in order.

It knows nothing of sockets: the link is anything that `tmrl_core.actor.rollout.link.RolloutLink` describes, or None
for a worker on its own. All of this runs in the thread that plays; `stop` and `close` may be called from any thread,
`stop` from a signal handler too. No lock is taken while an episode is played.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.rollout.episodes import EpisodePlayer, exploration_seed
from tmrl_core.actor.rollout.link import Farewell, RolloutLink
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.envs.filmed import Filmed
from tmrl_core.errors import LinkClosedError, PolicyFailedError, RemoteProtocolError, TmrlError, WeightsError
from tmrl_core.networking.messages import Blob, Evaluation, PolicyUpdate, Version
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

WAIT_S = 0.1
"""Longest single wait of a worker that has nothing to do: what `stop` sets is seen that soon."""


class LinkedPlayer(EpisodePlayer):
    """An EpisodePlayer with a link to the Server, and files for its policy.

    Args:
        env_cls, make_actor, ...: as for EpisodePlayer.
        link: to the Server; None: the worker is on its own.
        files: where the policy is kept; None: nowhere.
        drain_timeout_s: how long `close` waits for room in the link's queue, in seconds.
        needs_policy: a kept policy that does not fit is an error, since no other will come.
    """

    def __init__(
        self,
        env_cls: Callable[[], Any],
        make_actor: Callable[..., Any],
        *,
        buffer: Buffer,
        link: RolloutLink | None = None,
        files: PolicyFiles | None = None,
        drain_timeout_s: float = 10.0,
        needs_policy: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(env_cls, make_actor, buffer=buffer, **kwargs)
        self._link = link
        self._files = files if files is not None else PolicyFiles(None)
        self._drain_timeout_s = drain_timeout_s
        self.policies_refused = 0
        """Versions of the policy that could not be read, are not finite or do not fit, since construction."""
        self.evaluation_videos: Path | None = None
        """Folder for films of the first episode of each evaluation; for a worker whose environment is `Filmed`."""
        self.latest_version: Version = (0, 0)
        """Version of the latest policy that has arrived, including refused ones."""
        self._versions_seen = 0
        self._versions_taken = 0
        self._evaluated: int | None = None
        self._closed = False
        self._finish_said = False
        self._refused = ""
        """Reason of the latest refusal of a policy, so that the same reason is logged once."""
        self._rest_said = False
        self._busy = threading.Lock()
        self._busy_thread: int | None = None
        self._load_kept_policy(needs_policy)

    @property
    def link(self) -> RolloutLink | None:
        """To the Server; None: the worker is on its own."""
        return self._link

    @property
    def standalone(self) -> bool:
        """True: there is no Server."""
        return self._link is None

    @property
    def model_path(self) -> Path | None:
        """File of the worker's own copy of the policy; None: it keeps none."""
        return self._files.path

    @property
    def policy_version(self) -> tuple[int, int]:
        """(incarnation, counter) of the policy that acts; (0, 0): none has arrived."""
        return self._version

    # --- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Have `run_*` return soon, for good; from any thread, and from a signal handler."""
        self._stopping = True

    def close(self) -> Farewell | None:
        """Stop, send what is left, wait for acknowledgements as long as the link's drain timeout, close everything.

        Returns:
            What became of the samples; None for a worker on its own, or one that is closed already.
        """
        self._stopping = True
        inside = self._busy_thread == threading.get_ident()
        # Another thread may be playing: it returns after its step. Should that never end, the rest is closed anyway.
        waited = not inside and self._busy.acquire(timeout=10.0)
        try:
            if self._closed:
                return None
            self._closed = True
            self._close_episode()
            report = self._close_link()
            self.env.close()
            return report
        finally:
            if waited:
                self._busy.release()

    def _close_link(self) -> Farewell | None:
        if self._link is None:
            return None
        left = 0
        deadline = time.monotonic() + self._drain_timeout_s
        for chunks, records in _with_records(*self.buffer.take()):
            try:
                self._link.send(chunks, records, timeout_s=max(0.0, deadline - time.monotonic()))
            except TmrlError:
                left += sum(chunk.rows for chunk in chunks)
        acknowledged, handed_over, neither = self._link.close()
        report = Farewell(acknowledged, handed_over, neither + left)
        refused = self._link.counts.samples_refused
        logger.log(
            logging.WARNING if report[2] or refused else logging.INFO,  # these are lost
            "worker %s ends: %d samples acknowledged, %d handed over to the Server, %d lost%s",
            self.name,
            *report,
            f", {refused} refused by the trainer" if refused else "",
        )
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Around each `run_*`: one at a time."""
        if self._closed:
            raise LinkClosedError(f"worker {self.name} is closed")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this worker is running already, in another thread")
        self._busy_thread = threading.get_ident()
        try:
            yield
        finally:
            self._busy_thread = None
            self._busy.release()

    def ending(self) -> bool:
        """True: return from `run_*`.

        Raises:
            TmrlError: the link has failed for good.
        """
        if self._stopping:
            return True
        link = self._link
        if link is None:
            return False
        if link.finished:
            if not self._finish_said:
                logger.info("the trainer has finished; worker %s ends", self.name)
                self._finish_said = True
            return True
        link.check()
        return False

    # --- samples out --------------------------------------------------------------------------------------------------

    def send_and_clear_buffer(self) -> None:
        """Hand what the Buffer holds to the link; without a Server, forget it. Statistics stay.

        Waits for room when the link's queue is full and nothing may be dropped; what has not found room when the worker
        is stopped goes back to the Buffer.

        Raises:
            LinkClosedError: the link is closed.
        """
        if self._link is None:
            self.buffer.clear()
            return
        chunks, records = self.buffer.take()
        episode = self._episode
        if chunks and episode is not None and episode.open and episode.collect:
            episode.sent = True
        pieces = _with_records(chunks, records)
        for index, (chunk, last) in enumerate(pieces):
            while True:
                try:
                    self._link.send(chunk, last, timeout_s=WAIT_S)
                except LinkClosedError:
                    if self._link.closed and not self._stopping:
                        raise
                    if self._stopping:
                        self.buffer.extend(
                            [one for later, _ in pieces[index:] for one in later],
                            [record for _, later in pieces[index:] for record in later],
                        )
                        return
                else:
                    break

    def steps_that_count(self) -> int:
        """Environment steps collected, less those that were dropped or refused on their way."""
        lost = self.samples_dropped + self.buffer.dropped
        if self._link is not None:
            counts = self._link.counts
            lost += counts.samples_dropped + counts.samples_refused
        return self.steps_collected - lost

    # --- policies in --------------------------------------------------------------------------------------------------

    def update_actor_weights(self, verbose: bool = True, blocking: bool = False) -> int:
        """Take the latest policy, if there is a new one.

        Args:
            verbose: log it.
            blocking: wait until a version was published since the last call; `stop`, `close` and the trainer's finish
                end the wait.

        Returns:
            How many versions were published since the last call, those that were skipped included.

        Raises:
            TmrlError: the link has failed for good.
        """
        link = self._link
        if link is None:
            return 0
        while True:
            published = link.versions_published - self._versions_seen  # before: what arrives between is loaded, too
            self.take_policy(verbose)
            if published > 0 or not blocking or self.ending():
                self._versions_seen += published
                return published
            link.wait_change(WAIT_S)

    def ignore_actor_weights(self) -> int:
        """Throw waiting policies away, as experts do; returns how many versions were published since the last call."""
        link = self._link
        if link is None:
            return 0
        with contextlib.suppress(RemoteProtocolError):  # nothing of it is used
            link.take_policy()
        published = link.versions_published - self._versions_seen
        self._versions_seen += published
        return published

    def take_policy(self, verbose: bool) -> None:
        """Load the latest policy if it is a new one, without counting versions; one that does not fit is logged."""
        if self._link is None:
            return
        self._versions_taken = self._link.versions_published
        what = "a version"
        try:
            update = self._link.take_policy()
            if update is None:
                return
            self.latest_version = update.version
            what = f"version {update.version[0]}.{update.version[1]}"
            if not all(map(math.isfinite, update.exploration.values())):
                raise WeightsError(f"what it says of exploration is not finite: {update.exploration}")
            self._load(_policy_of(update))
        except (WeightsError, RemoteProtocolError) as exc:
            self.policies_refused += 1
            if str(exc) != self._refused:
                self._refused = str(exc)
                logger.error("%s of the policy is refused, the old one stays: %s", what, exc)
            return
        self._refused = ""
        if update.exploration:
            self.actor.set_exploration(update.exploration)
        self._version = update.version
        episode = self._episode
        if episode is not None and episode.open and episode.collect:
            self.buffer.set_version(update.version)
        if verbose:
            logger.info("worker %s acts with version %d.%d of the policy", self.name, *update.version)

    def _policy_failed(self, failure: PolicyFailedError) -> None:
        """Go on with another episode; after more than `max_failures` in a row, when there is another version.

        Raises:
            PolicyFailedError: this worker is on its own.
        """
        link = self._link
        if link is None:
            raise failure
        in_a_row = self._policy_failures_in_a_row
        if in_a_row == 1:
            logger.error("%s. The episode ends here.", failure)
        elif in_a_row == self.max_failures + 1:
            logger.error("the policy failed %d times in a row: worker %s waits for another", in_a_row, self.name)
        while in_a_row > self.max_failures and link.versions_published == self._versions_taken and not self.ending():
            self.send_and_clear_buffer()
            link.wait_change(WAIT_S)

    def _load(self, blob: Blob) -> None:
        """Load, and keep what could be loaded."""
        actor = self.actor.from_blob(blob.format, blob.data, self.device)
        if actor is not self.actor:
            self.actor = actor.to_device(self.device)
        try:
            copy = self._files.keep(blob.data)
        except OSError as exc:
            logger.warning("the policy could not be kept in %s: %s", self.model_path, exc)
            return
        if copy is not None:
            logger.info("the policy was saved as %s", copy)

    def _load_kept_policy(self, needed: bool) -> None:
        path = self.model_path
        if path is None or not path.is_file():
            return
        try:
            if type(self.actor).from_bytes is ActorModule.from_bytes:
                self.actor = self.actor.load(path, self.device)
            else:
                self.actor = self.actor.from_bytes(path.read_bytes(), self.device)
        except Exception as exc:  # an actor's own `load` may raise anything, and what is kept may be of another format
            if needed:
                raise
            logger.warning("the policy in %s is left aside, the trainer will send one: %s", path, exc)
        else:
            logger.info("the policy was loaded from %s", path)

    def give_up_episode(self) -> None:
        """End the open episode where it is, and drop what was not sent of it."""
        episode = self._episode
        if episode is not None and episode.open and episode.collect:
            self.samples_dropped += self.buffer.drop_unsent()
        self._close_episode()

    def seed_next_episode(self, seed: int) -> None:
        """Reset the next episode with this seed, and seed the exploration with it."""
        self._next_seed = seed
        self._seeds = np.random.default_rng(seed)
        self.actor.seed(exploration_seed(seed))

    # --- what the trainer asks for ------------------------------------------------------------------------------------

    def obey(self) -> None:
        """Between episodes: play what an evaluation asks for, and rest while the trainer says pause.

        A worker rests too while none of the trainer's policies fits it and its samples are refused: what it would
        collect with its untrained policy would only cost the others' bandwidth.
        """
        link = self._link
        while link is not None and not self.ending():
            if self.evaluate_if_due():
                continue
            unfit = bool(self._refused) and not any(self._version) and link.counts.samples_refused > 0
            if not link.directive.pause and not unfit:
                return
            self.send_and_clear_buffer()
            if unfit and not self._rest_said:
                self._rest_said = True
                logger.warning("worker %s rests until a policy fits: its samples are refused", self.name)
            link.wait_change(WAIT_S)
            if unfit:
                self.take_policy(verbose=True)

    def evaluate_if_due(self) -> bool:
        """Play the evaluation that the trainer asks for, if it is a new one and its policy is here.

        An episode that is open is given up for it: the trainer may be waiting for nothing else.
        """
        link = self._link
        evaluation = link.directive.evaluation if link is not None else None
        if link is None or evaluation is None or evaluation.id == self._evaluated:
            return False
        # Of another incarnation it may be an older one with a higher number: see `Welcome.anew`.
        if self._version < evaluation.version or self._version[0] != evaluation.version[0]:
            self.take_policy(verbose=False)
            if self._version < evaluation.version:
                return False
        self._evaluated = evaluation.id
        self._close_episode()
        self._evaluate(evaluation)
        return True

    def _evaluate(self, evaluation: Evaluation) -> None:
        logger.info("worker %s plays %d episodes of evaluation %d", self.name, len(evaluation.seeds), evaluation.id)
        for index, seed in enumerate(evaluation.seeds):
            if self.evaluation_videos is not None and isinstance(self.env, Filmed):
                if index == 0:
                    self.env.start(self.evaluation_videos / f"evaluation-{evaluation.id}.mp4")
                else:
                    self.env.stop()
            ended = self._play(
                collect=False,
                test=True,
                limit=self.max_samples_per_episode,
                allow=self._unless_ending,
                seed=seed,
                evaluation=evaluation.id,
            )
            self.send_and_clear_buffer()
            if not ended:
                return
        if isinstance(self.env, Filmed):
            self.env.stop()
        # The environment's generator is where the last seed led; training would see the same episodes after each
        # evaluation.
        self._next_seed = int(self._seeds.integers(2**31))

    def _unless_ending(self) -> int:
        return 0 if self.ending() else self._slices.length


def _policy_of(update: PolicyUpdate) -> Blob:
    """The one policy of an update, whatever its name."""
    if len(update.policies) != 1:
        raise WeightsError(
            f"version {update.version} brings the policies {sorted(update.policies)}; this worker plays one policy."
        )
    return next(iter(update.policies.values()))


def _with_records(chunks: list[Chunk], records: list[EpisodeRecord]) -> list[tuple[list[Chunk], list[EpisodeRecord]]]:
    """One hand-over per chunk, the records with the last."""
    if not chunks:
        return [([], records)] if records else []
    return [([chunk], records if chunk is chunks[-1] else []) for chunk in chunks]
