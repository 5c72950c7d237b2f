"""The egress tap: copies or mirrors outgoing packets of an interface before the kernel splits them into datagrams.

The program (bpf/egress_tap.bpf.c) is held by a bpf_link: when the tap is closed or its process ends in any way, the
kernel detaches it. The reader of the ring maps its descriptors (ffi/capture/writing/egress_ring.h). With a mirror
(xdp/mirror_device.py) runs of datagrams are not in the ring: a packet socket receives them from the device
(ffi/capture/writing/frame_merge.h). Works on the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from umstack_xdp.closing import Closing
from umstack_xdp.errors import AttachError
from umstack_xdp.interface import Interface, find_interface
from umstack_xdp.loader import BpfObject, checked, libbpf
from umstack_xdp.mirror_device import MirrorDevice

NAME = "egress_tap"
RING_MIN_BYTES = 1 << 20
Range = tuple[int, int]
"""First and last value, both inclusive."""

_HINTS = {
    errno.EINVAL: "use Linux 6.6 or later, which has tcx",
    errno.ENODEV: "the interface is gone: name another",
}


@dataclass(frozen=True, slots=True)
class EgressFilter:
    """UDP over IPv4 to these groups, on these ports if any are named, and to any other address on the unicast ports;
    TCP over IPv4 from or to the stream ports."""

    groups: Sequence[Range]
    group_ports: Sequence[Range] = ()
    unicast_ports: Sequence[Range] = ()
    stream_ports: Sequence[Range] = ()

    def fits(self) -> bool:
        """Return true if the program accepts this many ranges."""
        most = int(libbpf().lib.EGRESS_TAP_RANGES_MAX)
        every = (self.groups, self.group_ports, self.unicast_ports, self.stream_ports)
        return all(len(ranges) <= most for ranges in every)

    def packed(self, mirror_index: int = 0) -> bytes:
        """Return the value of the program's map, with the mirror to use."""
        ffi = libbpf().ffi
        value = ffi.new("struct egress_tap_filter *")
        for name, count, ranges in (
            ("groups", "group_count", self.groups),
            ("group_ports", "group_port_count", self.group_ports),
            ("unicast_ports", "unicast_port_count", self.unicast_ports),
            ("stream_ports", "stream_port_count", self.stream_ports),
        ):
            setattr(value, name, list(ranges))
            setattr(value, count, len(ranges))
        value.mirror_index = mirror_index
        return bytes(ffi.buffer(value))


@dataclass(frozen=True, slots=True)
class SocketFilter:
    """The descriptors of a program for a packet socket, and of the map in which it stores when it accepts a frame."""

    program_fd: int
    stamps_fd: int


class EgressTap(Closing):
    """An attached tap. Context manager; its ring is readable until the tap is closed, and longer if it is mapped."""

    __slots__ = ("_link", "_programs", "interface", "mirror", "ring_bytes")

    def __init__(
        self,
        interface: Interface | str,
        wanted: EgressFilter,
        ring_bytes: int,
        mirror: MirrorDevice | None = None,
    ) -> None:
        """Load the program and attach it after existing ones; the ring's size is rounded to a power of two.

        The mirror is closed with the tap.
        """
        self.mirror = mirror
        self._link = -1
        self.interface = interface if isinstance(interface, Interface) else find_interface(interface)
        self.ring_bytes = 1 << (max(ring_bytes, RING_MIN_BYTES).bit_length() - 1)
        self._programs = BpfObject(NAME, map_entries={"ring": self.ring_bytes})
        try:
            self._programs.map("filter").write(wanted.packed(self.mirror_index))
            self._link = self._attach()
        except BaseException:
            self.close()
            raise

    @property
    def mirror_index(self) -> int:
        """The mirror's interface, 0 without one."""
        return self.mirror.index if self.mirror is not None else 0

    @property
    def ring_fd(self) -> int:
        """The descriptor of the ring, valid until the tap is closed."""
        return self._programs.map("ring").fd

    @property
    def incoming(self) -> SocketFilter:
        """Filter for a packet socket on the interface, valid until the tap is closed."""
        return self._socket_filter("incoming")

    @property
    def mirrored(self) -> SocketFilter:
        """Filter for a packet socket on the mirror, valid until the tap is closed."""
        return self._socket_filter("mirrored")

    def _socket_filter(self, what: str) -> SocketFilter:
        programs = self._programs
        return SocketFilter(programs.program(f"let_in_{what}").fd, programs.map(f"{what}_stamps").fd)

    @property
    def counters_fd(self) -> int:
        """The descriptor of the counters, valid until the tap is closed."""
        return self._programs.map("counters").fd

    def detach(self) -> None:
        """Stop adding to the ring, whose contents remain. A second call does nothing."""
        if self._link >= 0:
            os.close(self._link)
            self._link = -1

    def close(self) -> None:
        """Detach and free the ring; a second call does nothing."""
        self.detach()
        if self.mirror is not None:
            self.mirror.close()
        self._programs.close()

    def _attach(self) -> int:
        result = libbpf().lib.xdp_bpf_tcx_attach(self._programs.program(NAME).fd, self.interface.index)
        if result < 0:
            what = f"attaching {NAME} to the egress of {self.interface.name}"
            raise AttachError(what, -result, hint=_HINTS.get(-result))
        return int(result)


def egress_program_count(interface: Interface) -> int:
    """Return the number of tcx programs at the interface's egress. BpfError with EINVAL: the kernel has no tcx."""
    result: Any = libbpf().lib.xdp_bpf_tcx_program_count(interface.index)
    return checked(int(result), f"reading the programs at the egress of {interface.name}")
