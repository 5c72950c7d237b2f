"""What every column of the captures' rows means, and its unit, as metadata of Spark's fields.

`df.schema["time_ns"].metadata` is `{"comment": ..., "unit": "ns"}`; tables that Spark writes keep the comments.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

_NOTES: dict[str, tuple[str, str | None]] = {
    "capture_file": ("the file's path", None),
    "position": ("where the packet's record begins in the file, or in what a compressed file holds", "bytes"),
    "time_ns": ("when it was captured, since 1970; null if its container does not say", "ns"),
    "timestamp": ("time_ns in microseconds", "us"),
    "interface_id": ("the interface's number in the file, -1 if it was never described", None),
    "interface_name": ("the interface's name", None),
    "link_type": ("how the frame begins: a LINKTYPE number", None),
    "frame_bytes": ("length of the frame on the link", "bytes"),
    "captured_bytes": ("how much of the frame the capture holds", "bytes"),
    "vlan": ("identifier of the outer VLAN tag", None),
    "inner_vlan": ("identifier of the inner VLAN tag", None),
    "queue": ("receive queue of the interface that had the packet", None),
    "dropped": ("packets that the capturing side lost since the one before", "packets"),
    "verdict": ("what an XDP program decided", None),
    "source_address": ("IP address of the sender", None),
    "source_port": ("UDP or TCP port of the sender", None),
    "destination_address": ("IP address it was sent to: a group, or one host", None),
    "destination_port": ("UDP or TCP port it was sent to", None),
    "ip_fragment": ("whether it is a fragment of an IP packet", None),
    "udp_bytes": ("length of the UDP payload", "bytes"),
    "tcp_bytes": ("length of the TCP payload", "bytes"),
    "tcp_flags": ("flags of the TCP header", None),
    "transport": ("LBT-RM, LBT-RU or LBT-TCP; null of what is none of these", None),
    "to_source": ("whether a receiver sent it to a source", None),
    "client_id": ("the number a source of LBT-RU gave a receiver", None),
    "ack_sqn": ("the last datagram that a receiver of LBT-RU acknowledges", None),
    "recovery": ("what a TCP connection is for: late_join or off_transport", None),
    "status": ("ok, or what is wrong with the packet", None),
    "packet_type": ("DATA, SM, NAK, NCF, STATUS, LBMR, TCP, ACK, CREQ, RST or FILTER", None),
    "session_id": ("transport session", None),
    "nak_port": ("UDP port that the source takes NAKs at", None),
    "transport_flags": ("flags of the LBT-RM or LBT-RU header", None),
    "transport_sqn": ("sequence number of a DATA datagram; wraps at 2^32", None),
    "retransmission": ("whether a DATA datagram was sent again", None),
    "sm_sqn": ("number of a session message", None),
    "lead_sqn": ("the last datagram that was sent, by a session message", None),
    "trail_sqn": ("the first datagram that can be sent again", None),
    "sqns": ("sequence numbers of a NAK or NCF; first and last that a FILTER says were passed over", None),
    "ncf_reason": ("why a NAK is not answered by a retransmission", None),
    "messages": ("LBMC messages of a DATA datagram, or of a TCP stream where their headers end", None),
    "next_sqn": ("next sequence number that a receiver needs, by its status message", None),
    "window_bytes": ("how much a receiver can take, by its status message", "bytes"),
    "group_tag": ("the receiver's flow control group", None),
    "receiver_id": ("the receiver's own number", None),
    "advertisements": ("topics of a topic resolution datagram, and their sessions", None),
    "point": ("where it was captured: the file without what rotation added, and the interface", None),
    "message_count": ("messages with payload in the datagram", "messages"),
    "message_bytes": ("payload of its messages", "bytes"),
    "window_ns": ("beginning of the window of time the facts are of, 0 of what has no time", "ns"),
    "publisher": ("address of the session's source, empty of what is no session's", None),
    "receiver": (
        "address and port of the receiver that first sendings went to, empty of those to a group",
        None,
    ),
    "frame": ("which facts they are: docs/facts.md", None),
    "content": ("the facts, in Arrow's IPC format", None),
}


def commented(schema: pa.Schema) -> StructType:
    """The schema as Spark has it, with a comment and, where it has one, a unit in the metadata of each field."""
    return StructType([_commented(field) for field in from_arrow_schema(schema)])


def _commented(field: StructField) -> StructField:
    comment, unit = _NOTES[field.name]
    metadata = {"comment": comment} | ({} if unit is None else {"unit": unit})
    return StructField(field.name, field.dataType, field.nullable, metadata)
