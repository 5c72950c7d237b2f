"""LBMR: whatever can be said survives the wire, and whatever arrives is decoded or rejected, never worse."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from umstack.resolution.codec import (
    Advertisement,
    LbtrmAddress,
    LbtruAddress,
    OtherTransport,
    ResolutionDatagram,
    TcpAddress,
    WireOption,
    decode,
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
others = st.builds(
    OtherTransport,
    st.integers(0, 127).filter(lambda kind: kind not in (0x00, 0x01, 0x10)),
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
    sessions | unicast | others,
    st.lists(topic_options, max_size=3).map(tuple),
)
datagrams = st.builds(
    ResolutionDatagram,
    st.lists(names, max_size=5).map(tuple),
    st.lists(advertisements, max_size=5).map(tuple),
    st.lists(packet_options, max_size=3).map(tuple),
)


@given(datagrams)
def test_what_is_encoded_decodes_to_itself(datagram: ResolutionDatagram) -> None:
    """W1: encode and decode are inverse for everything the format can say."""
    assert decode(encode(datagram)) == datagram


@given(st.binary(max_size=600))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    """Issue "Bad input and faults": the decoder has no exception for any input."""
    decode(data)


@given(datagrams, st.integers(0, 3000), st.binary(max_size=8))
def test_a_spliced_datagram_is_decoded_or_rejected(
    datagram: ResolutionDatagram, place: int, noise: bytes
) -> None:
    """The same for datagrams that are nearly right, which get further into the parser."""
    data = encode(datagram)
    place %= len(data)
    decode(data[:place] + noise + data[place + len(noise) :])
