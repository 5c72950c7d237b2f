"""The host id of LBT-IPC: which threads can reach one another by the names of control sockets, to share memory."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/thread-self/ns/net")


def host_id() -> int:
    """Return the number of this thread's network namespace on this running kernel; elsewhere it differs.

    Abstract socket names belong to a network namespace. Two hosts have equal numbers with a chance of 2**-32; a
    receiver then finds no socket, and the session ends.
    """
    network = _NETWORK.stat()
    return _number(network.st_dev, network.st_ino)


@cache
def _number(device: int, inode: int) -> int:
    boot = _BOOT_ID.read_text(encoding="ascii").strip()
    text = f"{boot} {device} {inode}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") or 1
