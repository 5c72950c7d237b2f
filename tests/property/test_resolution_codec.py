"""LBMR: all records survive the wire, and any input is decoded or rejected."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from umstack.resolution.cache import Intake, KnownSource, ResolverCache
from umstack.resolution.codec import (
    Advertisement,
    LbtipcAddress,
    LbtrmAddress,
    LbtruAddress,
    OtherTransport,
    ResolutionDatagram,
    TcpAddress,
    WireOption,
    decode,
    decode_advertisement,
    decode_topic_name,
    encode,
)

names = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1).filter(
    lambda name: len(name.encode()) <= 246
)
addresses = st.integers(0, 2**32 - 1).map(lambda number: str(ipaddress.IPv4Address(number)))
ports = st.integers(0, 65535)
sessions = st.builds(LbtrmAddress, addresses, addresses, st.integers(0, 2**32 - 1), ports, ports)
unicast = st.builds(LbtruAddress, addresses, st.integers(0, 2**32 - 1), ports) | st.builds(
    TcpAddress, addresses, st.integers(0, 2**32 - 1), ports
)
shared = st.builds(LbtipcAddress, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), ports)
others = st.builds(
    OtherTransport,
    st.integers(0, 127).filter(lambda kind: kind not in (0x00, 0x01, 0x10, 0x40)),
    st.binary(max_size=255),
)
topic_options = st.builds(WireOption, st.integers(1, 255), st.binary(max_size=253))
packet_options = st.builds(
    WireOption, st.integers(0, 255).filter(lambda kind: kind != 0x80), st.binary(max_size=253)
)
advertisements = st.builds(
    Advertisement,
    names,
    st.integers(0, 2**32 - 1),
    st.integers(0, 65535),
    sessions | unicast | shared | others,
    st.lists(topic_options, max_size=3).map(tuple),
)
datagrams = st.builds(
    ResolutionDatagram,
    st.lists(names, max_size=5).map(tuple),
    st.lists(advertisements, max_size=5).map(tuple),
    st.lists(packet_options, max_size=3).map(tuple),
)


@given(datagrams)
def test_encoded_datagrams_decode_to_themselves(datagram: ResolutionDatagram) -> None:
    """W1: encode and decode are inverse for all records of the format."""
    assert decode(encode(datagram)) == datagram


@given(st.binary(max_size=600))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    """Issue "Bad input and faults": the decoder has no exception for any input."""
    decode(data)


@given(datagrams, st.integers(0, 3000), st.binary(max_size=8))
def test_a_spliced_datagram_is_decoded_or_rejected(
    datagram: ResolutionDatagram, place: int, noise: bytes
) -> None:
    """This also holds for nearly valid datagrams, which get further into the parser."""
    data = encode(datagram)
    place %= len(data)
    decode(data[:place] + noise + data[place + len(noise) :])


def encoded(name: str) -> bytes:
    """Return a name as in a record."""
    return name.encode("utf-8", errors="surrogateescape")


def taken_by_c(data: bytes) -> tuple[Intake | None, list[KnownSource]]:
    """Return the result of the C decoder for a datagram, and the sources that it has then."""
    cache = ResolverCache(64)
    cache.set_needs_all(True)
    taken = cache.take(data)
    found = [one for topic in cache.topics() for one in cache.sources_of(topic, encoded(topic))]
    return taken, found


def check_agreement(data: bytes) -> None:
    """Check that both decoders accept the same datagrams, with the same sources."""
    expected = decode(data)
    taken, known = taken_by_c(data)
    assert (taken is not None) == isinstance(expected, ResolutionDatagram)
    if taken is None or not isinstance(expected, ResolutionDatagram):
        return
    assert (taken.query_count, taken.advertisement_count) == (
        len(expected.queries),
        len(expected.advertisements),
    )
    joinable = [one for one in expected.advertisements if is_joinable(one.transport)]
    assert taken.ignored_count == len(expected.advertisements) - len(joinable)
    given = [decode_advertisement(raw) for raw in taken.advertisements]
    assert set(given) <= set(joinable)
    assert {one for one in joinable if one.ttl} <= set(given)
    last = {
        KnownSource(one.topic, one.index, one.transport): one.ttl
        for one in joinable
        if not isinstance(one.transport, OtherTransport)
    }
    assert set(known) == {source for source, ttl in last.items() if ttl}
    cache = ResolverCache(1)
    for name in expected.queries:
        cache.add_interest(encoded(name), has_source=True)
    again = cache.take(data)
    assert again is not None
    assert tuple(map(decode_topic_name, again.queries)) == expected.queries


def is_joinable(transport: LbtrmAddress | LbtruAddress | TcpAddress | LbtipcAddress | OtherTransport) -> bool:
    """Return True if such a session can exist."""
    if isinstance(transport, OtherTransport):
        return False
    if isinstance(transport, LbtipcAddress):
        return transport.host_id > 0 and transport.session_id > 0 and transport.transport_id > 0
    source = ipaddress.IPv4Address(transport.source_ip)
    if source.is_multicast or int(source) in (0, 2**32 - 1):
        return False
    if not isinstance(transport, LbtrmAddress):
        return transport.source_port > 0
    ports = transport.destination_port > 0 and transport.nak_port > 0
    return ports and transport.session_id > 0 and ipaddress.IPv4Address(transport.group).is_multicast


@given(datagrams)
def test_the_c_decoder_reads_encoded_datagrams(datagram: ResolutionDatagram) -> None:
    """W1: the resolver cache reads the same contents from a datagram as the codec."""
    check_agreement(encode(datagram))


@given(datagrams, st.integers(0, 3000), st.binary(max_size=8))
def test_the_c_decoder_and_the_codec_reject_the_same(
    datagram: ResolutionDatagram, place: int, noise: bytes
) -> None:
    """Issue "Bad input and faults": this also holds for nearly valid datagrams."""
    data = encode(datagram)
    place %= len(data)
    check_agreement(data[:place] + noise + data[place + len(noise) :])
    check_agreement(data[:place])
