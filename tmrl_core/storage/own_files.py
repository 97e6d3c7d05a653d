"""Safe access to this user's files in folders that another user may have prepared: links are not followed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from pathlib import Path

# Flag of `os.open`: no translation of line ends.
if sys.platform == "win32":
    BINARY = os.O_BINARY
else:
    BINARY = 0


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> int:
    """Open a file as `os.open` does and return the descriptor, if it is a file of this user and not a link.

    A link would redirect the write to a file of another user's choice. This function fits `open` as its `opener`. On
    Windows, where users need a privilege to create symbolic links, it is `os.open`.

    Raises:
        OSError: the file is a pipe or a symbolic link, has a second name (a hard link), belongs to a user other than
            this one or root, or cannot be opened. With `os.O_TRUNC`, nothing was truncated then.
    """
    if sys.platform == "win32":
        return os.open(path, flags | os.O_BINARY, mode)
    try:
        # Checks follow the opening, on the descriptor: what a name stands for may change between two calls. O_TRUNC is
        # taken out because it would empty another user's file before it is checked. O_NONBLOCK: a pipe in place of the
        # file would wait for its reader for ever.
        descriptor = os.open(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as exc:
        if exc.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a symbolic link. Remove it, or choose another folder", path) from exc
        if exc.errno == errno.ENXIO:  # nobody reads the pipe
            raise OSError(errno.EINVAL, "it is a pipe. Remove it, or choose another folder", path) from exc
        raise
    try:
        about = os.fstat(descriptor)
        if stat.S_ISFIFO(about.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe. Remove it, or choose another folder", path)
        # A hard link needs no right on its target on older systems, and does the same as a symbolic one.
        if stat.S_ISREG(about.st_mode) and about.st_nlink > 1:
            raise OSError(errno.EPERM, "it has a second name (a hard link). Remove it, or choose another folder", path)
        # Root could do anything anyway, so its files are taken.
        if about.st_uid not in (0, os.getuid()):
            raise OSError(
                errno.EPERM, f"it belongs to another user ({about.st_uid}). Remove it, or choose another folder", path
            )
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_now(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file for reading as `os.open` does, without blocking. This function fits `open` as its `opener`.

    Raises:
        OSError: the file cannot be opened, or something else (a pipe, a device) is in its place.
    """
    descriptor = os.open(path, flags | BINARY | (0 if sys.platform == "win32" else os.O_NONBLOCK))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a folder, `open` says so
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file (a pipe or a device). Put the file itself there", path)
    return descriptor


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file, without blocking.

    Raises:
        OSError: the file cannot be read, or something else is in its place.
    """
    with open(path, "rb", opener=open_now) as file:
        return file.read()


def flush_folder(folder: Path) -> None:
    """Make a new, renamed or removed file in `folder` survive a power cut.

    Windows neither has nor needs such a call.
    """
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: Path, data: bytes, mode: int = 0o644, *, sync: bool = False) -> None:
    """Write a file so that a reader always finds the complete old or the complete new content, even after a crash.

    A link of that name is replaced, not followed.

    Args:
        path: the file; its folder is created if it is missing.
        data: the content.
        mode: the file's mode from its creation, less the umask.
        sync: True: wait until content and name are on the disk.

    Raises:
        OSError: the file cannot be written; the old content is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename does not cross file systems; with a name that nobody can prepare a link for.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        # Without it, a power cut may bring the old file back. A trainer would then use its incarnation a second time.
        with contextlib.suppress(OSError):  # some network file systems cannot flush folders
            flush_folder(path.parent)
