"""tshark's names of the fields of persistence, for comparing both dissections of a frame completely."""

from __future__ import annotations

from scapy.packet import Packet

import umstack.scapy as layers
from tests.wire.field_getters import (
    IGNORE,
    IGNORE_BYTE,
    Getter,
    bit,
    chained,
    eight,
    fields,
    flags,
    get,
    number,
    typed,
)


def group_flags(packet: Packet) -> int:
    """Return the two bytes that the dissector shows as the flags of a Store and of a group."""
    return int(packet.flags) << 8 | packet.group


def of_group(prefix: str) -> dict[str, Getter]:
    """Return the getters of a Store's and a group's flags and group index."""
    return {
        f"{prefix}.flags": group_flags,
        f"{prefix}.flags.ignore": bit("flags", 0x80),
        f"{prefix}.grp_idx": get("group"),
    }


def code(packet: Packet) -> int:
    """Return the code byte of a response."""
    return int(packet.flags) << 4 | packet.code


def success(mask: int) -> Getter:
    """Return a getter of a bit of the code byte that exists without the error flag."""
    return lambda packet: None if packet.flags.error else int(bool(code(packet) & mask))


def simple(layer: str, **names: str) -> dict[str, Getter]:
    """Return the getters of an option with sixteen flags of which only one has a name."""
    return chained(layer) | flags(f"{layer}.flags", **IGNORE) | fields(layer, **names)


def party(prefix: str) -> dict[str, Getter]:
    """Return the getters of who registers."""
    return fields(prefix, s_flag="is_source", marker="marker")


STORE = {
    "store_tcp_port": "port",
    "store_idx": "store_index",
    "store_ip_addr": "ip",
    "src_reg_id": "source_reg_id",
}
TOPIC = {"transport_idx": "transport_index", "topic_idx": "topic_index"}
INSTANCE = {
    "lbmc.ctxinst.ctxinst": eight("instance"),
    "lbmc.ctxinst.flags": number("flags"),
    "lbmc.ctxinst_flags.ignore": bit("flags", 0x8000),
}

PERSISTENCE_FIELDS: dict[type[Packet], dict[str, Getter]] = {
    layers.LBMCRegistration: chained("lbmc.ume_preg")
    | party("lbmc.ume_preg")
    | fields(
        "lbmc.ume_preg",
        reg_id="reg_id",
        src_reg_id="source_reg_id",
        resp_port="port",
        res2="reserved",
        resp_ip="ip",
        **TOPIC,
    )
    | flags("lbmc.ume_preg.flags", f_flag=0x40, p_flag=0x20, w_flag=0x10, d_flag=0x08, **IGNORE_BYTE),
    layers.LBMCRegistrationResponse: chained("lbmc.ume_preg_resp")
    | party("lbmc.ume_preg_resp")
    | fields("lbmc.ume_preg_resp", reg_id="reg_id", low_seqnum="low_sqn", high_seqnum="high_sqn", **TOPIC)
    | {
        "lbmc.ume_preg_resp.code": code,
        "lbmc.ume_preg_resp.code.ignore": lambda packet: int(packet.flags.ignore),
        "lbmc.ume_preg_resp.code.e_flag": lambda packet: int(packet.flags.error),
        "lbmc.ume_preg_resp.code.o_flag": lambda packet: int(packet.flags.known),
        "lbmc.ume_preg_resp.code.n_flag": success(0x10),
        "lbmc.ume_preg_resp.code.w_flag": success(0x02),
        "lbmc.ume_preg_resp.code.d_flag": success(0x01),
        "lbmc.ume_preg_resp.code.code": lambda packet: packet.code if packet.flags.error else None,
    },
    layers.LBMCAcknowledgement: chained("lbmc.ume_ack")
    | fields(
        "lbmc.ume_ack",
        type="type",
        transport_idx="transport_index",
        id_2="id_2",
        rcv_reg_id="receiver_reg_id",
        seqnum="sqn",
    )
    | flags("lbmc.ume_ack.flags", o_flag=0x40, f_flag=0x20, u_flag=0x10, e_flag=0x08, **IGNORE_BYTE),
    layers.LBMCRangedAcknowledgement: simple(
        "lbmc.ume_ranged_ack", first_seqnum="first_sqn", last_seqnum="last_sqn"
    ),
    layers.LBMCAcknowledgementId: simple("lbmc.ume_ack_id", id="id"),
    layers.LBMCKeepalive: chained("lbmc.ume_keepalive")
    | fields("lbmc.ume_keepalive", type="type", reg_id="reg_id", **TOPIC)
    | flags("lbmc.ume_keepalive.flags", r_flag=0x40, t_flag=0x20, **IGNORE_BYTE),
    layers.LBMCReceiverKeepalive: simple(
        "lbmc.ume_receiver_keepalive", rcv_regid="receiver_reg_id", session_id="session_id"
    )
    | {"lbmc.ume_receiver_keepalive.ctxinst": eight("instance")},
    layers.LBMCStoreId: chained("lbmc.ume_storeid")
    | fields("lbmc.ume_storeid", ignore="ignore", store_id="store_index"),
    layers.LBMCCapability: chained("lbmc.ume_capability")
    | flags("lbmc.ume_capability.flags", qc_flag=0x4000, client_lifetime_flag=0x2000, **IGNORE),
    layers.LBMCProxySource: chained("lbmc.ume_proxy_src")
    | flags("lbmc.ume_proxy_src.flags", enable=0x4000, compatibility=0x2000, **IGNORE),
    layers.LBMCStoreGroup: chained("lbmc.ume_store_group")
    | of_group("lbmc.ume_store_group")
    | fields("lbmc.ume_store_group", grp_sz="size", res1="reserved"),
    layers.LBMCStore: chained("lbmc.ume_store")
    | of_group("lbmc.ume_store")
    | fields("lbmc.ume_store", **STORE),
    layers.LBMCStoreExtended: chained("lbmc.ume_store_ext")
    | of_group("lbmc.ume_store_ext")
    | fields("lbmc.ume_store_ext", domain_id="domain", version="version", **STORE),
    layers.LBMCStoreContextInstance: chained("lbmc.ctxinst") | INSTANCE,
    layers.LBMCStoreName: simple("lbmc.ume_storename")
    | {"lbmc.ume_storename.store": lambda packet: packet.store.rstrip(b"\0")},
    layers.LBMCStoreDomain: simple("lbmc.ume_store_domain", domain="domain"),
    layers.LBMCClientLifetime: simple(
        "lbmc.ume_client_lifetime", activity_tmo="activity_timeout", lifetime="lifetime", ttl="ttl"
    ),
    layers.LBMCSessionId: simple("lbmc.ume_sid", sid="session_id"),
    layers.LBMCRegistrationInformation: chained("lbmc.sri")
    | fields("lbmc.sri", version="version", low_sqn="low_sqn", high_sqn="high_sqn")
    | flags("lbmc.sri.flags", acktosrc=1, initial_sqn_known=2, **IGNORE),
    layers.LBMCRegistrationInformationRequest: simple("lbmc.sri_req", **TOPIC),
    layers.LBMCElectionToken: chained("lbmc.ume_psrc_election_token")
    | fields("lbmc.ume_psrc_election_token", store_index="store_index", token="token")
    | {
        "lbmc.ume_psrc_election_token.flags": lambda packet: int(packet.flags) << 8 | packet.store_index,
        "lbmc.ume_psrc_election_token.flags.ignore": bit("flags", 0x80),
    },
    layers.LBMCProxyElection: chained("lbmc.ume_pser")
    | fields(
        "lbmc.ume_pser",
        source_ip="source_ip",
        store_ip="store_ip",
        source_port="source_port",
        store_port="store_port",
        **TOPIC,
    )
    | flags("lbmc.ume_pser.flags", source_ctxinst=0x4000, store_ctxinst=0x2000, reelect=0x1000, **IGNORE)
    | {
        "lbmc.ume_pser.source_ctxinst": eight("source_instance"),
        "lbmc.ume_pser.store_ctxinst": eight("store_instance"),
    },
    layers.LBMCConfiguration: chained("lbmc.extopt")
    | fields("lbmc.extopt", id="id", subtype="subtype", fragment_offset="fragment_offset")
    | flags("lbmc.extopt.flags", ignore_subtype=0x40, more_fragments=0x20, **IGNORE_BYTE),
    # The dissector shows the scope as the parent, too.
    layers.LBMCConfigurationValue: fields(
        "lbmc.extopt.cfgopt", scope="scope", parent="scope", name="option", value="value"
    ),
    layers.LBMRTopicPersistence: typed("lbmr.topt.ume")
    | fields(
        "lbmr.topt.ume",
        store_tcp_port="store_port",
        src_tcp_port="source_port",
        store_tcp_addr="store_ip",
        src_tcp_addr="source_ip",
        src_reg_id="source_reg_id",
        transport_idx="transport_index",
        high_seqnum="high_sqn",
        low_seqnum="low_sqn",
    )
    | flags("lbmr.topt.ume.flags", latejoin=0x4000, store=0x2000, qccap=0x1000, acktosrc=0x0800, **IGNORE),
    layers.LBMRTopicStore: typed("lbmr.topt.ume_store")
    | fields("lbmr.topt.ume_store", grp_idx="group", **STORE)
    | flags("lbmr.topt.ume_store.flags", **IGNORE_BYTE),
    layers.LBMRTopicStoreGroup: typed("lbmr.topt.ume_store_group")
    | fields("lbmr.topt.ume_store_group", grp_idx="group", grp_sz="size", reserved="reserved")
    | flags("lbmr.topt.ume_store_group.flags", **IGNORE_BYTE),
    layers.LBMRTopicStoreContextInstance: typed("lbmr.topt.ctxinsts")
    | fields("lbmr.topt.ctxinsts", idx="store_index")
    | {"lbmr.topt.ctxinsts.ctxinsts": eight("instance")}
    | flags("lbmr.topt.ctxinsts.flags", **IGNORE_BYTE),
    layers.LBMRContextInformation: fields("lbmr.ctxinfo", port="port", ip="ip", name="context_name")
    | {
        "lbmr.ctxinfo.len": lambda packet: packet.underlayer.extended_value >> 8,
        "lbmr.ctxinfo.hop_count": lambda packet: packet.underlayer.extended_value & 0xFF,
        "lbmr.ctxinfo.instance": eight("instance"),
    }
    | flags(
        "lbmr.ctxinfo.flags",
        query=0x8000,
        ip=0x4000,
        instance=0x2000,
        tnwg_src=0x1000,
        tnwg_rcv=0x0800,
        proxy=0x0400,
        name=0x0001,
    ),
    layers.LBMRRemoteContexts: fields("lbmr.rctxinfo", num_recs="count", reserved="reserved")
    | {"lbmr.rctxinfo.len": lambda packet: packet.underlayer.extended_value},
    layers.LBMRRemoteContext: fields("lbmr.rctxinfo.rec", len="length")
    | flags("lbmr.rctxinfo.rec.flags", query=0x8000),
    layers.LBMRContextAddress: typed("lbmr.rctxinfo.rec.address")
    | fields(
        "lbmr.rctxinfo.rec.address",
        flags="flags",
        domain_id="domain",
        ip="ip",
        port="port",
        res="reserved",
    ),
    layers.LBMRContextInstance: typed("lbmr.rctxinfo.rec.instance")
    | fields("lbmr.rctxinfo.rec.instance", flags="flags")
    | {"lbmr.rctxinfo.rec.instance.instance": eight("instance")},
    layers.LBMRContextDomain: typed("lbmr.rctxinfo.rec.odomain")
    | fields("lbmr.rctxinfo.rec.odomain", flags="flags", domain_id="domain"),
    layers.LBMRContextName: typed("lbmr.rctxinfo.rec.name")
    | fields("lbmr.rctxinfo.rec.name", flags="flags", name="context_name"),
    layers.LBMRProxyElection: fields(
        "lbmr.pser",
        len="length",
        source_ip="source_ip",
        store_ip="store_ip",
        source_port="source_port",
        store_port="store_port",
        transport_idx="transport_index",
        topic_idx="topic_index",
        topic="topic",
    )
    | flags("lbmr.pser.flags", option=0x8000)
    | {"lbmr.pser.dep_type": lambda packet: packet.underlayer.extended_value},
}
