"""Weights as a worker takes them over from the trainer, or from a file."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np

from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target
from tmrl_core.actor.policies.numpy.squashed_gaussian import NumpySquashedGaussianMLPActor
from tmrl_core.errors import WeightsError


class Weights(Target):
    """Bytes as the weights of a policy, which stays as it was if they are none."""

    name = "weights"
    allowed = (WeightsError,)

    def __init__(self) -> None:
        observations = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        actions = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self._actor = NumpySquashedGaussianMLPActor(observations, actions, hidden_sizes=(4, 4))
        self._seed = self._actor.to_bytes()
        length = int.from_bytes(self._seed[:8], "little")
        self._header = json.loads(self._seed[8 : 8 + length])
        self._items = self._seed[8 + length :]

    def make(self, mutator: Mutator) -> bytes:
        kind = mutator.random()
        if kind < 0.03:
            return mutator.bytes(mutator.below(300))
        if kind < 0.45:
            return mutator.mutate(self._seed)
        header: dict[str, Any] = {name: dict(entry) for name, entry in self._header.items()}
        for _ in range(mutator.few()):
            name = mutator.pick(list(header))
            change = mutator.random()
            if change < 0.1:
                del header[name]
            elif change < 0.2:
                header[mutator.pick(("more", "__metadata__", "net.0.weight"))] = mutator.pick(list(header.values()))
            elif change < 0.3:
                header[name] = mutator.pick((None, [], 3, {}, {"activation": 3}, {"a": "b"}, {"dtype": "F32"}))
            elif isinstance(header[name], dict) and header[name]:
                key = mutator.pick(list(header[name]))
                header[name] = {**header[name], key: self._value(key, mutator)}
        text = json.dumps(header).encode()
        if mutator.chance(20):
            text = mutator.mutate(text)
        items = self._items if mutator.random() < 0.8 else mutator.mutate(self._items)
        return len(text).to_bytes(8, "little") + text + items

    def _value(self, key: str, mutator: Mutator) -> Any:
        if key == "dtype":
            return mutator.pick(("F64", "F16", "BF16", "I32", "U8", "BOOL", "F8_E4M3", "C64", "x", 3))
        if key == "shape":
            return [mutator.pick((0, 1, 3, 4, -1, 1 << 31, 1 << 63, 1.5)) for _ in range(mutator.below(4))]
        if key == "data_offsets":
            return [mutator.extreme() if mutator.chance(3) else 4 * mutator.below(60) for _ in range(2)]
        return mutator.pick(("relu", "tanh", "", 3, None, [1], "é"))

    def run(self, case: bytes) -> None:
        actor = self._actor
        before = actor.to_bytes()
        try:
            with np.errstate(all="ignore"):
                actor.from_bytes(case)
        except WeightsError:
            assert actor.to_bytes() == before
            raise
        with np.errstate(all="ignore"):
            assert actor.act(np.zeros(3, np.float32), test=True).shape == (1,)
        actor.from_bytes(self._seed)

    def limit_bytes(self, case: bytes) -> int:
        return 50 * len(case) + (1 << 20)
