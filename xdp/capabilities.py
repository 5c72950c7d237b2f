"""The privileges of this process that the bypass needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from umstack_xdp.facts import Unknown

# Capability names by bit, as numbered in include/uapi/linux/capability.h.
CAPABILITIES = {
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_IPC_LOCK": 14,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
_NEEDED = ("CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF")


def held_capabilities() -> frozenset[str] | Unknown:
    """Return the effective capabilities of the calling thread."""
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            bits = int(value, 16)
            return frozenset(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)
    return Unknown("/proc does not show them")


def missing_capabilities(held: frozenset[str] | Unknown, needed: Sequence[str] = _NEEDED) -> tuple[str, ...]:
    """Return the required capabilities (default: those of the bypass) that are missing; none if `held` is unknown."""
    if isinstance(held, Unknown):
        return ()
    # CAP_SYS_ADMIN includes the BPF capabilities, which were split from it.
    may = held | {"CAP_BPF", "CAP_PERFMON"} if "CAP_SYS_ADMIN" in held else held
    return tuple(name for name in needed if name not in may)
