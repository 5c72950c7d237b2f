"""Write and read messages in place: python examples/claim.py lo.

`claim()` hands out a view of the publication log, so the message is built where the sender will read it. `poll()`
gives a batch whose columns are views of the receiver's queue, and numpy reads them without a copy.
"""

from __future__ import annotations

import struct
import sys

import numpy as np

import umstack

COUNT = 1000
READING = struct.Struct("<Id")  # sensor, value
COLUMNS = np.dtype([("sensor", "<u4"), ("value", "<f8")])


def publish(source: umstack.Source) -> None:
    """Build every message inside the log."""
    for number in range(COUNT):
        with source.claim(READING.size) as view:  # committed when the block ends, aborted if it raises
            READING.pack_into(view, 0, number % 4, number / 2)
    source.flush()


def main(interface: str, *, config: str | None = None) -> None:
    """Sum the readings of each sensor over whole batches."""
    sums = np.zeros(4)
    received = 0
    with umstack.Context(interface, config=config) as context:
        receiver = context.receiver("readings")
        source = context.source("readings", flow_control="min")
        source.wait_connected(timeout=10)
        publish(source)
        while received < COUNT:
            with receiver.poll(timeout=1.0) as batch:  # its rows are the queue's again when the block ends
                readings = np.frombuffer(batch.payload, COLUMNS)  # events have no payload
                np.add.at(sums, readings["sensor"], readings["value"])
                received += len(readings)
                del readings  # a view that is alive would pin the block
    print(f"{received} readings, sums {' '.join(f'{total:.1f}' for total in sums)}")


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)
