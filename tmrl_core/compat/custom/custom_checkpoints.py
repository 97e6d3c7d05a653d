"""Updates of resumed runs, under the names of `tmrl.custom.custom_checkpoints`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["update_run_instance"]


def update_run_instance(run_instance: Any, training_cls: Callable[[], Any]) -> Any:
    """Return a resumed training object as it is.

    A checkpoint is loaded into an object that `training_cls` has made with the present settings, so that changed
    settings take effect without this function.

    Args:
        run_instance: the training object.
        training_cls: has made it.
    """
    return run_instance
