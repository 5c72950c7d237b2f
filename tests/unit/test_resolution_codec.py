"""LBMR encoding and decoding: golden bytes, and a decoder that never raises (W1, docs/wire.md)."""

from __future__ import annotations

import random
import sys

import pytest

from umstack._engine.transport_address import transport_name
from umstack.errors import TopicNameError
from umstack.resolution.cache import KnownSource, ResolverCache
from umstack.resolution.codec import (
    HEADER_BYTES,
    Advertisement,
    LbtrmAddress,
    LbtruAddress,
    OtherTransport,
    Rejected,
    RejectReason,
    RequestScope,
    ResolutionDatagram,
    ResolutionRequest,
    TcpAddress,
    WildcardQuery,
    WireOption,
    decode,
    encode,
    encode_advertisement,
    encode_query,
    encode_request,
    pack,
)
from umstack.resolution.topic_name import encode_topic_name

ADDRESS = LbtrmAddress("10.9.0.1", "224.10.10.10", 0x5EED0001, 14400, 14390)
QUERY_AND_ADVERTISEMENT = bytes.fromhex(
    "000100014f52444552532e4555004d442e455552555344001010003c000003e90a090001e00a0a0a5eed000138403836"
)
WITH_OPTIONS = bytes.fromhex(
    "080000014d442e474250555344009010003c000003ea0004002c"
    "04180000383700000a0900010000004d000000290000000c0e100000383700000a09000100000001"
    "0a090001e00a0a0a5eed000138403836"
    "8308000001000000810c0000435458494e53543180040018"
)
WILDCARD_QUERY = bytes.fromhex("01010000015e4d445c2e2e2a00")
REQUEST = bytes.fromhex("07040006")

GOLDEN = [
    (
        QUERY_AND_ADVERTISEMENT,
        ResolutionDatagram(("ORDERS.EU",), (Advertisement("MD.EURUSD", 1001, 60, ADDRESS),)),
    ),
    (
        WITH_OPTIONS,
        ResolutionDatagram(
            advertisements=(
                Advertisement(
                    "MD.GBPUSD",
                    1002,
                    60,
                    ADDRESS,
                    (
                        WireOption(4, bytes.fromhex("0000383700000a0900010000004d000000290000000c")),
                        WireOption(14, bytes.fromhex("0000383700000a09000100000001")),
                    ),
                ),
            ),
            options=(
                WireOption(0x83, bytes.fromhex("000001000000")),
                WireOption(0x81, bytes.fromhex("0000435458494e535431")),
            ),
        ),
    ),
]


UNICAST = [
    (LbtruAddress("10.9.0.1", 0x5EED00AA, 14380), "01", "0a0900015eed00aa382c"),
    (LbtruAddress("10.9.0.1", 0, 14380), "01", "0a090001382c"),
    (TcpAddress("10.9.0.1", 0x5EED00AA, 14371), "00", "0a0900015eed00aa3823"),
    (TcpAddress("10.9.0.1", 0, 14371), "00", "0a0900013823"),
]


@pytest.mark.parametrize(("address", "kind", "info"), UNICAST)
def test_unicast_transports_in_both_directions(
    address: LbtruAddress | TcpAddress, kind: str, info: str
) -> None:
    """UX-28: LBT-RU and TCP have 10 bytes of transport information, 6 without a session id."""
    data = bytes.fromhex(f"00000001 4d4400 {kind} {len(info) // 2:02x} 003c 000007d1 {info}")
    meaning = ResolutionDatagram(advertisements=(Advertisement("MD", 2001, 60, address),))
    assert decode(data) == meaning
    assert encode(meaning) == data


@pytest.mark.parametrize("kind", [0x00, 0x01, 0x10])
def test_transport_information_of_a_wrong_length_is_malformed(kind: int) -> None:
    """This holds for every transport."""
    data = bytes.fromhex(f"00000001 4d4400 {kind:02x} 07 003c 000007d1 0a090001382c00")
    assert decode(data) == Rejected(RejectReason.MALFORMED, decode(data).detail)  # type: ignore[union-attr]


OVER_IPV6 = LbtrmAddress("fd00:1::2", "ff15::7", 0x5EED0001, 14400, 14390)
IPV6_ADVERTISEMENT = (
    "00000001 4d4400 90 10 003c 000003e9 00040028"
    "55240000 fd000001000000000000000000000002 ff150000000000000000000000000007"
    "00000000 00000000 5eed0001 3840 3836"
)


def test_ipv6_addresses_are_in_an_option() -> None:
    """The IPv4 addresses of the transport are then zero, so a receiver without the option joins nothing."""
    meaning = ResolutionDatagram(advertisements=(Advertisement("MD", 1001, 60, OVER_IPV6),))
    assert decode(bytes.fromhex(IPV6_ADVERTISEMENT)) == meaning
    assert encode(meaning) == bytes.fromhex(IPV6_ADVERTISEMENT)
    cache = ResolverCache(10)
    assert cache.take(encode(meaning), "fd00:1::3") is not None
    assert cache.sources_of("MD", b"MD") == {KnownSource("MD", 1001, OVER_IPV6): "fd00:1::3"}
    assert transport_name(OVER_IPV6) == "LBTRM:[fd00:1::2]:14390:5eed0001:[ff15::7]:14400"


def test_ipv6_addresses_and_other_options() -> None:
    """The option with IPv6 addresses is not among the options of an advertisement; the others stay in order."""
    options = (WireOption(4, bytes(22)), WireOption(85, b"too short"))
    meaning = ResolutionDatagram(advertisements=(Advertisement("MD", 1001, 60, OVER_IPV6, options),))
    assert decode(encode(meaning)) == meaning


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("00000000 00000000 5eed", "0a090001 00000000 5eed"),
        ("fd000001000000000000000000000002", "00000000000000000000ffff0a090001"),
        ("fd000001000000000000000000000002", "0" * 32),
        ("ff150000000000000000000000000007", "00000000000000000000ffffe00a0a0a"),
    ],
    ids=["with an IPv4 address", "mapped source", "no source", "mapped group"],
)
def test_ipv6_addresses_in_another_form_are_not_used(old: str, new: str) -> None:
    """The session of such an advertisement is not joinable: the core and Python agree."""
    data = bytes.fromhex(IPV6_ADVERTISEMENT.replace(old, new))
    (advertisement,) = decode(data).advertisements  # type: ignore[union-attr]
    assert advertisement.transport.group == "0.0.0.0"
    cache = ResolverCache(10)
    assert cache.take(data) is not None
    assert cache.sources_of("MD", b"MD") == {}


def test_addresses_of_different_transports_are_never_equal() -> None:
    """Sources, the resolver cache and sessions use the address as key, so addresses of two transports must
    differ."""
    of_lbtru, of_tcp = LbtruAddress("10.9.0.1", 7, 14380), TcpAddress("10.9.0.1", 7, 14380)
    assert of_lbtru != of_tcp
    assert len({of_lbtru, of_tcp}) == 2


def test_names_of_sessions() -> None:
    """The names equal UM's source strings."""
    assert transport_name(ADDRESS) == "LBTRM:10.9.0.1:14390:5eed0001:224.10.10.10:14400"
    assert transport_name(LbtruAddress("10.9.0.1", 0x5EED00AA, 14380)) == "LBTRU:10.9.0.1:14380:5eed00aa"
    assert transport_name(TcpAddress("10.9.0.1", 0x5EED00AA, 14371)) == "TCP:10.9.0.1:14371:5eed00aa"
    assert transport_name(TcpAddress("10.9.0.1", 0, 14371)) == "TCP:10.9.0.1:14371"


@pytest.mark.parametrize(("data", "meaning"), GOLDEN, ids=["query and advertisement", "options"])
def test_golden_bytes_in_both_directions(data: bytes, meaning: ResolutionDatagram) -> None:
    """W1, UX-28: the golden query and advertisement, encoded and decoded."""
    assert decode(data) == meaning
    assert encode(meaning) == data


def test_golden_wildcard_query_and_request() -> None:
    """W1: the golden wildcard query and request, encoded and decoded."""
    assert decode(WILDCARD_QUERY) == WildcardQuery((1,), (r"^MD\..*",))
    scope = RequestScope.QUERIES | RequestScope.ADVERTISEMENTS
    assert decode(REQUEST) == ResolutionRequest(scope)
    assert encode_request(scope) == REQUEST


def test_a_keepalive_is_empty() -> None:
    assert decode(bytes(4)) == ResolutionDatagram()


def test_other_transports_are_preserved() -> None:
    """LBT-SMX advertisements are parsed far enough to skip them."""
    advertisement = Advertisement("a", 1, 60, OtherTransport(0x04, bytes(10)))
    data = encode(ResolutionDatagram(advertisements=(advertisement, Advertisement("b", 2, 60, ADDRESS))))
    assert decode(data).advertisements == (advertisement, Advertisement("b", 2, 60, ADDRESS))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", RejectReason.MALFORMED),
        (b"\0\0\0", RejectReason.MALFORMED),
        (b"\x20\0\0\0", RejectReason.VERSION),
        (b"\x02\0\0\0", RejectReason.TYPE),
        (b"\x04\0\0\0", RejectReason.TYPE),
        (b"\x07\x05\0\0", RejectReason.TYPE),
        (b"\0\x01\0\0", RejectReason.MALFORMED),
        (b"\0\x01\0\0\0", RejectReason.MALFORMED),
        (b"\0\x01\0\0abc", RejectReason.MALFORMED),
        (b"\0\x01\0\0" + b"a" * 247 + b"\0", RejectReason.MALFORMED),
        (b"\0\0\xff\xff" + QUERY_AND_ADVERTISEMENT[14:], RejectReason.MALFORMED),
        (b"\x01\xff\0\0\x01a\0", RejectReason.MALFORMED),
        (b"\x08\0\0\0", RejectReason.MALFORMED),
        (b"\x08\0\0\0\x81\x00", RejectReason.MALFORMED),
        (b"\x08\0\0\0\x81\x01", RejectReason.MALFORMED),
        (b"\x08\0\0\0\x80\x04\x00\x05", RejectReason.MALFORMED),
        (b"\x08\0\0\0\x80\x05\x00\x05\x00", RejectReason.MALFORMED),
        (QUERY_AND_ADVERTISEMENT.replace(b"\x10\x10\0\x3c", b"\x10\x0f\0\x3c"), RejectReason.MALFORMED),
        (WITH_OPTIONS.replace(b"\0\x04\0\x2c", b"\0\x04\0\x2d"), RejectReason.MALFORMED),
        (WITH_OPTIONS.replace(b"\0\x04\0\x2c", b"\x01\x04\0\x2c"), RejectReason.MALFORMED),
        (WITH_OPTIONS.replace(b"\0\x04\0\x2c", b"\0\x04\xff\xff"), RejectReason.MALFORMED),
    ],
)
def test_bad_datagrams_are_rejected_with_a_reason(data: bytes, reason: RejectReason) -> None:
    """Malformed datagrams are counted by reason and never raise an exception."""
    rejected = decode(data)
    assert isinstance(rejected, Rejected)
    assert rejected.reason is reason
    assert rejected.detail


@pytest.mark.parametrize("data", [QUERY_AND_ADVERTISEMENT, WITH_OPTIONS, WILDCARD_QUERY, REQUEST])
def test_both_versions_are_read_alike(data: bytes) -> None:
    """W1: contexts of Ultra Messaging 6 send version 1; a later version is rejected."""
    assert decode(bytes((data[0] | 0x10,)) + data[1:]) == decode(data)
    later = decode(bytes((data[0] | 0x20,)) + data[1:])
    assert isinstance(later, Rejected)
    assert later.reason is RejectReason.VERSION


@pytest.mark.parametrize("data", [QUERY_AND_ADVERTISEMENT, WITH_OPTIONS, WILDCARD_QUERY])
def test_every_truncation_is_rejected(data: bytes) -> None:
    for length in range(len(data)):
        assert isinstance(decode(data[:length]), Rejected), length


def test_flipped_bits_never_raise() -> None:
    """Ten thousand mutations of good datagrams raise nothing; the seed is printed on failure."""
    seed = random.randrange(2**32)
    print(f"seed {seed}", file=sys.stderr)
    generator = random.Random(seed)
    for _ in range(10_000):
        data = bytearray(generator.choice([QUERY_AND_ADVERTISEMENT, WITH_OPTIONS, WILDCARD_QUERY, REQUEST]))
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        decode(bytes(data))


def test_a_name_that_is_not_utf8_is_preserved() -> None:
    """Other implementations may use other encodings: such names do no harm and stay unchanged."""
    decoded = decode(b"\0\x01\0\0\xe9\xff\0")
    assert isinstance(decoded, ResolutionDatagram)
    assert encode(decoded) == b"\0\x01\0\0\xe9\xff\0"


def test_packing_fills_datagrams_and_never_exceeds_the_size() -> None:
    """Many records per datagram, at most 255 queries, none longer than the maximum."""
    queries = [encode_query(f"topic.{number}") for number in range(1000)]
    advertisements = [encode_advertisement(Advertisement(f"t{n}", n, 60, ADDRESS)) for n in range(300)]
    datagrams = pack(queries, advertisements, 1472)
    assert max(map(len, datagrams)) <= 1472
    decoded = [decode(datagram) for datagram in datagrams]
    assert all(isinstance(datagram, ResolutionDatagram) for datagram in decoded)
    assert [q for d in decoded for q in d.queries] == [f"topic.{n}" for n in range(1000)]  # type: ignore[union-attr]
    assert [a.index for d in decoded for a in d.advertisements] == list(range(300))  # type: ignore[union-attr]
    total = sum(map(len, queries + advertisements))
    assert len(datagrams) <= total // (1472 - HEADER_BYTES - 40) + 1
    many = pack([b"q\0"] * 600, [], 9000)
    assert [data[1] for data in many] == [255, 255, 90]
    assert pack([], [], 1472) == []


def test_packing_refuses_a_record_that_cannot_fit() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        pack([b"x" * 600], [], 500)


def test_an_option_too_long_to_encode_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode(ResolutionDatagram(options=(WireOption(0x81, bytes(254)),)))


@pytest.mark.parametrize("topic", ["", "a\0b", "x" * 247, "é" * 124, "\ud800"])
def test_invalid_topic_names_are_refused(topic: str) -> None:
    """A name is at most 246 bytes of UTF-8, not empty, without NUL."""
    with pytest.raises(TopicNameError, match=r"1 to 246 bytes|not valid"):
        encode_topic_name(topic)


def test_the_longest_topic_name_is_accepted() -> None:
    assert decode(encode(ResolutionDatagram(queries=("é" * 123,)))) == ResolutionDatagram(
        queries=("é" * 123,)
    )
    assert len(encode_topic_name("é" * 123)) == 246
