"""What can go wrong below the messaging layer. Each error says what happened and, in `hint`, what to do next."""

from __future__ import annotations

import errno
import os

_LIBBPF_ERRNO_FIRST = 4000
_HINTS = {
    errno.EPERM: "run as root, or give the process CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
    errno.EACCES: "the verifier refused the program: see its log",
    errno.ENOSPC: "free maps that are no longer used, or raise `ulimit -l`",
    errno.ENOENT: "build the BPF objects again, they are not those of this version",
}
_NEEDS_PERFMON = "pointer comparison prohibited"


class XdpError(Exception):
    """Root of the errors this package raises."""

    def __init__(self, message: str, *, hint: str) -> None:
        """Say what happened, and what to do next."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Show both, as people read them."""
        return f"{self.message}; {self.hint}"


class NotBuiltError(XdpError):
    """A compiled part is missing: its tools were not there when the package was built."""


class BpfError(XdpError):
    """The kernel or libbpf refused. `errno` says how, `log` is what libbpf and the verifier said about it."""

    def __init__(self, what: str, error_number: int, log: str = "", *, hint: str | None = None) -> None:
        """Put what was tried, the reason and the log into one message; `hint` where more is known than `errno`."""
        self.errno = error_number
        self.log = log.strip()
        reason = "libbpf refused it" if error_number >= _LIBBPF_ERRNO_FIRST else os.strerror(error_number)
        message = f"{what}: {reason}\n{self.log}" if self.log else f"{what}: {reason}"
        if error_number == errno.EACCES and _NEEDS_PERFMON in self.log:
            hint = "this kernel's verifier wants CAP_PERFMON as well: give it to the process, or run as root"
        hint = hint or _HINTS.get(error_number, "check that the kernel has CONFIG_BPF_SYSCALL")
        super().__init__(message, hint=hint)


class AttachError(BpfError):
    """The program is loaded, but the interface does not take it."""


class OccupiedError(XdpError):
    """Another XDP program is on the interface; `occupants` says which."""

    def __init__(self, message: str, *, hint: str, occupants: tuple[object, ...]) -> None:
        """Keep the `occupants`: the programs that are on the interface."""
        super().__init__(message, hint=hint)
        self.occupants = occupants


class SteeringError(XdpError):
    """A rule or a socket cannot be had as asked."""


class GroupError(XdpError):
    """A multicast group cannot be joined."""


class FlowSteeringError(XdpError):
    """The NIC refused a filter or a spread of its queues."""


class FlowSteeringUnsupportedError(FlowSteeringError):
    """The NIC or its driver has no such thing."""


class InterfaceError(XdpError):
    """No network interface does what was asked."""


class NoSuchInterfaceError(InterfaceError):
    """Nothing bears that name, address or network."""


class NoMulticastRouteError(InterfaceError):
    """Multicast does not leave through the interface that was chosen."""


class SettingError(XdpError):
    """A setting of the NIC or of the host could not be changed."""

    def __init__(self, what: str, reason: str, error_number: int = 0) -> None:
        """`what` was being set, and `reason` is why it failed; `errno` is the kernel's number, 0 where it gave none."""
        self.what, self.reason, self.errno = what, reason, error_number
        hint = (
            "run as root, or with CAP_NET_ADMIN"
            if error_number in (errno.EPERM, errno.EACCES)
            else "see what `umstack nic check` shows, and leave its stage out with --skip"
        )
        super().__init__(f"{what}: {reason}", hint=hint)


class RingError(XdpError):
    """AF_XDP rings cannot be opened as asked. `errno` says why, `step` what was being done."""

    def __init__(self, message: str, *, hint: str, errno: int, step: str) -> None:
        """Keep the reason, so that a caller that tries one mode after another can report it."""
        super().__init__(message, hint=hint)
        self.errno = errno
        self.step = step


class BrokerError(XdpError):
    """The broker refused, or there is none that answers. `errno` is what stopped it, 0 where it was no system call."""

    def __init__(self, message: str, *, hint: str, errno: int = 0) -> None:
        """Keep the number, so that a caller that tries one mode after another can report it."""
        super().__init__(message, hint=hint)
        self.errno = errno
