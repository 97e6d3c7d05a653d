"""Folders that the Server's spool and a replay memory on disk find when they start."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tests.fuzzing.files import file_of, mend, scratch
from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target
from tmrl_core.errors import CheckpointError, ConfigError, StorageError
from tmrl_core.networking.spools.disk_spool import _NOTE, FORMAT, DiskSpool
from tmrl_core.samples import Buffer

LIMIT_BYTES = 1 << 20


class Kept(Target):
    """One file in the folder of a spool (first byte even) or of a replay memory (odd)."""

    name = "kept"
    # ConfigError: its rows are others than this configuration's, as transitions of several steps.
    allowed = (StorageError, CheckpointError, ConfigError)

    def __init__(self) -> None:
        from tmrl_core.training import ReplayMemory

        self._memory_cls = ReplayMemory
        self._folder = scratch()
        about = {"stream": (b"s" * 16).hex(), "run": "run", "name": "robot7", "signature": ""}
        records = [(_NOTE.pack(1, i, 0, 10 * i, 10), bytes(100)) for i in range(3)]
        self._spools = [
            file_of(about, records, FORMAT),
            file_of(about, [*records, (_NOTE.pack(2, 3, 0, 30, 0), b"")], FORMAT),
            file_of({**about, "stream": "00"}, records, FORMAT),
            file_of({**about, "name": "x" * 5000}, records, FORMAT),
        ]
        self._memories = [self._memory_file()]

    def _memory_file(self) -> bytes:
        memory = self._memory_cls(storage="disk", folder=self._folder / "seed", memory_size=40, batch_size=4, seed=0)
        buffer = Buffer(maxlen=None)
        for i in range(20):
            observation = np.full(3, i, np.float32)
            buffer.append_sample((np.zeros(1, np.float32), observation, float(i), i == 9, i == 19, {}))
        memory.append_buffer(buffer)
        memory.commit({b"s" * 16: (1, 20)})
        memory.close()
        (file,) = (self._folder / "seed").glob("*.seg")
        return file.read_bytes()

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def make(self, mutator: Mutator) -> bytes:
        which = mutator.below(2)
        seeds = self._memories if which else self._spools
        data = mutator.mutate(mutator.pick(seeds), seeds)
        return bytes([which]) + (mend(data) if mutator.random() < 0.9 else data)

    def run(self, case: bytes) -> None:
        folder = self._folder / "found"
        folder.mkdir()
        try:
            if case[:1] and case[0] & 1:
                self._open_memory(folder, case[1:])
            else:
                self._open_spool(folder, case[1:])
        finally:
            shutil.rmtree(folder)

    def _open_spool(self, folder: Path, data: bytes) -> None:
        (folder / f"{(b's' * 16).hex()}.seg").write_bytes(data)
        spool = DiskSpool(folder, LIMIT_BYTES)
        try:
            for stream, kept in spool.streams.items():
                assert len(stream) == 16
                assert len(kept.info.name) <= 1000
                assert sum(message.length for message in kept.messages) <= len(data)
                for message in kept.messages:
                    assert sum(map(len, spool._load(kept, message))) == message.length
        finally:
            spool.close()

    def _open_memory(self, folder: Path, data: bytes) -> None:
        (folder / "000000000001.seg").write_bytes(data)
        memory = self._memory_cls(storage="disk", folder=folder, memory_size=40, batch_size=4, seed=0)
        try:
            if len(memory):
                next(iter(memory))
        finally:
            memory.close()

    def limit_bytes(self, case: bytes) -> int:
        return 100 * len(case) + (4 << 20)
