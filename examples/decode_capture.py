"""Say what a capture holds, without Spark: python examples/decode_capture.py switch.pcapng.

Any pcap or pcapng file decodes into Arrow record batches, one row per packet, several million rows per second.
"""

from __future__ import annotations

import sys
from collections import Counter

from umstack.capture import CaptureNotes, decode


def main(path: str) -> None:
    """Count datagrams by kind and sequence numbers that were NAKed."""
    notes = CaptureNotes()
    kinds: Counter[str] = Counter()
    retransmissions = 0
    naked: set[int] = set()
    for batch in decode(path, only_ours=True, notes=notes):
        for row in batch.to_pylist():
            kinds[row["packet_type"] or row["status"]] += 1
            retransmissions += bool(row["retransmission"])
            if row["packet_type"] == "NAK":
                naked.update(row["sqns"])
    for kind, count in sorted(kinds.items()):
        print(f"{kind}: {count}")
    print(f"retransmissions: {retransmissions}, sequence numbers NAKed: {len(naked)}")
    for note in notes.notes:
        print(f"note: {note.text}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
