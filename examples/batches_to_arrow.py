"""Publish an Arrow array in one call and receive it as Arrow record batches: python examples/batches_to_arrow.py lo.

No payload becomes a Python object on the way: the publisher reads the array's buffers, the record batches look at the
memory of the receiver's queue. Copy what you keep for long, because it pins that memory.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import umstack

COUNT = 10_000


def receive_all(receiver: umstack.Receiver, count: int) -> pa.Table:
    """Receive `count` messages as one table of our own memory."""
    parts: list[pa.RecordBatch] = []
    rows = 0
    while rows < count:
        part = receiver.poll(timeout=1.0).to_arrow()  # topic, sequence_number, source, received_ns, ...
        # A copy, so that the queue's block is free again. A batch of events only has no rows.
        parts.append(part.take(pa.array(range(part.num_rows), pa.int64())))
        rows += part.num_rows
    return pa.Table.from_batches(parts)


def main(interface: str, *, config: str | None = None) -> None:
    """Send and receive in one process, to show both ends."""
    with umstack.Context(interface, config=config) as context:
        receiver = context.receiver("prices")
        source = context.source("prices", flow_control="min")
        source.wait_connected(timeout=10)
        source.send_many(pa.array([b"%08d" % number for number in range(COUNT)], pa.binary()), flush=True)
        table = receive_all(receiver, COUNT)
        print(f"{table.num_rows} rows, columns {', '.join(table.column_names)}")
        print(f"payloads {table['payload'][0].as_py().decode()} to {table['payload'][-1].as_py().decode()}")


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)
