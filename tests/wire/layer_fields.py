"""tshark's names of the scapy layers' fields, for comparing both dissections of a frame completely."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.fields import ConditionalField
from scapy.packet import NoPayload, Packet

import umstack.scapy as layers
from tests.wire.field_getters import (
    IGNORE,
    IGNORE_BYTE,
    Getter,
    Value,
    chained,
    eight,
    fields,
    flags,
    get,
    number,
    typed,
)
from tests.wire.persistence_fields import PERSISTENCE_FIELDS

GENERATED = (
    *(
        "lbmc.analysis",
        "lbmc.reassembly",
        "lbmc.topic",
        "lbmr.tir.channel",
        "lbtrm.analysis",
        "lbtrm.channel",
    ),
    *("lbtrm.transport", "lbtru.analysis", "lbtru.channel", "lbtru.transport"),
)
"""Fields that tshark derives from several frames, which no frame carries."""

NOT_GENERATED = ("lbmc.topicname",)
WITHOUT_VALUE = ("lbmc.apphdr.data", "lbmc.apphdr_chain.element.data")
"""A position that tshark marks without a value."""


def fec_byte(packet: Packet) -> int:
    """Return the byte with the flags and the FEC type."""
    return int(packet.flags) << 4 | packet.fec_type


def fec(prefix: str, **bits: int) -> dict[str, Getter]:
    """Return the getters of that byte, whole and bit by bit."""
    found: dict[str, Getter] = {prefix: fec_byte}
    for name, mask in bits.items():
        found[f"{prefix}.{name}"] = lambda packet, mask=mask: int(bool(fec_byte(packet) & mask))
    return found


def swapped(number: int) -> int:
    """Return a 32-bit number in the other byte order."""
    return int.from_bytes(number.to_bytes(4, "little"), "big")


def properties_block(packet: Packet) -> dict[str, list[Value]]:
    """Return names and values of a properties block by tshark's field names."""
    found: dict[str, list[Value]] = {}
    for entry, (name, value) in zip(packet.table, packet.properties().items(), strict=True):
        kind = PROPERTY_VALUES[entry.type]
        found.setdefault("key", []).append(name)
        bits = {"byte": 8, "short": 16, "int": 32, "long": 64}.get(kind)
        shown = value if bits is None else int(value) % (1 << bits)
        found.setdefault(f"{kind}_value", []).append(shown)
    return found


def of_block(theirs: str) -> Getter:
    """Return a getter of tshark's values of each property of a block."""
    return lambda packet: properties_block(packet).get(theirs)


PROPERTY_VALUES = layers.lbmc_properties.PROPERTY_TYPES
BLOCK = {
    f"lbmc.lbm_msg_properties.hdr.{name}": of_block(name)
    for name in ("key", *(f"{kind}_value" for kind in PROPERTY_VALUES.values()))
} | {
    f"lbmc.lbm_msg_properties.data.{name}": get(ours)
    for name, ours in [
        ("magic", "magic"),
        ("num_fields", "count"),
        ("version", "version"),
        ("type", "type"),
        ("res", "reserved"),
    ]
}
PROPERTY = fields(
    "lbmc.lbm_msg_properties.hdr",
    key_offset="name_offset",
    value_offset="value_offset",
    hash="hash",
    type="type",
)
ELEMENT = fields("lbmc.apphdr_chain.element", next_hdr="next_header", hdr_len="length")

INFO_NAMES = {
    0x00: ("tcp", {"ip": "source_ip", "session_id": "session_id", "port": "port"}),
    0x01: ("lbtru", {"ip": "source_ip", "session_id": "session_id", "port": "port"}),
    0x20: ("lbtrdma", {"ip": "source_ip", "session_id": "session_id", "port": "port"}),
    0x04: ("lbtsmx", {"host_id": "host_id", "session_id": "session_id", "xport_id": "transport_id"}),
    0x40: ("lbtipc", {"host_id": "host_id", "session_id": "session_id", "xport_id": "transport_id"}),
}

FIELDS: dict[type[Packet], dict[str, Getter]] = {
    layers.LBTRM: fields(
        "lbtrm.hdr",
        ver="version",
        type="type",
        next_hdr="next_header",
        ucast_port="nak_port",
        session_id="session_id",
    ),
    layers.LBTRMData: fields(
        "lbtrm.data", sqn="sqn", trail_sqn="trail", flags_tgsz="tgsz", fec_symbol="fec_symbol"
    )
    | fec("lbtrm.data.flags_fec_type", rx=0x20, ucast_naks=0x80),
    layers.LBTRMSm: fields(
        "lbtrm.sm",
        sm_sqn="sm_sqn",
        lead_sqn="lead",
        trail_sqn="trail",
        flags_tgsz="tgsz",
        reserved="reserved",
    )
    | fec("lbtrm.sm.flags_fec_type", ucast_naks=0x80),
    layers.LBTRMNak: fields("lbtrm.nak", num_naks="count", format="format")
    | {"lbtrm.nak.list.nak": get("sqns")},
    layers.LBTRMNcf: fields(
        "lbtrm.ncf",
        trail_sqn="trail",
        num_ncfs="count",
        reserved="reserved",
        reason="reason",
        format="format",
    )
    | {"lbtrm.ncf.list.ncf": get("sqns")},
    layers.LBMC: fields(
        "lbmc",
        version="version",
        type="type",
        next_hdr="next_header",
        msglen="length",
        tidx="topic_index",
        sqn="sqn",
    ),
    layers.LBMCFragment: chained("lbmc.frag")
    | fields("lbmc.frag", first_sqn="first_sqn", offset="offset", len="total")
    | flags("lbmc.frag.flags", **IGNORE),
    layers.LBMCBatch: chained("lbmc.batch") | flags("lbmc.batch.flags", batch_end=1, batch_start=2, **IGNORE),
    layers.LBMCRequest: chained("lbmc.tcp_request")
    | fields(
        "lbmc.tcp_request",
        transport="transport",
        qidx="request_index",
        port="port",
        reserved="reserved",
        ipaddr="ip",
        flags="flags",
    )
    | {"lbmc.tcp_request_flags.ignore": lambda packet: int(bool(packet.flags.ignore))},
    layers.LBMCTopicName: chained("lbmc.topicname")
    | fields("lbmc.topicname", topic="topic")
    | flags("lbmc.topicname.flags", **IGNORE),
    layers.LBMCApplicationHeader: chained("lbmc.apphdr")
    | fields("lbmc.apphdr", ignore="ignore", code="code"),
    layers.LBMCChain: chained("lbmc.apphdr_chain")
    | fields("lbmc.apphdr_chain", first_chain_hdr="first_element")
    | {"lbmc.apphdr_chain.res": number("flags")},
    layers.LBMCElement: ELEMENT | fields("lbmc.apphdr_chain.element", res="reserved"),
    layers.LBMCHotFailover: ELEMENT | {"lbmc.apphdr_chain.element.res": number("flags")},
    layers.LBMCHotFailover32: ELEMENT | {"lbmc.apphdr_chain.element.res": number("flags")},
    layers.LBMCPropertiesLength: fields(
        "lbmc.apphdr_chain.msgprop",
        next_hdr="next_header",
        hdr_len="length",
        res="reserved",
        proplen="bytes",
    ),
    layers.LBMCProperties: BLOCK,
    # The dissector shows the magic as little-endian for all blocks and distinguishes them by it.
    layers.LBMCBigProperties: BLOCK
    | {"lbmc.lbm_msg_properties.data.magic": lambda packet: swapped(packet.magic)},
    layers.LBMCProperty: PROPERTY,
    layers.LBMCBigProperty: PROPERTY,
    layers.LBMCSourceIndex: chained("lbmc.srcidx")
    | fields("lbmc.srcidx", srcidx="source_index")
    | flags("lbmc.srcidx.flags", **IGNORE),
    layers.LBMCRetransmissionRequest: chained("lbmc.ume_rxreq")
    | fields(
        "lbmc.ume_rxreq",
        request_idx="request_index",
        transport_idx="transport_index",
        id_2="topic_index",
        seqnum="sqn",
        rx_port="port",
        res="reserved",
        rx_ip="ip",
        marker="marker",
    )
    | {
        "lbmc.ume_rxreq.flags": lambda p: p.ignore << 15 | p.tsni << 14 | p.reserved_flags << 8 | p.marker,
        "lbmc.ume_rxreq.flags.ignore": get("ignore"),
        "lbmc.ume_rxreq.flags.t": get("tsni"),
    },
    layers.LBMCLateJoinInfo: chained("lbmc.ume_lj_info")
    | fields("lbmc.ume_lj_info", low_seqnum="low_sqn", high_seqnum="high_sqn", qidx="request_index")
    | flags("lbmc.ume_lj_info.flags", **IGNORE),
    layers.LBMCTsni: chained("lbmc.tsni") | fields("lbmc.tsni", ignore="ignore", num_recs="count"),
    layers.LBMCTsniRecord: fields("lbmc.tsni.tsni_rec", tidx="topic_index", sqn="sqn"),
    layers.LBMCContextInstance: chained("lbmc.ctxinst")
    | {
        "lbmc.ctxinst.ctxinst": eight("instance"),
        "lbmc.ctxinst.flags": number("flags"),
        "lbmc.ctxinst_flags.ignore": lambda packet: int(bool(packet.flags.ignore)),
    },
    layers.LBMCStreamInfo: chained("lbmc.stream")
    | fields("lbmc.stream", stream_id="stream_id", sqn="sqn")
    | flags("lbmc.stream.flags", **IGNORE)
    | {"lbmc.stream.ctxinst": eight("instance")},
    layers.LBMCLateJoinRequest: chained("lbmc.lji_req")
    | fields(
        "lbmc.lji_req",
        request_idx="request_index",
        transport_idx="transport_index",
        topic_idx="topic_index",
        req_ip="ip",
        req_port="port",
        res="reserved",
        tx_low_sqn="low_sqn",
        rx_req_max="request_max",
        rx_req_outstanding_max="outstanding_max",
    )
    | flags("lbmc.lji_req.flags", l_flag=1, m_flag=2, o_flag=4, **IGNORE),
    layers.LBMCHmac: chained("lbmc.hmac")
    | fields("lbmc.hmac", padding="padding", data="data")
    | flags("lbmc.hmac.flags", **IGNORE_BYTE),
    layers.LBMCSsfInit: chained("lbmc.ssf_init")
    | fields(
        "lbmc.ssf_init",
        transport="transport",
        transport_idx="session_id",
        client_idx="client_index",
        ssf_port="port",
        res="reserved",
        ssf_ip="ip",
    )
    | flags("lbmc.ssf_init.flags", default_inclusions=0x40, default_exclusions=0x20, **IGNORE_BYTE),
    layers.LBMCSsfRequest: chained("lbmc.ssf_creq")
    | fields(
        "lbmc.ssf_creq",
        mode="mode",
        transport_idx="session_id",
        topic_idx="topic_index",
        client_idx="client_index",
    )
    | flags("lbmc.ssf_creq.flags", **IGNORE_BYTE),
    layers.LBMCTcpSessionId: chained("lbmc.tcp_sid")
    | fields("lbmc.tcp_sid", sid="session_id")
    | flags("lbmc.tcp_sid.flags", **IGNORE),
    layers.LBMCExtended: chained("lbmc.extopt")
    | fields("lbmc.extopt", id="id", subtype="subtype", fragment_offset="fragment_offset", data="data")
    | flags("lbmc.extopt.flags", ignore_subtype=0x40, more_fragments=0x20, **IGNORE_BYTE),
    layers.LBTRU: fields("lbtru.hdr", ver="version", type="type", next_hdr="next_header")
    | fields("lbtru.hdr", request="request", reason="reason", res="reserved")
    | {"lbtru.hdr.flags": number("flags")},
    layers.LBTRUData: fields("lbtru.data", sqn="sqn", trail="trail")
    | {"lbtru.hdr.flags.rx": lambda packet: int(bool(packet.underlayer.flags.retransmission))},
    layers.LBTRUSm: fields("lbtru.sm", sqn="sm_sqn", lead="lead", trail="trail")
    | {"lbtru.hdr.flags.syn": lambda packet: int(bool(packet.underlayer.flags.syn))},
    layers.LBTRUNak: fields("lbtru.nak", num="count", format="format") | {"lbtru.nak.list.nak": get("sqns")},
    layers.LBTRUNcf: fields(
        "lbtru.ncf", trail="trail", num="count", reserved="reserved", reason="reason", format="format"
    )
    | {"lbtru.ncf.list.ncf": get("sqns")},
    layers.LBTRUAck: fields("lbtru.ack", sqn="sqn"),
    layers.LBTRUCreq: {},
    layers.LBTRUSessionId: chained("lbtru.opt_sid")
    | fields("lbtru.opt_sid", session_id="session_id")
    | flags("lbtru.opt_sid.flags", **IGNORE),
    layers.LBTRUClientId: chained("lbtru.opt_cid")
    | fields("lbtru.opt_cid", client_id="client_id")
    | flags("lbtru.opt_cid.flags", **IGNORE),
    layers.LBMR: fields(
        "lbmr.hdr", ver="version", opts="options_present", type="type", tqrs="tqr_count", tirs="tir_count"
    )
    | fields("lbmr.hdr", ext_type="extended_type")
    | flags(
        "lbmr.topic_res_request.flags",
        "request",
        wildcard_query=0x01,
        query=0x02,
        advertisement=0x04,
        gateway_meta=0x08,
        context_advertisement=0x10,
        context_query=0x20,
        gw_remote_interest=0x40,
    ),
    layers.LBMRQuery: fields("lbmr.tqr", name="topic"),
    layers.LBMRWildcardQuery: fields("lbmr.tqr", pattern_type="pattern_type", pattern="pattern"),
    layers.LBMRAdvertisement: fields(
        "lbmr.tir",
        name="topic",
        transport_opts="options_present",
        transport_type="transport",
        tlen="info_length",
        ttl="ttl",
        index="index",
    ),
    layers.LBMRLbtrmInfo: fields(
        "lbmr.tir.lbtrm",
        srcip="source_ip",
        mcastip="group",
        sessid="session_id",
        dport="destination_port",
        sport="nak_port",
    ),
    layers.LBMRTopicOptionLength: typed("lbmr.topt.len") | fields("lbmr.topt.len", total_len="total"),
    layers.LBMRTopicLateJoin: typed("lbmr.topt.latejoin")
    | fields(
        "lbmr.topt.latejoin",
        src_tcp_port="port",
        reserved="reserved",
        src_ip_addr="ip",
        transport_idx="transport_index",
        high_seqnum="high_sqn",
        low_seqnum="low_sqn",
    )
    | flags("lbmr.topt.latejoin.flags", acktosrc=0x4000, **IGNORE),
    layers.LBMRTopicCost: typed("lbmr.topt.cost")
    | fields("lbmr.topt.cost", hop_count="hop_count", cost="cost")
    | flags("lbmr.topt.cost.flags", **IGNORE_BYTE),
    layers.LBMRTopicOriginatingTransport: typed("lbmr.topt.otid")
    | fields("lbmr.topt.otid", originating_transport="originating_transport")
    | flags("lbmr.topt.otid.flags", **IGNORE),
    layers.LBMRTopicContextInstance: typed("lbmr.topt.ctxinst")
    | {"lbmr.topt.ctxinst.ctxinst": eight("instance"), "lbmr.topt.ctxinst.res": get("reserved")}
    | flags("lbmr.topt.ctxinst.flags", **IGNORE_BYTE),
    layers.LBMRTopicDomain: typed("lbmr.topt.domain_id")
    | fields("lbmr.topt.domain_id", domain_id="domain")
    | {"lbmr.topt.domain_id.flags": number("flags")},
    layers.LBMRTopicExtendedFunction: typed("lbmr.topt.exfunc")
    | fields("lbmr.topt.exfunc", src_tcp_port="port", reserved="reserved", src_ip_addr="ip")
    | flags("lbmr.topt.exfunc.flags", **IGNORE)
    | flags("lbmr.topt.exfunc.functionality_flags", "functions", lj=1, ume=2, umq=4, ulb=8),
    layers.LBMROptionLength: typed("lbmr.opt.len") | fields("lbmr.opt.len", total_len="total"),
    layers.LBMRSourceId: typed("lbmr.opt.src_id")
    | {"lbmr.opt.src_id.src_id": eight("source_id")}
    | flags("lbmr.opt.src_id.flags", **IGNORE),
    layers.LBMRSourceType: typed("lbmr.opt.src_type")
    | fields("lbmr.opt.src_type", src_type="source_type")
    | flags("lbmr.opt.src_type.flags", **IGNORE_BYTE),
    layers.LBMRVersion: typed("lbmr.opt.version")
    | fields("lbmr.opt.version", version="number")
    | flags("lbmr.opt.version.flags", ume=1, umq=2, **IGNORE),
    layers.LBMRLocalDomain: typed("lbmr.opt.local_domain")
    | fields("lbmr.opt.local_domain", local_domain_id="domain")
    | flags("lbmr.opt.local_domain.flags", **IGNORE),
    layers.LBMRTopicManagement: fields("lbmr.tmb", len="length", tmrs="count"),
    layers.LBMRTopicManagementRecord: fields("lbmr.tmb.tmr", len="length", type="type", name="topic")
    | flags("lbmr.tmb.tmr.flags", response=0x80, wildcard_pcre=0x40, wildcard_regex=0x20),
    **PERSISTENCE_FIELDS,
}


OWN_OPTIONS = (
    layers.LBMCStatus,
    layers.LBMCProbedStatus,
    layers.LBMCGroupReport,
    layers.LBMCSendTime,
    layers.LBMCInterest,
    layers.LBMCFilterReport,
)


def own_as_extended(packet: Packet) -> Packet:
    """Return the stack's own options as tshark dissects them: extended options with data."""
    return layers.LBMCExtended(bytes(packet)) if isinstance(packet, OWN_OPTIONS) else packet


def parts(packet: Packet) -> Iterator[Packet]:
    """Yield a packet, the packets in its lists, and its payloads, in the order of the frame."""
    yield own_as_extended(packet)
    for field in packet.fields_desc:
        if isinstance(field, ConditionalField) and not field._evalcond(packet):
            continue
        inside = packet.getfieldval(field.name)
        for each in inside if isinstance(inside, list) else [inside]:
            if isinstance(each, Packet):
                yield from parts(each)
    if not isinstance(packet.payload, NoPayload):
        yield from parts(packet.payload)


def getters(packet: Packet) -> dict[str, Getter]:
    """Return the getters of a packet's fields by tshark's names."""
    if isinstance(packet, layers.LBMRUnicastInfo | layers.LBMRUnicastAddress | layers.LBMRHostInfo):
        name, names = INFO_NAMES[packet.parent.transport]
        has = {field.name for field in packet.fields_desc}
        return fields(f"lbmr.tir.{name}", **{theirs: ours for theirs, ours in names.items() if ours in has})
    return FIELDS.get(type(packet), {})


def values_of_layers(packet: Packet) -> dict[str, list[Value]]:
    """Return all values by tshark's field names, in the order of the frame."""
    found: dict[str, list[Value]] = {}
    for part in parts(packet):
        for name, getter in getters(part).items():
            value = getter(part)
            if value is not None:
                found.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return {name: values for name, values in found.items() if values}


def is_carried(name: str) -> bool:
    """Return True if the frame carries tshark's field, rather than tshark deriving it."""
    if not name.startswith(("lbtrm.", "lbmc.", "lbmr.", "lbtru.")) or name.endswith("_tree"):
        return False
    return name.startswith(NOT_GENERATED) or not (name.startswith(GENERATED) or name in WITHOUT_VALUE)


def values_of_tshark(tree: object) -> dict[str, list[str]]:
    """Return tshark's values of the fields that the frame carries, by name."""
    found: dict[str, list[str]] = {}
    if isinstance(tree, list):
        for item in tree:
            for name, shown in values_of_tshark(item).items():
                found.setdefault(name, []).extend(shown)
    elif isinstance(tree, dict):
        for key, item in tree.items():
            shown = item if isinstance(item, list) else [item]
            if is_carried(key) and isinstance(shown[0], str):
                found.setdefault(key, []).extend(shown)
            elif not isinstance(item, str):
                for name, inner in values_of_tshark(item).items():
                    found.setdefault(name, []).extend(inner)
    return found


def agree(ours: Value, theirs: str) -> bool:
    """Return True if both values are equal except for the notation."""
    if isinstance(ours, bytes):
        text = ours.decode("utf-8", errors="replace")
        if theirs == ours.hex(":"):
            return True
        # Some versions show the kind byte before the pattern of a wildcard query; names beyond printable ASCII are
        # escaped, differently by version.
        return theirs.lstrip("\1\2") == text or not (text.isascii() and text.isprintable())
    if isinstance(ours, float):
        return float(theirs) == pytest.approx(ours, rel=1e-6)
    return theirs == ours if isinstance(ours, str) else int(theirs, 0) == int(ours)


def differences(packet: Packet, tree: object) -> list[str]:
    """Return the differences between the layers and tshark, including fields that only one of them has."""
    ours, theirs = values_of_layers(packet), values_of_tshark(tree)
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(name, []), theirs.get(name, [])
        same = len(mine) == len(other) and all(map(agree, mine, other))
        if not same:
            found.append(f"{name}: {mine[:4]} here, {other[:4]} in tshark")
    return found
