"""Link modes and requests for them: names only, for callers that use only kernel sockets."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The link modes, from the best to the one that always works."""

    ZERO_COPY = "zero-copy"
    NATIVE = "native"
    GENERIC = "generic"
    SOCKET = "socket"


class Wanted(StrEnum):
    """The requested mode: the best available, the best of the bypass, or exactly one mode."""

    AUTO = "auto"
    XDP = "xdp"
    ZERO_COPY = "zero-copy"
    NATIVE = "native"
    GENERIC = "generic"
    SOCKET = "socket"
