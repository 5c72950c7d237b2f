"""The costs of problems, and their remedies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class CostKind(IntEnum):
    """The kind of a cost, the worst first. Costs of one kind have sizes of one unit."""

    LOST = 0
    """Messages or datagrams that did not arrive."""
    STOOD_STILL = 1
    """Nanoseconds in which a publisher stood still."""
    INTERRUPTED = 2
    """Interruptions of a stream."""
    LATE = 3
    """Messages or datagrams that came late."""
    REPEATED = 4
    """Requests and retransmissions that were in vain."""
    BANDWIDTH = 5
    """Share of the bandwidth."""
    UNSEEN = 6
    """Packets that are missing from the report; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a problem; `text` is for people."""

    kind: CostKind
    size: float
    text: str


REMEDIES = {
    "unrepaired": "Check the receivers' logs for lost messages; enlarge the transmission window, or use "
    "off-transport recovery. Losses at the very end of a capture may have been repaired after it.",
    "stream-loss": "Let the source wait for slow receivers (flow control), or speed up the receivers named.",
    "stall": "Fix the losses of the receiver that held the window; with a larger window the publisher "
    "continues for longer.",
    "restarts": "Ask the source's owner for the reason of the restart, and use a new session id for each start.",
    "reconnects": "Look for receivers that restart, time out or are too slow.",
    "loss-sporadic": "Check the error counters of the receiver's link and port, and policers on the way.",
    "loss-burst": "Enlarge the receiver's socket buffer or ring, and check the queues of its switch port; otherwise "
    "limit the data rate.",
    "loss-connectivity": "Look for link, route or multicast membership (IGMP) changes at the time of the loss.",
    "loss-tail": "Shorten the interval of session messages, which reveal a lost tail.",
    "loss-head": "Use late join if receivers need the first messages.",
    "repeated-naks": "Compare the NAK back-off with the time to repair: a longer one saves NAKs if no repair was lost.",
    "nak-storm": "Lengthen the initial NAK back-off of the receivers named, and limit the retransmission rate.",
    "useless-repairs": "Lengthen the ignore interval, within half of the receivers' back-off.",
    "refused": "Raise the limit that refused them: the ignore interval must be at most half of the back-off, the rate "
    "limit above the rate of losses, the window longer than recovery takes.",
    "lost-repairs": "Fix the path between the two points; until then a shorter back-off requests lost repairs sooner.",
    "recovery-tcp": "Off-transport recovery: find out why retransmission failed first (window, slow receiver, path). "
    "Nothing received: check that the source retains messages and that its request port is reachable.",
    "duplicates": "Look for a loop or a second route in the network; capture each datagram at one port.",
    "fill": "Turn batching on: it puts several small messages into one datagram.",
    "over-mtu": "Set the datagram's maximum size to the MTU of the path.",
    "ip-fragments": "Set the datagram's maximum size to the MTU of the path.",
    "gaps": "Check the capture's own drops; if it has none, the datagrams were lost before this point.",
    "malformed": "Look at these packets in Wireshark: damage on the way, or another protocol on these ports.",
    "capture": "Capture again, or complete the files: the report covers only what could be read.",
}
"""The remedy of a problem, by topic."""
GAINS = {
    "_nak_initial_backoff_interval": "are requested sooner",
    "_nak_backoff_interval": "need fewer or earlier repeated NAKs",
    "_nak_suppress_interval": "are requested again sooner after an NCF",
    "_ignore_interval": "are not refused a retransmission",
    "_transmission_window_size": "can still be retransmitted",
    "_data_rate_limit": "are avoided",
}
"""The expected gain of a suggested option for the losses that it helps, by the end of its name."""
