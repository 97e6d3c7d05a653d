"""Display of the package's INFO messages on standard error, for scripts that have not set up logging."""

from __future__ import annotations

import logging
import sys

from tmrl_core.terminal_log import TerminalHandler

_PACKAGE = "tmrl_core"


class _StandardErrorHandler(TerminalHandler):
    """Handler that writes to the current `sys.stderr`, until the application sets up logging itself."""

    def __init__(self) -> None:
        # StreamHandler's constructor is not called, because it would keep the present stream.
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))

    @property
    def stream(self) -> object:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        package = logging.getLogger(_PACKAGE)
        if logging.getLogger().handlers:
            hide_messages()
        elif package.propagate:
            super().emit(record)


def show_messages() -> bool:
    """Show INFO messages of this package on standard error, unless the application has set up logging.

    Logging counts as set up if the root logger or the package's logger has a handler, or the package's logger has a
    level. Called when a Server, RolloutWorker or Trainer is created, never at import; further calls change nothing. If
    the application sets up logging later, messages go only there.

    Returns:
        True if messages go to standard error because of this function.
    """
    package = logging.getLogger(_PACKAGE)
    if any(isinstance(handler, _StandardErrorHandler) for handler in package.handlers):
        return True
    if logging.getLogger().handlers or package.handlers or package.level != logging.NOTSET:
        return False
    package.addHandler(_StandardErrorHandler())
    package.setLevel(logging.INFO)
    return True


def hide_messages() -> None:
    """Undo `show_messages`."""
    package = logging.getLogger(_PACKAGE)
    for handler in list(package.handlers):
        if isinstance(handler, _StandardErrorHandler):
            package.removeHandler(handler)
            package.setLevel(logging.NOTSET)
