"""Training of a success classifier with torch.

Shape suffixes: B batch, N examples, D elements of a flattened observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from tmrl_core.actor.policies.torch.categorical import CategoricalMLPActor
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.samples.columns import join_trees, map_leaves
from tmrl_core.samples.images import images_of, leaf_at, with_images
from tmrl_core.success.classifier import ACTIONS
from tmrl_core.success.examples import Group
from tmrl_core.training.agents.optimizers import make_optimizer, minimise

BATCH = 64
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-3
SHIFT = 4
"""Greatest shift of an image in a batch, in pixels: a camera moves a little, and successes are few."""


def _flat(actor: CategoricalMLPActor, observations: Any) -> Tensor:
    return flatten_batch(
        actor.layout, map_leaves(lambda column: torch.from_numpy(np.ascontiguousarray(column)), observations)
    )


class ClassifierTraining:
    """A classifier in training.

    Args:
        space: of an observation.
        groups: examples to train on, with both labels.
        hidden_sizes: widths of the hidden layers.
        seed: of the weights and of the batches.
    """

    def __init__(self, space: Space[Any], groups: Sequence[Group], hidden_sizes: Sequence[int], seed: int) -> None:
        torch.manual_seed(seed)
        self._rng = np.random.default_rng(seed)
        self._observations = join_trees([group.observations for group in groups])
        success = np.concatenate([group.success for group in groups])
        self._rows = [np.flatnonzero(~success), np.flatnonzero(success)]
        self._images = images_of(space)
        self.actor = CategoricalMLPActor(space, ACTIONS, hidden_sizes, "relu", normalize_observations=True)
        self._normalize(len(success))
        self._optimizer = make_optimizer("adamw", self.actor.parameters(), LEARNING_RATE, l2=WEIGHT_DECAY)

    @torch.no_grad()
    def _normalize(self, rows: int) -> None:
        values = self.actor.encoder.values
        if values:
            parts = [
                _flat(self.actor, self._part(np.arange(start, min(rows, start + 1024))))[:, :values].double()
                for start in range(0, rows, 1024)
            ]
            values_ND = torch.cat(parts)
            self.actor.obs_mean.copy_(values_ND.mean(0))
            self.actor.obs_std.copy_(values_ND.std(0, correction=0).clamp(min=1e-3))

    def _part(self, rows: NDArray[Any]) -> Any:
        return map_leaves(lambda column: column[rows], self._observations)

    def run(self, updates: int) -> list[float]:
        """Train on this number of batches. Return their losses, in nats."""
        # Networks this small gain little from threads, which wait for each other where other processes run too.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return [self.update() for _ in range(updates)]
        finally:
            torch.set_num_threads(threads)

    def update(self) -> float:
        """Train on one batch, half of it successes. Return the loss, in nats."""
        half = BATCH // 2
        rows = np.concatenate([self._rng.choice(kind, half) for kind in self._rows])
        obs = self._shifted(self._part(rows))
        logits_BN = self.actor.outputs_at(_flat(self.actor, obs))["logits"]
        labels_B = torch.arange(2).repeat_interleave(half)
        loss = cross_entropy(logits_BN, labels_B)
        minimise(self._optimizer, loss)
        return float(loss.detach())

    def _shifted(self, obs: Any) -> Any:
        """Return the images of a batch, each moved by some pixels; edges are repeated."""
        made = {}
        for path, shape in self._images.items():
            frames = [shape.framed(one) for one in leaf_at(obs, path)]
            moves = self._rng.integers(0, 2 * SHIFT + 1, (len(frames), 2)).tolist()
            moved = []
            for frame, (down, right) in zip(frames, moves, strict=True):
                padded = np.pad(frame, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)), mode="edge")
                moved.append(shape.unframed(padded[:, down : down + shape.height, right : right + shape.width]))
            made[path] = np.stack(moved)
        return with_images(obs, made)


@torch.no_grad()
def probabilities(actor: CategoricalMLPActor, groups: Sequence[Group]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return [N] probabilities of success of all examples of groups, and [N] their labels."""
    found = []
    for group in groups:
        logits_BN = actor.outputs_at(_flat(actor, group.observations))["logits"].double()
        found.append(logits_BN.softmax(-1)[:, 1].numpy())
    return np.concatenate(found), np.concatenate([group.success for group in groups])
