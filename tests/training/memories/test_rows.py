from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.errors import ConfigError
from tmrl_core.testing.random_samples import random_chunk
from tmrl_core.training import ReplayMemory

PICTURES, NUMBERS = spaces.Box(0, 255, (32, 32, 3), np.uint8), spaces.Box(-1, 1, (3,), np.float32)


@pytest.mark.parametrize(("observations", "told"), [(PICTURES, True), (NUMBERS, False)], ids=["pictures", "numbers"])
def test_more_transitions_than_fit_into_the_machine_are_refused_with_advice(
    observations: spaces.Box, told: bool
) -> None:
    memory = ReplayMemory(memory_size=1e15, batch_size=1)
    with pytest.raises(ConfigError, match=r"1000000000000000 transitions of \d+ bytes need .* GB") as refused:
        memory.append_chunk(random_chunk(observations))
    assert ("memory.kwargs: {frame_stack: 1}" in str(refused.value)) is told
