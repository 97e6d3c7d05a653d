"""A folder that exists completely or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tmrl_core.errors import StorageError


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` at the end; after an exception, nothing is left of it.

    Raises:
        StorageError: `target` exists, or cannot be made.
    """
    target = target.absolute()
    if target.exists():
        raise StorageError(f"{target} exists already. Choose another folder, or remove it.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.")
    except OSError as exc:
        raise StorageError(f"{target} cannot be made: {exc}") from exc
    with temporary as name:
        # In a folder of the temporary one, which is then removed in any case: the rename takes its content away.
        folder = Path(name) / target.name
        folder.mkdir()
        yield folder
        try:
            os.rename(folder, target)
        except OSError as exc:
            raise StorageError(f"{target} cannot be made: {exc}") from exc
