"""The Stores of a source, as registrations and registration information name them; and configuration values."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from umstack._engine.endpoint import Endpoint
from umstack.store.wire import option_types as layout
from umstack.store.wire.chain import (
    OPTION_HEAD_BYTES,
    OPTION_MAXIMUM_BYTES,
    MalformedMessage,
    Option,
    ReceivedOptions,
    decode_text,
    encode_text,
    pack_endpoint,
    unpack,
)
from umstack.store.wire.option_types import OptionType

STORE_NAME_MAXIMUM_BYTES = 128
STORES_MAXIMUM = 64
"""Maximum number of Stores of one source."""
_NUMBER_DIGITS = 20
CONFIGURATION_MAXIMUM = 64
"""Maximum number of configuration values in a message."""

_INSTANCE_BYTES = 8
_EXTENDED_FLAGS = 0x80
_VALUE_BYTES_MAXIMUM = OPTION_MAXIMUM_BYTES - OPTION_HEAD_BYTES - layout.EXTENDED_HEAD.size
_SCOPE_BYTES = 2


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One Store of a source's list."""

    index: int
    """Position in the source's list, 0..65535."""
    endpoint: Endpoint
    group: int = 0
    source_reg_id: int = 0
    """The source's registration id at this Store; 0 before it has one."""
    version: int = 0
    """Rises with each registration of the source at this Store; only in registration information."""
    name: str = ""
    context_instance: bytes = b""
    """8 bytes that identify the Store's context; empty: unknown."""


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """A group of a source's Stores."""

    index: int
    size: int


class ConfigurationValue(NamedTuple):
    """An option of the sender's configuration that the receiver must know."""

    name: str
    value: str
    scope: int = 1
    """1 source, 2 receiver, 3 context."""


def group_options(groups: Iterable[StoreGroup]) -> Iterator[Option]:
    """Yield an option for each group."""
    for group in groups:
        yield Option(OptionType.STORE_GROUP, layout.STORE_GROUP.pack(0, group.index, group.size, 0))


def decode_groups(received: ReceivedOptions) -> tuple[StoreGroup, ...]:
    """Return the groups. Raises MalformedMessage."""
    return tuple(
        StoreGroup(index, size)
        for _, index, size, _ in received.every(OptionType.STORE_GROUP, layout.STORE_GROUP)
    )


def store_options(stores: Iterable[StoreEntry], *, is_extended: bool) -> Iterator[Option]:
    """Yield the options of each Store; only the extended option carries the version."""
    for store in stores:
        ip, port = pack_endpoint(store.endpoint)
        if is_extended:
            body = layout.STORE_EXTENDED.pack(
                0, store.group, port, store.index, ip, store.source_reg_id, 0, store.version
            )
            yield Option(OptionType.STORE_EXTENDED, body)
        else:
            body = layout.STORE.pack(0, store.group, port, store.index, ip, store.source_reg_id)
            yield Option(OptionType.STORE, body)
        if store.context_instance:
            yield instance_option(OptionType.STORE_CONTEXT_INSTANCE, store.context_instance)
        if store.name:
            name = encode_text(store.name, STORE_NAME_MAXIMUM_BYTES)
            yield Option(OptionType.STORE_NAME, b"\0\0" + name)


def decode_stores(received: ReceivedOptions) -> tuple[StoreEntry, ...]:
    """Return the Stores; context instance and name belong to the Store option before them. Raises MalformedMessage."""
    found: list[StoreEntry] = []
    for kind, body in received.in_order:
        if kind in (OptionType.STORE, OptionType.STORE_EXTENDED):
            found.append(_decode_store(kind, body))
        elif kind in (OptionType.STORE_CONTEXT_INSTANCE, OptionType.STORE_NAME):
            if not found:
                raise MalformedMessage(f"option {kind} follows no Store")
            found[-1] = _with_detail(found[-1], kind, body)
    if len(found) > STORES_MAXIMUM or len({store.index for store in found}) < len(found):
        raise MalformedMessage(f"{len(found)} Stores: too many, or two with the same index")
    return tuple(found)


def _decode_store(kind: int, body: bytes) -> StoreEntry:
    version = 0
    if kind == OptionType.STORE:
        _, group, port, index, ip, reg_id = unpack(kind, layout.STORE, body)
    else:
        _, group, port, index, ip, reg_id, _, version = unpack(kind, layout.STORE_EXTENDED, body)
    return StoreEntry(index, Endpoint(socket.inet_ntoa(ip), port), group, reg_id, version)


def _with_detail(store: StoreEntry, kind: int, body: bytes) -> StoreEntry:
    name, instance = store.name, store.context_instance
    if kind == OptionType.STORE_NAME:
        name = decode_text(kind, body[2:], STORE_NAME_MAXIMUM_BYTES)
    else:
        _, instance = unpack(kind, layout.CONTEXT_INSTANCE, body)
    return StoreEntry(
        store.index, store.endpoint, store.group, store.source_reg_id, store.version, name, instance
    )


def instance_option(kind: OptionType, instance: bytes) -> Option:
    """Return an option with a context instance. Raises ValueError if it does not have 8 bytes."""
    if len(instance) != _INSTANCE_BYTES:
        raise ValueError(f"a context instance has {_INSTANCE_BYTES} bytes, not {len(instance)}")
    return Option(kind, layout.CONTEXT_INSTANCE.pack(0, instance))


def configuration_options(values: Iterable[ConfigurationValue]) -> Iterator[Option]:
    """Yield extended options with whole configuration values. Raises ValueError if one is too long."""
    data = b""
    for value in values:
        entry = bytes((value.scope, 0))
        for text in (value.name, value.value):
            entry += encode_text(text, _VALUE_BYTES_MAXIMUM - len(entry) - 1)
        if len(data) + len(entry) > _VALUE_BYTES_MAXIMUM:
            yield _configuration_option(data)
            data = b""
        data += entry
    if data:
        yield _configuration_option(data)


def _configuration_option(data: bytes) -> Option:
    head = layout.EXTENDED_HEAD.pack(_EXTENDED_FLAGS, 0, layout.CONFIGURATION_SUBTYPE, 0)
    return Option(OptionType.EXTENDED, head + data)


def decode_configuration(received: ReceivedOptions) -> tuple[ConfigurationValue, ...]:
    """Return the configuration values. Raises MalformedMessage."""
    found: list[ConfigurationValue] = []
    for body in received.bodies(OptionType.EXTENDED):
        if len(body) < layout.EXTENDED_HEAD.size:
            raise MalformedMessage("an extended option is shorter than its head")
        flags, _, subtype, _ = layout.EXTENDED_HEAD.unpack_from(body)
        if subtype == layout.CONFIGURATION_SUBTYPE:
            found += _configuration_values(body[layout.EXTENDED_HEAD.size :])
        elif not flags & _EXTENDED_FLAGS:
            raise MalformedMessage(f"extended option {subtype} is unknown and must not be ignored")
    if len(found) > CONFIGURATION_MAXIMUM:
        raise MalformedMessage(f"{len(found)} configuration values; at most {CONFIGURATION_MAXIMUM}")
    return tuple(found)


def decode_number(name: str, value: str) -> int:
    """Return a configuration value that is a number. Raises MalformedMessage."""
    if not (value.isascii() and value.isdigit() and len(value) <= _NUMBER_DIGITS):
        raise MalformedMessage(f"{name} is not a number")
    return int(value)


def _configuration_values(data: bytes) -> Iterator[ConfigurationValue]:
    while data:
        name, has_name, rest = data[_SCOPE_BYTES:].partition(b"\0")
        value, has_value, rest = rest.partition(b"\0")
        if not has_name or not has_value:
            raise MalformedMessage("a configuration value is incomplete")
        yield ConfigurationValue(
            name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"), data[0]
        )
        data = rest


__all__ = [
    "CONFIGURATION_MAXIMUM",
    "STORES_MAXIMUM",
    "STORE_NAME_MAXIMUM_BYTES",
    "ConfigurationValue",
    "StoreEntry",
    "StoreGroup",
    "configuration_options",
    "decode_configuration",
    "decode_groups",
    "decode_number",
    "decode_stores",
    "group_options",
    "instance_option",
    "store_options",
]
