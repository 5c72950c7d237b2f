"""The host id of LBT-IPC: which processes can share memory with this one by the names of their control sockets."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@cache
def host_id() -> int:
    """Return a number that is equal in processes of one network namespace of one running kernel, and else differs.

    Abstract socket names belong to a network namespace. Two hosts have equal numbers with a chance of 2**-32; a
    receiver then finds no socket, and the session ends.
    """
    boot = _BOOT_ID.read_text(encoding="ascii").strip()
    network = _NETWORK.stat()
    text = f"{boot} {network.st_dev} {network.st_ino}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") or 1
