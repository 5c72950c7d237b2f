"""tshark decodes every control message of persistence as the codec wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

import umstack.scapy as um
from tests.store_messages import (
    CLIENT,
    INSTANCE,
    MESSAGES,
    RECEIVER_REG,
    REQUEST_PORT,
    SESSION,
    SOURCE_REG,
    STORE_INSTANCE,
    STORE_PORT,
    TOPIC,
    TRANSPORT,
)
from tests.wire.agreement import assert_agreement, trees
from tests.wire.dissection import MARKS, OPTIONS, tshark, values
from umstack.persistence.pacing import PACING_NAME
from umstack.store.wire import PROACTIVE, RECOVERED, with_type

DATA = bytes(um.LBMC(topic_index=TOPIC, sqn=45) / Raw(b"order 45"))
SENT = {name: message.encode() for name, message in MESSAGES.items()} | {
    "proactive": with_type(DATA, PROACTIVE),
    "recovered": with_type(DATA, RECOVERED),
}
ON_SESSION = ("information",)
INDEXES = {"transport_idx": TRANSPORT, "topic_idx": TOPIC}
NO_INDEXES = {"transport_idx": 1, "topic_idx": 2}
STORE_LIST = {
    "store_idx": [0, 1, 2],
    "grp_idx": [0, 0, 1],
    "store_tcp_port": [14567, 14568, 14569],
    "store_ip_addr": ["10.9.0.11", "10.9.0.12", "10.9.0.13"],
    "src_reg_id": [SOURCE_REG, SOURCE_REG + 1, SOURCE_REG + 2],
}
GROUPS = {"ume_store_group": {"grp_idx": [0, 1], "grp_sz": [2, 1]}}
CAPABLE = {"ume_capability": {"flags.qc_flag": 1, "flags.client_lifetime_flag": 1}}


def store(index: int) -> dict[str, dict[str, Any]]:
    """Return the fields of a Store id."""
    return {"ume_storeid": {"store_id": index}}


def preg(**fields: Any) -> dict[str, Any]:
    """Return the fields of a registration."""
    usual = {
        "flags.d_flag": 0,
        "flags.f_flag": 0,
        "flags.w_flag": 0,
        "flags.p_flag": 0,
        "marker": 0,
        "src_reg_id": 0,
        "reg_id": 0,
    }
    return usual | fields


def terms(scope: int) -> dict[str, Any]:
    """Return the fields of a Store's terms."""
    names = ["repository_durability", "store_is_new", "store_flight_size_bytes"]
    return {"cfgopt.name": names, "cfgopt.value": ["disk", "1", "16777216"], "cfgopt.scope": [scope] * 3}


EXPECTED: dict[str, dict[str, dict[str, Any]]] = {
    "source": {
        "ume_preg": preg(
            s_flag=1, reg_id=5, resp_port=REQUEST_PORT, resp_ip=CLIENT.ip, **INDEXES, **{"flags.w_flag": 1}
        ),
        "ume_client_lifetime": {"activity_tmo": 30000, "lifetime": 600000, "ttl": 0},
        "ume_sid": {"sid": SESSION},
        "ume_store": STORE_LIST,
        "ctxinst": {"ctxinst": INSTANCE.hex(":")},
        "topicname": {"topic": "ORD"},
        "extopt": {
            "subtype": 256,
            "cfgopt.name": ["ume_flight_size_bytes", "ume_write_delay"],
            "cfgopt.value": ["1000000", "1000"],
            "cfgopt.scope": [1, 3],
        },
        **store(2),
        **GROUPS,
        **CAPABLE,
    },
    "receiver": {
        "ume_preg": preg(
            s_flag=0, src_reg_id=SOURCE_REG, resp_port=0, resp_ip="0.0.0.0", **INDEXES, **{"flags.f_flag": 1}
        ),
        "ume_sid": {"sid": (1 << 64) - 2},
    },
    "receiver-paced receiver": {
        "ume_preg": preg(s_flag=0, src_reg_id=SOURCE_REG, **NO_INDEXES, **{"flags.w_flag": 1}),
        "extopt": {"cfgopt.name": PACING_NAME, "cfgopt.value": "2", "cfgopt.scope": 2},
    },
    "proxy": {"ume_preg": preg(s_flag=1, reg_id=3, **NO_INDEXES, **{"flags.p_flag": 1})},
    "deregistration": {
        "ume_preg": preg(s_flag=0, reg_id=RECEIVER_REG, **NO_INDEXES, **{"flags.d_flag": 1})
    },
    "new": {
        "ume_preg_resp": {
            **INDEXES, "code.e_flag": 0, "code.o_flag": 0, "code.w_flag": 1, "code.d_flag": 0, "s_flag": 1,
            "reg_id": SOURCE_REG, "low_seqnum": 0, "high_seqnum": 0,
        },
        "ume_sid": {"sid": SESSION},
        "extopt": terms(1),
        **store(0),
        **CAPABLE,
    },
    "known": {
        "ume_preg_resp": {
            **INDEXES, "code.e_flag": 0, "code.o_flag": 1, "code.w_flag": 0, "s_flag": 0,
            "reg_id": RECEIVER_REG, "low_seqnum": 12, "high_seqnum": 41,
        },
        **store(1),
    },
    "refused": {"ume_preg_resp": {"code.e_flag": 1, "code.o_flag": 0, "code.code": 5, "reg_id": 1000}},
    "refused with a reason": {
        "ume_preg_resp": {"code.e_flag": 1, "code.code": 6},
        "extopt": {"cfgopt.name": "umstack_reason", "cfgopt.value": "set it to 1 or 2", "cfgopt.scope": 2},
    },
    "receiver-paced": {"ume_preg_resp": {"code.e_flag": 0, "code.w_flag": 1, "code.n_flag": 1, "reg_id": RECEIVER_REG}},
    "deregistered": {"ume_preg_resp": {**NO_INDEXES, "code.e_flag": 0, "code.d_flag": 1, "code.w_flag": 0}},
    "information": {
        "sri": {
            "version": 2, "low_sqn": 12, "high_sqn": 41, "flags.acktosrc": 1, "flags.initial_sqn_known": 1,
        },
        "srcidx": {"srcidx": TOPIC},
        "ume_store_ext": STORE_LIST | {"version": [1, 2, 3], "domain_id": [0, 0, 0]},
        "ctxinst": {"ctxinst": [STORE_INSTANCE.hex(":")] * 3},
        "ume_storename": {"store": ["NEWYORK-0", "NEWYORK-1", "NEWYORK-2"]},
        **GROUPS,
    },
    "information request": {"sri_req": INDEXES},
    "stable": {
        "ume_ack": {"type": 1, "flags": 0, "transport_idx": TRANSPORT, "id_2": TOPIC, "rcv_reg_id": 0, "seqnum": 44},
        "ume_ranged_ack": {"first_seqnum": 42, "last_seqnum": 44},
        **store(2),
    },
    "stable with a gap": {
        "ume_ack": {"type": 1, "flags": 0, "seqnum": 4},
        "ume_ranged_ack": {"first_seqnum": [0xFFFFFFFE, 0], "last_seqnum": [0xFFFFFFFE, 4]},
        **store(1),
    },
    "lost": {
        "ume_ack": {"type": 1, "flags": 4, "seqnum": 46},
        "ume_ranged_ack": {"first_seqnum": 46, "last_seqnum": 46},
    },
    "consumed": {
        "ume_ack": {
            "type": 0, "flags.e_flag": 1, "flags.u_flag": 0, "transport_idx": TRANSPORT, "id_2": SOURCE_REG,
            "rcv_reg_id": RECEIVER_REG, "seqnum": 44,
        },
        **store(2),
    },
    "begins": {"ume_ack": {"type": 0, "flags.f_flag": 1, "flags.e_flag": 0, "seqnum": 44}},
    "confirmed": {
        "ume_ack": {
            "type": 0, "flags.e_flag": 1, "flags.u_flag": 1, "transport_idx": TRANSPORT, "id_2": TOPIC,
            "rcv_reg_id": 7001, "seqnum": 44,
        },
        "ume_ack_id": {"id": 9},
    },
    "forwarded": {
        "ume_ack": {
            "type": 0, "flags.e_flag": 0, "flags.u_flag": 0, "transport_idx": TRANSPORT, "id_2": TOPIC,
            "rcv_reg_id": 0, "seqnum": 44,
        },
        "ume_ack_id": {"id": 10},
        "ume_sid": {"sid": SESSION},
    },
    "keepalive of a Store": {
        "ume_keepalive": {**INDEXES, "type": 0, "reg_id": SOURCE_REG, "flags.r_flag": 1, "flags.t_flag": 1},
        "extopt": terms(1),
        **store(1),
    },
    "keepalive to a blocked source": {
        "ume_keepalive": {**INDEXES, "type": 0, "reg_id": SOURCE_REG},
        "extopt": {
            "cfgopt.name": ["umstack_blocking_receiver", "umstack_blocked_ms"],
            "cfgopt.value": ["3", "1500"],
            "cfgopt.scope": [1, 1],
        },
    },
    "keepalive of a source": {
        "ume_keepalive": {**INDEXES, "type": 2, "reg_id": SOURCE_REG, "flags.r_flag": 0, "flags.t_flag": 0}
    },
    "last keepalive of a source": {
        "ume_keepalive": {**INDEXES, "type": 2, "reg_id": SOURCE_REG},
        "extopt": {
            "cfgopt.name": ["umstack_oldest_sqn", "umstack_is_last"],
            "cfgopt.value": ["46", "1"],
            "cfgopt.scope": [1, 1],
        },
    },
    "keepalive of a receiver": {"ume_keepalive": {**INDEXES, "type": 1, "reg_id": RECEIVER_REG}},
    "requests": {
        "ume_rxreq": {
            "request_idx": [6, 7], "transport_idx": [TRANSPORT] * 2, "id_2": [SOURCE_REG] * 2,
            "seqnum": [43, 44], "rx_port": [REQUEST_PORT] * 2, "rx_ip": [CLIENT.ip] * 2,
        }
    },
    "retained": {"ume_lj_info": {"low_seqnum": 12, "high_seqnum": 44, "qidx": 5}},
    "proactive": {"": {"type": 2, "tidx": TOPIC, "sqn": 45}},
    "recovered": {"": {"type": 10, "tidx": TOPIC, "sqn": 45}},
}  # fmt: skip


def frames() -> Iterator[Packet]:
    """Yield each message in a frame: on a connection to a Store, or on the data session."""
    sequence = 1
    for name, message in SENT.items():
        ends = Ether() / IP(src="10.9.0.1", dst="10.9.0.11")
        if name in ON_SESSION:
            header = um.LBTRM(session_id=7, nak_port=14390) / um.LBTRMData(sqn=1, trail=1)
            group = Ether() / IP(src="10.9.0.1", dst="224.10.10.10")
            yield group / UDP(sport=14390, dport=14400) / Raw(bytes(header) + message)
        else:
            yield ends / TCP(sport=51000, dport=STORE_PORT, seq=sequence, flags="PA") / Raw(message)
            sequence += len(message)


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A capture of all messages; the port of the Store is known to tshark and to the layers."""
    for end in ("low", "high"):
        monkeypatch.setitem(OPTIONS, f"lbttcp.store_port_{end}", str(STORE_PORT))
    um.load()
    um.bind_ports(tcp=[STORE_PORT])
    wrpcap(str(tmp_path / "store.pcap"), list(frames()))
    yield tmp_path / "store.pcap"
    um.unload()


def test_tshark_decodes_every_message_as_it_was_encoded(capture: Path) -> None:
    """Every field of every kind, nothing is marked as malformed, and the scapy layers agree.

    Registrations (UP-34) and deregistrations (UP-70), consent to receiver pacing (UP-87) and to
    confirmations (UP-62), keepalives (UP-28),
    registration information (UP-29), acknowledgements by ranges (UP-49) and negative ones (UP-59), recovered messages
    (UP-43); ids (UP-11, UP-13).
    """
    assert tshark(capture, "-Y", MARKS) == ""
    shown = trees(capture)
    assert sorted(shown) == [*range(1, len(SENT) + 1)]
    assert SENT.keys() == EXPECTED.keys()
    wrong = []
    for tree, (name, options) in zip(shown.values(), EXPECTED.items(), strict=True):
        for option, fields in options.items():
            for field, value in fields.items():
                path = ".".join(filter(None, ("lbmc", option, field)))
                wanted = [str(each) for each in (value if isinstance(value, list) else [value])]
                found = [str(int(each, 0)) if each[:2] == "0x" else each for each in values(tree, path)]
                if found != wanted:
                    wrong.append(f"{name}: {path} is {found}, not {wanted}")
    assert not wrong, "\n".join(wrong)
    assert len(assert_agreement(capture)) == len(SENT)
