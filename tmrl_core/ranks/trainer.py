"""Trainer of one rank."""

# Theory of operation
#
# A rank is a Trainer with another configuration (shares.py), another interface (interface.py) and a group. This file
# holds what happens before and after training: forming the group, one state for all, and checkpoints of one update.
#
# The start, in an order that matters:
#
# 1. The group forms, so that everything that fails later can be told to nobody too late: a rank that ends is noticed.
# 2. The number of ranks is compared with that of the run's checkpoints (`parts.json`): rows and offsets of a rank that
#    is not started any more would be lost in silence.
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
from typing import TYPE_CHECKING

import msgspec
import torch

from tmrl_core.config import Config, use
from tmrl_core.config.run_folder import write_in_force
from tmrl_core.errors import CheckpointError, RankLostError
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.standard import WandbSettings
from tmrl_core.ranks.interface import RankInterface
from tmrl_core.ranks.place import Place
from tmrl_core.ranks.process_group import joined
from tmrl_core.ranks.shares import share_of
from tmrl_core.roles.trainer import Trainer
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.checkpoints.parts import keep_parts, parts_of, updates_in
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
        place = self._place
        # NCCL is untried.
        cuda = (self._config.trainer.device or "cpu").startswith("cuda")
        with joined(place, "cpu:gloo,cuda:nccl" if cuda else "gloo") as self._group:
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
            self._group.exchange(b"")

    # --- one state for all --------------------------------------------------------------------------------------------

    def _agree_on_checkpoint(self) -> None:
        """Choose the checkpoint that all ranks resume from.

        Raises:
            CheckpointError: the run has another number of ranks, or no checkpoint is one of all ranks.
        """
        folder = self._whole.checkpoint_path
        if folder is None:
            return
        own = updates_in(folder / f"rank-{self._place.rank}")
        number = 1 if updates_in(folder) else parts_of(folder)
        told = json.dumps({"updates": own, "ranks": number}).encode()
        found = [json.loads(part) for part in self._ranks.exchange(told)]
        for rank, one in enumerate(found):
            if one["ranks"] not in (None, self._place.size):
                raise CheckpointError(
                    f"{folder} holds checkpoints of a run with {one['ranks']} rank{'s' * (one['ranks'] > 1)} (as rank "
                    f"{rank} sees it), and {self._place.size} were started. Start {one['ranks']}, with as many "
                    "Servers, or choose another run.name: samples and offsets belong to a rank"
                )
        if not any(one["updates"] for one in found):
            return
        common = set(own).intersection(*(one["updates"] for one in found))
        if not common:
            each = "; ".join(f"rank {rank}: {one['updates'] or 'none'}" for rank, one in enumerate(found))
            raise CheckpointError(
                f"no checkpoint in {folder} is one of all ranks; the updates of their checkpoints are {each}. Choose "
                "another run.name, or move the folder away to start from scratch"
            )
        self._checkpoints.at = max(common)
        logger.info("all ranks resume from update %d", max(common))

    def _make(self) -> LoopLike:
        if self._config.run.seed is None:
            torch.seed()  # the default seed of torch is the same in each process
        return super()._make()

    def _after_load(self, training: TrainingLoop, is_new: bool) -> None:
        agent = training.agent
        if isinstance(agent, OffPolicyAgent):
            agent.compiler.gave_up = True  # a compiled update has no place for other ranks
        if is_new:
            self._ranks.copy_first(agent_tensors(agent))
            if self.leads and (folder := self._whole.checkpoint_path) is not None:
                keep_parts(folder, self._place.size)
        self._compare(training)
        incarnation = training.delivery.get("incarnation", 0)
        highest = max(int(part) for part in self._ranks.exchange(str(incarnation).encode()))
        training.own.delivery = {**training.delivery, "incarnation": highest}

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


def digest_of(agent: object) -> bytes:
    """Return a checksum of all numbers of an agent: parameters, target networks, optimizers, statistics."""
    digest = hashlib.sha256()
    for tensor in agent_tensors(agent):
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b"")
        if not tensor.ndim:
            digest.update(tensor.detach().cpu().reshape(1).view(torch.uint8).numpy().tobytes())
    return digest.digest()
