"""Trainer of one rank."""

# Theory of operation
#
# A rank is a Trainer with another configuration (shares.py), another interface (interface.py) and a group. This file
# holds what happens before and after training: forming the group, one state for all, and checkpoints of one update.
#
# The start, in an order that matters:
#
# 1. The group forms, so that everything that fails later can be told to nobody too late: a rank that ends is noticed.
# 2. The number of ranks is compared with that of the run's checkpoints (`parts.json`, resharding.py).
# 3. Each rank tells which updates its checkpoints hold, and all resume from the latest that every one has. Ranks write
#    at the same update, but a kill may come between two of them. Example: rank 0 has 2,000 and 3,000, rank 1 has 1,000
#    and 2,000; both resume from 2,000, and what rank 0 had acknowledged after it is lost if its memory is in RAM.
# 4. A new run: networks, optimizers and statistics of rank 0 are copied to all, since each rank draws its own random
#    numbers. A resumed one: checksums are compared; rows of other numbers would be averaged in silence otherwise.
# 5. The incarnation becomes the largest of the ranks', so that all publish the same versions.
#
# Checksums are compared again with each checkpoint: machines of different kinds may round differently, and drifting
# weights are no longer one learner. That is an error, never a repair.
#
# An error of one rank ends it, and the others then (RankLostError). The launcher starts all again, and they resume.

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from tmrl_core.config import Config, use
from tmrl_core.config.endpoints import endpoints_of
from tmrl_core.config.run_folder import write_in_force
from tmrl_core.errors import CheckpointError, RankLostError
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.standard import WandbSettings
from tmrl_core.ranks.interface import RankInterface
from tmrl_core.ranks.place import Place
from tmrl_core.ranks.process_group import StoppedWhileFormingError, joined
from tmrl_core.ranks.resharding import Seen, plan_of
from tmrl_core.ranks.shares import share_of
from tmrl_core.roles.trainer import Trainer
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.checkpoints.checkpoint_folder import begin_from
from tmrl_core.training.checkpoints.manifest import read_manifest
from tmrl_core.training.checkpoints.parts import counters_in, keep_parts, parts_of, servers_of, updates_in
from tmrl_core.training.contracts import LoopLike, TrainingLoop, as_loop
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.rank_group import RankGroup
from tmrl_core.training.updates.rollback import agent_tensors

if TYPE_CHECKING:
    from tmrl_core.training.remote.interface import RemoteInterface

logger = logging.getLogger(__name__)


class RankTrainer(Trainer):
    """Trainer of one rank of a learner.

    Args:
        config: configuration of the whole run.
        place: place of this process.

    Raises:
        ConfigError: the run cannot be shared among so many ranks.
    """

    def __init__(self, config: Config, place: Place) -> None:
        self._whole = config
        self._place = place
        self._group: RankGroup | None = None
        self._before = place.size
        """Number of ranks of the checkpoint that this run resumes from."""
        own = share_of(config, place)
        # The configuration in use is read by code of users too.
        use(own)
        super().__init__(config=own, model_path=None if place.rank else own.trainer_model_path)
        self._linked.make_interface = self._make_interface
        # Ranks may share a credentials folder, and have the same incarnation.
        self._linked.settings = msgspec.structs.replace(self._linked.settings, part=place.rank)

    @property
    def leads(self) -> bool:
        """True: this rank writes the records and shows them."""
        return self._place.rank == 0

    @property
    def _ranks(self) -> RankGroup:
        assert self._group is not None, "the group is formed before anything else"
        return self._group

    def _run(self, wandb: WandbSettings | None) -> None:
        # NCCL is untried.
        cuda = (self._config.trainer.device or "cpu").startswith("cuda")
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        try:
            with joined(self._place, backend, lambda: self._linked.stopping) as self._group:
                self._run_as_rank(wandb)
        except StoppedWhileFormingError:
            logger.info("end: stopped on request, before all ranks had started")

    def _run_as_rank(self, wandb: WandbSettings | None) -> None:
        place = self._place
        logger.info(
            "rank %d of %d, with the Server %s port %d",
            place.rank,
            place.size,
            self._config.server.host,
            self._config.server.tcp_port,
        )
        if place.rank == 0:
            self._run_id()
        self._agree_on_checkpoint()
        super()._run(wandb)
        # Rank 0 may hold the store that the others still need.
        self._ranks.exchange(b"")

    # --- one state for all --------------------------------------------------------------------------------------------

    def _agree_on_checkpoint(self) -> None:
        """Choose the checkpoint that all ranks resume from.

        Raises:
            CheckpointError: see `plan_of`.
        """
        folder = self._whole.checkpoint_path
        if folder is None:
            return
        own = folder / f"rank-{self._place.rank}"
        updates = updates_in(own)
        seen = Seen(
            updates,
            1 if updates_in(folder) else parts_of(folder),
            servers_of(folder),
            self._config.memory.capacity,
            _capacity_in(own),
        )
        found = [msgspec.json.decode(part, type=Seen) for part in self._ranks.exchange(msgspec.json.encode(seen))]
        plan = plan_of(found, self._servers, folder)
        self._before = plan.before
        if plan.at is None:
            return
        logger.info("all ranks resume from update %d", plan.at)
        if self._place.rank < plan.before:
            self._checkpoints.at = plan.at
        else:
            own.mkdir(parents=True, exist_ok=True)
            self._checkpoints.load = lambda path: self._begin_as(folder / "rank-0", plan.at)

    @property
    def _servers(self) -> list[str]:
        return list(map(str, endpoints_of(self._whole)))

    def _begin_as(self, first: Path, at: int | None) -> LoopLike:
        """Return a training object with the networks of rank 0, for a rank that the run did not have before.

        Raises:
            CheckpointError: the checkpoint of rank 0 is not here, or damaged.
        """
        number = next((n for n in reversed(counters_in(first)) if read_manifest(first / str(n)).updates == at), None)
        if number is None:
            raise CheckpointError(
                f"rank {self._place.rank} is new, and the checkpoint of update {at} of rank 0 is not in {first}. Copy "
                "that folder to this machine"
            )
        training = self._make()
        begin_from(training, first / str(number))
        self._seed()  # the checkpoint holds the random generators of rank 0
        logger.info("rank %d is new: it begins with the networks of rank 0 and no sample", self._place.rank)
        return training

    def _note_resharding(self, training: TrainingLoop) -> None:
        """Store that the run has another number of ranks from now on, and log what is left behind.

        Raises:
            CheckpointError: a new rank cannot write its first checkpoint.
        """
        folder, size = self._whole.checkpoint_path, self._place.size
        assert folder is not None
        # A new rank needs a checkpoint of its own before the number changes.
        if problem := self._checkpoints.write(training.own, wait=True):
            raise CheckpointError(f"rank {self._place.rank} cannot write its first checkpoint: {problem}")
        [samples] = self._ranks.sums([training.total_samples])
        if not self.leads:
            return
        keep_parts(folder, self._servers)
        logger.warning("the run had %d ranks and has %d now, with %.0f samples", self._before, size, samples)
        for rank in range(size, self._before):
            left = folder / f"rank-{rank}"
            counts = [read_manifest(left / str(number)).samples for number in counters_in(left)[-1:]]
            logger.warning(
                "rank %d is left out, with the %s samples that it had received: they are not trained on, and do not "
                "count in ratios of updates to samples. They stay in %s and in its memory, for a start with %d ranks",
                rank,
                counts[0] if counts else "unknown number of",
                left,
                self._before,
            )

    def _make(self) -> LoopLike:
        if self._config.run.seed is None:
            torch.seed()  # the default seed of torch is the same in each process
        return super()._make()

    def _seed(self) -> None:
        seed = self._config.run.seed
        torch.manual_seed(torch.seed() if seed is None else seed)
        random.seed(seed)
        np.random.seed(seed)

    def _after_load(self, training: TrainingLoop, is_new: bool) -> None:
        agent = training.agent
        if isinstance(agent, OffPolicyAgent):
            agent.compiler.gave_up = True  # a compiled update has no place for other ranks
        if is_new:
            self._ranks.copy_first(agent_tensors(agent))
            if self.leads and (folder := self._whole.checkpoint_path) is not None:
                keep_parts(folder, self._servers)
        self._compare(training)
        own = [training.delivery.get(name, 0) for name in ("incarnation", "counter")]
        told = [json.loads(part) for part in self._ranks.exchange(json.dumps(own).encode())]
        incarnation, counter = map(max, zip(*told, strict=True))
        training.own.delivery = {**training.delivery, "incarnation": incarnation, "counter": counter}
        if not is_new and self._before != self._place.size:
            self._note_resharding(training)

    def _compare(self, training: TrainingLoop) -> None:
        """Compare the agent's numbers with those of the other ranks.

        Raises:
            RankLostError: they differ.
        """
        own = digest_of(training.agent)
        found = self._ranks.exchange(own)
        others = [str(rank) for rank, digest in enumerate(found) if digest != found[0]]
        if others:
            raise RankLostError(
                f"at update {training.total_updates} the networks of rank {', '.join(others)} differ from those of "
                "rank 0. Run all ranks on machines of one kind, with the same versions of torch and tmrl_core"
            )

    # --- joints of the Trainer ----------------------------------------------------------------------------------------

    def _make_interface(self, *args: object, **kwargs: object) -> RemoteInterface:
        memory = as_loop(self.training).training_memory
        made = RankInterface(
            *args,
            ranks=self._ranks,
            checkpoint_due=lambda: self._checkpoints.due(self.training),
            returns=memory.returns if isinstance(memory, ReplayMemory) else None,
            **kwargs,
        )
        return made

    def _watch_rests(self, interface: RemoteInterface, training: TrainingLoop, recorder: Recorder) -> None:
        if not self.leads:
            interface.evaluator = None

        def write() -> None:
            self._write_checkpoint(training, recorder)

        interface.on_rest = write  # the ranks have agreed that it is due

    def _write_checkpoint(self, training: TrainingLoop, recorder: Recorder, wait: bool = False) -> str:
        if not wait:  # one that waits is the last one, which each rank repeats by itself until its disk has space
            self._compare(training)
        return super()._write_checkpoint(training, recorder, wait)

    def open_recorder(
        self, training: TrainingLoop, closing: contextlib.ExitStack, wandb: WandbSettings | None = None
    ) -> Recorder:
        """Return the recorder of the run on rank 0, and one without sinks on the others."""
        if self.leads:
            return super().open_recorder(training, closing, wandb)
        return Recorder([], elapsed_s=training.elapsed_s, env_steps=training.total_samples)

    def _write_configuration(self) -> None:
        if not self.leads:
            return
        try:
            write_in_force(self._whole)
        except OSError as exc:
            logger.warning("the configuration cannot be written to %s: %s", self._whole.run_folder, exc)


def _capacity_in(folder: Path) -> int | None:
    """Return `memory.capacity` of the latest checkpoint in a folder; None: unknown."""
    for number in counters_in(folder)[-1:]:
        with contextlib.suppress(CheckpointError, KeyError):
            stored = read_manifest(folder / str(number)).configuration or {}
            return int(stored["memory"]["capacity"])
    return None


def digest_of(agent: object) -> bytes:
    """Return a checksum of all numbers of an agent: parameters, target networks, optimizers, statistics."""
    digest = hashlib.sha256()
    for tensor in agent_tensors(agent):
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b"")
        if not tensor.ndim:
            digest.update(tensor.detach().cpu().reshape(1).view(torch.uint8).numpy().tobytes())
    return digest.digest()
