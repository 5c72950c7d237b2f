"""LBMR, the topic resolution protocol: encoding, and a decoder that never raises on received bytes.

A datagram is a header with two counts, topic queries (TQR: a name), topic advertisements (TIR: a name and how to
join), and packet options. All integers are big endian. Layout: docs/wire.md.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag, StrEnum
from functools import lru_cache

from umstack._engine.core_address import is_ipv6
from umstack._engine.transport_address import LbtipcAddress as LbtipcAddress
from umstack._engine.transport_address import LbtrmAddress as LbtrmAddress
from umstack._engine.transport_address import LbtruAddress as LbtruAddress
from umstack._engine.transport_address import TcpAddress as TcpAddress
from umstack._engine.transport_address import TransportAddress
from umstack.resolution.topic_name import TOPIC_NAME_MAXIMUM_BYTES

HEADER_BYTES = 4
VERSION_MAXIMUM = 1
"""Versions 0 and 1 have the same layout. Datagrams are sent with 0."""
QUERIES_MAXIMUM = 255
ADVERTISEMENTS_MAXIMUM = 65535

_TYPE_NORMAL = 0
_TYPE_WILDCARD_QUERY = 1
PATTERN_PCRE = 1
_TYPE_EXTENDED = 7
_HAS_PACKET_OPTIONS = 0x08
_EXTENDED_RESOLUTION_REQUEST = 4

_TIR_HAS_OPTIONS = 0x80
_TRANSPORT_TCP = 0x00
_TRANSPORT_LBTRU = 0x01
_TRANSPORT_LBTRM = 0x10
_TRANSPORT_LBTIPC = 0x40
_OPTION_TOTAL_LENGTH = 0
_PACKET_OPTION_TOTAL_LENGTH = 0x80
_OPTION_LENGTH_BYTES = 4
_OPTION_HEAD_BYTES = 2
_OPTION_MAXIMUM_BYTES = 255
_OPTION_IPV6_ADDRESSES = 85
_SESSIONS_REMEMBERED = 4096

_TIR_FIXED = struct.Struct("!BBHI")
_LBTRM_INFO = struct.Struct("!4s4sIHH")
_IPV6_ADDRESSES = struct.Struct("!H16s16s")
_NO_ADDRESS = bytes(4)
_LBTIPC_INFO = struct.Struct("!IIH")
_UNICAST_INFO = struct.Struct("!4sIH")
_UNICAST_INFO_WITHOUT_SESSION = struct.Struct("!4sH")
_REQUEST = struct.Struct("!BBH")


@dataclass(frozen=True, slots=True)
class OtherTransport:
    """The transport part of an advertisement whose transport this stack does not support."""

    transport: int
    info: bytes


@dataclass(frozen=True, slots=True)
class WireOption:
    """One option of an advertisement or of a datagram: its type, and its bytes after type and length."""

    type: int
    body: bytes


COOKIE_BYTES = 8
"""Bytes of a resolution daemon's cookie."""
_KEEPALIVE_OPTION = 85
_KEEPALIVE_FLAGS = b"\x80\0"  # receivers that do not know the option may ignore it


@dataclass(frozen=True, slots=True)
class Advertisement:
    """A TIR. `index` is the topic index in the source's messages."""

    topic: str
    index: int
    ttl: int
    transport: TransportAddress | OtherTransport
    options: tuple[WireOption, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolutionDatagram:
    """Queries and advertisements; a keepalive has neither."""

    queries: tuple[str, ...] = ()
    advertisements: tuple[Advertisement, ...] = ()
    options: tuple[WireOption, ...] = ()


@dataclass(frozen=True, slots=True)
class WildcardQuery:
    """The patterns of a query; `kinds` are their notations (1 PCRE, 2 regex)."""

    kinds: tuple[int, ...]
    patterns: tuple[str, ...]


class RequestScope(IntFlag):
    """The record kinds that a resolution request makes every context send again."""

    WILDCARD_QUERIES = 0x01
    QUERIES = 0x02
    ADVERTISEMENTS = 0x04


@dataclass(frozen=True, slots=True)
class ResolutionRequest:
    """A request to every receiving context to query and advertise again."""

    scope: RequestScope


class RejectReason(StrEnum):
    """Why a datagram was not decoded; the values are the suffixes of the counters tr_dgrams_dropped_*."""

    VERSION = "ver"
    TYPE = "type"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A datagram that was not decoded; `detail` is a text for people."""

    reason: RejectReason
    detail: str


Decoded = ResolutionDatagram | WildcardQuery | ResolutionRequest | Rejected


class _MalformedDatagram(Exception):
    """Raised inside the parser; decode() turns it into Rejected."""


class _Cursor:
    """A read position that cannot move past the end of its datagram."""

    __slots__ = ("_data", "offset")

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self.offset = offset

    def take(self, count: int, what: str) -> bytes:
        end = self.offset + count
        if end > len(self._data):
            raise _MalformedDatagram(f"{what} ends beyond the datagram")
        part = self._data[self.offset : end]
        self.offset = end
        return part

    def byte(self, what: str) -> int:
        return self.take(1, what)[0]

    def name(self, what: str) -> str:
        end = self._data.find(b"\0", self.offset, self.offset + TOPIC_NAME_MAXIMUM_BYTES + 1)
        if end < 0:
            raise _MalformedDatagram(f"{what} has no end")
        if end == self.offset:
            raise _MalformedDatagram(f"{what} is empty")
        raw = self._data[self.offset : end]
        self.offset = end + 1
        return decode_topic_name(raw)


def decode_advertisement(raw: bytes) -> Advertisement:
    """Decode one advertisement from a datagram known to be well-formed."""
    return _decode_advertisement(_Cursor(raw, 0))


def decode_topic_name(raw: bytes) -> str:
    """Decode a topic name from a record; bytes that are not valid text are preserved."""
    return raw.decode("utf-8", errors="surrogateescape")


def decode(data: bytes) -> Decoded:
    """Decode a datagram. Never raises; returns Rejected for a malformed one."""
    if len(data) < HEADER_BYTES:
        return Rejected(RejectReason.MALFORMED, "shorter than a header")
    version, kind = data[0] >> 4, data[0] & 0x07
    if version > VERSION_MAXIMUM:
        return Rejected(RejectReason.VERSION, f"version {version}")
    try:
        if kind == _TYPE_NORMAL:
            return _decode_normal(data)
        if kind == _TYPE_WILDCARD_QUERY:
            return _decode_wildcard_query(data)
        if kind == _TYPE_EXTENDED:
            return _decode_extended(data)
    except _MalformedDatagram as error:
        return Rejected(RejectReason.MALFORMED, str(error))
    return Rejected(RejectReason.TYPE, f"type {kind}")


def _decode_normal(data: bytes) -> ResolutionDatagram:
    query_count, advertisement_count = data[1], int.from_bytes(data[2:4], "big")
    cursor = _Cursor(data, HEADER_BYTES)
    queries = tuple(cursor.name("a query") for _ in range(query_count))
    advertisements = tuple(_decode_advertisement(cursor) for _ in range(advertisement_count))
    options = _decode_packet_options(cursor) if data[0] & _HAS_PACKET_OPTIONS else ()
    return ResolutionDatagram(queries, advertisements, options)


def _decode_advertisement(cursor: _Cursor) -> Advertisement:
    topic = cursor.name("an advertisement's topic")
    transport, info_bytes, ttl, index = _TIR_FIXED.unpack(cursor.take(_TIR_FIXED.size, "an advertisement"))
    options = _decode_topic_options(cursor) if transport & _TIR_HAS_OPTIONS else ()
    info = cursor.take(info_bytes, "transport information")
    ipv6, options = _split_off_ipv6(options)
    return Advertisement(topic, index, ttl, _decode_transport(transport & 0x7F, info, ipv6), options)


def _split_off_ipv6(options: tuple[WireOption, ...]) -> tuple[bytes, tuple[WireOption, ...]]:
    """Return the content of the option with IPv6 addresses (empty: there is none), and the other options."""
    ipv6, others = b"", []
    for option in options:
        if option.type == _OPTION_IPV6_ADDRESSES and len(option.body) == _IPV6_ADDRESSES.size:
            ipv6 = option.body
        else:
            others.append(option)
    return ipv6, tuple(others) if ipv6 else options


@lru_cache(maxsize=_SESSIONS_REMEMBERED)
def _decode_transport(transport: int, info: bytes, ipv6: bytes) -> TransportAddress | OtherTransport:
    """Decode a transport. Cached, because many topics share a session."""
    if transport == _TRANSPORT_LBTRM:
        if len(info) != _LBTRM_INFO.size:
            raise _MalformedDatagram(f"LBT-RM information of {len(info)} bytes")
        source_ip, group, session_id, destination_port, nak_port = _LBTRM_INFO.unpack(info)
        hosts = socket.inet_ntoa(source_ip), socket.inet_ntoa(group)
        if ipv6 and source_ip == group == _NO_ADDRESS:
            hosts = _ipv6_addresses(ipv6) or hosts
        return LbtrmAddress(*hosts, session_id, destination_port, nak_port)
    if transport == _TRANSPORT_LBTRU:
        return LbtruAddress(*_decode_unicast("LBT-RU", info))
    if transport == _TRANSPORT_TCP:
        return TcpAddress(*_decode_unicast("TCP", info))
    if transport == _TRANSPORT_LBTIPC:
        if len(info) != _LBTIPC_INFO.size:
            raise _MalformedDatagram(f"LBT-IPC information of {len(info)} bytes")
        return LbtipcAddress(*_LBTIPC_INFO.unpack(info))
    return OtherTransport(transport, info)


def _ipv6_addresses(option: bytes) -> tuple[str, str] | None:
    """Return source and group, or None if one is zero or an IPv4 address in IPv6 form, which has another form here."""
    _, *packed = _IPV6_ADDRESSES.unpack(option)
    source_ip, group = map(ipaddress.IPv6Address, packed)
    if any(int(one) == 0 or one.ipv4_mapped is not None for one in (source_ip, group)):
        return None
    return str(source_ip), str(group)


def _decode_unicast(transport: str, info: bytes) -> tuple[str, int, int]:
    """Return source address, session id (0: none) and port."""
    if len(info) == _UNICAST_INFO.size:
        source_ip, session_id, port = _UNICAST_INFO.unpack(info)
        return socket.inet_ntoa(source_ip), session_id, port
    if len(info) == _UNICAST_INFO_WITHOUT_SESSION.size:
        source_ip, port = _UNICAST_INFO_WITHOUT_SESSION.unpack(info)
        return socket.inet_ntoa(source_ip), 0, port
    raise _MalformedDatagram(f"{transport} information of {len(info)} bytes")


def _decode_option(cursor: _Cursor) -> WireOption:
    kind, length = cursor.byte("an option"), cursor.byte("an option")
    if length < _OPTION_HEAD_BYTES:
        raise _MalformedDatagram(f"option {kind} of length {length}")
    return WireOption(kind, cursor.take(length - _OPTION_HEAD_BYTES, f"option {kind}"))


def _total_length(option: WireOption, expected_type: int) -> int:
    if option.type != expected_type or len(option.body) != _OPTION_LENGTH_BYTES - _OPTION_HEAD_BYTES:
        raise _MalformedDatagram(f"option {option.type} where the total length should be")
    return int.from_bytes(option.body, "big")


def _decode_topic_options(cursor: _Cursor) -> tuple[WireOption, ...]:
    start = cursor.offset
    total = _total_length(_decode_option(cursor), _OPTION_TOTAL_LENGTH)
    options = []
    while cursor.offset - start < total:
        options.append(_decode_option(cursor))
    if cursor.offset - start != total:
        raise _MalformedDatagram("topic options and their total length differ")
    return tuple(options)


def _decode_packet_options(cursor: _Cursor) -> tuple[WireOption, ...]:
    start = cursor.offset
    options: list[WireOption] = []
    while (option := _decode_option(cursor)).type != _PACKET_OPTION_TOTAL_LENGTH:
        options.append(option)
    if _total_length(option, _PACKET_OPTION_TOTAL_LENGTH) != cursor.offset - start:
        raise _MalformedDatagram("packet options and their total length differ")
    return tuple(options)


def _decode_wildcard_query(data: bytes) -> WildcardQuery:
    cursor = _Cursor(data, HEADER_BYTES)
    kinds, patterns = [], []
    for _ in range(data[1]):
        kinds.append(cursor.byte("a wildcard query"))
        patterns.append(cursor.name("a pattern"))
    return WildcardQuery(tuple(kinds), tuple(patterns))


def _decode_extended(data: bytes) -> ResolutionRequest | Rejected:
    _, subtype, flags = _REQUEST.unpack_from(data)
    if subtype != _EXTENDED_RESOLUTION_REQUEST:
        return Rejected(RejectReason.TYPE, f"extended type {subtype}")
    known = RequestScope.WILDCARD_QUERIES | RequestScope.QUERIES | RequestScope.ADVERTISEMENTS
    return ResolutionRequest(RequestScope(flags & known))


def _encode_option(option: WireOption) -> bytes:
    length = _OPTION_HEAD_BYTES + len(option.body)
    if length > _OPTION_MAXIMUM_BYTES:
        raise ValueError(f"option {option.type} of {length} bytes does not fit")
    return bytes((option.type, length)) + option.body


def _encode_name(name: str) -> bytes:
    return name.encode("utf-8", errors="surrogateescape") + b"\0"


def encode_query(topic: str) -> bytes:
    """Encode one TQR."""
    return _encode_name(topic)


def encode_wildcard_query(pattern: str, kind: int = PATTERN_PCRE) -> bytes:
    """Encode one wildcard TQR. `kind` is the notation of the pattern: 1 PCRE, 2 regex."""
    return bytes((kind,)) + _encode_name(pattern)


def _encode_transport(transport: TransportAddress | OtherTransport) -> tuple[int, bytes]:
    """Return the type of a transport and its encoded information."""
    if isinstance(transport, OtherTransport):
        return transport.transport, transport.info
    if isinstance(transport, LbtipcAddress):
        return _TRANSPORT_LBTIPC, _LBTIPC_INFO.pack(
            transport.host_id, transport.session_id, transport.transport_id
        )
    if isinstance(transport, LbtrmAddress):
        source_ip = group = _NO_ADDRESS
        if not is_ipv6(transport.group):
            source_ip, group = socket.inet_aton(transport.source_ip), socket.inet_aton(transport.group)
        return _TRANSPORT_LBTRM, _LBTRM_INFO.pack(
            source_ip, group, transport.session_id, transport.destination_port, transport.nak_port
        )
    source_ip = socket.inet_aton(transport.source_ip)
    kind = _TRANSPORT_TCP if isinstance(transport, TcpAddress) else _TRANSPORT_LBTRU
    if transport.session_id == 0:
        return kind, _UNICAST_INFO_WITHOUT_SESSION.pack(source_ip, transport.source_port)
    return kind, _UNICAST_INFO.pack(source_ip, transport.session_id, transport.source_port)


def _ipv6_option(transport: TransportAddress | OtherTransport) -> tuple[WireOption, ...]:
    """Return the option with the addresses of an IPv6 session. A receiver that does not know it must not ignore it,
    and joins nothing, because the IPv4 addresses of such an advertisement are zero."""
    if not isinstance(transport, LbtrmAddress) or not is_ipv6(transport.group):
        return ()
    addresses = (socket.inet_pton(socket.AF_INET6, one) for one in (transport.source_ip, transport.group))
    return (WireOption(_OPTION_IPV6_ADDRESSES, _IPV6_ADDRESSES.pack(0, *addresses)),)


def encode_advertisement(advertisement: Advertisement) -> bytes:
    """Encode one TIR."""
    kind, info = _encode_transport(advertisement.transport)
    own = _ipv6_option(advertisement.transport)
    options = b"".join(_encode_option(option) for option in (*own, *advertisement.options))
    if options:
        kind |= _TIR_HAS_OPTIONS
        total = len(options) + _OPTION_LENGTH_BYTES
        options = _encode_option(WireOption(_OPTION_TOTAL_LENGTH, total.to_bytes(2, "big"))) + options
    fixed = _TIR_FIXED.pack(kind, len(info), advertisement.ttl, advertisement.index)
    return _encode_name(advertisement.topic) + fixed + options + info


def _header(kind: int, query_count: int, advertisement_count: int) -> bytes:
    return bytes((kind, query_count)) + advertisement_count.to_bytes(2, "big")


def encode(datagram: ResolutionDatagram) -> bytes:
    """Encode one datagram of any size."""
    options = b"".join(_encode_option(option) for option in datagram.options)
    flags = 0
    if options:
        flags = _HAS_PACKET_OPTIONS
        total = len(options) + _OPTION_LENGTH_BYTES
        options += _encode_option(WireOption(_PACKET_OPTION_TOTAL_LENGTH, total.to_bytes(2, "big")))
    return b"".join(
        (
            _header(flags | _TYPE_NORMAL, len(datagram.queries), len(datagram.advertisements)),
            *map(encode_query, datagram.queries),
            *map(encode_advertisement, datagram.advertisements),
            options,
        )
    )


KEEPALIVE = encode(ResolutionDatagram())
"""An empty datagram: the keepalive of a context that has no cookie of the resolution daemon."""


class KeepaliveKind(IntEnum):
    """The kinds of keepalives that carry a daemon's cookie. A daemon ignores those that only daemons send."""

    CHALLENGE = 1
    """From a daemon: repeat this cookie to become a client."""
    RESPONSE = 2
    """From a context."""
    ANSWER = 3
    """From a daemon: this address is a client."""


def encode_keepalive(kind: KeepaliveKind, cookie: bytes) -> bytes:
    """Encode a keepalive with a cookie."""
    body = _KEEPALIVE_FLAGS + bytes((kind, 0)) + cookie
    return encode(ResolutionDatagram(options=(WireOption(_KEEPALIVE_OPTION, body),)))


_KEEPALIVE_BYTES = len(encode_keepalive(KeepaliveKind.CHALLENGE, bytes(COOKIE_BYTES)))


def decode_keepalive(data: bytes) -> tuple[KeepaliveKind, bytes] | None:
    """Return kind and cookie of such a keepalive; None for other datagrams."""
    if len(data) != _KEEPALIVE_BYTES:
        return None
    cookie = data[-COOKIE_BYTES - _OPTION_LENGTH_BYTES : -_OPTION_LENGTH_BYTES]
    return next(((kind, cookie) for kind in KeepaliveKind if data == encode_keepalive(kind, cookie)), None)


def encode_request(scope: RequestScope) -> bytes:
    """Encode a resolution request."""
    return _REQUEST.pack(_TYPE_EXTENDED, _EXTENDED_RESOLUTION_REQUEST, scope)


def pack(queries: list[bytes], advertisements: list[bytes], datagram_maximum_bytes: int) -> list[bytes]:
    """Pack encoded records, in order, into as few datagrams as possible, none longer than the maximum.

    A record that does not fit such a datagram is an error of the caller: raises ValueError.
    """
    datagrams: list[bytes] = []
    space = datagram_maximum_bytes - HEADER_BYTES
    chosen_queries: list[bytes] = []
    chosen_advertisements: list[bytes] = []
    used = 0

    def close() -> None:
        nonlocal used
        header = _header(_TYPE_NORMAL, len(chosen_queries), len(chosen_advertisements))
        datagrams.append(header + b"".join(chosen_queries) + b"".join(chosen_advertisements))
        chosen_queries.clear()
        chosen_advertisements.clear()
        used = 0

    for records, chosen, limit in (
        (queries, chosen_queries, QUERIES_MAXIMUM),
        (advertisements, chosen_advertisements, ADVERTISEMENTS_MAXIMUM),
    ):
        for record in records:
            if len(record) > space:
                raise ValueError(f"a record of {len(record)} bytes does not fit {datagram_maximum_bytes}")
            if used + len(record) > space or len(chosen) == limit:
                close()
            chosen.append(record)
            used += len(record)
    if used:
        close()
    return datagrams


def pack_wildcard_queries(queries: list[bytes], datagram_maximum_bytes: int) -> list[bytes]:
    """Pack encoded wildcard queries, in order, into as few datagrams as possible; they contain no other records."""
    datagrams: list[bytes] = []
    chosen: list[bytes] = []
    for query in queries:
        used = HEADER_BYTES + sum(map(len, chosen))
        if chosen and (used + len(query) > datagram_maximum_bytes or len(chosen) == QUERIES_MAXIMUM):
            datagrams.append(_header(_TYPE_WILDCARD_QUERY, len(chosen), 0) + b"".join(chosen))
            chosen = []
        chosen.append(query)
    if chosen:
        datagrams.append(_header(_TYPE_WILDCARD_QUERY, len(chosen), 0) + b"".join(chosen))
    return datagrams
