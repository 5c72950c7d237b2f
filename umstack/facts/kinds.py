"""The kinds of packets the analyses tell apart, and the columns of a packet they read; nothing here needs Spark."""

from __future__ import annotations

DATA = "DATA"
RETRANSMISSION = "RETRANSMISSION"
SESSION_MESSAGE = "SM"
NAK = "NAK"
NCF = "NCF"
STATUS = "STATUS"
"""A control message sent to the source alone: how far a receiver has come (flow control)."""

ACKNOWLEDGEMENT, CONNECTION_REQUEST = "ACK", "CREQ"
"""What a receiver of LBT-RU says of its connection."""
FILTER = "FILTER"
"""What a source of LBT-RU says that a receiver was passed over."""
OPEN, CLOSE, SEGMENT = "OPEN", "CLOSE", "SEGMENT"
"""Segments of a TCP connection: the receiver's SYN, a FIN or RST of either end, and all others."""

SESSION = ("publisher", "session_id")
BUCKET_NS = 1_000_000
"""Rates are counted by so long a time."""
EPOCH_NS = 60 * 1_000_000_000
"""Sequence numbers are unwrapped by one reference for each so long a time of a session."""

TYPES = (DATA, SESSION_MESSAGE, NAK, NCF, STATUS, ACKNOWLEDGEMENT, CONNECTION_REQUEST, FILTER)
FROM_RECEIVERS = (NAK, STATUS, ACKNOWLEDGEMENT, CONNECTION_REQUEST)
SEGMENTS = (OPEN, CLOSE, SEGMENT)
KINDS = (*TYPES, RETRANSMISSION, *SEGMENTS)
FRAGMENT, NOTE, OTHER = "FRAGMENT", "NOTE", "OTHER"
NOTE_STATUS = "note: "
"""What the status of a row begins with that is no packet, but says what a file does not hold."""
MALFORMED_STATUSES = ("LBT-RM: ", "LBT-RU: ")
"""What the status of a packet begins with that every receiver of a session refuses."""

NEEDED = (
    *("point", "time_ns", "frame_bytes", "source_address", "destination_address"),
    *("destination_port", "udp_bytes", "packet_type", "session_id", "transport_sqn", "lead_sqn"),
    *("retransmission", "sqns", "ncf_reason", "ip_fragment", "status", "message_count", "message_bytes"),
    *("transport", "to_source", "tcp_bytes", "tcp_flags", "recovery", "receiver_end", "block"),
    "transport_flags",
)
"""The columns of a packet that the analyses read."""

# What rotation adds to a capture's name (dumpcap: _00001_20260102030405, umstack: -0001), and the containers' suffixes.
ROTATION = r"(?:[-_]\d{4,5}(?:_\d{14})?)?(?:\.pcap(?:ng)?|\.cap)?\d*(?:\.gz|\.zst)?$"
