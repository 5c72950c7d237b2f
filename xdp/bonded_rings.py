"""Combines the ring sets on the members of a bond: receives from all and sends through the bond's sending member."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from umstack_xdp.closing import Closing
from umstack_xdp.errors import RingError
from umstack_xdp.xsk import RingSet, binding


class BondedRings(Closing):
    """Several ring sets as one (ffi/xsk/bonded_rings.h). Context manager; close it before the ring sets and after all
    users of its address."""

    __slots__ = ("_handle", "_names")

    def __init__(self, members: Sequence[RingSet]) -> None:
        """Combine them. Until `send_by` is called, the kernel's sockets send."""
        self._names = tuple(member.place.device.name for member in members)
        ffi = binding().ffi
        rings = [ffi.cast("um_rings *", member.address) for member in members]
        created = ffi.new("um_bonded_rings **")
        result = int(binding().lib.um_bonded_rings_create(rings, len(rings), created))
        if result != 0:
            raise RingError(
                f"rings on {', '.join(self._names)} together: {os.strerror(-result)}",
                hint="use fewer queues (`ethtool -L`, or link_xdp_queues): 64 in all, of up to 8 NICs",
                errno=-result,
                step="bond",
            )
        self._handle: Any = created[0]

    @property
    def address(self) -> int:
        """The um_rings, as a number, for um_context_create."""
        return int(binding().ffi.cast("uintptr_t", binding().lib.um_bonded_rings_base(self._handle)))

    @property
    def sends_by(self) -> str | None:
        """The NIC used for sending; None: the kernel's sockets send."""
        member = int(binding().lib.um_bonded_rings_sends_by(self._handle))
        return None if member < 0 else self._names[member]

    def send_by(self, name: str | None) -> None:
        """Send through that NIC from now on; for any other name or None the kernel's sockets send. Any thread."""
        member = self._names.index(name) if name in self._names else -1
        binding().lib.um_bonded_rings_send_by(self._handle, member)

    def close(self) -> None:
        """Free it; a second call does nothing."""
        if self._handle is not None:
            binding().lib.um_bonded_rings_free(self._handle)
            self._handle = None
