"""The kinds of packets that the analyses distinguish, and the packet columns they read. Nothing here needs Spark."""

from __future__ import annotations

DATA = "DATA"
RETRANSMISSION = "RETRANSMISSION"
SESSION_MESSAGE = "SM"
NAK = "NAK"
NCF = "NCF"
STATUS = "STATUS"
"""A flow control message from a receiver to the source, with the receiver's position."""

ACKNOWLEDGEMENT, CONNECTION_REQUEST = "ACK", "CREQ"
"""Control messages of an LBT-RU receiver about its connection."""
FILTER = "FILTER"
"""The report of a filtering LBT-RU source about datagrams that it skipped for a receiver."""
OPEN, CLOSE, SEGMENT = "OPEN", "CLOSE", "SEGMENT"
"""Segments of a TCP connection: the receiver's SYN, a FIN or RST from either end, and all others."""

SESSION = ("publisher", "session_id")
BUCKET_NS = 1_000_000
"""The interval over which rates are counted."""
EPOCH_NS = 60 * 1_000_000_000
"""The interval of a session that has one reference for unwrapping sequence numbers."""

TYPES = (DATA, SESSION_MESSAGE, NAK, NCF, STATUS, ACKNOWLEDGEMENT, CONNECTION_REQUEST, FILTER)
FROM_RECEIVERS = (NAK, STATUS, ACKNOWLEDGEMENT, CONNECTION_REQUEST)
SEGMENTS = (OPEN, CLOSE, SEGMENT)
KINDS = (*TYPES, RETRANSMISSION, *SEGMENTS)
FRAGMENT, NOTE, OTHER = "FRAGMENT", "NOTE", "OTHER"
COPY, COPY_STATUS = "COPY", "a copy within 100 microseconds"
"""Copies of packets of every kind, as a mirror of several ports makes them (ffi/capture/reading/copies.h)."""
NOTE_STATUS = "note: "
"""Prefix of the status of a row that is not a packet but a note, such as "the file is truncated"."""
MALFORMED_STATUSES = ("LBT-RM: ", "LBT-RU: ")
"""Prefix of the status of a packet that every receiver of a session rejects."""

RATED_NS = 1_000_000
"""A few datagrams within less than this are no rate."""

NEEDED = (
    *("point", "time_ns", "frame_bytes", "source_address", "source_port", "destination_address"),
    *("destination_port", "udp_bytes", "packet_type", "session_id", "transport_sqn", "lead_sqn"),
    *("retransmission", "sqns", "ncf_reason", "ip_fragment", "ip_fragments", "status"),
    *("message_count", "message_bytes"),
    *("transport", "to_source", "tcp_bytes", "tcp_flags", "recovery", "receiver_end", "block"),
    "transport_flags",
)
"""The packet columns that the analyses read."""

# The part of a capture's name added by rotation (dumpcap: _00001_20260102030405, umstack: -0001), and file suffixes.
ROTATION = r"(?:[-_]\d{4,5}(?:_\d{14})?)?(?:\.pcap(?:ng)?|\.cap|\.erf)?\d*(?:\.gz|\.zst)?$"
