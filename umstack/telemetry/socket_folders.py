"""The directories of statistics sockets: the one of this process, and those of others.

A directory is used only if nobody but its owner can have put anything into it: it is not a symbolic link, its mode is
0700, its owner is the user of this process (any user for root, which reads the processes of all users), and its parent
directory belongs to that user or to root and is not writable by others. Sockets are recognized by their exact names.

Where /run/umstack-stat exists, members of its group have their directories there, named after their user ids, mode
0750, so that a reader in the group without privileges, such as the exporter's service, reads those of all members.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from umstack.errors import PermissionNeeded, SystemFailure

SOCKET_NAME = re.compile(r"(?P<pid>[1-9]\d{0,9})-(?P<number>0|[1-9]\d{0,2})\.sock")
_LISTED = re.compile(r"^\S+: \S+ \S+ (?P<flags>\S+) 0001 \S+ +\d+ (?P<path>/.+)$", re.MULTILINE)
_ACCEPTING = "00010000"
"""__SO_ACCEPTCON of /proc/net/unix: the socket listens."""
_FOLDERS_MAX = 1024
SHARED_FOLDER = Path("/run/umstack-stat")


@dataclass(frozen=True, slots=True)
class ContextSocket:
    """The socket of one context."""

    path: Path
    pid: int
    number: int
    owner: int


def chosen_folder() -> Path | None:
    """Return the directory in UMSTACK_STAT_DIR, which is then the only one used; None if unset."""
    chosen = os.environ.get("UMSTACK_STAT_DIR")
    return Path(chosen) if chosen else None


def own_folder() -> Path:
    """Return the directory with the sockets of this user's processes."""
    if chosen := chosen_folder():
        return chosen
    if (shared := _shared_folder()) is not None:
        return shared
    if os.geteuid() == 0:
        return Path("/run/umstack/stat")
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
    """Make a directory for this process's sockets, or reuse an existing one; refuse one that others made."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if _is_shared(folder):
            os.chown(folder, -1, folder.parent.stat().st_gid)
            folder.chmod(0o750)
    check_folder(folder, os.geteuid())


def admit_readers(socket: Path) -> None:
    """Let nobody else connect to a socket, or the group of the directory for shared ones."""
    if _is_shared(socket.parent):
        os.chown(socket, -1, socket.parent.stat().st_gid)
    socket.chmod(0o660 if _is_shared(socket.parent) else 0o600)


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


def sockets_in(folder: Path, pid: int | None = None) -> Iterator[ContextSocket]:
    """Yield the sockets of contexts (of one process) in a directory; none if it does not exist.

    Raises PermissionNeeded if the directory is not trusted. Skips everything that is not a socket of its owner.
    """
    try:
        owner = check_folder(folder, None if os.geteuid() == 0 else os.geteuid())
        entries = sorted(entry.name for entry in os.scandir(folder))
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise SystemFailure(f"statistics directory {folder}: {error.strerror}") from error
    for name in entries:
        match = SOCKET_NAME.fullmatch(name)
        if match is None or (pid is not None and int(match["pid"]) != pid):
            continue
        with contextlib.suppress(FileNotFoundError):
            found = (folder / name).lstat()
            if stat.S_ISSOCK(found.st_mode) and found.st_uid == owner:
                yield ContextSocket(folder / name, int(match["pid"]), int(match["number"]), owner)


def remove_orphans(folder: Path) -> None:
    """Remove this user's sockets of processes that ended without closing theirs."""
    for one in list(sockets_in(folder)):
        if one.owner == os.geteuid() and not Path("/proc", str(one.pid)).exists():
            one.path.unlink(missing_ok=True)


def folders() -> list[Path]:
    """Return every directory in which contexts listen: the one in UMSTACK_STAT_DIR, or this user's and all the kernel
    lists.

    The kernel lists listening sockets by network namespace; the namespaces of all visible processes are included.
    """
    if chosen := chosen_folder():
        return [chosen]
    found = dict.fromkeys([own_folder()])
    for text in _socket_lists():
        for match in _LISTED.finditer(text):
            path = Path(match["path"])
            if (
                match["flags"] == _ACCEPTING
                and SOCKET_NAME.fullmatch(path.name)
                and len(found) < _FOLDERS_MAX
            ):
                found[path.parent] = None
    return list(found)


def _socket_lists() -> Iterator[str]:
    """/proc/net/unix of the network namespace of each process that this user may inspect."""
    seen: set[str] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            namespace = str((entry / "ns" / "net").readlink())
            if namespace not in seen:
                seen.add(namespace)
                yield (entry / "net" / "unix").read_text(errors="replace")
        except OSError:
            continue  # the process has ended, or belongs to another user
