"""Files: written as a whole, held by one process, and read only where they are plain files."""

import errno
import hashlib
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from commonweal.base.errors import CommonwealWarning, LockedError, RunError

LOCK = "lock"  # a file in a folder that is being written, with the process's id
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems that have no locks
LOCKED_BYTE = 1 << 30  # behind the file's end: on Windows, nobody else can read a locked byte


def digest(*parts: bytes | memoryview, size: int = 16) -> str:
    """A hash of bytes, as hexadecimal digits: two for each byte of its size."""
    total = hashlib.blake2b(digest_size=size)
    for part in parts:
        total.update(part)
    return total.hexdigest()


# Writing


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failed write (no space, no permission) into a sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {str(path)!r}: {error.strerror}; what was saved before is intact: "
            "fix this, then continue with --resume"
        ) from error


def write_file(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file as a whole or not at all. A durable one also survives a power cut."""
    with writing(path):
        with suppress(FileNotFoundError):
            check_plain(path)  # a device or a pipe would be replaced by a file
        made = not path.parent.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()  # half a file, which may fill the disk
            raise
        if durable:
            sync(path.parent)
        if durable and made:
            sync(path.parent.parent)


def append(path: Path, data: bytes) -> int:
    """Add bytes to the end of a file with a single write: where they begin."""
    with writing(path), open(path, "ab", buffering=0) as file:
        at = file.tell()
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, "no space left on device")
    return at


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a folder, survive a power cut."""
    if sys.platform == "win32" and path.is_dir():
        return  # folders cannot be opened there
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Reading


def check_plain(path: Path) -> None:
    """Raise OSError for pipes, devices and folders: reading them may never end."""
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise OSError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def read_plain(path: Path) -> bytes:
    """The bytes of a plain file. Raises OSError for pipes, devices and folders."""
    check_plain(path)
    return path.read_bytes()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise RunError where a file of a run cannot be read."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{str(path)!r} cannot be read ({error.strerror})") from None


# One writer


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, made if need be. Raises LockedError where another process holds it.

    A kill ends the hold. On file systems without locks, and on Windows, nothing is held.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{str(folder)!r} is a file: choose another folder")
    path = folder / LOCK
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        handle = _hold(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # before the hold ends, so that it is not the next process's
        os.close(handle)


def _hold(path: Path) -> int:
    """Lock a file that nobody deletes meanwhile, and write this process's id to it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle, path)
            is_current = os.path.samestat(os.fstat(handle), os.stat(path))
        except FileNotFoundError:
            is_current = False
        except BaseException:
            os.close(handle)
            raise
        if is_current:
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
            return handle
        os.close(handle)  # the process that held it has deleted it


def _lock(handle: int, path: Path) -> None:
    try:
        _lock_now(handle)
    except BlockingIOError:
        process = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
        raise LockedError(
            f"{str(path.parent)!r} is being written by another process (id {process}): wait until "
            "it ends, or choose another folder"
        ) from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        warnings.warn(
            f"the file system of {str(path.parent)!r} has no locks ({error.strerror}): make sure "
            "that one process at a time writes to it",
            CommonwealWarning,
            stacklevel=2,
        )


def _lock_now(handle: int) -> None:
    """Lock a file until its handle is closed; `BlockingIOError` where another process has it."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(*error.args) from None
    finally:
        os.lseek(handle, 0, os.SEEK_SET)
