"""A capture of all packets of the protocols, built with the scapy layers: more kinds than the stack sends."""

from __future__ import annotations

from collections.abc import Iterator

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

import umstack.scapy as um
from umstack import Byte, Float, Long, Short
from umstack.message_properties import encoded

SOURCE, RECEIVER, GROUP = "10.9.0.1", "10.9.0.2", "224.10.10.10"
RESOLVER_GROUP, RESOLVER_PORT = "224.9.10.11", 12965
NAK_PORT, GROUP_PORT, REQUEST_PORT = 14390, 14400, 14391
SESSION = 0x5EED0001
EUR, GBP = 1001, 1002


def frame(source: str, sport: int, destination: str, dport: int, packet: Packet) -> Packet:
    """Return a UDP datagram in a frame."""
    ends = IP(src=source, dst=destination, ttl=16) / UDP(sport=sport, dport=dport)
    return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / ends / packet


def message(topic: int, sqn: int, content: bytes, *options: Packet) -> Packet:
    """An LBMC message."""
    return um.LBMC(topic_index=topic, sqn=sqn, options=list(options)) / Raw(content)


def control(*options: Packet, kind: int = 8) -> Packet:
    """An LBMC control message."""
    return um.LBMC(type=kind, options=list(options))


def data(sqn: int, *messages: Packet, repair: bool = False) -> Packet:
    """An LBT-RM DATA datagram."""
    flags = "unicast_naks+retransmission" if repair else "unicast_naks"
    header = um.LBTRM(session_id=SESSION, nak_port=NAK_PORT)
    return header / um.LBTRMData(sqn=sqn, trail=100, flags=flags, messages=list(messages))


def lbtrm() -> Iterator[Packet]:
    """Data with every option, session message, NAK, NCF, retransmission."""
    header = um.LBTRM(session_id=SESSION, nak_port=NAK_PORT)
    whole = bytes(number * 7 & 0xFF for number in range(2000))
    yield data(100, message(EUR, 41, b"1.0842"), message(GBP, 7, b"1.2611"))
    first = um.LBMCFragment(first_sqn=42, total=2000)
    yield data(101, message(EUR, 42, whole[:1200], first))
    yield data(102, message(EUR, 43, whole[1200:], um.LBMCFragment(first_sqn=42, offset=1200, total=2000)))
    yield data(105, message(EUR, 46, b"after a gap"))
    yield header / um.LBTRMSm(sm_sqn=1, lead=105, trail=100)
    for reason in range(4):
        yield header / um.LBTRMNcf(trail=100, reason=reason, sqns=[103, 104][: reason or None])
    yield data(103, message(EUR, 44, b"lost"), repair=True)
    records = [um.LBMCTsniRecord(topic_index=EUR, sqn=46), um.LBMCTsniRecord(topic_index=GBP, sqn=8)]
    yield data(106, control(um.LBMCTsni(records=records)))
    starts, ends = um.LBMCBatch(flags="start"), um.LBMCBatch(flags="end")
    yield data(107, message(EUR, 47, b"first", starts), message(EUR, 48, b"last", ends))
    extended = um.LBMCExtended(id=9, subtype=1, data=bytes(range(12)))
    yield data(
        108, message(EUR, 49, b"both", um.LBMCApplicationHeader(code=0x123, data=b"\1\2\3\4"), extended)
    )
    yield data(109, control(extended), message(EUR, 50, b"after control"))
    yield data(110, message(EUR, 51, b"padded"), control() / Raw(b"\0\0"), message(GBP, 9, b"aligned"))
    yield data(111, control(um.LBMCHmac(data=bytes(range(20)))), message(EUR, 52, b"tagged"))
    yield data(112, control(um.LBMCTsni(records=records[:1]), kind=1))
    request = um.LBMCRequest(request_index=5, port=14392, ip=RECEIVER)
    yield data(113, message(EUR, 53, b"please", request, um.LBMCTopicName(topic=b"MD.EURUSD")))
    yield data(114, message(EUR, 54, b"who", um.LBMCSourceIndex(source_index=2**40 + 1)))
    yield data(115, message(EUR, 55, b"where", um.LBMCContextInstance(instance=0x0102030405060708)))
    stream = um.LBMCStreamInfo(stream_id=7, sqn=8, instance=0x0102030405060708)
    yield data(119, message(EUR, 57, b"which", um.LBMCRequest(request_index=5), stream))
    yield data(116, control(um.LBMCTcpSessionId(session_id=77)))
    yield from chains()
    yield data(116, control(um.LBMCSsfInit(session_id=77, client_index=5, port=14371, ip=SOURCE)))
    yield data(116, control(um.LBMCSsfRequest(mode="exclude", session_id=77, topic_index=9, client_index=5)))
    sent = um.LBMCSendTime(sent_ns=1_700_000_000_123_456_789)
    yield data(118, message(EUR, 56, b"sent then", um.LBMCBatch(flags="end"), sent))
    yield data(117, control(um.LBMCStatus(next_sqn=117, window_bytes=1 << 20, receiver_id=2**63 + 5)))
    yield data(
        117, control(um.LBMCProbedStatus(next_sqn=117, receiver_id=7, probe_round=3, probe_bytes=1472))
    )
    yield data(118, control(um.LBMCGroupReport(receivers=1000, round_trip_us=250)))
    yield data(119, control(um.LBMCInterest(part=1, part_count=2, number=77)))
    yield data(120, control(um.LBMCFilterReport(first_sqn=5, count=900, number=77, since_sqn=4)))


def chains() -> Iterator[Packet]:
    """Data with chains of application headers: hot failover's number, properties of every type in both byte orders."""
    for sqn, element in enumerate(
        (um.LBMCHotFailover(sqn=2**63 + 5, flags="optional"), um.LBMCHotFailover32(sqn=7, flags="reset")), 120
    ):
        yield data(sqn, message(EUR, sqn, b"numbered", um.LBMCChain(elements=[element])))
    other = um.LBMCElement(data=b"channel7", next_header=255)
    yield data(122, message(EUR, 122, b"channel", um.LBMCChain(first_element=1, elements=[other])))
    typed = {
        "boolean": True,
        "byte": Byte(-3),
        "short": Short(-300),
        "int": -70000,
        "long": Long(-5),
        "float": Float(0.1),
        "double": -2.5,
        "string": "of text",
    }
    blocks = [um.LBMCProperties(encoded(typed)), *big_endian()]
    for sqn, block in enumerate(blocks, 123):
        length = um.LBMCPropertiesLength(bytes=len(block))
        following = [um.LBMCHotFailover(sqn=9)] if sqn == 124 else []
        content = um.LBMC(topic_index=EUR, sqn=sqn, options=[um.LBMCChain(elements=[length, *following])])
        yield data(sqn, content / Raw(b"with properties") / block)
    yield data(126, um.LBMC(topic_index=EUR, sqn=126, options=[um.LBMCChain(elements=[length])]) / blocks[-1])


def big_endian() -> Iterator[Packet]:
    """Blocks of hosts with the other byte order."""
    table = [um.LBMCBigProperty(name_offset=40, value_offset=42, type=3, hash=0x1234)]
    table += [um.LBMCBigProperty(name_offset=44, value_offset=46, type=6)]
    yield um.LBMCBigProperties(table=table, data=b"a\0\1\2" + b"b\0" + bytes.fromhex("3fc00000"))
    yield um.LBMCBigProperties(table=table[:1], data=bytes(16) + b"a\0\xff\xfe", version=1)


def advertisement(topic: bytes, transport: int, info: Packet, *options: Packet) -> Packet:
    """A TIR."""
    listed = [um.LBMRTopicOptionLength(), *options] if options else []
    return um.LBMRAdvertisement(topic=topic, transport=transport, index=EUR, info=info, options=listed)


def lbmr() -> Iterator[Packet]:
    """Queries, advertisements of every transport, every option, management and requests."""
    group = um.LBMRLbtrmInfo(source_ip=SOURCE, group=GROUP, session_id=SESSION)
    unicast = um.LBMRUnicastInfo(source_ip=SOURCE, session_id=7, port=14380)
    bare = um.LBMRUnicastAddress(source_ip=SOURCE, port=14381)
    host = um.LBMRHostInfo(host_id=1, session_id=2, transport_id=3)
    yield um.LBMR(tqrs=[um.LBMRQuery(topic=b"ORDERS.EU")], tirs=[advertisement(b"MD.EURUSD", 0x10, group)])
    late_join = um.LBMRTopicLateJoin(port=14391, ip=SOURCE, transport_index=77, high_sqn=41, low_sqn=12)
    functions = um.LBMRTopicExtendedFunction(port=14391, ip=SOURCE, functions="late_join")
    yield um.LBMR(
        tirs=[advertisement(b"MD.GBPUSD", 0x10, group, late_join, functions)],
        options=[
            um.LBMRVersion(number=1 << 24, flags=1),
            um.LBMRSourceId(source_id=0x435458494E535431),
            um.LBMRSourceType(source_type=2),
            um.LBMRLocalDomain(domain=9),
            um.LBMROptionLength(),
        ],
    )
    far = [um.LBMRTopicCost(hop_count=2, cost=-5), um.LBMRTopicDomain(domain=9)]
    yield um.LBMR(tirs=[advertisement(b"far", 0x10, group, *far, um.LBMRTopicContextInstance(instance=9))])
    yield um.LBMR(tirs=[advertisement(b"unicast", kind, unicast) for kind in (0x00, 0x01, 0x20)])
    yield um.LBMR(tirs=[advertisement(b"bare", kind, bare) for kind in (0x00, 0x01)])
    yield um.LBMR(tirs=[advertisement(b"host", kind, host) for kind in (0x04, 0x40)])
    yield um.LBMR(type="EXTENDED", request="queries+advertisements")
    yield um.LBMR()
    using = um.LBMRTopicManagementRecord(topic=b"orders")
    leaving = um.LBMRTopicManagementRecord(topic=b"trades.*", type=0, flags="wildcard_pcre")
    yield um.LBMR(tqr_count=0, tir_count=0) / um.LBMRTopicManagement(tmrs=[using, leaving])


def lbtru() -> Iterator[tuple[bool, Packet]]:
    """Yield the packets of a connection with a retransmission, and True for those of the receiver."""
    options = [um.LBTRUSessionId(session_id=0x5EED00AA), um.LBTRUClientId(client_id=7)]
    yield True, um.LBTRU() / um.LBTRUCreq(options=options)
    yield False, um.LBTRU(flags="syn") / um.LBTRUSm(sm_sqn=1, lead=500, trail=500, options=options)
    yield True, um.LBTRU() / um.LBTRUAck(sqn=500, options=options)
    first = [um.LBMC(topic_index=2001, sqn=1) / Raw(b"unicast")]
    yield False, um.LBTRU() / um.LBTRUData(sqn=501, trail=500, options=options, messages=first)
    yield True, um.LBTRU() / um.LBTRUNak(sqns=[502], options=options)
    yield False, um.LBTRU() / um.LBTRUNcf(trail=500, reason=3, sqns=[502], options=options)
    again = [um.LBMC(topic_index=2001, sqn=2) / Raw(b"again")]
    yield (
        False,
        um.LBTRU(flags="retransmission") / um.LBTRUData(sqn=502, trail=500, options=options, messages=again),
    )
    yield False, um.LBTRU() / um.LBTRURst()


def recovery() -> Iterator[Packet]:
    """Yield the requests of a late joiner over TCP."""
    request = um.LBMCLateJoinRequest(
        request_index=5, transport_index=77, topic_index=GBP, ip=RECEIVER, port=14392, request_max=100
    )
    yield control(request)
    wanted = [
        um.LBMCRetransmissionRequest(request_index=n, topic_index=GBP, sqn=n, ip=RECEIVER) for n in (6, 7)
    ]
    yield control(*wanted)
    yield control(um.LBMCLateJoinInfo(low_sqn=1, high_sqn=8, request_index=5))
    yield um.LBMC(type="RETRANSMISSION", topic_index=GBP, sqn=3) / Raw(b"recovered")


def persistence() -> Iterator[Packet]:
    """Yield control messages with every option of persistence."""
    instance = 0x4354585352433031
    store = um.LBMCStore(group=1, port=14567, store_index=2, ip=SOURCE, source_reg_id=77)
    extended = um.LBMCStoreExtended(group=1, port=14567, store_index=3, ip=RECEIVER, domain=5, version=6)
    values = [um.LBMCConfigurationValue(scope=1 + at, option=b"ume_x", value=b"9") for at in range(3)]
    yield control(
        um.LBMCRegistration(flags="receiver_paced+ignore", reg_id=1, source_reg_id=2, port=14391, ip=SOURCE),
        um.LBMCStoreId(store_index=2),
        um.LBMCCapability(flags="quorum_consensus"),
        um.LBMCClientLifetime(activity_timeout=3, lifetime=4, ttl=5),
        um.LBMCSessionId(session_id=2**63 + 1),
        um.LBMCProxySource(flags="enable"),
        um.LBMCStoreGroup(group=1, size=3),
        store,
        um.LBMCStoreContextInstance(instance=instance),
        um.LBMCStoreName(store=b"NEWYORK-1\0"),
        um.LBMCTopicName(topic=b"MD.EURUSD"),
        um.LBMCConfiguration(values=values),
    )
    yield control(um.LBMCRegistration(flags="deregister+proxy", is_source=0, marker=3), um.LBMCStoreId())
    yield control(
        um.LBMCRegistrationResponse(flags="known+no_acks", code=3, reg_id=1, low_sqn=2, high_sqn=3),
        um.LBMCStoreId(ignore=1, store_index=1),
    )
    yield control(um.LBMCRegistrationResponse(flags="error", code=5, is_source=0))
    acked = [um.LBMCRangedAcknowledgement(first_sqn=n, last_sqn=n + 1) for n in (4, 8)]
    yield control(um.LBMCAcknowledgement(id_2=EUR, sqn=9, flags="lost+arrival_order"), *acked)
    confirmed = um.LBMCAcknowledgement(type="consumption", receiver_reg_id=5, flags="user_reg_id+explicit")
    yield control(confirmed, um.LBMCAcknowledgementId(id=9))
    for at, sender in enumerate(("store", "receiver", "source")):
        yield control(um.LBMCKeepalive(type=sender, flags=0x20 << at & 0x60, topic_index=EUR, reg_id=at))
    yield control(um.LBMCReceiverKeepalive(receiver_reg_id=5, session_id=6, instance=instance))
    yield control(
        um.LBMCRegistrationInformation(flags="initial_sqn_known", version=2, low_sqn=3, high_sqn=4),
        um.LBMCStoreDomain(domain=5),
        extended,
    )
    yield control(um.LBMCRegistrationInformationRequest(transport_index=77, topic_index=EUR))
    yield control(um.LBMCRegistration(), um.LBMCElectionToken(store_index=1, token=0xC0FFEE11))
    elected = um.LBMCProxyElection(
        flags="source_instance+reelect", source_ip=SOURCE, store_ip=RECEIVER, source_instance=instance
    )
    yield control(um.LBMCStoreId(), elected)
    yield um.LBMC(type="PRORX", topic_index=GBP, sqn=3) / Raw(b"again")


def names_of_stores() -> Iterator[Packet]:
    """Yield the LBMR datagrams of persistence."""
    instance = 0x43545853544F5245
    extended = um.LBMR(type="EXTENDED", extended_type="context_information")
    yield extended / um.LBMRContextInformation(flags="query+name", context_name=b"NEWYORK-1")
    known = um.LBMRContextInformation(flags="ip+instance+name", port=14567, ip=SOURCE, instance=instance)
    known.context_name = b"NEWYORK-1"
    yield extended / known
    remote = um.LBMRRemoteContext(
        options=[
            um.LBMRContextAddress(domain=5, ip=SOURCE, port=14567),
            um.LBMRContextInstance(instance=instance),
            um.LBMRContextDomain(domain=6),
            um.LBMRContextName(context_name=b"NEWYORK-1"),
        ]
    )
    asked = um.LBMRRemoteContext(flags="query", options=[um.LBMRContextName(context_name=b"LONDON-2")])
    yield (
        um.LBMR(type="EXTENDED", extended_type="remote_context_information")
        / um.LBMRRemoteContexts(contexts=[remote, asked])
    )
    yield (
        um.LBMR(type="EXTENDED", extended_type="proxy_source_election")
        / um.LBMRProxyElection(source_ip=SOURCE, store_ip=RECEIVER, topic_index=EUR, topic=b"MD.EURUSD")
    )
    group = um.LBMRLbtrmInfo(source_ip=SOURCE, group=GROUP, session_id=SESSION)
    options = (
        um.LBMRTopicPersistence(flags=0x7800, store_port=14567, store_ip=SOURCE, source_reg_id=9),
        um.LBMRTopicStore(group=1, port=14567, store_index=2, ip=RECEIVER, source_reg_id=9),
        um.LBMRTopicStoreGroup(group=1, size=3),
        um.LBMRTopicStoreContextInstance(store_index=2, instance=instance),
        um.LBMRTopicExtendedFunction(port=14391, ip=SOURCE, functions="late_join+ume"),
    )
    yield um.LBMR(tirs=[advertisement(b"kept", 0x10, group, *options)])


def frames() -> list[Packet]:
    """Return all packets in frames with their addresses."""
    found = [
        frame(SOURCE, 40000, RESOLVER_GROUP, RESOLVER_PORT, packet)
        for packet in (*lbmr(), *names_of_stores())
    ]
    wildcard = um.LBMR(type="WILDCARD_QUERY", tqrs=[um.LBMRWildcardQuery(pattern=b"^MD\\..*")])
    found.append(frame(RECEIVER, 40000, RESOLVER_GROUP, RESOLVER_PORT, wildcard))
    found += [frame(SOURCE, NAK_PORT, GROUP, GROUP_PORT, packet) for packet in lbtrm()]
    nak = um.LBTRM(session_id=SESSION, nak_port=NAK_PORT) / um.LBTRMNak(sqns=[103, 104])
    found.append(frame(RECEIVER, 14395, SOURCE, NAK_PORT, nak))
    for upwards, packet in lbtru():
        ends = (RECEIVER, 14360, SOURCE, 14380) if upwards else (SOURCE, 14380, RECEIVER, 14360)
        found.append(frame(*ends, packet))
    ends = IP(src=RECEIVER, dst=SOURCE) / TCP(sport=51000, dport=REQUEST_PORT, seq=1000, flags="S")
    found.append(Ether() / ends)
    sequence = 1001
    for packet in (*recovery(), *persistence()):
        tcp = TCP(sport=51000, dport=REQUEST_PORT, seq=sequence, flags="PA")
        found.append(Ether() / IP(src=RECEIVER, dst=SOURCE) / tcp / packet)
        sequence += len(packet)
    return found
