"""The modes of a link, and what may be asked for: names alone, for those who open none but kernel sockets."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """How datagrams travel, from the best to the one that always works."""

    ZERO_COPY = "zero-copy"
    NATIVE = "native"
    GENERIC = "generic"
    SOCKET = "socket"


class Wanted(StrEnum):
    """What was asked for: the best there is, the best of the bypass, or one mode and no other."""

    AUTO = "auto"
    XDP = "xdp"
    ZERO_COPY = "zero-copy"
    NATIVE = "native"
    GENERIC = "generic"
    SOCKET = "socket"
