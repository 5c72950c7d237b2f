"""What can go wrong below the messaging layer. Every message says what to do next."""

from __future__ import annotations

import errno
import os


class XdpError(Exception):
    """Root of the errors this package raises."""


class NotBuiltError(XdpError):
    """A compiled part is missing: its tools were not there when the package was built."""


class BpfError(XdpError):
    """The kernel or libbpf refused. `errno` says how, `log` is what libbpf and the verifier said about it."""

    def __init__(self, what: str, error_number: int, log: str = "") -> None:
        """Put the cause, the remedy where one is known, and the log into one message."""
        self.errno = error_number
        self.log = log.strip()
        remedy = _REMEDIES.get(error_number, "")
        reason = "libbpf refused it" if error_number >= _LIBBPF_ERRNO_FIRST else os.strerror(error_number)
        parts = [f"{what}: {reason}", remedy, self.log]
        super().__init__("\n".join(part for part in parts if part))


class InterfaceError(XdpError):
    """No network interface does what was asked."""


class NoSuchInterfaceError(InterfaceError):
    """Nothing bears that name, address or network."""


class NoMulticastRouteError(InterfaceError):
    """Multicast does not leave through the interface that was chosen."""


_LIBBPF_ERRNO_FIRST = 4000
_REMEDIES = {
    errno.EPERM: "run as root, or give the process CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
    errno.EACCES: "the verifier refused the program; its log follows",
    errno.ENOSPC: "the kernel ran out of room for it: raise `ulimit -l`, or free maps that are no longer used",
}
