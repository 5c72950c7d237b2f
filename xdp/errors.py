"""Errors below the messaging layer. Each describes the failure and, in `hint`, the next step."""

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
    """Root of the errors that this package raises.

    Example:
        ```python
        try:
            xdp.find_interface("eth77")
        except xdp.XdpError as error:
            print(error.message, error.hint)
        ```
    """

    def __init__(self, message: str, *, hint: str) -> None:
        """Store the message and the hint."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return message and hint."""
        return f"{self.message}; {self.hint}"


class NotBuiltError(XdpError):
    """A compiled part is missing: its tools were not installed when the package was built."""


class BpfError(XdpError):
    """The kernel or libbpf refused. `errno` is the reason, `log` the messages of libbpf and the verifier."""

    def __init__(self, what: str, error_number: int, log: str = "", *, hint: str | None = None) -> None:
        """Combine the operation, the reason and the log into one message; `hint` replaces the hint for `errno`."""
        self.errno = error_number
        self.log = log.strip()
        reason = "libbpf refused it" if error_number >= _LIBBPF_ERRNO_FIRST else os.strerror(error_number)
        message = f"{what}: {reason}\n{self.log}" if self.log else f"{what}: {reason}"
        if error_number == errno.EACCES and _NEEDS_PERFMON in self.log:
            hint = (
                "this kernel's verifier requires CAP_PERFMON as well: give it to the process, or run as root"
            )
        hint = hint or _HINTS.get(error_number, "check that the kernel has CONFIG_BPF_SYSCALL")
        super().__init__(message, hint=hint)


class AttachError(BpfError):
    """The program is loaded but cannot be attached to the interface."""


class OccupiedError(XdpError):
    """Another XDP program is attached to the interface; `occupants` lists the programs."""

    def __init__(self, message: str, *, hint: str, occupants: tuple[object, ...]) -> None:
        """Store `occupants`: the programs attached to the interface."""
        super().__init__(message, hint=hint)
        self.occupants = occupants


class SteeringError(XdpError):
    """A steering rule or a socket could not be set up."""


class GroupError(XdpError):
    """A multicast group cannot be joined."""


class FlowSteeringError(XdpError):
    """The NIC refused a filter or a spread of its queues."""


class FlowSteeringUnsupportedError(FlowSteeringError):
    """The NIC or its driver does not support flow steering."""


class InterfaceError(XdpError):
    """No network interface meets the request."""


class NoSuchInterfaceError(InterfaceError):
    """No interface has that name, address or network."""


class NoMulticastRouteError(InterfaceError):
    """Multicast is not routed through the chosen interface."""


class SettingError(XdpError):
    """A setting of the NIC or of the host could not be changed."""

    def __init__(self, what: str, reason: str, error_number: int = 0) -> None:
        """`what` is the setting, `reason` why it failed, `error_number` the kernel's error number or 0."""
        self.what, self.reason, self.errno = what, reason, error_number
        hint = (
            "run as root, or with CAP_NET_ADMIN"
            if error_number in (errno.EPERM, errno.EACCES)
            else "see what `umstack nic check` shows, and leave its stage out with --skip"
        )
        super().__init__(f"{what}: {reason}", hint=hint)


class RingError(XdpError):
    """AF_XDP rings could not be opened. `errno` is the reason, `step` the failed operation."""

    def __init__(self, message: str, *, hint: str, errno: int, step: str) -> None:
        """Keep the reason, so that a caller that tries one mode after another can report it."""
        super().__init__(message, hint=hint)
        self.errno = errno
        self.step = step


class BrokerError(XdpError):
    """The broker refused or does not respond. `errno` is the error of the system call, 0 if none failed."""

    def __init__(self, message: str, *, hint: str, errno: int = 0) -> None:
        """Keep the number, so that a caller that tries one mode after another can report it."""
        super().__init__(message, hint=hint)
        self.errno = errno
