"""The control protocol between the driver and an attached application.

A connection is a Unix socket of type SOCK_SEQPACKET; each message is one JSON object. No application data passes here:
it is in shared logs, to which both sides attach by LBT-IPC (docs/ipc.md).

    application                                       driver
      {do: attach, low, high, host}       ------->            the versions it speaks, its network namespace
                                          <-------    {version, interface, link} or {error}
      {do: receive, id, topic, options,
       cut_off}                           ------->
                                          <-------    for each source, before the reply or at any later time:
                                          <-------    {do: source, ids, name, LOG, stores}
                                          <-------    {reply, keyed}
                                          <-------    {do: event, ids, name, kind}: of the source, for receivers
      {do: nak_cutoff, id, enabled}       ------->    for a receiver
                                          <-------    {reply}
      {do: unconnected, id}               ------->    sources of a receiver that would not reach the driver yet
                                          <-------    {reply, unconnected}
      {do: publish, id, topic, options,
       LOG, stores, fragment_bytes}       ------->            the last two for a source with Stores
                                          <-------    {reply, keyed, name, topic_index, readers, message_max}
      {do: state, id}                     ------->
                                          <-------    {reply, attached, connected, receivers, local, readers,
                                                   drained, reached, given_up}
      {do: events, id, after}             ------->    events about the source's receivers on the network
                                          <-------    {reply, count, events: [[kind, receiver, amount]...]}
      {do: end, id}                       ------->
                                          <-------    {reply}

Each request has a number of its own, `request`, which `reply` returns. `id` is the application's number of a receiver
or source. `cut_off` is true if no NAK is wanted for the receiver. `keyed` is true if datagrams of the topic carry tags.
LOG is session_id, transport_id, topic_index and key of a shared log, which refuses processes without the key, and
request_ip and request_port of the source of its messages, which serves the messages that it retains to receivers that
join late; the port is 0, or left out, if it retains none. `stores` is a list of [ip, port], empty or left out for a
source without Stores, and `fragment_bytes` the length of the source's fragments, of which each has a topic sequence
number. A refusal has `error` instead of other fields: kind, message, hint and errno. A side that gets anything else
closes the connection.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from umstack._engine.endpoint import Endpoint
from umstack._engine.source_events import ReceiverEvent
from umstack._engine.transport_address import address_of_name
from umstack.config import Scope, find_option
from umstack.errors import (
    DriverError,
    InterfaceError,
    InvalidArgument,
    LinkError,
    OptionError,
    PermissionNeeded,
    ResourceLimit,
    UmError,
    Unsupported,
)
from umstack.foreign_text import displayed
from umstack.persistence.advertised import Stored
from umstack.store.wire import STORES_MAXIMUM

VERSION_LOW = 4
"""The lowest version of the protocol that this build speaks."""
VERSION_HIGH = 4
"""The highest version of the protocol that this build speaks."""
MESSAGE_MAX_BYTES = 16384
NUMBER_MAX = 2**32 - 1
_KEY_MAX = _COUNT_MAX = 2**64 - 1
_TOPIC_BYTES_MAX = 246
_OPTIONS_MAX = 256
_TEXT_MAX = 1024
_SESSION_MAX = 128
"""More characters than any name of a transport session has."""


NAK_CUTOFF, STALE_TAGS = "nak_cutoff", "stale_tags"
EVENTS = frozenset({NAK_CUTOFF, STALE_TAGS})
"""Kinds of events about sources of the network."""

_REFUSALS: tuple[type[UmError], ...] = (
    InterfaceError,
    InvalidArgument,
    LinkError,
    OptionError,
    PermissionNeeded,
    ResourceLimit,
    Unsupported,
)
"""The errors that a driver raises in the application, as Context.source() and receiver() do without it."""


@dataclass(frozen=True, slots=True)
class SharedLog:
    """A log in shared memory, which admits the processes that have its key."""

    session_id: int
    transport_id: int
    topic_index: int
    key: int = field(repr=False)
    request_ip: str = ""
    request_port: int = 0

    @property
    def request_endpoint(self) -> Endpoint | None:
        """Where the source serves retained messages; None if it retains none."""
        return Endpoint(self.request_ip, self.request_port) if self.request_port else None


def default_path(interface: str) -> str:
    """Return the path of the control socket of the driver of an interface.

    Args:
        interface: Name of the interface.

    Returns:
        The path.
    """
    return f"/run/umstack/driver-{interface}.sock"


def encode(fields: Mapping[str, Any]) -> bytes:
    """Encode a message. Raises DriverError if it is too long."""
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > MESSAGE_MAX_BYTES:
        raise DriverError(
            f"a message to the driver is longer than {MESSAGE_MAX_BYTES} bytes", hint="set fewer options"
        )
    return data


def decode(data: bytes) -> dict[str, Any]:
    """Decode a message. Raises DriverError if it is none."""
    try:
        fields = json.loads(data) if len(data) <= MESSAGE_MAX_BYTES else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise malformed("no JSON object")
    return fields


def malformed(why: str) -> DriverError:
    """Return the error for a message that breaks the protocol."""
    return DriverError(
        f"a message of the driver's protocol is malformed: {why}", hint="use the same version of both"
    )


def refusal_fields(error: UmError) -> dict[str, Any]:
    """Return the answer to a request that failed with an error."""
    cut = MESSAGE_MAX_BYTES // 32  # a character takes up to 12 bytes, and there are two texts
    kind = next((one for one in _REFUSALS if isinstance(error, one)), DriverError).__name__
    return {
        "error": {
            "kind": kind,
            "message": error.message[:cut],
            "hint": error.hint[:cut],
            "errno": error.errno,
        }
    }


def refusal_of(answer: Mapping[str, Any], path: Path) -> UmError | None:
    """Return the error that an answer of the driver at a path has; None if it has none."""
    refusal = answer.get("error")
    if not isinstance(refusal, dict):
        return None
    kind = next((one for one in _REFUSALS if one.__name__ == refusal.get("kind")), DriverError)
    number = refusal.get("errno")
    return kind(
        f"the driver at {path}: {displayed(str(refusal.get('message')))}",
        hint=displayed(str(refusal.get("hint"))),
        errno=number if type(number) is int else 0,
    )


def number_of(fields: Mapping[str, Any], name: str, most: int = NUMBER_MAX) -> int:
    """Return a number from 0 to `most`. Raises DriverError."""
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise malformed(f"{name} is no number from 0 to {most}")
    return value


def numbers_of(fields: Mapping[str, Any], name: str) -> list[int]:
    """Return a list of numbers. Raises DriverError."""
    values = fields.get(name)
    if not isinstance(values, list):
        raise malformed(f"{name} is no list of numbers")
    return [number_of({name: value}, name) for value in values]


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """Return a text. Raises DriverError."""
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > _TEXT_MAX:
        raise malformed(f"{name} is no text of at most {_TEXT_MAX} characters")
    return value


def flag_of(fields: Mapping[str, Any], name: str) -> bool:
    """Return true or false. Raises DriverError."""
    value = fields.get(name)
    if type(value) is not bool:
        raise malformed(f"{name} is neither true nor false")
    return value


def event_of(fields: Mapping[str, Any]) -> str:
    """Return the kind of an event. Raises DriverError if there is no such kind."""
    kind = text_of(fields, "kind")
    if kind not in EVENTS:
        raise malformed("there is no such kind of event")
    return kind


def events_of(fields: Mapping[str, Any]) -> list[ReceiverEvent]:
    """Return the events of an answer. Raises DriverError."""
    value = fields.get("events")
    if not isinstance(value, list) or not all(isinstance(one, list) and len(one) == 3 for one in value):
        raise malformed("events are no list of kind, receiver and amount")
    return [
        ReceiverEvent(
            text_of({"kind": kind}, "kind"),
            text_of({"receiver": receiver}, "receiver"),
            number_of({"amount": amount}, "amount", _COUNT_MAX),
        )
        for kind, receiver, amount in value
    ]


def log_of(fields: Mapping[str, Any]) -> SharedLog:
    """Return the log of a request or announcement. Raises DriverError."""
    return SharedLog(
        number_of(fields, "session_id"),
        number_of(fields, "transport_id", 65535),
        number_of(fields, "topic_index"),
        number_of(fields, "key", _KEY_MAX),
        *_request_endpoint_of(fields),
    )


def _request_endpoint_of(fields: Mapping[str, Any]) -> tuple[str, int]:
    if not fields.get("request_port"):
        return "", 0
    return _endpoint_of({"ip": fields.get("request_ip"), "port": fields["request_port"]})


def _endpoint_of(fields: Mapping[str, Any]) -> Endpoint:
    port, ip = number_of(fields, "port", 65535), text_of(fields, "ip")
    try:
        first = ipaddress.IPv4Address(ip).packed[0]
    except ValueError:
        first = 0
    if not 0 < first < 224:
        raise malformed("an address is no IPv4 address of a host")
    return Endpoint(ip, port)


def stores_of(fields: Mapping[str, Any]) -> tuple[Endpoint, ...]:
    """Return the Stores of a source. Raises DriverError."""
    value = fields.get("stores", [])
    if not isinstance(value, list) or len(value) > STORES_MAXIMUM:
        raise malformed(f"stores is no list of up to {STORES_MAXIMUM}")
    if not all(isinstance(one, list) and len(one) == 2 for one in value):
        raise malformed("stores is no list of pairs")
    return tuple(_endpoint_of({"ip": ip, "port": port}) for ip, port in value)


def session_of(fields: Mapping[str, Any]) -> tuple[str, int]:
    """Return the session on the network of an announced source, and its number there. Raises DriverError."""
    session, _, rest = text_of(fields, "name").rpartition("[")
    digits = rest.removesuffix("]")
    is_named = len(session) <= _SESSION_MAX and (address_of_name(session) or session.startswith("LBTIPC:"))
    if not is_named or rest == digits or not re.fullmatch("[0-9]{1,10}", digits):
        raise malformed("name is no name of a source")
    return session, number_of({"name": int(digits)}, "name")


def check_announcement(fields: Mapping[str, Any]) -> None:
    """Raise DriverError if a source cannot be received as it is announced."""
    log_of(fields)
    if stores_of(fields):
        session_of(fields)


def stored_of(fields: Mapping[str, Any]) -> Stored | None:
    """Return the Stores of a source to publish; None if it has none. Raises DriverError."""
    stores = stores_of(fields)
    return Stored(stores, number_of(fields, "fragment_bytes")) if stores else None


def topic_of(fields: Mapping[str, Any]) -> str:
    """Return the topic. Raises DriverError if no topic can have the name."""
    topic = text_of(fields, "topic")
    if not 0 < len(topic.encode(errors="replace")) <= _TOPIC_BYTES_MAX:
        raise malformed("topic is no name of a topic")
    return topic


def options_of(fields: Mapping[str, Any], scope: Scope) -> dict[str, str]:
    """Return options of a source or receiver, as text by name. Raises DriverError, or OptionError for other names."""
    value = fields.get("options")
    if not isinstance(value, dict) or len(value) > _OPTIONS_MAX:
        raise malformed("options are no object")
    if not all(isinstance(one, str) and len(one) <= _TEXT_MAX for one in value.values()):
        raise malformed("an option is no text")
    for name in value:
        find_option(scope, name)
    return value


def common_version(low: int, high: int) -> int | None:
    """Return the highest version that this build and the peer, which speaks `low` to `high`, have in common."""
    common = min(high, VERSION_HIGH)
    return common if common >= max(low, VERSION_LOW) else None
