"""A device to which a BPF program redirects frames by reference, for a packet socket to capture.

It is a TAP without a reader: runs of datagrams (UDP GSO) reach it whole, are captured and dropped. It is removed
when it is closed or its process ends in any way. Works on the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
import os

from umstack_xdp.closing import Closing
from umstack_xdp.errors import BpfError
from umstack_xdp.loader import libbpf

_HINTS = {
    errno.ENOENT: "load the module tun, or let the container have /dev/net/tun",
    errno.EPERM: "run as root, or give the process CAP_NET_ADMIN",
    errno.EACCES: "let the user open /dev/net/tun",
    errno.EINVAL: "use Linux 6.2 or later, whose TAP devices take runs of datagrams whole",
}
_OTHERWISE = "see that /dev/net/tun is the device of the kernel's TUN/TAP driver"


class MirrorDevice(Closing):
    """A mirror device that is up. Context manager."""

    __slots__ = ("_fd", "index", "name")

    def __init__(self) -> None:
        """Create it under a free name."""
        module = libbpf()
        ffi, lib = module.ffi, module.lib
        name, index = ffi.new("char[]", lib.XDP_MIRROR_NAME_BYTES), ffi.new("uint32_t *")
        self._fd: int = lib.xdp_mirror_device_open(name, index)
        if self._fd < 0:
            number = -self._fd
            raise BpfError("creating the mirror device", number, hint=_HINTS.get(number, _OTHERWISE))
        self.index = int(index[0])
        self.name: str = ffi.string(name).decode()

    def close(self) -> None:
        """Remove it; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
