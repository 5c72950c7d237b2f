"""The directories of counter files (umstack.telemetry.counter_file): the one of this process, and those of others.

A directory is used only if nobody but its owner can have put anything into it: it is not a symbolic link, its mode is
0700, its owner is the user of this process (any user for root, which reads the processes of all users), and its parent
directory belongs to that user or to root and is not writable by others. Files are recognized by their exact names.

Where /run/umstack-stat exists, members of its group have their directories there, named after their user ids, mode
0750, so that a reader in the group without privileges, such as the exporter's service, reads those of all members.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from umstack.errors import PermissionNeeded, SystemFailure

_FILE_NAME = re.compile(r"(?P<pid>[1-9]\d{0,9})-(?P<number>0|[1-9]\d{0,2})\.counters")
_FOLDERS_MAX = 1024
_FILES_MAX = 100_000
SHARED_FOLDER = Path("/run/umstack-stat")
_ROOT_FOLDER = Path("/run/umstack/stat")


@dataclass(frozen=True, slots=True)
class ContextFile:
    """The counter file of one context."""

    path: Path
    pid: int
    number: int
    owner: int


def file_name(pid: int, number: int) -> str:
    """Return the name of the counter file of a context."""
    return f"{pid}-{number}.counters"


def chosen_folder() -> Path | None:
    """Return the directory in UMSTACK_STAT_DIR, which is then the only one used; None if unset."""
    chosen = os.environ.get("UMSTACK_STAT_DIR")
    return Path(chosen) if chosen else None


def own_folder() -> Path:
    """Return the directory with the files of this user's processes."""
    if chosen := chosen_folder():
        return chosen
    if (shared := _shared_folder()) is not None:
        return shared
    if os.geteuid() == 0:
        return _ROOT_FOLDER
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "umstack", "stat")
    import tempfile

    return Path(tempfile.gettempdir(), f"umstack-{os.geteuid()}", "stat")


def _shared_folder() -> Path | None:
    """Return the directory of this user that the group of the statistics reads, None if there is none for it."""
    folder = SHARED_FOLDER / str(os.geteuid())
    if not os.access(SHARED_FOLDER, os.W_OK | os.X_OK):
        return None
    with contextlib.suppress(FileNotFoundError):
        if folder.lstat().st_uid != os.geteuid():
            return None  # another member has made it, who cannot be trusted
    return folder


def make_folder(folder: Path) -> None:
    """Make a directory for this process's files, or reuse an existing one; refuse one that others made."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if _is_shared(folder):
            os.chown(folder, -1, folder.parent.stat().st_gid)
            folder.chmod(0o750)
    check_folder(folder, os.geteuid())


def admit_readers(fd: int, folder: Path) -> None:
    """Let nobody else read a new file in a directory, or the group of a shared directory."""
    if _is_shared(folder):
        os.fchown(fd, -1, folder.parent.stat().st_gid)
        os.fchmod(fd, 0o640)


def _is_shared(folder: Path) -> bool:
    return folder.parent == SHARED_FOLDER


def check_folder(folder: Path, user: int | None) -> int:
    """Return the owner of a directory that only its owner, who must be `user` (None: any user), can have filled.

    PermissionNeeded with the reason for any other; FileNotFoundError if it does not exist.
    """
    found, above = folder.lstat(), folder.parent.lstat()
    if not stat.S_ISDIR(found.st_mode):
        _refuse(folder, "it is a symbolic link" if stat.S_ISLNK(found.st_mode) else "it is not a directory")
    expected, others = (0o750, 0o027) if _is_shared(folder) else (0o700, 0o077)
    if _is_shared(folder) and folder.name != str(found.st_uid):
        _refuse(folder, f"it belongs to user {found.st_uid}, not the one in its name")
    if user is not None and found.st_uid != user and not _is_shared(folder):
        _refuse(folder, f"it belongs to user {found.st_uid}")
    if stat.S_IMODE(found.st_mode) & others:
        _refuse(folder, f"its mode is {stat.S_IMODE(found.st_mode):04o} instead of {expected:04o}")
    if not stat.S_ISDIR(above.st_mode):
        _refuse(folder, f"{folder.parent} is a symbolic link")
    if above.st_uid not in (0, found.st_uid):
        _refuse(folder, f"{folder.parent} belongs to user {above.st_uid}")
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        _refuse(folder, f"others may write to {folder.parent}")
    return found.st_uid


def _refuse(folder: Path, why: str) -> None:
    raise PermissionNeeded(
        f"statistics directory {folder} is not used: {why}",
        hint="remove it, or set UMSTACK_STAT_DIR to another directory of yours",
    )


def files_in(folder: Path, pid: int | None = None) -> Iterator[ContextFile]:
    """Yield the counter files (of one process) in a directory; none if it does not exist.

    Raises PermissionNeeded if the directory is not trusted. Skips everything that is not a file of its owner.
    """
    try:
        owner = check_folder(folder, None if os.geteuid() == 0 else os.geteuid())
        entries = sorted(entry.name for entry in islice(os.scandir(folder), _FILES_MAX))
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise SystemFailure(f"statistics directory {folder}: {error.strerror}") from error
    for name in entries:
        match = _FILE_NAME.fullmatch(name)
        if match is None or (pid is not None and int(match["pid"]) != pid):
            continue
        with contextlib.suppress(FileNotFoundError):
            found = (folder / name).lstat()
            if stat.S_ISREG(found.st_mode) and found.st_uid == owner:
                yield ContextFile(folder / name, int(match["pid"]), int(match["number"]), owner)


@contextlib.contextmanager
def opened(one: ContextFile) -> Iterator[int]:
    """Open a counter file to read it. Raises OSError, also if it is another file by now."""
    fd = os.open(one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != one.owner:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(one.path))
        yield fd
    finally:
        os.close(fd)


def folders() -> list[Path]:
    """Return every directory in which contexts may have files: the one in UMSTACK_STAT_DIR, or those of the table in
    docs/operations-statistics.md, for root of all users."""
    if chosen := chosen_folder():
        return [chosen]
    user = "*" if os.geteuid() == 0 else str(os.geteuid())
    import tempfile

    found = dict.fromkeys([own_folder(), _ROOT_FOLDER])
    for above, pattern in (
        (SHARED_FOLDER, "*"),
        (Path("/run/user"), f"{user}/umstack/stat"),
        (Path(tempfile.gettempdir()), f"umstack-{user}/stat"),
    ):
        found |= dict.fromkeys(islice(above.glob(pattern), _FOLDERS_MAX))
    return list(found)
