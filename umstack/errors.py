"""The tree of errors under UmError. The message of each is what happened, its `hint` is what to do next."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class UmError(Exception):
    """Root of every error of this package.

    `message` describes what happened, `hint` what to do next. `errno` is the operating system's error number, or 0.

    Args:
        message: Description of the failure.
        hint: Advice on the next step; None: the hint of the class.
        errno: The operating system's error number, or 0.

    Example:
        ```python
        try:
            umstack.Context("no-such-interface")
        except umstack.UmError as error:
            print(error.hint)
        ```
    """

    default_hint: ClassVar[str] = "run `umstack doctor` and see docs/troubleshooting.md"

    def __init__(self, message: str, *, hint: str | None = None, errno: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.errno = errno

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"


class OptionError(UmError):
    """An option does not exist or has a wrong value."""

    default_hint = "docs/options.md lists every option with its scope, unit and range"


class OptionAbsent(OptionError):
    """This stack does not have this option or scope of Ultra Messaging; the hint gives the reason."""


class ConfigError(OptionError):
    """An OptionError at line `line` (from 1) of the configuration text `file`."""

    def __init__(self, message: str, *, file: str, line: int, hint: str | None = None) -> None:
        super().__init__(f"{file}:{line}: {message}", hint=hint)
        self.file = file
        self.line = line


class TopicNameError(UmError):
    """The topic name cannot be sent."""

    default_hint = "a topic name is 1 to 246 bytes of UTF-8 without NUL"


class InterfaceError(UmError):
    """The network interface does not exist, or does not have what the call needs."""

    default_hint = "list the interfaces with `ip -br address` and name one that is up and has an IPv4 address"


class PermissionNeeded(UmError):
    """The process does not have the required privilege."""

    default_hint = "run as root, or grant the capabilities `umstack doctor` names"


class Unsupported(UmError):
    """This host, kernel or build does not support the call."""

    default_hint = "run `umstack doctor` to see what this host can do, or use link=auto"


class ResourceLimit(UmError):
    """A bounded table, a memory limit or a limit on file descriptors is reached."""

    default_hint = "close what is no longer used, or raise the limit that the message names"


class LinkError(UmError):
    """The link (socket or ring) failed to open, send or receive."""

    default_hint = "run `umstack doctor` on the interface"


class ResolutionError(UmError):
    """Topic resolution cannot run."""

    default_hint = "check that multicast reaches resolver_multicast_address on this interface"


class WouldBlock(UmError):
    """A call reached its timeout while waiting. Nothing was sent and no sequence number used."""

    default_hint = "try again later, or give the call a longer timeout"


class BackPressured(WouldBlock):
    """The publication limit is reached: receivers or the sender are behind (AE-13)."""

    default_hint = "let the receivers catch up and try again, or give the call a longer timeout"


class RateLimited(WouldBlock):
    """The data rate limiter has no allowance left in this slice (UX-1)."""

    default_hint = "try again in the next slice, or raise transport_lbtrm_data_rate_limit"


class NotConnected(WouldBlock):
    """Flow control knows no receiver yet (AE-12)."""

    default_hint = (
        "start a receiver of the topic, wait for it, or set flow_control_without_receivers to publish"
    )


class ResponseTimeout(UmError):
    """No response to a request arrived in time."""

    default_hint = "start a receiver of the topic that responds, or give it longer"


class ResponseFailed(UmError):
    """A response cannot reach the requester: it is gone, or has stopped reading."""

    default_hint = "the requester's host must be reachable by TCP at the port that its requests name"


class ResponsesDropped(UmError):
    """`count` responses to a request were dropped for lack of memory; later ones can be read."""

    default_hint = (
        "read responses as they come, or raise request_response_buffer and response_maximum_message_length"
    )
    count = 1

    def __str__(self) -> str:
        return f"{self.message}: {self.count} responses dropped; {self.hint}"


class Closed(UmError):
    """The object was closed before or during the call."""

    default_hint = "create a new one; a closed context, source or receiver cannot be used again"


class Forked(Closed):
    """A forked child used an object that its parent opened."""

    default_hint = (
        "make a Context in the child, and give it to nobody forked later; multiprocessing: "
        "use the start method 'spawn' or 'forkserver'"
    )


class PositionExhausted(Closed):
    """The publication log has used up its 64-bit position space."""

    default_hint = "close the source and create it again to start a new session"


class MessageTooLong(UmError):
    """A message or datagram exceeds its maximum length."""

    default_hint = "send a shorter message, or claim at most one fragment's payload"


class DriverError(UmError):
    """The driver could not be reached, refused a request, or has ended (docs/driver.md)."""

    default_hint = "start it with `umstack driver INTERFACE`, or open the context with driver='none'"


class InvalidArgument(UmError):
    """An argument is out of range or has the wrong type."""

    default_hint = "check the arguments against the documentation of the call"


class NotBytes(InvalidArgument, TypeError):
    """A message was given as str instead of bytes."""

    default_hint = "encode it: send(text.encode())"


class SystemFailure(UmError):
    """An operating system error without a more specific class."""

    default_hint = "run `umstack doctor`; the error number is in `errno`"


# Publish results of the core (enum um_publish_result in ffi/core/foundation/base.h).
_PUBLISH_RESULTS: dict[int, tuple[type[UmError], str]] = {
    -1001: (NotConnected, "no receiver is connected"),
    -1002: (BackPressured, "the publication limit is reached"),
    -1003: (WouldBlock, "the publication log is moving to its next term"),
    -1004: (Closed, "the session is closed"),
    -1005: (PositionExhausted, "the publication log is used up"),
    -1006: (RateLimited, "the data rate limit is reached"),
}

_ROUTE_HINT = (
    "the kernel has no way to that group: name the interface, bring it up (`ip link set IFACE up`) "
    "and add `ip route add 224.0.0.0/4 dev IFACE` if it has no default route"
)

# errno -> class and, where the class's own hint is too vague, a better one.
_ERRNOS: dict[int, tuple[type[UmError], str | None]] = {
    errno.EPERM: (PermissionNeeded, None),
    errno.EACCES: (PermissionNeeded, None),
    errno.EAGAIN: (WouldBlock, None),
    errno.ENOTCONN: (NotConnected, None),
    errno.ENODEV: (InterfaceError, None),
    errno.ENXIO: (InterfaceError, None),
    errno.EADDRNOTAVAIL: (
        InterfaceError,
        "no interface of this host has the address: see `ip -br address`",
    ),
    errno.ENETDOWN: (InterfaceError, "bring the interface up: `ip link set IFACE up`"),
    errno.ENETUNREACH: (LinkError, _ROUTE_HINT),
    errno.EHOSTUNREACH: (LinkError, _ROUTE_HINT),
    errno.EADDRINUSE: (
        LinkError,
        "another process owns the port: widen transport_lbtrm_source_port_low/high or end that process "
        "(`ss -ulpn` shows it)",
    ),
    errno.EMSGSIZE: (
        MessageTooLong,
        "set transport_lbtrm_datagram_max_size to 0, or to the interface MTU minus 28",
    ),
    errno.EINVAL: (InvalidArgument, None),
    errno.ERANGE: (InvalidArgument, None),
    errno.EOPNOTSUPP: (Unsupported, None),
    errno.ENOSYS: (Unsupported, None),
    errno.EPROTONOSUPPORT: (Unsupported, None),
    errno.EAFNOSUPPORT: (Unsupported, None),
    errno.ENOPROTOOPT: (Unsupported, None),
    errno.ENOMEM: (ResourceLimit, "free memory, or configure smaller windows and queues"),
    errno.ENOBUFS: (ResourceLimit, "raise net.core.wmem_max and net.core.rmem_max with sysctl"),
    errno.ENOSPC: (ResourceLimit, None),
    errno.EMFILE: (ResourceLimit, "raise the limit on open files (`ulimit -n`)"),
    errno.ENFILE: (ResourceLimit, "raise the sysctl fs.file-max"),
    errno.EPIPE: (Closed, None),
    errno.ESHUTDOWN: (Closed, None),
    errno.EBADF: (Closed, None),
    errno.EIO: (LinkError, None),
    errno.ENETRESET: (LinkError, None),
}


def error_from_result(result: int, context: str) -> UmError:
    """Return the error for a negative `result` of the C core; `context` names the operation.

    A result is a negative errno or one of the core's publish results. Raises ValueError for a result of 0 or more.
    """
    if result >= 0:
        raise ValueError(f"{context}: {result} is not an error")
    if result in _PUBLISH_RESULTS:
        kind, what = _PUBLISH_RESULTS[result]
        return kind(f"{context}: {what}")
    number = -result
    kind, hint = _ERRNOS.get(number, (SystemFailure, None))
    return kind(f"{context}: {os.strerror(number)}", hint=hint, errno=number)


_PATH_HINTS = {
    errno.ENOENT: "it, or a directory on the way to it, does not exist: look at the name, or use mkdir -p",
    errno.ENOTDIR: "something on the way to it is no directory: look at the name",
    errno.EISDIR: "it is a directory: use the path of a file",
    errno.EEXIST: "something else has this name: name another",
    errno.EACCES: "this user may not: choose another place, or change its permissions",
    errno.EPERM: "this user may not: choose another place, or change its permissions",
    errno.EROFS: "the file system is mounted read-only: choose another place",
    errno.ENOSPC: "the file system is full: make space, or choose another place",
    errno.EDQUOT: "the disk quota is used up: make space, or choose another place",
    errno.EFBIG: "the file would be larger than the limit: raise it (`ulimit -f`), or choose another place",
    errno.EIO: "the device reports an error: see the kernel's log (`dmesg`)",
}


def error_from_path(error: OSError, context: str) -> UmError:
    """Return the error for an OSError about the file or directory named in `context`, with a hint about that path."""
    hint = _PATH_HINTS.get(error.errno or 0)
    if hint is None:
        return error_from_os(error, context)
    return SystemFailure(f"{context}: {os.strerror(error.errno or 0)}", hint=hint, errno=error.errno or 0)


@contextmanager
def naming_path(context: str) -> Iterator[None]:
    """Raise an OSError of the block as `error_from_path` returns it. Writing to an open file names no path."""
    try:
        yield
    except OSError as error:
        raise error_from_path(error, context) from error


def error_from_os(error: OSError, context: str) -> UmError:
    """Return the error for an OSError of the standard library."""
    if error.errno is None:
        return SystemFailure(f"{context}: {error}")
    return error_from_result(-error.errno, context)
