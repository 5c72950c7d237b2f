"""The Stores of a source in its advertisements, as Ultra Messaging's topic options 2 and 14 (docs/wire.md)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from umstack._engine.endpoint import Endpoint
from umstack.errors import InvalidArgument
from umstack.resolution.codec import WireOption
from umstack.store.wire import STORES_MAXIMUM

_STORE, _EXTENDED_FUNCTION = 2, 14
_STORE_BODY = struct.Struct("!BBHH4sI")
_EXTENDED_FUNCTION_BODY = struct.Struct("!HHH4sI")
_PERSISTENCE = 0x2
_MULTICAST = 224


class Stored(NamedTuple):
    """Parameters of a source that has Stores."""

    stores: tuple[Endpoint, ...]
    fragment_bytes: int
    """Length of its fragments: the numbers of its messages do not depend on the path."""


def store_endpoint(store: str | tuple[str, int]) -> Endpoint:
    """Return the address and TCP port of a Store, given as a pair or as "address:port".

    Raises:
        InvalidArgument: It is neither.
    """
    ip, port = store.rsplit(":", 1) if isinstance(store, str) and ":" in store else (store, "")
    if isinstance(store, tuple):
        ip, port = store[0], str(store[1])
    try:
        socket.inet_aton(str(ip))
    except OSError:
        port = ""
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise InvalidArgument(
            f"{store!r} is not the address of a Store",
            hint="write it as ADDRESS:PORT, such as 10.9.0.11:14567",
        )
    return Endpoint(str(ip), int(port))


def store_topic_options(stores: Sequence[Endpoint]) -> tuple[WireOption, ...]:
    """Return the topic options with the addresses of a source's Stores, in the order of its list."""
    functions = WireOption(_EXTENDED_FUNCTION, _EXTENDED_FUNCTION_BODY.pack(0, 0, 0, bytes(4), _PERSISTENCE))
    listed = (
        WireOption(_STORE, _STORE_BODY.pack(0, 0, store.port, at, socket.inet_aton(store.ip), 0))
        for at, store in enumerate(stores)
    )
    return functions, *listed


def stores_of(options: Iterable[WireOption]) -> tuple[Endpoint, ...]:
    """Return the Stores in an advertisement's options; none for a source without Stores or with an invalid list."""
    found: dict[int, Endpoint] = {}
    for option in options:
        if option.type != _STORE or len(option.body) != _STORE_BODY.size:
            continue
        _, _, port, index, ip, _ = _STORE_BODY.unpack(option.body)
        if not port or not 0 < ip[0] < _MULTICAST or index in found or len(found) == STORES_MAXIMUM:
            return ()
        found[index] = Endpoint(socket.inet_ntoa(ip), port)
    return tuple(found[index] for index in range(len(found))) if set(found) == set(range(len(found))) else ()


__all__ = ["Stored", "store_endpoint", "store_topic_options", "stores_of"]
