"""scapy layers: built packets dissect to themselves, and dissecting never raises or loses a byte."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.config import conf
from scapy.fields import (
    BitField,
    ConditionalField,
    Field,
    IP6Field,
    IPField,
    SignedIntField,
    StrField,
    StrNullField,
)
from scapy.packet import NoPayload, Packet, Raw

import umstack.scapy as layers
from umstack.scapy.fields import ChainedOption, TypedOption, UnknownOption, WirePacket

COMPUTED = {
    "next_header",
    "length",
    "count",
    "tqr_count",
    "tir_count",
    "options_present",
    "info_length",
    "total",
    "first_element",
    "extended_value",
}
WHOLE = (layers.LBTRM, layers.LBTRU, layers.LBMR, layers.LBMC, layers.LBMCStream)


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Prevent scapy from hiding exceptions behind Raw."""
    had, conf.debug_dissector = conf.debug_dissector, True
    yield
    conf.debug_dissector = had


LBMC_OPTIONS = [
    kind
    for kind in vars(layers).values()
    if isinstance(kind, type) and issubclass(kind, ChainedOption)
    if kind.__module__.endswith(("lbmc", "lbmc_persistence"))
    if not issubclass(kind, layers.LBMCElement)
]
LBMC_ELEMENTS = [layers.LBMCHotFailover, layers.LBMCHotFailover32, layers.LBMCPropertiesLength]
CONTEXT_OPTIONS = [
    layers.LBMRContextAddress,
    layers.LBMRContextInstance,
    layers.LBMRContextDomain,
    layers.LBMRContextName,
]
LBMR_OPTIONS = [
    kind
    for kind in vars(layers).values()
    if isinstance(kind, type) and issubclass(kind, TypedOption)
    if kind not in CONTEXT_OPTIONS and kind is not layers.LBMRContextRecordOption
]
PACKET_OPTIONS = [kind for kind in LBMR_OPTIONS if (kind().type or 0) & 0x80]
TOPIC_OPTIONS = [kind for kind in LBMR_OPTIONS if 0 < kind().type < 0x80]
LENGTHS = (layers.LBMROptionLength, layers.LBMRTopicOptionLength)

names = st.binary(max_size=40).map(lambda name: name.replace(b"\0", b"."))
payloads = st.binary(max_size=60)


def value(field: Field[Any, Any]) -> st.SearchStrategy[Any]:
    """Any value of a scapy field."""
    if isinstance(field, IPField):
        return st.integers(0, 2**32 - 1).map(lambda number: str(ipaddress.IPv4Address(number)))
    if isinstance(field, IP6Field):
        return st.integers(0, 2**128 - 1).map(lambda number: str(ipaddress.IPv6Address(number)))
    if isinstance(field, StrNullField):
        return names
    if isinstance(field, StrField):
        return payloads
    if isinstance(field, SignedIntField):
        return st.integers(-(2**31), 2**31 - 1)
    bits = field.size if isinstance(field, BitField) else 8 * field.sz
    return st.integers(0, 2**bits - 1)


def packets(kind: type[Packet], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Packet]:
    """Packets of a class, with computed fields None and lists as given."""
    own = {
        field.name: value(field)
        for field in kind.fields_desc
        if field.name not in COMPUTED and not field.islist and not field.holds_packets
    }
    return st.builds(kind, **own | given)


def option(kind: type[Packet]) -> st.SearchStrategy[Packet]:
    """An option of a class."""
    if kind is layers.LBMCExtended:
        return packets(kind, id=st.integers(0, 84), subtype=st.integers(0, 255))
    if kind is layers.LBMCConfiguration:
        values = st.lists(packets(layers.LBMCConfigurationValue), max_size=2)
        return packets(kind, id=st.integers(0, 84), subtype=st.just(256), values=values)
    if kind in (layers.LBMCStatus, layers.LBMCProbedStatus):
        cookie = st.sampled_from([b"", bytes(range(8))])
        return packets(kind, id=st.just(85), subtype=st.just(1), cookie=cookie)
    if kind is layers.LBMCSendTime:
        return packets(kind, id=st.just(85), subtype=st.just(4))
    if kind is layers.LBMCGroupReport:
        return packets(kind, id=st.just(85), subtype=st.just(2))
    if kind is layers.LBMCInterest:
        return packets(kind, id=st.just(85), subtype=st.just(5))
    if kind is layers.LBMCFilterReport:
        return packets(kind, id=st.just(85), subtype=st.just(6))
    if kind is layers.LBMCHmac:
        return packets(kind, data=st.binary(min_size=20, max_size=20))
    if kind is layers.LBMCChain:
        return packets(kind, elements=chain(LBMC_ELEMENTS))
    if kind is layers.LBMCTsni:
        return packets(kind, records=st.lists(packets(layers.LBMCTsniRecord), max_size=31))
    if issubclass(kind, TypedOption):
        return packets(kind, type=st.just(kind().type))
    return packets(kind)


def chain(kinds: list[type[Packet]]) -> st.SearchStrategy[list[Packet]]:
    return st.lists(st.sampled_from(kinds).flatmap(option), max_size=4)


def with_payload(packet: st.SearchStrategy[Packet]) -> st.SearchStrategy[Packet]:
    return st.tuples(packet, payloads).map(lambda pair: pair[0] / Raw(pair[1]) if pair[1] else pair[0])


messages = with_payload(packets(layers.LBMC, options=chain(LBMC_OPTIONS)))
bodies = {"messages": st.lists(messages, max_size=4), "sqns": st.lists(st.integers(0, 2**32 - 1), max_size=9)}


def datagrams(
    header: type[Packet], kinds: list[type[Packet]], options: list[type[Packet]]
) -> st.SearchStrategy[Packet]:
    """Datagrams of LBT-RM or LBT-RU."""

    def datagram(kind: type[Packet]) -> st.SearchStrategy[Packet]:
        lists = {field.name for field in kind.fields_desc} & bodies.keys()
        body = packets(kind, options=chain(options), **{name: bodies[name] for name in lists})
        heads = packets(header, type=st.just((header() / kind()).type))
        return st.tuples(heads, body).map(lambda pair: pair[0] / pair[1])

    return st.sampled_from(kinds).flatmap(datagram)


lbtrm = datagrams(
    layers.LBTRM,
    [layers.LBTRMData, layers.LBTRMSm, layers.LBTRMNak, layers.LBTRMNcf],
    [layers.LBTRMOption],
)
lbtru = datagrams(
    layers.LBTRU,
    [layers.LBTRUData, layers.LBTRUSm, layers.LBTRUNak, layers.LBTRUNcf, layers.LBTRUAck],
    [layers.LBTRUSessionId, layers.LBTRUClientId],
)
lbtru_bare = st.builds(
    lambda kind, options: layers.LBTRU() / kind(options=options),
    st.just(layers.LBTRUCreq),
    st.lists(option(layers.LBTRUSessionId), min_size=1, max_size=2),
)

infos = st.one_of(
    st.tuples(st.just(0x10), packets(layers.LBMRLbtrmInfo)),
    st.tuples(st.sampled_from([0x00, 0x01, 0x20]), packets(layers.LBMRUnicastInfo)),
    st.tuples(st.sampled_from([0x00, 0x01]), packets(layers.LBMRUnicastAddress)),
    st.tuples(st.sampled_from([0x04, 0x40]), packets(layers.LBMRHostInfo)),
    st.tuples(st.just(0x33), st.builds(Raw, st.binary(min_size=1, max_size=255))),
)
topic_options = chain(TOPIC_OPTIONS).map(
    lambda found: [layers.LBMRTopicOptionLength(), *found] if found else []
)
packet_options = chain([kind for kind in PACKET_OPTIONS if kind not in LENGTHS]).map(
    lambda found: [*found, layers.LBMROptionLength()] if found else []
)


def advertisement(info: tuple[int, Packet]) -> st.SearchStrategy[Packet]:
    transport, part = info
    return packets(
        layers.LBMRAdvertisement, transport=st.just(transport), info=st.just(part), options=topic_options
    )


normal = packets(
    layers.LBMR,
    type=st.just(0),
    tqrs=st.lists(packets(layers.LBMRQuery), max_size=3),
    tirs=st.lists(infos.flatmap(advertisement), max_size=3),
    options=packet_options,
)
wildcard = packets(
    layers.LBMR,
    type=st.just(1),
    tqrs=st.lists(packets(layers.LBMRWildcardQuery), max_size=3),
    options=packet_options,
)
extended = packets(layers.LBMR, type=st.just(7), options=st.just([]))
management = st.builds(
    lambda tmrs: layers.LBMR(tqr_count=0, tir_count=0) / layers.LBMRTopicManagement(tmrs=tmrs),
    st.lists(packets(layers.LBMRTopicManagementRecord), max_size=4),
)


def beside(extended_type: int, body: st.SearchStrategy[Packet]) -> st.SearchStrategy[Packet]:
    """Extended datagrams of a type, with a body."""
    return body.map(lambda found: layers.LBMR(type=7, extended_type=extended_type) / found)


remote_contexts = packets(
    layers.LBMRRemoteContexts,
    contexts=st.lists(packets(layers.LBMRRemoteContext, options=chain(CONTEXT_OPTIONS)), max_size=3),
)


def blocks(kind: type[Packet], entry: type[Packet]) -> st.SearchStrategy[Packet]:
    """Blocks of properties, with valid or invalid offsets."""
    return packets(kind, table=st.lists(packets(entry), max_size=4))


EVERYTHING: dict[str, st.SearchStrategy[Packet]] = {
    "LBT-RM": lbtrm,
    "LBT-RU": lbtru,
    "LBT-RU CREQ": lbtru_bare,
    "LBMC": messages,
    "LBMC stream": st.builds(layers.LBMCStream, messages=st.lists(messages, min_size=1, max_size=4)),
    "LBMC properties": blocks(layers.LBMCProperties, layers.LBMCProperty),
    "LBMC properties of the other order": blocks(layers.LBMCBigProperties, layers.LBMCBigProperty),
    "LBMR": normal,
    "LBMR wildcard": wildcard,
    "LBMR extended": extended,
    "LBMR topic management": management,
    "LBMR context information": beside(3, packets(layers.LBMRContextInformation)),
    "LBMR remote contexts": beside(7, remote_contexts),
    "LBMR proxy election": beside(1, packets(layers.LBMRProxyElection)),
}


def assert_same(built: Packet, read: Packet) -> None:
    """Check that all given fields are read, and all others computed."""
    assert type(built) is type(read), (built, read)
    for field in read.fields_desc:
        if isinstance(field, ConditionalField) and not field._evalcond(read):
            continue
        said, heard = built.getfieldval(field.name), read.getfieldval(field.name)
        if said is None:
            assert heard is not None, field.name
        elif isinstance(said, list):
            assert len(said) == len(heard), field.name
            for one, other in zip(said, heard, strict=True):
                if isinstance(one, Packet):
                    assert_same(one, other)
                else:
                    assert one == other
        elif isinstance(said, Packet):
            assert_same(said, heard)
        else:
            assert said == heard, field.name
    if not isinstance(built.payload, NoPayload):
        assert_same(built.payload, read.payload)


def rebuilt(packet: Packet) -> bytes:
    """Return the bytes built from the fields alone."""
    packet.clear_cache()
    return bytes(packet)


@pytest.mark.parametrize("kind", EVERYTHING)
def test_built_packets_dissect_to_themselves(kind: str) -> None:
    """Issue "scapy layers": every layer and option survives a round trip; lengths, counts and chains are
    computed if they are None.
    """

    @settings(max_examples=40)
    @given(EVERYTHING[kind])
    def check(packet: Packet) -> None:
        data = bytes(packet)
        read = type(packet)(data)
        assert_same(packet, read)
        assert rebuilt(read) == data
        assert type(packet)(data) == read

    check()


def test_every_layer_has_a_strategy() -> None:
    """A new class requires a strategy above."""
    others = {
        *WHOLE,
        *LBMC_ELEMENTS,
        *(layers.LBMCElement, layers.LBMCProperties, layers.LBMCBigProperties),
        *(layers.LBMCProperty, layers.LBMCBigProperty),
        *(layers.LBTRMData, layers.LBTRMSm, layers.LBTRMNak, layers.LBTRMNcf, layers.LBTRMOption),
        *(layers.LBTRUData, layers.LBTRUSm, layers.LBTRUNak, layers.LBTRUNcf, layers.LBTRUAck),
        *(layers.LBTRUCreq, layers.LBTRURst, layers.LBTRUSessionId, layers.LBTRUClientId),
        *(layers.LBMRQuery, layers.LBMRWildcardQuery, layers.LBMRAdvertisement, layers.LBMCTsniRecord),
        *(layers.LBMRLbtrmInfo, layers.LBMRUnicastInfo, layers.LBMRUnicastAddress, layers.LBMRHostInfo),
        *CONTEXT_OPTIONS,
        *(layers.LBMRContextRecordOption, layers.LBMRContextInformation, layers.LBMRRemoteContext),
        *(layers.LBMRRemoteContexts, layers.LBMRProxyElection, layers.LBMCConfigurationValue),
        *(layers.LBMRTopicManagement, layers.LBMRTopicManagementRecord, layers.UnknownOption),
    }
    public = {
        kind for kind in vars(layers).values() if isinstance(kind, type) and issubclass(kind, WirePacket)
    }
    assert public == others.union(LBMC_OPTIONS, LBMR_OPTIONS)


@pytest.mark.parametrize("kind", EVERYTHING)
def test_truncated_or_changed_bytes_are_kept(kind: str) -> None:
    """Issue "Bad input": dissecting never raises, and unknown bytes remain, byte for byte."""

    @settings(max_examples=40)
    @given(EVERYTHING[kind], st.data())
    def check(packet: Packet, data: st.DataObject) -> None:
        whole = bytearray(bytes(packet))
        for _ in range(data.draw(st.integers(0, 3))):
            if whole:
                whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        spoilt = bytes(whole[: data.draw(st.integers(0, len(whole)))])
        if spoilt:
            assert rebuilt(type(packet)(spoilt)) == spoilt
            layers.guess(spoilt)

    check()


@pytest.mark.parametrize("layer", WHOLE, ids=lambda layer: layer.__name__)
def test_any_bytes_are_kept(layer: Callable[[bytes], Packet]) -> None:
    """Issue "Bad input": this also holds for random bytes."""

    @settings(max_examples=40)
    @given(st.binary(min_size=1, max_size=200))
    def check(data: bytes) -> None:
        assert rebuilt(layer(data)) == data
        layers.guess(data)

    check()


@pytest.mark.parametrize(
    "kind",
    sorted(
        (kind for kind in vars(layers).values() if isinstance(kind, type) and issubclass(kind, WirePacket)),
        key=lambda kind: kind.__name__,
    ),
    ids=lambda kind: kind.__name__,
)
def test_a_single_part_may_be_truncated_anywhere(kind: type[Packet]) -> None:
    """Issue "Bad input": single options and records are as robust as the layers that contain them."""
    data = bytes(kind(next_header=0) if issubclass(kind, ChainedOption) else kind())
    for length in range(1, len(data) + 1):
        assert rebuilt(kind(data[:length])) == data[:length]


def test_an_unknown_option_needs_its_type() -> None:
    """The header before an option holds its type; an unknown option has no type field."""
    unknown = UnknownOption(data=b"abcd")
    with pytest.raises(ValueError, match="set next_header"):
        bytes(layers.LBMC(options=[unknown]))
    typed = layers.LBMC(bytes(layers.LBMC(next_header=200, options=[unknown]) / b"x"))
    assert [type(each) for each in typed.options] == [UnknownOption]
    assert typed.options[0].data == b"abcd"
    assert bytes(typed.payload) == b"x"
