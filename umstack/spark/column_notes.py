"""Comment and unit of every column of the captures' rows, as metadata of Spark's fields.

`df.schema["time_ns"].metadata` is `{"comment": ..., "unit": "ns"}`; tables that Spark writes keep the comments.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

_NOTES: dict[str, tuple[str, str | None]] = {
    "capture_file": ("path of the file", None),
    "position": ("offset of the packet's record in the file, after decompression", "bytes"),
    "time_ns": ("capture time since 1970; null if the container has none", "ns"),
    "timestamp": ("time_ns in microseconds", "us"),
    "interface_id": ("the interface's number in the file; -1 if the file does not describe it", None),
    "interface_name": ("the interface's name", None),
    "link_type": ("LINKTYPE number of the frame", None),
    "frame_bytes": ("length of the frame on the link", "bytes"),
    "captured_bytes": ("length of the captured part of the frame", "bytes"),
    "vlan": ("identifier of the outer VLAN tag", None),
    "inner_vlan": ("identifier of the inner VLAN tag", None),
    "queue": ("receive queue of the interface that received the packet", None),
    "dropped": ("packets lost by the capture since the previous one", "packets"),
    "verdict": ("verdict of an XDP program", None),
    "source_address": ("IP address of the sender", None),
    "source_port": ("UDP or TCP port of the sender", None),
    "destination_address": ("IP address of the destination: a group or a host", None),
    "destination_port": ("UDP or TCP port of the destination", None),
    "ip_fragment": ("true for a datagram that IP sent in fragments", None),
    "ip_fragments": ("captured fragments of the datagram", None),
    "udp_bytes": ("length of the UDP payload", "bytes"),
    "tcp_bytes": ("length of the TCP payload", "bytes"),
    "tcp_flags": ("flags of the TCP header", None),
    "transport": ("LBT-RM, LBT-RU or LBT-TCP; null for other packets", None),
    "to_source": ("true if a receiver sent it to a source", None),
    "client_id": ("number that an LBT-RU source assigned to a receiver", None),
    "ack_sqn": ("last datagram that an LBT-RU receiver acknowledges", None),
    "recovery": ("purpose of a TCP connection: late_join, off_transport or store", None),
    "copy": ("true for a copy of a packet captured just before, as mirrors make them", None),
    "status": ("ok, or the error in the packet", None),
    "packet_type": ("DATA, SM, NAK, NCF, STATUS, LBMR, TCP, ACK, CREQ, RST or FILTER", None),
    "session_id": ("transport session", None),
    "nak_port": ("UDP port at which the source receives NAKs", None),
    "transport_flags": ("flags of the LBT-RM or LBT-RU header", None),
    "transport_sqn": ("sequence number of a DATA datagram; wraps at 2^32", None),
    "retransmission": ("true if a DATA datagram is a retransmission", None),
    "sm_sqn": ("number of a session message", None),
    "lead_sqn": ("last datagram sent, by a session message", None),
    "trail_sqn": ("first datagram that can be retransmitted", None),
    "sqns": ("sequence numbers of a NAK or NCF; first and last number skipped according to a FILTER", None),
    "ncf_reason": ("reason for refusing a NAK", None),
    "messages": ("LBMC messages of a DATA datagram, or of a TCP stream at the end of their headers", None),
    "next_sqn": ("next sequence number that a receiver needs, by its status message", None),
    "window_bytes": ("bytes that a receiver can take, by its status message", "bytes"),
    "group_tag": ("the receiver's flow control group", None),
    "receiver_id": ("identifier of the receiver", None),
    "advertisements": ("topics of a topic resolution datagram, and their sessions", None),
    "point": ("capture point: the file's path without rotation suffix, and the interface", None),
    "message_count": ("messages with payload in the datagram", "messages"),
    "message_bytes": ("payload of its messages", "bytes"),
    "window_ns": ("start of the facts' time window; 0 for facts without a time", "ns"),
    "publisher": ("address of the session's source; empty for facts outside of sessions", None),
    "receiver": (
        "address and port of the receiver of first transmissions; empty for those to a group",
        None,
    ),
    "frame": ("kind of the facts: docs/facts.md", None),
    "content": ("the facts, in Arrow's IPC format", None),
}


def commented(schema: pa.Schema) -> StructType:
    """Convert a schema to Spark's, with comment and unit in the metadata of each field.

    Notes that the schema's fields have in their own metadata take precedence.
    """
    fields = zip(from_arrow_schema(schema), schema, strict=True)
    return StructType([_commented(field, own.metadata or {}) for field, own in fields])


def _commented(field: StructField, own: dict[bytes, bytes]) -> StructField:
    if own:
        metadata = {name.decode(): note.decode() for name, note in own.items()}
    else:
        comment, unit = _NOTES[field.name]
        metadata = {"comment": comment} | ({} if unit is None else {"unit": unit})
    return StructField(field.name, field.dataType, field.nullable, metadata)
