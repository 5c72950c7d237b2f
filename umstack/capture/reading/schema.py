"""The columns of a decoded capture, which docs/capture.md explains; Spark has the same."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from umstack.errors import Unsupported

if TYPE_CHECKING:
    import pyarrow


LBTRM, LBTRU, LBTTCP = "LBT-RM", "LBT-RU", "LBT-TCP"
"""Texts of `transport`."""


def arrow() -> Any:
    """Return pyarrow, imported on first use."""
    try:
        import pyarrow
    except ImportError:
        raise Unsupported(
            "decoding captures needs pyarrow", hint="pip install 'umstack[arrow]' and try again"
        ) from None
    return pyarrow


@cache
def message_type() -> pyarrow.StructType:
    """Return the type of an LBMC message, or of a TSNI record, in a datagram."""
    pa = arrow()
    number = pa.int64()
    return pa.struct(
        [
            pa.field("topic_index", number),
            pa.field("topic_sqn", number),
            pa.field("first_sqn", number),
            pa.field("fragment_offset", number),
            pa.field("message_length", number),
            pa.field("payload_bytes", pa.int32(), nullable=False),
            pa.field("sent_ns", number),
            pa.field("kind", pa.string(), nullable=False),
        ]
    )


@cache
def advertisement_type() -> pyarrow.StructType:
    """Return the type of a topic and its session in a datagram of topic resolution."""
    pa = arrow()
    return pa.struct(
        [
            pa.field("topic", pa.string(), nullable=False),
            pa.field("topic_index", pa.int64(), nullable=False),
            pa.field("transport", pa.string(), nullable=False),
            pa.field("source_address", pa.string(), nullable=False),
            pa.field("source_port", pa.int32()),
            pa.field("session_id", pa.int64()),
            pa.field("group_address", pa.string()),
            pa.field("group_port", pa.int32()),
            pa.field("nak_port", pa.int32()),
            pa.field("request_address", pa.string()),
            pa.field("request_port", pa.int32()),
        ]
    )


@cache
def schema() -> pyarrow.Schema:
    """Return the schema of the batches of `decode`; `umstack.capture.SCHEMA` is the same."""
    pa = arrow()
    text, number, small, flag = pa.string(), pa.int64(), pa.int32(), pa.bool_()
    always: dict[str, Any] = {"nullable": False}
    return pa.schema(
        [
            pa.field("capture_file", text, **always),
            pa.field("position", number, **always),
            pa.field("time_ns", number),
            pa.field("interface_id", small, **always),
            pa.field("interface_name", text),
            pa.field("link_type", small, **always),
            pa.field("frame_bytes", small, **always),
            pa.field("captured_bytes", small, **always),
            pa.field("vlan", small),
            pa.field("inner_vlan", small),
            pa.field("queue", number),
            pa.field("dropped", number),
            pa.field("verdict", text),
            pa.field("source_address", text),
            pa.field("source_port", small),
            pa.field("destination_address", text),
            pa.field("destination_port", small),
            pa.field("ip_fragment", flag, **always),
            pa.field("ip_fragments", small),
            pa.field("udp_bytes", small),
            pa.field("tcp_bytes", small),
            pa.field("tcp_flags", small),
            pa.field("copy", flag, **always),
            pa.field("status", text, **always),
            pa.field("packet_type", text),
            pa.field("transport", text),
            pa.field("to_source", flag),
            pa.field("session_id", number),
            pa.field("client_id", number),
            pa.field("nak_port", small),
            pa.field("transport_flags", small),
            pa.field("transport_sqn", number),
            pa.field("retransmission", flag),
            pa.field("sm_sqn", number),
            pa.field("lead_sqn", number),
            pa.field("trail_sqn", number),
            pa.field("ack_sqn", number),
            pa.field("sqns", pa.list_(pa.field("item", number, nullable=False))),
            pa.field("ncf_reason", text),
            pa.field("messages", pa.list_(pa.field("item", message_type(), nullable=False))),
            pa.field("next_sqn", number),
            pa.field("window_bytes", number),
            pa.field("group_tag", number),
            pa.field("receiver_id", number),
            pa.field("recovery", text),
            pa.field("advertisements", pa.list_(pa.field("item", advertisement_type(), nullable=False))),
        ]
    )
