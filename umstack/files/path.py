"""Paths and links that may be transferred: those that stay inside the tree.

A path is bytes, as in the file system. Both sides apply the same rules, so that a receiver refuses nothing that an
honest sender sends.
"""

from __future__ import annotations

import os

from umstack.files.errors import UnsafePath

PATH_BYTES_MAX = 4096
NAME_BYTES_MAX = 255
DEPTH_MAX = 128


def path_parts(path: bytes) -> tuple[bytes, ...]:
    """Split a relative path inside the tree into names. Raises UnsafePath for any other path."""
    if not 0 < len(path) <= PATH_BYTES_MAX:
        raise UnsafePath(f"a path of {len(path)} bytes is not 1 to {PATH_BYTES_MAX} long")
    parts = tuple(path.split(b"/"))
    if len(parts) > DEPTH_MAX:
        raise UnsafePath(f"it is more than {DEPTH_MAX} directories deep")
    for name in parts:
        if name in (b"", b".", b"..") or b"\0" in name:
            raise UnsafePath("it is not a path inside a tree")
        if len(name) > NAME_BYTES_MAX:
            raise UnsafePath(f"it has a name of more than {NAME_BYTES_MAX} bytes")
    return parts


def check_link(parts: tuple[bytes, ...], target: bytes) -> None:
    """Raise UnsafePath unless the link at `parts` points inside the tree.

    A target goes up first, no further than the tree's root, and then only down. The directories above a link are
    never links themselves, so going up leads where it seems to; going down meets only links under the same rule.
    """
    if not 0 < len(target) <= PATH_BYTES_MAX or b"\0" in target:
        raise UnsafePath("it is a link with a target that is invalid on any file system")
    names = target.rstrip(b"/").split(b"/")
    ups = 0
    while ups < len(names) and names[ups] == b"..":
        ups += 1
    if ups >= len(parts) or any(name in (b"", b"..") for name in names[ups:]):
        raise UnsafePath(f"it is a link that leads out of the tree, to {shown(target)}")


def shown(path: bytes) -> str:
    """Return a path as text that is safe to print."""
    text = os.fsdecode(path)
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
